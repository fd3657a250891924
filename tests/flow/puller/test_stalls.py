"""Locks that dead transactions have left: when they are looked for, and what becomes of them and of the living."""

import asyncio
import contextlib
import logging

import pytest

from tests.flow.puller.test_coverage import WHOLE, region
from tests.flow.puller.test_losses import INITIALIZED
from tests.flow.puller.test_losses import WHOLE as SCRIPTED_SPAN
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK
from tidemill.flow.puller import LockResolving, Puller
from tidemill.flow.puller.coverage import Coverage
from tidemill.flow.puller.stalls import StallWatch
from tidemill.model.change import Op
from tidemill.model.span import Span
from tidemill.model.ts import Ts, compose, physical_ms
from tidemill.testing.receiver import RecordingReceiver
from tidemill.testing.scripted import ScriptedUpstream
from tidemill.testing.scripted import region as scripted_region
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.kv import KvClient, decoder
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache

NOW = compose(1_700_000_000_000)
START = compose(1_600_000_000_000)


def ago(seconds):
    return Ts(NOW - compose(int(seconds * 1000)))


def covering(*reached):
    """A span with a region for each ts."""
    coverage = Coverage(1, WHOLE, START)
    width = 30 // len(reached)
    for n, ts in enumerate(reached):
        registration = coverage.claim(region(n + 1, 5 + n * width, 5 + (n + 1) * width, 1))
        coverage.initialize(registration)
        coverage.frontier.advance(registration.part, ts)
    return coverage


def test_a_frontier_stands_once_it_has_not_moved_for_four_seconds():
    watch, coverage = StallWatch(LockResolving()), covering(ago(60))
    assert watch.standing([coverage], 100.0) == []
    assert watch.standing([coverage], 103.9) == []
    assert watch.standing([coverage], 104.0) == [coverage]
    coverage.frontier.advance(WHOLE, ago(50))
    assert watch.standing([coverage], 106.0) == []
    assert watch.standing([coverage], 110.0) == [coverage]


def test_a_subscription_that_went_and_came_back_stands_from_then_on():
    watch, coverage = StallWatch(LockResolving()), covering(ago(60))
    watch.standing([coverage], 100.0)
    watch.standing([], 102.0)
    assert watch.standing([coverage], 104.0) == []


def test_only_regions_that_are_far_enough_behind_are_asked_and_each_at_most_every_ten_seconds():
    watch, coverage = StallWatch(LockResolving()), covering(ago(60), ago(4.001), ago(3.9))

    def due(now):
        return [(r.region.id, reached) for r, reached in watch.due(coverage, NOW, now)]

    assert due(100.0) == [(1, ago(60)), (2, ago(4.001))]
    assert due(109.9) == []
    assert due(110.0) == [(1, ago(60)), (2, ago(4.001))]


def test_a_region_in_its_incremental_scan_is_not_asked():
    coverage = Coverage(1, WHOLE, START)
    coverage.claim(region(1, 0, 40, 1))
    assert StallWatch(LockResolving()).due(coverage, NOW, 0.0) == []


def test_only_locks_that_may_hold_the_region_are_looked_for():
    watch = StallWatch(LockResolving())
    assert watch.newest_lock(NOW, ago(60)) == ago(56)
    assert watch.newest_lock(NOW, ago(1)) == NOW


# Against an embedded upstream, over real gRPC

ROWS = Span(encode_bytes(b"k"), encode_bytes(b"l"))
OTHER = Span(encode_bytes(b"o"), encode_bytes(b"p"))
SOON = LockResolving(behind_seconds=0.01, unmoved_seconds=0.0, region_pause_seconds=0.0, look_seconds=0.02)


def put(*keys, value=b"v"):
    return [Mutation(Op.PUT, key, value) for key in keys]


@pytest.fixture
def upstream():
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=0.02) as upstream:
        upstream.split(b"l")
        yield upstream


@pytest.fixture
def said(caplog):
    """What the puller has logged of locks so far."""
    caplog.set_level(logging.INFO, logger="tidemill")
    return lambda words: [r.getMessage() for r in caplog.records if words in r.getMessage()]


@contextlib.asynccontextmanager
async def pulling(upstream, locks=SOON):
    async with PdClient(upstream.pd_address) as pd:
        receiver = RecordingReceiver()
        puller = Puller(pd, receiver, locks=locks)
        puller.subscribe(1, ROWS, Ts(0))
        puller.subscribe(2, OTHER, Ts(0))
        running = asyncio.create_task(puller.run())
        try:
            yield puller, receiver, pd
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        assert receiver.broken_promises == []


async def write(upstream, *keys):
    return (await asyncio.to_thread(upstream.commit, put(*keys)))[1]


async def until(claim, upstream, receiver):
    """Until something is so; meanwhile the other subscription goes on."""
    async with asyncio.timeout(30):
        while not claim():
            await receiver.wait_resolved(2, await write(upstream, b"o"))


@pytest.mark.parametrize("is_resolving", [True, False], ids=["resolving", "not resolving"])
def test_an_orphan_lock_holds_the_frontier_until_it_is_resolved(upstream, said, is_resolving):
    async def scenario():
        async with pulling(upstream, SOON if is_resolving else None) as (puller, receiver, _):
            start_ts = await asyncio.to_thread(upstream.orphan_lock, b"k1", 1)
            late = await write(upstream, b"k2")
            if is_resolving:
                await receiver.wait_resolved(1, late)
                await until(lambda: said("locks resolved"), upstream, receiver)
                assert puller.stats().resolved_transactions == 1
                (line,) = said("locks resolved")
                assert f"region={upstream.region_of(b'k1').id} " in line
                assert f"start_ts={start_ts} " in line
                assert "action='rolled back'" in line
            else:
                await until(lambda: receiver.resolved_ts(2) > late, upstream, receiver)
                assert receiver.resolved_ts(1) < late
                await asyncio.to_thread(upstream.rollback, [b"k1"], start_ts)
                await receiver.wait_resolved(1, late)
            assert [key for key, _ in receiver.changes[1]] == [b"k2"]

    asyncio.run(scenario())


def test_a_lock_whose_primary_is_committed_is_committed_there(upstream, said):
    async def scenario():
        async with pulling(upstream) as (_, receiver, _):
            mutations = put(b"a", b"k1", b"k2")  # the primary lies outside of what we follow
            start_ts = await asyncio.to_thread(upstream.prewrite, mutations)
            commit_ts = await asyncio.to_thread(upstream.commit_prewritten, [b"a"], start_ts)
            await receiver.wait_resolved(1, await write(upstream, b"k3"))
            assert {(b"k1", commit_ts), (b"k2", commit_ts)} < receiver.changes[1].keys()
            await until(lambda: said("locks resolved"), upstream, receiver)
            (line,) = said("locks resolved")
            assert "locks=2 action=committed" in line

    asyncio.run(scenario())


def test_a_transaction_that_lives_is_left_alone_as_long_as_its_heart_beats(upstream, said):
    ttl_ms = 2000

    async def beat(kv, start_ts):
        def request(_):
            advised = physical_ms(upstream.tso()) - physical_ms(start_ts) + ttl_ms
            return kvrpcpb_pb2.TxnHeartBeatRequest(primary_lock=b"k1", start_version=start_ts, advise_lock_ttl=advised)

        while True:
            _, answer = await kv.send_some(
                "KvTxnHeartBeat", [b"k1"], request, decoder(kvrpcpb_pb2.TxnHeartBeatResponse)
            )
            assert not answer.HasField("error"), answer
            await asyncio.sleep(0.2)

    async def scenario():
        async with pulling(upstream) as (puller, receiver, pd):
            kv = KvClient(RegionCache(pd))
            start_ts = await asyncio.to_thread(upstream.orphan_lock, b"k1", ttl_ms)
            beating = asyncio.create_task(beat(kv, start_ts))
            try:
                expiry = physical_ms(start_ts) + 2 * ttl_ms
                await until(lambda: physical_ms(receiver.resolved_ts(2)) > expiry, upstream, receiver)
                await until(lambda: len(said("left alone")) > 2, upstream, receiver)
                assert not beating.done()
                assert receiver.resolved_ts(1) < start_ts
                assert puller.stats().resolved_transactions == 0
                beating.cancel()
                commit_ts = await asyncio.to_thread(upstream.commit_prewritten, [b"k1"], start_ts)
                await receiver.wait_resolved(1, commit_ts)
                assert receiver.changes[1][b"k1", commit_ts][4] == b"orphan"
            finally:
                beating.cancel()
                await asyncio.wait([beating])
                await kv.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_whole", [True, False], ids=["all its locks are there", "one is missing"])
def test_an_asynchronous_commit_is_decided_by_all_its_keys(upstream, said, is_whole):
    async def prewrite(kv, start_ts, primary, secondaries, key):
        def request(region):
            return kvrpcpb_pb2.PrewriteRequest(
                mutations=[kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Put, key=key, value=b"v")],
                primary_lock=primary,
                start_version=start_ts,
                lock_ttl=1,
                use_async_commit=True,
                secondaries=secondaries if key == primary else [],
            )

        _, answer = await kv.send("KvPrewrite", key, request, decoder(kvrpcpb_pb2.PrewriteResponse))
        assert answer.min_commit_ts

    async def scenario():
        async with pulling(upstream) as (_, receiver, pd):
            kv = KvClient(RegionCache(pd))
            try:
                start_ts = await pd.get_ts()
                if is_whole:
                    await prewrite(kv, start_ts, b"m", [b"k1"], b"m")
                    await prewrite(kv, start_ts, b"m", [b"k1"], b"k1")
                else:
                    await prewrite(kv, start_ts, b"m", [b"k1", b"n"], b"m")
                    await prewrite(kv, start_ts, b"m", [b"k1", b"n"], b"k1")
                await receiver.wait_resolved(1, await write(upstream, b"k2"))
                keys = [key for key, _ in receiver.changes[1]]
                assert sorted(keys) == ([b"k1", b"k2"] if is_whole else [b"k2"])
            finally:
                await kv.close()

    asyncio.run(scenario())


def test_many_locks_are_resolved_in_turns(upstream, said):
    async def scenario():
        async with pulling(upstream) as (_, receiver, _):
            keys = [b"k%05d" % n for n in range(2500)]
            start_ts = await asyncio.to_thread(upstream.prewrite, put(b"a", *keys))
            await asyncio.to_thread(upstream.rollback, [b"a"], start_ts)
            await receiver.wait_resolved(1, await write(upstream, b"kk"))
            await until(lambda: said("locks resolved"), upstream, receiver)
            assert "locks=2500 " in said("locks resolved")[0]
            assert [key for key, _ in receiver.changes[1]] == [b"kk"]

    asyncio.run(scenario())


def test_a_store_that_cannot_resolve_locks_is_told_of_once(said):
    async def stand_still(stream, request):
        await stream.send_rows(request, INITIALIZED)
        await stream.send_resolved(60, request.region_id, request_id=request.request_id)

    async def scenario():
        upstream = ScriptedUpstream(stand_still)
        upstream.regions = [scripted_region(7, SCRIPTED_SPAN)]
        async with upstream, PdClient(upstream.pd_address) as pd:
            receiver = RecordingReceiver()
            puller = Puller(pd, receiver, locks=SOON)
            puller.subscribe(1, SCRIPTED_SPAN, Ts(50))
            running = asyncio.create_task(puller.run())
            try:
                async with asyncio.timeout(30):
                    while not said("cannot be resolved here"):
                        await SYSTEM_CLOCK.sleep(0)
                    seen = len(upstream.tso_counts)
                    while len(upstream.tso_counts) < seen + 3:  # one for each look that follows
                        await SYSTEM_CLOCK.sleep(0)
                assert not running.done()
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
        (line,) = said("cannot be resolved here")
        assert "region=7" in line
        assert "does not know KvScanLock" in line

    asyncio.run(scenario())
