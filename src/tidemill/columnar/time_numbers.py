"""Dates and times in MySQL's text as numbers, in bulk: days, or microseconds, since 1970.

    '2024-02-29'                   ──►  19782
    '2024-02-29 12:34:56.789'      ──►  1709210096789000
    '-838:59:58.999'               ──►  -3020398999000

What is no day of the calendar, such as '2024-00-00', has no number. Runs on executors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, Longs, helper, i64, kernel

DAY_MICROS = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """``value[i]`` holds where ``is_number[i]`` is 1; elsewhere the text was null, or has no number."""

    value: npt.NDArray[np.int64]
    is_number: npt.NDArray[np.uint8]


def moments(values: pa.Array, *, is_recent: bool = False) -> Numbers:
    """Microseconds since 1970 of dates and of datetimes, read as UTC.

    With ``is_recent`` years below 70 count from 2000, and those below 100 from 1900.
    """
    data, offsets = _bytes_of(values)
    found = Numbers(np.zeros(len(values), np.int64), np.zeros(len(values), np.uint8))
    _read_moments(data, offsets, is_recent, found.value, found.is_number)
    return found


def durations(values: pa.Array) -> Numbers:
    """Microseconds of times, which may be negative and longer than a day."""
    data, offsets = _bytes_of(values)
    found = Numbers(np.zeros(len(values), np.int64), np.zeros(len(values), np.uint8))
    _read_durations(data, offsets, found.value, found.is_number)
    return found


def _bytes_of(values: pa.Array) -> tuple[Bytes, Ints]:
    if not len(values):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    body = values.buffers()[2]
    return (np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)), offsets


@kernel
def _read_moments(data: Bytes, offsets: Ints, is_recent: bool, out: Longs, ok: Bytes) -> None:
    for row in range(len(out)):
        at, end = i64(offsets[row]), i64(offsets[row + 1])
        if end - at < 10 or data[at + 4] != 45 or data[at + 7] != 45:
            continue
        year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
        if year < 0 or month < 1 or month > 12 or day < 1 or day > _days_in(year, month):
            continue
        micros = i64(0)
        if end - at > 10:
            micros = _clock(data, at + 11, end) if data[at + 10] == 32 and end - at >= 19 else i64(-1)
            if micros < 0 or micros >= DAY_MICROS:
                continue
        if is_recent and year < 100:
            year += 2000 if year < 70 else 1900
        out[row] = _days(year, month, day) * DAY_MICROS + micros
        ok[row] = 1


@kernel
def _read_durations(data: Bytes, offsets: Ints, out: Longs, ok: Bytes) -> None:
    for row in range(len(out)):
        at, end = i64(offsets[row]), i64(offsets[row + 1])
        is_negative = at < end and data[at] == 45
        if is_negative:
            at += 1
        micros = _clock(data, at, end)
        if micros >= 0:
            out[row] = -micros if is_negative else micros
            ok[row] = 1


@helper
def _clock(data: Bytes, at: int, end: int) -> int:
    """Microseconds of ``h…h:mm:ss[.f…]``, up to the end; -1: it is something else."""
    hours = at
    while at < end and data[at] != 58:
        at += 1
    if at == hours or at - hours > 4 or end - at < 6 or data[at + 3] != 58:
        return i64(-1)
    hour, minute, second = _digits(data, hours, at - hours), _digits(data, at + 1, 2), _digits(data, at + 4, 2)
    if hour < 0 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return i64(-1)
    at += 6
    fraction = i64(0)
    if at < end:
        places = end - at - 1
        if data[at] != 46 or places > 6:
            return i64(-1)
        fraction = _digits(data, at + 1, places) if places else i64(0)
        if fraction < 0:
            return i64(-1)
        for _ in range(6 - places):
            fraction *= 10
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


@helper
def _digits(data: Bytes, at: int, count: int) -> int:
    """A number of so many digits; -1: something else is there."""
    number = i64(0)
    for k in range(count):
        digit = i64(data[at + k]) - 48
        if digit < 0 or digit > 9:
            return i64(-1)
        number = number * 10 + digit
    return number


@helper
def _days_in(year: int, month: int) -> int:
    if month == 2:
        return i64(29) if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else i64(28)
    return i64(30) if month == 4 or month == 6 or month == 9 or month == 11 else i64(31)


@helper
def _days(year: int, month: int, day: int) -> int:
    """Since 1970, in the Gregorian calendar extended backwards (H. Hinnant, "chrono-compatible date algorithms")."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
