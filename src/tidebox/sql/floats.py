"""Floating-point numbers as text: the shortest digits that read back as the same number, laid out as TiDB does.

For clients: positional, with an exponent from 1e15 on and below 1e-15; a FLOAT with an exponent has six digits; what is
no number is 0. In documents: an exponent from 1e21 on and below 1e-6. In columns of text: always positional.
"""

import math
from decimal import Decimal

import numpy as np

_BIG = 1e15
_SMALL = 1e-15
_BIG_SINGLE = float(np.float32(_BIG))
_SMALL_SINGLE = float(np.float32(_SMALL))
_BEYOND_SINGLE = 2.0**128 - 2.0**103  # from here on rounding to single precision gives infinity


def show_double(value: float, decimals: int | None = None) -> str:
    """``decimals`` fixes how many there are behind the point, unless an exponent is needed."""
    if not math.isfinite(value):
        return "0"
    if _has_exponent(value, _BIG, _SMALL):
        mantissa = f"{value:.{decimals}e}" if decimals is not None else _scientific(repr(value))
        return _tidy(mantissa)
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return positional(value)


def show_float(value: float, decimals: int | None = None) -> str:
    """The same for single precision."""
    if not abs(value) < _BEYOND_SINGLE:
        return "0"
    single = np.float32(value)
    if _has_exponent(float(single), _BIG_SINGLE, _SMALL_SINGLE):
        return _tidy(f"{float(single):.5e}")
    if decimals is not None:
        return f"{float(single):.{decimals}f}"
    return positional(value, is_single=True)


def positional(value: float, *, is_single: bool = False) -> str:
    """All its digits, whatever its size."""
    shortest = str(np.float32(value)) if is_single else repr(value)
    return f"{Decimal(shortest):f}" if "e" in shortest else shortest.removesuffix(".0")


def document_double(value: float) -> str:
    """As Go's encoding/json prints it."""
    size = abs(value)
    if size != 0 and not 1e-6 <= size < 1e21:
        mantissa, exponent = _scientific(repr(value)).split("e")
        return f"{_tidy_mantissa(mantissa)}e{int(exponent):+d}"
    return positional(value)


def _has_exponent(value: float, big: float, small: float) -> bool:
    size = abs(value)
    return size >= big or 0 < size < small


def _scientific(shortest: str) -> str:
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)  # finite
    significant = "".join(map(str, digits))
    power = exponent + len(significant) - 1
    return f"{'-' if sign else ''}{significant[0]}.{significant[1:] or '0'}e{power:+03d}"


def _tidy(scientific: str) -> str:
    mantissa, exponent = scientific.split("e")
    return f"{_tidy_mantissa(mantissa)}e{exponent.removeprefix('+')}"


def _tidy_mantissa(mantissa: str) -> str:
    return mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
