"""The functions that expressions may call, each from its operands to a value."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.filter import moments, operators, values
from tidemill.flow.filter.values import (
    INTEGERS,
    NUMBERS,
    Compute,
    Data,
    Kind,
    Unfit,
    Value,
    as_decimal,
    as_number,
    as_real,
    as_text,
    common_collation,
)

Builder = Callable[[tuple[Value, ...]], Value]
_MANY: Final = 1 << 20

UNSTEADY: Final = frozenset(
    {
        "NOW", "SYSDATE", "CURDATE", "CURTIME", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "LOCALTIME",
        "LOCALTIMESTAMP", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "UNIX_TIMESTAMP", "RAND", "UUID", "UUID_SHORT",
        "CONNECTION_ID", "LAST_INSERT_ID", "SLEEP", "USER", "CURRENT_USER", "DATABASE", "VERSION",
    }
)  # fmt: skip


def call(name: str, operands: tuple[Value, ...]) -> Value:
    """Raises Unfit where there is no such function, or not with these operands."""
    if name in UNSTEADY:
        raise Unfit(f"the function {name}, whose value differs when the same change is read again")
    if name not in _FUNCTIONS:
        raise Unfit(f"the function {name}")
    least, most, build = _FUNCTIONS[name]
    if not least <= len(operands) <= most:
        raise Unfit(f"the function {name} with {len(operands)} operands")
    if name in _STRICT and any(value.kind is Kind.NULL for value in operands):
        return values.constant(None)
    return build(operands)


def names() -> list[str]:
    """For the reference page."""
    return sorted(_FUNCTIONS)


def case(parts: tuple[Value, ...]) -> Value:
    """Pairs of condition and value, then the value otherwise."""
    *pairs, otherwise = parts
    results = alike((*pairs[1::2], otherwise))
    found = results[-1]
    for condition, result in zip(reversed(pairs[::2]), reversed(results[:-1]), strict=True):
        found = _chosen(operators.truth(condition), result, found)
    return found


def _chosen(condition: Value, value: Value, otherwise: Value) -> Value:
    test, a, b = condition.compute, value.compute, otherwise.compute

    def compute(rows: pa.RecordBatch) -> Data:
        return pc.if_else(pc.fill_null(test(rows), pa.scalar(False)), a(rows), b(rows))

    return Value(value.kind, compute, digits=value.digits, scale=value.scale, collation=value.collation)


def alike(results: tuple[Value, ...]) -> list[Value]:
    """All in the one kind of an expression that gives now one, now the other."""
    kinds = {value.kind for value in results} - {Kind.NULL}
    if not kinds:
        raise Unfit("a choice among nothing but NULLs")
    if kinds <= NUMBERS:
        return [_typed_null(value, unified) for value, unified in _alike_numbers(results, kinds)]
    if kinds <= {Kind.TEXT, Kind.ENUM, Kind.SET}:
        collation = common_collation(*results)
        found = [v if v.kind is Kind.NULL else as_text(v) for v in results]
        return [Value(Kind.TEXT, _or_null(v, pa.string()), collation=collation) for v in found]
    if len(kinds) == 1 and kinds <= {Kind.BYTES, Kind.DATE, Kind.DATETIME, Kind.TIME}:
        kind = kinds.pop()
        to = pa.binary() if kind is Kind.BYTES else pa.string()
        return [Value(kind, _or_null(v, to)) for v in results]
    raise Unfit(f"a choice between a {' and a '.join(sorted(kind.value for kind in kinds))}")


def _alike_numbers(results: tuple[Value, ...], kinds: set[Kind]) -> list[tuple[Value, Value]]:
    numbers = [v for v in results if v.kind is not Kind.NULL]
    if Kind.REAL in kinds:
        unified = [as_real(v) for v in numbers]
    elif kinds <= {Kind.BOOL, Kind.INT, Kind.YEAR}:
        unified = [values.as_exact(v) for v in numbers]
    elif kinds == {Kind.UINT}:
        unified = numbers
    else:
        decimals = [as_decimal(v) for v in numbers]
        scale = max(v.scale for v in decimals)
        digits = max(v.digits - v.scale for v in decimals) + scale
        unified = [operators.rescaled(v, digits, scale) for v in decimals]
    found = iter(unified)
    return [(v, unified[0] if v.kind is Kind.NULL else next(found)) for v in results]


_ARROW: Final = {Kind.INT: pa.int64(), Kind.UINT: pa.uint64(), Kind.REAL: pa.float64()}


def _typed_null(value: Value, unified: Value) -> Value:
    if value.kind is not Kind.NULL:
        return unified
    to = _ARROW.get(unified.kind) or pa.decimal256(max(unified.digits, 1), unified.scale)
    return Value(unified.kind, _or_null(value, to), digits=unified.digits, scale=unified.scale)


def _or_null(value: Value, to: pa.DataType) -> Compute:
    if value.kind is not Kind.NULL:
        return value.compute
    null = pa.scalar(None, to)
    return lambda rows: null


def _if_null(operands: tuple[Value, ...]) -> Value:
    found = alike(operands)
    first = found[0]
    computes = [value.compute for value in found]
    return Value(
        first.kind,
        lambda rows: pc.coalesce(*(compute(rows) for compute in computes)),
        digits=first.digits,
        scale=first.scale,
        collation=first.collation,
    )


def _null_if(operands: tuple[Value, ...]) -> Value:
    value, _ = operands
    same = operators.comparison("=", *operands)
    return _chosen(same, *reversed(alike((value, values.constant(None)))))


def _text_function(function: Callable[[Data], Data]) -> Builder:
    def build(operands: tuple[Value, ...]) -> Value:
        text = _as_characters(operands[0])
        compute = text.compute
        return Value(Kind.TEXT, lambda rows: function(compute(rows)), collation=text.collation)

    return build


def _as_characters(value: Value) -> Value:
    text = as_text(value)
    if text.kind is Kind.BYTES:
        raise Unfit("a function of texts over a binary column")
    return text


def _length(operands: tuple[Value, ...]) -> Value:
    compute = as_text(operands[0]).compute
    return Value(Kind.INT, lambda rows: pc.cast(pc.binary_length(compute(rows)), pa.int64()))


def _char_length(operands: tuple[Value, ...]) -> Value:
    text = as_text(operands[0])
    if text.kind is Kind.BYTES:
        return _length(operands)
    compute = text.compute
    return Value(Kind.INT, lambda rows: pc.cast(pc.utf8_length(compute(rows)), pa.int64()))


def _concat(operands: tuple[Value, ...]) -> Value:
    texts = [_as_characters(value) for value in operands]
    computes = [text.compute for text in texts]
    return Value(
        Kind.TEXT,
        lambda rows: pc.binary_join_element_wise(*(compute(rows) for compute in computes), pa.scalar("")),
        collation=common_collation(*texts),
    )


def _whole_literal(value: Value, name: str) -> int:
    if not value.is_constant or value.kind is not Kind.INT or abs(value.constant) > 1 << 30:
        raise Unfit(f"{name} with a place or length that is no whole number")
    found: int = value.constant
    return found


def _substring(operands: tuple[Value, ...]) -> Value:
    """Places count from 1, or from the end if negative; 0 is nowhere."""
    text = _as_characters(operands[0])
    begin = _whole_literal(operands[1], "SUBSTRING")
    length = _whole_literal(operands[2], "SUBSTRING") if len(operands) > 2 else 1 << 30
    if begin == 0 or length <= 0:
        return _sliced(text, 0, 0)
    if begin > 0:
        return _sliced(text, begin - 1, begin - 1 + length)
    end = begin + length
    found = _sliced(text, begin, end if end < 0 else 1 << 30)
    compute, whole = found.compute, text.compute

    def within(rows: pa.RecordBatch) -> Data:
        # A text shorter than that has no such place.
        return pc.if_else(pc.less(pc.utf8_length(whole(rows)), -begin), "", compute(rows))

    return Value(Kind.TEXT, within, collation=text.collation)


def _left(operands: tuple[Value, ...]) -> Value:
    return _sliced(_as_characters(operands[0]), 0, max(_whole_literal(operands[1], "LEFT"), 0))


def _right(operands: tuple[Value, ...]) -> Value:
    length = _whole_literal(operands[1], "RIGHT")
    text = _as_characters(operands[0])
    return _sliced(text, -length, 1 << 30) if length > 0 else _sliced(text, 0, 0)


def _sliced(text: Value, begin: int, end: int) -> Value:
    compute = text.compute
    return Value(Kind.TEXT, lambda rows: pc.utf8_slice_codeunits(compute(rows), begin, end), collation=text.collation)


def _absolute(operands: tuple[Value, ...]) -> Value:
    value = as_number(operands[0])
    compute = value.compute
    if value.kind is Kind.UINT:
        return value
    return Value(value.kind, lambda rows: pc.abs_checked(compute(rows)), digits=value.digits, scale=value.scale)


def _rounded(function: Callable[[Data], Data]) -> Builder:
    def build(operands: tuple[Value, ...]) -> Value:
        value = as_number(operands[0])
        if value.kind in INTEGERS:
            return value
        compute = value.compute
        if value.kind is Kind.REAL:
            return Value(Kind.REAL, lambda rows: function(compute(rows)))
        digits = value.digits - value.scale + 1
        to = pa.decimal256(digits, 0)
        wide = pa.decimal256(value.digits + 1, value.scale)
        return Value(
            Kind.DECIMAL, lambda rows: pc.cast(function(pc.cast(compute(rows), wide)), to), digits=digits, scale=0
        )

    return build


def _extreme(function: Callable[..., Data]) -> Builder:
    def build(operands: tuple[Value, ...]) -> Value:
        if not {value.kind for value in operands} <= NUMBERS:
            raise Unfit("GREATEST or LEAST of other things than numbers")
        found = alike(operands)
        computes = [value.compute for value in found]
        first = found[0]
        return Value(
            first.kind,
            lambda rows: function(*(compute(rows) for compute in computes), skip_nulls=False),
            digits=first.digits,
            scale=first.scale,
        )

    return build


def _part(name: str) -> Builder:
    return lambda operands: moments.part(name, operands[0])


_LOWER, _UPPER = _text_function(pc.utf8_lower), _text_function(pc.utf8_upper)
_FUNCTIONS: Final[dict[str, tuple[int, int, Builder]]] = {
    "IF": (3, 3, case),
    "IFNULL": (2, 2, _if_null),
    "COALESCE": (1, _MANY, _if_null),
    "NULLIF": (2, 2, _null_if),
    "ISNULL": (1, 1, lambda operands: operators.is_null(operands[0])),
    "LENGTH": (1, 1, _length),
    "OCTET_LENGTH": (1, 1, _length),
    "CHAR_LENGTH": (1, 1, _char_length),
    "CHARACTER_LENGTH": (1, 1, _char_length),
    "LOWER": (1, 1, _LOWER),
    "LCASE": (1, 1, _LOWER),
    "UPPER": (1, 1, _UPPER),
    "UCASE": (1, 1, _UPPER),
    "TRIM": (1, 1, _text_function(lambda data: pc.utf8_trim(data, " "))),
    "LTRIM": (1, 1, _text_function(lambda data: pc.utf8_ltrim(data, " "))),
    "RTRIM": (1, 1, _text_function(lambda data: pc.utf8_rtrim(data, " "))),
    "CONCAT": (1, _MANY, _concat),
    "SUBSTRING": (2, 3, _substring),
    "SUBSTR": (2, 3, _substring),
    "MID": (3, 3, _substring),
    "LEFT": (2, 2, _left),
    "RIGHT": (2, 2, _right),
    "ABS": (1, 1, _absolute),
    "MOD": (2, 2, lambda operands: operators.arithmetic("%", *operands)),
    "FLOOR": (1, 1, _rounded(pc.floor)),
    "CEIL": (1, 1, _rounded(pc.ceil)),
    "CEILING": (1, 1, _rounded(pc.ceil)),
    "GREATEST": (2, _MANY, _extreme(pc.max_element_wise)),
    "LEAST": (2, _MANY, _extreme(pc.min_element_wise)),
    "DATE": (1, 1, lambda operands: moments.date_of(operands[0])),
    **{name: (1, 1, _part(name)) for name in sorted(moments.PARTS)},
}
_STRICT: Final = frozenset(_FUNCTIONS) - {"IF", "IFNULL", "COALESCE", "NULLIF", "ISNULL"}  # NULL makes them NULL
