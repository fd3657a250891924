"""What a rule wants done to a key, and which row of the change stream that gives."""

from dataclasses import dataclass

from tidebox.mvcc import Lock, Write


@dataclass(frozen=True, slots=True)
class PutLock:
    """A new lock; ``value`` is what it will write, short or long. PREWRITE, if it writes data."""

    key: bytes
    lock: Lock
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Renew:
    """The same lock with another time to live or least commit-ts. No row."""

    key: bytes
    lock: Lock


@dataclass(frozen=True, slots=True)
class Release:
    """The lock goes without a trace. No row: only pessimistic locks go so."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """The lock becomes a commit record. COMMIT, if it writes data."""

    key: bytes
    lock: Lock
    commit_ts: int


@dataclass(frozen=True, slots=True)
class CommitAtOnce:
    """A commit record without a lock before it: one-phase commit. COMMITTED, if it writes data."""

    key: bytes
    lock: Lock  # as it would have been
    value: bytes
    commit_ts: int
    held: bool  # whether a pessimistic lock is to be removed


@dataclass(frozen=True, slots=True)
class RollBack:
    """The lock goes, if there is one, and ``record`` takes the place at start-ts. ROLLBACK.

    ``record`` is None where another transaction's record stands there and needs no mark.
    ``forget`` is the commit-ts of an earlier rollback record that this one makes superfluous.
    """

    key: bytes
    start_ts: int
    lock: Lock | None
    record: Write | None
    forget: int | None = None


Step = PutLock | Renew | Release | Commit | CommitAtOnce | RollBack
