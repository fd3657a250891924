"""Which locks a reader may pass: one that reads at a ts must wait for whatever may still commit at or below it."""

from dataclasses import dataclass
from enum import Enum

from tidebox.mvcc import Lock
from tidebox.txn.errors import ConflictReason, KeyLockedError, TransactionError, WriteConflictError
from tidemill.model.ts import MAX_TS


class Isolation(Enum):
    SNAPSHOT = "snapshot"
    READ_COMMITTED = "read-committed"  # takes what is there and no notice of locks
    READ_COMMITTED_CHECKED = "read-committed-checked"  # but fails if there is anything newer


class Sight(Enum):
    """What a reader makes of a lock."""

    PASSES = "passes"
    READS_IT = "reads it"  # the transaction has committed below the reader's ts: the lock's value is the answer
    STOPS = "stops"


@dataclass(frozen=True, slots=True)
class ReadAt:
    """``bypass`` are transactions known to be rolled back or to commit above, ``committed`` known to have
    committed at or below ``version``."""

    version: int = MAX_TS
    bypass: frozenset[int] = frozenset()
    committed: frozenset[int] = frozenset()
    isolation: Isolation = Isolation.SNAPSHOT
    is_replica_read: bool = False

    def sight(self, key: bytes, lock: Lock) -> Sight:
        if self.isolation is Isolation.READ_COMMITTED or not lock.writes_data or lock.start_ts in self.bypass:
            return Sight.PASSES
        if self.isolation is Isolation.SNAPSHOT:
            if lock.start_ts > self.version or lock.min_commit_ts > self.version:
                return Sight.PASSES
            # What the newest is can be said while a primary is only locked, unless its commit-ts is settled.
            is_latest = self.version == MAX_TS and not self.is_replica_read
            if is_latest and lock.primary == key and not lock.use_async_commit:
                return Sight.PASSES
        return Sight.READS_IT if lock.start_ts in self.committed else Sight.STOPS

    def refusal(self, key: bytes, lock: Lock) -> TransactionError:
        """What to tell a reader that a lock stops."""
        if self.isolation is Isolation.READ_COMMITTED_CHECKED:
            reason = ConflictReason.RC_CHECK_TS
            return WriteConflictError(key, self.version, lock.start_ts, 0, reason, lock.primary)
        return KeyLockedError(key, lock)
