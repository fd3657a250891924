"""The rules of Percolator on one key, without a store: what stands there, what is asked, what follows."""

import pytest

from tidemill.model.ts import MAX_TS
from tidemill.store.mvcc import Lock, LockType, Write, WriteType
from tidemill.store.txn import finish, pessimistic, prewrite
from tidemill.store.txn.errors import (
    AbortError,
    AlreadyExistsError,
    AssertionFailedError,
    CommittedError,
    CommitTsExpiredError,
    ConflictReason,
    KeyLockedError,
    LockNotFoundError,
    PessimisticLockNotFoundError,
    PrewriteRefusedError,
    PrimaryMismatchError,
    TransactionNotFoundError,
    WriteConflictError,
)
from tidemill.store.txn.finish import Action, StatusQuery
from tidemill.store.txn.pessimistic import LockRequest
from tidemill.store.txn.prewrite import AssertionLevel, Intent, KeyMutation, PessimisticAction, Prewrite
from tidemill.store.txn.records import Committed, KeyState, Records, RolledBack, Unended
from tidemill.store.txn.steps import Commit, CommitAtOnce, PutLock, Release, Renew, RollBack

K, P = b"k", b"p"
S = 100 << 18  # our transaction's start-ts; 100 ms
TTL = 50


def ms(milliseconds: int) -> int:
    return milliseconds << 18


def own(kind=LockType.PUT, **fields) -> Lock:
    return Lock(kind, **{"primary": P, "start_ts": S, "ttl_ms": TTL, **fields})


def other(kind=LockType.PUT, start_ts=S - 9, **fields) -> Lock:
    return Lock(kind, **{"primary": P, "start_ts": start_ts, "ttl_ms": TTL, **fields})


def record(kind: str, commit_ts: int, start_ts: int = 1, **fields) -> tuple[int, Write]:
    return commit_ts, Write(WriteType(ord(kind)), start_ts, **fields)


ROLLED_BACK = record("R", S, S)
OVERLAPPED = record("P", S, S - 5, has_overlapped_rollback=True)


def state(lock: Lock | None = None, *records, key=K) -> KeyState:
    return KeyState(key, lock, Records(records))


# How did it end?


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        pytest.param([], Unended(), id="nothing is known"),
        pytest.param([record("P", S - 1)], Unended(), id="an older version says nothing"),
        pytest.param([record("P", S + 9, S)], Committed(S + 9), id="committed"),
        pytest.param([record("L", S + 9, S)], Committed(S + 9), id="committed as a lock"),
        pytest.param(
            [record("P", S + 9, S + 1), record("D", S + 5, S)], Committed(S + 5), id="committed below a newer version"
        ),
        pytest.param([record("P", S + 9, S + 1), ROLLED_BACK], RolledBack(), id="rolled back"),
        pytest.param([OVERLAPPED], RolledBack(), id="rolled back where another committed"),
        pytest.param(
            [record("P", S, S - 5)], Unended(record("P", S, S - 5)[1]), id="another committed at our start-ts"
        ),
    ],
)
def test_outcome(records, outcome):
    assert Records(records).outcome(S) == outcome


# Prewrite


def decide(txn, mutation, at, max_ts=0):
    return prewrite.decide(txn, [mutation], lambda key: at, max_ts)


OPTIMISTIC = Prewrite(S, P, TTL)
PESSIMISTIC = Prewrite(S, P, TTL, for_update_ts=S + 20)
RETRY = Prewrite(S, P, TTL, for_update_ts=S + 20, is_retry=True)
PUT = KeyMutation(Intent.PUT, K, b"v")
INSERT = KeyMutation(Intent.INSERT, K, b"v")
CHECK = KeyMutation(Intent.CHECK_NOT_EXISTS, K)


def expecting(intent=Intent.PUT, **fields) -> KeyMutation:
    return KeyMutation(intent, K, b"v", action=PessimisticAction.EXPECT_LOCK, **fields)


CHECK_NOW = KeyMutation(Intent.PUT, K, b"v", action=PessimisticAction.CHECK_NOW)
LOCKED = PutLock(K, own(short_value=b"v"), b"v")
LOCKED_PESSIMISTICALLY = PutLock(K, own(short_value=b"v", for_update_ts=S + 20), b"v")


@pytest.mark.parametrize(
    ("txn", "mutation", "at", "steps"),
    [
        pytest.param(OPTIMISTIC, PUT, state(), [LOCKED], id="an empty key is locked"),
        pytest.param(
            OPTIMISTIC,
            KeyMutation(Intent.DELETE, K),
            state(),
            [PutLock(K, own(LockType.DELETE), b"")],
            id="a delete locks as such",
        ),
        pytest.param(
            OPTIMISTIC, KeyMutation(Intent.LOCK, K), state(), [PutLock(K, own(LockType.LOCK), b"")], id="so does a lock"
        ),
        pytest.param(
            OPTIMISTIC,
            KeyMutation(Intent.PUT, K, b"L" * 256),
            state(),
            [PutLock(K, own(), b"L" * 256)],
            id="a long value is not in the lock",
        ),
        pytest.param(OPTIMISTIC, PUT, state(None, record("P", S - 1)), [LOCKED], id="an older version does not matter"),
        pytest.param(OPTIMISTIC, PUT, state(None, record("P", S, S - 5)), [LOCKED], id="nor one at our start-ts"),
        pytest.param(OPTIMISTIC, PUT, state(own()), [], id="done before: nothing to do"),
        pytest.param(OPTIMISTIC, PUT, state(None, record("P", S + 9, S)), [], id="committed before: nothing to do"),
        pytest.param(
            OPTIMISTIC,
            PUT,
            state(other(start_ts=S + 10), record("P", S + 9, S)),
            [],
            id="committed before and locked by the next: nothing to do",
        ),
        pytest.param(OPTIMISTIC, INSERT, state(None, record("D", S - 1)), [LOCKED], id="a deleted key can be inserted"),
        pytest.param(OPTIMISTIC, CHECK, state(None, record("D", S - 1)), [], id="an absent key is only looked at"),
        pytest.param(
            Prewrite(S, P, TTL, skips_check=True), PUT, state(None, record("P", S + 1)), [LOCKED], id="no check wanted"
        ),
        pytest.param(
            PESSIMISTIC,
            expecting(),
            state(own(LockType.PESSIMISTIC, ttl_ms=999, min_commit_ts=S + 77, for_update_ts=S + 30)),
            [PutLock(K, own(ttl_ms=999, short_value=b"v", for_update_ts=S + 30, min_commit_ts=S + 77), b"v")],
            id="a pessimistic lock becomes a write, and keeps what is greater",
        ),
        pytest.param(
            PESSIMISTIC,
            expecting(),
            state(None, record("P", S - 1)),
            [LOCKED_PESSIMISTICALLY],
            id="lost, but nobody wrote",
        ),
        pytest.param(
            PESSIMISTIC,
            expecting(Intent.INSERT),
            state(own(LockType.PESSIMISTIC), record("P", S - 1)),
            [LOCKED_PESSIMISTICALLY],
            id="an insert was checked when it was locked",
        ),
        pytest.param(
            PESSIMISTIC, PUT, state(None, record("P", S + 30)), [LOCKED_PESSIMISTICALLY], id="no check without a lock"
        ),
        pytest.param(
            RETRY, PUT, state(None, record("P", S + 10)), [LOCKED_PESSIMISTICALLY], id="a retry checks at for-update-ts"
        ),
        pytest.param(
            RETRY, PUT, state(None, record("R", S + 30)), [LOCKED_PESSIMISTICALLY], id="and ignores others' rollbacks"
        ),
        pytest.param(PESSIMISTIC, expecting(), state(None, record("P", S + 30, S)), [], id="committed before"),
    ],
)
def test_prewrite_goes_on(txn, mutation, at, steps):
    assert list(decide(txn, mutation, at).steps) == steps


@pytest.mark.parametrize(
    ("txn", "mutation", "at", "error", "reason"),
    [
        pytest.param(OPTIMISTIC, PUT, state(other()), KeyLockedError, None, id="locked by another"),
        pytest.param(
            OPTIMISTIC, PUT, state(other(LockType.PESSIMISTIC)), KeyLockedError, None, id="or about to be written"
        ),
        pytest.param(
            OPTIMISTIC,
            PUT,
            state(None, record("P", S + 1)),
            WriteConflictError,
            ConflictReason.OPTIMISTIC,
            id="written since",
        ),
        pytest.param(
            OPTIMISTIC,
            PUT,
            state(None, record("L", S + 1)),
            WriteConflictError,
            ConflictReason.OPTIMISTIC,
            id="locked and committed since",
        ),
        pytest.param(
            OPTIMISTIC,
            PUT,
            state(None, record("R", S + 1, S + 1)),
            WriteConflictError,
            ConflictReason.OPTIMISTIC,
            id="a rollback since counts as well",
        ),
        pytest.param(
            OPTIMISTIC,
            PUT,
            state(None, ROLLED_BACK),
            WriteConflictError,
            ConflictReason.SELF_ROLLED_BACK,
            id="rolled back before it came",
        ),
        pytest.param(
            OPTIMISTIC,
            PUT,
            state(None, OVERLAPPED),
            WriteConflictError,
            ConflictReason.SELF_ROLLED_BACK,
            id="rolled back where another committed",
        ),
        pytest.param(OPTIMISTIC, INSERT, state(None, record("P", S - 1)), AlreadyExistsError, None, id="insert twice"),
        pytest.param(OPTIMISTIC, CHECK, state(None, record("P", S - 1)), AlreadyExistsError, None, id="is there"),
        pytest.param(
            OPTIMISTIC,
            INSERT,
            state(None, record("R", S - 1, S - 1), record("L", S - 2), record("P", S - 3)),
            AlreadyExistsError,
            None,
            id="is there below records without data",
        ),
        pytest.param(OPTIMISTIC, PUT, state(own(LockType.PESSIMISTIC)), AbortError, None, id="a lock of another kind"),
        pytest.param(PESSIMISTIC, PUT, state(other()), KeyLockedError, None, id="pessimistic: locked by another"),
        pytest.param(
            PESSIMISTIC, expecting(), state(other()), PessimisticLockNotFoundError, None, id="its lock taken by another"
        ),
        pytest.param(
            PESSIMISTIC,
            expecting(),
            state(None, record("P", S)),
            PessimisticLockNotFoundError,
            None,
            id="its lock lost and somebody wrote at start-ts or later",
        ),
        pytest.param(
            PESSIMISTIC,
            expecting(expected_for_update_ts=S + 7),
            state(own(LockType.PESSIMISTIC, for_update_ts=S + 8)),
            PessimisticLockNotFoundError,
            None,
            id="locked at another ts than it thinks",
        ),
        pytest.param(
            RETRY,
            PUT,
            state(None, record("P", S + 30)),
            WriteConflictError,
            ConflictReason.NOT_LOCKED_KEY_CONFLICT,
            id="retry: written after for-update-ts",
        ),
        pytest.param(
            RETRY, PUT, state(None, ROLLED_BACK), WriteConflictError, ConflictReason.SELF_ROLLED_BACK, id="retry: ended"
        ),
        pytest.param(
            PESSIMISTIC,
            CHECK_NOW,
            state(None, record("P", S + 10)),
            WriteConflictError,
            ConflictReason.LAZY_UNIQUENESS_CHECK,
            id="checked late, against start-ts",
        ),
    ],
)
def test_prewrite_is_refused(txn, mutation, at, error, reason):
    with pytest.raises(PrewriteRefusedError) as refused:
        decide(txn, mutation, at)
    assert [type(why) for why in refused.value.reasons] == [error]
    if reason is not None:
        assert refused.value.reasons[0].reason is reason


def test_a_pessimistic_prewrite_reports_locks_as_expired():
    with pytest.raises(PrewriteRefusedError) as refused:
        decide(PESSIMISTIC, PUT, state(other()))
    assert refused.value.reasons[0].lock.ttl_ms == 0


def test_all_locks_in_the_way_are_reported_but_only_the_first_of_other_reasons():
    at = {b"a": state(other(), key=b"a"), b"b": state(key=b"b"), b"c": state(other(), key=b"c")}
    mutations = [KeyMutation(Intent.PUT, key) for key in at]
    with pytest.raises(PrewriteRefusedError) as refused:
        prewrite.decide(OPTIMISTIC, mutations, at.__getitem__, 0)
    assert [why.key for why in refused.value.reasons] == [b"a", b"c"]
    at[b"c"] = state(None, record("P", S + 1), key=b"c")
    with pytest.raises(PrewriteRefusedError) as refused:
        prewrite.decide(OPTIMISTIC, mutations, at.__getitem__, 0)
    assert [type(why) for why in refused.value.reasons] == [WriteConflictError]


FAST, STRICT = AssertionLevel.FAST, AssertionLevel.STRICT
THERE, GONE = record("P", S - 1), record("D", S - 1)


@pytest.mark.parametrize(
    ("level", "action", "should_exist", "records", "is_right"),
    [
        pytest.param(AssertionLevel.OFF, 0, True, [], True, id="off: nothing is checked"),
        pytest.param(FAST, 2, True, [THERE], True, id="exists"),
        pytest.param(FAST, 2, True, [record("L", S - 1), record("P", S - 2)], True, id="exists below a lock record"),
        pytest.param(FAST, 2, True, [GONE], False, id="is deleted"),
        pytest.param(FAST, 2, True, [], False, id="never was"),
        pytest.param(FAST, 2, False, [THERE], False, id="is there"),
        pytest.param(FAST, 2, False, [GONE], True, id="is not there"),
        pytest.param(FAST, 1, True, [], True, id="fast: not checked where nothing is read"),
        pytest.param(STRICT, 1, True, [], False, id="strict: read for it"),
        pytest.param(STRICT, 1, False, [THERE], False, id="strict: is there"),
    ],
)
def test_assertions(level, action, should_exist, records, is_right):
    txn = Prewrite(S, P, TTL, for_update_ts=S + 20, assertion_level=level)
    mutation = KeyMutation(Intent.PUT, K, b"v", should_exist, PessimisticAction(action))
    held = own(LockType.PESSIMISTIC) if action == 1 else None
    if is_right:
        assert decide(txn, mutation, state(held, *records)).steps
        return
    with pytest.raises(PrewriteRefusedError) as refused:
        decide(txn, mutation, state(held, *records))
    [why] = refused.value.reasons
    assert isinstance(why, AssertionFailedError)
    assert why.should_exist is should_exist
    assert why.existing_commit_ts == (records[0][0] if records else 0)


def test_a_conflict_explains_more_than_a_wrong_assertion():
    txn = Prewrite(S, P, TTL, for_update_ts=S + 20, assertion_level=STRICT)
    mutation = KeyMutation(Intent.PUT, K, b"v", should_exist=False)
    with pytest.raises(PrewriteRefusedError) as refused:
        decide(txn, mutation, state(None, record("P", S + 30)))
    assert isinstance(refused.value.reasons[0], WriteConflictError)


# Asynchronous and one-phase commit


def asynchronous(**fields) -> Prewrite:
    return Prewrite(S, K, TTL, **{"secondaries": (b"x", b"y"), **fields})


@pytest.mark.parametrize(
    ("fields", "max_ts", "settled"),
    [
        pytest.param({}, 0, S + 1, id="above start-ts"),
        pytest.param({}, S + 40, S + 41, id="above everything read"),
        pytest.param({"for_update_ts": S + 50}, S + 40, S + 51, id="above for-update-ts"),
        pytest.param({"min_commit_ts": S + 60}, S + 40, S + 60, id="not below what the client asks"),
        pytest.param({"max_commit_ts": S + 41}, S + 40, S + 41, id="not above what the client allows"),
        pytest.param({"max_commit_ts": S + 40}, S + 40, 0, id="else it falls back to two phases"),
    ],
)
def test_where_the_commit_ts_is_settled(fields, max_ts, settled):
    decided = decide(asynchronous(**fields), PUT, state(), max_ts)
    [step] = decided.steps
    assert decided.min_commit_ts == settled
    assert step.lock.use_async_commit is (settled > 0)
    assert step.lock.secondaries == ((b"x", b"y") if settled else ())
    assert step.lock.min_commit_ts == (settled or fields.get("min_commit_ts", 0))
    assert decided.shown == (((K, step.lock),) if settled else ())
    at_once = decide(asynchronous(**fields, one_phase=True, secondaries=None), PUT, state(), max_ts)
    assert at_once.one_phase_commit_ts == settled
    assert at_once.min_commit_ts == 0
    assert isinstance(at_once.steps[0], CommitAtOnce if settled else PutLock)


def test_secondaries_are_kept_on_the_primary_alone():
    mutations = [KeyMutation(Intent.PUT, key) for key in (K, b"x")]
    decided = prewrite.decide(asynchronous(), mutations, lambda key: state(key=key), 0)
    assert [step.lock.secondaries for step in decided.steps] == [(b"x", b"y"), ()]
    assert all(step.lock.use_async_commit for step in decided.steps)


def test_a_repeated_asynchronous_prewrite_answers_as_before():
    before = own(use_async_commit=True, min_commit_ts=S + 5)
    assert decide(asynchronous(), PUT, state(before), S + 99).min_commit_ts == S + 5
    assert decide(asynchronous(), PUT, state(own()), S + 99).min_commit_ts == 0  # then it had fallen back
    committed = state(None, record("P", S + 7, S))
    assert decide(asynchronous(), PUT, committed).min_commit_ts == S + 7
    one = Prewrite(S, K, TTL, one_phase=True)
    assert decide(one, PUT, committed).one_phase_commit_ts == S + 7
    assert decide(one, PUT, state(own())).one_phase_commit_ts == 0


def test_one_phase_takes_the_pessimistic_lock_away():
    txn = Prewrite(S, K, TTL, for_update_ts=S + 2, one_phase=True)
    decided = decide(txn, expecting(), state(own(LockType.PESSIMISTIC, for_update_ts=S + 2)))
    assert [step.held for step in decided.steps] == [True]
    # Readers of the newest must not pass it, though it is the primary.
    assert all(lock.use_async_commit for _, lock in decided.shown)


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
