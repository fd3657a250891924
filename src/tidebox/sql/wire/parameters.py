"""The parameters of a prepared statement, from the binary form in which clients send them.

    COM_STMT_EXECUTE ──► (statement id, parameters as Python values)

Integers are int, FLOAT and DOUBLE float, DECIMAL Decimal, texts str and BLOBs bytes. A text that is
not UTF-8 stays bytes, since some drivers send bytes under the type of a text. Dates and times are
str in MySQL's notation.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.packets import Reader, malformed
from tidemill.model.table import ColumnType

ParameterType = tuple[int, bool]  # type code, whether it is unsigned
Decoder = Callable[[Reader], object]

_DECIMAL = 0
_NULL = 6
_UNSIGNED = 0x80
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def read_parameters(
    reader: Reader, count: int, known_types: Sequence[ParameterType] | None, long_data: Mapping[int, bytes]
) -> tuple[list[object], Sequence[ParameterType] | None]:
    """Values of ``count`` parameters, and their types for the next time.

    Clients tell the types with the first execution only; ``known_types`` are those of the last one.
    A parameter in ``long_data`` has been sent before, in pieces.
    """
    if count == 0:
        return [], known_types
    nulls = int.from_bytes(reader.take((count + 7) // 8), "little")
    types = known_types
    if reader.unsigned(1) == 1:
        pairs = reader.take(2 * count)
        types = [(pairs[i], bool(pairs[i + 1] & _UNSIGNED)) for i in range(0, 2 * count, 2)]
    if types is None:
        raise sql_error(Errno.WRONG_ARGUMENTS, "mysqld_stmt_execute")
    values: list[object] = []
    for index, kind in enumerate(types):
        if index in long_data:
            values.append(long_data[index] if kind[0] in _BLOBS else _as_text(long_data[index]))
        elif nulls >> index & 1:
            values.append(None)
        else:
            values.append(decoder(kind)(reader))
    return values, types


def decoder(kind: ParameterType) -> Decoder:
    code, is_unsigned = kind
    found = (_UNSIGNED_DECODERS if is_unsigned else _DECODERS).get(code) or _DECODERS.get(code)
    if found is None:
        raise sql_error(Errno.UNKNOWN_FIELD_TYPE)
    return found


def _as_text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _decimal(reader: Reader) -> Decimal:
    data = reader.text()
    if not _NUMBER.fullmatch(data):  # Decimal itself takes more: underscores, infinities
        raise malformed()
    return Decimal(data.decode())


def _datetime(reader: Reader) -> str:
    length = reader.unsigned(1)
    if length == 0:
        return "0000-00-00 00:00:00"
    if length not in (4, 7, 11, 13):
        raise malformed()
    year, month, day = struct.unpack("<HBB", reader.take(4))
    shown = f"{year:04d}-{month:02d}-{day:02d}"
    if length == 4:
        return shown
    hour, minute, second = reader.take(3)
    shown += f" {hour:02d}:{minute:02d}:{second:02d}"
    if length >= 11:
        shown += f".{reader.unsigned(4):06d}"
    if length == 13:
        offset = reader.signed(2)
        shown += f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
    return shown


def _date(reader: Reader) -> str:
    return _datetime(reader)[:10]


def _time(reader: Reader) -> str:
    length = reader.unsigned(1)
    if length == 0:
        return "00:00:00"
    if length not in (8, 12):
        raise malformed()
    is_negative, days, hour, minute, second = struct.unpack("<BIBBB", reader.take(8))
    shown = f"{'-' if is_negative else ''}{days * 24 + hour:02d}:{minute:02d}:{second:02d}"
    return f"{shown}.{reader.unsigned(4):06d}" if length == 12 else shown


_BLOBS: Final = frozenset({ColumnType.TINYBLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.BLOB})
_TEXTS: Final = (
    ColumnType.VARCHAR,
    ColumnType.VARSTRING,
    ColumnType.STRING,
    ColumnType.ENUM,
    ColumnType.SET,
    ColumnType.JSON,
)
_DECODERS: Final[dict[int, Decoder]] = {
    _NULL: lambda reader: None,
    ColumnType.TINY: lambda reader: reader.signed(1),
    ColumnType.SHORT: lambda reader: reader.signed(2),
    ColumnType.YEAR: lambda reader: reader.unsigned(2),
    ColumnType.INT24: lambda reader: reader.signed(4),
    ColumnType.LONG: lambda reader: reader.signed(4),
    ColumnType.LONGLONG: lambda reader: reader.signed(8),
    ColumnType.FLOAT: lambda reader: struct.unpack("<f", reader.take(4))[0],
    ColumnType.DOUBLE: lambda reader: struct.unpack("<d", reader.take(8))[0],
    _DECIMAL: _decimal,
    ColumnType.NEWDECIMAL: _decimal,
    ColumnType.DATE: _date,
    ColumnType.NEWDATE: _date,
    ColumnType.DATETIME: _datetime,
    ColumnType.TIMESTAMP: _datetime,
    ColumnType.DURATION: _time,
    ColumnType.BIT: lambda reader: reader.text(),
    **dict.fromkeys(_BLOBS, lambda reader: reader.text()),
    **dict.fromkeys(_TEXTS, lambda reader: _as_text(reader.text())),
}
_UNSIGNED_DECODERS: Final[dict[int, Decoder]] = {
    ColumnType.TINY: lambda reader: reader.unsigned(1),
    ColumnType.SHORT: lambda reader: reader.unsigned(2),
    ColumnType.INT24: lambda reader: reader.unsigned(4),
    ColumnType.LONG: lambda reader: reader.unsigned(4),
    ColumnType.LONGLONG: lambda reader: reader.unsigned(8),
}
