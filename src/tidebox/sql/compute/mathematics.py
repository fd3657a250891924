"""Functions of numbers. Importing this registers them."""

import math
import random
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any

from tidebox.sql.compute import convert, operators
from tidebox.sql.compute.convert import MATH
from tidebox.sql.compute.kinds import INT, REAL, TEXT, Computed, Kind, Type
from tidebox.sql.compute.registry import function, integers, is_constant, strict, texts
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call
from tidebox.sql.wire.errors import Errno, sql_error


def _numbers(arguments: list[Computed], context: Context) -> list[Any]:
    return [convert.as_number(argument, context.settings) for argument in arguments]


def _number_type(argument: Computed) -> Type:
    kind = argument.type
    if kind.kind in (Kind.INT, Kind.DECIMAL, Kind.REAL):
        return kind._replace(column=None)
    return Type(Kind.INT, True) if kind.kind in (Kind.YEAR, Kind.BIT, Kind.BITS) else REAL


def _size(value: Any) -> Any:
    return value.copy_abs() if isinstance(value, Decimal) else abs(value)


@function("ABS", least=1)
def _abs(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def size(value: Any) -> Any:
        if isinstance(value, int) and value == operators.SIGNED_MIN:
            raise sql_error(Errno.DATA_OUT_OF_RANGE, "BIGINT", f"abs({value})")
        return _size(value)

    return strict(_number_type(arguments[0]), _numbers(arguments, context), size, is_constant(arguments))


@function("SIGN", least=1)
def _sign(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(INT, _numbers(arguments, context), lambda v: (v > 0) - (v < 0), is_constant(arguments))


@function("CEIL", "CEILING", "FLOOR", least=1)
def _ceil(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = _number_type(arguments[0])
    is_floor = tree.name == "FLOOR"
    if kind.kind is Kind.REAL:
        return strict(
            REAL,
            _numbers(arguments, context),
            lambda v: float(math.floor(v) if is_floor else math.ceil(v)),
            is_constant(arguments),
        )
    rounding = ROUND_FLOOR if is_floor else ROUND_CEILING
    return strict(
        Type(Kind.INT, kind.is_unsigned),
        _numbers(arguments, context),
        lambda v: int(Decimal(v).to_integral_value(rounding)),
        is_constant(arguments),
    )


@function("ROUND", "TRUNCATE", least=1, most=2)
def _round(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = _number_type(arguments[0])
    computes = [_numbers(arguments[:1], context)[0], *integers(arguments[1:], context)]
    rounding = ROUND_HALF_UP if tree.name == "ROUND" else ROUND_DOWN
    digits = 0
    if len(arguments) == 2 and arguments[1].is_constant:
        digits = computes[1](()) or 0
    if kind.kind is Kind.DECIMAL:
        kind = Type(Kind.DECIMAL, length=65, decimals=min(max(digits, 0), 30))

    is_whole = kind.kind is Kind.INT and tree.name == "ROUND" and len(arguments) == 2

    def apply(value: Any, places: int = 0) -> Any:
        if kind.kind is Kind.REAL:
            return _real_rounded(value, places, is_cut=tree.name == "TRUNCATE")
        if is_whole:  # by way of a floating-point number, as TiDB goes
            return int(_real_rounded(float(value), places, is_cut=False))
        places = max(min(places, 30), -65)
        found = Decimal(value).quantize(Decimal(1).scaleb(-places), rounding, MATH)
        if kind.kind is Kind.INT:
            return int(found)
        return found.quantize(Decimal(1).scaleb(-max(kind.decimals, 0)), rounding, MATH)

    return strict(kind, computes, apply, is_constant(arguments))


def _power_of_ten(exponent: int) -> float:
    """A power of 32 tens and one below, multiplied or divided: Go's way, to the last bit."""
    if exponent > 308:
        return math.inf
    if exponent < -323:
        return 0.0
    tens, rest = divmod(abs(exponent), 32)
    if exponent >= 0:
        return float(f"1e{32 * tens}") * float(f"1e{rest}")
    return float(f"1e-{32 * tens}") / float(f"1e{rest}")


def _real_rounded(value: float, places: int, *, is_cut: bool) -> float:
    shift = _power_of_ten(places)
    shifted = value * shift
    if not math.isfinite(shifted) or not shift:
        return value if shift else 0.0
    return (math.trunc(shifted) if is_cut else round(shifted)) / shift


@function("MOD", least=2)
def _mod(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return operators.arithmetic("%", arguments[0], arguments[1], context.settings, lambda: "mod")


@function("POW", "POWER", least=2)
def _pow(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(base: Any, exponent: Any) -> float:
        try:
            found = math.pow(float(base), float(exponent))
        except (OverflowError, ValueError) as error:
            raise sql_error(Errno.DATA_OUT_OF_RANGE, "DOUBLE", f"pow({base}, {exponent})") from error
        return found

    return strict(REAL, _numbers(arguments, context), apply, is_constant(arguments))


@function("SQRT", "EXP", "LN", "LOG2", "LOG10", "SIN", "COS", "TAN", "ATAN", "RADIANS", "DEGREES", least=1)
def _real_function(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    apply = {"LN": math.log}.get(tree.name) or getattr(math, tree.name.lower())

    def compute(value: Any) -> float | None:
        try:
            return float(apply(float(value)))
        except (ValueError, OverflowError):
            return None

    return strict(REAL, _numbers(arguments, context), compute, is_constant(arguments))


@function("LOG", least=1, most=2)
def _log(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(*values: Any) -> float | None:
        try:
            return math.log(float(values[-1])) / (math.log(float(values[0])) if len(values) == 2 else 1)
        except (ValueError, ZeroDivisionError):
            return None

    return strict(REAL, _numbers(arguments, context), apply, is_constant(arguments))


@function("PI", least=0)
def _pi(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return Computed(REAL, lambda row: math.pi, True)


@function("RAND", least=0, most=1)
def _rand(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if arguments:
        raise sql_error(Errno.NOT_SUPPORTED_YET, "RAND with a seed")
    return Computed(REAL, lambda row: random.random())


@function("BIT_COUNT", least=1)
def _bit_count(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return strict(
        INT, integers(arguments, context), lambda v: (v & operators.UNSIGNED_MAX).bit_count(), is_constant(arguments)
    )


@function("CONV", least=3)
def _conv(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    def apply(text: str, source: int, target: int) -> str | None:
        if not (2 <= abs(source) <= 36 and 2 <= abs(target) <= 36):
            return None
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"
        text = text.strip().lower()
        is_negative = text.startswith("-")
        value = 0
        for character in text.lstrip("+-"):
            place = digits.find(character)
            if not 0 <= place < abs(source):
                break
            value = value * abs(source) + place
        value = min(value, operators.UNSIGNED_MAX)
        if is_negative and target > 0:
            value = -value & operators.UNSIGNED_MAX
        sign = "-" if is_negative and target < 0 and value else ""
        out = ""
        while value:
            value, place = divmod(value, abs(target))
            out = digits[place] + out
        return sign + (out.upper() or "0")

    return strict(TEXT, [*texts(arguments[:1]), *integers(arguments[1:], context)], apply, is_constant(arguments))
