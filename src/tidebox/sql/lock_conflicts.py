"""Locks of other transactions in the way of ours: find out how their owner stands, and end what is dead.

The fate of a transaction lies with its primary key. A living one is made to commit above a reader where
that can be asked of it, and else waited for; one whose time is up is rolled back, and its locks follow.
"""

from collections.abc import Callable

from tidebox.cluster import Cluster
from tidebox.mvcc import Lock, LockType
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.txn.errors import (
    DeadlockError,
    KeyLockedError,
    PrimaryMismatchError,
    TransactionNotFoundError,
    Wait,
)
from tidebox.txn.finish import Action, StatusQuery
from tidemill.model.ts import physical_ms

_PAUSE_SECONDS = 0.05  # a lock may be released without anybody being told: by a client that is gone


class LocksInWay:
    """What one transaction does about locks of others. The caller holds the cluster's mutex."""

    def __init__(self, cluster: Cluster, start_ts: int, give_up: float, is_interrupted: Callable[[], bool]) -> None:
        """``give_up``: when, by the clock that never goes back, waiting ends with error 1205."""
        self._cluster = cluster
        self._start_ts = start_ts
        self._give_up = give_up
        self._is_interrupted = is_interrupted

    def pass_reader(self, key: bytes, lock: Lock, read_ts: int) -> int | None:
        """Something about a lock that stops a reader at ``read_ts``: its transaction's start-ts, if the reader may
        look past its locks from now on. With None the reader looks again: the lock is gone, or may be by now."""
        commit_ts, is_pushed = self._settle(key, lock, read_ts)
        if is_pushed:
            return lock.start_ts
        if commit_ts is None:
            self._wait(key, lock)
        return None

    def pass_writer(self, error: KeyLockedError) -> None:
        """Wait for the transaction that a writer met, or end it if it is dead; then try again."""
        commit_ts, _ = self._settle(error.key, error.lock, 0)
        if commit_ts is None:
            self._wait(error.key, error.lock)

    def check_interrupted(self) -> None:
        if self._is_interrupted():
            raise sql_error(Errno.QUERY_INTERRUPTED)

    def _wait(self, key: bytes, lock: Lock) -> None:
        self.check_interrupted()
        left = self._give_up - self._cluster.clock.monotonic()
        if left <= 0:
            raise sql_error(Errno.LOCK_WAIT_TIMEOUT)
        try:
            self._cluster.transactions.waits.wait(Wait(self._start_ts, lock.start_ts, key), min(left, _PAUSE_SECONDS))
        except DeadlockError as error:
            raise sql_error(Errno.LOCK_DEADLOCK) from error

    def _settle(self, key: bytes, lock: Lock, read_ts: int) -> tuple[int | None, bool]:
        """The commit-ts of an ended transaction (0: rolled back; None: it lives), and whether a living one will
        commit above ``read_ts``."""
        transactions = self._cluster.transactions
        now = self._cluster.tso.next()
        is_expired = physical_ms(lock.start_ts) + lock.ttl_ms < physical_ms(now)
        query = StatusQuery(
            lock.start_ts,
            read_ts,
            now,
            rollback_if_not_exist=is_expired,
            resolving_pessimistic_lock=lock.type is LockType.PESSIMISTIC,
        )
        try:
            status = transactions.check_status(lock.primary, query)
        except (PrimaryMismatchError, TransactionNotFoundError):
            return None, False  # its primary is not locked yet
        commit_ts = status.commit_ts
        if status.lock is not None:
            if not (status.lock.use_async_commit and is_expired):
                return None, read_ts > 0 and status.action is Action.MIN_COMMIT_TS_PUSHED
            found = transactions.check_secondaries(status.lock.secondaries, lock.start_ts)
            if len(found.locks) == len(status.lock.secondaries):
                commit_ts = max([status.lock.min_commit_ts, *(held.min_commit_ts for _, held in found.locks)])
            else:
                commit_ts = found.commit_ts
            transactions.resolve({lock.start_ts: commit_ts}, [lock.primary], b"", b"")
        if lock.type is LockType.PESSIMISTIC:
            transactions.release([key], lock.start_ts, lock.for_update_ts)
        else:
            transactions.resolve({lock.start_ts: commit_ts}, [key], b"", b"")
        return commit_ts, False
