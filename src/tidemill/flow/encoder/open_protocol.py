"""TiCDC's open protocol: rows in batches, each with a key that says whose it is and a value with its columns.

    key    {"ts":445644800000000005,"scm":"shop","tbl":"item","rid":7,"t":1}
    value  {"u":{"id":{"t":8,"h":true,"f":11,"v":7},"qty":{"t":3,"f":193,"v":null},…}}

Columns are in the order of their names, as classic TiCDC writes them. Its deprecated ``rid`` is the row's handle, where
that is a column; a hidden one is left out, as newer TiCDCs leave out all. The words of the format stay inside this
module; ``framing`` puts rows into messages. Runs on executors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar import float_text, go_quoted
from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.config.values import boolean_of, number_from
from tidemill.errors import SinkUriError
from tidemill.flow.encoder.framing import batched, framed, framed_key, size_alone
from tidemill.flow.encoder.handle_key import deleted_columns
from tidemill.flow.encoder.json_text import quoted
from tidemill.flow.encoder.large import (
    LARGE_OPTIONS,
    LargeMessages,
    Layout,
    Parts,
    fitted,
    key_columns,
    lengths,
    location_place,
)
from tidemill.flow.encoder.port import Message, Option, Partitions, Store
from tidemill.model.ddl import DdlEvent
from tidemill.model.event import AdminSeen
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

_ROW, _DDL, _RESOLVED = 1, 2, 3
_ADMIN = 4  # ours: TiCDC has no such event
_BRACE = ord("}")
_QUOTE = ord('"')
_QUOTE_AND_BRACE = _QUOTE | _BRACE << 8
_BASE64 = frozenset({ColumnType.TINYBLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.BLOB})


class _Flag(IntFlag):
    """Of columns, in messages."""

    BINARY = 1  # of its character set, which numbers and times have too
    HANDLE_KEY = 2
    GENERATED = 4
    PRIMARY_KEY = 8
    UNIQUE_KEY = 16
    MULTIPLE_KEY = 32
    NULLABLE = 64
    UNSIGNED = 128


@dataclass(frozen=True, slots=True)
class OpenProtocol(LargeMessages):
    """The protocol, for queues. DDLs and resolved-ts go to every partition."""

    name: ClassVar = "open-protocol"
    options: ClassVar[Mapping[str, Option]] = {
        "output-old-value": Option(
            "output_old_value",
            boolean_of,
            "true",
            "An update holds the old row too.",
            "sink.open.output-old-value",
        ),
        "only-output-updated-columns": Option(
            "only_output_updated_columns",
            boolean_of,
            "false",
            "The old row of an update holds changed columns only.",
            "sink.only-output-updated-columns",
        ),
        "delete-only-output-handle-key-columns": Option(
            "delete_only_output_handle_key_columns",
            boolean_of,
            "false",
            "A delete holds the columns of the handle key only.",
            "sink.delete-only-output-handle-key-columns",
        ),
        "max-batch-size": Option("max_batch_size", number_from(1, most=1 << 20), "16", "Rows in a message, at most."),
        **LARGE_OPTIONS,
    }

    output_old_value: bool = True
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    max_batch_size: int = 16

    def __post_init__(self) -> None:
        LargeMessages.__post_init__(self)
        if self.has_claim_checks and self.claim_check_raw_value:
            raise SinkUriError(
                "claim-check-raw-value is not for open-protocol, whose rows are in the key as well. "
                "Take it out, or change the protocol."
            )

    def encoder(self, built_ms: int, store: Store | None = None) -> "OpenProtocolEncoder":
        return OpenProtocolEncoder(self, store)

    def ddl(self, event: DdlEvent, built_ms: int) -> Message:
        value = self.compressed(f'{{"q":{quoted(event.query)},"t":{event.type}}}'.encode())
        return Message(framed(value), event.finished_ts, _key(event.finished_ts, _DDL, event.schema, event.table))

    def resolved(self, ts: Ts, built_ms: int) -> Message:
        return Message(framed(b""), ts, _key(ts, _RESOLVED))

    def admin(self, event: AdminSeen) -> Message:
        """As the protocol's first design has it, with an epoch and the cut beside: without these a copy of an old one
        could not be told from a new one."""
        ts = event.ts or Ts(0)
        value = self.compressed(f'{{"partition":{event.partitions},"epoch":{event.epoch}}}'.encode())
        return Message(framed(value), ts, _key(ts, _ADMIN))

    def meet(self, ts: Ts, schema: str, table: str) -> Message:
        return Message(framed(self.compressed(b'{"meet":true}')), ts, _key(ts, _ADMIN, schema, table))


class OpenProtocolEncoder:
    """Messages of several rows, in the order of rows within each partition."""

    def __init__(self, protocol: OpenProtocol, store: Store | None) -> None:
        self._protocol = protocol
        self._store = store
        self._table: TableInfo | None = None
        self._physical_id = 0
        self._programs: tuple[Program, Program] | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        table, protocol = rows.table, self._protocol
        if self._programs is None or self._table is not table or self._physical_id != rows.physical_id:
            self._programs = _key_program(table, rows.physical_id), _value_program(table, protocol)
            self._table, self._physical_id = table, rows.physical_id
        parts = self._run(self._programs, rows)
        keys, values = fitted(protocol, rows, parts, _LAYOUT, self._shorter, self._store)
        return batched(keys, values, partitions, protocol.max_batch_size, protocol.max_message_bytes)

    def _shorter(self, rows: RowBatch) -> Parts:
        table, protocol = rows.table, self._protocol
        keys = _key_program(table, rows.physical_id, "ccl" if protocol.has_claim_checks else "ohk")
        return self._run((keys, _value_program(table, protocol, is_short=True)), rows)

    def _run(self, programs: tuple[Program, Program], rows: RowBatch) -> Parts:
        of_keys, of_values = programs
        columns = rows.table.stored_columns
        keys = run(of_keys, rows, lambda place, values: _handles(values) if place < len(columns) else _text(values))
        values = run(of_values, rows, lambda place, values: _prepare(columns[place], values))
        return keys, self._protocol.all_compressed(values)


def _sizes(parts: Parts) -> npt.NDArray[np.int64]:
    keys, values = parts
    sizes: npt.NDArray[np.int64] = size_alone(lengths(keys), lengths(values))
    return sizes


_LAYOUT = Layout(_sizes, lambda cells: (framed_key(cells[0]), framed(cells[1])))


def _key(ts: Ts, kind: int, schema: str = "", table: str = "") -> bytes:
    names = "".join(f',"{member}":{quoted(name)}' for member, name in (("scm", schema), ("tbl", table)) if name)
    return framed_key(f'{{"ts":{ts}{names},"t":{kind}}}'.encode())


def _key_program(table: TableInfo, physical_id: int, mark: str = "") -> Program:
    """``mark`` is what says that the value is short: ``ohk``, or ``ccl`` with where the whole message lies."""
    builder = ProgramBuilder()
    places = [place for place, column in enumerate(table.stored_columns) if column in table.primary_key]
    partition = f',"ptn":{physical_id}' if table.is_partitioned else ""
    for op in RowOp:
        builder.literal(b'{"ts":')
        builder.commit_ts()
        builder.literal(f',"scm":{quoted(table.schema)},"tbl":{quoted(table.name)}'.encode())
        if table.pk_is_handle and places:
            builder.cell(places[0], OLD if op is RowOp.DELETE else NEW, b',"rid":', b"")
        builder.literal(f'{partition},"t":{_ROW}'.encode())
        if mark == "ohk":
            builder.literal(b',"ohk":true')
        elif mark:
            builder.cell(location_place(table), OLD if op is RowOp.DELETE else NEW, b',"ccl":"', b"")
        builder.literal(b"}")
        builder.end_change()
    return builder.build()


def _handles(values: pa.Array) -> TextColumn:
    """As signed numbers, whatever the column is; 0 is left out."""
    if values.type == pa.uint64():
        values = values.view(pa.int64())
    zero = pc.equal(values, pa.scalar(0, pa.int64()))
    return TextColumn(pc.if_else(zero, pa.scalar(None, pa.int64()), values), Kind.INT)


def _text(values: pa.Array) -> TextColumn:
    return TextColumn(values, Kind.JSON_TEXT, _QUOTE)


def _value_program(table: TableInfo, protocol: OpenProtocol, *, is_short: bool = False) -> Program:
    builder = ProgramBuilder()
    found = key_columns(table) if is_short else enumerate(table.stored_columns)
    columns = sorted(found, key=lambda each: each[1].name.encode("utf-8", "surrogateescape"))
    flags = _flags(table)
    by_key = deleted_columns(table, columns) if protocol.delete_only_output_handle_key_columns else columns
    _add_image(builder, b'{"u":{', columns, flags, NEW)
    builder.literal(b"}}")
    builder.end_change()
    _add_image(builder, b'{"u":{', columns, flags, NEW)
    if protocol.output_old_value:
        _add_image(builder, b'},"p":{', columns, flags, OLD, only_changes=protocol.only_output_updated_columns)
    builder.literal(b"}}")
    builder.end_change()
    _add_image(builder, b'{"d":{', by_key, flags, OLD)
    builder.literal(b"}}")
    builder.end_change()
    return builder.build()


def _add_image(
    builder: ProgramBuilder,
    opening: bytes,
    columns: Sequence[tuple[int, ColumnInfo]],
    flags: Mapping[int, int],
    image: int,
    *,
    only_changes: bool = False,
) -> None:
    builder.literal(opening)
    for number, (place, column) in enumerate(columns):
        flag = flags[column.offset]
        handle = '"h":true,' if flag & _Flag.HANDLE_KEY else ""
        comma = "," if number and not only_changes else ""
        before = f'{comma}{quoted(column.name)}:{{"t":{int(column.type)},{handle}"f":{flag},"v":'.encode()
        quote = b"" if _is_number(column) else b'"'
        builder.cell(place, image, before + quote, before + b"null}", only_if_changed=only_changes)


def _flags(table: TableInfo) -> dict[int, int]:
    """By a column's offset. All columns of an index count, unlike in MySQL."""
    flags: dict[int, int] = {}
    handle = {column.offset for column in table.handle_key}
    for column in table.columns:
        flag = _Flag.BINARY if column.charset == "binary" else _Flag(0)
        flag |= _Flag.HANDLE_KEY if column.offset in handle else _Flag(0)
        flag |= _Flag.GENERATED if column.is_generated else _Flag(0)
        flag |= _Flag.PRIMARY_KEY if column.flag & ColumnFlag.PRI_KEY else _Flag(0)
        flag |= _Flag.UNIQUE_KEY if column.flag & ColumnFlag.UNIQUE_KEY else _Flag(0)
        flag |= _Flag.MULTIPLE_KEY if column.flag & ColumnFlag.MULTIPLE_KEY else _Flag(0)
        flag |= _Flag.NULLABLE if not column.is_not_null else _Flag(0)
        flag |= _Flag.UNSIGNED if column.is_unsigned else _Flag(0)
        flags[column.offset] = int(flag)
    for index in table.indexes:
        more = _Flag.PRIMARY_KEY if index.is_primary else _Flag.UNIQUE_KEY if index.is_unique else _Flag(0)
        more |= _Flag.MULTIPLE_KEY if len(index.columns) > 1 else _Flag(0)
        for part in index.columns:
            flags[part.offset] |= int(more)
    return flags


_NUMBERS = frozenset(
    {
        ColumnType.TINY,
        ColumnType.SHORT,
        ColumnType.INT24,
        ColumnType.LONG,
        ColumnType.LONGLONG,
        ColumnType.FLOAT,
        ColumnType.DOUBLE,
        ColumnType.YEAR,
        ColumnType.BIT,
        ColumnType.ENUM,
        ColumnType.SET,
    }
)


def _is_number(column: ColumnInfo) -> bool:
    return column.type in _NUMBERS


def _prepare(column: ColumnInfo, values: pa.Array) -> TextColumn:
    if values.type == pa.int64():
        return TextColumn(values, Kind.INT, _BRACE)
    if values.type == pa.uint64():
        return TextColumn(values, Kind.UINT, _BRACE)
    if pa.types.is_floating(values.type):
        return TextColumn(float_text.json(values), Kind.RAW, _BRACE)
    if column.type in _BASE64:
        return TextColumn(values, Kind.BASE64, _QUOTE_AND_BRACE)
    if values.type == pa.binary():
        return TextColumn(go_quoted.escaped(values), Kind.JSON_TEXT, _QUOTE_AND_BRACE)
    return TextColumn(values, Kind.JSON_TEXT, _QUOTE_AND_BRACE)
