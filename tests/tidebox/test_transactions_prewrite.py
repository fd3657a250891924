"""The first phase on one key, without a store: what stands there, what is asked, what follows."""

import pytest

from tests.tidebox.keystates import OVERLAPPED, ROLLED_BACK, TTL, K, P, S, other, own, record, state
from tidebox.mvcc import LockType
from tidebox.txn import prewrite
from tidebox.txn.errors import (
    AbortError,
    AlreadyExistsError,
    AssertionFailedError,
    ConflictReason,
    KeyLockedError,
    PessimisticLockNotFoundError,
    PrewriteRefusedError,
    WriteConflictError,
)
from tidebox.txn.prewrite import AssertionLevel, Intent, KeyMutation, PessimisticAction, Prewrite
from tidebox.txn.records import Committed, Records, RolledBack, Unended
from tidebox.txn.steps import CommitAtOnce, PutLock

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
