"""Pessimistic locks over the wire: waiting for them, circles of waiting, and turning them into writes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidebox.percolator import delete, insert, lock, percolator, pessimistic, put, variants
from tests.tidebox.stub import DEADLINE_SECONDS
from tidemill._pb import kvrpcpb_pb2

EXPECT_LOCK = kvrpcpb_pb2.PrewriteRequest.DO_PESSIMISTIC_CHECK


@pytest.fixture(scope="module")
def kv():
    with percolator() as started:
        yield started


@pytest.fixture
def background():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def wait_until_waiting(kv, *start_ts: int) -> None:
    """Until these transactions wait for locks."""
    waits = kv.upstream.cluster.transactions.waits
    deadline = threading.Event()
    for _ in range(DEADLINE_SECONDS * 1000):
        with kv.upstream.cluster.mutex:
            if waits.waiting() >= set(start_ts):
                return
        deadline.wait(0.001)
    raise AssertionError(f"{start_ts} do not wait")


def release(kv, key, start_ts, for_update_ts=None):
    fields = {"start_version": start_ts, "for_update_ts": for_update_ts or kv.tso()}
    return kv.send("KVPessimisticRollback", key, keys=[key], **fields)


def test_a_transaction_from_lock_to_commit(kv):
    a, b, c = kv.key(), kv.key(), kv.key()
    kv.write(put(a, b"old"))
    start = kv.tso()
    kv.write(put(b, b"later"))  # no conflict: the lock is taken at a newer ts
    for key in (a, b, c):
        assert not kv.lock(start, pessimistic(key), primary=a, lock_ttl=20_000).errors
    mutations = [put(a), delete(b), lock(c)]
    actions = [EXPECT_LOCK] * 5  # of the whole transaction, so more than are sent here
    answer = kv.prewrite(start, *mutations, for_update_ts=kv.tso(), pessimistic_actions=actions, lock_ttl=10)
    assert not answer.errors
    info = kv.status(a, start).lock_info
    assert (info.lock_ttl, info.lock_type) == (20_000, kvrpcpb_pb2.Put)
    assert not kv.commit(start, kv.tso(), a, b, c).HasField("error")
    assert (kv.get(a).value, kv.get(b).not_found, kv.get(c).not_found) == (b"new", True, True)


def test_what_a_lock_answers(kv):
    a, b = kv.key(), kv.key()
    kv.write(put(a, b"old"))
    start = kv.tso()
    asked = [pessimistic(a), pessimistic(b)]
    plain = kv.lock(start, *asked)
    assert (list(plain.values), list(plain.not_founds)) == ([], [])
    values = kv.lock(start, *asked, return_values=True)
    assert (list(values.values), list(values.not_founds)) == ([b"old", b""], [False, True])
    existence = kv.lock(start, *asked, check_existence=True)
    assert (list(existence.values), list(existence.not_founds)) == ([], [False, True])
    kv.resolve(a, start)


def test_only_what_exists_is_locked_if_so_asked(kv):
    a, b = kv.key(), kv.key()
    kv.write(put(a, b"old"))
    start = kv.tso()
    answer = kv.lock(start, pessimistic(a), pessimistic(b), lock_only_if_exists=True, return_values=True)
    assert list(answer.not_founds) == [False, True]
    locks = kv.upstream.cluster.locks
    assert (locks.get(a) is not None, locks.get(b)) == (True, None)
    assert "return_values" in kv.lock(start, pessimistic(a), lock_only_if_exists=True).errors[0].abort
    kv.resolve(a, start)


def test_a_newer_version_is_a_conflict(kv):
    key = kv.key()
    start = kv.tso()
    begun, commit = kv.write(put(key))
    [error] = kv.lock(start, pessimistic(key), for_update_ts=start).errors
    conflict = error.conflict
    assert (conflict.conflict_ts, conflict.conflict_commit_ts) == (begun, commit)
    assert conflict.reason == kvrpcpb_pb2.WriteConflict.PessimisticRetry
    assert not kv.lock(start, pessimistic(key)).errors
    release(kv, key, start)


def test_an_insert_is_checked_when_it_is_locked(kv):
    key = kv.key()
    kv.write(put(key))
    start = kv.tso()
    absent = pessimistic(key, assertion=kvrpcpb_pb2.NotExist)
    assert variants(kv.lock(start, absent).errors[0]) == ["already_exist"]
    kv.write(delete(key))
    assert not kv.lock(start, absent).errors
    fields = {"for_update_ts": kv.tso(), "pessimistic_actions": [EXPECT_LOCK]}
    assert not kv.prewrite(start, insert(key), **fields).errors
    kv.resolve(key, start)


def test_a_rollback_gives_back_only_locks_it_knows_of(kv):
    key = kv.key()
    start, first, second = kv.tso(), kv.tso(), kv.tso()
    kv.lock(start, pessimistic(key), for_update_ts=second)
    release(kv, key, start, first)
    assert kv.upstream.cluster.locks.get(key) is not None
    release(kv, key, start, second)
    assert kv.upstream.cluster.locks.get(key) is None
    assert not kv.prewrite(start, put(key)).errors  # no trace
    kv.resolve(key, start)


def test_a_lock_of_another_is_reported_if_nobody_wants_to_wait(kv):
    key = kv.key()
    holder = kv.tso()
    kv.lock(holder, pessimistic(key))
    [error] = kv.lock(kv.tso(), pessimistic(key), wait_timeout=-1).errors
    assert (error.locked.lock_version, error.locked.lock_type) == (holder, kvrpcpb_pb2.PessimisticLock)
    [error] = kv.lock(kv.tso(), pessimistic(key), wait_timeout=1).errors
    assert error.locked.lock_version == holder
    release(kv, key, holder)


def test_who_waits_gets_the_lock_when_it_is_given_back(kv, background):
    key = kv.key()
    holder, waiter = kv.tso(), kv.tso()
    kv.lock(holder, pessimistic(key))
    answer = background.submit(kv.lock, waiter, pessimistic(key), wait_timeout=1000)
    wait_until_waiting(kv, waiter)
    release(kv, key, holder)
    assert not answer.result(DEADLINE_SECONDS).errors
    assert kv.upstream.cluster.locks.get(key).start_ts == waiter
    release(kv, key, waiter)


def test_who_waits_for_a_commit_is_told_of_the_conflict(kv, background):
    key = kv.key()
    holder, waiter = kv.tso(), kv.tso()
    kv.prewrite(holder, put(key))
    answer = background.submit(kv.lock, waiter, pessimistic(key), wait_timeout=1000, return_values=True)
    wait_until_waiting(kv, waiter)
    commit = kv.tso()
    kv.commit(holder, commit, key)
    [error] = answer.result(DEADLINE_SECONDS).errors
    assert error.conflict.conflict_commit_ts == commit


def test_or_gets_the_lock_with_the_conflict_if_it_wants_it_anyway(kv, background):
    key = kv.key()
    holder, waiter = kv.tso(), kv.tso()
    kv.prewrite(holder, put(key, b"theirs"))
    forced = {"wake_up_mode": kvrpcpb_pb2.WakeUpModeForceLock, "wait_timeout": 1000}
    answer = background.submit(kv.lock, waiter, pessimistic(key), **forced)
    wait_until_waiting(kv, waiter)
    commit = kv.tso()
    kv.commit(holder, commit, key)
    [result] = answer.result(DEADLINE_SECONDS).results
    assert result.type == kvrpcpb_pb2.LockResultLockedWithConflict
    assert (result.value, result.existence, result.locked_with_conflict_ts) == (b"theirs", True, commit)
    assert kv.upstream.cluster.locks.get(key).for_update_ts == commit
    failed = kv.lock(kv.tso(), pessimistic(key), wake_up_mode=kvrpcpb_pb2.WakeUpModeForceLock)
    assert [result.type for result in failed.results] == [kvrpcpb_pb2.LockResultFailed]
    assert failed.errors[0].locked.lock_version == waiter
    two = kv.lock(waiter, pessimistic(key), pessimistic(kv.key()), **forced)
    assert "one key" in two.errors[0].abort
    release(kv, key, waiter)


@pytest.mark.parametrize("length", [2, 3])
def test_a_circle_of_waiting_is_broken(kv, background, length):
    keys = [kv.key() for _ in range(length)]
    txns = [kv.tso() for _ in range(length)]
    for txn, key in zip(txns, keys, strict=True):
        kv.lock(txn, pessimistic(key))
    waiting = [
        background.submit(kv.lock, txns[i], pessimistic(keys[i + 1]), wait_timeout=1000) for i in range(length - 1)
    ]
    wait_until_waiting(kv, *txns[:-1])
    [error] = kv.lock(txns[-1], pessimistic(keys[0]), wait_timeout=1000).errors
    deadlock = error.deadlock
    assert (deadlock.lock_ts, deadlock.lock_key, deadlock.deadlock_key) == (txns[0], keys[0], keys[-1])
    assert [(e.txn, e.wait_for_txn) for e in deadlock.wait_chain] == [
        (txns[i], txns[(i + 1) % length]) for i in range(length)
    ]
    for txn, key in reversed(list(zip(txns, keys, strict=True))):
        release(kv, key, txn)
    for answer in waiting:
        answer.result(DEADLINE_SECONDS)
    for txn, key in zip(txns, keys[1:], strict=False):
        release(kv, key, txn)


def test_a_rolled_back_transaction_cannot_lock_any_more(kv):
    key = kv.key()
    start = kv.tso()
    kv.send("KvBatchRollback", key, start_version=start, keys=[key])
    assert "rolled back" in kv.lock(start, pessimistic(key)).errors[0].abort
