"""Avro read back: records whose schemas are in a registry, from TiCDC or from us.

    00 | number of the schema, 4 bytes | the record

A message holds a new row, never an old one, so an update reads as an insert. A delete is a key without a value. The
commit-ts is told in TiDB's extension, of what is no delete; otherwise it is 0. Names are those of the record, in
which what Avro does not allow has been replaced. Runs on executors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar.jit import Bytes, Longs, helper, i64, kernel, u64
from tidemill.flow.reader import cells as c
from tidemill.flow.reader.avro_schema import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    FLOAT,
    LONG,
    CachedSchemas,
    Field,
    Record,
    Schemas,
    read_record,
)
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.debezium_columns import enum_numbers, set_numbers
from tidemill.flow.reader.documents import Texts
from tidemill.flow.reader.matching import Token
from tidemill.flow.reader.port import Events, Received, RowsSeen
from tidemill.flow.reader.shape import UnclearError, parse
from tidemill.flow.reader.tables import TablesSeen
from tidemill.model.event import DdlSeen, Mark, ResolvedSeen, Unreadable
from tidemill.model.row import RowBatch, RowOp, arrow_schema, arrow_type
from tidemill.model.table import ColumnInfo, ColumnType
from tidemill.model.ts import Ts

_HEADER = 5  # bytes
_CONFLUENT, _DDL, _RESOLVED = 0, 1, 2  # by the first byte
_COMMIT_TS = "_tidb_commit_ts"
_EMPTY = "it has neither a value nor a key of Avro"
_TEXT, _NULL = int(Token.TEXT), int(Token.NULL)


class AvroReader:
    """Reads one partition of a topic."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = CachedSchemas(schemas)
        self._records: dict[int, Record] = {}
        self._tables = TablesSeen()

    def read(self, received: Received) -> Events:
        keys, values = Texts.of(received.keys), Texts.of(received.values)
        marks: list[tuple[int, Mark]] = []
        seen: list[RowsSeen] = []
        kind, number = _headers(values)
        key_kind, key_number = _headers(keys)
        is_delete = values.ends == values.starts
        for op, texts, of_kind, of_number, wanted in (
            (RowOp.INSERT, values, kind, number, ~is_delete),
            (RowOp.DELETE, keys, key_kind, key_number, is_delete),
        ):
            others = np.flatnonzero(wanted & (of_kind != _CONFLUENT)).tolist()
            marks += [(row, _notice(texts[row]) if op is RowOp.INSERT else _unreadable(_EMPTY)) for row in others]
            mine = wanted & (of_kind == _CONFLUENT)
            for schema in np.unique(of_number[mine]).tolist():
                rows = np.flatnonzero(mine & (of_number == schema))
                self._read(op, texts, rows, schema, (key_kind, key_number), seen, marks)
        return Events(seen, sorted(marks, key=lambda mark: mark[0]))

    def _read(
        self,
        op: RowOp,
        texts: Texts,
        rows: Longs,
        schema: int,
        keys: tuple[Bytes, Longs],
        seen: list[RowsSeen],
        marks: list[tuple[int, Mark]],
    ) -> None:
        try:
            record = self._record(schema)
            handle = (
                frozenset(self._record(int(keys[1][rows[0]])).names) if keys[0][rows[0]] == _CONFLUENT else frozenset()
            )
        except UnclearError as unclear:
            why = _unreadable(str(unclear))
        except (KeyError, TypeError, ValueError, AttributeError):
            why = _unreadable("its schema is none of a table")
        else:
            columns = [each.with_key() if each.name in handle else each for each in record.columns]
            table = self._tables.get(record.schema, record.table, columns)
            batch, places, bad = _rows(op, table, record, texts, rows)
            marks += [(row, _unreadable(f"a row of table {table.full_name} is damaged")) for row in bad]
            if len(places):
                seen.append(RowsSeen(batch, places))
            return
        marks += [(row, why) for row in rows.tolist()]

    def _record(self, number: int) -> Record:
        known = self._records.get(number)
        if known is None:
            try:
                text = self._schemas.schema(number)
            except LookupError:
                raise UnclearError(f"the registry has no schema of number {number}") from None
            known = self._records[number] = read_record(text)
        return known


def _unreadable(why: str) -> Unreadable:
    return Unreadable(f"a message cannot be read: {why}")


def _headers(texts: Texts) -> tuple[Bytes, Longs]:
    """The first byte of each message, 255 where it is too short, and the number of its schema."""
    is_whole = texts.ends - texts.starts >= _HEADER
    kind, number = np.full(len(texts), 255, np.uint8), np.zeros(len(texts), np.int64)
    at = texts.starts[is_whole]
    kind[is_whole] = texts.data[at]
    for place in range(1, _HEADER):
        number[is_whole] = number[is_whole] << 8 | texts.data[at + place]
    return kind, number


def _notice(value: bytes) -> Mark:
    """A DDL or a resolved-ts, in the form that TiCDC's own tests have."""
    if len(value) == 9 and value[0] == _RESOLVED:
        return ResolvedSeen(Ts(int.from_bytes(value[1:])))
    try:
        content = parse(value[1:]) if value[0] == _DDL else {}
        ts, schema, table, query = (content[member] for member in ("commitTs", "schema", "table", "query"))
        if isinstance(ts, int) and all(isinstance(text, str) for text in (schema, table, query)):
            return DdlSeen(Ts(ts), schema, table, query)
    except (ValueError, KeyError, TypeError):
        pass
    return _unreadable("it is no message of Avro with a schema's number in front")


def _rows(op: RowOp, table: Any, record: Record, texts: Texts, rows: Longs) -> tuple[RowBatch, Longs, list[int]]:
    count, fields = len(rows), len(record.fields)
    from_, to = np.zeros((fields, count), np.int64), np.zeros((fields, count), np.int64)
    tokens, is_bad = np.full((fields, count), _NULL, np.uint8), np.zeros(count, np.bool_)
    forms = np.array([each.form for each in record.fields], np.int64)
    nulls = np.array([each.null_branch for each in record.fields], np.int64)
    _walk(texts.data, texts.starts[rows] + _HEADER, texts.ends[rows], forms, nulls, from_, to, tokens, is_bad)
    tokens[:, is_bad] = _NULL
    arrays = []
    for n, (column, each) in enumerate(zip(table.columns, record.fields, strict=False)):
        cells = Cells(texts.data, from_[n], to[n], tokens[n], is_bad)
        array = _decode(column, each, cells)
        arrays.append(array if array.type == arrow_type(column) else array.cast(arrow_type(column)))
    image = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table)).filter(pa.array(~is_bad))
    stamps = from_[record.names.index(_COMMIT_TS)] if _COMMIT_TS in record.names else np.zeros(count, np.int64)
    good = rows[~is_bad]
    ops, commit_ts = np.full(len(good), op, np.uint8), stamps[~is_bad].astype(np.uint64)
    images = (image, image.slice(0, 0)) if op is RowOp.INSERT else (image.slice(0, 0), image)
    return RowBatch(table, 0, ops, np.zeros(len(good), np.uint64), commit_ts, *images), good, rows[is_bad].tolist()


def _decode(column: ColumnInfo, field: Field, cells: Cells) -> pa.Array:
    is_null = cells.tokens == _NULL
    if field.form in (LONG, BOOLEAN):
        numbers = pa.array(cells.from_, mask=is_null)
        return numbers.view(pa.uint64()) if arrow_type(column) == pa.uint64() else numbers
    values = c.plain_bytes(cells)
    if field.form in (FLOAT, DOUBLE):
        kind, width = (np.float32, 4) if field.form == FLOAT else (np.float64, 8)
        held = np.zeros((len(cells), width), np.uint8)
        _, data = c.parts_of(values)
        held[~is_null] = data.reshape(-1, width)
        return pa.array(held.view(kind).reshape(-1), mask=is_null)
    if field.scale >= 0:
        return _decimals(values, field.scale, cells)
    if column.type is ColumnType.BIT:
        return _bits(values, cells)
    return values if arrow_type(column) == pa.binary() else _from_text(column, c.as_text(values), cells)


def _from_text(column: ColumnInfo, texts: pa.Array, cells: Cells) -> pa.Array:
    by_name: dict[ColumnType, Callable[[pa.Array, ColumnInfo], pa.Array]] = {
        ColumnType.ENUM: enum_numbers,
        ColumnType.SET: set_numbers,
    }
    if column.type in by_name:
        return by_name[column.type](texts, column)
    if arrow_type(column) == pa.uint64():  # BIGINT UNSIGNED in digits
        return c.integers(cells, is_unsigned=True)
    return texts


def _wide(values: pa.Array, cells: Cells, width: int, *, is_signed: bool) -> Bytes:
    """Numbers with the highest byte first as ``width`` bytes each with the lowest first."""
    sizes = pc.binary_length(values).fill_null(0).to_numpy()
    cells.is_bad[sizes > width] = True
    offsets, data = c.parts_of(values)
    held = np.zeros((len(values), width), np.uint8)
    if is_signed:
        has = sizes > 0
        is_negative = np.zeros(len(values), np.bool_)
        is_negative[has] = data[offsets[:-1][has]] > 127
        held[is_negative] = 255
    for place in range(width):
        has = sizes > place
        held[has, place] = data[offsets[1:][has] - 1 - place]
    return held


def _bits(values: pa.Array, cells: Cells) -> pa.Array:
    held = _wide(values, cells, 8, is_signed=False)
    return pa.array(held.view(np.uint64).reshape(-1), mask=values.is_null().to_numpy(zero_copy_only=False))


def _decimals(values: pa.Array, scale: int, cells: Cells) -> pa.Array:
    held = pa.py_buffer(_wide(values, cells, 32, is_signed=True))
    digits = pa.Array.from_buffers(pa.decimal256(76, 0), len(values), [None, held]).cast(pa.string())
    if scale:
        padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
        whole = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale), "."
        )
        digits = pc.binary_join_element_wise(pc.if_else(pc.starts_with(digits, "-"), "-", ""), whole, "")
    return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), digits)


@kernel
def _walk(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    forms: Longs,
    nulls: Longs,
    from_: Longs,
    to: Longs,
    tokens: Bytes,
    is_bad: Bytes,
) -> None:
    """Where the fields of each record lie; of whole numbers, what they are. A record that does not end where its
    message does is bad."""
    for n in range(len(starts)):
        at, end = starts[n], ends[n]
        for field in range(len(forms)):
            if nulls[field] >= 0:
                branch, at = varint(data, at, end)
                if at < 0 or branch < 0 or branch > 1:
                    at = i64(-1)
                    break
                if branch == nulls[field]:
                    continue
            form = forms[field]
            size = i64(0)
            if form == LONG:
                from_[field, n], at = varint(data, at, end)
                tokens[field, n] = _TEXT
                if at < 0:
                    break
                continue
            if form == BYTES:
                size, at = varint(data, at, end)
                if at < 0:
                    break
            else:
                size = i64(4) if form == FLOAT else i64(8) if form == DOUBLE else i64(1)
            if size < 0 or size > end - at:
                at = i64(-1)
                break
            from_[field, n] = i64(data[at] != 0) if form == BOOLEAN else at
            to[field, n], tokens[field, n] = at + size, _TEXT
            at += size
        if at != end:
            is_bad[n] = True


@helper
def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The number there, and where to go on; -1 if it does not end within ten bytes."""
    number = u64(0)
    for k in range(10):
        if at + k >= end:
            break
        byte = data[at + k]
        number |= u64(byte & 127) << u64(7 * k)
        if byte < 128:
            return i64(number >> u64(1)) ^ -i64(number & u64(1)), at + k + 1
    return i64(0), i64(-1)
