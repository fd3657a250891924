"""The checksum of a row's values (version 0): what TiDB 7.1 to 8.2 wrote, and what TiCDC's messages carry."""

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from tidebox.sql.codec.cells import precision_and_scale
from tidebox.sql.codec.collation import text_bytes
from tidebox.sql.codec.datum import Row
from tidebox.sql.codec.documents import document_text
from tidebox.sql.codec.numbers import decimal_text
from tidebox.sql.codec.times import date_text, duration_text, time_text
from tidebox.sql.codec.vectors import write_vector
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_MASK = (1 << 64) - 1

_NUMBERS = INTEGER_TYPES | {ColumnType.YEAR, ColumnType.BIT, ColumnType.ENUM, ColumnType.SET}


def column_checksum(columns: Sequence[ColumnInfo], row: Row) -> int:
    """CRC-32 over the values of ``columns`` in order of their ids; NULLs and virtual columns are left out."""
    return zlib.crc32(checksum_payload(columns, row))


def checksum_payload(columns: Sequence[ColumnInfo], row: Row) -> bytes:
    pairs = sorted(zip(columns, row, strict=True), key=lambda pair: pair[0].id)
    return b"".join(
        _payload_of(column)(value) for column, value in pairs if value is not None and not column.is_virtual
    )


def _payload_of(column: ColumnInfo) -> Callable[[Any], bytes]:
    """Any: the value has the one Python type of its column."""
    kind = column.type
    fsp = max(column.decimal, 0)
    if kind in _NUMBERS:
        return lambda value: _U64.pack(value & _MASK)
    if kind in STRING_TYPES:
        return lambda value: _with_length(text_bytes(value))
    if kind is ColumnType.DATE:
        return lambda value: _with_length(date_text(value).encode())
    if kind in TIME_TYPES:
        return lambda value: _with_length(time_text(value, fsp).encode())
    if kind is ColumnType.DURATION:
        return lambda value: _with_length(duration_text(value, fsp).encode())
    if kind is ColumnType.NEWDECIMAL:
        scale = precision_and_scale(column)[1]
        return lambda value: _with_length(decimal_text(value, scale).encode())
    if kind is ColumnType.JSON:
        return lambda value: _with_length(document_text(value).encode())
    if kind is ColumnType.VECTOR:
        return write_vector
    return lambda value: _F64.pack(value if math.isfinite(value) else 0.0)


def _with_length(raw: bytes) -> bytes:
    return _U32.pack(len(raw)) + raw
