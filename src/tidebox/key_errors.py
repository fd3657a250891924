"""Refusals in the protocol's words: ``kvrpcpb.KeyError`` and ``LockInfo``."""

import hashlib

from tidebox.mvcc import Lock, LockType
from tidebox.txn.errors import (
    AlreadyExistsError,
    AssertionFailedError,
    CommitTsExpiredError,
    ConflictReason,
    DeadlockError,
    KeyLockedError,
    LockNotFoundError,
    PrewriteRefusedError,
    PrimaryMismatchError,
    TransactionNotFoundError,
    Wait,
    WriteConflictError,
)
from tidemill._pb import deadlock_pb2, kvrpcpb_pb2
from tidemill.errors import TidemillError

_LOCK_OPS = {
    LockType.PUT: kvrpcpb_pb2.Put,
    LockType.DELETE: kvrpcpb_pb2.Del,
    LockType.LOCK: kvrpcpb_pb2.Lock,
    LockType.PESSIMISTIC: kvrpcpb_pb2.PessimisticLock,
}

_REASONS = {
    ConflictReason.OPTIMISTIC: kvrpcpb_pb2.WriteConflict.Optimistic,
    ConflictReason.PESSIMISTIC_RETRY: kvrpcpb_pb2.WriteConflict.PessimisticRetry,
    ConflictReason.SELF_ROLLED_BACK: kvrpcpb_pb2.WriteConflict.SelfRolledBack,
    ConflictReason.RC_CHECK_TS: kvrpcpb_pb2.WriteConflict.RcCheckTs,
    ConflictReason.LAZY_UNIQUENESS_CHECK: kvrpcpb_pb2.WriteConflict.LazyUniquenessCheck,
    ConflictReason.NOT_LOCKED_KEY_CONFLICT: kvrpcpb_pb2.WriteConflict.NotLockedKeyConflict,
}


def lock_info(key: bytes, lock: Lock) -> kvrpcpb_pb2.LockInfo:
    return kvrpcpb_pb2.LockInfo(
        primary_lock=lock.primary,
        lock_version=lock.start_ts,
        key=key,
        lock_ttl=lock.ttl_ms,
        txn_size=lock.txn_size,
        lock_type=_LOCK_OPS[lock.type],
        lock_for_update_ts=lock.for_update_ts,
        use_async_commit=lock.use_async_commit,
        min_commit_ts=lock.min_commit_ts,
        secondaries=lock.secondaries,
    )


def key_errors(error: TidemillError) -> list[kvrpcpb_pb2.KeyError]:
    """All that an error says."""
    reasons = error.reasons if isinstance(error, PrewriteRefusedError) else (error,)
    return [key_error(reason) for reason in reasons]


def key_error(error: TidemillError) -> kvrpcpb_pb2.KeyError:
    """One error; what the protocol has no variant for is ``abort``, which no client retries."""
    match error:
        case KeyLockedError(key=key, lock=lock):
            return kvrpcpb_pb2.KeyError(locked=lock_info(key, lock))
        case WriteConflictError():
            conflict = kvrpcpb_pb2.WriteConflict(
                start_ts=error.start_ts,
                conflict_ts=error.conflict_start_ts,
                key=error.key,
                primary=error.primary,
                conflict_commit_ts=error.conflict_commit_ts,
                reason=_REASONS[error.reason],
            )
            # Old clients know a conflict only as a text.
            return kvrpcpb_pb2.KeyError(conflict=conflict, retryable=f"WriteConflict: {error}")
        case LockNotFoundError(key=key):
            not_found = kvrpcpb_pb2.TxnLockNotFound(key=key)
            return kvrpcpb_pb2.KeyError(txn_lock_not_found=not_found, retryable=f"TxnLockNotFound: {error}")
        case AlreadyExistsError(key=key):
            return kvrpcpb_pb2.KeyError(already_exist=kvrpcpb_pb2.AlreadyExist(key=key))
        case AssertionFailedError():
            failed = kvrpcpb_pb2.AssertionFailed(
                start_ts=error.start_ts,
                key=error.key,
                assertion=kvrpcpb_pb2.Exist if error.should_exist else kvrpcpb_pb2.NotExist,
                existing_start_ts=error.existing_start_ts,
                existing_commit_ts=error.existing_commit_ts,
            )
            return kvrpcpb_pb2.KeyError(assertion_failed=failed)
        case CommitTsExpiredError():
            expired = kvrpcpb_pb2.CommitTsExpired(
                start_ts=error.start_ts,
                attempted_commit_ts=error.commit_ts,
                key=error.key,
                min_commit_ts=error.min_commit_ts,
            )
            return kvrpcpb_pb2.KeyError(commit_ts_expired=expired)
        case TransactionNotFoundError(key=key, start_ts=start_ts):
            unknown = kvrpcpb_pb2.TxnNotFound(start_ts=start_ts, primary_key=key)
            return kvrpcpb_pb2.KeyError(txn_not_found=unknown)
        case PrimaryMismatchError(key=key, lock=lock):
            mismatch = kvrpcpb_pb2.PrimaryMismatch(lock_info=lock_info(key, lock))
            return kvrpcpb_pb2.KeyError(primary_mismatch=mismatch)
        case DeadlockError():
            return kvrpcpb_pb2.KeyError(deadlock=_deadlock(error))
        case _:
            return kvrpcpb_pb2.KeyError(abort=str(error))


def _deadlock(error: DeadlockError) -> kvrpcpb_pb2.Deadlock:
    closing = error.chain[-1] if error.chain else error.wait  # who waits for a key of the one refused
    return kvrpcpb_pb2.Deadlock(
        lock_ts=error.wait.holder_ts,
        lock_key=error.wait.key,
        deadlock_key_hash=_hash(closing.key),
        deadlock_key=closing.key,
        wait_chain=[_entry(wait) for wait in (*error.chain, error.wait)],
    )


def _entry(wait: Wait) -> deadlock_pb2.WaitForEntry:
    return deadlock_pb2.WaitForEntry(
        txn=wait.start_ts, wait_for_txn=wait.holder_ts, key_hash=_hash(wait.key), key=wait.key
    )


def _hash(key: bytes) -> int:
    """Tells keys apart in a report; no client computes it."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
