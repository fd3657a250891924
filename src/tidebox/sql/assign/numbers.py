"""Numbers, years and bits."""

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import numpy as np

from tidebox.sql.assign.target import Assign, Target, rounded, shown_text
from tidebox.sql.codec.collation import text_bytes
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.kinds import Kind, Telling, Type
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import ColumnType
from tidemill.tidb.mysql_type import TYPE_WORDS

_INTEGER_BITS: Final = {
    ColumnType.TINY: 8,
    ColumnType.SHORT: 16,
    ColumnType.INT24: 24,
    ColumnType.LONG: 32,
    ColumnType.LONGLONG: 64,
}
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_BEYOND_FLOAT: Final = 2.0**128 - 2.0**103  # from here on rounding to single precision gives infinity


def integer(target: Target, kind: Type) -> Assign:
    bits = _INTEGER_BITS[target.column.type]
    low, high = (0, (1 << bits) - 1) if target.column.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)

    def assign(value: Any, row: int) -> int:
        number = value if type(value) is int else target.number(value, kind, row)
        found = rounded(number)
        if low <= found <= high:
            return found
        target.overflows(number if abs(found) >> 63 else found, row)
        return low if found < low else high

    return assign


def real(target: Target, kind: Type) -> Assign:
    column = target.column
    is_single = column.type is ColumnType.FLOAT
    scale = column.decimal if column.decimal >= 0 and column.flen > 0 else None

    def assign(value: Any, row: int) -> float:
        found = float(target.number(value, kind, row))
        if not math.isfinite(found):
            target.overflows(found, row)
            found = math.copysign(_FLOAT_MAX, found)
        if scale is not None:
            found = _fixed(target, found, scale, row)
        if column.is_unsigned and found < 0:
            target.overflows(found, row)
            return 0.0
        if is_single:
            if abs(found) > _FLOAT_MAX and abs(found) >= _BEYOND_FLOAT:
                target.overflows(found, row)
                found = math.copysign(_FLOAT_MAX, found)
            return float(np.float32(found))
        return found

    return assign


def _fixed(target: Target, value: float, scale: int, row: int) -> float:
    """Of a DOUBLE(M, D): D digits behind the point, at most M in all."""
    power = 10.0**scale
    shifted = value * power
    found = _half_even(shifted) / power if math.isfinite(shifted) else value
    found = found or 0.0  # there is no negative zero
    most = 10.0 ** (target.column.flen - scale) - 10.0**-scale
    if abs(found) > most:
        target.out_of_range(row, f"{TYPE_WORDS[target.column.type].upper()} value is out of range in ''")
        return math.copysign(most, found)
    return found


def decimal(target: Target, kind: Type) -> Assign:
    column = target.column
    precision = column.flen if column.flen > 0 else 10
    scale = max(column.decimal, 0)
    unit = Decimal(1).scaleb(-scale)
    most = convert.MATH.subtract(Decimal(10 ** (precision - scale)), unit)
    too_much = Decimal(10 ** (precision - scale))

    def assign(value: Any, row: int) -> Decimal:
        number = target.number(value, kind, row)
        exact = convert.decimal_of_real(number) if isinstance(number, float) else Decimal(number)
        if exact.copy_abs() > too_much:
            found = exact
        else:
            found = exact.quantize(unit, ROUND_HALF_UP, convert.MATH)
            if found != exact and found.copy_abs() <= most:
                _rounded_off(target, _told(value, kind, exact), exact, row)
        if found.copy_abs() > most:
            target.out_of_range(row, f"DECIMAL value is out of range in '({precision}, {scale})'")
            found = most if found > 0 else most.copy_negate()
        if column.is_unsigned and found < 0:
            target.out_of_range(row, f"DECIMAL value is out of range in '({precision}, {scale})'")
            found = Decimal(0).quantize(unit)
        return found if found else found.copy_abs()  # there is no negative zero

    return assign


def _rounded_off(target: Target, shown: str, exact: Decimal, row: int) -> None:
    """Digits behind the last place are lost with a warning, even under strict rules."""
    if target.telling is Telling.VALUES:
        error = sql_error(Errno.TRUNCATED_WRONG_VALUE_FOR_FIELD, "decimal", shown, target.column.name, row)
    else:
        error = sql_error(Errno.TRUNCATED_WRONG_VALUE, "DECIMAL", f"{exact:f}")
    target.note(error)


def year(target: Target, kind: Type) -> Assign:
    def assign(value: Any, row: int) -> int:
        if kind.kind in (Kind.TEXT, Kind.BYTES):
            text = shown_text(value, kind).strip()
            if not text.isdigit():
                target.incorrect(text, kind, row)
                return 0
            year = int(text)
            if len(text) <= 2:
                year = temporal.full_year(year)
        elif kind.kind.is_moment:
            year = value.year
        else:
            year = rounded(target.number(value, kind, row))
            if 0 < year < 100:
                year = temporal.full_year(year)
        if year == 0 or 1901 <= year <= 2155:
            return year
        if target.telling is Telling.VALUES:
            target.complain(sql_error(Errno.WARN_DATA_OUT_OF_RANGE, target.column.name, row))
        else:
            target.complain(sql_error(Errno.WARN_DATA_OUT_OF_RANGE))  # unfilled, as with what is truncated
        return 0

    return assign


def bit(target: Target, kind: Type) -> Assign:
    bits = max(target.column.flen, 1)

    def assign(value: Any, row: int) -> int:
        if kind.kind in (Kind.TEXT, Kind.BYTES, Kind.BITS, Kind.ENUM, Kind.SET):
            raw = text_bytes(value)
            if len(raw) > 8 and bits == 64 and kind.kind is not Kind.BITS:
                target.incorrect(value if isinstance(value, str) else shown_text(value, kind), kind, row)
                raw = raw[:8]
            found = int.from_bytes(raw.lstrip(b"\0"), "big")
        else:
            found = rounded(target.number(value, kind, row))
            if found < 0 and kind.kind is Kind.REAL:
                target.overflows(float(value), row)
            if found < 0:
                found &= (1 << 64) - 1
        if found >> bits:
            target.too_long(row)
            found = (1 << bits) - 1
        return found

    return assign


def _told(value: Any, kind: Type, exact: Decimal) -> str:
    """A number that loses digits, as it was given."""
    if isinstance(value, str):
        return value.strip()
    if kind.kind is Kind.DECIMAL and kind.decimals >= 0:
        exact = exact.quantize(Decimal(1).scaleb(-kind.decimals), ROUND_HALF_UP, convert.MATH)
    return f"{exact:f}"


def _half_even(value: float) -> float:
    return float(round(value))
