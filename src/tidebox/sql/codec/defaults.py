"""What a column shows in rows that lack it: the default it was added with, else NULL, else its type's zero."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

from tidebox.sql.codec.datum import Datum, Json, Time
from tidebox.sql.codec.documents import parse_document
from tidebox.sql.codec.numbers import narrow
from tidebox.sql.codec.times import parse_duration, parse_time
from tidemill.errors import SchemaError
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType


def original_default(column: ColumnInfo) -> Datum:
    """For rows that were written before the column was there, or that leave it out as TiDB does with NULL."""
    if column.type is ColumnType.BIT and column.origin_default_bit is not None:
        return int.from_bytes(column.origin_default_bit, "big")
    if column.origin_default is not None:
        return parse_literal(column, column.origin_default)
    return zero_value(column) if column.is_not_null else None


def zero_value(column: ColumnInfo) -> Datum:
    """What a NOT NULL column shows that has no default."""
    if column.type is ColumnType.ENUM:
        return 1
    if column.type in STRING_TYPES:
        if column.type is ColumnType.STRING and column.is_binary:
            return bytes(max(column.flen, 0))
        return b"" if column.is_binary else ""
    if column.type in TIME_TYPES:
        return Time()
    return _ZEROS.get(column.type, 0)


_ZEROS: dict[ColumnType, Datum] = {
    ColumnType.FLOAT: 0.0,
    ColumnType.DOUBLE: 0.0,
    ColumnType.NEWDECIMAL: Decimal(0),
    ColumnType.DURATION: timedelta(),
    ColumnType.JSON: Json(None),
    ColumnType.VECTOR: (),
}


def parse_literal(column: ColumnInfo, text: str) -> Datum:
    """The value of a default, which schemas keep as text whatever the type (a TIMESTAMP's in UTC)."""
    try:
        if column.type in STRING_TYPES:
            return _string(column, text)
        if column.type is ColumnType.ENUM:
            return _element(column.elems, text) if text else 0
        if column.type is ColumnType.SET:
            return sum({1 << (_element(column.elems, name) - 1) for name in text.split(",")}) if text else 0
        if column.type is ColumnType.VECTOR:
            return tuple(narrow(float(part)) for part in text.strip("[]").split(",") if part)
        if column.type in TIME_TYPES:
            return parse_time(text)
        if column.type in INTEGER_TYPES:
            return int(text)
        if column.type is ColumnType.YEAR:
            return _year(int(text))
        return _PARSERS[column.type](text)
    except (ValueError, ArithmeticError) as error:
        raise SchemaError(
            f"column {column.name!r} has a default that is no {column.type.name}: {error}. "
            "The schema was not written by TiDB, or by a version that this one does not know."
        ) from error


_PARSERS: dict[ColumnType, Callable[[str], Datum]] = {
    ColumnType.FLOAT: lambda text: narrow(float(text)),
    ColumnType.DOUBLE: float,
    ColumnType.NEWDECIMAL: Decimal,
    ColumnType.DURATION: parse_duration,
    ColumnType.JSON: parse_document,
    ColumnType.BIT: lambda text: int.from_bytes(text.encode("latin-1"), "big"),
}


def _year(year: int) -> int:
    """Kept as it was written, of two digits too."""
    return year + (2000 if year < 70 else 1900) if 0 < year < 100 else year


def _string(column: ColumnInfo, text: str) -> Datum:
    if not column.is_binary:
        return text
    raw = text.encode()
    return raw.ljust(column.flen, b"\0") if column.type is ColumnType.STRING and column.flen > 0 else raw


def _element(elements: tuple[str, ...], name: str) -> int:
    """From 1. Elements differ by more than case, so a match without case is the one meant."""
    folded = name.casefold()
    for number, element in enumerate(elements, 1):
        if element.casefold() == folded:
            return number
    raise ValueError("no such element")
