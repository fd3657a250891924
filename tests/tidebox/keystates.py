"""Keys as the rules of transactions see them, built by hand: locks, records, and a transaction of ours."""

from tidebox.mvcc import Lock, LockType, Write, WriteType
from tidebox.txn.records import KeyState, Records

K, P = b"k", b"p"
S = 100 << 18  # our transaction's start-ts; 100 ms
TTL = 50


def ms(milliseconds: int) -> int:
    return milliseconds << 18


def own(kind=LockType.PUT, **fields) -> Lock:
    return Lock(kind, **{"primary": P, "start_ts": S, "ttl_ms": TTL, **fields})


def other(kind=LockType.PUT, start_ts=S - 9, **fields) -> Lock:
    return Lock(kind, **{"primary": P, "start_ts": start_ts, "ttl_ms": TTL, **fields})


def record(kind: str, commit_ts: int, start_ts: int = 1, **fields) -> tuple[int, Write]:
    return commit_ts, Write(WriteType(ord(kind)), start_ts, **fields)


ROLLED_BACK = record("R", S, S)
OVERLAPPED = record("P", S, S - 5, has_overlapped_rollback=True)


def state(lock: Lock | None = None, *records, key=K) -> KeyState:
    return KeyState(key, lock, Records(records))
