"""Locks of dead and living transactions, resolved in a real store: what is done, and what is left alone."""

import asyncio

import pytest

from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.change import Op
from tidemill.upstream.kv import KvClient, decoder
from tidemill.upstream.locks import LOCKS_PER_SCAN, Alive, Ended, LockResolver
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache


@pytest.fixture
def upstream():
    with EmbeddedUpstream.start(stores=3, resolved_interval_seconds=1.0) as upstream:
        upstream.split(b"k5")
        yield upstream


def put(*keys):
    return [Mutation(Op.PUT, key, b"v") for key in keys]


def resolving(upstream, start=b"k", end=b"l", max_ts=None):
    async def run():
        async with PdClient(upstream.pd_address) as pd:
            kv = KvClient(RegionCache(pd))
            try:
                found = await LockResolver(kv, pd).resolve(start, end, max_ts or await pd.get_ts())
                return [(t.start_ts, t.locks, t.fate) for t in found]
            finally:
                await kv.close()

    return asyncio.run(run())


def locked(upstream, *keys):
    return [key for key in keys if upstream.cluster.locks.get(key) is not None]


def test_locks_follow_the_fate_of_their_primary_and_living_ones_stay(upstream):
    committed = upstream.prewrite(put(b"k1", b"k7", b"z"))
    commit_ts = upstream.commit_prewritten([b"k1"], committed)
    dead = upstream.orphan_lock(b"k2", 1)
    living = upstream.orphan_lock(b"k8", 10**7)
    assert resolving(upstream) == [(committed, 1, Ended(commit_ts)), (dead, 1, Ended(0)), (living, 1, Alive())]
    assert locked(upstream, b"k2", b"k7", b"k8", b"z") == [b"k8", b"z"]  # z lies outside of what was asked for
    assert upstream.cluster.get(b"k7").commit_ts == commit_ts
    assert upstream.get(b"k2") is None
    assert resolving(upstream) == [(living, 1, Alive())]


def test_a_lock_whose_primary_was_never_written_is_rolled_back_once_it_has_expired(upstream):
    for ttl_ms, fate in [(10**7, Alive()), (1, Ended(0))]:
        start_ts = upstream.tso()
        with upstream.cluster.mutex:
            upstream.cluster.transactions.prewrite(put(b"k7"), start_ts, primary=b"a", ttl_ms=ttl_ms)
        assert resolving(upstream)[-1] == (start_ts, 1, fate)
        upstream.rollback([b"k7"], start_ts)


def test_locks_of_transactions_that_began_later_are_not_looked_at(upstream):
    first = upstream.orphan_lock(b"k1", 1)
    second = upstream.orphan_lock(b"k2", 1)
    assert resolving(upstream, max_ts=first) == [(first, 1, Ended(0))]
    assert resolving(upstream, end=b"", max_ts=second) == [(second, 1, Ended(0))]


def test_more_locks_than_one_answer_holds_are_all_resolved(upstream):
    keys = [b"k%05d" % n for n in range(2 * LOCKS_PER_SCAN + 5)]
    start_ts = upstream.prewrite(put(b"a", *keys))
    upstream.rollback([b"a"], start_ts)
    assert resolving(upstream) == [(start_ts, len(keys), Ended(0))]
    assert locked(upstream, *keys) == []


def test_locks_that_no_resolved_ts_waits_for_are_left_to_their_owners(upstream):
    async def lock(op):
        async with PdClient(upstream.pd_address) as pd:
            kv = KvClient(RegionCache(pd))
            start_ts = await pd.get_ts()

            def request(region):
                return kvrpcpb_pb2.PessimisticLockRequest(
                    mutations=[kvrpcpb_pb2.Mutation(op=op, key=b"k1")],
                    primary_lock=b"k1",
                    start_version=start_ts,
                    for_update_ts=start_ts,
                    lock_ttl=1,
                )

            answer = decoder(kvrpcpb_pb2.PessimisticLockResponse)
            try:
                _, locked = await kv.send("KvPessimisticLock", b"k1", request, answer)
                assert not locked.errors
            finally:
                await kv.close()

    asyncio.run(lock(kvrpcpb_pb2.PessimisticLock))
    assert resolving(upstream) == []
    assert locked(upstream, b"k1") == [b"k1"]


@pytest.mark.parametrize("keys", [[b"k1", b"k2", b"k7"], [b"k1", b"k2"]], ids=["whole", "one lock missing"])
def test_an_asynchronous_commit_is_over_when_all_its_keys_say_so(upstream, keys):
    """Its secondaries lie in two regions; the primary is k1."""

    async def prewrite():
        async with PdClient(upstream.pd_address) as pd:
            kv = KvClient(RegionCache(pd))
            start_ts, highest = await pd.get_ts(), 0
            try:
                for key in keys:

                    def request(region, key=key):
                        return kvrpcpb_pb2.PrewriteRequest(
                            mutations=[kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Put, key=key, value=b"v")],
                            primary_lock=b"k1",
                            start_version=start_ts,
                            lock_ttl=1,
                            use_async_commit=True,
                            secondaries=[b"k2", b"k7"] if key == b"k1" else [],
                        )

                    _, answer = await kv.send("KvPrewrite", key, request, decoder(kvrpcpb_pb2.PrewriteResponse))
                    highest = max(highest, answer.min_commit_ts)
                return start_ts, highest
            finally:
                await kv.close()

    start_ts, highest = asyncio.run(prewrite())
    commit_ts = highest if len(keys) == 3 else 0
    assert resolving(upstream) == [(start_ts, len(keys), Ended(commit_ts))]
    assert locked(upstream, *keys) == []
    assert [upstream.get(key) for key in keys] == [b"v" if commit_ts else None] * len(keys)
