"""One SQL transaction over the store in this process: a snapshot, and writes kept aside until the commit.

    statement ── get, scan ──► buffered writes, then the snapshot
              ── put, delete ─► buffered writes ── commit ──► Transactions (Percolator)

An optimistic transaction meets others when it commits. A pessimistic one locks what a statement has
written when the statement ends, and a statement that met a newer row runs again on newer data.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from tidebox import blocks
from tidebox.cluster import Cluster
from tidebox.mvcc import Lock, Reader, SortedKeys, physical_key
from tidebox.reads import View
from tidebox.sql.lock_conflicts import LocksInWay
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
from tidebox.txn.prewrite import Intent, KeyMutation, PessimisticAction, Prewrite
from tidebox.txn.read import ReadAt, Sight
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.ts import Ts, physical_ms

LOCK_WAIT_SECONDS: Final = 50.0  # innodb_lock_wait_timeout
ENTRY_MAX_BYTES: Final = 6 << 20  # txn-entry-size-limit
TOTAL_MAX_BYTES: Final = 100 << 20  # txn-total-size-limit
TTL_MS: Final = 20_000  # of a lock; an open transaction renews its primary's
_SCAN_KEYS: Final = 1 << 30
_REASONS: Final = {
    ConflictReason.OPTIMISTIC: "Optimistic",
    ConflictReason.PESSIMISTIC_RETRY: "PessimisticRetry",
    ConflictReason.SELF_ROLLED_BACK: "SelfRolledBack",
    ConflictReason.RC_CHECK_TS: "RcCheckTs",
    ConflictReason.LAZY_UNIQUENESS_CHECK: "LazyUniquenessCheck",
    ConflictReason.NOT_LOCKED_KEY_CONFLICT: "NotLockedKeyConflict",
}

Pair = tuple[bytes, bytes]
_R = TypeVar("_R")


def _never() -> bool:
    return False


def _no_check() -> None:
    return None


Presumption = Callable[[bytes], SqlError | None]  # from what is stored to why it may not be; None: it may


class StaleStatementError(Exception):
    """A pessimistic statement met rows newer than those it has read: roll it back and run it again."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A buffered write; ``value`` None deletes. ``is_locked``: a pessimistic transaction locks the key."""

    value: bytes | None
    is_locked: bool


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
        self._is_interrupted = is_interrupted
        self._writes: dict[bytes, _Pending] = {}
        self._order = SortedKeys()
        self._undo: list[tuple[bytes, _Pending | None]] = []
        self._size = 0
        self._bypass: set[int] = set()
        self._locked: dict[bytes, int] = {}  # keys held pessimistically, and at which ts
        self._for_update_ts = int(self.start_ts)
        self._read_ts = int(self.start_ts)
        self._primary: bytes | None = None
        self._presumed: dict[bytes, Presumption] = {}

    # Reading

    @property
    def read_ts(self) -> int:
        """What reads see: the start-ts, but within a pessimistic statement that writes its own ts."""
        return self._read_ts

    @property
    def is_dirty(self) -> bool:
        """Whether there is anything to commit or to let go."""
        return bool(self._writes or self._locked)

    def get(self, key: bytes) -> bytes | None:
        pending = self._writes.get(key)
        if pending is not None:
            return pending.value
        return self._stored(key)

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
        stored = self._stored_backwards(start, end) if reverse else self._stored_range(start, end, limit)
        pairs = self._merged(stored, list(self._order.within(start, end)), reverse=reverse)
        for count, pair in enumerate(pairs):
            if limit is not None and count >= limit:
                return
            yield pair

    # Writing

    def put(self, key: bytes, value: bytes, *, is_locked: bool = True) -> None:
        """``is_locked`` false: of an entry that goes with a locked one, and that nobody else could write."""
        if len(key) + len(value) > ENTRY_MAX_BYTES:
            raise sql_error(Errno.ENTRY_TOO_LARGE, ENTRY_MAX_BYTES, len(key) + len(value))
        self._size += len(key) + len(value)
        if self._size > TOTAL_MAX_BYTES:
            raise sql_error(Errno.TXN_TOO_LARGE, self._size)
        self._write(key, _Pending(value, is_locked))

    def delete(self, key: bytes, *, is_locked: bool = True) -> None:
        self._write(key, _Pending(None, is_locked))

    def presume_absent(self, key: bytes, refusal: Presumption) -> None:
        """Write ``key`` on the belief that it is not stored, without a look: that is taken when a pessimistic
        statement or an optimistic transaction ends, in the order of keys, and ``refusal`` is asked about what is
        found. Only for a key that is not among the buffered writes."""
        self._presumed.setdefault(key, refusal)

    def stored(self, key: bytes) -> bytes | None:
        """What is there without what this transaction has written."""
        return self._stored(key)

    def is_buffered(self, key: bytes) -> bool:
        return key in self._writes

    def _check_presumed(self) -> None:
        for key in sorted(self._presumed):
            found = self._stored(key)
            error = self._presumed[key](found) if found is not None else None
            if error is not None:
                raise error
        self._presumed.clear()

    def _write(self, key: bytes, pending: _Pending) -> None:
        before = self._writes.get(key)
        self._undo.append((key, before))
        if before is None:
            self._order.add(key)
        self._writes[key] = pending

    # Statements

    def savepoint(self) -> int:
        """A mark to roll back to."""
        return len(self._undo)

    def rollback_to(self, mark: int) -> None:
        """Forget what was written since ``savepoint`` gave out ``mark``. Locks stay, as in TiDB."""
        while len(self._undo) > mark:
            key, before = self._undo.pop()
            if before is None:
                del self._writes[key]
                self._order.remove(key)
                self._presumed.pop(key, None)
            else:
                self._writes[key] = before

    def run_statement(self, statement: Callable[[], _R], *, writes: bool = True) -> _R:
        """Run a statement that writes: all of it happens or nothing. In a pessimistic transaction it reads
        the newest rows and locks what it has written, and runs again when others were quicker."""
        mark = self.savepoint()
        current = self.is_pessimistic and writes
        try:
            while True:
                if current:
                    self._for_update_ts = self._read_ts = int(next_ts(self._cluster))
                try:
                    result = statement()
                    if current:
                        self._lock_written(mark)
                        self._check_presumed()
                    return result
                except StaleStatementError:
                    self.rollback_to(mark)
        except BaseException:
            self.rollback_to(mark)
            raise
        finally:
            self._read_ts = int(self.start_ts)

    def _lock_written(self, mark: int) -> None:
        keys = [key for key, _ in self._undo[mark:] if self._writes[key].is_locked]
        self.lock(dict.fromkeys(keys))

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
            in_way = self._in_way(0 if nowait else self.lock_wait_seconds)
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
        mutations = self._mutations()
        try:
            self._check_presumed()
            if not mutations:
                check()
                return None
            with self._cluster.mutex:
                return self._commit(mutations, check)
        except BaseException:
            self._let_go(list(self._writes))
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
        in_way = self._in_way(self.lock_wait_seconds)
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

    def _mutations(self) -> list[KeyMutation]:
        """The buffered writes in key order, and locks on keys that were locked but not written."""
        held = self._locked
        found = []
        for key in self._order.within(b"", b""):
            value = self._writes[key].value
            action = PessimisticAction.EXPECT_LOCK if key in held else PessimisticAction.SKIP_CHECK
            intent = Intent.DELETE if value is None else Intent.PUT
            found.append(KeyMutation(intent, key, value or b"", action=action))
        if found:
            only_locked = [key for key in held if key not in self._writes]
            found += [KeyMutation(Intent.LOCK, key, action=PessimisticAction.EXPECT_LOCK) for key in only_locked]
        return found

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
        self._writes.clear()
        self._presumed.clear()
        self._undo.clear()
        self._locked.clear()
        self._order = SortedKeys()

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

    # What is stored

    def _in_way(self, wait_seconds: float) -> LocksInWay:
        give_up = self._cluster.clock.monotonic() + wait_seconds
        return LocksInWay(self._cluster, int(self.start_ts), give_up, self._is_interrupted)

    def _at(self) -> ReadAt:
        return ReadAt(self._read_ts, frozenset((int(self.start_ts), *self._bypass)))

    def _stored(self, key: bytes) -> bytes | None:
        cluster = self._cluster
        in_way = None
        with cluster.mutex:
            while True:
                cluster.in_flight.observe(self._read_ts)
                lock = cluster.in_flight.lock(key) or cluster.locks.get(key)
                if lock is None or self._at().sight(key, lock) is Sight.PASSES:
                    found = Reader(cluster.engine.live()).get(key, self._read_ts)
                    return found.value if found is not None else None
                in_way = in_way or self._in_way(self.lock_wait_seconds)
                self._pass(in_way, key, lock)

    def _pass(self, in_way: LocksInWay, key: bytes, lock: Lock) -> None:
        passed = in_way.pass_reader(key, lock, self._read_ts)
        if passed is not None:
            self._bypass.add(passed)

    def _view(self, start: bytes, end: bytes) -> View:
        """The snapshot of a range, once no lock is in the way any more."""
        in_way = None
        with self._cluster.mutex:
            while True:
                _, _, view = self._cluster.reads.of_range(lambda: (start, end), self._at())
                if not view.special:
                    return view
                in_way = in_way or self._in_way(self.lock_wait_seconds)
                for key, lock in view.special.items():
                    self._pass(in_way, key, lock)

    def _stored_range(self, start: bytes, end: bytes, limit: int | None) -> Iterator[Pair]:
        if end and start >= end:
            return
        view = self._view(start, end)
        low, high = physical_key(start) if start else b"", physical_key(end) if end else b""
        most = _SCAN_KEYS if limit is None else limit + len(self._writes)
        for part in blocks.visible(view.snapshot, low, high, self._read_ts, most):
            for pair in kvrpcpb_pb2.ScanResponse.FromString(part.data.tobytes()).pairs:
                yield pair.key, pair.value

    def _stored_backwards(self, start: bytes, end: bytes) -> Iterator[Pair]:
        if end and start >= end:
            return
        reader = Reader(self._view(start, end).snapshot)
        at = reader.previous_key(end)
        while at is not None and at >= start:
            found = reader.get(at, self._read_ts)
            if found is not None:
                yield at, found.value
            at = reader.previous_key(at)

    def _merged(self, stored: Iterator[Pair], buffered: list[bytes], *, reverse: bool) -> Iterator[Pair]:
        """Buffered writes hide what is stored."""
        if not buffered:
            yield from stored
            return
        ahead = buffered if not reverse else buffered[::-1]
        at = 0
        for key, value in stored:
            while at < len(ahead) and (ahead[at] > key if reverse else ahead[at] < key):
                yield from self._buffered(ahead[at])
                at += 1
            if at < len(ahead) and ahead[at] == key:
                yield from self._buffered(key)
                at += 1
            else:
                yield key, value
        for key in ahead[at:]:
            yield from self._buffered(key)

    def _buffered(self, key: bytes) -> Iterator[Pair]:
        pending = self._writes.get(key)
        if pending is not None and pending.value is not None:
            yield key, pending.value


class Keeper:
    """Renews the locks of open pessimistic transactions, until they end or the upstream stops."""

    _INTERVAL_SECONDS = 5.0

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._held: dict[tuple[bytes, int], None] = {}
        self._thread: threading.Thread | None = None

    def hold(self, primary: bytes, start_ts: int) -> None:
        with self._changed:
            self._held[primary, start_ts] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sql-keeper", daemon=True)
                self._thread.start()

    def forget(self, primary: bytes, start_ts: int) -> None:
        with self._changed:
            self._held.pop((primary, start_ts), None)
            if not self._held:
                self._changed.notify_all()

    def stop(self) -> None:
        """Renew nothing that is open now any more: it ends by its time to live."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        """Ends when there is nothing to hold any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._held, self._INTERVAL_SECONDS)
                held = list(self._held)
                if not held:
                    self._thread = None
                    return
            for primary, start_ts in held:
                self._prolong(primary, start_ts)

    def _prolong(self, primary: bytes, start_ts: int) -> None:
        with self._cluster.mutex:
            if (primary, start_ts) not in self._held:
                return
            age_ms = max(physical_ms(self._cluster.tso.last) - physical_ms(start_ts), 0)
            try:
                self._cluster.transactions.prolong(primary, start_ts, age_ms + TTL_MS)
            except TransactionError:
                self.forget(primary, start_ts)


_KEEPERS: WeakKeyDictionary[Cluster, Keeper] = WeakKeyDictionary()
_KEEPERS_MUTEX = threading.Lock()


def keeper_of(cluster: Cluster) -> Keeper:
    """The one keeper of a cluster; it ends with it."""
    with _KEEPERS_MUTEX:
        keeper = _KEEPERS.get(cluster)
        if keeper is None:
            keeper = _KEEPERS[cluster] = Keeper(cluster)
            cluster.at_stop.append(keeper.stop)
        return keeper


def next_ts(cluster: Cluster) -> Ts:
    """A timestamp of PD; 9001 while it is away."""
    if cluster.is_pd_away:
        raise sql_error(Errno.PD_SERVER_TIMEOUT, "PD is away and gives out no timestamps")
    return cluster.tso.next()
