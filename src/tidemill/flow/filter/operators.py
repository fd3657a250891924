"""Operators of expressions over Arrow arrays: logic with NULL, comparisons, arithmetic.

NULL is Arrow's null throughout, so that three-valued logic is Kleene's.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.filter import moments, values
from tidemill.flow.filter.values import (
    INTEGERS,
    MOMENTS,
    MOST_DIGITS,
    NUMBERS,
    TEXTS,
    Compute,
    Data,
    Kind,
    Unfit,
    Value,
    as_decimal,
    as_exact,
    as_number,
    as_real,
    as_text,
)
from tidemill.tidb.collation import general_ci

_UNKNOWN: Final = pa.scalar(None, pa.bool_())
_COMPARE: Final[dict[str, Callable[[Data, Data], Data]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
COMPARISONS: Final = frozenset({*_COMPARE, "<=>"})


def boolean(compute: Compute) -> Value:
    return Value(Kind.BOOL, compute)


# Logic

_ZEROS: Final = {
    Kind.INT: pa.scalar(0, pa.int64()),
    Kind.UINT: pa.scalar(0, pa.uint64()),
    Kind.REAL: pa.scalar(0.0, pa.float64()),
}


def truth(value: Value) -> Value:
    """Whether it is true, as a condition takes it: not 0."""
    compute = value.compute
    if value.kind is Kind.BOOL:
        return value
    if value.kind is Kind.NULL:
        return boolean(lambda rows: _UNKNOWN)
    if value.kind in NUMBERS | TEXTS:
        number = as_number(value)
        compute = number.compute
        zero = _ZEROS.get(number.kind) or pa.scalar(Decimal(0), pa.decimal256(max(number.digits, 1), number.scale))
        return boolean(lambda rows: pc.not_equal(compute(rows), zero))
    raise Unfit(f"a {value.kind.value} as a condition")


def conjunction(left: Value, right: Value) -> Value:
    a, b = truth(left).compute, truth(right).compute
    return boolean(lambda rows: pc.and_kleene(a(rows), b(rows)))


def disjunction(left: Value, right: Value) -> Value:
    a, b = truth(left).compute, truth(right).compute
    return boolean(lambda rows: pc.or_kleene(a(rows), b(rows)))


def exclusive(left: Value, right: Value) -> Value:
    a, b = truth(left).compute, truth(right).compute
    return boolean(lambda rows: pc.xor(a(rows), b(rows)))


def negation(value: Value) -> Value:
    a = truth(value).compute
    return boolean(lambda rows: pc.invert(a(rows)))


def is_null(value: Value) -> Value:
    compute = value.compute
    return boolean(lambda rows: pc.is_null(compute(rows)))


def is_true(value: Value, wanted: bool) -> Value:
    a = truth(value).compute
    return boolean(lambda rows: pc.fill_null(pc.equal(a(rows), wanted), pa.scalar(False)))


# Comparisons


def comparison(sign: str, left: Value, right: Value) -> Value:
    if Kind.NULL in (left.kind, right.kind):
        if sign != "<=>":
            return boolean(lambda rows: _UNKNOWN)
        return is_null(left if right.kind is Kind.NULL else right)
    left, right = _alike(left, right)
    a, b = left.compute, right.compute
    if sign == "<=>":
        return boolean(lambda rows: _same(a(rows), b(rows)))
    function = _COMPARE[sign]
    return boolean(lambda rows: function(a(rows), b(rows)))


def _same(a: Data, b: Data) -> Data:
    equal = pc.fill_null(pc.equal(a, b), pa.scalar(False))
    return pc.or_(equal, pc.and_(pc.is_null(a), pc.is_null(b)))


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Both in the one form in which MySQL compares two such kinds."""
    kinds = {left.kind, right.kind}
    for kind in (Kind.JSON, Kind.VECTOR):
        if kind in kinds:
            raise Unfit(f"a comparison of a {kind.value}")
    if kinds & MOMENTS:
        kind = Kind.TIME if Kind.TIME in kinds else Kind.DATETIME
        return moments.comparable(left, kind), moments.comparable(right, kind)
    if kinds <= TEXTS:
        return _alike_texts(left, right)
    if kinds & {Kind.TEXT, Kind.BYTES}:
        return _text_and_number(left, right)
    if Kind.YEAR in kinds:
        left, right = _year(left, right), _year(right, left)
    if Kind.REAL in kinds:
        return as_real(left), as_real(right)
    return _alike_exact(as_exact(left), as_exact(right))


def _alike_texts(left: Value, right: Value) -> tuple[Value, Value]:
    collation = values.common_collation(left, right)
    return _keyed(as_text(left), collation), _keyed(as_text(right), collation)


def _keyed(value: Value, collation: str) -> Value:
    compute = value.compute
    if collation == "binary":
        return replace(value, compute=lambda rows: pc.cast(compute(rows), pa.binary()))
    return replace(value, compute=lambda rows: values.sort_key(compute(rows), collation))


def _text_and_number(left: Value, right: Value) -> tuple[Value, Value]:
    text, number = (left, right) if left.kind in (Kind.TEXT, Kind.BYTES) else (right, left)
    if text.is_constant and number.kind not in (Kind.REAL, Kind.ENUM, Kind.SET):
        # Exactly, so that large numbers written as text are told apart.
        exact = values.constant(_literal_number(text))
        pair = (exact, number) if text is left else (number, exact)
        return _alike(*pair)
    return as_real(left), as_real(right)


def _literal_number(text: Value) -> int | Decimal | float:
    if text.kind is Kind.BYTES:
        found = as_exact(text).constant
        assert isinstance(found, int)
        return found
    number = values.number_in(text.constant)
    _, digits, exponent = number.as_tuple()
    if len(digits) + abs(int(exponent)) > 60 or int(exponent) < -30:
        return float(number)
    return number.quantize(Decimal(1)) if int(exponent) > 0 else number


def _year(value: Value, other: Value) -> Value:
    """A literal of two digits that is compared with a YEAR is meant as one."""
    if other.kind is Kind.YEAR and value.kind is Kind.INT and value.is_constant and 1 <= value.constant <= 99:
        return values.constant(value.constant + (2000 if value.constant < 70 else 1900))
    return value


def _alike_exact(left: Value, right: Value) -> tuple[Value, Value]:
    if left.kind is right.kind and left.kind is not Kind.DECIMAL:
        return left, right
    for one, other in ((left, right), (right, left)):
        if one.kind is Kind.UINT and other.is_constant and other.kind is Kind.INT and other.constant >= 0:
            same = replace(other, kind=Kind.UINT, compute=_cast(other.compute, pa.uint64()))
            return (same, right) if other is left else (left, same)
    left, right = as_decimal(left), as_decimal(right)
    scale = max(left.scale, right.scale)
    digits = max(left.digits - left.scale, right.digits - right.scale) + scale
    return rescaled(left, digits, scale), rescaled(right, digits, scale)


def _cast(compute: Compute, to: pa.DataType) -> Compute:
    return lambda rows: pc.cast(compute(rows), to)


def rescaled(value: Value, digits: int, scale: int) -> Value:
    if digits > MOST_DIGITS:
        raise Unfit(f"numbers of more than {MOST_DIGITS} digits")
    if (value.digits, value.scale) == (digits, scale):
        return value
    compute = value.compute
    to = pa.decimal256(max(digits, 1), scale)
    return replace(value, compute=lambda rows: pc.cast(compute(rows), to), digits=digits, scale=scale)


# LIKE and REGEXP


def like(operand: Value, pattern: Value, escape: str) -> Value:
    if Kind.NULL in (operand.kind, pattern.kind):
        return boolean(lambda rows: _UNKNOWN)
    text, shape = as_text(operand), _literal_text(pattern, "LIKE")
    collation = values.common_collation(text, pattern)
    folds = values.is_folding(collation)
    regular = _like_regular(general_ci(shape) if folds else shape, escape)
    compute = text.compute
    if folds:
        return boolean(lambda rows: pc.match_substring_regex(values.weights(compute(rows)), regular))
    return boolean(lambda rows: pc.match_substring_regex(compute(rows), regular))


def regexp(operand: Value, pattern: Value) -> Value:
    if Kind.NULL in (operand.kind, pattern.kind):
        return boolean(lambda rows: _UNKNOWN)
    text, regular = as_text(operand), _literal_text(pattern, "REGEXP")
    folds = values.is_folding(values.common_collation(text))
    compute = text.compute
    try:
        pc.match_substring_regex(pa.scalar(""), regular)
    except pa.ArrowInvalid as error:
        why = str(error).removeprefix("Invalid regular expression: ")
        raise Unfit(f"the regular expression {regular!r}, which cannot be read ({why})") from None
    return boolean(lambda rows: pc.match_substring_regex(compute(rows), regular, ignore_case=folds))


def _literal_text(pattern: Value, name: str) -> str:
    if not pattern.is_constant or not isinstance(pattern.constant, str):
        raise Unfit(f"{name} with a pattern that is no text literal")
    return pattern.constant


def _like_regular(pattern: str, escape: str) -> str:
    parts, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == escape and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        elif char in "%_":
            parts.append(".*" if char == "%" else ".")
        else:
            parts.append(re.escape(char))
        at += 1
    return "(?s)^" + "".join(parts) + "$"


# Arithmetic


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    if Kind.NULL in (left.kind, right.kind):
        return values.constant(None)
    left, right = as_number(left), as_number(right)
    if sign == "/":
        return _quotient(left, right)
    if sign in ("DIV", "%"):
        return _whole(sign, left, right)
    if Kind.REAL in (left.kind, right.kind):
        return _applied(Kind.REAL, _ARITHMETIC[sign], as_real(left), as_real(right))
    if Kind.DECIMAL in (left.kind, right.kind):
        return _exact(sign, as_decimal(left), as_decimal(right))
    if Kind.UINT not in (left.kind, right.kind):
        return _applied(Kind.INT, _CHECKED[sign], left, right)
    whole = _exact(sign, as_decimal(left), as_decimal(right))
    compute = whole.compute
    return Value(Kind.UINT, lambda rows: pc.cast(compute(rows), pa.uint64()))


_ARITHMETIC: Final[dict[str, Callable[[Data, Data], Data]]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_CHECKED: Final = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def _applied(kind: Kind, function: Callable[[Data, Data], Data], left: Value, right: Value) -> Value:
    a, b = left.compute, right.compute
    return Value(kind, lambda rows: function(a(rows), b(rows)))


def _exact(sign: str, left: Value, right: Value) -> Value:
    """Arrow's own rules for the digits of a result are MySQL's."""
    if sign == "*":
        digits, scale = left.digits + right.digits + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        digits = max(left.digits - left.scale, right.digits - right.scale) + scale + 1
    if digits > MOST_DIGITS:
        raise Unfit(f"numbers of more than {MOST_DIGITS} digits")
    return replace(_applied(Kind.DECIMAL, _ARITHMETIC[sign], left, right), digits=digits, scale=scale)


_WORD: Final = 9  # digits in which MySQL counts the places of a quotient


def _quotient(left: Value, right: Value) -> Value:
    if Kind.REAL in (left.kind, right.kind):
        a, b = as_real(left).compute, as_real(right).compute
        return Value(Kind.REAL, lambda rows: pc.divide(a(rows), _or_null(b(rows), pa.scalar(0.0))))
    left, right = as_decimal(left), as_decimal(right)
    whole = _WORD * (-(-left.scale // _WORD) - (-right.scale // _WORD))
    scale = whole + _WORD * -(-max(4 - (whole - left.scale - right.scale), 0) // _WORD)
    digits = left.digits - left.scale + right.scale + scale
    wide = left.digits - left.scale + scale + right.scale
    if max(digits, wide) > MOST_DIGITS:
        raise Unfit(f"a quotient of more than {MOST_DIGITS} digits")
    a, b, divisor_digits, divisor_scale = left.compute, right.compute, right.digits, right.scale

    def compute(rows: pa.RecordBatch) -> Data:
        # As whole numbers, the dividend with so many more places: the division cuts off, as MySQL's does.
        dividend = _unscaled(pc.cast(a(rows), pa.decimal256(wide, scale + divisor_scale)))
        divisor = _or_null(b(rows), pa.scalar(Decimal(0), pa.decimal256(divisor_digits, divisor_scale)))
        return _divided(dividend, _unscaled(divisor), digits, scale)

    return Value(Kind.DECIMAL, compute, digits=digits, scale=scale)


def _unscaled(data: Data) -> list[int | None]:
    items = [data] if isinstance(data, pa.Scalar) else data
    return [None if v is None else int(v.scaleb(-v.as_tuple().exponent)) for v in (i.as_py() for i in items)]


def _divided(dividend: list[int | None], divisor: list[int | None], digits: int, scale: int) -> Data:
    size = len(divisor) if len(dividend) == 1 else len(dividend)  # what is the same for all rows stands there once
    dividend, divisor = (side * size if len(side) == 1 else side for side in (dividend, divisor))
    out: list[Decimal | None] = []
    for a, b in zip(dividend, divisor, strict=True):
        if a is None or b is None:
            out.append(None)
        else:
            cut = abs(a) // abs(b)
            out.append(Decimal(cut if (a < 0) == (b < 0) else -cut).scaleb(-scale))
    return pa.array(out, pa.decimal256(digits, scale))


def _or_null(data: Data, unwanted: pa.Scalar) -> Data:
    return pc.if_else(pc.equal(data, unwanted), pa.scalar(None, data.type), data)


def _whole(sign: str, left: Value, right: Value) -> Value:
    if not {left.kind, right.kind} <= INTEGERS:
        raise Unfit(f"{sign} of numbers that are not whole")
    is_unsigned = left.kind is Kind.UINT if sign == "%" else Kind.UINT in (left.kind, right.kind)
    a, b = left.compute, right.compute

    def compute(rows: pa.RecordBatch) -> Data:
        return _divided_whole(sign, a(rows), b(rows), pa.uint64() if is_unsigned else pa.int64())

    return Value(Kind.UINT if is_unsigned else Kind.INT, compute)


def _divided_whole(sign: str, dividend: Data, divisor: Data, to: pa.DataType) -> Data:
    """The quotient cut off towards 0, or what it leaves, which has the dividend's sign. By 0: NULL."""
    (a, a_below), (b, b_below) = _magnitude(dividend), _magnitude(divisor)
    is_null = np.asarray(_nulls(dividend) | _nulls(divisor) | (b == 0))
    b = np.where(b == 0, 1, b)
    found = a // b if sign == "DIV" else a % b
    below = (a_below ^ b_below if sign == "DIV" else a_below) & (found > 0)
    found, below, is_null = np.broadcast_arrays(found, below, is_null)
    if pa.types.is_unsigned_integer(to):
        if (below & ~is_null).any():
            raise pa.ArrowInvalid("a negative result of unsigned numbers")
        return pa.array(found, to, mask=is_null)
    if (~below & ~is_null & (found > np.uint64((1 << 63) - 1))).any():
        raise pa.ArrowInvalid("a result beyond 63 bits")
    signed = np.where(below, np.uint64(0) - found, found).view(np.int64)
    return pa.array(signed, to, mask=is_null)


def _magnitude(data: Data) -> tuple[Any, Any]:
    plain = (pa.array([data.as_py()], data.type) if isinstance(data, pa.Scalar) else data).fill_null(0).to_numpy()
    if plain.dtype == np.uint64:
        return plain, np.zeros(len(plain), np.bool_)
    below = plain < 0
    bits = plain.astype(np.int64).view(np.uint64)
    return np.where(below, np.uint64(0) - bits, bits), below


def _nulls(data: Data) -> Any:
    if isinstance(data, pa.Scalar):
        return np.array([not data.is_valid])
    return data.is_null().to_numpy(zero_copy_only=False)


def minus(value: Value) -> Value:
    return arithmetic("-", values.constant(0), value) if value.kind is not Kind.UINT else _minus_unsigned(value)


def _minus_unsigned(value: Value) -> Value:
    compute = arithmetic("-", values.constant(Decimal(0)), value).compute
    return Value(Kind.INT, lambda rows: pc.cast(compute(rows), pa.int64()))
