"""The simple protocol in Avro's binary form: no registry and no header, its one schema is known to both sides.

    0x16 | kind of message, as an enum and as the branch of a union | its record

Every message is the last of the schema's twelve records, which is what its first byte says. The order of records, of
their fields and of the branches of values is the format; names are not written, but for those of columns: a row is a
map by their names. JSON's side of the protocol and what both share are in ``simple``. Runs on executors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemill.columnar.avro_binary import NEW, OLD, BinaryColumn, Kind, Record, RecordBuilder
from tidemill.flow.encoder.avro import finite
from tidemill.model.row import RowOp, arrow_type
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo

_MESSAGE = 11  # its place among the records
_WATERMARK, _BOOTSTRAP, _DDL, _DML = range(4)
DDL_WORDS = ("CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY")
_NULL, _LONG, _FLOAT, _DOUBLE, _STRING, _BYTES, _TIMESTAMP, _UNSIGNED = range(8)  # branches of a value
_ABSENT, _PRESENT = b"\0", b"\2"  # of what may be null


def long(number: int) -> bytes:
    """Zigzag, seven bits a byte, the lowest first. A number of 64 bits without a sign wraps."""
    signed = number - (1 << 64) if number >= 1 << 63 else number
    rest, found = (signed << 1 ^ signed >> 63) & (1 << 64) - 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def text(value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    return long(len(data)) + data


def _head(kind: int) -> bytes:
    return long(_MESSAGE) + long(kind) + long(kind)


def watermark(version: int, ts: int, built_ms: int) -> bytes:
    return _head(_WATERMARK) + long(version) + long(ts) + long(built_ms)


def bootstrap(version: int, built_ms: int, schema: Mapping[str, Any]) -> bytes:
    return _head(_BOOTSTRAP) + long(version) + long(built_ms) + _schema(schema)


def ddl(
    version: int, word: str, query: str, ts: int, built_ms: int, schemas: Sequence[Mapping[str, Any] | None]
) -> bytes:
    """``schemas``: of the table behind the DDL and before it."""
    found = _head(_DDL) + long(version) + long(DDL_WORDS.index(word)) + text(query) + long(ts) + long(built_ms)
    return found + b"".join(_optional(None if schema is None else _schema(schema)) for schema in schemas)


def _optional(data: bytes | None) -> bytes:
    return _ABSENT if data is None else _PRESENT + data


def _array(items: Sequence[bytes]) -> bytes:
    return (long(len(items)) + b"".join(items) if items else b"") + long(0)


def _boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _schema(schema: Mapping[str, Any]) -> bytes:
    return (
        text(schema["schema"])
        + text(schema["table"])
        + long(schema["tableID"])
        + long(schema["version"])
        + _array([_column(column) for column in schema["columns"]])
        + _array([_index(index) for index in schema["indexes"]])
    )


def _column(column: Mapping[str, Any]) -> bytes:
    kind, default = column["dataType"], column["default"]
    elements = kind.get("elements")
    data_type = (
        text(kind["mysqlType"])
        + text(kind["charset"])
        + text(kind["collate"])
        + long(kind.get("length", 0))
        + _optional(long(kind["decimal"]) if "decimal" in kind else None)
        + _optional(_array([text(element) for element in elements]) if elements else None)
        + _optional(_boolean(True) if kind.get("unsigned") else None)
        + _optional(_boolean(True) if kind.get("zerofill") else None)
    )
    shown = None if default is None else text(str(default))
    return text(column["name"]) + data_type + _boolean(column["nullable"]) + _optional(shown)


def _index(index: Mapping[str, Any]) -> bytes:
    flags = b"".join(_boolean(index[name]) for name in ("unique", "primary", "nullable"))
    return text(index["name"]) + flags + _array([text(name) for name in index["columns"]])


def row_record(
    table: TableInfo,
    physical_id: int,
    columns: Sequence[tuple[int, ColumnInfo]],
    *,
    version: int,
    built_ms: int,
    zone: str,
    is_short: bool = False,
    location: int | None = None,
) -> Record:
    """What the messages of rows consist of. ``columns``: those that go out, each with its place. ``is_short``: they are
    those of the handle key. ``location``: the place of the column that says where the whole message lies."""
    builder = RecordBuilder()
    names = text(table.schema) + text(table.name) + long(physical_id)
    for number, op in enumerate(RowOp):
        image = OLD if op is RowOp.DELETE else NEW
        builder.literal(_head(_DML) + long(version) + names + long(number))
        builder.commit_ts()
        builder.literal(long(built_ms) + long(table.update_ts))
        if location is None:
            builder.literal(_ABSENT)
        else:
            builder.literal(_PRESENT)
            builder.cell(location, image)
        builder.literal(_optional(_boolean(True) if is_short else None) + _ABSENT)  # there is no checksum
        for side, without in ((NEW, RowOp.DELETE), (OLD, RowOp.INSERT)):
            if op is without:
                builder.literal(_ABSENT)
                continue
            builder.literal(_PRESENT + long(len(columns)))
            for place, column in columns:
                builder.literal(text(column.name))
                builder.cell(place, side, *_branch(column, zone))
            builder.literal(long(0))
        builder.end_change()
    return builder.build()


def _branch(column: ColumnInfo, zone: str) -> tuple[int, bytes]:
    """Of a value, and what stands before it there."""
    kind = arrow_type(column)
    if column.type is ColumnType.TIMESTAMP:
        return _TIMESTAMP, text(zone)
    if column.type is ColumnType.LONGLONG and column.is_unsigned:
        return _UNSIGNED, b""
    if pa.types.is_integer(kind):
        return _LONG, b""
    if pa.types.is_floating(kind):
        return (_FLOAT if kind == pa.float32() else _DOUBLE), b""
    return (_BYTES if kind == pa.binary() else _STRING), b""


def prepare(values: pa.Array) -> BinaryColumn:
    kind = values.type
    if pa.types.is_integer(kind):
        return BinaryColumn(values.view(pa.int64()), Kind.LONG)
    if pa.types.is_floating(kind):
        return BinaryColumn(finite(values), Kind.FIXED4 if kind == pa.float32() else Kind.FIXED8)
    return BinaryColumn(values, Kind.BYTES)
