"""Transactions over the wire: what each command answers, and what is there afterwards."""

import grpc
import pytest

from tests.tidebox.percolator import (
    check_not_exists,
    delete,
    insert,
    later,
    lock,
    percolator,
    pessimistic,
    put,
    variants,
)
from tidebox.engine import Family
from tidebox.limits import MAX_REQUEST_BYTES
from tidebox.mvcc import Write, WriteType, version_key
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.ts import MAX_TS


@pytest.fixture(scope="module")
def kv():
    with percolator(stores=3) as started:
        yield started


def stored(kv, key: bytes, ts: int) -> Write | None:
    record = kv.upstream.cluster.engine.get(Family.WRITE, version_key(key, ts))
    return Write.decode(record) if record is not None else None


# Two phases


def test_what_is_committed_is_visible_from_its_commit_ts_on(kv):
    a, b, c = kv.key(), kv.key(), kv.key()
    kv.write(put(b, b"before"))
    start = kv.tso()
    answer = kv.prewrite(start, put(a, b"1"), delete(b), put(c, b"L" * 300))
    assert (list(answer.errors), answer.min_commit_ts, answer.one_pc_commit_ts) == ([], 0, 0)
    commit = kv.tso()
    assert kv.commit(start, commit, a, b, c).commit_version == commit
    assert kv.get(a, commit - 1).not_found
    assert (kv.get(a, commit).value, kv.get(c, commit).value) == (b"1", b"L" * 300)
    assert (kv.get(b, commit - 1).value, kv.get(b, commit).not_found) == (b"before", True)


def test_a_refused_prewrite_leaves_nothing_and_reports_every_lock(kv):
    a, b, c = kv.key(), kv.key(), kv.key()
    first = kv.tso()
    kv.prewrite(first, put(a), put(c), lock_ttl=1234)
    errors = kv.prewrite(kv.tso(), put(a), put(b), put(c)).errors
    assert [error.locked.key for error in errors] == [a, c]
    found = errors[1].locked
    assert (found.primary_lock, found.lock_version, found.lock_ttl, found.txn_size) == (a, first, 1234, 2)
    assert found.lock_type == kvrpcpb_pb2.Put
    assert kv.upstream.cluster.locks.get(b) is None
    kv.resolve(a, first)


def test_a_conflict_names_the_other_transaction(kv):
    key, primary = kv.key(), kv.key()
    start = kv.tso()
    began, committed = kv.write(put(key))
    [error] = kv.prewrite(start, put(key), primary=primary).errors
    conflict = error.conflict
    assert (conflict.start_ts, conflict.conflict_ts, conflict.conflict_commit_ts) == (start, began, committed)
    assert (conflict.key, conflict.primary) == (key, primary)
    assert conflict.reason == kvrpcpb_pb2.WriteConflict.Optimistic
    assert error.retryable


@pytest.mark.parametrize(
    ("mutation", "variant"),
    [
        pytest.param(insert, "already_exist", id="insert"),
        pytest.param(check_not_exists, "already_exist", id="check"),
        pytest.param(lambda key: put(key, assertion=kvrpcpb_pb2.NotExist), "assertion_failed", id="a wrong assertion"),
    ],
)
def test_what_must_not_exist(kv, mutation, variant):
    key = kv.key()
    kv.write(put(key))
    [error] = kv.prewrite(kv.tso(), mutation(key), assertion_level=kvrpcpb_pb2.Fast).errors
    assert variants(error) == [variant]
    kv.write(delete(key))
    assert not kv.prewrite(kv.tso(), mutation(key), assertion_level=kvrpcpb_pb2.Fast).errors


def test_a_key_that_was_only_checked_cannot_be_committed(kv):
    key = kv.key()
    start = kv.tso()
    assert not kv.prewrite(start, check_not_exists(key)).errors
    error = kv.commit(start, kv.tso(), key).error
    assert variants(error) == ["txn_lock_not_found"]
    assert error.retryable


def test_commands_may_come_twice(kv):
    key = kv.key()
    start = kv.tso()
    for _ in range(2):
        assert not kv.prewrite(start, put(key)).errors
    commit = kv.tso()
    for _ in range(2):
        assert kv.commit(start, commit, key).commit_version == commit
    assert not kv.prewrite(start, put(key)).errors
    assert kv.get(key).value == b"new"


def test_a_commit_below_what_readers_were_promised_is_refused(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key), min_commit_ts=start + 1)
    early, reader = kv.tso(), kv.tso()
    status = kv.status(key, start, caller_start_ts=reader, current_ts=reader)
    assert status.action == kvrpcpb_pb2.MinCommitTSPushed
    assert status.lock_info.min_commit_ts > reader
    assert not kv.get(key, reader).HasField("error")
    expired = kv.commit(start, early, key).error.commit_ts_expired
    assert (expired.attempted_commit_ts, expired.min_commit_ts) == (early, status.lock_info.min_commit_ts)
    assert not kv.commit(start, kv.tso(), key).HasField("error")


@pytest.mark.parametrize(("start_ts", "commit_ts"), [(10, 10), (10, 9), (10, MAX_TS), (0, 10), (MAX_TS, 10)])
def test_a_commit_ts_that_cannot_be_is_refused(kv, start_ts, commit_ts):
    assert kv.commit(start_ts, commit_ts, kv.key()).error.abort


@pytest.mark.parametrize("name", ["for_update_ts", "min_commit_ts"])
def test_no_stamp_of_a_write_is_the_greatest_number(kv, name):
    key = kv.key()
    for fields in ({}, {"use_async_commit": True}, {"try_one_pc": True}):
        assert kv.prewrite(kv.tso(), put(key), **fields, **{name: MAX_TS}).errors[0].abort
    locked = kv.lock(kv.tso(), pessimistic(key), **{"for_update_ts": kv.tso(), name: MAX_TS})
    assert locked.errors[0].abort
    assert kv.upstream.cluster.locks.get(key) is None


def test_asking_for_the_newest_pushes_no_commit(kv):
    key = kv.key()
    assert kv.get(key, MAX_TS).not_found
    assert not kv.scan_lock(key, MAX_TS, start_key=key, end_key=key + b"\0").HasField("error")
    assert not kv.send("KvCleanup", key, key=key, start_version=kv.tso(), current_ts=MAX_TS).HasField("error")
    kv.status(key, kv.tso(), caller_start_ts=MAX_TS, current_ts=MAX_TS, rollback_if_not_exist=True)
    assert kv.prewrite(kv.tso(), put(key), try_one_pc=True).one_pc_commit_ts < kv.tso()


# Rolling back, and finding out


def test_after_a_rollback_a_late_prewrite_is_kept_out(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key, b"L" * 300))
    for _ in range(2):
        assert not kv.send("KvBatchRollback", key, start_version=start, keys=[key]).HasField("error")
    assert kv.upstream.cluster.engine.get(Family.DEFAULT, version_key(key, start)) is None
    [error] = kv.prewrite(start, put(key)).errors
    assert error.conflict.reason == kvrpcpb_pb2.WriteConflict.SelfRolledBack
    assert variants(kv.commit(start, kv.tso(), key).error) == ["txn_lock_not_found"]
    begun, _ = kv.write(put(key))
    assert "committed" in kv.send("KvBatchRollback", key, start_version=begun, keys=[key]).error.abort


def test_clean_up_rolls_back_whatever_is_there(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key))
    now = kv.tso()
    assert kv.send("KvCleanup", key, key=key, start_version=start, current_ts=now).error.locked.lock_version == start
    assert not kv.send("KvCleanup", key, key=key, start_version=start).HasField("error")
    assert kv.upstream.cluster.locks.get(key) is None
    unknown = kv.tso()
    assert kv.send("KvCleanup", key, key=key, start_version=unknown).commit_version == 0
    assert stored(kv, key, unknown).is_protected
    begun, commit = kv.write(put(key))
    assert kv.send("KvCleanup", key, key=key, start_version=begun).commit_version == commit


def test_a_heart_beat_prolongs_and_tells_if_there_is_nothing_to_prolong(kv):
    key = kv.key()
    start = kv.tso()
    kv.prewrite(start, put(key), lock_ttl=100)
    beat = {"primary_lock": key, "start_version": start}
    assert kv.send("KvTxnHeartBeat", key, advise_lock_ttl=50, **beat).lock_ttl == 100
    assert kv.send("KvTxnHeartBeat", key, advise_lock_ttl=5000, **beat).lock_ttl == 5000
    assert kv.status(key, start, current_ts=later(start, 4000)).lock_ttl == 5000
    kv.resolve(key, start)
    gone = kv.send("KvTxnHeartBeat", key, advise_lock_ttl=50, **beat).error.txn_not_found
    assert (gone.start_ts, gone.primary_key) == (start, key)


def test_what_the_status_of_a_transaction_looks_like(kv):
    key, unknown = kv.key(), kv.tso()
    assert variants(kv.status(key, unknown).error) == ["txn_not_found"]
    rolled_back = kv.status(key, unknown, rollback_if_not_exist=True)
    assert (rolled_back.action, rolled_back.lock_ttl, rolled_back.commit_version) == (2, 0, 0)
    again = kv.status(key, unknown, rollback_if_not_exist=True)
    assert again == kvrpcpb_pb2.CheckTxnStatusResponse()
    start = kv.tso()
    kv.prewrite(start, put(key), lock_ttl=100)
    alive = kv.status(key, start, current_ts=later(start, 100))
    assert (alive.lock_ttl, alive.commit_version, alive.action, alive.lock_info.key) == (100, 0, 0, key)
    other = kv.key()
    kv.prewrite(start, put(other), primary=key)
    mismatch = kv.status(other, start, verify_is_primary=True).error.primary_mismatch
    assert mismatch.lock_info.primary_lock == key
    expired = kv.status(key, start, current_ts=later(start, 101))
    assert (expired.action, expired.lock_ttl, expired.commit_version) == (1, 0, 0)
    begun, commit = kv.write(put(key))
    assert kv.status(key, begun) == kvrpcpb_pb2.CheckTxnStatusResponse(commit_version=commit)
    kv.resolve(other, start)


def test_a_reader_can_clear_an_orphan_out_of_its_way(kv):
    a, b = kv.key(), kv.key()
    kv.write(put(a, b"old"), put(b, b"old"))
    start = kv.tso()
    kv.prewrite(start, put(a), put(b), lock_ttl=10)
    locked = kv.get(b).error.locked
    status = kv.status(locked.primary_lock, start, current_ts=later(start, 11), rollback_if_not_exist=True)
    assert status.action == kvrpcpb_pb2.TTLExpireRollback
    kv.resolve(b, start, status.commit_version, keys=[b])
    assert kv.get(b).value == b"old"


@pytest.mark.parametrize("how", ["by key", "by region", "many at once"])
def test_locks_are_resolved(kv, how):
    region = kv.key()
    a, b, c = region + b"a", region + b"b", region + b"c"
    first, second = kv.tso(), kv.tso()
    kv.prewrite(first, put(a), put(b))
    kv.prewrite(second, put(c))
    commit = kv.tso()
    if how == "many at once":
        infos = [kvrpcpb_pb2.TxnInfo(txn=first, status=commit), kvrpcpb_pb2.TxnInfo(txn=second)]
        assert not kv.send("KvResolveLock", a, txn_infos=infos).HasField("error")
        assert [kv.get(key).value for key in (a, b)] == [b"new", b"new"]
        assert kv.get(c).not_found
        return
    keys = {"keys": [a]} if how == "by key" else {}
    assert not kv.resolve(a, first, commit, **keys).HasField("error")
    assert kv.get(a).value == b"new"
    assert kv.get(b).HasField("error") is (how == "by key")
    assert kv.get(c).HasField("error")
    for start in (first, second):
        kv.resolve(a, start)


def test_scan_lock_lists_locks_of_all_kinds(kv):
    prefix = kv.key() + b"/"
    starts = [kv.tso() for _ in range(4)]
    kv.prewrite(starts[0], put(prefix + b"a"), min_commit_ts=starts[0] + 1)
    kv.prewrite(starts[1], delete(prefix + b"b"), lock(prefix + b"c"))
    kv.lock(starts[2], pessimistic(prefix + b"d"), for_update_ts=starts[2])
    kv.prewrite(starts[3], put(prefix + b"e"), use_async_commit=True, secondaries=[b"s"])
    bounds = {"start_key": prefix, "end_key": prefix + b"z"}
    found = kv.scan_lock(prefix, starts[3], **bounds).locks
    assert [(i.key[-1:], i.lock_type) for i in found] == [(b"a", 0), (b"b", 1), (b"c", 2), (b"d", 5), (b"e", 0)]
    assert (found[0].min_commit_ts, found[3].lock_for_update_ts) == (starts[0] + 1, starts[2])
    assert (found[4].use_async_commit, list(found[4].secondaries)) == (True, [b"s"])
    assert [i.key[-1:] for i in kv.scan_lock(prefix, starts[1], **bounds).locks] == [b"a", b"b", b"c"]
    assert [i.key[-1:] for i in kv.scan_lock(prefix, starts[3], limit=2, **bounds).locks] == [b"a", b"b"]
    assert [i.key[-1:] for i in kv.scan_lock(prefix, MAX_TS - 1 >> 1, **bounds).locks] == []
    inner = {"start_key": prefix + b"b", "end_key": prefix + b"d"}
    assert [i.key[-1:] for i in kv.scan_lock(prefix, starts[3], **inner).locks] == [b"b", b"c"]
    for start in starts:
        kv.resolve(prefix, start)


def test_scan_lock_keeps_later_settled_commits_above_it(kv):
    key, start = kv.key(), kv.tso()
    seen = kv.tso()
    kv.scan_lock(key, seen, start_key=key, end_key=key + b"\0")
    assert kv.prewrite(start, put(key), try_one_pc=True).one_pc_commit_ts > seen


# Asynchronous and one-phase commit


def test_an_asynchronous_commit_is_decided_by_all_its_keys(kv):
    a, b = kv.key(), kv.key()
    start = kv.tso()
    answers = [
        kv.prewrite(start, put(a), primary=a, use_async_commit=True, secondaries=[b]),
        kv.prewrite(start, put(b), primary=a, use_async_commit=True),
    ]
    settled = max(answer.min_commit_ts for answer in answers)
    assert settled > start
    info = kv.status(a, start, current_ts=later(start, 50_000)).lock_info
    assert (info.use_async_commit, list(info.secondaries)) == (True, [b])
    checked = kv.send("KvCheckSecondaryLocks", b, keys=[b], start_version=start)
    assert [lock.min_commit_ts for lock in checked.locks] == [answers[1].min_commit_ts]
    assert not kv.resolve(a, start, settled).HasField("error")
    assert kv.get(a, settled - 1).not_found
    assert kv.get(b, settled).value == b"new"
    assert kv.send("KvCheckSecondaryLocks", b, keys=[b], start_version=start).commit_ts == settled


def test_an_asynchronous_commit_with_a_key_missing_will_never_be(kv):
    a, b = kv.key(), kv.key()
    start = kv.tso()
    kv.prewrite(start, put(a), primary=a, use_async_commit=True, secondaries=[b])
    checked = kv.send("KvCheckSecondaryLocks", b, keys=[b], start_version=start)
    assert checked == kvrpcpb_pb2.CheckSecondaryLocksResponse()
    assert stored(kv, b, start).is_protected
    assert kv.prewrite(start, put(b), primary=a, use_async_commit=True).errors
    kv.resolve(a, start)
    assert kv.get(a).not_found


def test_one_phase_writes_at_once(kv):
    a, b = kv.key(), kv.key()
    start, before = kv.tso(), kv.tso()
    kv.get(a, before)
    answer = kv.prewrite(start, put(a, b"L" * 300), lock(b), try_one_pc=True, use_async_commit=True, secondaries=[b])
    commit = answer.one_pc_commit_ts
    assert before < commit <= kv.tso()
    assert answer.min_commit_ts == 0
    assert (kv.get(a, commit).value, kv.get(a, commit - 1).not_found) == (b"L" * 300, True)
    assert stored(kv, b, commit).type is WriteType.LOCK
    again = kv.prewrite(start, put(a, b"L" * 300), lock(b), try_one_pc=True)
    assert again.one_pc_commit_ts == commit


@pytest.mark.parametrize("how", [{"try_one_pc": True}, {"use_async_commit": True}])
def test_a_commit_ts_above_the_limit_falls_back_to_two_phases(kv, how):
    key = kv.key()
    start, limit, read = kv.tso(), kv.tso(), kv.tso()
    kv.get(key, read)
    answer = kv.prewrite(start, put(key), max_commit_ts=limit, **how)
    assert (answer.min_commit_ts, answer.one_pc_commit_ts, list(answer.errors)) == (0, 0, [])
    assert not kv.status(key, start).lock_info.use_async_commit
    assert not kv.commit(start, kv.tso(), key).HasField("error")


def test_secondaries_without_asynchronous_commit_mean_nothing(kv):
    key = kv.key()
    start = kv.tso()
    assert kv.prewrite(start, put(key), secondaries=[b"x"]).min_commit_ts == 0
    assert not kv.status(key, start).lock_info.use_async_commit
    kv.resolve(key, start)


# A rollback and a commit at the same ts


def test_a_rollback_does_not_replace_another_transactions_commit(kv):
    key = kv.key()
    start = kv.tso()
    commit = kv.prewrite(start, put(key, b"kept"), try_one_pc=True).one_pc_commit_ts
    unlucky = commit  # began exactly when the other committed
    kv.status(key, unlucky, rollback_if_not_exist=True)
    assert kv.get(key, commit).value == b"kept"
    assert stored(kv, key, commit).has_overlapped_rollback
    [error] = kv.prewrite(unlucky, put(key)).errors
    assert error.conflict.reason == kvrpcpb_pb2.WriteConflict.SelfRolledBack
    assert kv.status(key, unlucky) == kvrpcpb_pb2.CheckTxnStatusResponse()


def test_a_commit_does_not_replace_another_transactions_rollback(kv):
    key = kv.key()
    start = kv.tso()
    settled = kv.prewrite(start, put(key, b"kept"), use_async_commit=True).min_commit_ts
    unlucky = settled
    kv.status(key, unlucky, rollback_if_not_exist=True)
    assert not kv.commit(start, settled, key).HasField("error")
    assert kv.get(key).value == b"kept"
    [error] = kv.prewrite(unlucky, put(key)).errors
    assert error.conflict.reason == kvrpcpb_pb2.WriteConflict.SelfRolledBack


# Whole ranges, and what cannot be asked


def test_a_range_is_deleted_with_versions_and_locks(kv):
    prefix = kv.key() + b"/"
    kv.write(put(prefix + b"a"), put(prefix + b"b", b"L" * 300), put(prefix + b"c"))
    kv.prewrite(kv.tso(), put(prefix + b"b"))
    kv.send("KvDeleteRange", prefix, start_key=prefix + b"b", end_key=prefix + b"c", notify_only=True)
    assert kv.get(prefix + b"b").HasField("error")
    assert not kv.send("KvDeleteRange", prefix, start_key=prefix + b"b", end_key=prefix + b"c").error
    assert (kv.get(prefix + b"a").value, kv.get(prefix + b"c").value) == (b"new", b"new")
    assert kv.get(prefix + b"b").not_found
    assert not kv.send("UnsafeDestroyRange", prefix, start_key=prefix, end_key=prefix + b"z").error
    assert all(kv.get(prefix + name).not_found for name in (b"a", b"b", b"c"))


def test_garbage_collection_by_request_is_not_served(kv):
    with pytest.raises(grpc.RpcError) as refused:
        kv.send("KvGC", kv.key(), safe_point=1)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_request_to_the_wrong_region_gets_its_error_and_writes_nothing(kv):
    stale = kv.client.region()
    kv.upstream.split(b"z-split")
    request = kvrpcpb_pb2.PrewriteRequest(
        context=kv.client.context(stale), mutations=[put(b"z-wrong")], primary_lock=b"z", start_version=kv.tso()
    )
    answer = kv.client.kv[stale.leader.store_id].KvPrewrite(request)
    assert variants(answer.region_error) == ["epoch_not_match"]
    assert kv.upstream.cluster.locks.get(b"z-wrong") is None


def test_a_key_that_is_too_long_is_refused(kv):
    long = b"k" * 8193
    assert "KeyTooLarge" in kv.prewrite(kv.tso(), put(long)).errors[0].abort
    assert "KeyTooLarge" in kv.get(long).error.abort
    kv.write(put(b"k" * 8192))


def test_a_request_that_is_too_big_is_refused(kv):
    key = kv.key()
    answer = kv.prewrite(kv.tso(), put(key, b"x" * MAX_REQUEST_BYTES))
    assert answer.region_error.raft_entry_too_large.entry_size > MAX_REQUEST_BYTES
    kv.write(put(key, b"x" * (5 << 20)))


def test_a_mutation_of_a_kind_nobody_knows_is_refused(kv):
    key = kv.key()
    for op in (kvrpcpb_pb2.Rollback, kvrpcpb_pb2.SharedLock):
        assert "not served" in kv.prewrite(kv.tso(), kvrpcpb_pb2.Mutation(op=op, key=key)).errors[0].abort


# Versions of the API


@pytest.fixture(scope="module")
def second():
    with percolator(api_version=2) as started:
        yield started


V1, V1TTL, V2 = kvrpcpb_pb2.V1, kvrpcpb_pb2.V1TTL, kvrpcpb_pb2.V2


@pytest.mark.parametrize(
    ("server", "client", "key", "word"),
    [
        pytest.param(1, V1, b"any", None, id="1: any key of a client of V1"),
        pytest.param(1, V2, b"x\0\0\0a", "ApiVersionNotMatched", id="1: none of a client of V2"),
        pytest.param(1, V1TTL, b"any", "ApiVersionNotMatched", id="1: nor of V1 with time to live"),
        pytest.param(2, V2, b"x\0\0\0a", None, id="2: keys of mode x"),
        pytest.param(2, V2, b"r\0\0\0a", "InvalidKeyMode", id="2: no raw keys"),
        pytest.param(2, V2, b"t1", "InvalidKeyMode", id="2: no keys of TiDB from a client of V2"),
        pytest.param(2, V1, b"t1", None, id="2: keys of TiDB's tables"),
        pytest.param(2, V1, b"m1", None, id="2: and of its schema"),
        pytest.param(2, V1, b"any", "InvalidKeyMode", id="2: no other key of a client of V1"),
        pytest.param(2, V1, b"x\0\0\0a", "InvalidKeyMode", id="2: not even of mode x"),
        pytest.param(2, kvrpcpb_pb2.V3, b"x\0\0\0a", "ApiVersionNotMatched", id="2: no version of the future"),
    ],
)
def test_api_versions(kv, second, server, client, key, word):
    kv = kv if server == 1 else second
    context = {"api_version": client}
    start = kv.tso()
    answers = {
        "get": kv.get(key, start, **context).error.abort,
        "batch get": kv.send("KvBatchGet", key, context, keys=[key], version=start).error.abort,
        "scan": kv.send("KvScan", key, context, start_key=key, end_key=key + b"\0", version=start, limit=1).error.abort,
        "prewrite": "".join(error.abort for error in kv.prewrite(start, put(key), context=context).errors),
        "scan lock": kv.send("KvScanLock", key, context, start_key=key, max_version=start).error.abort,
        "commit": kv.send(
            "KvCommit", key, context, keys=[key], start_version=start, commit_version=kv.tso()
        ).error.abort,
    }
    if word is None:
        assert not any(answers.values()), answers
    else:
        assert all(word in answer for answer in answers.values()), answers


def test_a_keyspace_may_end_where_the_next_mode_begins(second):
    context = {"api_version": V2}
    for end in (b"x\0\0\1", b"y\0\0\0", b""):
        fields = {"start_key": b"x\0\0\0", "end_key": end, "version": second.tso(), "limit": 1}
        assert not second.send("KvScan", b"x", context, **fields).HasField("error")
