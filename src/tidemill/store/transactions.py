"""Writing in two phases: locks first, then commit records; every step tells the change stream.

    prewrite   lock on each key, long values in ``default``       → PREWRITE rows
    commit     lock becomes a commit record at commit-ts          → COMMIT rows
    rollback   lock goes, a rollback record stays at start-ts     → ROLLBACK rows

Each step is one atomic write, done under the cluster's mutex. A step that was done before is
done again without harm: that is how a restarted client or replay goes on.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.errors import UpstreamError, UsageError
from tidemill.model.change import Op
from tidemill.model.ts import MAX_TS
from tidemill.store.capture import Capture, LiveRow, commit_row, prewrite_row, rollback_row
from tidemill.store.engine import Batch, Engine, Family
from tidemill.store.mvcc import (
    SHORT_VALUE_MAX_BYTES,
    Lock,
    LockTable,
    LockType,
    Reader,
    Write,
    WriteType,
    physical_key,
    version_key,
)
from tidemill.store.regions import RegionMap

DEFAULT_TTL_MS = 3000


@dataclass(frozen=True, slots=True)
class Mutation:
    op: Op
    key: bytes
    value: bytes = b""


class KeyLockedError(UpstreamError):
    """Another transaction is about to write here."""

    code = "key-locked"
    retryable = True

    def __init__(self, key: bytes, lock: Lock) -> None:
        self.key, self.lock = key, lock
        super().__init__(f"key {key.hex()} is locked by the transaction that started at {lock.start_ts}")


class WriteConflictError(UpstreamError):
    """Another transaction has committed here since this one began."""

    code = "write-conflict"

    def __init__(self, key: bytes, start_ts: int, conflict_start_ts: int, conflict_commit_ts: int) -> None:
        self.key, self.start_ts = key, start_ts
        self.conflict_start_ts, self.conflict_commit_ts = conflict_start_ts, conflict_commit_ts
        super().__init__(
            f"key {key.hex()} was written at {conflict_commit_ts}, after the transaction began at {start_ts}. "
            "Begin a new transaction."
        )


class LockNotFoundError(UpstreamError):
    """The transaction holds no lock on the key: it was rolled back, or never prewritten."""

    code = "lock-not-found"

    def __init__(self, key: bytes, start_ts: int) -> None:
        self.key, self.start_ts = key, start_ts
        super().__init__(f"the transaction that started at {start_ts} holds no lock on key {key.hex()}")


class Transactions:
    """The caller holds the cluster's mutex around every call."""

    def __init__(self, engine: Engine, regions: RegionMap, locks: LockTable, capture: Capture) -> None:
        self._engine = engine
        self._regions = regions
        self._locks = locks
        self._capture = capture

    def prewrite(
        self,
        mutations: Sequence[Mutation],
        start_ts: int,
        *,
        primary: bytes | None = None,
        for_update_ts: int = 0,
        ttl_ms: int = DEFAULT_TTL_MS,
        txn_source: int = 0,
        is_free_of_conflict: bool = False,
    ) -> None:
        """Lock every key, or none and raise.

        With ``for_update_ts`` the keys count as checked when they were locked. A caller who knows
        that no other transaction is in the way, and that this one has not ended, may say so.
        """
        primary = mutations[0].key if primary is None else primary
        reader = Reader(self._engine.snapshot())
        batch = self._engine.batch()
        rows: dict[int, list[LiveRow]] = defaultdict(list)
        if is_free_of_conflict:
            wanted = [m for m in mutations if self._locks.get(m.key) is None]
        else:
            wanted = [m for m in mutations if not self._is_prewritten(reader, m.key, start_ts, for_update_ts)]
        for mutation in wanted:
            kind = LockType.PUT if mutation.op is Op.PUT else LockType.DELETE
            is_short = kind is LockType.PUT and len(mutation.value) <= SHORT_VALUE_MAX_BYTES
            lock = Lock(
                kind,
                primary,
                start_ts,
                ttl_ms,
                short_value=mutation.value if is_short else None,
                for_update_ts=for_update_ts,
                txn_size=len(mutations),
                txn_source=txn_source,
            )
            region = self._regions.of_key(physical_key(mutation.key))
            if self._capture.is_observed(region.id):
                row = prewrite_row(reader, self._engine.get, mutation.key, lock, mutation.value)
                rows[region.id].append(row)
            if kind is LockType.PUT and not is_short:
                batch.put(Family.DEFAULT, version_key(mutation.key, start_ts), mutation.value)
            self._locks.put(batch, mutation.key, lock)
        self._apply(batch, rows)

    def commit(self, keys: Iterable[bytes], start_ts: int, commit_ts: int, *, batch: Batch | None = None) -> None:
        """Make the transaction visible on ``keys``. ``batch`` may hold writes that must happen with it."""
        if commit_ts <= start_ts:
            raise UsageError(f"cannot commit at {commit_ts} what started at {start_ts}: commit-ts must be greater")
        held = [(key, lock) for key in keys if (lock := self._held(key, start_ts)) is not None]
        batch = batch or self._engine.batch()
        rows: dict[int, list[LiveRow]] = defaultdict(list)
        for key, lock in held:
            region = self._regions.of_key(physical_key(key))
            if commit_ts <= self._capture.promised(region.id):
                raise UsageError(
                    f"cannot commit at {commit_ts}: region {region.id} has promised up to "
                    f"{self._capture.promised(region.id)} to its subscribers. Take the commit-ts after the prewrite."
                )
            if lock.writes_data and self._capture.is_observed(region.id):
                rows[region.id].append(commit_row(key, lock, commit_ts))
        for key, lock in held:
            if lock.type is not LockType.PESSIMISTIC:
                write = Write(WriteType(lock.type), start_ts, lock.short_value, lock.txn_source)
                batch.put(Family.WRITE, version_key(key, commit_ts), write.encode())
            self._locks.remove(batch, key)
        self._apply(batch, rows)

    def rollback(self, keys: Iterable[bytes], start_ts: int) -> None:
        """Undo a prewrite. A rollback record keeps a late prewrite of the same transaction out."""
        reader = Reader(self._engine.snapshot())
        batch = self._engine.batch()
        rows: dict[int, list[LiveRow]] = defaultdict(list)
        for key in keys:
            lock = self._locks.get(key)
            if lock is None or lock.start_ts != start_ts:
                done = _outcome(reader, key, start_ts)
                if done is not None and done[1].type is not WriteType.ROLLBACK:
                    raise UpstreamError(f"cannot roll back key {key.hex()}: it was committed at {done[0]}")
            else:
                if lock.type is LockType.PUT and lock.short_value is None:
                    batch.delete(Family.DEFAULT, version_key(key, start_ts))
                self._locks.remove(batch, key)
            batch.put(Family.WRITE, version_key(key, start_ts), Write(WriteType.ROLLBACK, start_ts).encode())
            rows[self._regions.of_key(physical_key(key)).id].append(rollback_row(key, start_ts))
        self._apply(batch, rows)

    def _apply(self, batch: Batch, rows: dict[int, list[LiveRow]]) -> None:
        self._engine.write(batch)
        for region_id, changed in rows.items():
            self._capture.on_rows(region_id, changed)

    def _is_prewritten(self, reader: Reader, key: bytes, start_ts: int, for_update_ts: int) -> bool:
        """Whether the key is locked or committed by this transaction already; raises if it cannot be locked."""
        lock = self._locks.get(key)
        if lock is not None:
            if lock.start_ts != start_ts:
                raise KeyLockedError(key, lock)
            return lock.type is not LockType.PESSIMISTIC
        if for_update_ts:
            done = _outcome(reader, key, start_ts)
            if done is not None and done[1].type is WriteType.ROLLBACK:
                raise WriteConflictError(key, start_ts, start_ts, start_ts)
            return done is not None
        for commit_ts, write in reader.writes(key):
            if write.start_ts == start_ts and write.type is not WriteType.ROLLBACK:
                return True
            if commit_ts >= start_ts:
                raise WriteConflictError(key, start_ts, write.start_ts, commit_ts)
            break
        return False

    def _held(self, key: bytes, start_ts: int) -> Lock | None:
        """The transaction's lock on the key; None if it has been committed there before."""
        lock = self._locks.get(key)
        if lock is not None and lock.start_ts == start_ts:
            return lock
        done = _outcome(Reader(self._engine.snapshot()), key, start_ts)
        if done is None or done[1].type is WriteType.ROLLBACK:
            raise LockNotFoundError(key, start_ts)
        return None


def _outcome(reader: Reader, key: bytes, start_ts: int) -> tuple[int, Write] | None:
    """How the transaction ended on this key: its commit or rollback record, with the ts it stands at."""
    for commit_ts, write in reader.writes(key, MAX_TS):
        if write.start_ts == start_ts:
            return commit_ts, write
        if commit_ts < start_ts:
            break
    return None


def blocking_lock(lock: Lock, key: bytes, version: int, bypass: Iterable[int] = ()) -> Lock | None:
    """The lock, if a reader at ``version`` must wait for it."""
    if lock.start_ts > version or not lock.writes_data or lock.min_commit_ts > version or lock.start_ts in bypass:
        return None
    if version == MAX_TS and lock.primary == key:
        return None  # a point read of the latest may ignore what is not committed yet
    return lock
