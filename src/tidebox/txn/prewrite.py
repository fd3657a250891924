"""The first phase: may these keys be locked, and what will the locks say?

A transaction of the optimistic kind checks each key now: nobody else may have locked it, nor
written it since the transaction began. A pessimistic one (``for_update_ts`` > 0) has checked when
it locked, and turns those locks into its writes.

Asynchronous and one-phase commit settle the commit-ts here, above everything anyone has read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from tidebox.mvcc import SHORT_VALUE_MAX_BYTES, Lock, LockType, WriteType
from tidebox.txn.errors import (
    AbortError,
    AlreadyExistsError,
    AssertionFailedError,
    ConflictReason,
    KeyLockedError,
    PessimisticLockNotFoundError,
    PrewriteRefusedError,
    TransactionError,
    WriteConflictError,
)
from tidebox.txn.records import Committed, KeyState, Record
from tidebox.txn.steps import CommitAtOnce, PutLock, Step
from tidemill.model.ts import MAX_TS


class Intent(Enum):
    """What a mutation does to its key."""

    PUT = "put"
    DELETE = "delete"
    LOCK = "lock"
    INSERT = "insert"
    CHECK_NOT_EXISTS = "check-not-exists"

    @property
    def needs_absence(self) -> bool:
        return self is Intent.INSERT or self is Intent.CHECK_NOT_EXISTS


class PessimisticAction(IntEnum):
    """How a pessimistic transaction has dealt with a key. Numbered as on the wire."""

    SKIP_CHECK = 0
    EXPECT_LOCK = 1
    CHECK_NOW = 2


class AssertionLevel(IntEnum):
    """Numbered as on the wire."""

    OFF = 0
    FAST = 1  # where the records are read anyway
    STRICT = 2


@dataclass(frozen=True, slots=True)
class KeyMutation:
    intent: Intent
    key: bytes
    value: bytes = b""
    should_exist: bool | None = None  # what the client asserts
    action: PessimisticAction = PessimisticAction.SKIP_CHECK
    expected_for_update_ts: int | None = None


@dataclass(frozen=True, slots=True)
class Prewrite:
    """What the mutations of one request have in common."""

    start_ts: int
    primary: bytes
    ttl_ms: int
    for_update_ts: int = 0
    txn_size: int = 0
    min_commit_ts: int = 0
    max_commit_ts: int = 0  # 0: no limit
    txn_source: int = 0
    assertion_level: AssertionLevel = AssertionLevel.OFF
    skips_check: bool = False
    is_retry: bool = False
    secondaries: tuple[bytes, ...] | None = None  # None: no asynchronous commit
    one_phase: bool = False

    @property
    def is_pessimistic(self) -> bool:
        return self.for_update_ts > 0


@dataclass(frozen=True, slots=True)
class Prewritten:
    """What to do. ``min_commit_ts`` is 0 unless the commit is asynchronous; likewise for one phase."""

    steps: tuple[Step, ...] = ()
    min_commit_ts: int = 0
    one_phase_commit_ts: int = 0
    shown: tuple[tuple[bytes, Lock], ...] = ()  # what readers must see before the steps are done


@dataclass(frozen=True, slots=True)
class _Lockable:
    """The key can be locked, so."""

    mutation: KeyMutation
    lock: Lock
    held: bool  # by this transaction, pessimistically


@dataclass(frozen=True, slots=True)
class _Absent:
    """The key is not there, as it should be; nothing to write."""


def decide(
    txn: Prewrite, mutations: Sequence[KeyMutation], look: Callable[[bytes], KeyState], max_ts: int
) -> Prewritten:
    """All of the mutations, or ``PrewriteRefusedError`` with every lock in the way or the first other reason."""
    found: list[_Lockable | _Absent | Lock] = []
    locked: list[TransactionError] = []  # a wrong assertion counts only where no lock may explain it
    wrong: AssertionFailedError | None = None
    for mutation in mutations:
        state = look(mutation.key)
        try:
            found.append(_decide_key(txn, mutation, state))
        except (KeyLockedError, WriteConflictError, PessimisticLockNotFoundError) as error:
            is_own_rollback = isinstance(error, WriteConflictError) and error.reason is ConflictReason.SELF_ROLLED_BACK
            outcome = state.records.outcome(txn.start_ts)
            if isinstance(outcome, Committed) and not is_own_rollback:
                return _committed_before(txn, outcome.commit_ts)
            if not isinstance(error, KeyLockedError):
                raise PrewriteRefusedError([error]) from error
            locked.append(error)
        except AssertionFailedError as error:
            wrong = wrong or error
        except TransactionError as error:
            raise PrewriteRefusedError([error]) from error
    if not locked and wrong is not None:
        locked.append(wrong)
    if locked:
        raise PrewriteRefusedError(locked)
    return _settle(txn, found, max_ts)


def _committed_before(txn: Prewrite, commit_ts: int) -> Prewritten:
    """A late repetition: the answer of then, as far as it matters."""
    if txn.one_phase:
        return Prewritten(one_phase_commit_ts=commit_ts)
    return Prewritten(min_commit_ts=commit_ts if txn.secondaries is not None else 0)


def _decide_key(txn: Prewrite, mutation: KeyMutation, state: KeyState) -> _Lockable | _Absent | Lock:
    """How to lock the key; the lock itself, if it is there already."""
    held = None
    if state.lock is not None:
        held = _own_lock(txn, mutation, state.lock)
        if held.type is not LockType.PESSIMISTIC:
            return held
    elif mutation.action is PessimisticAction.EXPECT_LOCK and txn.is_pessimistic:
        _amend(txn, state)
    newest, is_loaded = None, False
    if not _skips_check(txn, mutation):
        newest, is_loaded = _newest_unless_newer(txn, mutation, state), True
    _check_assertion(txn, mutation, state, newest, is_loaded)
    if mutation.intent is Intent.CHECK_NOT_EXISTS:
        return _Absent()
    return _Lockable(mutation, _new_lock(txn, mutation, held), held is not None)


def _own_lock(txn: Prewrite, mutation: KeyMutation, lock: Lock) -> Lock:
    """The lock that is there, if it is this transaction's and as expected."""
    expects_lock = txn.is_pessimistic and mutation.action is PessimisticAction.EXPECT_LOCK
    if lock.start_ts != txn.start_ts:
        if expects_lock:
            raise PessimisticLockNotFoundError(mutation.key, txn.start_ts, "another transaction has locked it")
        # A pessimistic transaction has nothing to wait for: without the time to live, its client resolves the lock.
        raise KeyLockedError(mutation.key, replace(lock, ttl_ms=0) if txn.is_pessimistic else lock)
    if lock.type is not LockType.PESSIMISTIC:
        return lock
    if not txn.is_pessimistic:
        raise AbortError(
            f"key {mutation.key.hex()} has a pessimistic lock of the transaction that started at {txn.start_ts}, "
            "whose prewrite is optimistic"
        )
    expected = mutation.expected_for_update_ts
    if expected is not None and lock.for_update_ts != expected:
        why = f"it is locked at {lock.for_update_ts}, not at {expected}"
        raise PessimisticLockNotFoundError(mutation.key, txn.start_ts, why)
    return lock


def _amend(txn: Prewrite, state: KeyState) -> None:
    """A pessimistic lock that got lost does no harm as long as nobody has written since."""
    newest = state.records.newest()
    if newest is not None and newest[0] >= txn.start_ts:
        why = f"there is a record at {newest[0]}"
        raise PessimisticLockNotFoundError(state.key, txn.start_ts, why)


def _skips_check(txn: Prewrite, mutation: KeyMutation) -> bool:
    if not txn.is_pessimistic:
        return txn.skips_check
    match mutation.action:
        case PessimisticAction.EXPECT_LOCK:
            return True
        case PessimisticAction.SKIP_CHECK:
            return not txn.is_retry  # a first request cannot come after its own rollback
        case PessimisticAction.CHECK_NOW:
            return False


def _newest_unless_newer(txn: Prewrite, mutation: KeyMutation, state: KeyState) -> Record | None:
    """The newest record of the key, if it does not forbid the mutation."""
    for commit_ts, write in state.records:
        reason = _conflict(txn, mutation, commit_ts, write.type, write.has_overlapped_rollback)
        if reason is not None:
            raise WriteConflictError(mutation.key, txn.start_ts, write.start_ts, commit_ts, reason, txn.primary)
        if txn.is_pessimistic and commit_ts > txn.for_update_ts:
            continue  # a rollback: it may be there though the key was locked all the time
        if mutation.intent.needs_absence and state.records.exists(commit_ts):
            raise AlreadyExistsError(mutation.key)
        return commit_ts, write
    return None


def _conflict(
    txn: Prewrite, mutation: KeyMutation, commit_ts: int, kind: WriteType, has_overlapped_rollback: bool
) -> ConflictReason | None:
    if commit_ts == txn.start_ts and (kind is WriteType.ROLLBACK or has_overlapped_rollback):
        return ConflictReason.SELF_ROLLED_BACK
    if not txn.is_pessimistic:
        return ConflictReason.OPTIMISTIC if commit_ts > txn.start_ts else None
    if mutation.action is PessimisticAction.CHECK_NOW and commit_ts > txn.start_ts:
        return ConflictReason.LAZY_UNIQUENESS_CHECK
    if commit_ts > txn.for_update_ts and kind is not WriteType.ROLLBACK:
        return ConflictReason.NOT_LOCKED_KEY_CONFLICT
    return None


def _check_assertion(
    txn: Prewrite, mutation: KeyMutation, state: KeyState, newest: Record | None, is_loaded: bool
) -> None:
    if mutation.should_exist is None or txn.assertion_level is AssertionLevel.OFF:
        return
    if txn.assertion_level is AssertionLevel.FAST and not is_loaded:
        return
    data = state.records.newest_data(newest[0] if newest is not None else MAX_TS)
    exists = data is not None and data[1].type is WriteType.PUT
    if exists == mutation.should_exist:
        return
    if not is_loaded:
        _newest_unless_newer(txn, mutation, state)  # a conflict explains the assertion better
    existing = (data[1].start_ts, data[0]) if data is not None else (0, 0)
    raise AssertionFailedError(mutation.key, txn.start_ts, mutation.should_exist, *existing)


def _new_lock(txn: Prewrite, mutation: KeyMutation, held: Lock | None) -> Lock:
    kinds = {Intent.DELETE: LockType.DELETE, Intent.LOCK: LockType.LOCK}
    kind = kinds.get(mutation.intent, LockType.PUT)
    is_short = kind is LockType.PUT and len(mutation.value) <= SHORT_VALUE_MAX_BYTES
    # The lock may have been prolonged, or readers been promised something, since it was taken.
    return Lock(
        kind,
        txn.primary,
        txn.start_ts,
        max(txn.ttl_ms, held.ttl_ms) if held else txn.ttl_ms,
        short_value=mutation.value if is_short else None,
        for_update_ts=max(txn.for_update_ts, held.for_update_ts) if held else txn.for_update_ts,
        txn_size=txn.txn_size,
        min_commit_ts=max(txn.min_commit_ts, held.min_commit_ts) if held else txn.min_commit_ts,
        txn_source=txn.txn_source,
    )


def _settle(txn: Prewrite, found: Sequence[_Lockable | _Absent | Lock], max_ts: int) -> Prewritten:
    """Turn what was found into steps; where the commit-ts is settled now, settle it."""
    fresh = [entry for entry in found if isinstance(entry, _Lockable)]
    before = [entry for entry in found if isinstance(entry, Lock)]
    is_one_phase = txn.one_phase and not before  # its locks of before cannot be part of it
    if not (is_one_phase or txn.secondaries is not None):
        return _two_phase(fresh)
    lowest = max(max_ts, txn.start_ts, txn.for_update_ts) + 1
    fresh = [
        _Lockable(e.mutation, replace(e.lock, min_commit_ts=max(e.lock.min_commit_ts, lowest)), e.held) for e in fresh
    ]
    stamps = [e.lock.min_commit_ts for e in fresh] + [lock.min_commit_ts for lock in before]
    stamps += [lowest for e in found if isinstance(e, _Absent)]
    settled = max(stamps, default=0)
    if 0 < txn.max_commit_ts < settled or any(not lock.use_async_commit for lock in before):
        return _two_phase([e for e in found if isinstance(e, _Lockable)])
    if is_one_phase:
        steps = tuple(CommitAtOnce(e.mutation.key, e.lock, e.mutation.value, settled, e.held) for e in fresh)
        # A reader of the newest may pass a primary's lock, but not this: its commit-ts stands already.
        shown = tuple((e.mutation.key, replace(e.lock, use_async_commit=True)) for e in fresh)
        return Prewritten(steps, one_phase_commit_ts=settled, shown=shown)
    locks = [_asynchronous(txn, e) for e in fresh]
    puts = tuple(PutLock(e.mutation.key, lock, e.mutation.value) for e, lock in zip(fresh, locks, strict=True))
    return Prewritten(puts, min_commit_ts=settled, shown=tuple((put.key, put.lock) for put in puts))


def _asynchronous(txn: Prewrite, entry: _Lockable) -> Lock:
    secondaries = txn.secondaries if entry.mutation.key == txn.primary else None
    return replace(entry.lock, use_async_commit=True, secondaries=secondaries or ())


def _two_phase(fresh: Sequence[_Lockable]) -> Prewritten:
    return Prewritten(tuple(PutLock(e.mutation.key, e.lock, e.mutation.value) for e in fresh))
