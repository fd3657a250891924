"""Reading at a ts: the data of one moment, with the locks that were there.

What a read may not see it must at least notice: a lock of a transaction that may yet commit at or
below its ts, in the table or still on its way. And once it has looked, no commit-ts may be settled
at or below its ts: the greatest ts read is noted before the data is taken, both under the mutex.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from tidebox.engine import Engine, Family, Snapshot
from tidebox.inflight import InFlight
from tidebox.mvcc import Lock, LockTable, LockType, Reader, Version, version_key
from tidebox.txn.errors import ConflictReason, WriteConflictError
from tidebox.txn.read import Isolation, ReadAt, Sight

Check = Callable[[], object]  # raises if the request may not be served


def _no_check() -> None:
    return None


@dataclass(frozen=True, slots=True)
class View:
    """The data of one moment as one reader sees them. ``special`` are the keys whose lock it cannot just pass."""

    at: ReadAt
    snapshot: Snapshot
    special: dict[bytes, Lock]

    def get(self, key: bytes) -> Version | None:
        """Raises a ``TransactionError`` where a lock stops the reader."""
        lock = self.special.get(key)
        if lock is not None:
            return self.read_through(key, lock)
        reader = Reader(self.snapshot)
        if self.at.isolation is Isolation.READ_COMMITTED_CHECKED:
            self._check_newest(reader, key)
        return reader.get(key, self.at.version)

    def read_through(self, key: bytes, lock: Lock) -> Version | None:
        """The value in a lock, if the reader knows that it is committed."""
        if self.at.sight(key, lock) is not Sight.READS_IT:
            raise self.at.refusal(key, lock)
        if lock.type is LockType.DELETE:
            return None
        value = lock.short_value
        if value is None:
            value = self.snapshot.get(Family.DEFAULT, version_key(key, lock.start_ts))
        if value is None:  # still on its way, so it cannot be committed
            raise self.at.refusal(key, lock)
        return Version(value, 0)

    def _check_newest(self, reader: Reader, key: bytes) -> None:
        for commit_ts, write in reader.writes(key):
            if commit_ts <= self.at.version:
                return
            if write.is_data:
                reason = ConflictReason.RC_CHECK_TS
                raise WriteConflictError(key, self.at.version, write.start_ts, commit_ts, reason)


class Reads:
    def __init__(self, engine: Engine, mutex: threading.RLock, locks: LockTable, in_flight: InFlight) -> None:
        self._engine = engine
        self._mutex = mutex
        self._locks = locks
        self._in_flight = in_flight

    def get(self, key: bytes, at: ReadAt) -> Version | None:
        return self.of_keys([key], at).get(key)

    def of_keys(self, keys: Sequence[bytes], at: ReadAt, check: Check = _no_check) -> View:
        with self._mutex:
            check()
            self._in_flight.observe(at.version)
            special: dict[bytes, Lock] = {}
            for key in keys:
                for lock in (self._locks.get(key), self._in_flight.lock(key)):
                    if lock is not None and at.sight(key, lock) is not Sight.PASSES:
                        special[key] = lock
            return View(at, self._engine.snapshot(), special)

    def of_range(self, bounds: Callable[[], tuple[bytes, bytes]], at: ReadAt) -> tuple[bytes, bytes, View]:
        """``bounds`` gives the range of plain keys, or raises if it may not be read; an empty end means no end."""
        with self._mutex:
            start, end = bounds()
            self._in_flight.observe(at.version)
            coming = ((k, lock) for k, lock in self._in_flight.locks() if start <= k and (not end or k < end))
            locks = chain(self._locks.within(start, end), coming)
            special = {key: lock for key, lock in locks if at.sight(key, lock) is not Sight.PASSES}
            return start, end, View(at, self._engine.snapshot(), special)
