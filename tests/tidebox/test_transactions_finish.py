"""Ends of transactions, and pessimistic locks, on one key and without a store."""

import pytest

from tests.tidebox.keystates import OVERLAPPED, ROLLED_BACK, TTL, K, P, S, ms, other, own, record, state
from tidebox.mvcc import LockType, Write
from tidebox.txn import finish, pessimistic
from tidebox.txn.errors import (
    AbortError,
    AlreadyExistsError,
    CommittedError,
    CommitTsExpiredError,
    KeyLockedError,
    LockNotFoundError,
    PrimaryMismatchError,
    TransactionNotFoundError,
    WriteConflictError,
)
from tidebox.txn.finish import Action, StatusQuery
from tidebox.txn.pessimistic import LockRequest
from tidebox.txn.records import Committed, RolledBack
from tidebox.txn.steps import Commit, PutLock, Release, Renew, RollBack
from tidemill.model.ts import MAX_TS

# Commit


@pytest.mark.parametrize(
    ("at", "step"),
    [
        pytest.param(state(own()), Commit(K, own(), S + 9), id="the lock becomes a record"),
        pytest.param(
            state(own(min_commit_ts=S + 9)), Commit(K, own(min_commit_ts=S + 9), S + 9), id="at the least commit-ts"
        ),
        pytest.param(state(own(LockType.PESSIMISTIC)), Release(K), id="a pessimistic lock has nothing to commit"),
        pytest.param(state(None, record("P", S + 9, S)), None, id="committed before"),
        pytest.param(state(other(start_ts=S + 10), record("L", S + 9, S)), None, id="and locked by the next"),
    ],
)
def test_commit(at, step):
    assert finish.commit(at, S, S + 9) == step


@pytest.mark.parametrize(
    ("at", "error"),
    [
        pytest.param(state(own(min_commit_ts=S + 10)), CommitTsExpiredError, id="readers were promised otherwise"),
        pytest.param(state(), LockNotFoundError, id="never prewritten"),
        pytest.param(state(other()), LockNotFoundError, id="locked by another"),
        pytest.param(state(None, ROLLED_BACK), LockNotFoundError, id="rolled back"),
        pytest.param(state(None, OVERLAPPED), LockNotFoundError, id="rolled back where another committed"),
    ],
)
def test_commit_is_refused(at, error):
    with pytest.raises(error):
        finish.commit(at, S, S + 9)


# Rollback

BARE = Write.rollback(S, is_protected=False)
KEPT = Write.rollback(S, is_protected=True)
FOREIGN = record("P", S, S - 5)
OLD_ROLLBACK = record("R", S - 7, S - 7)
KEPT_ROLLBACK = (S - 7, Write.rollback(S - 7, is_protected=True))
ON_PRIMARY = own(primary=K, for_update_ts=S)


@pytest.mark.parametrize(
    ("at", "protect", "step"),
    [
        pytest.param(state(own()), False, RollBack(K, S, own(), BARE), id="the lock goes, a record stays"),
        pytest.param(state(), False, RollBack(K, S, None, BARE), id="a record also where no lock was"),
        pytest.param(state(other()), False, RollBack(K, S, None, BARE), id="another's lock is left alone"),
        pytest.param(state(), True, RollBack(K, S, None, KEPT), id="a protected one"),
        pytest.param(
            state(ON_PRIMARY),
            False,
            RollBack(K, S, ON_PRIMARY, KEPT),
            id="the primary of a pessimistic one is protected",
        ),
        pytest.param(state(None, ROLLED_BACK), False, None, id="done before"),
        pytest.param(state(None, OVERLAPPED), True, None, id="done before, where another committed"),
        pytest.param(
            state(None, FOREIGN),
            True,
            RollBack(K, S, None, OVERLAPPED[1]),
            id="another's record takes a mark and is not replaced",
        ),
        pytest.param(state(None, FOREIGN), False, RollBack(K, S, None, None), id="nor marked without need"),
        pytest.param(state(own(), FOREIGN), False, RollBack(K, S, own(), None), id="the lock goes in any case"),
        pytest.param(
            state(own(), OLD_ROLLBACK), False, RollBack(K, S, own(), BARE, S - 7), id="an older rollback is forgotten"
        ),
        pytest.param(state(own(), KEPT_ROLLBACK), False, RollBack(K, S, own(), BARE), id="unless it is protected"),
    ],
)
def test_rollback(at, protect, step):
    assert finish.roll_back(at, S, protect=protect) == step


def test_what_is_committed_cannot_be_rolled_back():
    with pytest.raises(CommittedError) as error:
        finish.roll_back(state(None, record("P", S + 9, S)), S)
    assert error.value.commit_ts == S + 9


@pytest.mark.parametrize(
    ("current_ts", "is_cleaned"),
    [
        pytest.param(0, True, id="without a ts the time to live does not matter"),
        pytest.param(ms(100 + TTL), False, id="at the last millisecond it lives"),
        pytest.param(ms(101 + TTL), True, id="then no longer"),
    ],
)
def test_clean_up_honours_the_time_to_live(current_ts, is_cleaned):
    if is_cleaned:
        assert finish.roll_back(state(own()), S, protect=True, current_ts=current_ts) is not None
        return
    with pytest.raises(KeyLockedError):
        finish.roll_back(state(own()), S, protect=True, current_ts=current_ts)


@pytest.mark.parametrize(
    ("lock", "goes"),
    [
        pytest.param(own(LockType.PESSIMISTIC, for_update_ts=S + 5), True, id="its own"),
        pytest.param(own(LockType.PESSIMISTIC, for_update_ts=S + 6), False, id="locked again since"),
        pytest.param(own(for_update_ts=S + 5), False, id="prewritten meanwhile"),
        pytest.param(other(LockType.PESSIMISTIC), False, id="another's"),
        pytest.param(None, False, id="none"),
    ],
)
def test_pessimistic_rollback(lock, goes):
    assert finish.release(state(lock), S, S + 5) == (Release(K) if goes else None)


def test_a_heart_beat_never_shortens_a_life():
    assert finish.prolong(state(own()), S, TTL - 1) == (own(), None)
    longer = own(ttl_ms=TTL + 1)
    assert finish.prolong(state(own()), S, TTL + 1) == (longer, Renew(K, longer))
    for at in (state(), state(other()), state(None, ROLLED_BACK)):
        with pytest.raises(TransactionNotFoundError):
            finish.prolong(at, S, 1)


# How does it stand?

ALIVE, EXPIRED = ms(100 + TTL), ms(101 + TTL)
LOCK = own(primary=K)
LARGE = own(primary=K, min_commit_ts=S + 1)
ASYNC = own(primary=K, use_async_commit=True, min_commit_ts=S + 1)
PESSIMISTIC_PRIMARY = own(LockType.PESSIMISTIC, primary=K, for_update_ts=S)


def status(at, **query):
    answer, steps = finish.check_status(at, StatusQuery(S, **query))
    return answer.action, answer.commit_ts, answer.lock, steps


@pytest.mark.parametrize(
    ("at", "query", "answer"),
    [
        pytest.param(
            state(LOCK), {"current_ts": ALIVE, "caller_start_ts": S + 9}, (Action.NONE, 0, LOCK, ()), id="it lives"
        ),
        pytest.param(
            state(LOCK),
            {"current_ts": EXPIRED},
            (Action.TTL_EXPIRE_ROLLBACK, 0, None, (RollBack(K, S, LOCK, BARE),)),
            id="its time is up",
        ),
        pytest.param(
            state(ON_PRIMARY),
            {"current_ts": EXPIRED},
            (Action.TTL_EXPIRE_ROLLBACK, 0, None, (RollBack(K, S, ON_PRIMARY, KEPT),)),
            id="a pessimistic one leaves a protected record",
        ),
        pytest.param(
            state(PESSIMISTIC_PRIMARY),
            {"current_ts": EXPIRED, "resolving_pessimistic_lock": True},
            (Action.TTL_EXPIRE_PESSIMISTIC_ROLLBACK, 0, None, (Release(K),)),
            id="who resolves a pessimistic lock leaves no record of one",
        ),
        pytest.param(
            state(PESSIMISTIC_PRIMARY),
            {"current_ts": EXPIRED},
            (Action.TTL_EXPIRE_ROLLBACK, 0, None, (RollBack(K, S, PESSIMISTIC_PRIMARY, KEPT),)),
            id="who resolves another does",
        ),
        pytest.param(
            state(LARGE),
            {"current_ts": S + 5, "caller_start_ts": S + 9},
            (
                Action.MIN_COMMIT_TS_PUSHED,
                0,
                own(primary=K, min_commit_ts=S + 10),
                (Renew(K, own(primary=K, min_commit_ts=S + 10)),),
            ),
            id="it is pushed above the reader",
        ),
        pytest.param(
            state(LARGE),
            {"current_ts": S + 50, "caller_start_ts": S + 9},
            (
                Action.MIN_COMMIT_TS_PUSHED,
                0,
                own(primary=K, min_commit_ts=S + 50),
                (Renew(K, own(primary=K, min_commit_ts=S + 50)),),
            ),
            id="and to the present",
        ),
        pytest.param(
            state(LARGE),
            {"current_ts": S, "caller_start_ts": S},
            (Action.MIN_COMMIT_TS_PUSHED, 0, LARGE, ()),
            id="it commits above the reader already",
        ),
        pytest.param(
            state(LARGE), {"current_ts": S + 5, "caller_start_ts": 0}, (Action.NONE, 0, LARGE, ()), id="nobody reads"
        ),
        pytest.param(
            state(LARGE),
            {"current_ts": S + 5, "caller_start_ts": MAX_TS},
            (Action.MIN_COMMIT_TS_PUSHED, 0, LARGE, ()),
            id="a reader of the newest need not push",
        ),
        pytest.param(
            state(ASYNC),
            {"current_ts": EXPIRED, "caller_start_ts": S + 9},
            (Action.NONE, 0, ASYNC, ()),
            id="an asynchronous commit is not touched here, even expired",
        ),
        pytest.param(
            state(ASYNC),
            {"current_ts": EXPIRED, "force_sync_commit": True},
            (Action.TTL_EXPIRE_ROLLBACK, 0, None, (RollBack(K, S, ASYNC, BARE),)),
            id="unless it must count as an ordinary one",
        ),
        pytest.param(state(None, record("P", S + 9, S)), {}, (Action.NONE, S + 9, None, ()), id="committed"),
        pytest.param(state(None, ROLLED_BACK), {}, (Action.NONE, 0, None, ()), id="rolled back"),
        pytest.param(
            state(),
            {"rollback_if_not_exist": True},
            (Action.LOCK_NOT_EXIST_ROLLBACK, 0, None, (RollBack(K, S, None, KEPT),)),
            id="unknown: then it shall never be",
        ),
        pytest.param(
            state(other()),
            {"rollback_if_not_exist": True},
            (Action.LOCK_NOT_EXIST_ROLLBACK, 0, None, (RollBack(K, S, None, KEPT),)),
            id="unknown, under another's lock",
        ),
        pytest.param(
            state(),
            {"rollback_if_not_exist": True, "resolving_pessimistic_lock": True},
            (Action.LOCK_NOT_EXIST_DO_NOTHING, 0, None, ()),
            id="unknown, and only a pessimistic lock is at stake",
        ),
        pytest.param(
            state(own(LockType.PESSIMISTIC), record("P", S + 9, S)),
            {"verify_is_primary": True},
            (Action.NONE, S + 9, None, (Release(K),)),
            id="a stale pessimistic lock of a transaction that has its primary elsewhere",
        ),
    ],
)
def test_status(at, query, answer):
    assert status(at, **query) == answer


def test_status_of_nothing_known_and_of_the_wrong_key():
    with pytest.raises(TransactionNotFoundError):
        status(state())
    with pytest.raises(PrimaryMismatchError):
        status(state(own()), verify_is_primary=True)
    assert status(state(own()))[2] == own()


@pytest.mark.parametrize(
    ("at", "found", "step"),
    [
        pytest.param(state(ASYNC), ASYNC, None, id="locked"),
        pytest.param(state(None, record("P", S + 9, S)), Committed(S + 9), None, id="committed"),
        pytest.param(state(None, ROLLED_BACK), RolledBack(), None, id="rolled back"),
        pytest.param(state(), RolledBack(), RollBack(K, S, None, KEPT), id="missing: it shall never be"),
        pytest.param(state(other()), RolledBack(), RollBack(K, S, None, KEPT), id="under another's lock as well"),
        pytest.param(
            state(PESSIMISTIC_PRIMARY),
            RolledBack(),
            RollBack(K, S, PESSIMISTIC_PRIMARY, KEPT),
            id="not written, only locked: it goes",
        ),
        pytest.param(
            state(None, FOREIGN), RolledBack(), RollBack(K, S, None, OVERLAPPED[1]), id="where another committed"
        ),
    ],
)
def test_secondary(at, found, step):
    assert finish.check_secondary(at, S) == (found, step)


# Pessimistic locks


def request(**fields) -> LockRequest:
    return LockRequest(**{"start_ts": S, "primary": P, "ttl_ms": TTL, "for_update_ts": S + 20, **fields})


HELD = own(LockType.PESSIMISTIC, for_update_ts=S + 20)
THERE = record("P", S - 1)


@pytest.mark.parametrize(
    ("at", "asked", "found", "conflict_ts", "lock"),
    [
        pytest.param(state(), request(), None, 0, HELD, id="an empty key"),
        pytest.param(state(None, record("P", S + 20)), request(), None, 0, HELD, id="a version it has seen"),
        pytest.param(
            state(None, record("P", S + 20)), request(return_values=True), S + 20, 0, HELD, id="and asks for its value"
        ),
        pytest.param(
            state(None, record("D", S + 20)), request(check_existence=True), None, 0, HELD, id="of which there is none"
        ),
        pytest.param(
            state(), request(lock_only_if_exists=True, return_values=True), None, 0, None, id="not locked if not there"
        ),
        pytest.param(
            state(None, THERE),
            request(lock_only_if_exists=True, return_values=True),
            S - 1,
            0,
            HELD,
            id="locked if there",
        ),
        pytest.param(
            state(None, record("P", S + 30)),
            request(allow_conflict=True),
            S + 30,
            S + 30,
            own(LockType.PESSIMISTIC, for_update_ts=S + 30),
            id="taken in spite of a conflict, at its ts",
        ),
        pytest.param(state(HELD), request(), None, 0, None, id="its own lock"),
        pytest.param(
            state(own(LockType.PESSIMISTIC, for_update_ts=S + 3, ttl_ms=TTL + 1, min_commit_ts=S + 9)),
            request(),
            None,
            0,
            own(LockType.PESSIMISTIC, for_update_ts=S + 20, ttl_ms=TTL + 1, min_commit_ts=S + 9),
            id="its own older lock is raised",
        ),
        pytest.param(
            state(own(LockType.PESSIMISTIC, for_update_ts=S + 30), record("P", S + 30)),
            request(allow_conflict=True),
            S + 30,
            S + 30,
            None,
            id="its own, taken in spite of a conflict before",
        ),
        pytest.param(
            state(HELD, record("P", S + 20)), request(return_values=True), S + 20, 0, None, id="its own, with the value"
        ),
    ],
)
def test_pessimistic_lock(at, asked, found, conflict_ts, lock):
    locked, step = pessimistic.decide(at, asked)
    assert (locked.found[0] if locked.found else None, locked.conflict_ts) == (found, conflict_ts)
    assert step == (PutLock(K, lock) if lock is not None else None)


@pytest.mark.parametrize(
    ("at", "should_not_exist", "error"),
    [
        pytest.param(state(other()), False, KeyLockedError, id="locked by another"),
        pytest.param(state(own()), False, AbortError, id="prewritten already"),
        pytest.param(state(None, record("P", S + 21)), False, WriteConflictError, id="written since"),
        pytest.param(state(None, ROLLED_BACK), False, AbortError, id="rolled back"),
        pytest.param(state(None, record("P", S + 5), OVERLAPPED), False, AbortError, id="rolled back below a version"),
        pytest.param(state(None, THERE), True, AlreadyExistsError, id="must not be there"),
        pytest.param(state(HELD, THERE), True, AlreadyExistsError, id="must not be there, asked again"),
    ],
)
def test_pessimistic_lock_is_refused(at, should_not_exist, error):
    with pytest.raises(error):
        pessimistic.decide(at, request(), should_not_exist=should_not_exist)
