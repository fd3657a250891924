"""Values of expressions: their kinds, how Arrow holds them while they are computed, and how one becomes another.

An expression is compiled once for a table into ``Value``s; each computes an Arrow array (or a scalar, for what is the
same in every row) from an image of rows. Conversions are MySQL's.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.table import INTEGER_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.collation import general_ci

Data: TypeAlias = Any  # pa.Array or pa.Scalar: Arrow's functions take and give either
Compute: TypeAlias = Callable[[pa.RecordBatch], Data]


class Kind(Enum):
    """The word is how messages call it."""

    NULL = "NULL"
    BOOL = "truth value"
    INT = "integer"
    UINT = "unsigned integer"
    DECIMAL = "DECIMAL"
    REAL = "floating-point number"
    TEXT = "text"
    BYTES = "binary"
    DATE = "DATE"
    DATETIME = "DATETIME"
    TIME = "TIME"
    YEAR = "YEAR"
    ENUM = "ENUM"
    SET = "SET"
    JSON = "JSON"
    VECTOR = "VECTOR"


INTEGERS: Final = frozenset({Kind.BOOL, Kind.INT, Kind.UINT, Kind.YEAR})
NUMBERS: Final = INTEGERS | {Kind.DECIMAL, Kind.REAL}
TEXTS: Final = frozenset({Kind.TEXT, Kind.BYTES, Kind.ENUM, Kind.SET})
MOMENTS: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIME})
MOST_DIGITS: Final = 76  # of Arrow's decimals

_KINDS: Final[dict[ColumnType, Kind]] = {
    ColumnType.BIT: Kind.UINT,
    ColumnType.YEAR: Kind.YEAR,
    ColumnType.FLOAT: Kind.REAL,
    ColumnType.DOUBLE: Kind.REAL,
    ColumnType.NEWDECIMAL: Kind.DECIMAL,
    ColumnType.DATE: Kind.DATE,
    ColumnType.NEWDATE: Kind.DATE,
    ColumnType.DATETIME: Kind.DATETIME,
    ColumnType.TIMESTAMP: Kind.DATETIME,
    ColumnType.DURATION: Kind.TIME,
    ColumnType.ENUM: Kind.ENUM,
    ColumnType.SET: Kind.SET,
    ColumnType.JSON: Kind.JSON,
    ColumnType.VECTOR: Kind.VECTOR,
}


class Unfit(Exception):
    """What an expression asks of these kinds has no meaning here; the text says what and what to do."""


@dataclass(frozen=True, slots=True)
class Value:
    kind: Kind
    compute: Compute
    constant: Any = None  # the Python value, if it is the same for every row
    is_constant: bool = False
    digits: int = 0  # of a DECIMAL: all of them, and those after the point
    scale: int = 0
    collation: str = ""  # of a text; empty: of a literal, which any other overrules
    column: ColumnInfo | None = None


def constant(value: Any) -> Value:
    """A literal."""
    if value is None:
        return Value(Kind.NULL, lambda rows: pa.scalar(None), None, True)
    if isinstance(value, bool):
        return _scalar(Kind.BOOL, pa.scalar(value), value)
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return _scalar(Kind.INT, pa.scalar(value, pa.int64()), value)
        if 0 <= value < 1 << 64:
            return _scalar(Kind.UINT, pa.scalar(value, pa.uint64()), value)
        value = Decimal(value)
    if isinstance(value, Decimal):
        _, figures, exponent = value.as_tuple()
        scale = max(-int(exponent), 0)
        digits = max(len(figures), scale)
        if digits > 65 or scale > 30:
            raise Unfit("a number of more than 65 digits, or 30 after the point")
        held = _scalar(Kind.DECIMAL, pa.scalar(value, pa.decimal256(digits, scale)), value)
        return replace(held, digits=digits, scale=scale)
    if isinstance(value, float):
        return _scalar(Kind.REAL, pa.scalar(value, pa.float64()), value)
    if isinstance(value, bytes):
        return replace(_scalar(Kind.BYTES, pa.scalar(value, pa.binary()), value), collation="binary")
    return _scalar(Kind.TEXT, pa.scalar(value, pa.string()), value)


def _scalar(kind: Kind, held: pa.Scalar, value: Any) -> Value:
    return Value(kind, lambda rows: held, value, True)


def of_column(column: ColumnInfo, place: int) -> Value:
    """A column that stands at ``place`` among those of the image."""
    if column.type in INTEGER_TYPES:
        kind = Kind.UINT if column.is_unsigned else Kind.INT
    else:
        kind = _KINDS.get(column.type, Kind.BYTES if column.is_binary else Kind.TEXT)

    def compute(rows: pa.RecordBatch) -> Data:
        return rows.column(place)

    value = Value(kind, compute, column=column)
    if kind is Kind.DECIMAL:
        digits, scale = (column.flen if column.flen > 0 else 10), max(column.decimal, 0)
        return replace(value, compute=_cast(compute, pa.decimal256(digits, scale)), digits=digits, scale=scale)
    if kind is Kind.REAL:
        return replace(value, compute=_cast(compute, pa.float64()))
    return replace(value, collation=column.collate) if kind in TEXTS else value


def _cast(compute: Compute, to: pa.DataType, *, safe: bool = True) -> Compute:
    return lambda rows: pc.cast(compute(rows), to, safe=safe)


# To numbers


def as_real(value: Value) -> Value:
    compute = value.compute
    if value.kind is Kind.REAL:
        return value
    if value.kind in (Kind.TEXT, Kind.BYTES):
        if value.is_constant:
            return constant(float(number_in(value.constant)))
        return Value(Kind.REAL, lambda rows: _text_as_real(compute(rows)))
    value = as_exact(value)
    if value.is_constant:
        return constant(float(value.constant))
    return Value(Kind.REAL, _cast(value.compute, pa.float64(), safe=False))


def as_exact(value: Value) -> Value:
    """As a whole number or DECIMAL, from a kind that is one underneath."""
    match value.kind:
        case Kind.INT | Kind.UINT | Kind.DECIMAL:
            return value
        case Kind.BOOL:
            held = int(value.constant) if value.is_constant else None
            return replace(value, kind=Kind.INT, compute=_cast(value.compute, pa.int64()), constant=held)
        case Kind.YEAR:
            return replace(value, kind=Kind.INT)
        case Kind.ENUM | Kind.SET:
            return replace(value, kind=Kind.UINT, collation="")
        case Kind.BYTES if value.is_constant:  # a hexadecimal literal among numbers
            if len(value.constant) > 8:
                raise Unfit("a hexadecimal number of more than 8 bytes")
            return constant(int.from_bytes(value.constant, "big"))
    raise Unfit(f"a number made of a {value.kind.value}")


def as_number(value: Value) -> Value:
    """As arithmetic takes it."""
    if value.kind in (Kind.TEXT, Kind.BYTES) and not (value.kind is Kind.BYTES and value.is_constant):
        return as_real(value)
    return value if value.kind is Kind.REAL else as_exact(value)


def as_decimal(value: Value) -> Value:
    value = as_exact(value)
    if value.kind is Kind.DECIMAL:
        return value
    digits = 20 if value.kind is Kind.UINT else 19
    return replace(
        value, kind=Kind.DECIMAL, compute=_cast(value.compute, pa.decimal256(digits, 0)), digits=digits, scale=0
    )


_NUMBER: Final = r"[ \t\n\v\f\r]*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"


def number_in(text: str | bytes) -> Decimal:
    """The number with which a text begins; 0 if with none."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    found = re.match(_NUMBER, text)
    return Decimal(found[1]) if found else Decimal(0)


def _text_as_real(data: Data) -> Data:
    if pa.types.is_binary(data.type):
        data = map_distinct(data, lambda raw: raw.decode("latin-1"), pa.string())
    begun = pc.struct_field(pc.extract_regex(data, f"^{_NUMBER.replace('([', '(?P<n>[', 1)}"), 0)
    numbers = pc.cast(pc.if_else(pc.equal(begun, ""), None, begun), pa.float64())
    return pc.if_else(pc.is_valid(data), pc.fill_null(numbers, 0.0), None)


# To texts


def as_text(value: Value) -> Value:
    """As functions of texts take it."""
    compute, column = value.compute, value.column
    match value.kind:
        case Kind.TEXT | Kind.BYTES:
            return value
        case Kind.BOOL | Kind.INT | Kind.UINT | Kind.YEAR:
            exact = as_exact(value)
            return Value(Kind.TEXT, _cast(exact.compute, pa.string()), None)
        case Kind.DATE | Kind.DATETIME | Kind.TIME if column is not None:
            return Value(Kind.TEXT, compute)
        case Kind.ENUM | Kind.SET if column is not None:
            elems, is_set = column.elems, value.kind is Kind.SET
            return Value(
                Kind.TEXT,
                lambda rows: map_distinct(compute(rows), lambda number: element(number, elems, is_set), pa.string()),
                collation=value.collation,
            )
    raise Unfit(f"a text made of a {value.kind.value}")


def element(number: int, elems: tuple[str, ...], is_set: bool) -> str:
    """What an ENUM's index or a SET's bitmap stands for; an index of 0 is the empty text."""
    if is_set:
        return ",".join(elem for bit, elem in enumerate(elems) if number >> bit & 1)
    return elems[number - 1] if 1 <= number <= len(elems) else ""


def map_distinct(data: Data, function: Callable[[Any], Any], to: pa.DataType) -> Data:
    """Applies a Python function to each distinct value, of which there should be far fewer than rows."""
    if isinstance(data, pa.Scalar):
        return pa.scalar(function(data.as_py()) if data.is_valid else None, to)
    encoded = data.dictionary_encode()
    return pa.array([function(v) for v in encoded.dictionary.to_pylist()], to).take(encoded.indices)


# Collations

_PADDED: Final = frozenset({"", "utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin"})
_PLAIN: Final = frozenset({"binary", "utf8mb4_0900_bin"})
_GENERAL: Final = frozenset({"utf8mb4_general_ci", "utf8_general_ci"})


def common_collation(*values: Value) -> str:
    """In which the texts are compared."""
    named = {v.collation for v in values if v.collation}
    if "binary" in named:
        return "binary"
    if len(named) > 1:  # of two of one character set the binary one counts
        named = {name for name in named if name.endswith("_bin")}
    if len(named) != 1 and any(v.collation for v in values):
        raise Unfit("texts of several collations together")
    collation = next(iter(named), "")
    if collation not in _PADDED | _PLAIN | _GENERAL:
        raise Unfit(f"a text in collation {collation}")
    return collation


def is_folding(collation: str) -> bool:
    return collation in _GENERAL


def sort_key(data: Data, collation: str) -> Data:
    """Texts that are equal, and sorted, as the collation has them."""
    if collation in _PLAIN:
        return data
    trimmed = pc.utf8_rtrim(data, " ")
    return weights(trimmed) if is_folding(collation) else trimmed


def weights(data: Data) -> Data:
    """Each character of general_ci as the one that it counts as."""
    return map_distinct(data, general_ci, pa.string())
