"""Which of two values is greater: by type, and for texts by collation."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tidebox.sql.codec.collation import sort_key, text_bytes
from tidebox.sql.codec.datum import Json, JsonDuration, JsonOpaque, JsonTime
from tidebox.sql.compute import convert
from tidebox.sql.compute.kinds import Compute, Computed, Kind, Settings, Type
from tidebox.sql.wire.errors import Errno, sql_error

DEFAULT_COLLATION: Final = "utf8mb4_bin"
_PLAIN_NUMBERS: Final = frozenset({Kind.INT, Kind.DECIMAL, Kind.YEAR, Kind.BIT})
_TEXTS: Final = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET, Kind.BYTES, Kind.BITS})


def common_collation(types: list[Type]) -> str:
    """That of the columns among them; bytes win over texts."""
    found = {t.collation for t in types if t.kind in _TEXTS and t.collation}
    if any(t.kind is Kind.BYTES for t in types) or "binary" in found:
        return "binary"
    if len(found) > 1:
        for charset in ("utf8mb4_", "utf8_"):  # they hold what the others hold
            wide = {name for name in found if name.startswith(charset)}
            if wide:
                found = wide
                break
        if len(found) == 1:
            return found.pop()
        binary = {name for name in found if name.endswith("_bin")}
        if len(binary) == 1 and len({name.partition("_")[0] for name in found}) == 1:
            return binary.pop()
        names = sorted(found)
        raise sql_error(Errno.CANT_AGGREGATE_2COLLATIONS, names[0], "IMPLICIT", names[1], "IMPLICIT", "=")
    return found.pop() if found else DEFAULT_COLLATION


def comparables(left: Computed, right: Computed, settings: Settings) -> tuple[Compute, Compute]:
    """Functions from a row to keys of both sides that Python compares as MySQL compares the values."""
    kinds = {left.type.kind, right.type.kind}
    if Kind.NULL in kinds:
        return left.compute, right.compute
    if kinds <= _PLAIN_NUMBERS:
        return left.compute, right.compute
    if Kind.JSON in kinds:
        return _mapped(left, json_key_of(left.type)), _mapped(right, json_key_of(right.type))
    if kinds <= _TEXTS:
        weigh = sort_key(common_collation([left.type, right.type]))
        return _mapped(left, weigh), _mapped(right, weigh)
    if Kind.VECTOR in kinds:
        return _mapped(left, _vector_of(left.type)), _mapped(right, _vector_of(right.type))
    if left.type.kind.is_moment or right.type.kind.is_moment:
        if kinds & _PLAIN_NUMBERS or Kind.REAL in kinds:
            return _as_numbers(left, right, settings)
        return _mapped(left, _moment_of(left.type, settings)), _mapped(right, _moment_of(right.type, settings))
    if Kind.TIME in kinds and not (kinds & _PLAIN_NUMBERS or Kind.REAL in kinds):
        return _mapped(left, _duration_of(left.type, settings)), _mapped(right, _duration_of(right.type, settings))
    return _as_numbers(left, right, settings)


def _as_numbers(left: Computed, right: Computed, settings: Settings) -> tuple[Compute, Compute]:
    return _number_beside(left, right.type, settings), _number_beside(right, left.type, settings)


def _number_beside(side: Computed, other: Type, settings: Settings) -> Compute:
    kind = side.type
    if kind.kind in (Kind.TEXT, Kind.BYTES) and side.is_constant and other.kind in _PLAIN_NUMBERS:
        # A text that is written beside a number is taken for that number, exactly.
        return _mapped(side, lambda value: convert.decimal(value, kind, settings))
    is_real = kind.kind is Kind.REAL or other.kind is Kind.REAL or kind.kind in (Kind.TEXT, Kind.BYTES)
    if is_real or (other.kind in (Kind.TEXT, Kind.BYTES) and kind.kind is not Kind.DECIMAL):
        if kind.kind in _PLAIN_NUMBERS and other.kind is not Kind.REAL:
            return side.compute
        return _mapped(side, lambda value: convert.real(value, kind, settings))
    return convert.as_number(side, settings)


def _mapped(side: Computed, convert_value: Callable[[Any], Any]) -> Compute:
    compute = side.compute
    if side.is_constant:
        return _once(compute, convert_value)

    def convert_row(row: Any) -> Any:
        value = compute(row)
        return None if value is None else convert_value(value)

    return convert_row


def _once(compute: Compute, convert_value: Callable[[Any], Any]) -> Compute:
    """A constant is converted when it is first asked for."""
    kept: list[Any] = []

    def convert_row(row: Any) -> Any:
        if not kept:
            value = compute(row)
            kept.append(None if value is None else convert_value(value))
        return kept[0]

    return convert_row


def _moment_of(kind: Type, settings: Settings) -> Callable[[Any], Any]:
    return lambda value: convert.moment(value, kind, settings)


def _duration_of(kind: Type, settings: Settings) -> Callable[[Any], Any]:
    return lambda value: convert.duration(value, kind, settings)


def _vector_of(kind: Type) -> Callable[[Any], Any]:
    def key(value: Any) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).strip().strip("[]").split(",") if part.strip())
        except ValueError as error:
            raise sql_error(Errno.UNKNOWN_ERROR, f"Invalid vector text: {value}") from error

    return key


# Keys by which to order and to group


def order_key(kind: Type) -> Callable[[Any], Any]:
    """From a value to a key in the type's order; NULL comes first."""
    weigh = _weigher(kind)
    if weigh is None:
        return lambda value: (0, 0) if value is None else (1, value)
    return lambda value: (0, 0) if value is None else (1, weigh(value))


def _weigher(kind: Type) -> Callable[[Any], Any] | None:
    match kind.kind:
        case Kind.ENUM | Kind.SET:
            return lambda value: getattr(value, "number", 0)
        case Kind.TEXT:
            return sort_key(kind.collation or DEFAULT_COLLATION)
        case Kind.BYTES | Kind.BITS:
            return text_bytes
        case Kind.JSON:
            return json_key
        case _:
            return None


def group_key(kind: Type) -> Callable[[Any], Any]:
    """From a value to a key that is equal where the values are."""
    weigh = _weigher(kind)
    if weigh is None:
        return lambda value: value
    return lambda value: None if value is None else weigh(value)


# Documents

_RANKS: Final = {"null": 0, "number": 1, "string": 2, "object": 3, "array": 4, "bool": 5, "date": 6, "opaque": 9}


def json_key_of(kind: Type) -> Callable[[Any], Any]:
    match kind.kind:
        case Kind.JSON:
            return json_key
        case Kind.TEXT | Kind.ENUM | Kind.SET:
            return lambda value: (_RANKS["string"], text_bytes(value))
        case Kind.INT | Kind.DECIMAL | Kind.REAL | Kind.YEAR | Kind.BIT:
            return lambda value: (_RANKS["number"], value)
        case _:
            return lambda value: (_RANKS["opaque"], text_bytes(convert.shown(value, kind)))


def json_key(document: Json) -> Any:
    return _json_key(document.root)


def _json_key(value: Any) -> Any:
    if value is None:
        return (_RANKS["null"], 0)
    if isinstance(value, bool):
        return (_RANKS["bool"], value)
    if isinstance(value, int | float | Decimal):
        return (_RANKS["number"], value)
    if isinstance(value, str):
        return (_RANKS["string"], text_bytes(value))
    if isinstance(value, dict):
        return (_RANKS["object"], len(value), sorted((text_bytes(k), _json_key(v)) for k, v in value.items()))
    if isinstance(value, JsonTime):
        return (_RANKS["date"], value.time)
    if isinstance(value, JsonDuration):
        return (_RANKS["date"] + 1, value.duration)
    if isinstance(value, JsonOpaque):
        return (_RANKS["opaque"], value.data)
    return (_RANKS["array"], [_json_key(item) for item in value])
