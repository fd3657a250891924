"""Versions of a key: TiKV's commit records and locks, byte for byte, and reading at a ts.

    write     memcomparable key + inverted commit_ts   →  type, start_ts, short value
    default   memcomparable key + inverted start_ts    →  a value longer than 255 bytes
    lock      memcomparable key                        →  who is about to write here

Bulk reads are in ``blocks``; this is one key at a time.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from tidebox.engine import Batch, Engine, Family, Item, Snapshot
from tidemill.errors import CorruptDataError
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import decode_bytes, encode_bytes, split_mvcc_key

SHORT_VALUE_MAX_BYTES = 255

_PROTECTED = b"p"  # the short value of a rollback record that nobody may drop
_CHUNK_KEYS = 1024


class WriteType(IntEnum):
    """The first byte of a commit record."""

    PUT = ord("P")
    DELETE = ord("D")
    LOCK = ord("L")
    ROLLBACK = ord("R")


class LockType(IntEnum):
    """The first byte of a lock."""

    PUT = ord("P")
    DELETE = ord("D")
    LOCK = ord("L")
    PESSIMISTIC = ord("S")


@dataclass(frozen=True, slots=True)
class Write:
    """A commit record. ``short_value`` is None where there is no value, or a long one in ``default``.

    A record may stand where the rollback of another transaction belongs, one that started at this
    very commit-ts; ``has_overlapped_rollback`` then says so.
    """

    type: WriteType
    start_ts: int
    short_value: bytes | None = None
    txn_source: int = 0
    has_overlapped_rollback: bool = False

    @staticmethod
    def rollback(start_ts: int, *, is_protected: bool) -> "Write":
        return Write(WriteType.ROLLBACK, start_ts, _PROTECTED if is_protected else None)

    @property
    def is_data(self) -> bool:
        """Whether readers see it: a put or a delete."""
        return self.type is WriteType.PUT or self.type is WriteType.DELETE

    @property
    def is_protected(self) -> bool:
        """Of a rollback record: whether it must outlive later rollbacks of the key."""
        return self.short_value == _PROTECTED

    def encode(self) -> bytes:
        out = bytearray((self.type,))
        out += encode_varint(self.start_ts)
        if self.short_value is not None:
            out += bytes((ord("v"), len(self.short_value))) + self.short_value
        if self.has_overlapped_rollback:
            out += b"R"
        if self.txn_source:
            out += b"S" + encode_varint(self.txn_source)
        return bytes(out)

    @staticmethod
    def decode(data: bytes) -> "Write":
        try:
            kind = WriteType(data[0])
            start_ts, at = decode_varint(data, 1)
            short, source, overlapped = None, 0, False
            while at < len(data):
                match data[at]:
                    case 0x76:  # v
                        short = data[at + 2 : at + 2 + data[at + 1]]
                        at += 2 + data[at + 1]
                    case 0x53:  # S
                        source, at = decode_varint(data, at + 1)
                    case 0x52:  # R
                        overlapped = True
                        at += 1
                    case 0x46:  # F: a fence for garbage collection
                        at += 9
                    case _:
                        break
        except (IndexError, ValueError) as error:
            raise CorruptDataError(f"commit record {data[:16].hex()} is not readable: {error}") from error
        return Write(kind, start_ts, short, source, overlapped)


@dataclass(frozen=True, slots=True)
class Lock:
    """What a transaction leaves on a key between prewrite and commit."""

    type: LockType
    primary: bytes
    start_ts: int
    ttl_ms: int
    short_value: bytes | None = None
    for_update_ts: int = 0
    txn_size: int = 0
    min_commit_ts: int = 0
    txn_source: int = 0
    use_async_commit: bool = False
    secondaries: tuple[bytes, ...] = ()  # of an asynchronous commit, on its primary key

    @property
    def writes_data(self) -> bool:
        """Whether a commit will change what readers see; only such locks hold the resolved-ts back."""
        return self.type is LockType.PUT or self.type is LockType.DELETE

    @property
    def is_of_pessimistic_transaction(self) -> bool:
        return self.for_update_ts > 0

    def encode(self) -> bytes:
        out = bytearray((self.type,))
        out += _compact(self.primary)
        out += encode_varint(self.start_ts) + encode_varint(self.ttl_ms)
        if self.short_value is not None:
            out += bytes((ord("v"), len(self.short_value))) + self.short_value
        for flag, ts in ((b"f", self.for_update_ts), (b"t", self.txn_size), (b"c", self.min_commit_ts)):
            if ts:
                out += flag + ts.to_bytes(8, "big")
        if self.use_async_commit:
            out += b"a" + encode_varint(len(self.secondaries)) + b"".join(map(_compact, self.secondaries))
        if self.txn_source:
            out += b"s" + encode_varint(self.txn_source)
        return bytes(out)

    @staticmethod
    def decode(data: bytes) -> "Lock":
        fixed = {"f": 0, "t": 0, "c": 0}
        try:
            kind = LockType(data[0])
            primary, at = _read_compact(data, 1)
            start_ts, at = decode_varint(data, at)
            ttl_ms, at = decode_varint(data, at)
            short, source, is_async = None, 0, False
            secondaries = []
            while at < len(data):
                flag = chr(data[at])
                if flag == "v":
                    short = data[at + 2 : at + 2 + data[at + 1]]
                    at += 2 + data[at + 1]
                elif flag in fixed:
                    fixed[flag] = int.from_bytes(data[at + 1 : at + 9], "big")
                    at += 9
                elif flag == "a":
                    is_async = True
                    count, at = decode_varint(data, at + 1)
                    for _ in range(count):
                        secondary, at = _read_compact(data, at)
                        secondaries.append(secondary)
                elif flag == "s":
                    source, at = decode_varint(data, at + 1)
                else:
                    break
        except (IndexError, ValueError) as error:
            raise CorruptDataError(f"lock {data[:16].hex()} is not readable: {error}") from error
        stamps = (fixed["f"], fixed["t"], fixed["c"])
        return Lock(kind, primary, start_ts, ttl_ms, short, *stamps, source, is_async, tuple(secondaries))


@dataclass(frozen=True, slots=True)
class Version:
    """A value as a reader sees it, and when it was committed."""

    value: bytes
    commit_ts: int


class Reader:
    """Reads one key at a time, from a snapshot. Locks are the caller's to check."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def get(self, key: bytes, ts: int = MAX_TS) -> Version | None:
        """The newest value of ``key`` with commit-ts ≤ ``ts``; None if there is none or it is deleted."""
        for commit_ts, write in self.writes(key, ts):
            if write.type is WriteType.PUT:
                return Version(self.value(key, write), commit_ts)
            if write.type is WriteType.DELETE:
                return None
        return None

    def writes(self, key: bytes, ts: int = MAX_TS) -> "WriteIterator":
        """Commit records of ``key`` with commit-ts ≤ ``ts``, newest first."""
        return WriteIterator(self._snapshot, key, ts)

    def value(self, key: bytes, write: Write) -> bytes:
        if write.short_value is not None:
            return write.short_value
        value = self._snapshot.get(Family.DEFAULT, version_key(key, write.start_ts))
        if value is None:
            raise CorruptDataError(f"key {key.hex()} has a commit record at start-ts {write.start_ts} but no value")
        return value

    def previous_key(self, key: bytes) -> bytes | None:
        """The greatest key below ``key`` that has a commit record; an empty ``key`` means the last one."""
        found = self._snapshot.last_before(Family.WRITE, physical_key(key) if key else b"")
        return split_mvcc_key(found[0])[0] if found else None

    def next_key(self, key: bytes) -> bytes | None:
        """The smallest key at or above ``key`` that has a commit record."""
        for stored, _ in self._snapshot.items(Family.WRITE, physical_key(key), b""):
            return split_mvcc_key(stored)[0]
        return None


class WriteIterator:
    """Begins to read when the first record is asked for."""

    def __init__(self, snapshot: Snapshot, key: bytes, ts: int) -> None:
        self._snapshot, self._key, self._ts = snapshot, key, ts
        self._items: Iterator[Item] | None = None

    def __iter__(self) -> "WriteIterator":
        return self

    def __next__(self) -> tuple[int, Write]:
        if self._items is None:
            bounds = (version_key(self._key, self._ts), physical_key(self._key) + b"\xff" * 9)
            self._items = self._snapshot.items(Family.WRITE, *bounds)
        stored, record = next(self._items)
        return int.from_bytes(stored[-8:], "big") ^ MAX_TS, Write.decode(record)


class LockTable:
    """Every lock of the cluster, in memory beside the ``lock`` family. The caller serialises access."""

    def __init__(self, engine: Engine) -> None:
        self._locks = {decode_bytes(key)[0]: Lock.decode(lock) for key, lock in engine.items(Family.LOCK)}
        self._order = SortedKeys(self._locks)  # the family's order is the keys' own

    def get(self, key: bytes) -> Lock | None:
        return self._locks.get(key)

    def put(self, batch: Batch, key: bytes, lock: Lock) -> None:
        if key not in self._locks:
            self._order.add(key)
        self._locks[key] = lock
        batch.put(Family.LOCK, physical_key(key), lock.encode())

    def remove(self, batch: Batch, key: bytes) -> None:
        """Take the lock away, if there is one."""
        if self._locks.pop(key, None) is not None:
            self._order.remove(key)
        batch.delete(Family.LOCK, physical_key(key))

    def within(self, start: bytes, end: bytes) -> list[tuple[bytes, Lock]]:
        """Locks on keys of ``[start, end)`` in key order; an empty ``end`` means no end."""
        return [(key, self._locks[key]) for key in self._order.within(start, end)]

    def __len__(self) -> int:
        return len(self._locks)


class SortedKeys:
    """Distinct keys in order: a change costs about the same however many there are."""

    def __init__(self, ascending: Iterable[bytes] = ()) -> None:
        keys = list(ascending)
        self._chunks = [keys[at : at + _CHUNK_KEYS] for at in range(0, len(keys), _CHUNK_KEYS)]
        self._last = [chunk[-1] for chunk in self._chunks]

    def add(self, key: bytes) -> None:
        """A key that is not there yet."""
        if not self._chunks:
            self._chunks.append([])
            self._last.append(key)
        at = min(bisect_left(self._last, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > 2 * _CHUNK_KEYS:
            self._chunks[at : at + 1] = [chunk[:_CHUNK_KEYS], chunk[_CHUNK_KEYS:]]
            self._last.insert(at, chunk[_CHUNK_KEYS - 1])
            at += 1
        self._last[at] = self._chunks[at][-1]

    def remove(self, key: bytes) -> None:
        """A key that is there."""
        at = bisect_left(self._last, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._last[at] = chunk[-1]
        else:
            del self._chunks[at], self._last[at]

    def within(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys of ``[start, end)``; an empty ``end`` means no end."""
        first = bisect_left(self._last, start)
        for at in range(first, len(self._chunks)):
            chunk = self._chunks[at]
            low = bisect_left(chunk, start) if at == first else 0
            if end and end <= self._last[at]:
                yield from chunk[low : bisect_left(chunk, end)]
                return
            yield from chunk[low:] if low else chunk


@lru_cache(1 << 16)  # a transaction needs each of its keys half a dozen times
def physical_key(raw: bytes) -> bytes:
    """The memcomparable form of a plain key, by which regions and the engine order it."""
    return encode_bytes(raw)


def version_key(raw: bytes, ts: int) -> bytes:
    """Where a version of a plain key is stored: newest first."""
    return physical_key(raw) + (ts ^ MAX_TS).to_bytes(8, "big")


@lru_cache(1 << 12)
def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact(data: bytes) -> bytes:
    """Bytes behind their length, which is written as a signed number: doubled."""
    return encode_varint(len(data) << 1) + data


def _read_compact(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = decode_varint(data, at)
    end = at + (length >> 1)
    if end > len(data):
        raise IndexError(f"{length >> 1} bytes wanted, {len(data) - at} left")
    return data[at:end], end


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
