"""The puller while regions merge and stores come back elsewhere, over real gRPC."""

import asyncio
import contextlib
import random

import pytest

from tests.flow.puller.test_puller import ROWS, write
from tests.flow.puller.test_stalls import SOON
from tests.upstream.trouble import shake
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import TransactionConflictError, TransactionEndedError, UpstreamError
from tidemill.flow.puller import Puller
from tidemill.model.change import Op
from tidemill.model.ts import Ts
from tidemill.testing.receiver import RecordingReceiver
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.txn import TxnClient


@pytest.fixture
def upstream():
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=0.02) as upstream:
        yield upstream


@contextlib.asynccontextmanager
async def pulling(upstream):
    async with PdClient(upstream.pd_address) as pd:
        receiver = RecordingReceiver()
        puller = Puller(pd, receiver, locks=SOON)
        puller.subscribe(1, ROWS, Ts(0))
        running = asyncio.create_task(puller.run())
        try:
            yield puller, receiver, pd
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        assert receiver.broken_promises == []


async def merge(upstream, source, target):
    ids = upstream.region_of(source).id, upstream.region_of(target).id
    return await asyncio.to_thread(upstream.merge, *ids)


@pytest.mark.parametrize(("source", "target"), [(b"k1", b"k7"), (b"k7", b"k1")], ids=["to the right", "to the left"])
def test_a_merge_in_mid_stream_leaves_no_hole_and_no_repetition_of_what_is_resolved(upstream, source, target):
    async def scenario():
        upstream.split(b"k5")
        async with pulling(upstream) as (puller, receiver, _):
            first = await write(upstream, b"k1", b"k7")
            await receiver.wait_resolved(1, first)
            whole = await merge(upstream, source, target)
            second = await write(upstream, b"k1", b"k5", b"k7")
            await receiver.wait_resolved(1, second)
            assert (puller.stats().regions, puller.stats().slowest.region_id) == (1, whole.id)
            written = {(b"k1", first), (b"k7", first), (b"k1", second), (b"k5", second), (b"k7", second)}
            assert set(receiver.changes[1]) == written

    asyncio.run(scenario())


def test_the_slower_of_two_halves_says_where_the_merged_region_starts(upstream):
    async def scenario():
        upstream.split(b"k5")
        async with pulling(upstream) as (_, receiver, _):
            await receiver.wait_resolved(1, await write(upstream, b"k1", b"k7"))
            upstream.hold_resolved(upstream.region_of(b"k1").id)
            held = [await write(upstream, b"k1", b"k7") for _ in range(3)]
            await merge(upstream, b"k1", b"k7")
            last = await write(upstream, b"k1", b"k7")
            await receiver.wait_resolved(1, last)
            assert {(key, ts) for key in (b"k1", b"k7") for ts in [*held, last]} <= receiver.changes[1].keys()

    asyncio.run(scenario())


def test_a_store_that_comes_back_at_another_address_is_followed_there(upstream):
    async def scenario():
        upstream.split(b"k5")
        async with pulling(upstream) as (_, receiver, _):
            first = await write(upstream, b"k1", b"k7")
            await receiver.wait_resolved(1, first)
            for store in (1, 2, 3):
                await asyncio.to_thread(upstream.stop_store, store)
                await asyncio.to_thread(upstream.start_store, store, elsewhere=True)
            for region in upstream.regions():
                await asyncio.to_thread(upstream.transfer_leader, region.id, 1)
            last = await write(upstream, b"k1", b"k7")
            await receiver.wait_resolved(1, last)
            assert set(receiver.changes[1]) == {(k, ts) for k in (b"k1", b"k7") for ts in (first, last)}

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_change_comes_once_in_time_and_as_it_was_written(upstream, seed):
    """Our own transactions, some abandoned, while regions split, merge and move and stores restart."""
    chance = random.Random(seed)
    keys = [b"k%02d" % n for n in range(30)]
    written = {}

    async def writer(client, own):
        for n in range(12):
            some = own.sample(keys, own.randint(1, 6))
            transaction = await client.begin()
            for key in some:
                if own.random() < 0.2:
                    transaction.delete(key)
                else:
                    transaction.put(key, b"%d" % n * own.choice([1, 200]))
            values = {key: transaction._writes[key] for key in some}
            try:
                ts = await transaction.commit()
            except (TransactionConflictError, TransactionEndedError):
                continue
            written.update({(key, ts): value for key, value in values.items()})

    async def trouble():
        for _ in range(14):
            await asyncio.to_thread(shake, upstream, chance, keys)
            if chance.random() < 0.3:
                with contextlib.suppress(UpstreamError):  # the key may be locked
                    await asyncio.to_thread(upstream.orphan_lock, chance.choice(keys), 1)
            if chance.random() < 0.2:
                await asyncio.to_thread(upstream.drop_streams)

    async def scenario():
        async with pulling(upstream) as (_, receiver, pd):
            client = TxnClient(pd, RegionCache(pd))
            try:
                writers = [writer(client, random.Random(1000 * seed + n)) for n in range(3)]
                await asyncio.gather(trouble(), *writers)
                ts = await pd.get_ts()
                await receiver.wait_resolved(1, ts, seconds=60)
                got = {(c[0], c[1]): c[4] if c[3] == Op.PUT else None for c in receiver.up_to(1, ts)}
                assert got == written
            finally:
                await client.close()

    asyncio.run(scenario())
