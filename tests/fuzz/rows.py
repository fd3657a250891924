"""Damaged keys and rows of every type and both formats through the mounter, alone and among others, and what is left
of them through the encoders. What is refused names the row; what is not is read as the plain decoder reads it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from io import BytesIO
from random import Random

import fastavro
import pyarrow as pa
import pytest

from tests.flow.mounter.tables import ID, column, table, text
from tests.flow.schema.stores import fed_store
from tests.fuzz.guarded import guarded
from tests.fuzz.mutate import mutated, seeded
from tests.histories import load
from tests.reference import encode as e
from tests.reference.rows import Decoder, Undecodable
from tidemill.errors import CorruptDataError, RowUndecodableError
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.flow.encoder import Avro, CanalJson, CanalJsonEncoder, Csv, Debezium, OpenProtocol
from tidemill.flow.encoder.avro import AvroEncoder
from tidemill.flow.encoder.csv import BinaryEncoding
from tidemill.flow.encoder.debezium import DebeziumEncoder
from tidemill.flow.encoder.open_protocol import OpenProtocolEncoder
from tidemill.flow.mounter import mount
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType as T
from tidemill.model.table import TableInfo
from tidemill.testing.schema_registry import StandInRegistry
from tidemill.verify.hashing import Sums, row_hashes

Change = tuple[bytes, bytes, bytes]  # key, value, old value
_ENCODERS = (
    CanalJson(enable_tidb_extension=True).encoder(1),
    CanalJson(content_compatible=True, only_output_updated_columns=True).encoder(1 << 62),
    Csv(include_commit_ts=True, output_old_value=True).encoder(0, b"\r\n"),
    Csv(delimiter="|^|", quote="", binary_encoding=BinaryEncoding.HEX).encoder(0, b"\n"),
    OpenProtocol(max_batch_size=1).encoder(1),
    OpenProtocol(max_batch_size=1, only_output_updated_columns=True).encoder(1),
    Debezium(time_zone="America/St_Johns").encoder(1),
)
_BATCHES = OpenProtocol(max_batch_size=3).encoder(1)
_CELLS = (
    (T.LONGLONG, [e.int_cell(-(2**63)), e.int_cell(7)]),
    (T.NEWDECIMAL, [b"\x41\x1e" + b"\xff" * 29, b"\x05\x02\x80\x01\x02"]),
    (T.DATETIME, [e.time_cell(9999, 12, 31, 23, 59, 59, 999999), b"\0"]),
    (T.TIMESTAMP, [e.time_cell(2037, 12, 31, 23, 59, 59, 999999), b"\0"]),
    (T.DURATION, [e.int_cell(-3020399999999000)]),
    (T.DOUBLE, [e.float_cell(5e-324), e.float_cell(-1.7976931348623157e308), e.float_cell(float("nan"))]),
    (T.FLOAT, [e.float_cell(3.4e38)]),
    (T.JSON, [e.json_cell({"a": [1, "\x01\u2028", None, {"b": 1e308}], "": []}), e.json_cell("x" * 300)]),
    (T.VECTOR, [e.vector_cell([1.1754944e-38, -3.4e38, 0.0])]),
    (T.BLOB, [bytes(range(256)), b""]),
    (T.BIT, [e.uint_cell(2**64 - 1)]),
    (T.YEAR, [e.int_cell(2155)]),
)


@cache
def _avro() -> tuple[StandInRegistry, AvroEncoder]:
    registry = StandInRegistry().__enter__()  # for as long as the process lives
    return registry, Avro(registry.uri, enable_tidb_extension=True, topic="any").encoder(1)


@cache
def _recorded() -> list[tuple[TableInfo, int, list[Change]]]:
    """Rows of a real TiDB, by table and schema."""
    found: dict[int, tuple[TableInfo, int, list[Change]]] = {}
    for name in ("types", "ddl"):
        history, (store, _) = load(name), fed_store(name)
        for physical_id in history.physical_ids():
            for row in history.row_changes(physical_id).to_pylist():
                known = store.table(physical_id, row["commit_ts"])
                size = len(row["value"]) + len(row["old_value"])
                if known is not None and 0 < size < 4000:
                    _, _, rows = found.setdefault(id(known), (known, physical_id, []))
                    rows.append((row["key"], row["value"], row["old_value"]))
    return list(found.values())


def _made(chance: Random) -> tuple[TableInfo, int, list[Change]]:
    """Rows of any types, with extreme values, in either format."""
    kinds = chance.sample(_CELLS, chance.randrange(1, 6))
    columns = [column(chance.choice((i, 300 + i)), kind) for i, (kind, _) in enumerate(kinds, 1)]
    columns += [text(90), text(91, charset="latin1")]
    cells = [some for _, some in kinds] + [["é\u2028\U0001f600".encode(), b'<&>\\"\r\n'], [b"\x80\xff", b"a"]]

    def value() -> bytes:
        picked = {c.id: chance.choice([None, *some]) for c, some in zip(columns, cells, strict=True)}
        picked = {i: cell for i, cell in sorted(picked.items()) if chance.random() < 0.9}
        return e.row_v2(picked, large=chance.random() < 0.3, checksum=chance.choice((b"", b"\2abcd", b"\x09abcdefgh")))

    rows = [(e.record_key(ID, n), value(), chance.choice((b"", value()))) for n in range(chance.randrange(1, 6))]
    return table(*columns), ID, rows


def _old_format(chance: Random) -> tuple[TableInfo, int, list[Change]]:
    columns = [column(1, T.LONGLONG), column(2, T.NEWDECIMAL), column(3, T.JSON), text(4), column(400, T.DOUBLE)]
    cells = {
        1: e.v1_int(-5), 2: e.v1_raw(6, b"\x05\x02\x80\x01\x02"), 3: e.v1_raw(10, e.json_cell(["a"])),
        4: e.v1_bytes(b"text"), 400: e.v1_raw(5, e.float_cell(1.5)),
    }  # fmt: skip

    def value() -> bytes:
        return e.row_v1({i: chance.choice((cell, cell, e.V1_NULL)) for i, cell in cells.items()})

    return table(*columns), ID, [(e.record_key(ID, n), value(), b"") for n in range(chance.randrange(1, 4))]


def _batch(rows: list[Change]) -> pa.RecordBatch:
    keys, values, old_values = zip(*rows, strict=True)
    stamps = list(range(1, len(rows) + 1))
    ops = [int(Op.PUT if value else Op.DELETE) for value in values]
    columns = [stamps, [ts + (1 << 60) for ts in stamps], ops, keys, values, old_values]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RAW_CHANGE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_CHANGE_SCHEMA)


def _damaged(chance: Random, rows: list[Change]) -> list[Change]:
    rows = list(rows)
    others = [value for _, value, _ in rows if value]
    at, which = chance.randrange(len(rows)), chance.randrange(5)
    key, value, old = rows[at]
    if which == 0:
        key = mutated(chance, key)
    elif which == 1 and old:
        old = mutated(chance, old, others)
    elif value:
        value = mutated(chance, value, others)
    rows[at] = key, value, old
    return rows


def _alone(known: TableInfo, physical_id: int, rows: list[Change], zone: str) -> Iterator[tuple[object, object]]:
    """Both images of each row as the plain decoder reads them; raises where it refuses one."""
    plain = Decoder(known, physical_id, zone)
    for key, value, old in rows:
        if value or old:
            yield (plain.decode(key, value) if value else None, plain.decode(key, old) if old else None)


def _images(rows: RowBatch) -> list[tuple[object, object]]:
    new, old = iter(rows.new.to_pylist()), iter(rows.old.to_pylist())
    return [(next(new) if op != 3 else None, next(old) if op != 1 else None) for op in rows.op.tolist()]


def _go_on(rows: RowBatch) -> None:
    """Through all that comes behind the mounter."""
    for image in (rows.new, rows.old):
        image.validate(full=True)
        hashes = row_hashes(image.columns, image.num_rows)
        Sums.empty(7).add(hashes, hashes)
    rows = replace(rows, new=guarded(rows.new), old=guarded(rows.old))
    for changed in (rows, split_key_updates(rows)):
        for encoder in _ENCODERS:
            try:
                messages = encoder.encode(changed).messages()
            except CorruptDataError:
                continue
            assert len(messages) == len(changed)
            for message in messages:
                if isinstance(encoder, CanalJsonEncoder | DebeziumEncoder):
                    json.loads(message)
                elif isinstance(encoder, OpenProtocolEncoder):
                    json.loads(message[8:])
        with suppress(CorruptDataError):
            _read_avro(changed)
        names = tuple(column.name for column in changed.table.stored_columns)
        partitions = PartitionRule(Kind.COLUMNS, columns=names).partitions(changed, 2)
        assert ((partitions == 0) | (partitions == 1)).all()
        encoded = _BATCHES.encode(changed, partitions)
        assert encoded.changes is not None
        assert encoded.changes.sum() == len(changed)


def _read_avro(rows: RowBatch) -> None:
    registry, encoder = _avro()
    encoded = encoder.encode(rows)
    for message in filter(None, encoded.messages()):
        body = BytesIO(message[5:])
        fastavro.schemaless_reader(body, json.loads(registry.texts[int.from_bytes(message[1:5])]), None)
        assert body.read() == b""


@pytest.mark.parametrize("source", ["recorded", "made", "old format"])
def test_damaged_rows_are_refused_or_read_as_the_plain_decoder_reads_them(source: str) -> None:
    for chance in seeded(1000 if source == "recorded" else 400):
        if source == "recorded":
            known, physical_id, rows = chance.choice(_recorded())
            rows = [chance.choice(rows) for _ in range(chance.randrange(1, 6))]
        else:
            known, physical_id, rows = (_made if source == "made" else _old_format)(chance)
        if chance.random() < 0.9:
            rows = _damaged(chance, rows)
        zone = chance.choice(("UTC", "America/St_Johns"))
        try:
            mounted = mount(known, physical_id, _batch(rows), zone)
        except RowUndecodableError:
            with pytest.raises(Undecodable):
                list(_alone(known, physical_id, rows, zone))
            continue
        assert _images(mounted) == list(_alone(known, physical_id, rows, zone))
        _go_on(mounted)


def test_damaged_rows_are_compared_with_their_checksums() -> None:
    for chance in seeded(300):
        known, physical_id, rows = _made(chance)
        with suppress(RowUndecodableError):
            mount(known, physical_id, _batch(_damaged(chance, rows)), verify=True)
