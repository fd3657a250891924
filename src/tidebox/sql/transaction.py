"""One SQL transaction over the store in this process: a snapshot, and writes kept aside until the commit.

    statement ── get, scan ──► buffered writes, then the snapshot
              ── put, delete ─► buffered writes ── commit ──► Transactions (Percolator)

An optimistic transaction meets others when it commits. A pessimistic one locks what a statement has
written when the statement ends, and a statement that met a newer row runs again on newer data.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from tidebox.cluster import Cluster
from tidebox.mvcc import physical_key
from tidebox.sql.buffer import Buffer, Pair
from tidebox.sql.keeper import TTL_MS, keeper_of
from tidebox.sql.stored import Stored
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.txn.errors import (
    ConflictReason,
    DeadlockError,
    KeyLockedError,
    PrewriteRefusedError,
    TransactionError,
    WriteConflictError,
)
from tidebox.txn.pessimistic import LockRequest
from tidebox.txn.prewrite import KeyMutation, Prewrite
from tidemill.model.ts import Ts, physical_ms

LOCK_WAIT_SECONDS: Final = 50.0  # innodb_lock_wait_timeout
_REASONS: Final = {
    ConflictReason.OPTIMISTIC: "Optimistic",
    ConflictReason.PESSIMISTIC_RETRY: "PessimisticRetry",
    ConflictReason.SELF_ROLLED_BACK: "SelfRolledBack",
    ConflictReason.RC_CHECK_TS: "RcCheckTs",
    ConflictReason.LAZY_UNIQUENESS_CHECK: "LazyUniquenessCheck",
    ConflictReason.NOT_LOCKED_KEY_CONFLICT: "NotLockedKeyConflict",
}

_R = TypeVar("_R")


def _never() -> bool:
    return False


def _no_check() -> None:
    return None


Presumption = Callable[[bytes], SqlError | None]  # from what is stored to why it may not be; None: it may


class StaleStatementError(Exception):
    """A pessimistic statement met rows newer than those it has read: roll it back and run it again."""


class Transaction:
    """Used by one thread at a time. Ends with ``commit`` or ``rollback``; after that nothing may be asked of it."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        pessimistic: bool = False,
        start_ts: int | None = None,
        txn_source: int = 0,
        lock_wait_seconds: float = LOCK_WAIT_SECONDS,
        is_interrupted: Callable[[], bool] = _never,
    ) -> None:
        self.start_ts = next_ts(cluster) if start_ts is None else Ts(start_ts)
        self.is_pessimistic = pessimistic
        self.lock_wait_seconds = lock_wait_seconds
        self._cluster = cluster
        self._txn_source = txn_source
        self._buffer = Buffer()
        self._stored = Stored(cluster, int(self.start_ts), lock_wait_seconds, is_interrupted)
        self._locked: dict[bytes, int] = {}  # keys held pessimistically, and at which ts
        self._for_update_ts = int(self.start_ts)
        self._primary: bytes | None = None
        self._presumed: dict[bytes, Presumption] = {}

    # Reading

    @property
    def read_ts(self) -> int:
        """What reads see: the start-ts, but within a pessimistic statement that writes its own ts."""
        return self._stored.read_ts

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to commit or to let go."""
        return bool(self._buffer.writes or self._locked)

    def get(self, key: bytes) -> bytes | None:
        pending = self._buffer.writes.get(key)
        if pending is not None:
            return pending.value
        return self._stored.get(key)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are there."""
        found = {}
        for key in keys:
            value = self.get(key)
            if value is not None:
                found[key] = value
        return found

    def scan(self, start: bytes, end: bytes, limit: int | None = None, *, reverse: bool = False) -> Iterator[Pair]:
        """Pairs of ``[start, end)`` in key order, from the last with ``reverse``; an empty ``end`` means no end.

        What is written while it runs may be seen or not: a statement that changes what it reads collects first.
        """
        if reverse:
            stored = self._stored.backwards(start, end)
        elif limit is None:
            stored = self._stored.range(start, end)
        else:
            stored = self._stored.range(start, end, limit + len(self._buffer.writes))
        pairs = self._buffer.over(stored, start, end, reverse=reverse)
        for count, pair in enumerate(pairs):
            if limit is not None and count >= limit:
                return
            yield pair

    # Writing

    def put(self, key: bytes, value: bytes, *, is_locked: bool = True) -> None:
        """``is_locked`` false: of an entry that goes with a locked one, and that nobody else could write."""
        self._buffer.put(key, value, is_locked=is_locked)

    def delete(self, key: bytes, *, is_locked: bool = True) -> None:
        self._buffer.delete(key, is_locked=is_locked)

    def presume_absent(self, key: bytes, refusal: Presumption) -> None:
        """Write ``key`` on the belief that it is not stored, without a look: that is taken when a pessimistic
        statement or an optimistic transaction ends, in the order of keys, and ``refusal`` is asked about what is
        found. Only for a key that is not among the buffered writes."""
        self._presumed.setdefault(key, refusal)

    def stored(self, key: bytes) -> bytes | None:
        """What is there without what this transaction has written."""
        return self._stored.get(key)

    def is_buffered(self, key: bytes) -> bool:
        return key in self._buffer.writes

    def _check_presumed(self) -> None:
        for key in sorted(self._presumed):
            found = self._stored.get(key)
            error = self._presumed[key](found) if found is not None else None
            if error is not None:
                raise error
        self._presumed.clear()

    # Statements

    def savepoint(self) -> int:
        """A mark to roll back to."""
        return self._buffer.savepoint()

    def rollback_to(self, mark: int) -> None:
        """Forget what was written since ``savepoint`` gave out ``mark``. Locks stay, as in TiDB."""
        for key in self._buffer.rollback_to(mark):
            self._presumed.pop(key, None)

    def run_statement(self, statement: Callable[[], _R], *, writes: bool = True) -> _R:
        """Run a statement that writes: all of it happens or nothing. In a pessimistic transaction it reads
        the newest rows and locks what it has written, and runs again when others were quicker."""
        mark = self.savepoint()
        current = self.is_pessimistic and writes
        try:
            while True:
                if current:
                    self._for_update_ts = self._stored.read_ts = int(next_ts(self._cluster))
                try:
                    result = statement()
                    if current:
                        self.lock(dict.fromkeys(self._buffer.to_lock_since(mark)))
                        self._check_presumed()
                    return result
                except StaleStatementError:
                    self.rollback_to(mark)
        except BaseException:
            self.rollback_to(mark)
            raise
        finally:
            self._stored.read_ts = int(self.start_ts)

    def lock(self, keys: Iterable[bytes], *, nowait: bool = False) -> None:
        """Keep other writers off ``keys`` until the end. ``StaleStatementError`` if one has just been written."""
        wanted = [key for key in keys if key not in self._locked]
        if not wanted:
            return
        if self._primary is None:
            self._primary = wanted[0]
        now = physical_ms(self._cluster.tso.last)
        ttl_ms = max(now - physical_ms(self.start_ts), 0) + TTL_MS
        request = LockRequest(int(self.start_ts), self._primary, ttl_ms, self._for_update_ts)
        with self._cluster.mutex:
            in_way = self._stored.in_way(0 if nowait else self.lock_wait_seconds)
            while True:
                try:
                    self._cluster.transactions.lock_keys(request, dict.fromkeys(wanted, False))
                    break
                except KeyLockedError as error:
                    if nowait:
                        raise sql_error(Errno.LOCK_NOWAIT) from error
                    in_way.pass_writer(error)
                except WriteConflictError as error:
                    raise StaleStatementError from error
                except DeadlockError as error:
                    raise sql_error(Errno.LOCK_DEADLOCK) from error
                except TransactionError as error:
                    raise sql_error(Errno.TXN_RETRYABLE, error) from error
        self._locked.update(dict.fromkeys(wanted, self._for_update_ts))
        keeper_of(self._cluster).hold(self._primary, int(self.start_ts))

    # The end

    def commit(self, check: Callable[[], object] = _no_check) -> Ts | None:
        """Make the writes visible together; the commit-ts, or None if there was nothing to write.

        ``check`` is called when no other write can come between any more, and raises if it may not happen.
        """
        mutations = self._buffer.mutations(self._locked)
        try:
            self._check_presumed()
            if not mutations:
                check()
                return None
            with self._cluster.mutex:
                return self._commit(mutations, check)
        except BaseException:
            self._let_go(list(self._buffer.writes))
            raise
        finally:
            self._finish()

    def rollback(self) -> None:
        self._let_go([])
        self._finish()

    def _commit(self, mutations: Sequence[KeyMutation], check: Callable[[], object]) -> Ts:
        """Under the mutex, so nobody sees a transaction half done; waiting for others lets go of it."""
        transactions = self._cluster.transactions
        keys = [m.key for m in mutations]
        primary = self._primary if self._primary is not None else keys[0]
        one_phase = len({self._cluster.regions.of_key(physical_key(key)).id for key in keys}) == 1
        txn = Prewrite(
            int(self.start_ts),
            primary,
            max(physical_ms(self._cluster.tso.last) - physical_ms(self.start_ts), 0) + TTL_MS,
            for_update_ts=self._for_update_ts if self._locked else 0,
            txn_size=len(mutations),
            min_commit_ts=int(next_ts(self._cluster)),  # above all that has begun, read or not
            txn_source=self._txn_source,
            one_phase=one_phase,
        )
        in_way = self._stored.in_way(self.lock_wait_seconds)
        while True:
            try:
                done = transactions.prewrite_keys(txn, mutations, check)
                break
            except PrewriteRefusedError as refused:
                reason = refused.reasons[0]
                if not isinstance(reason, KeyLockedError):
                    raise self._refusal(reason) from refused
                in_way.pass_writer(reason)
        if done.one_phase_commit_ts:
            return Ts(done.one_phase_commit_ts)
        commit_ts = self._cluster.tso.next()
        transactions.commit(keys, int(self.start_ts), int(commit_ts))
        return commit_ts

    def _let_go(self, prewritten: Sequence[bytes]) -> None:
        """Take our locks away."""
        with self._cluster.mutex:
            if self._locked:
                for_update_ts = max(self._locked.values())
                self._cluster.transactions.release(list(self._locked), int(self.start_ts), for_update_ts)
            locked = [key for key in prewritten if self._is_ours(key)]
            if locked:
                self._cluster.transactions.rollback(locked, int(self.start_ts))

    def _is_ours(self, key: bytes) -> bool:
        lock = self._cluster.locks.get(key)
        return lock is not None and lock.start_ts == self.start_ts

    def _finish(self) -> None:
        if self._locked and self._primary is not None:
            keeper_of(self._cluster).forget(self._primary, int(self.start_ts))
        self._buffer.clear()
        self._presumed.clear()
        self._locked.clear()

    def _refusal(self, reason: TransactionError) -> SqlError:
        if isinstance(reason, WriteConflictError):
            return sql_error(
                Errno.WRITE_CONFLICT,
                reason.start_ts,
                reason.conflict_start_ts,
                reason.conflict_commit_ts,
                reason.key.hex(),
                ", primary=",
                reason.primary.hex(),
                "",
                _REASONS[reason.reason],
            )
        return sql_error(Errno.TXN_RETRYABLE, reason)


def next_ts(cluster: Cluster) -> Ts:
    """A timestamp of PD; 9001 while it is away."""
    if cluster.is_pd_away:
        raise sql_error(Errno.PD_SERVER_TIMEOUT, "PD is away and gives out no timestamps")
    return cluster.tso.next()
