"""The puller against an embedded upstream over real gRPC, while regions split, move and stall."""

import asyncio
import contextlib
import random

import pytest

from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import InvariantError
from tidemill.flow.puller import Puller, SlowestRegion
from tidemill.model.change import Op
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.testing.receiver import RecordingReceiver
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.feed.stream import MAX_INBOX_BYTES
from tidemill.upstream.pd import PdClient

ROWS = Span(encode_bytes(b"k"), encode_bytes(b"l"))


def put(*keys, value=b"v"):
    return [Mutation(Op.PUT, key, value) for key in keys]


@pytest.fixture
def upstream():
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=0.02) as upstream:
        yield upstream


@contextlib.asynccontextmanager
async def pulling(upstream, *subscriptions, start_ts=0):
    async with PdClient(upstream.pd_address) as pd:
        receiver = RecordingReceiver()
        puller = Puller(pd, receiver, locks=None)  # open transactions here have no heart-beat
        for subscription, span in subscriptions or [(1, ROWS)]:
            puller.subscribe(subscription, span, Ts(start_ts))
        running = asyncio.create_task(puller.run())
        try:
            yield puller, receiver
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        assert receiver.broken_promises == []


async def write(upstream, *keys, value=b"v"):
    """Commit in a thread, as another client would; return the commit-ts."""
    return (await asyncio.to_thread(upstream.commit, put(*keys, value=value)))[1]


def test_changes_from_before_and_after_the_start_are_received_and_resolved(upstream):
    async def scenario():
        _, early = upstream.commit(put(b"k1", value=b"old"))
        async with pulling(upstream) as (_, receiver):
            start, late = await asyncio.to_thread(upstream.commit, put(b"k1", b"k2", value=b"x" * 300))
            await asyncio.to_thread(upstream.commit, put(b"a", b"l"))
            await receiver.wait_resolved(1, late)
            assert [c[:2] for c in receiver.up_to(1, late)] == [(b"k1", early), (b"k1", late), (b"k2", late)]
            assert receiver.changes[1][b"k1", late] == (b"k1", late, start, Op.PUT, b"x" * 300, b"old")
            assert {key for key, _ in receiver.changes[1]} == {b"k1", b"k2"}

    asyncio.run(scenario())


def test_what_lies_at_or_below_the_start_ts_is_not_pulled(upstream):
    async def scenario():
        _, early = upstream.commit(put(b"k1"))
        async with pulling(upstream, start_ts=early) as (_, receiver):
            late = await write(upstream, b"k1")
            await receiver.wait_resolved(1, late)
            assert list(receiver.changes[1]) == [(b"k1", late)]

    asyncio.run(scenario())


def test_an_open_transaction_holds_the_frontier_before_it_and_a_rollback_frees_it(upstream):
    async def scenario():
        async with pulling(upstream) as (_, receiver):
            open_ts = await asyncio.to_thread(upstream.prewrite, put(b"k1"))
            other = await write(upstream, b"k2")
            await receiver.wait_resolved(1, open_ts - 1)
            assert receiver.resolved_ts(1) < other
            await asyncio.to_thread(upstream.rollback, [b"k1"], open_ts)
            await receiver.wait_resolved(1, other)
            assert [key for key, _ in receiver.changes[1]] == [b"k2"]

    asyncio.run(scenario())


def test_one_slow_region_holds_the_whole_span_back(upstream):
    async def scenario():
        for key in (b"k3", b"k6"):
            upstream.split(key)
        slow = upstream.region_of(b"k4").id
        beside = Span(encode_bytes(b"k6"), encode_bytes(b"l"))
        async with pulling(upstream, (1, ROWS), (2, beside)) as (puller, receiver):
            before = await write(upstream, b"k1", b"k4", b"k7")
            await receiver.wait_resolved(1, before)
            upstream.hold_resolved(slow)
            held = await write(upstream, b"k1", b"k7")
            await receiver.wait_resolved(2, held)  # the neighbour goes on
            assert (b"k7", held) in receiver.changes[1]
            assert before <= receiver.resolved_ts(1) < held
            for _ in range(200):  # until the other regions have all moved on
                await receiver.wait_resolved(2, await write(upstream, b"k7"))
                if puller.stats().slowest.region_id == slow:
                    break
            assert puller.stats().slowest == SlowestRegion(1, slow, receiver.resolved_ts(1))
            assert receiver.resolved_ts(1) < held
            upstream.release_resolved(slow)
            await receiver.wait_resolved(1, held)

    asyncio.run(scenario())


def test_a_split_in_mid_stream_leaves_no_hole_and_no_repetition(upstream):
    async def scenario():
        async with pulling(upstream) as (puller, receiver):
            written = []
            for n in range(8):
                written.append(await write(upstream, b"k1", b"k%d" % (n + 2)))
                await asyncio.to_thread(upstream.split, b"k%d" % (n + 2))
            written.append(await write(upstream, b"k1", b"k5", b"k9"))
            await receiver.wait_resolved(1, written[-1])
            assert puller.stats().regions == puller.stats().initialized_regions == 9
            assert len(receiver.changes[1]) == 2 * 8 + 3

    asyncio.run(scenario())


def test_leader_changes_in_mid_stream_lose_nothing(upstream):
    async def scenario():
        upstream.split(b"k5")
        async with pulling(upstream) as (_, receiver):
            for n in range(6):
                await write(upstream, b"k%d" % n, b"k%d" % (9 - n))
                for key in (b"k1", b"k7"):
                    await asyncio.to_thread(upstream.transfer_leader, upstream.region_of(key).id, n % 3 + 1)
            last = await write(upstream, b"k1", b"k7")
            await receiver.wait_resolved(1, last)
            assert len(receiver.changes[1]) == 2 * 6 + 2

    asyncio.run(scenario())


def test_dropped_streams_are_opened_again_at_the_ts_that_was_reached(upstream):
    async def scenario():
        async with pulling(upstream) as (_, receiver):
            first = await write(upstream, b"k1", b"k2")
            await receiver.wait_resolved(1, first)
            await asyncio.to_thread(upstream.drop_streams)
            second = await write(upstream, b"k1")
            await receiver.wait_resolved(1, second)
            assert receiver.copies == 0  # the first two were resolved: they are not sent again
            assert set(receiver.changes[1]) == {(b"k1", first), (b"k2", first), (b"k1", second)}

    asyncio.run(scenario())


def test_a_store_that_goes_away_and_comes_back_is_followed_elsewhere(upstream):
    async def scenario():
        for key in (b"k3", b"k6"):
            upstream.split(key)
        async with pulling(upstream) as (_, receiver):
            await receiver.wait_resolved(1, await write(upstream, b"k1", b"k4", b"k7"))
            store = next(iter(upstream.cluster.stores))
            await asyncio.to_thread(upstream.stop_store, store)
            last = await write(upstream, b"k1", b"k4", b"k7")
            await receiver.wait_resolved(1, last)
            await asyncio.to_thread(upstream.start_store, store)
            assert len(receiver.changes[1]) == 6

    asyncio.run(scenario())


def test_the_whole_upstream_may_restart_under_us(tmp_path):
    def start(pd_port=0):
        return EmbeddedUpstream.start(stores=2, pd_port=pd_port, data_dir=tmp_path, resolved_interval_seconds=0.02)

    async def scenario():
        upstream = start()
        try:
            async with pulling(upstream) as (_, receiver):
                first = await write(upstream, b"k1")
                await receiver.wait_resolved(1, first)
                await asyncio.to_thread(upstream.stop)
                upstream = await asyncio.to_thread(start, int(upstream.pd_address.rsplit(":", 1)[1]))
                second = await write(upstream, b"k1")
                await receiver.wait_resolved(1, second)
                assert set(receiver.changes[1]) == {(b"k1", first), (b"k1", second)}
        finally:
            upstream.stop()

    asyncio.run(scenario())


def test_a_receiver_that_waits_makes_us_stop_reading(upstream):
    async def scenario():
        value = b"x" * (1 << 20)
        async with pulling(upstream) as (puller, receiver):
            await receiver.wait_resolved(1, await write(upstream, b"k0"))
            receiver.gate.clear()
            await write(upstream, b"k1")
            await receiver.is_waiting.wait()
            taken = puller.stats().received_bytes
            last = Ts(0)
            for n in range(40):
                last = await write(upstream, b"k%d" % n, value=value)
            assert puller.stats().received_bytes == taken
            assert puller.stats().inbox_bytes < MAX_INBOX_BYTES + 2 * len(value)
            receiver.gate.set()
            await receiver.wait_resolved(1, last)
            assert len(receiver.changes[1]) == 42

    asyncio.run(scenario())


def test_subscriptions_share_the_streams_and_end_one_by_one(upstream):
    async def scenario():
        left, right = Span(encode_bytes(b"k"), encode_bytes(b"k5")), Span(encode_bytes(b"k5"), encode_bytes(b"l"))
        async with pulling(upstream, (1, left), (2, right), (3, ROWS)) as (puller, receiver):
            first = await write(upstream, b"k1", b"k6")
            for subscription in (1, 2, 3):
                await receiver.wait_resolved(subscription, first)
            assert [set(receiver.changes[s]) for s in (1, 2)] == [{(b"k1", first)}, {(b"k6", first)}]
            assert len(receiver.changes[3]) == 2
            puller.unsubscribe(2)
            puller.unsubscribe(7)  # never was
            second = await write(upstream, b"k1", b"k6")
            await receiver.wait_resolved(3, second)
            assert len(receiver.changes[2]) == 1
            puller.subscribe(4, right, first)
            await receiver.wait_resolved(4, second)
            assert list(receiver.changes[4]) == [(b"k6", second)]

    asyncio.run(scenario())


def test_a_subscription_can_come_again_under_its_old_number(upstream):
    async def scenario():
        async with pulling(upstream) as (puller, receiver):
            first = await write(upstream, b"k1")
            await receiver.wait_resolved(1, first)
            puller.unsubscribe(1)
            puller.subscribe(1, ROWS, receiver.resolved_ts(1))
            second = await write(upstream, b"k1")
            await receiver.wait_resolved(1, second)
            with pytest.raises(InvariantError, match="already followed"):
                puller.subscribe(1, ROWS, Ts(0))
            assert set(receiver.changes[1]) == {(b"k1", first), (b"k1", second)}

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_regions_every_change_comes_and_the_frontier_keeps_its_word(upstream, seed):
    chance = random.Random(seed)
    keys = [b"k%02d" % n for n in range(40)]

    def trouble():
        match chance.randrange(6):
            case 0:
                upstream.split(chance.choice(keys) + bytes([chance.randrange(256)]))
            case 1:
                upstream.transfer_leader(chance.choice(upstream.regions()).id, chance.randint(1, 3))
            case 2:
                upstream.drop_streams()

    async def scenario():
        written = {}
        async with pulling(upstream) as (_, receiver):
            ts = Ts(0)
            for n in range(60):
                chosen = chance.sample(keys, chance.randint(1, 5))
                value = b"%d" % n * chance.choice([1, 200])
                ts = await write(upstream, *chosen, value=value)
                written |= {(key, ts): value for key in chosen}
                await asyncio.to_thread(trouble)
            await receiver.wait_resolved(1, ts, seconds=60)
            got = {(c[0], c[1]): c[4] for c in receiver.up_to(1, ts)}
            assert got == written

    asyncio.run(scenario())
