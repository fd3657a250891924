"""From one type to another, inside expressions: what MySQL does silently, or with a warning."""

import math
import re
from datetime import timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from tidebox.sql.codec.collation import text_bytes
from tidebox.sql.codec.datum import Json, Time
from tidebox.sql.codec.documents import document_text
from tidebox.sql.codec.times import date_text, duration_text, time_text
from tidebox.sql.compute import temporal
from tidebox.sql.compute.kinds import Compute, Computed, Element, Kind, Settings, Type
from tidebox.sql.floats import positional, show_double, show_float
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.table import ColumnType

MATH: Final = Context(prec=200, Emax=10**6, Emin=-(10**6))
_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")


def warn(settings: Settings, errno: Errno, *facts: object) -> None:
    """Note a bad value; where rows are changed under strict rules it ends the statement."""
    complain(settings, sql_error(errno, *facts))


def complain(settings: Settings, error: SqlError) -> None:
    if settings.is_writing and not settings.is_lenient:
        raise error
    settings.warnings.append(("Warning", error.number, error.message))


def incorrect(kind: str, text: object) -> SqlError:
    return SqlError(1292, "22007", f"Incorrect {kind} value: '{text}'")


def vector_text(vector: tuple[float, ...]) -> str:
    """As TiDB prints it: the shortest digits of single precision, without an exponent."""
    parts = (positional(part, is_single=True) for part in vector)
    return f"[{','.join(parts)}]"


def numeric_prefix(text: str) -> tuple[str, bool]:
    """The number that a text begins with (``0`` if with none), and whether it is all of it."""
    found = _NUMBER.match(text)
    if found is None:
        return "0", False
    return found[1], not text[found.end() :].strip()


def fixed(value: Decimal, scale: int) -> Decimal:
    """With exactly ``scale`` fractional digits, rounded half up."""
    return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, MATH)


# To text


def shown(value: Any, kind: Type) -> str | bytes:
    """A value that is not NULL as text, or as bytes if it is binary."""
    match kind.kind:
        case Kind.TEXT | Kind.ENUM | Kind.SET | Kind.BYTES | Kind.BITS:
            return value  # type: ignore[no-any-return]  # str or bytes
        case Kind.INT | Kind.YEAR:
            return f"{value:04d}" if kind.kind is Kind.YEAR else str(value)
        case Kind.REAL:
            is_single = kind.column is not None and kind.column.type is ColumnType.FLOAT
            return show_float(value) if is_single else show_double(value)
        case Kind.DECIMAL:
            return f"{value:f}"
        case Kind.DATE:
            return date_text(value)
        case Kind.DATETIME | Kind.TIMESTAMP:
            return time_text(value, kind.fsp)
        case Kind.TIME:
            return duration_text(value, kind.fsp)
        case Kind.JSON:
            return document_text(value)
        case Kind.BIT:
            return int(value).to_bytes((max(kind.length, 1) + 7) // 8, "big")
        case Kind.VECTOR:
            return vector_text(value)
        case Kind.NULL:
            return ""


def as_text(computed: Computed) -> Compute:
    """Its values as str; those that are binary as str of their bytes, where they are no UTF-8 with surrogates."""
    kind, compute = computed.type, computed.compute
    if kind.kind in (Kind.TEXT, Kind.ENUM, Kind.SET):
        return compute

    def convert(row: Any) -> str | None:
        value = compute(row)
        if value is None:
            return None
        text = shown(value, kind)
        return text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")

    return convert


def as_bytes(computed: Computed) -> Compute:
    kind, compute = computed.type, computed.compute

    def convert(row: Any) -> bytes | None:
        value = compute(row)
        return None if value is None else text_bytes(shown(value, kind))

    return convert


# To numbers


def number(value: Any, kind: Type, settings: Settings) -> int | Decimal | float:
    """A value that is not NULL as the number it is among numbers."""
    match kind.kind:
        case Kind.INT | Kind.YEAR | Kind.BIT | Kind.DECIMAL | Kind.REAL:
            return value  # type: ignore[no-any-return]  # a number
        case Kind.ENUM | Kind.SET:
            return value.number if isinstance(value, Element) else real_of_text(value, settings)
        case Kind.TEXT:
            return real_of_text(value, settings)
        case Kind.BYTES:
            return real_of_text(value.decode("utf-8", "surrogateescape"), settings)
        case Kind.BITS:
            return int.from_bytes(value, "big")
        case Kind.DATE:
            return temporal.number_of_date(value)
        case Kind.DATETIME | Kind.TIMESTAMP:
            return temporal.number_of_moment(value, kind.fsp)
        case Kind.TIME:
            return temporal.number_of_duration(value, kind.fsp)
        case Kind.JSON:
            return number_of_json(value, settings)
        case _:
            warn(settings, Errno.TRUNCATED_WRONG_VALUE, "DOUBLE", shown(value, kind))
            return 0


def number_of_json(value: Json, settings: Settings) -> int | float:
    root = value.root
    if isinstance(root, bool):
        return int(root)
    if isinstance(root, int | float):
        return root
    if isinstance(root, str):
        return real_of_text(root, settings)
    warn(settings, Errno.TRUNCATED_WRONG_VALUE, "INTEGER", document_text(value))
    return 0


def real_of_text(text: str, settings: Settings) -> float:
    prefix, is_whole = numeric_prefix(text)
    if not is_whole:
        warn(settings, Errno.TRUNCATED_WRONG_VALUE, "DOUBLE", text)
    return float(prefix)


def real(value: Any, kind: Type, settings: Settings) -> float:
    return float(number(value, kind, settings))


def decimal(value: Any, kind: Type, settings: Settings) -> Decimal:
    if kind.kind is Kind.TEXT or kind.kind is Kind.BYTES:
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        prefix, is_whole = numeric_prefix(text)
        if not is_whole:
            warn(settings, Errno.TRUNCATED_WRONG_VALUE, "DECIMAL", text)
        return Decimal(prefix)
    found = number(value, kind, settings)
    return decimal_of_real(found) if isinstance(found, float) else Decimal(found)


def decimal_of_real(value: float) -> Decimal:
    """By its shortest digits."""
    return Decimal(repr(value)) if math.isfinite(value) else Decimal(0)


def integer(value: Any, kind: Type, settings: Settings) -> int:
    """Rounded; texts by their leading digits."""
    if kind.kind in (Kind.TEXT, Kind.BYTES):
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        found = re.match(r"\s*([+-]?\d+)", text)
        if found is None or text[found.end() :].strip():
            warn(settings, Errno.TRUNCATED_WRONG_VALUE, "INTEGER", text)
        return int(found[1]) if found else 0
    found_number = number(value, kind, settings)
    if isinstance(found_number, float):
        return round(found_number) if math.isfinite(found_number) else 0
    return int(Decimal(found_number).to_integral_value(ROUND_HALF_UP))


def truth(value: Any, kind: Type, settings: Settings) -> bool:
    """Of a value that is not NULL."""
    if kind.kind is Kind.JSON:
        return not (isinstance(value.root, int | float) and value.root == 0)
    return number(value, kind, settings) != 0


def as_number(computed: Computed, settings: Settings) -> Compute:
    kind, compute = computed.type, computed.compute
    if kind.kind in (Kind.INT, Kind.YEAR, Kind.BIT, Kind.DECIMAL, Kind.REAL):
        return compute

    def convert(row: Any) -> int | Decimal | float | None:
        value = compute(row)
        return None if value is None else number(value, kind, settings)

    return convert


# To moments


def moment(value: Any, kind: Type, settings: Settings, today: Time | None = None) -> Time | None:
    """A value that is not NULL as a DATETIME; None, with a warning, if it is none."""
    match kind.kind:
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return value  # type: ignore[no-any-return]  # a Time
        case Kind.TIME:
            base = today or temporal.ZERO
            if not temporal.is_real(base):
                return None
            return temporal.add(temporal.date_of(base), value)
        case Kind.INT | Kind.DECIMAL | Kind.YEAR | Kind.BIT | Kind.REAL:
            found = temporal.moment_of_number(decimal_of_real(value) if isinstance(value, float) else value)
            text = str(value)
        case Kind.JSON:
            text = value.root if isinstance(value.root, str) else document_text(value)
            found = _moment_of_text(text, settings)
        case _:
            raw = shown(value, kind)
            text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")
            found = _moment_of_text(text, settings)
    if found is None or not temporal.is_possible(found):
        complain(settings, incorrect("datetime", text))
        return None
    return found


def _moment_of_text(text: str, settings: Settings) -> Time | None:
    parsed = temporal.parse_moment(text)
    if parsed is None:
        return None
    found, offset = parsed
    if offset is not None:
        try:
            return temporal.from_utc(temporal.add(found, -offset), settings.time_zone)
        except (ValueError, OverflowError):
            return None
    return found


def duration(value: Any, kind: Type, settings: Settings) -> timedelta | None:
    match kind.kind:
        case Kind.TIME:
            return value  # type: ignore[no-any-return]  # a timedelta
        case Kind.DATE:
            return timedelta()
        case Kind.DATETIME | Kind.TIMESTAMP:
            return temporal.clock_of(value)
        case Kind.INT | Kind.DECIMAL | Kind.REAL | Kind.YEAR | Kind.BIT:
            found_number = decimal_of_real(value) if isinstance(value, float) else value
            text = f"{found_number:f}" if isinstance(found_number, Decimal) else str(found_number)
        case _:
            raw = value.root if kind.kind is Kind.JSON and isinstance(value.root, str) else shown(value, kind)
            text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")
    found = temporal.parse_duration(text)
    if found is None or abs(found) > temporal.MAX_DURATION:
        warn(settings, Errno.TRUNCATED_WRONG_VALUE, "time", text)
        if found is None:
            return None
        return temporal.MAX_DURATION if found > timedelta() else -temporal.MAX_DURATION
    return found
