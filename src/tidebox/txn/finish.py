"""The second phase, and finding out how a transaction stands when its client is gone.

The fate of a transaction is that of its primary key. Whoever finds a lock in the way asks there: the
answer may be "committed", "rolled back", or "alive"; and if nobody knows, asking makes it "rolled
back" for good, because a rollback record keeps a late prewrite out.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from tidebox.mvcc import Lock, LockType, Write
from tidebox.txn.errors import (
    CommittedError,
    CommitTsExpiredError,
    KeyLockedError,
    LockNotFoundError,
    PrimaryMismatchError,
    TransactionNotFoundError,
)
from tidebox.txn.records import Committed, KeyState, RolledBack, Unended
from tidebox.txn.steps import Commit, Release, Renew, RollBack, Step
from tidemill.model.ts import MAX_TS, physical_ms


def commit(state: KeyState, start_ts: int, commit_ts: int) -> Commit | Release | None:
    """Make the transaction visible on the key; None if it is already."""
    lock = state.lock_of(start_ts)
    if lock is None:
        if isinstance(state.records.outcome(start_ts), Committed):
            return None
        raise LockNotFoundError(state.key, start_ts)
    if commit_ts < lock.min_commit_ts:
        raise CommitTsExpiredError(state.key, start_ts, commit_ts, lock.min_commit_ts)
    if lock.type is LockType.PESSIMISTIC:
        return Release(state.key)  # left behind by a request that came twice; it never had a value
    return Commit(state.key, lock, commit_ts)


def roll_back(state: KeyState, start_ts: int, *, protect: bool = False, current_ts: int = 0) -> RollBack | None:
    """Undo the transaction on the key, or see to it that it never happens; None if that is so already.

    With a ``current_ts`` a lock whose time is not up yet stays, and is reported.
    """
    lock = state.lock_of(start_ts)
    if lock is not None:
        if current_ts and physical_ms(start_ts) + lock.ttl_ms >= physical_ms(current_ts):
            raise KeyLockedError(state.key, lock)
        return _undo(state, lock, collapse=not protect)
    match state.records.outcome(start_ts):
        case Committed(commit_ts):
            raise CommittedError(state.key, start_ts, commit_ts)
        case RolledBack():
            return None
        case Unended(overlapped):
            return _bar(state, start_ts, overlapped, protect=protect)


def _undo(state: KeyState, lock: Lock, *, collapse: bool) -> RollBack:
    """Of a lock that is there. Only the primary of a pessimistic transaction needs a lasting record:
    others may be locked again by a late request, which then cannot commit."""
    outcome = state.records.outcome(lock.start_ts)
    record = None
    if isinstance(outcome, Unended):
        protect = lock.is_of_pessimistic_transaction and state.key == lock.primary
        record = _rollback_record(lock.start_ts, outcome.overlapped, protect=protect)
    forget = state.records.previous_rollback(lock.start_ts) if collapse else None
    return RollBack(state.key, lock.start_ts, lock, record, forget)


def _bar(state: KeyState, start_ts: int, overlapped: Write | None, *, protect: bool) -> RollBack:
    """Where no lock is: a record that keeps a late one out."""
    forget = None if protect else state.records.previous_rollback(start_ts)
    record = _rollback_record(start_ts, overlapped, protect=protect)
    return RollBack(state.key, start_ts, None, record, forget)


def _rollback_record(start_ts: int, overlapped: Write | None, *, protect: bool) -> Write | None:
    """A commit record of another transaction is never replaced; it takes a mark instead, if it must."""
    if overlapped is None:
        return Write.rollback(start_ts, is_protected=protect)
    return replace(overlapped, has_overlapped_rollback=True) if protect else None


def release(state: KeyState, start_ts: int, for_update_ts: int) -> Release | None:
    """Give a pessimistic lock back, unless it was taken again at a later ts."""
    lock = state.lock_of(start_ts)
    if lock is None or lock.type is not LockType.PESSIMISTIC or lock.for_update_ts > for_update_ts:
        return None
    return Release(state.key)


def prolong(state: KeyState, start_ts: int, ttl_ms: int, min_commit_ts: int = 0) -> tuple[Lock, Renew | None]:
    """The owner is alive. The lock as it is then; its time to live never shrinks."""
    lock = state.lock_of(start_ts)
    if lock is None:
        raise TransactionNotFoundError(state.key, start_ts)
    least = lock.min_commit_ts if lock.use_async_commit else max(lock.min_commit_ts, min_commit_ts)
    renewed = replace(lock, ttl_ms=max(lock.ttl_ms, ttl_ms), min_commit_ts=least)
    return renewed, Renew(state.key, renewed) if renewed != lock else None


# How does it stand?


class Action(Enum):
    """What asking has done."""

    NONE = auto()
    TTL_EXPIRE_ROLLBACK = auto()
    LOCK_NOT_EXIST_ROLLBACK = auto()
    MIN_COMMIT_TS_PUSHED = auto()
    TTL_EXPIRE_PESSIMISTIC_ROLLBACK = auto()
    LOCK_NOT_EXIST_DO_NOTHING = auto()


@dataclass(frozen=True, slots=True)
class StatusQuery:
    start_ts: int
    caller_start_ts: int = 0  # of the reader in whose way the lock is; 0: not a reader; the greatest ts: the newest
    current_ts: int = 0
    rollback_if_not_exist: bool = False
    force_sync_commit: bool = False
    resolving_pessimistic_lock: bool = False
    verify_is_primary: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """``lock`` while the transaction lives, ``commit_ts`` > 0 if it has committed, neither if it is rolled back."""

    action: Action = Action.NONE
    commit_ts: int = 0
    lock: Lock | None = None


def check_status(state: KeyState, query: StatusQuery) -> tuple[Status, tuple[Step, ...]]:
    """Ask the primary key. An expired transaction is rolled back by asking."""
    lock = state.lock_of(query.start_ts)
    if lock is None:
        return _status_without_lock(state, query)
    if query.verify_is_primary and lock.primary != state.key:
        if lock.type is LockType.PESSIMISTIC and not query.resolving_pessimistic_lock:
            # Left by a stale request: the transaction has its primary elsewhere, and its writes too.
            status, steps = _status_without_lock(state, query)
            return status, (Release(state.key), *steps)
        raise PrimaryMismatchError(state.key, lock)
    if lock.use_async_commit and not query.force_sync_commit:
        return Status(lock=lock), ()  # all its keys together decide, not this one
    if physical_ms(lock.start_ts) + lock.ttl_ms < physical_ms(query.current_ts):
        if query.resolving_pessimistic_lock and lock.type is LockType.PESSIMISTIC:
            return Status(Action.TTL_EXPIRE_PESSIMISTIC_ROLLBACK), (Release(state.key),)
        return Status(Action.TTL_EXPIRE_ROLLBACK), (_undo(state, lock, collapse=True),)
    return _push(state, lock, query)


def _push(state: KeyState, lock: Lock, query: StatusQuery) -> tuple[Status, tuple[Step, ...]]:
    """The transaction lives: make it commit above the reader, who can then go on, if it has not settled where."""
    caller = query.caller_start_ts
    steps: tuple[Step, ...] = ()
    if lock.min_commit_ts and caller != MAX_TS and caller >= lock.min_commit_ts:
        current = query.current_ts if query.current_ts != MAX_TS else 0
        lock = replace(lock, min_commit_ts=max(caller + 1, current))
        steps = (Renew(state.key, lock),)
    is_pushed = caller == MAX_TS or 0 < caller < lock.min_commit_ts
    return Status(Action.MIN_COMMIT_TS_PUSHED if is_pushed else Action.NONE, lock=lock), steps


def _status_without_lock(state: KeyState, query: StatusQuery) -> tuple[Status, tuple[Step, ...]]:
    match state.records.outcome(query.start_ts):
        case Committed(commit_ts):
            return Status(commit_ts=commit_ts), ()
        case RolledBack():
            return Status(), ()
        case Unended(overlapped):
            if not query.rollback_if_not_exist:
                raise TransactionNotFoundError(state.key, query.start_ts)
            if query.resolving_pessimistic_lock:
                return Status(Action.LOCK_NOT_EXIST_DO_NOTHING), ()
            step = _bar(state, query.start_ts, overlapped, protect=True)
            return Status(Action.LOCK_NOT_EXIST_ROLLBACK), (step,)


def check_secondary(state: KeyState, start_ts: int) -> tuple[Lock | Committed | RolledBack, Step | None]:
    """How an asynchronous commit stands on one of its keys. Without a lock there it will never commit."""
    lock = state.lock_of(start_ts)
    if lock is not None and lock.type is not LockType.PESSIMISTIC:
        return lock, None
    outcome = state.records.outcome(start_ts)
    if not isinstance(outcome, Unended):
        return outcome, Release(state.key) if lock is not None else None
    record = _rollback_record(start_ts, outcome.overlapped, protect=True)
    forget = state.records.previous_rollback(start_ts)
    return RolledBack(), RollBack(state.key, start_ts, lock, record, forget)
