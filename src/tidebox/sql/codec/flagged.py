"""Values behind a byte that tells their kind: in handles and index keys (comparable), and in rows of format v1.

column type                    comparable (EncodeKey)      plain (EncodeValue)
signed integers, YEAR          03, eight bytes             08, varint
unsigned, times, ENUM/SET/BIT  04, eight bytes             09, uvarint
FLOAT, DOUBLE                  05, eight bytes             same
DECIMAL                        06, precision, scale, …     same
TIME                           07, eight bytes             08, varint
strings                        01, groups of the sort key  02, length and bytes
JSON, VECTOR                   0a, 14                      same
NULL                           00                          same
"""

from collections.abc import Callable

from tidebox.sql.codec.cells import Writer, cell_reader, is_unsigned_number, precision_and_scale
from tidebox.sql.codec.collation import SortKey, sort_key, text_bytes
from tidebox.sql.codec.datum import Datum
from tidebox.sql.codec.documents import write_document
from tidebox.sql.codec.numbers import (
    comparable_float,
    comparable_int,
    comparable_narrow,
    comparable_uint,
    decimal_size,
    decimal_writer,
    int_cell,
    read_comparable_int,
    read_comparable_uint,
    read_uvarint,
    read_varint,
    uint_cell,
    uvarint,
    varint,
)
from tidebox.sql.codec.times import nanoseconds, pack
from tidebox.sql.codec.vectors import write_vector
from tidemill.errors import CorruptDataError
from tidemill.model.table import STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.keys import decode_bytes, encode_bytes

NULL = b"\x00"
_BYTES, _COMPACT, _INT, _UINT, _FLOAT, _DECIMAL, _DURATION, _VARINT, _UVARINT, _JSON = range(1, 11)
_VECTOR = 20

_TAILS = tuple(bytes(8 - n) + bytes((0xF7 + n,)) for n in range(8))  # what fills up n bytes to one group


def key_writer(column: ColumnInfo, is_new_collation: bool = True) -> Writer:
    """Writes one column's values, NULL included, into keys: their order is that of the values."""
    if column.type in STRING_TYPES:
        return _string_key(sort_key(column.collate, is_new_collation))
    return _nullable(_plain_key(column))


def _string_key(weigh: SortKey) -> Writer:
    def write(value: str | bytes | None) -> bytes:
        if value is None:
            return NULL
        raw = weigh(value)
        size = len(raw)
        if size < 8:
            return b"\x01" + raw + _TAILS[size]
        if size < 16:
            return b"\x01" + raw[:8] + b"\xff" + raw[8:] + _TAILS[size - 8]
        return b"\x01" + encode_bytes(raw)

    return write


def _nullable(write: Writer) -> Writer:
    return lambda value: NULL if value is None else write(value)


def _plain_key(column: ColumnInfo) -> Writer:
    kind = column.type
    if kind in TIME_TYPES:
        return lambda value: b"\x04" + comparable_uint(pack(value))
    if is_unsigned_number(column):
        return lambda value: b"\x04" + comparable_uint(value)
    if kind is ColumnType.DURATION:
        return lambda value: b"\x07" + comparable_int(nanoseconds(value))
    if kind in _SAME_IN_BOTH or kind is ColumnType.NEWDECIMAL:
        return _same_in_both(column)
    return lambda value: b"\x03" + comparable_int(value)


def value_writer(column: ColumnInfo) -> Writer:
    """Writes one column's values, NULL included, where no order is asked for."""
    kind = column.type
    if kind in STRING_TYPES:
        return _nullable(_compact_bytes)
    if kind in TIME_TYPES:
        return _nullable(lambda value: b"\x09" + uvarint(pack(value)))
    if is_unsigned_number(column):
        return _nullable(lambda value: b"\x09" + uvarint(value))
    if kind is ColumnType.DURATION:
        return _nullable(lambda value: b"\x08" + varint(nanoseconds(value)))
    if kind in _SAME_IN_BOTH or kind is ColumnType.NEWDECIMAL:
        return _nullable(_same_in_both(column))
    return _nullable(lambda value: b"\x08" + varint(value))


def _compact_bytes(value: str | bytes) -> bytes:
    raw = text_bytes(value)
    return b"\x02" + varint(len(raw)) + raw


_SAME_IN_BOTH: dict[ColumnType, tuple[bytes, Writer]] = {
    ColumnType.FLOAT: (b"\x05", comparable_narrow),
    ColumnType.DOUBLE: (b"\x05", comparable_float),
    ColumnType.JSON: (b"\x0a", write_document),
    ColumnType.VECTOR: (b"\x14", write_vector),
}


def _same_in_both(column: ColumnInfo) -> Writer:
    if column.type is ColumnType.NEWDECIMAL:
        flag, write = b"\x06", decimal_writer(*precision_and_scale(column))
    else:
        flag, write = _SAME_IN_BOTH[column.type]
    return lambda value: flag + write(value)


# Reading: a flagged value is turned into the cell that row format v2 has for it, so one reader serves all.


def cut_cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    """The flagged value at ``at`` as a cell of row format v2 (None: NULL), and the position behind it."""
    if at >= len(data):
        raise CorruptDataError("a flagged value is missing")
    flag = data[at]
    at += 1
    if flag == 0:
        return None, at
    cut = _CUTS.get(flag)
    if cut is None:
        raise CorruptDataError(f"a value with the unknown flag {flag}")
    cell, end = cut(data, at)
    if end > len(data):
        raise CorruptDataError(f"a value with flag {flag} is cut off")
    return cell, end


def flagged_reader(column: ColumnInfo) -> Callable[[bytes, int], tuple[Datum, int]]:
    """Reads one column's value at a position. A string in a key comes back as its sort key."""
    read = cell_reader(column)

    def read_at(data: bytes, at: int) -> tuple[Datum, int]:
        cell, end = cut_cell(data, at)
        return (None if cell is None else read(cell)), end

    return read_at


def _eight(data: bytes, at: int) -> bytes:
    word = data[at : at + 8]
    if len(word) < 8:
        raise CorruptDataError("an eight-byte value is cut off")
    return word


def _cut_compact(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(data, at)
    if size < 0:
        raise CorruptDataError("a string of negative length")
    return data[at : at + size], at + size


def _cut_varint(data: bytes, at: int) -> tuple[bytes, int]:
    value, at = read_varint(data, at)
    return int_cell(value), at


def _cut_uvarint(data: bytes, at: int) -> tuple[bytes, int]:
    value, at = read_uvarint(data, at)
    return uint_cell(value), at


def _cut_decimal(data: bytes, at: int) -> tuple[bytes, int]:
    if at + 2 > len(data):
        raise CorruptDataError("a decimal is cut off before its precision and scale")
    end = at + 2 + decimal_size(data[at], data[at + 1])
    return data[at:end], end


def _cut_json(data: bytes, at: int) -> tuple[bytes, int]:
    """How long a document is depends on its type; containers tell their size behind the count."""
    code = data[at] if at < len(data) else 0
    if code in (0x01, 0x03):
        size = 1 + int.from_bytes(data[at + 5 : at + 9], "little")
    elif code == 0x04:
        size = 2
    elif code in (0x0C, 0x0D):
        length, behind = read_uvarint(data, at + (2 if code == 0x0D else 1))
        size = behind - at + length
    else:
        size = 13 if code == 0x11 else 9
    return data[at : at + size], at + size


def _cut_vector(data: bytes, at: int) -> tuple[bytes, int]:
    size = 4 + 4 * int.from_bytes(data[at : at + 4], "little")
    return data[at : at + size], at + size


_CUTS: dict[int, Callable[[bytes, int], tuple[bytes, int]]] = {
    _BYTES: decode_bytes,
    _COMPACT: _cut_compact,
    _INT: lambda data, at: (int_cell(read_comparable_int(_eight(data, at))), at + 8),
    _UINT: lambda data, at: (uint_cell(read_comparable_uint(_eight(data, at))), at + 8),
    _FLOAT: lambda data, at: (_eight(data, at), at + 8),
    _DECIMAL: _cut_decimal,
    _DURATION: lambda data, at: (int_cell(read_comparable_int(_eight(data, at))), at + 8),
    _VARINT: _cut_varint,
    _UVARINT: _cut_uvarint,
    _JSON: _cut_json,
    _VECTOR: _cut_vector,
}
