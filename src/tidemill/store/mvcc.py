"""Versions of a key: TiKV's commit records and locks, byte for byte, and reading at a ts.

    write     memcomparable key + inverted commit_ts   →  type, start_ts, short value
    default   memcomparable key + inverted start_ts    →  a value longer than 255 bytes
    lock      memcomparable key                        →  who is about to write here

Bulk reads are in ``blocks``; this is one key at a time.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from tidemill.errors import CorruptDataError
from tidemill.model.ts import MAX_TS
from tidemill.store.engine import Batch, Engine, Family, Snapshot
from tidemill.upstream.keys import decode_bytes, encode_bytes, split_mvcc_key

SHORT_VALUE_MAX_BYTES = 255


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
    """A commit record. ``short_value`` is None where there is no value, or a long one in ``default``."""

    type: WriteType
    start_ts: int
    short_value: bytes | None = None
    txn_source: int = 0

    def encode(self) -> bytes:
        out = bytearray((self.type,))
        out += encode_varint(self.start_ts)
        if self.short_value is not None:
            out += bytes((ord("v"), len(self.short_value))) + self.short_value
        if self.txn_source:
            out += b"S" + encode_varint(self.txn_source)
        return bytes(out)

    @staticmethod
    def decode(data: bytes) -> "Write":
        try:
            kind = WriteType(data[0])
            start_ts, at = decode_varint(data, 1)
            short, source = None, 0
            while at < len(data):
                match data[at]:
                    case 0x76:  # v
                        short = data[at + 2 : at + 2 + data[at + 1]]
                        at += 2 + data[at + 1]
                    case 0x53:  # S
                        source, at = decode_varint(data, at + 1)
                    case 0x52:  # R: another transaction's rollback at the same ts
                        at += 1
                    case 0x46:  # F: a fence for garbage collection
                        at += 9
                    case _:
                        break
        except (IndexError, ValueError) as error:
            raise CorruptDataError(f"commit record {data[:16].hex()} is not readable: {error}") from error
        return Write(kind, start_ts, short, source)


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

    @property
    def writes_data(self) -> bool:
        """Whether a commit will change what readers see; only such locks hold the resolved-ts back."""
        return self.type in (LockType.PUT, LockType.DELETE)

    def encode(self) -> bytes:
        out = bytearray((self.type,))
        out += encode_varint(len(self.primary) << 1) + self.primary  # zigzag, as TiKV writes lengths
        out += encode_varint(self.start_ts) + encode_varint(self.ttl_ms)
        if self.short_value is not None:
            out += bytes((ord("v"), len(self.short_value))) + self.short_value
        for flag, ts in ((b"f", self.for_update_ts), (b"t", self.txn_size), (b"c", self.min_commit_ts)):
            if ts:
                out += flag + ts.to_bytes(8, "big")
        if self.txn_source:
            out += b"s" + encode_varint(self.txn_source)
        return bytes(out)

    @staticmethod
    def decode(data: bytes) -> "Lock":
        fixed = {"f": 0, "t": 0, "c": 0}
        try:
            kind = LockType(data[0])
            length, at = decode_varint(data, 1)
            primary = data[at : at + (length >> 1)]
            start_ts, at = decode_varint(data, at + (length >> 1))
            ttl_ms, at = decode_varint(data, at)
            short, source = None, 0
            while at < len(data):
                flag = chr(data[at])
                if flag == "v":
                    short = data[at + 2 : at + 2 + data[at + 1]]
                    at += 2 + data[at + 1]
                elif flag in fixed:
                    fixed[flag] = int.from_bytes(data[at + 1 : at + 9], "big")
                    at += 9
                elif flag == "s":
                    source, at = decode_varint(data, at + 1)
                else:
                    break
        except (IndexError, ValueError) as error:
            raise CorruptDataError(f"lock {data[:16].hex()} is not readable: {error}") from error
        return Lock(kind, primary, start_ts, ttl_ms, short, fixed["f"], fixed["t"], fixed["c"], source)


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
    def __init__(self, snapshot: Snapshot, key: bytes, ts: int) -> None:
        self._items = snapshot.items(Family.WRITE, version_key(key, ts), physical_key(key) + b"\xff" * 9)

    def __iter__(self) -> "WriteIterator":
        return self

    def __next__(self) -> tuple[int, Write]:
        stored, record = next(self._items)
        return int.from_bytes(stored[-8:], "big") ^ MAX_TS, Write.decode(record)


class LockTable:
    """Every lock of the cluster, in memory beside the ``lock`` family. The caller serialises access."""

    def __init__(self, engine: Engine) -> None:
        self._locks = {decode_bytes(key)[0]: Lock.decode(lock) for key, lock in engine.items(Family.LOCK)}

    def get(self, key: bytes) -> Lock | None:
        return self._locks.get(key)

    def put(self, batch: Batch, key: bytes, lock: Lock) -> None:
        self._locks[key] = lock
        batch.put(Family.LOCK, physical_key(key), lock.encode())

    def remove(self, batch: Batch, key: bytes) -> None:
        del self._locks[key]
        batch.delete(Family.LOCK, physical_key(key))

    def within(self, start: bytes, end: bytes) -> list[tuple[bytes, Lock]]:
        """Locks on keys of ``[start, end)`` in key order; an empty ``end`` means no end."""
        return sorted((k, lock) for k, lock in self._locks.items() if k >= start and (not end or k < end))

    def __len__(self) -> int:
        return len(self._locks)


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


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
