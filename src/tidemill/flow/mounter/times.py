"""Dates and times as text: packed dates, timestamps moved to a zone, durations; a block at a time.

A packed date is ``((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second``,
shifted by 24 bits for the microseconds. Month and day may be 0 in a DATE or DATETIME, never in a
TIMESTAMP, which is kept in UTC; the zero date is printed as it is in any zone.
"""

from tidemill.columnar.jit import Bytes, Ints, Longs, count_up_to, helper, i64, kernel, load_u64, u64
from tidemill.flow.mounter.outcomes import MISSING, OK, failure

BAD_TIME_LENGTH = 48
BAD_TIME = 49
TIMESTAMP_OUT_OF_RANGE = 50
BAD_DURATION = 51

REASONS = {
    BAD_TIME_LENGTH: "a time's cell must have 1, 2, 4 or 8 bytes",
    BAD_TIME: "the packed time has a field that no calendar has",
    TIMESTAMP_OUT_OF_RANGE: "the timestamp lies outside 1970 to 2106",
    BAD_DURATION: "the duration lies outside ±838:59:59",
}

LONGEST_TIME = 26
LONGEST_DURATION = 17


@helper
def _two(out: Bytes, at: int, value: int) -> None:
    tens = value // 10
    out[at] = 48 + tens
    out[at + 1] = 48 + value - 10 * tens


@helper
def _fraction(out: Bytes, at: int, micro: int, digits: int) -> int:
    if digits == 0:
        return at
    out[at] = 46  # .
    for k in range(6, 0, -1):
        rest = micro // 10
        if k <= digits:
            out[at + k] = 48 + micro - 10 * rest
        micro = rest
    return at + 1 + digits


@helper
def write_date(out: Bytes, at: int, year: int, month: int, day: int) -> int:
    century = year // 100
    _two(out, at, century)
    _two(out, at + 2, year - 100 * century)
    out[at + 4] = 45  # -
    _two(out, at + 5, month)
    out[at + 7] = 45
    _two(out, at + 8, day)
    return at + 10


@helper
def write_clock(out: Bytes, at: int, hour: int, minute: int, second: int, micro: int, digits: int) -> int:
    _two(out, at, hour)
    out[at + 2] = 58  # :
    _two(out, at + 3, minute)
    out[at + 5] = 58
    _two(out, at + 6, second)
    return _fraction(out, at + 8, micro, digits)


@helper
def write_duration(out: Bytes, at: int, nanoseconds: int, digits: int) -> int:
    """``[-]HH:MM:SS[.ffffff]``; more than two digits of hours where needed. At most ±999 hours."""
    if nanoseconds < 0:
        out[at] = 45
        at += 1
        nanoseconds = -nanoseconds
    micro = nanoseconds // 1000
    second = micro // 1000000
    micro -= second * 1000000
    hour = second // 3600
    second -= hour * 3600
    minute = second // 60
    second -= minute * 60
    if hour > 99:
        hundreds = hour // 100
        out[at] = 48 + hundreds
        at += 1
        hour -= 100 * hundreds
    return write_clock(out, at, hour, minute, second, micro, digits)


@helper
def _is_calendar_day(year: int, month: int, day: int) -> bool:
    if month < 1 or day < 1:
        return False
    last = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    elif month == 2:
        last = 29 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 else 28
    return day <= last


@helper
def _days_since_1970(year: int, month: int, day: int) -> int:
    """Days of the proleptic Gregorian calendar, counted in years that begin with March."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@helper
def _write_timestamp(
    out: Bytes, to: int, seconds: int, micro: int, digits: int, zone_since: Longs, zone_offset: Longs
) -> int:
    """The moment ``seconds`` after 1970 (UTC) as local time."""
    seconds += zone_offset[count_up_to(zone_since, seconds) - 1]
    days = seconds // 86400
    clock = seconds - days * 86400
    days += 719468
    era = days // 146097
    of_era = days - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + (3 if shifted < 10 else -9)
    year = year_of_era + era * 400 + (month <= 2)
    to = write_date(out, to, year, month, day)
    out[to] = 32
    hour = clock // 3600
    minute = clock // 60 - hour * 60
    return write_clock(out, to + 1, hour, minute, clock % 60, micro, digits)


@kernel
def write_times(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    is_date: bool,
    is_timestamp: bool,
    digits: int,
    zone_since: Longs,
    zone_offset: Longs,
    fill: Bytes,
    is_filled: bool,
    out: Bytes,
    ends: Ints,
    valid: Bytes,
    at: int,
    used: Longs,
) -> int:
    to = used[0]
    last = len(data) - 8
    for i in range(count):
        n = length[i]
        if n < 0:
            if n == MISSING and is_filled:
                for k in range(len(fill)):
                    out[to + k] = fill[k]
                to += len(fill)
            else:
                valid[at + i] = 0
            ends[at + i] = to
            continue
        if n != 8 and n != 1 and n != 4 and n != 2:
            return failure(i, BAD_TIME_LENGTH)
        s = i64(start[i])
        if s <= last:
            word = load_u64(data, s) << u64(64 - 8 * n) >> u64(64 - 8 * n)
        else:
            word = u64(0)
            for k in range(n):
                word |= u64(data[s + k]) << u64(8 * k)
        micro = i64(word & u64(0xFFFFFF))
        rest = i64(word >> u64(24))
        date = rest >> 17
        day = date & 31
        year = (date >> 5) // 13
        month = (date >> 5) - 13 * year
        second = rest & 63
        minute = rest >> 6 & 63
        hour = rest >> 12 & 31
        if year > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999999:
            return failure(i, BAD_TIME)
        if is_timestamp and word != 0:
            if not _is_calendar_day(year, month, day):
                return failure(i, BAD_TIME)
            seconds = _days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
            if seconds < 0 or seconds > 4294967295:
                return failure(i, TIMESTAMP_OUT_OF_RANGE)
            to = _write_timestamp(out, to, seconds, micro, digits, zone_since, zone_offset)
        else:
            to = write_date(out, to, year, month, day)
            if not is_date:
                out[to] = 32
                to = write_clock(out, to + 1, hour, minute, second, micro, digits)
        ends[at + i] = to
    used[0] = to
    return OK


@kernel
def write_durations(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    digits: int,
    fill: Bytes,
    is_filled: bool,
    out: Bytes,
    ends: Ints,
    valid: Bytes,
    at: int,
    used: Longs,
) -> int:
    to = used[0]
    for i in range(count):
        n = i64(length[i])
        if n < 0:
            if n == MISSING and is_filled:
                for k in range(len(fill)):
                    out[to + k] = fill[k]
                to += len(fill)
            else:
                valid[at + i] = 0
            ends[at + i] = to
            continue
        if n != 8 and n != 1 and n != 4 and n != 2:
            return failure(i, BAD_TIME_LENGTH)
        word = u64(0)
        for k in range(n):
            word |= u64(data[start[i] + k]) << u64(8 * k)
        shift = 64 - 8 * n
        nanoseconds = i64(word << u64(shift)) >> shift
        if nanoseconds >= 3020400000000000 or nanoseconds <= -3020400000000000:  # 839 hours
            return failure(i, BAD_DURATION)
        to = write_duration(out, to, nanoseconds, digits)
        ends[at + i] = to
    used[0] = to
    return OK
