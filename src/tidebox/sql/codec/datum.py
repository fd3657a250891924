"""The values of columns as Python holds them. NULL is ``None``; the column says how the others are read.

    column type                      Python value
    TINYINT … BIGINT, BOOL, YEAR     int
    BIT(n)                           int, the bits as a number
    ENUM                             int, the element's number from 1; 0 is the empty element
    SET                              int, bit i for element i
    FLOAT, DOUBLE                    float; a FLOAT is rounded to four bytes when it is written
    DECIMAL(p, s)                    decimal.Decimal; precision and scale are the column's
    CHAR, VARCHAR, TEXT family       str; bytes that are not UTF-8 are kept as lone surrogates ("surrogateescape")
    BINARY, VARBINARY, BLOB family   bytes (any string column takes bytes as well)
    DATE, DATETIME, TIMESTAMP        Time, a TIMESTAMP in UTC; zero and incomplete dates exist
    TIME                             datetime.timedelta
    JSON                             Json, so that the document ``null`` is not NULL
    VECTOR                           tuple of floats

Range and length are the caller's to check, with MySQL's messages; the codec only refuses what has no bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Time(NamedTuple):
    """A moment of the calendar, as written: no time zone, and days that no calendar has (2024-00-00) allowed.

    It orders as MySQL orders it. All zeros is the zero date.
    """

    year: int = 0
    month: int = 0
    day: int = 0
    hour: int = 0
    minute: int = 0
    second: int = 0
    microsecond: int = 0


class JsonTimeKind(IntEnum):
    """Which of the three calendar types a moment inside a document has; the value is its type code."""

    DATE = 0x0E
    DATETIME = 0x0F
    TIMESTAMP = 0x10


class JsonUint(int):
    """A number in a document that came from an unsigned type: it stays one, however small it is.

    A plain int is signed if that holds it, as when a document is read from text.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonOpaque:
    """A value of a MySQL type that JSON has no own form for, such as binary strings."""

    type_code: int
    data: bytes


@dataclass(frozen=True, slots=True)
class JsonTime:
    kind: JsonTimeKind
    time: Time


@dataclass(frozen=True, slots=True)
class JsonDuration:
    duration: timedelta
    fsp: int = 6


JsonValue: TypeAlias = (
    bool
    | int
    | float
    | str
    | JsonOpaque
    | JsonTime
    | JsonDuration
    | Sequence["JsonValue"]
    | Mapping[str, "JsonValue"]
    | None
)


@dataclass(frozen=True, slots=True)
class Json:
    """A document: objects are dicts with str keys, arrays are lists, None is ``null``."""

    root: JsonValue


Vector: TypeAlias = tuple[float, ...]
Datum: TypeAlias = int | float | Decimal | str | bytes | Time | timedelta | Json | Vector | None
Row: TypeAlias = Sequence[Datum]  # in the order of TableInfo.columns, virtual columns included
