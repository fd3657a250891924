"""Damaged pairs of the embedded store, and damaged packets of a MySQL server: typed errors, nothing else."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest

from tests.fuzz.mutate import mutated, seeded
from tidebox import blocks, raw_blocks
from tidebox.engine import Engine, Family, Snapshot
from tidebox.history import read_history
from tidebox.load import _ingest
from tidebox.mvcc import Write, WriteType
from tidebox.raw import RawValue
from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2
from tidemill.errors import CorruptDataError
from tidemill.sinks.mysql.conflicts import components
from tidemill.sinks.mysql.keycodes import NO_KEY
from tidemill.tidb.keys import mvcc_key
from tidemill.verify.resultset import _Rows

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


@pytest.mark.parametrize("reader", ["changes", "visible", "garbage", "raw changes", "raw live", "raw checksums"])
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
            elif reader == "raw checksums":
                pairs = list(snapshot.scan(Family.RAW, b"", b""))
                assert raw_blocks.checksum_pairs(iter(pairs)).pairs == len(pairs)
                raw_blocks.checksum_versions(iter(pairs), 9)
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


def test_a_history_of_any_keys_and_values_is_stored_and_read_again(tmp_path: Path) -> None:
    for chance in seeded(20):
        count = chance.randrange(1, 30)
        keys = sorted({chance.randbytes(chance.choice((0, 1, 7, 8, 9, 16, 40))) for _ in range(count)})
        values = [chance.choice((b"", b"v", b"v" * 255, b"v" * 256, b"v" * 3000)) for _ in keys]
        is_put = [chance.random() < 0.8 for _ in keys]
        columns = {
            "commit_ts": pa.array([1 << 62] * len(keys), pa.uint64()),
            "start_ts": pa.array([chance.choice((1, 1 << 61))] * len(keys), pa.uint64()),
            "op": ["put" if put else "delete" for put in is_put],
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([value if put else None for put, value in zip(is_put, values, strict=True)], pa.binary()),
        }
        pq.write_table(pa.table(columns), tmp_path / "history.parquet")
        engine = Engine(tmp_path / chance.randbytes(8).hex())
        try:
            _ingest(engine, read_history(tmp_path / "history.parquet"), 0, len(keys))
            found = [row for rows in blocks.changes(engine.snapshot(), b"", b"", 0) for row in _entries(rows)]
        finally:
            engine.close()
        expected = [(k, v if put else b"") for k, put, v in zip(keys, is_put, values, strict=True)]
        assert [(row.key, row.value) for row in found] == expected


def _entries(rows: Any) -> list[Any]:
    return list(cdcpb_pb2.Event.Entries.FromString(rows.data.tobytes()).entries)


def test_what_shares_a_key_is_in_one_component() -> None:
    for chance in seeded(200):
        count = chance.randrange(1, 30)
        some = chance.randrange(40)
        item = np.array([chance.randrange(count) for _ in range(some)], np.int64)
        key = np.array([chance.choice((NO_KEY, *range(9))) for _ in range(some)], np.int64)
        links = np.array([[chance.randrange(count) for _ in range(5)] for _ in range(2)], np.int64)
        found = components(count, [(item, key)], [(links[0], links[1])]).tolist()
        groups = [{i} for i in range(count)]
        joined = [*zip(*links.tolist(), strict=True)]
        touched = [*zip(item.tolist(), key.tolist(), strict=True)]
        joined += [(a, b) for a, k in touched for b, other in touched if k == other != NO_KEY]
        for a, b in joined:
            one, another = (next(g for g in groups if i in g) for i in (a, b))
            if one is not another:
                one |= another
                groups.remove(another)
        assert found == [min(next(g for g in groups if i in g)) for i in range(count)]
