"""Floating-point numbers in the notation TiDB gives to clients.

The shortest digits that read back as the same number, positional; with an exponent from 1e15 on
and below 1e-15. A FLOAT with an exponent has six digits. What is no number is 0.
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
    return _positional(repr(value))


def show_float(value: float, decimals: int | None = None) -> str:
    """The same for single precision."""
    if not abs(value) < _BEYOND_SINGLE:
        return "0"
    single = np.float32(value)
    if _has_exponent(float(single), _BIG_SINGLE, _SMALL_SINGLE):
        return _tidy(f"{float(single):.5e}")
    if decimals is not None:
        return f"{float(single):.{decimals}f}"
    return _positional(str(single))


def _has_exponent(value: float, big: float, small: float) -> bool:
    size = abs(value)
    return size >= big or 0 < size < small


def _positional(shortest: str) -> str:
    if "e" in shortest:
        return f"{Decimal(shortest):f}"
    return shortest.removesuffix(".0")


def _scientific(shortest: str) -> str:
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int)  # finite
    significant = "".join(map(str, digits))
    power = exponent + len(significant) - 1
    return f"{'-' if sign else ''}{significant[0]}.{significant[1:] or '0'}e{power:+03d}"


def _tidy(scientific: str) -> str:
    mantissa, exponent = scientific.split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{exponent.removeprefix('+')}"
