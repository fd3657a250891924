"""CAST, typed literals, and the one type that several expressions have in common."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tidebox.sql.codec.collation import text_bytes
from tidebox.sql.codec.datum import Json, JsonDuration, JsonOpaque, JsonTime, JsonTimeKind, JsonUint, JsonValue
from tidebox.sql.codec.documents import parse_document
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.compare import common_collation
from tidebox.sql.compute.kinds import JSON, NULL, Compute, Computed, Kind, Settings, Type
from tidebox.sql.compute.operators import (
    SIGNED_MAX,
    SIGNED_MIN,
    UNSIGNED_MAX,
    rescaled,
    scale_of,
)
from tidebox.sql.compute.scope import Context
from tidebox.sql.wire.errors import Errno, sql_error


def typed(kind: str, text: str, context: Context) -> Computed:
    """``DATE '…'`` and its like; a text that is none is an error."""
    if kind == "TIME":
        size = temporal.parse_duration(text)
        if size is None:
            raise convert.incorrect("time", text)
        digits = Type(Kind.TIME, decimals=_digits(text))
        return Computed(digits, lambda row: size, True)
    parsed = temporal.parse_moment(text)
    if parsed is None or not temporal.is_possible(parsed[0]):
        raise convert.incorrect("date" if kind == "DATE" else "datetime", text)
    if kind == "DATE":
        day = temporal.date_of(parsed[0])
        return Computed(Type(Kind.DATE), lambda row: day, True)
    return Computed(Type(Kind.DATETIME, decimals=_digits(text)), lambda row: parsed[0], True)


def _digits(text: str) -> int:
    return min(len(text.rpartition(".")[2].strip()), 6) if "." in text else 0


def cast(side: Computed, target: str, length: int, scale: int, context: Context) -> Computed:
    settings, kind = context.settings, side.type
    if target == "BINARY":
        raw = convert.as_bytes(side)
        if length < 0:
            return Computed(Type(Kind.BYTES, collation="binary"), raw, side.is_constant)
        return Computed(
            Type(Kind.BYTES, length=length, collation="binary"),
            _mapped(raw, lambda value: value[:length].ljust(length, b"\0")),
            side.is_constant,
        )
    if target == "CHAR":
        text = convert.as_text(side)
        if length >= 0:
            text = _mapped(text, lambda value: value[:length])
        return Computed(Type(Kind.TEXT, length=length), text, side.is_constant)
    change, result = _changes(kind, target, length, scale, context)
    return Computed(result, _mapped(side.compute, change), side.is_constant) if settings else side


def _changes(kind: Type, target: str, length: int, scale: int, context: Context) -> tuple[Callable[[Any], Any], Type]:
    settings = context.settings
    match target:
        case "SIGNED":
            return lambda value: _signed(convert.integer(value, kind, settings)), Type(Kind.INT)
        case "UNSIGNED":
            return lambda value: _unsigned(convert.integer(value, kind, settings)), Type(Kind.INT, True)
        case "DECIMAL":
            precision, digits = (length if length >= 0 else 10), max(scale, 0)
            return (
                lambda value: _bounded(convert.decimal(value, kind, settings), precision, digits, settings),
                Type(Kind.DECIMAL, length=precision, decimals=digits),
            )
        case "DOUBLE" | "FLOAT":
            return lambda value: convert.real(value, kind, settings), Type(Kind.REAL)
        case "YEAR":
            return lambda value: convert.integer(value, kind, settings), Type(Kind.YEAR)
        case "DATE":

            def to_date(value: Any) -> Any:
                found = convert.moment(value, kind, settings, context.now)
                return None if found is None else temporal.date_of(found)

            return to_date, Type(Kind.DATE)
        case "DATETIME":
            digits = max(length, 0)

            def to_moment(value: Any) -> Any:
                found = convert.moment(value, kind, settings, context.now)
                return None if found is None else temporal.round_moment(found, digits)

            return to_moment, Type(Kind.DATETIME, decimals=digits)
        case "TIME":
            digits = max(length, 0)

            def to_duration(value: Any) -> Any:
                found = convert.duration(value, kind, settings)
                return None if found is None else temporal.round_duration(found, digits)

            return to_duration, Type(Kind.TIME, decimals=digits)
        case "JSON":
            return lambda value: to_json(value, kind, is_parsed=True), JSON
        case _:
            raise sql_error(Errno.NOT_SUPPORTED_YET, f"CAST AS {target}")


def _mapped(compute: Compute, change: Callable[[Any], Any]) -> Compute:
    def mapped(row: Any) -> Any:
        value = compute(row)
        return None if value is None else change(value)

    return mapped


def _signed(value: int) -> int:
    """More than a signed number holds is taken by its bits, as far as 64 of them go."""
    if value > SIGNED_MAX:
        return value - (1 << 64) if value <= UNSIGNED_MAX else SIGNED_MAX
    return max(value, SIGNED_MIN)


def _unsigned(value: int) -> int:
    return value & UNSIGNED_MAX if value >= SIGNED_MIN else 0


def _bounded(value: Decimal, precision: int, scale: int, settings: Settings) -> Decimal:
    found = rescaled(value, scale)
    most = convert.MATH.subtract(Decimal(10 ** (precision - scale)), Decimal(1).scaleb(-scale))
    if found.copy_abs() > most:
        convert.warn(settings, Errno.DATA_OUT_OF_RANGE, "DECIMAL", f"({precision}, {scale})")
        return most if found > 0 else most.copy_negate()
    return found


# Documents


def to_json(value: Any, kind: Type, *, is_parsed: bool) -> Json:
    """A value that is not NULL as a document. ``is_parsed``: a text is read as one; else it is a JSON string."""
    match kind.kind:
        case Kind.JSON:
            return value  # type: ignore[no-any-return]  # it is one
        case Kind.TEXT | Kind.ENUM | Kind.SET:
            if is_parsed and kind.kind is Kind.TEXT:
                return document_of(value)
            return Json(str(value))
        case _:
            return Json(_scalar(value, kind))


def document_of(text: str) -> Json:
    try:
        return parse_document(text)
    except (ValueError, RecursionError) as error:
        what = (
            "The document is empty" if not text.strip() else "The document root must not be followed by other values."
        )
        raise sql_error(Errno.INVALID_JSON_TEXT, what) from error


def _scalar(value: Any, kind: Type) -> JsonValue:
    match kind.kind:
        case Kind.INT:
            if kind.length == 1 and kind.column is None and kind.decimals < 0 and not kind.is_unsigned:
                return bool(value)
            return JsonUint(value) if kind.is_unsigned else int(value)
        case Kind.YEAR:
            return JsonUint(value)
        case Kind.REAL:
            return float(value)
        case Kind.DECIMAL:
            return float(value)
        case Kind.DATE:
            return JsonTime(JsonTimeKind.DATE, value)
        case Kind.DATETIME:
            return JsonTime(JsonTimeKind.DATETIME, value)
        case Kind.TIMESTAMP:
            return JsonTime(JsonTimeKind.TIMESTAMP, value)
        case Kind.TIME:
            return JsonDuration(value)  # always with all six digits
        case Kind.BIT:
            return JsonOpaque(16, text_bytes(convert.shown(value, kind)))
        case Kind.BYTES | Kind.BITS:
            code = kind.column.type if kind.column is not None else 253
            return JsonOpaque(int(code), bytes(value))
        case _:
            raise sql_error(Errno.INVALID_JSON_TEXT, "a value that JSON has no form for")


# What several have in common


def unified(sides: list[Computed], context: Context) -> tuple[Type, list[Compute]]:
    """One type for all, as CASE, IF, COALESCE and UNION have it, and each turned into it."""
    types = [side.type for side in sides if side.type.kind is not Kind.NULL]
    if not types:
        return NULL, [side.compute for side in sides]
    kind = common_type(types)
    return kind, [turned(side, kind, context.settings) for side in sides]


def common_type(types: list[Type]) -> Type:
    kinds = {t.kind for t in types}
    if len(set(types)) == 1:
        return types[0]._replace(column=types[0].column if len(types) == 1 else None)
    whole = {Kind.INT, Kind.YEAR, Kind.BIT}
    if kinds <= whole:
        unsigned = {t.is_unsigned for t in types}
        if len(unsigned) == 1:
            return Type(Kind.INT, unsigned.pop())
        return Type(Kind.DECIMAL, length=20, decimals=0)
    if kinds <= whole | {Kind.DECIMAL}:
        return Type(Kind.DECIMAL, length=65, decimals=max(scale_of(t) for t in types))
    if kinds <= whole | {Kind.DECIMAL, Kind.REAL}:
        return Type(Kind.REAL)
    if kinds == {Kind.JSON}:
        return JSON
    if kinds == {Kind.TIME}:
        return Type(Kind.TIME, decimals=max(t.fsp for t in types))
    if kinds == {Kind.DATE}:
        return Type(Kind.DATE)
    if all(kind.is_moment for kind in kinds):
        return Type(Kind.DATETIME, decimals=max(t.fsp for t in types))
    if kinds & {Kind.BYTES, Kind.BITS, Kind.BIT}:
        return Type(Kind.BYTES, collation="binary")
    texts = [t for t in types if t.kind.is_string]
    return Type(Kind.TEXT, collation=common_collation(texts) if any(t.collation for t in texts) else "")


def turned(side: Computed, kind: Type, settings: Settings) -> Compute:
    """Its values as those of ``kind``."""
    if side.type.kind is kind.kind or side.type.kind is Kind.NULL:
        return side.compute
    source = side.type
    match kind.kind:
        case Kind.TEXT:
            return convert.as_text(side)
        case Kind.BYTES:
            return convert.as_bytes(side)
        case Kind.DECIMAL:
            return _mapped(side.compute, lambda value: convert.decimal(value, source, settings))
        case Kind.REAL:
            return _mapped(side.compute, lambda value: convert.real(value, source, settings))
        case Kind.INT:
            return convert.as_number(side, settings)
        case Kind.DATETIME:
            return _mapped(side.compute, lambda value: convert.moment(value, source, settings))
        case _:
            return side.compute
