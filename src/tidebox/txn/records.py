"""A key as a rule sees it: its lock, and its commit records as far as the rule wants to know them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidebox.mvcc import Lock, Write, WriteType
from tidemill.model.ts import MAX_TS

Record = tuple[int, Write]  # with the commit-ts it stands at


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction has committed on the key."""

    commit_ts: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The transaction has been rolled back on the key."""


@dataclass(frozen=True, slots=True)
class Unended:
    """The key tells no end of the transaction.

    ``overlapped`` is the record of another transaction that stands where a rollback record of
    this one would.
    """

    overlapped: Write | None = None


Outcome = Committed | RolledBack | Unended


class Records:
    """The commit records of one key from newest to oldest; read on demand, each once."""

    def __init__(self, newest_first: Iterable[Record]) -> None:
        self._source = iter(newest_first)
        self._read: list[Record] = []

    def __iter__(self) -> Iterator[Record]:
        at = 0
        while True:
            if at == len(self._read):
                record = next(self._source, None)
                if record is None:
                    return
                self._read.append(record)
            yield self._read[at]
            at += 1

    def newest(self, ts: int = MAX_TS) -> Record | None:
        """The newest record of any type with commit-ts ≤ ``ts``."""
        for record in self:
            if record[0] <= ts:
                return record
        return None

    def newest_data(self, ts: int = MAX_TS) -> Record | None:
        """The newest put or delete with commit-ts ≤ ``ts``."""
        for record in self:
            if record[0] <= ts and record[1].is_data:
                return record
        return None

    def exists(self, ts: int = MAX_TS) -> bool:
        found = self.newest_data(ts)
        return found is not None and found[1].type is WriteType.PUT

    def outcome(self, start_ts: int) -> Outcome:
        """How the transaction that began at ``start_ts`` ended here.

        All records above it must be looked at: a transaction that began later may have committed
        earlier.
        """
        for commit_ts, write in self:
            if write.start_ts == start_ts:
                return RolledBack() if write.type is WriteType.ROLLBACK else Committed(commit_ts)
            if commit_ts == start_ts:
                return RolledBack() if write.has_overlapped_rollback else Unended(write)
            if commit_ts < start_ts:
                break
        return Unended()

    def previous_rollback(self, start_ts: int) -> int | None:
        """Where the record just below ``start_ts`` stands, if it is a rollback that may be forgotten."""
        found = self.newest(start_ts - 1)
        if found is None or found[1].type is not WriteType.ROLLBACK or found[1].is_protected:
            return None
        return found[0]


@dataclass(frozen=True, slots=True)
class KeyState:
    key: bytes
    lock: Lock | None
    records: Records

    def lock_of(self, start_ts: int) -> Lock | None:
        """The lock, if the transaction that began at ``start_ts`` holds it."""
        return self.lock if self.lock is not None and self.lock.start_ts == start_ts else None
