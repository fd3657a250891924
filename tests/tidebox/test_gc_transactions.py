"""Garbage collection among transactions, raw writes and subscribers, over the wire."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidebox.percolator import delete, later, percolator, pessimistic, put
from tests.tidebox.rawclient import RawClient
from tests.tidebox.stub import COMMITTED, DEADLINE_SECONDS, client_of
from tidebox.engine import Family
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2, pdpb_pb2
from tidemill.errors import UsageError
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import decode_bytes

LONG = b"long" * 100
DAY_SECONDS = 24 * 3600


class HandClock:
    def __init__(self):
        self.seconds = 1_700_000_000.0

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds


@pytest.fixture
def kv():
    with percolator(stores=2) as started:
        yield started


def poll(predicate):
    pause = threading.Event()
    for _ in range(DEADLINE_SECONDS * 100):
        if predicate():
            return
        pause.wait(0.01)
    raise AssertionError("waited in vain")


def move_safepoint(client, ts):
    request = pdpb_pb2.UpdateGCSafePointRequest(header=client.header, safe_point=ts)
    return client.pd.UpdateGCSafePoint(request).new_safe_point


def stored(upstream, family=Family.WRITE):
    return sum(1 for _ in upstream.cluster.engine.items(family))


def gc(kv, ts):
    """The calls of the official client's ``gc``: end what began at or before ``ts``, then move the safepoint there."""
    for region in kv.client.regions():
        start = region.region.start_key
        at = decode_bytes(start)[0] if start else b""
        while locks := kv.scan_lock(at, ts, start_key=at, limit=2).locks:
            ends = {lock.lock_version: fate(kv, lock) for lock in locks}
            infos = [kvrpcpb_pb2.TxnInfo(txn=txn, status=commit_ts) for txn, commit_ts in ends.items()]
            resolved = kv.send("KvResolveLock", at, txn_infos=infos)
            assert not resolved.HasField("error")
            assert not resolved.HasField("region_error")
    return move_safepoint(kv.client, ts) == ts


def fate(kv, lock):
    """The transaction's commit-ts or 0; with so late a current-ts its time is up in any case."""
    status = kv.status(
        lock.primary_lock,
        lock.lock_version,
        current_ts=MAX_TS,
        rollback_if_not_exist=True,
        resolving_pessimistic_lock=lock.lock_type == kvrpcpb_pb2.PessimisticLock,
    )
    assert not status.HasField("error")
    assert not status.lock_ttl
    return status.commit_version


def test_the_official_clients_gc_ends_old_transactions_and_then_versions_go(kv):
    for key in (b"h", b"p"):
        kv.upstream.split(key)
    for value in (b"1", b"2", LONG):
        kv.write(put(b"a", value))
    kv.write(delete(b"b"))
    half, commit_ts = kv.tso(), kv.tso()  # its primary is committed, its other keys are not
    for key in (b"c", b"k", b"q", b"r", b"s"):
        assert not kv.prewrite(half, put(key, LONG), primary=b"c").errors
    kv.commit(half, commit_ts, b"c")
    dead = kv.tso()
    assert not kv.prewrite(dead, put(b"d", LONG)).errors
    assert not kv.prewrite(dead, put(b"l"), primary=b"d").errors
    kv.lock(kv.tso(), pessimistic(b"m"))
    ts = kv.tso()
    young = kv.tso()
    assert not kv.prewrite(young, put(b"e", b"young")).errors

    assert gc(kv, ts)

    assert [lock.key for lock in kv.scan_lock(b"", MAX_TS).locks] == [b"e"]
    collected = kv.upstream.cluster.collect_garbage()
    assert (collected.safepoint, collected.is_whole) == (ts, True)
    for key in (b"a", b"c", b"k", b"q", b"r", b"s"):
        assert kv.get(key, ts).value == LONG
    for key in (b"b", b"d", b"l", b"m"):
        assert kv.get(key, ts).not_found
    assert (stored(kv.upstream), stored(kv.upstream, Family.DEFAULT)) == (6, 6)
    assert not kv.commit(young, kv.tso(), b"e").HasField("error")
    assert kv.get(b"e").value == b"young"


def test_a_transaction_left_half_committed_can_be_ended_rightly_after_a_collection(kv):
    start, commit_ts = kv.tso(), kv.tso()
    assert not kv.prewrite(start, put(b"a", LONG), put(b"b", b"other half")).errors
    kv.commit(start, commit_ts, b"a")
    kv.write(put(b"a", b"newer"))
    move_safepoint(kv.client, kv.tso())  # although a lock below it is not resolved
    assert not kv.upstream.cluster.collect_garbage().is_whole
    status = kv.status(b"a", start, current_ts=later(start, 60_000), rollback_if_not_exist=True)
    assert status.commit_version == commit_ts
    kv.resolve(b"b", start, status.commit_version)
    assert kv.get(b"b").value == b"other half"
    collected = kv.upstream.cluster.garbage.collect_if_due()
    assert (collected.versions, collected.is_whole) == (1, True)
    assert stored(kv.upstream, Family.DEFAULT) == 0


def test_a_rollback_on_its_way_does_not_bring_a_collected_version_back(kv):
    _, overlapped = kv.write(put(b"k", LONG))
    kv.write(delete(b"k"))
    move_safepoint(kv.client, kv.tso())
    with ThreadPoolExecutor(1) as background:
        kv.upstream.delay_apply(3600)
        try:
            # A transaction that began where that put committed: its rollback marks the put, which is written anew.
            call = background.submit(kv.send, "KvCleanup", b"k", key=b"k", start_version=overlapped)
            poll(lambda: kv.upstream.cluster.in_flight.is_latched(b"k"))
            assert not kv.upstream.cluster.collect_garbage().is_whole
        finally:
            kv.upstream.delay_apply(0)
        assert not call.result(DEADLINE_SECONDS).HasField("error")
    assert kv.get(b"k").not_found
    assert kv.upstream.cluster.collect_garbage().is_whole
    assert kv.get(b"k").not_found
    assert (stored(kv.upstream), stored(kv.upstream, Family.DEFAULT)) == (0, 0)


def test_a_rollback_record_above_the_safepoint_still_keeps_a_late_prewrite_out(kv):
    old, young = kv.tso(), None
    safepoint = kv.tso()
    young = kv.tso()
    for start in (old, young):
        assert not kv.send("KvCleanup", b"k", key=b"k", start_version=start).HasField("error")
    move_safepoint(kv.client, safepoint)
    assert kv.upstream.cluster.collect_garbage().versions == 1
    [error] = kv.prewrite(young, put(b"k")).errors
    assert error.conflict.reason == kvrpcpb_pb2.WriteConflict.SelfRolledBack


def test_a_change_stream_from_the_safepoint_is_what_it_was_before(kv):
    for value in (b"1", LONG, b"3"):
        kv.write(put(b"a", value), put(b"b", value))
    kv.write(delete(b"a"))
    checkpoint = kv.tso()
    kv.write(put(b"a", b"4"), delete(b"b"))

    def rows():
        region = kv.client.region()
        feed = kv.client.feed(region.leader.store_id)
        feed.register(region, checkpoint_ts=checkpoint)
        feed.wait_initialized(region.region.id)
        return feed.rows(kind=COMMITTED)

    before = rows()
    assert [(row.key, row.old_value) for row in before] == [(b"a", b""), (b"b", b"3")]
    move_safepoint(kv.client, checkpoint)
    assert kv.upstream.cluster.collect_garbage().versions == 6
    assert rows() == before


def test_raw_versions_go_after_their_lifetime_unless_a_service_asks_for_them():
    clock = HandClock()
    options = {"api_version": 2, "clock": clock, "resolved_interval_seconds": 3600}
    with EmbeddedUpstream.start(**options) as upstream, client_of(upstream) as client:
        raw = RawClient(client, 2)
        for value in (b"1", b"2"):
            assert not raw.put(b"kept", value).error
        raw.put(b"gone", b"1")
        raw.delete(b"gone")
        with upstream.cluster.mutex:
            upstream.cluster.safepoints.set_barrier(b"cdc", 1, DAY_SECONDS + 60)
        clock.seconds += DAY_SECONDS - 1
        assert upstream.cluster.collect_garbage().raw_versions == 0
        clock.seconds += 10  # old enough, but the barrier stands
        assert upstream.cluster.collect_garbage().raw_versions == 0
        clock.seconds += 60
        assert upstream.cluster.collect_garbage().raw_versions == 3
        assert stored(upstream, Family.RAW) == 1
        assert (raw.get(b"kept"), raw.get(b"gone")) == (b"2", None)


def test_the_upstream_collects_by_itself(tmp_path):
    with percolator(gc_interval_seconds=0.01) as kv:
        for value in (b"1", b"2"):
            kv.write(put(b"k", value))
        move_safepoint(kv.client, kv.tso())
        poll(lambda: stored(kv.upstream) == 1)
        assert kv.get(b"k").value == b"2"


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_an_interval_that_is_none_is_refused(seconds):
    with pytest.raises(UsageError, match="garbage collection must be positive"):
        EmbeddedUpstream.start(gc_interval_seconds=seconds)
