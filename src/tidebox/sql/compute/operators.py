"""Arithmetic, logic and bits. Whole numbers have 64 bits, and more than that is error 1690."""

import math
import operator
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Any, Final

from tidebox.sql.compute import convert
from tidebox.sql.compute.compare import comparables
from tidebox.sql.compute.convert import MATH
from tidebox.sql.compute.kinds import BOOL, UNSIGNED, Compute, Computed, Kind, Settings, Type
from tidebox.sql.wire.errors import Errno, sql_error

SIGNED_MAX: Final = (1 << 63) - 1
SIGNED_MIN: Final = -(1 << 63)
UNSIGNED_MAX: Final = (1 << 64) - 1
DIVISION_DIGITS: Final = 4  # div_precision_increment
_MAX_SCALE: Final = 30
_WORD: Final = 9  # digits in a word of TiDB's decimals

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def comparison(symbol: str, left: Computed, right: Computed, settings: Settings) -> Computed:
    if symbol != "<=>" and Kind.NULL in (left.type.kind, right.type.kind):
        return Computed(BOOL, lambda row: None, True)
    first, second = comparables(left, right, settings)
    is_constant = left.is_constant and right.is_constant
    if symbol == "<=>":
        return Computed(BOOL, lambda row: int(first(row) == second(row)), is_constant)
    test = _COMPARE[symbol]

    def compute(row: Any) -> int | None:
        a = first(row)
        if a is None:
            return None
        b = second(row)
        return None if b is None else int(test(a, b))

    return Computed(BOOL, compute, is_constant)


def truth_of(side: Computed, settings: Settings) -> Callable[[Any], bool | None]:
    kind, compute = side.type, side.compute
    if kind.kind in (Kind.INT, Kind.YEAR, Kind.BIT, Kind.DECIMAL, Kind.REAL):

        def plain(row: Any) -> bool | None:
            value = compute(row)
            return None if value is None else value != 0

        return plain

    def test(row: Any) -> bool | None:
        value = compute(row)
        return None if value is None else convert.truth(value, kind, settings)

    return test


def conjunction(left: Computed, right: Computed, settings: Settings) -> Computed:
    first, second = truth_of(left, settings), truth_of(right, settings)

    def compute(row: Any) -> int | None:
        a = first(row)
        if a is False:
            return 0
        b = second(row)
        if b is False:
            return 0
        return None if a is None or b is None else 1

    return Computed(BOOL, compute, left.is_constant and right.is_constant)


def disjunction(left: Computed, right: Computed, settings: Settings) -> Computed:
    first, second = truth_of(left, settings), truth_of(right, settings)

    def compute(row: Any) -> int | None:
        a = first(row)
        if a:
            return 1
        b = second(row)
        if b:
            return 1
        return None if a is None or b is None else 0

    return Computed(BOOL, compute, left.is_constant and right.is_constant)


def exclusive(left: Computed, right: Computed, settings: Settings) -> Computed:
    first, second = truth_of(left, settings), truth_of(right, settings)

    def compute(row: Any) -> int | None:
        a, b = first(row), second(row)
        return None if a is None or b is None else int(a != b)

    return Computed(BOOL, compute, left.is_constant and right.is_constant)


def negation(side: Computed, settings: Settings) -> Computed:
    test = truth_of(side, settings)

    def compute(row: Any) -> int | None:
        value = test(row)
        return None if value is None else int(not value)

    return Computed(BOOL, compute, side.is_constant)


# Arithmetic


def _numeric(side: Computed, settings: Settings) -> Computed:
    """As a number of kind INT, DECIMAL or REAL."""
    kind = side.type
    match kind.kind:
        case Kind.INT | Kind.DECIMAL | Kind.REAL:
            return side
        case Kind.YEAR | Kind.BIT | Kind.BITS | Kind.DATE:
            unsigned = kind.kind is not Kind.DATE
            return Computed(Type(Kind.INT, unsigned), convert.as_number(side, settings), side.is_constant)
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            number = Type(Kind.DECIMAL, length=20, decimals=kind.fsp) if kind.fsp else Type(Kind.INT)
            return Computed(number, convert.as_number(side, settings), side.is_constant)
        case _:
            return Computed(
                Type(Kind.REAL), _mapped(side.compute, lambda v: convert.real(v, kind, settings)), side.is_constant
            )


def _mapped(compute: Compute, change: Callable[[Any], Any]) -> Compute:
    def mapped(row: Any) -> Any:
        value = compute(row)
        return None if value is None else change(value)

    return mapped


def scale_of(kind: Type) -> int:
    """Fractional digits of a number; unknown ones count as the most."""
    if kind.kind is Kind.INT:
        return 0
    return kind.decimals if kind.decimals >= 0 else _MAX_SCALE


def arithmetic(symbol: str, left: Computed, right: Computed, settings: Settings, text: Callable[[], str]) -> Computed:
    """``text`` shows the expression, for the error."""
    left, right = _numeric(left, settings), _numeric(right, settings)
    is_constant = left.is_constant and right.is_constant
    kinds = {left.type.kind, right.type.kind}
    if symbol == "/":
        return _division(left, right, settings)
    if symbol == "DIV":
        return _whole_division(left, right, settings, text)
    if symbol == "%":
        return _modulo(left, right, settings)
    if Kind.REAL in kinds:
        return Computed(Type(Kind.REAL), _reals(symbol, left.compute, right.compute, text), is_constant)
    if Kind.DECIMAL in kinds:
        a, b = scale_of(left.type), scale_of(right.type)
        scale = min(a + b, _MAX_SCALE) if symbol == "*" else max(a, b)
        return Computed(
            Type(Kind.DECIMAL, length=65, decimals=scale),
            _decimals(symbol, left.compute, right.compute, scale),
            is_constant,
        )
    is_unsigned = left.type.is_unsigned or right.type.is_unsigned
    kind = UNSIGNED if is_unsigned else Type(Kind.INT)
    return Computed(kind, _integers(symbol, left.compute, right.compute, is_unsigned, text), is_constant)


_WHOLE: Final[dict[str, Callable[[Any, Any], Any]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _integers(symbol: str, first: Compute, second: Compute, is_unsigned: bool, text: Callable[[], str]) -> Compute:
    apply = _WHOLE[symbol]
    low, high = (0, UNSIGNED_MAX) if is_unsigned else (SIGNED_MIN, SIGNED_MAX)

    def compute(row: Any) -> int | None:
        a = first(row)
        if a is None:
            return None
        b = second(row)
        if b is None:
            return None
        found: int = apply(a, b)
        if not low <= found <= high:
            raise sql_error(Errno.DATA_OUT_OF_RANGE, "BIGINT UNSIGNED" if is_unsigned else "BIGINT", text())
        return found

    return compute


def _reals(symbol: str, first: Compute, second: Compute, text: Callable[[], str]) -> Compute:
    apply = _WHOLE[symbol]

    def compute(row: Any) -> float | None:
        a, b = first(row), second(row)
        if a is None or b is None:
            return None
        found = float(apply(float(a), float(b)))
        if not math.isfinite(found):
            raise sql_error(Errno.DATA_OUT_OF_RANGE, "DOUBLE", text())
        return found

    return compute


def _decimals(symbol: str, first: Compute, second: Compute, scale: int) -> Compute:
    apply = {"+": MATH.add, "-": MATH.subtract, "*": MATH.multiply}[symbol]

    def compute(row: Any) -> Decimal | None:
        a, b = first(row), second(row)
        if a is None or b is None:
            return None
        found = apply(Decimal(a), Decimal(b))
        exponent = found.as_tuple().exponent
        assert isinstance(exponent, int)  # it is finite
        return rescaled(found, scale) if -exponent > scale else found

    return compute


def rescaled(value: Decimal, scale: int) -> Decimal:
    """Rounded half up to ``scale`` fractional digits."""
    return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, MATH)


def _by_zero(settings: Settings) -> None:
    if settings.error_for_division or not settings.is_writing:
        convert.warn(settings, Errno.DIVISION_BY_ZERO)


def _division(left: Computed, right: Computed, settings: Settings) -> Computed:
    is_constant = left.is_constant and right.is_constant
    first, second = left.compute, right.compute
    if Kind.REAL in (left.type.kind, right.type.kind):

        def divide(row: Any) -> float | None:
            a, b = first(row), second(row)
            if a is None or b is None:
                return None
            if b == 0:
                _by_zero(settings)
                return None
            return float(a) / float(b)

        return Computed(Type(Kind.REAL), divide, is_constant)
    scale = min(scale_of(left.type) + DIVISION_DIGITS, _MAX_SCALE)

    def divide_exactly(row: Any) -> Decimal | None:
        a, b = first(row), second(row)
        if a is None or b is None:
            return None
        if b == 0:
            _by_zero(settings)
            return None
        return divided(Decimal(a), Decimal(b), scale)

    return Computed(Type(Kind.DECIMAL, length=65, decimals=scale), divide_exactly, is_constant)


def divided(a: Decimal, b: Decimal, scale: int) -> Decimal:
    """As TiDB divides: whole words of digits, the rest cut off. More digits than ``scale`` may be left."""
    digits_a, digits_b = _fraction_digits(a), _fraction_digits(b)
    words_a, words_b = -(-digits_a // _WORD) * _WORD, -(-digits_b // _WORD) * _WORD
    more = max(DIVISION_DIGITS - (words_a - digits_a + words_b - digits_b), 0)
    kept = -(-(words_a + words_b + more) // _WORD) * _WORD
    found = MATH.divide(a, b).quantize(Decimal(1).scaleb(-kept), ROUND_DOWN, MATH)
    return found if kept >= scale else rescaled(found, scale)


def _fraction_digits(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0


def _whole_division(left: Computed, right: Computed, settings: Settings, text: Callable[[], str]) -> Computed:
    first, second = left.compute, right.compute
    is_unsigned = left.type.is_unsigned or right.type.is_unsigned

    def divide(row: Any) -> int | None:
        a, b = first(row), second(row)
        if a is None or b is None:
            return None
        if b == 0:
            _by_zero(settings)
            return None
        if isinstance(a, float) or isinstance(b, float):
            a, b = convert.decimal_of_real(float(a)), convert.decimal_of_real(float(b))
        found = int(MATH.divide(Decimal(a), Decimal(b)).to_integral_value(ROUND_DOWN))
        low, high = (0, UNSIGNED_MAX) if is_unsigned else (SIGNED_MIN, SIGNED_MAX)
        if not low <= found <= high:
            raise sql_error(Errno.DATA_OUT_OF_RANGE, "BIGINT UNSIGNED" if is_unsigned else "BIGINT", text())
        return found

    return Computed(Type(Kind.INT, is_unsigned), divide, left.is_constant and right.is_constant)


def _modulo(left: Computed, right: Computed, settings: Settings) -> Computed:
    first, second = left.compute, right.compute
    kinds = {left.type.kind, right.type.kind}
    if Kind.REAL in kinds:
        kind = Type(Kind.REAL)
    elif Kind.DECIMAL in kinds:
        kind = Type(Kind.DECIMAL, length=65, decimals=max(scale_of(left.type), scale_of(right.type)))
    else:
        kind = Type(Kind.INT, left.type.is_unsigned)

    def compute(row: Any) -> Any:
        a, b = first(row), second(row)
        if a is None or b is None:
            return None
        if b == 0:
            _by_zero(settings)
            return None
        if kind.kind is Kind.REAL:
            return math.fmod(float(a), float(b))
        if kind.kind is Kind.DECIMAL:
            rest = MATH.remainder(Decimal(a), Decimal(b))
            return rest if rest else rest.copy_abs()
        found = abs(a) % abs(b)
        return -found if a < 0 else found

    return Computed(kind, compute, left.is_constant and right.is_constant)


def minus(side: Computed, settings: Settings, text: Callable[[], str]) -> Computed:
    side = _numeric(side, settings)
    compute, kind = side.compute, side.type

    def negate(value: Any) -> Any:
        found = -value if not isinstance(value, Decimal) else value.copy_negate() if value else value
        if kind.kind is Kind.INT and not SIGNED_MIN <= found <= SIGNED_MAX:
            raise sql_error(Errno.DATA_OUT_OF_RANGE, "BIGINT", text())
        return found

    result = kind._replace(is_unsigned=False, column=None)
    return Computed(result, _mapped(compute, negate), side.is_constant)


# Bits


def bits(symbol: str, left: Computed, right: Computed, settings: Settings) -> Computed:
    first, second = _word(left, settings), _word(right, settings)
    apply: dict[str, Callable[[int, int], int]] = {
        "|": operator.or_,
        "&": operator.and_,
        "^": operator.xor,
        "<<": lambda a, b: (a << b) & UNSIGNED_MAX if b < 64 else 0,
        ">>": lambda a, b: a >> b if b < 64 else 0,
    }
    change = apply[symbol]

    def compute(row: Any) -> int | None:
        a, b = first(row), second(row)
        return None if a is None or b is None else change(a, b)

    return Computed(UNSIGNED, compute, left.is_constant and right.is_constant)


def inversion(side: Computed, settings: Settings) -> Computed:
    return Computed(UNSIGNED, _mapped(_word(side, settings), lambda value: value ^ UNSIGNED_MAX), side.is_constant)


def _word(side: Computed, settings: Settings) -> Compute:
    kind = side.type
    return _mapped(side.compute, lambda value: convert.integer(value, kind, settings) & UNSIGNED_MAX)
