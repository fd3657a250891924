"""Every committed version of a range of keys, as a change stream would tell them."""

from collections.abc import Iterator

from tidebox.cluster import Cluster
from tidebox.mvcc import Reader, WriteType


def versions(cluster: Cluster, start: bytes, end: bytes) -> list[tuple[int, int, bytes, bytes]]:
    """(commit_ts, start_ts, key, value) in commit order; an empty value is a delete. What the stream filters out,
    rewrites of rows by a lossy DDL, is left out."""
    return sorted(_versions(cluster, start, end))


def _versions(cluster: Cluster, start: bytes, end: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    reader = Reader(cluster.engine.snapshot())
    key = reader.next_key(start)
    while key is not None and key < end:
        for commit_ts, write in reader.writes(key):
            if write.txn_source & 0xFF00:
                continue
            if write.type is WriteType.PUT:
                yield commit_ts, write.start_ts, key, reader.value(key, write)
            elif write.type is WriteType.DELETE:
                yield commit_ts, write.start_ts, key, b""
        key = reader.next_key(key + b"\0")
