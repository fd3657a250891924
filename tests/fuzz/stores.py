"""Damaged pairs of the embedded store, and damaged packets of a MySQL server: typed errors, nothing else."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pymysql
import pytest

from tests.fuzz.mutate import mutated, seeded
from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2
from tidemill.errors import CorruptDataError
from tidemill.flow.verify.resultset import _Rows
from tidemill.store import blocks, raw_blocks
from tidemill.store.engine import Family, Snapshot
from tidemill.store.mvcc import Write, WriteType
from tidemill.store.raw import RawValue
from tidemill.upstream.keys import mvcc_key

Pairs = list[tuple[bytes, bytes]]


class _Stored:
    """Pairs of each family, in key order: what a snapshot shows, with nobody who checks it before."""

    def __init__(self, families: dict[Family, Pairs]) -> None:
        self._families = {family: sorted(dict(pairs).items()) for family, pairs in families.items()}

    def get(self, family: Family, key: bytes) -> bytes | None:
        return dict(self._families[family]).get(key)

    def items(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        pairs = self._families[family]
        return iter(pairs[bisect_left(pairs, (start, b"")) : bisect_left(pairs, (end, b"")) if end else None])

    scan = items


def _stored(chance: Random) -> Snapshot:
    writes, values, raws = [], [], []
    for at in range(chance.randrange(1, 12)):
        key = chance.choice((b"", b"a", b"abcdefgh", b"b" * 17))
        kind, is_long = chance.choice(list(WriteType)), chance.random() < 0.3
        short = None if is_long or kind is not WriteType.PUT else b"v" * chance.randrange(256)
        writes.append(
            (mvcc_key(key, 10 * at + 9), Write(kind, 10 * at + 1, short, chance.choice((0, 1, 300))).encode())
        )
        if is_long:
            values.append((mvcc_key(key, 10 * at + 1), b"long" * 200))
        raws.append((mvcc_key(key, 10 * at), RawValue(b"v" * chance.randrange(300)).encode()))
    families = {Family.WRITE: writes, Family.DEFAULT: values, Family.RAW: raws}
    for pairs in families.values():
        if pairs and chance.random() < 0.8:
            at = chance.randrange(len(pairs))
            key, value = pairs[at]
            pairs[at] = (mutated(chance, key), value) if chance.random() < 0.5 else (key, mutated(chance, value))
    return cast(Snapshot, _Stored(families))


@pytest.mark.parametrize("reader", ["changes", "visible", "garbage", "raw changes", "raw live"])
def test_damaged_versions_are_refused_or_read_into_whole_messages(reader: str) -> None:
    for chance in seeded(500):
        snapshot, ts = _stored(chance), chance.choice((0, 50, 1 << 60))
        with suppress(CorruptDataError):
            if reader == "changes":
                for rows in blocks.changes(snapshot, b"", b"", ts):
                    cdcpb_pb2.Event.Entries.FromString(rows.data.tobytes())
            elif reader == "visible":
                for rows in blocks.visible(snapshot, b"", b"", ts, 100):
                    kvrpcpb_pb2.ScanResponse.FromString(rows.data.tobytes())
            elif reader == "garbage":
                list(blocks.garbage(snapshot, ts, np.array([11], np.uint64), set(), records_per_block=3))
            elif reader == "raw changes":
                for rows in raw_blocks.changes(snapshot, b"", b"", ts):
                    cdcpb_pb2.Event.Entries.FromString(rows.data.tobytes())
            else:
                for rows in raw_blocks.live(snapshot.scan(Family.RAW, b"", b""), 0, 9):
                    kvrpcpb_pb2.RawScanResponse.FromString(rows.data.tobytes())


def _packet(payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + b"\1" + payload


def _text(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    return bytes([len(value)]) + value if len(value) < 251 else b"\xfc" + len(value).to_bytes(2, "little") + value


def test_damaged_answers_of_a_mysql_server_are_read_or_refused() -> None:
    for chance in seeded(1500):
        width = chance.randrange(1, 4)
        values = (None, b"", b"value", b"v" * 300)
        rows = [b"".join(_text(chance.choice(values)) for _ in range(width)) for _ in range(chance.randrange(6))]
        answer = b"".join(map(_packet, rows)) + _packet(b"\xfe\0\0\2\0")
        connection: Any = SimpleNamespace(_rfile=BytesIO(mutated(chance, answer)))
        with suppress(pymysql.err.Error):
            for columns in _Rows(connection, width).read():
                for column in columns:
                    column.validate(full=True)
