"""Locking a key before its new value is known, as ``SELECT … FOR UPDATE`` does.

Such a lock keeps other writers off, readers not at all. It is taken against the newest version as of
``for_update_ts``; whoever finds a newer one tries again with a newer ts, or, where the client allows
it, gets the lock and is told of the conflict.
"""

from dataclasses import dataclass, replace

from tidebox.mvcc import Lock, LockType, WriteType
from tidebox.txn.errors import (
    AbortError,
    AlreadyExistsError,
    ConflictReason,
    KeyLockedError,
    WriteConflictError,
)
from tidebox.txn.records import KeyState, Record
from tidebox.txn.steps import PutLock
from tidemill.model.ts import MAX_TS


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What the keys of one request have in common."""

    start_ts: int
    primary: bytes
    ttl_ms: int
    for_update_ts: int
    min_commit_ts: int = 0
    return_values: bool = False
    check_existence: bool = False
    lock_only_if_exists: bool = False
    allow_conflict: bool = False

    @property
    def wants_data(self) -> bool:
        return self.return_values or self.check_existence or self.lock_only_if_exists


@dataclass(frozen=True, slots=True)
class Locked:
    """``found`` is the put that the lock is taken against, if one was asked for or is news.

    ``conflict_ts`` > 0: it was committed after the ts that the client asked for.
    """

    found: Record | None = None
    conflict_ts: int = 0


def decide(state: KeyState, request: LockRequest, *, should_not_exist: bool = False) -> tuple[Locked, PutLock | None]:
    if state.lock is not None:
        return _lock_again(state, state.lock, request, should_not_exist)
    conflict_ts = 0
    newest = state.records.newest()
    if newest is not None:
        if newest[0] > request.for_update_ts:
            if not request.allow_conflict:
                raise WriteConflictError(
                    state.key,
                    request.start_ts,
                    newest[1].start_ts,
                    newest[0],
                    ConflictReason.PESSIMISTIC_RETRY,
                    request.primary,
                )
            conflict_ts = newest[0]
        _check_not_rolled_back(state, request.start_ts)
        if should_not_exist and not conflict_ts and state.records.exists():
            raise AlreadyExistsError(state.key)
    found = _put_at(state, MAX_TS) if request.wants_data or conflict_ts else None
    if request.lock_only_if_exists and found is None:
        return Locked(None, conflict_ts), None
    lock = Lock(
        LockType.PESSIMISTIC,
        request.primary,
        request.start_ts,
        request.ttl_ms,
        for_update_ts=max(request.for_update_ts, conflict_ts),
        min_commit_ts=request.min_commit_ts,
    )
    return Locked(found, conflict_ts), PutLock(state.key, lock)


def _lock_again(
    state: KeyState, lock: Lock, request: LockRequest, should_not_exist: bool
) -> tuple[Locked, PutLock | None]:
    if lock.start_ts != request.start_ts:
        raise KeyLockedError(state.key, lock)
    if lock.type is not LockType.PESSIMISTIC:
        raise AbortError(
            f"the transaction that started at {request.start_ts} has prewritten key {state.key.hex()} already "
            "and cannot lock it any more"
        )
    conflict_ts = lock.for_update_ts if request.allow_conflict and request.for_update_ts < lock.for_update_ts else 0
    for_update_ts = max(request.for_update_ts, conflict_ts)
    found = _put_at(state, for_update_ts) if request.wants_data or conflict_ts or should_not_exist else None
    if should_not_exist and found is not None and not conflict_ts:
        raise AlreadyExistsError(state.key)
    answer = Locked(found if request.wants_data or conflict_ts else None, conflict_ts)
    if for_update_ts <= lock.for_update_ts:
        return answer, None
    raised = replace(
        lock,
        for_update_ts=for_update_ts,
        ttl_ms=max(lock.ttl_ms, request.ttl_ms),
        min_commit_ts=max(lock.min_commit_ts, request.min_commit_ts),
    )
    return answer, PutLock(state.key, raised)


def _check_not_rolled_back(state: KeyState, start_ts: int) -> None:
    at_start = state.records.newest(start_ts)
    if at_start is None or at_start[0] != start_ts:
        return
    if at_start[1].type is WriteType.ROLLBACK or at_start[1].has_overlapped_rollback:
        raise AbortError(
            f"PessimisticLockRolledBack: the transaction that started at {start_ts} was rolled back on key "
            f"{state.key.hex()}. Begin a new transaction."
        )


def _put_at(state: KeyState, ts: int) -> Record | None:
    found = state.records.newest_data(ts)
    return found if found is not None and found[1].type is WriteType.PUT else None
