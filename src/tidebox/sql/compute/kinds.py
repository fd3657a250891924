"""Types of expressions, and the settings under which they are computed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from tidebox.sql.wire.columns import NULL_TYPE
from tidemill.model.table import INTEGER_TYPES, ColumnInfo, ColumnType


class Kind(Enum):
    NULL = auto()
    INT = auto()
    DECIMAL = auto()
    REAL = auto()
    TEXT = auto()
    BYTES = auto()
    BITS = auto()  # a hexadecimal literal (bytes): a number among numbers
    BIT = auto()  # a BIT column (int): bytes among texts
    DATE = auto()
    DATETIME = auto()
    TIMESTAMP = auto()  # in the session's time zone
    TIME = auto()
    YEAR = auto()
    JSON = auto()
    ENUM = auto()  # an ``Element``
    SET = auto()
    VECTOR = auto()

    @property
    def is_number(self) -> bool:
        return self in _NUMBERS

    @property
    def is_string(self) -> bool:
        return self in _STRINGS

    @property
    def is_moment(self) -> bool:
        return self in _MOMENTS


_NUMBERS: Final = frozenset({Kind.INT, Kind.DECIMAL, Kind.REAL, Kind.YEAR, Kind.BIT})
_STRINGS: Final = frozenset({Kind.TEXT, Kind.BYTES, Kind.ENUM, Kind.SET, Kind.BITS})
_MOMENTS: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})


class Element(str):
    """The name of an ENUM's element, or of a SET's, that knows its number."""

    number: int
    __slots__ = ("number",)

    def __new__(cls, name: str, number: int) -> "Element":
        element = super().__new__(cls, name)
        element.number = number
        return element


class Type(NamedTuple):
    """``length`` in characters or digits, ``decimals`` the scale or the fractional digits; -1: not known."""

    kind: Kind
    is_unsigned: bool = False
    length: int = -1
    decimals: int = -1
    collation: str = ""  # of a text; empty: that of a literal, which any other overrules
    column: ColumnInfo | None = None  # if it is a column of a table

    @property
    def fsp(self) -> int:
        return max(self.decimals, 0)


NULL: Final = Type(Kind.NULL)
INT: Final = Type(Kind.INT)
UNSIGNED: Final = Type(Kind.INT, is_unsigned=True)
BOOL: Final = Type(Kind.INT, length=1)
REAL: Final = Type(Kind.REAL)
TEXT: Final = Type(Kind.TEXT)
BYTES: Final = Type(Kind.BYTES, collation="binary")
JSON: Final = Type(Kind.JSON)
DATE: Final = Type(Kind.DATE)

_KINDS: Final[dict[ColumnType, Kind]] = {
    **dict.fromkeys(INTEGER_TYPES, Kind.INT),
    ColumnType.FLOAT: Kind.REAL,
    ColumnType.DOUBLE: Kind.REAL,
    ColumnType.NEWDECIMAL: Kind.DECIMAL,
    ColumnType.TIMESTAMP: Kind.TIMESTAMP,
    ColumnType.DATETIME: Kind.DATETIME,
    ColumnType.DATE: Kind.DATE,
    ColumnType.NEWDATE: Kind.DATE,
    ColumnType.DURATION: Kind.TIME,
    ColumnType.YEAR: Kind.YEAR,
    ColumnType.BIT: Kind.BIT,
    ColumnType.JSON: Kind.JSON,
    ColumnType.ENUM: Kind.ENUM,
    ColumnType.SET: Kind.SET,
    ColumnType.VECTOR: Kind.VECTOR,
}


def type_of(column: ColumnInfo) -> Type:
    kind = _KINDS.get(column.type)
    if kind is None:
        kind = Kind.BYTES if column.is_binary else Kind.TEXT
    collation = column.collate if kind.is_string else ""
    decimals = column.decimal
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) and decimals < 0:
        decimals = 0
    return Type(kind, column.is_unsigned, column.flen, decimals, collation, column)


WIRE_TYPES: Final[dict[Kind, int]] = {
    Kind.NULL: NULL_TYPE,
    Kind.INT: ColumnType.LONGLONG,
    Kind.DECIMAL: ColumnType.NEWDECIMAL,
    Kind.REAL: ColumnType.DOUBLE,
    Kind.TEXT: ColumnType.VARSTRING,
    Kind.BYTES: ColumnType.VARSTRING,
    Kind.BITS: ColumnType.VARSTRING,
    Kind.BIT: ColumnType.BIT,
    Kind.DATE: ColumnType.DATE,
    Kind.DATETIME: ColumnType.DATETIME,
    Kind.TIMESTAMP: ColumnType.TIMESTAMP,
    Kind.TIME: ColumnType.DURATION,
    Kind.YEAR: ColumnType.YEAR,
    Kind.JSON: ColumnType.JSON,
    Kind.ENUM: ColumnType.ENUM,
    Kind.SET: ColumnType.SET,
    Kind.VECTOR: ColumnType.VECTOR,
}

Compute = Callable[[Any], Any]  # from a row to a value; rows are what whoever compiles says


class Computed(NamedTuple):
    """An expression that is ready to run. ``constant``: it gives the same for every row."""

    type: Type
    compute: Compute
    is_constant: bool = False


class Telling(Enum):
    """In which words a value that does not fit is refused: TiDB's differ by what the value is for."""

    VALUES = auto()  # of INSERT: by column and row
    UPDATE = auto()  # what is too large or too long by column and row, all else as a cast
    CAST = auto()  # of INSERT … SELECT and MODIFY COLUMN: a cast knows of no column


@dataclass
class Settings:
    """What a statement's values depend on besides its text. ``warnings`` collects (level, number, message)."""

    time_zone: tzinfo = UTC
    is_strict: bool = True
    no_zero_date: bool = True
    no_zero_in_date: bool = True
    error_for_division: bool = True
    is_writing: bool = False  # within a statement that changes rows: what would only warn is an error if strict
    is_ignore: bool = False
    telling: Telling = Telling.VALUES
    warnings: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def is_lenient(self) -> bool:
        """Bad values are bent to fit, with a warning."""
        return self.is_ignore or not self.is_strict


MICROSECOND: Final = timedelta(microseconds=1)
