"""One column's value as a cell of row format v2, both ways. The column, not the value, picks the form.

Writers raise Python's own errors for values of a wrong type or range; the table's codec names the column.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tidebox.sql.codec.collation import text_bytes
from tidebox.sql.codec.datum import Datum, Time
from tidebox.sql.codec.documents import read_document, write_document
from tidebox.sql.codec.numbers import (
    comparable_float,
    comparable_narrow,
    decimal_writer,
    int_cell,
    narrow,
    read_comparable_float,
    read_decimal,
    read_int_cell,
    read_uint_cell,
    uint_cell,
)
from tidebox.sql.codec.times import duration_of, nanoseconds, pack, unpack
from tidebox.sql.codec.vectors import read_vector, write_vector
from tidemill.errors import CorruptDataError
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType

# Any: a writer takes the one Python type of its column, and the column is known only when it is made.
Writer = Callable[[Any], bytes]
Reader = Callable[[bytes], Datum]

UINT_TYPES = frozenset({ColumnType.BIT, ColumnType.ENUM, ColumnType.SET})


def precision_and_scale(column: ColumnInfo) -> tuple[int, int]:
    return (column.flen if column.flen > 0 else 10), max(column.decimal, 0)


def is_unsigned_number(column: ColumnInfo) -> bool:
    """Whether the column's numbers are unsigned ones. A YEAR is signed whatever its flag says."""
    return column.type in UINT_TYPES or (column.type in INTEGER_TYPES and column.is_unsigned)


def cell_writer(column: ColumnInfo) -> Writer:
    if column.type is ColumnType.NEWDECIMAL:
        return decimal_writer(*precision_and_scale(column))
    if is_unsigned_number(column):
        return uint_cell
    return _WRITERS[column.type]


def cell_reader(column: ColumnInfo) -> Reader:
    if column.type in STRING_TYPES:
        return _read_bytes if column.is_binary else _read_text
    if column.type is ColumnType.ENUM:
        return enum_reader(len(column.elems))
    if column.type is ColumnType.SET:
        return set_reader(len(column.elems))
    if is_unsigned_number(column):
        return read_uint_cell
    return _READERS[column.type]


def enum_reader(count: int) -> Reader:
    def read(cell: bytes) -> int:
        number = read_uint_cell(cell)
        return number if number <= count else 0  # TiDB reads an element that is gone as the empty one

    return read


def set_reader(count: int) -> Reader:
    def read(cell: bytes) -> int:
        bits = read_uint_cell(cell)
        if bits >> count:
            raise CorruptDataError(f"a set with bits beyond its {count} elements")
        return bits

    return read


def _write_time(time: Time) -> bytes:
    return uint_cell(pack(time))


def _write_duration(duration: timedelta) -> bytes:
    return int_cell(nanoseconds(duration))


def _read_text(cell: bytes) -> str:
    return cell.decode("utf-8", "surrogateescape")


def _read_bytes(cell: bytes) -> bytes:
    return bytes(cell)


def _read_decimal(cell: bytes) -> Datum:
    value, end = read_decimal(cell)
    if end != len(cell):
        raise CorruptDataError(f"a decimal with {len(cell) - end} bytes behind its end")
    return value


_WRITERS: dict[ColumnType, Writer] = {
    **dict.fromkeys(INTEGER_TYPES | {ColumnType.YEAR}, int_cell),
    **dict.fromkeys(STRING_TYPES, text_bytes),
    **dict.fromkeys(TIME_TYPES, _write_time),
    ColumnType.FLOAT: comparable_narrow,
    ColumnType.DOUBLE: comparable_float,
    ColumnType.DURATION: _write_duration,
    ColumnType.JSON: write_document,
    ColumnType.VECTOR: write_vector,
}
_READERS: dict[ColumnType, Reader] = {
    **dict.fromkeys(INTEGER_TYPES | {ColumnType.YEAR}, read_int_cell),
    **dict.fromkeys(TIME_TYPES, lambda cell: unpack(read_uint_cell(cell))),
    ColumnType.FLOAT: lambda cell: narrow(read_comparable_float(cell)),
    ColumnType.DOUBLE: read_comparable_float,
    ColumnType.DURATION: lambda cell: duration_of(read_int_cell(cell)),
    ColumnType.NEWDECIMAL: _read_decimal,
    ColumnType.JSON: read_document,
    ColumnType.VECTOR: read_vector,
}
