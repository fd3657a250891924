"""The long form of the protocol's first design: JSON with words spelled out, one event per message.

    {"ts":1,"type":"Row","schema":"s","table":"t"}     {"update":{"id":{"type":"Longlong","value":7,"unique":true},…}}
    {"ts":1,"type":"DDL","schema":"s","table":"t"}     {"query":"drop table a;"}
    {"ts":1,"type":"Resolved"}
    {"type":"Admin","ts":1}                            {"partition":5,"epoch":1}

It is for eyes and for small programs of one's own: what the open protocol says in numbers and flags stands here in
words, and what few need is left out, the old row of an update first of all. ``unique`` marks the columns of the handle
key, the only ones that a delete holds. The design shows two types; the words of all others follow it. Two members are
additions, without which values could not be told: ``unsigned``, of integers, and ``binary``, of strings that are bytes
and stand in Base64. Runs on executors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded, Keys
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.config.values import boolean_of
from tidemill.flow.encoder.json_text import quoted
from tidemill.flow.encoder.port import Message, Option, Partitions
from tidemill.model.ddl import DdlEvent
from tidemill.model.event import AdminSeen
from tidemill.model.row import RowBatch, RowOp, arrow_type
from tidemill.model.table import INTEGER_TYPES, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts

WORDS: Mapping[ColumnType, str] = {
    ColumnType.TINY: "Tiny",
    ColumnType.SHORT: "Short",
    ColumnType.LONG: "Long",
    ColumnType.FLOAT: "Float",
    ColumnType.DOUBLE: "Double",
    ColumnType.TIMESTAMP: "Timestamp",
    ColumnType.LONGLONG: "Longlong",
    ColumnType.INT24: "Int24",
    ColumnType.DATE: "Date",
    ColumnType.NEWDATE: "Date",
    ColumnType.DURATION: "Duration",
    ColumnType.DATETIME: "Datetime",
    ColumnType.YEAR: "Year",
    ColumnType.VARCHAR: "Varchar",
    ColumnType.BIT: "Bit",
    ColumnType.VECTOR: "Vector",
    ColumnType.JSON: "Json",
    ColumnType.NEWDECIMAL: "Decimal",
    ColumnType.ENUM: "Enum",
    ColumnType.SET: "Set",
    ColumnType.TINYBLOB: "TinyText",
    ColumnType.MEDIUMBLOB: "MediumText",
    ColumnType.LONGBLOB: "LongText",
    ColumnType.BLOB: "Text",
    ColumnType.VARSTRING: "VarString",
    ColumnType.STRING: "Char",
}
_QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class LongForm:
    """The protocol, for queues. DDLs, resolved-ts and admin events go to every partition."""

    name: ClassVar = "long-form"
    options: ClassVar[Mapping[str, Option]] = {
        "delete-only-output-handle-key-columns": Option(
            "delete_only_output_handle_key_columns",
            boolean_of,
            "true",
            "A delete holds the columns of the handle key only. A table without one has all columns in its deletes.",
        ),
    }

    delete_only_output_handle_key_columns: bool = True

    def encoder(self, built_ms: int) -> "LongFormEncoder":
        return LongFormEncoder(self)

    def ddl(self, event: DdlEvent, built_ms: int) -> Message:
        names = f'"schema":{quoted(event.schema)},"table":{quoted(event.table)}'
        key = f'{{"ts":{event.finished_ts},"type":"DDL",{names}}}'
        return Message(f'{{"query":{quoted(event.query)}}}'.encode(), event.finished_ts, key.encode())

    def resolved(self, ts: Ts, built_ms: int) -> Message:
        return Message(None, ts, f'{{"ts":{ts},"type":"Resolved"}}'.encode())

    def admin(self, event: AdminSeen) -> Message:
        """The design's has neither ts nor epoch, without which a copy of an old one would pass for a new one."""
        stamp = "" if event.ts is None else f',"ts":{event.ts}'
        value = f'{{"partition":{event.partitions},"epoch":{event.epoch}}}'
        return Message(value.encode(), event.ts or Ts(0), f'{{"type":"Admin"{stamp}}}'.encode())


class LongFormEncoder:
    """One message per change, in order."""

    def __init__(self, protocol: LongForm) -> None:
        self._protocol = protocol
        self._table: TableInfo | None = None
        self._programs: tuple[Program, Program] | None = None

    def encode(self, rows: RowBatch, partitions: Partitions | None = None) -> Encoded:
        if self._programs is None or self._table is not rows.table:
            self._programs = _key_program(rows.table), _value_program(rows.table, self._protocol)
            self._table = rows.table
        of_keys, of_values = self._programs
        keys, values = (run(program, rows, lambda _, cells: _prepare(cells)) for program in (of_keys, of_values))
        return replace(values, keys=Keys(keys.payload, keys.ends), partitions=partitions)


def _key_program(table: TableInfo) -> Program:
    builder = ProgramBuilder()
    for _ in RowOp:
        builder.literal(b'{"ts":')
        builder.commit_ts()
        builder.literal(f',"type":"Row","schema":{quoted(table.schema)},"table":{quoted(table.name)}}}'.encode())
        builder.end_change()
    return builder.build()


def _value_program(table: TableInfo, protocol: LongForm) -> Program:
    builder = ProgramBuilder()
    keys = {column.offset for column in table.handle_key}
    columns = list(enumerate(table.stored_columns))
    by_key = [(place, column) for place, column in columns if column.offset in keys]
    deleted = by_key if by_key and protocol.delete_only_output_handle_key_columns else columns
    for op in RowOp:
        is_delete = op is RowOp.DELETE
        builder.literal(b'{"delete":{' if is_delete else b'{"update":{')
        _add_image(builder, deleted if is_delete else columns, keys, OLD if is_delete else NEW)
        builder.literal(b"}}")
        builder.end_change()
    return builder.build()


def _add_image(builder: ProgramBuilder, columns: Sequence[tuple[int, ColumnInfo]], keys: set[int], image: int) -> None:
    for number, (place, column) in enumerate(columns):
        marks = {
            "unique": column.offset in keys,
            "unsigned": column.is_unsigned and column.type in INTEGER_TYPES,
            "binary": arrow_type(column) == pa.binary(),
        }
        told = "".join(f',"{mark}":true' for mark, is_set in marks.items() if is_set)
        comma = "," if number else ""
        before = f'{comma}{quoted(column.name)}:{{"type":"{WORDS[column.type]}","value":'.encode()
        quote = b"" if _is_number(column) else b'"'
        builder.cell(place, image, before + quote, before + b"null")
        builder.literal(f"{told}}}".encode())


def _is_number(column: ColumnInfo) -> bool:
    kind = arrow_type(column)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _prepare(values: pa.Array) -> TextColumn:
    kind = values.type
    if kind == pa.int64():
        return TextColumn(values, Kind.INT)
    if kind == pa.uint64():
        return TextColumn(values, Kind.UINT)
    if pa.types.is_floating(kind):
        return TextColumn(float_text.json(values), Kind.RAW)
    if kind == pa.binary():
        return TextColumn(values, Kind.BASE64, _QUOTE)
    return TextColumn(values, Kind.JSON_TEXT, _QUOTE)
