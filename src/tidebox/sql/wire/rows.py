"""Rows of a result in the two forms clients know: text, and binary for prepared statements.

What a session may give for each type, besides None:

    integers, YEAR          int, bool
    FLOAT, DOUBLE           float, int
    DECIMAL                 Decimal with its scale, int, or str
    DATE                    date, datetime, or str
    DATETIME, TIMESTAMP     datetime, or str; shown with as many fractional digits as the column's ``decimals``
    TIME                    timedelta, time, or str
    BIT                     int, or bytes with the highest byte first
    everything else         str, or bytes that go out as they are; JSON, ENUM, SET and vectors as their text

A str for a date or time is in MySQL's notation; it goes out unchanged as text, so it must have the
column's digits. It can be what Python's types cannot: ``0000-00-00``, ``838:59:59``.
A value of another type ends the result with an error.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from tidebox.sql.floats import show_double, show_float
from tidebox.sql.wire.columns import NOT_FIXED, NULL_TYPE, Column
from tidebox.sql.wire.packets import integer
from tidemill.model.table import ColumnType

# A session's values are of many types; each encoder raises TypeError or ValueError for those it does not know.
Encoder = Callable[[Any], bytes]
RowEncoder = Callable[[Sequence[object]], bytes]

_BATCH_ROWS: Final = 4096
_MICROSECOND = timedelta(microseconds=1)
_INTEGERS: Final = frozenset(
    {ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG, ColumnType.LONGLONG}
)
_DATETIMES: Final = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP})
_DATES: Final = frozenset({ColumnType.DATE, ColumnType.NEWDATE})


def rows_of(rows: Any) -> Iterator[Sequence[object]]:
    """The rows one by one, also those of an Arrow table."""
    if not hasattr(rows, "to_batches"):
        yield from rows
        return
    for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def text_encoder(columns: Sequence[Column]) -> RowEncoder:
    """Turns a row into a packet of the text protocol."""
    encoders = [_text_of(column) for column in columns]

    def encode(row: Sequence[object]) -> bytes:
        parts: list[bytes] = []
        for encoder, value in zip(encoders, row, strict=True):
            if value is None:
                parts.append(b"\xfb")
            else:
                data = encoder(value)
                parts += (integer(len(data)), data)
        return b"".join(parts)

    return encode


def binary_encoder(columns: Sequence[Column]) -> RowEncoder:
    """Turns a row into a packet of the binary protocol."""
    encoders = [_binary_of(column) for column in columns]
    bitmap_bytes = (len(columns) + 9) // 8

    def encode(row: Sequence[object]) -> bytes:
        nulls = 0
        parts: list[bytes] = [b"\0", b""]
        for index, (encoder, value) in enumerate(zip(encoders, row, strict=True)):
            if value is None:
                nulls |= 1 << index + 2
            else:
                parts.append(encoder(value))
        parts[1] = nulls.to_bytes(bitmap_bytes, "little")
        return b"".join(parts)

    return encode


# As text


def _text_of(column: Column) -> Encoder:
    kind = column.type
    fixed = column.shown_decimals
    # A table's own FLOAT(7,3) shows all its digits, as TiDB has it; an expression is rounded.
    decimals = fixed if 0 < fixed != NOT_FIXED and not column.table else None
    if kind in _INTEGERS:
        return _integer_text
    if kind == ColumnType.DOUBLE:
        return lambda value: show_double(float(value), decimals).encode()
    if kind == ColumnType.FLOAT:
        return lambda value: show_float(float(value), decimals).encode()
    if kind == ColumnType.YEAR:
        return lambda value: b"%04d" % value
    if kind in _DATES:
        return lambda value: _date_text(value).encode()
    if kind in _DATETIMES:
        return lambda value: _datetime_text(value, fixed).encode()
    if kind == ColumnType.DURATION:
        return lambda value: _time_text(value, fixed).encode()
    return _bytes_of(column)


def _bytes_of(column: Column) -> Encoder:
    """What both forms write as a string."""
    if column.type == ColumnType.NEWDECIMAL:
        return _decimal_text
    if column.type == ColumnType.BIT:
        size = (column.shown_length + 7) // 8
        return lambda value: value if isinstance(value, bytes) else int(value).to_bytes(size, "big")
    if column.type == NULL_TYPE:
        return _refuse_value
    return _plain


def _integer_text(value: Any) -> bytes:
    return b"%d" % value


def _decimal_text(value: Any) -> bytes:
    if isinstance(value, Decimal):
        return f"{value:f}".encode()
    if isinstance(value, int | str):
        return str(value).encode()
    raise TypeError(f"a DECIMAL cannot be made of {type(value).__name__}")


def _plain(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a string cannot be made of {type(value).__name__}")


def _refuse_value(value: Any) -> bytes:
    raise TypeError(f"a column of NULLs cannot hold {type(value).__name__}")


def _date_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        value = value.date()
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"a DATE cannot be made of {type(value).__name__}")


def _datetime_text(value: Any, decimals: int) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, datetime):
        raise TypeError(f"a DATETIME cannot be made of {type(value).__name__}")
    local: datetime = value if value.tzinfo is None else value.replace(tzinfo=None)
    shown = local.isoformat(" ", "microseconds")
    return shown[: 20 + decimals] if 0 < decimals <= 6 else shown[:19]


def _time_text(value: Any, decimals: int) -> str:
    if isinstance(value, str):
        return value
    micros = _microseconds(value)
    seconds, fraction = divmod(abs(micros), 1_000_000)
    shown = f"{'-' if micros < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{shown}.{fraction:06d}"[: len(shown) + 1 + decimals] if 0 < decimals <= 6 else shown


def _microseconds(value: Any) -> int:
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    raise TypeError(f"a TIME cannot be made of {type(value).__name__}")


# In binary

_FORMATS: Final[dict[int, tuple[str, str]]] = {  # signed, unsigned
    ColumnType.TINY: ("<b", "<B"),
    ColumnType.SHORT: ("<h", "<H"),
    ColumnType.YEAR: ("<H", "<H"),
    ColumnType.INT24: ("<i", "<I"),
    ColumnType.LONG: ("<i", "<I"),
    ColumnType.LONGLONG: ("<q", "<Q"),
    ColumnType.FLOAT: ("<f", "<f"),
    ColumnType.DOUBLE: ("<d", "<d"),
}


def _binary_of(column: Column) -> Encoder:
    kind = column.type
    if kind in _FORMATS:
        return struct.Struct(_FORMATS[kind][column.is_unsigned]).pack
    if kind in _DATES:
        return lambda value: _parsed_datetime(_date_text(value)[:10])
    if kind in _DATETIMES:
        return _binary_datetime
    if kind == ColumnType.DURATION:
        return _packed_time
    encode = _bytes_of(column)

    def with_length(value: Any) -> bytes:
        data = encode(value)
        return integer(len(data)) + data

    return with_length


def _binary_datetime(value: Any) -> bytes:
    if isinstance(value, datetime):
        return _packed_datetime(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
        )
    return _parsed_datetime(_datetime_text(value, 6))


def _parsed_datetime(shown: str) -> bytes:
    year, month, day = int(shown[:4]), int(shown[5:7]), int(shown[8:10])
    clock = shown[11:]
    hour, minute, second = (int(clock[:2]), int(clock[3:5]), int(clock[6:8])) if clock else (0, 0, 0)
    micros = int(clock[9:].ljust(6, "0")) if len(clock) > 9 else 0
    return _packed_datetime(year, month, day, hour, minute, second, micros)


def _packed_datetime(year: int, month: int, day: int, hour: int, minute: int, second: int, micros: int) -> bytes:
    if micros:
        return struct.pack("<BHBBBBBI", 11, year, month, day, hour, minute, second, micros)
    if hour or minute or second:
        return struct.pack("<BHBBBBB", 7, year, month, day, hour, minute, second)
    if year or month or day:
        return struct.pack("<BHBB", 4, year, month, day)
    return b"\0"


def _packed_time(value: Any) -> bytes:
    if isinstance(value, str):
        value = _parsed_time(value)
    micros = _microseconds(value)
    if micros == 0:
        return b"\0"
    seconds, fraction = divmod(abs(micros), 1_000_000)
    days, seconds = divmod(seconds, 86400)
    fields = (micros < 0, days, seconds // 3600, seconds // 60 % 60, seconds % 60)
    if fraction:
        return struct.pack("<BBIBBBI", 12, *fields, fraction)
    return struct.pack("<BBIBBB", 8, *fields)


def _parsed_time(shown: str) -> timedelta:
    clock, _, fraction = shown.removeprefix("-").partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    length = timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=int(fraction.ljust(6, "0") or 0))
    return -length if shown.startswith("-") else length
