"""Dates and times in expressions: made comparable, read from literals, taken apart.

A DATE or DATETIME is compared as text of one width, a TIME as microseconds.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.filter.values import Data, Kind, Unfit, Value

_MIDNIGHT: Final = " 00:00:00.000000"
_WIDE: Final = len("2020-01-01" + _MIDNIGHT)
_DELIMITED: Final = re.compile(
    r"(\d{2,4})[-/.:](\d{1,2})[-/.:](\d{1,2})(?:[T ]+(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?)?"
)
_CLOCK: Final = re.compile(r"(-)?(?:(\d+) )?(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?")
_BARE_CLOCK: Final = re.compile(r"(-)?(\d{1,7})(?:\.(\d*))?")
_LONGEST: Final = ((838 * 60 + 59) * 60 + 59) * 1_000_000


def comparable(value: Value, kind: Kind) -> Value:
    """In the form in which DATETIMEs or TIMEs are compared. Literals are read, and refused if wrong."""
    if value.kind in (Kind.DATE, Kind.DATETIME, Kind.TIME):
        if (value.kind is Kind.TIME) != (kind is Kind.TIME):
            raise Unfit("a TIME compared with a DATE or DATETIME")
        compute = value.compute
        if kind is Kind.TIME:
            return replace(value, kind=Kind.INT, compute=lambda rows: microseconds(compute(rows)), is_constant=False)
        return Value(Kind.TEXT, lambda rows: _widened(compute(rows)), collation="binary")
    if not value.is_constant or not isinstance(value.constant, str | int | Decimal):
        raise Unfit(f"a {kind.value} compared with a {value.kind.value} that is no literal")
    read = literal_time(str(value.constant)) if kind is Kind.TIME else literal_datetime(str(value.constant))
    held = pa.scalar(read)
    return Value(Kind.TEXT if kind is not Kind.TIME else Kind.INT, lambda rows: held, read, True, collation="binary")


def _widened(data: Data) -> Data:
    """``2020-01-01`` and ``2020-01-01 10:00:00.5`` as text of one width."""
    if isinstance(data, pa.Scalar):
        return _widened(pa.array([data.as_py()], pa.string()))[0]
    length = pc.utf8_length(data)
    whole = pc.if_else(pc.equal(length, 10), _MIDNIGHT, pc.if_else(pc.equal(length, 19), ".000000", ""))
    return pc.utf8_rpad(pc.binary_join_element_wise(data, whole, ""), _WIDE, "0")


def microseconds(data: Data) -> Data:
    """Of ``-838:59:59.000000``."""
    if isinstance(data, pa.Scalar):
        return microseconds(pa.array([data.as_py()], pa.string()))[0]
    parts = pc.extract_regex(data, r"^-?(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)\.?(?P<f>\d*)$")
    hours, minutes, whole = (pc.cast(pc.struct_field(parts, i), pa.int64()) for i in range(3))
    fraction = pc.cast(pc.utf8_rpad(pc.struct_field(parts, 3), 6, "0"), pa.int64())
    total = pc.add(
        pc.multiply(pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), whole), 1_000_000), fraction
    )
    return pc.if_else(pc.starts_with(data, "-"), pc.negate(total), total)


def literal_datetime(text: str) -> str:
    """A date, perhaps with a time, as text of the width in which they are compared."""
    text = text.strip()
    found = _DELIMITED.fullmatch(text)
    if found:
        return _datetime(text, *found.groups())
    digits, _, fraction = text.partition(".")
    if digits.isascii() and digits.isdigit() and len(digits) in (6, 8, 12, 14) and (not fraction or len(digits) > 8):
        year = len(digits) - (4 if len(digits) <= 8 else 10)
        rest = [digits[i : i + 2] for i in range(year, len(digits), 2)]
        return _datetime(text, digits[:year], *rest, *[None] * (5 - len(rest)), fraction)
    raise Unfit(f"a date or time compared with {text!r}, which is none")


def _datetime(text: str, year: str, *parts: str | None) -> str:
    month, day, hour, minute, second = (int(part or 0) for part in parts[:5])
    number = int(year)
    if len(year) == 2:
        number += 2000 if number < 70 else 1900
    fraction = (parts[5] or "").ljust(6, "0")
    if len(fraction) > 6:
        fraction = fraction[:6]  # MySQL would round; a filter that depends on it asks for more than columns hold
    is_date = 0 <= month <= 12 and 0 <= day <= 31
    if is_date and month and day:
        try:
            date(number or 4, month, day)
        except ValueError:
            is_date = False
    if not is_date or hour > 23 or minute > 59 or second > 59:
        raise Unfit(f"a date or time compared with {text!r}, which is none")
    return f"{number:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{fraction}"


def literal_time(text: str) -> int:
    """A time of the day or a length of time, in microseconds."""
    text = text.strip()
    found = _CLOCK.fullmatch(text)
    if found:
        sign, days, hours, minutes, seconds, fraction = found.groups()
    else:
        bare = _BARE_CLOCK.fullmatch(text)
        if bare is None:
            raise Unfit(f"a TIME compared with {text!r}, which is none")
        sign, digits, fraction = bare.groups()
        digits = digits.rjust(7, "0")
        days, hours, minutes, seconds = None, digits[:-4], digits[-4:-2], digits[-2:]
    if int(minutes) > 59 or int(seconds or 0) > 59:
        raise Unfit(f"a TIME compared with {text!r}, which is none")
    length = timedelta(
        days=int(days or 0), hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0),
        microseconds=int((fraction or "").ljust(6, "0")[:6]),
    )  # fmt: skip
    total = min(length // timedelta(microseconds=1), _LONGEST)
    return -total if sign else total


_PLACES: Final[dict[str, tuple[int, int]]] = {
    "YEAR": (0, 4), "MONTH": (5, 7), "DAY": (8, 10), "DAYOFMONTH": (8, 10),
    "HOUR": (11, 13), "MINUTE": (14, 16), "SECOND": (17, 19),
}  # fmt: skip
PARTS: Final = frozenset(_PLACES)


def part(name: str, value: Value) -> Value:
    """YEAR(…) and its like, of a DATE or DATETIME; the parts of the clock of a TIME too."""
    compute = value.compute
    begin, end = _PLACES[name]
    if value.kind is Kind.TIME and begin > 10:
        size, most = {"HOUR": (3_600_000_000, 1 << 40), "MINUTE": (60_000_000, 60), "SECOND": (1_000_000, 60)}[name]
        return Value(Kind.INT, lambda rows: _remainder(pc.divide(pc.abs(microseconds(compute(rows))), size), most))
    if value.kind is Kind.DATE and begin > 10:
        return Value(Kind.INT, lambda rows: pc.if_else(pc.is_valid(compute(rows)), pa.scalar(0, pa.int64()), None))
    if value.kind not in (Kind.DATE, Kind.DATETIME):
        raise Unfit(f"{name} of a {value.kind.value}")
    return Value(Kind.INT, lambda rows: pc.cast(pc.utf8_slice_codeunits(compute(rows), begin, end), pa.int64()))


def _remainder(data: Data, size: int) -> Data:
    return pc.subtract(data, pc.multiply(pc.divide(data, size), size))


def date_of(value: Value) -> Value:
    if value.kind is Kind.DATE:
        return value
    if value.kind is not Kind.DATETIME:
        raise Unfit(f"DATE of a {value.kind.value}")
    compute = value.compute
    return Value(Kind.DATE, lambda rows: pc.utf8_slice_codeunits(compute(rows), 0, 10))


def typed(kind: str, text: str) -> Value:
    """``DATE '…'``, ``TIME '…'``, ``TIMESTAMP '…'``."""
    readers: dict[str, Callable[[str], Any]] = {"TIME": _time_text, "DATE": lambda t: literal_datetime(t)[:10]}
    read = readers.get(kind, literal_datetime)(text)
    held = pa.scalar(read)
    return Value(Kind.DATETIME if kind == "TIMESTAMP" else Kind[kind], lambda rows: held, read, True)


def _time_text(text: str) -> str:
    total = literal_time(text)
    whole, fraction = divmod(abs(total), 1_000_000)
    return f"{'-' if total < 0 else ''}{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}.{fraction:06}"
