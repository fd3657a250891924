"""Dates and times from text and numbers as MySQL reads them, and reckoning with them."""

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Final

from tidebox.sql.codec.datum import Time

ZERO: Final = Time()
MAX_DURATION: Final = timedelta(hours=838, minutes=59, seconds=59)
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH_DAYS: Final = datetime(1970, 1, 1).toordinal()
_DATE: Final = re.compile(
    r"\s*(\d{1,4})[^\w\s]+(\d{1,2})[^\w\s]+(\d{1,2})"
    r"(?:(?:[Tt]|\s+)(\d{1,2})(?:[^\w\s](\d{1,2})(?:[^\w\s](\d{1,2})(?:\.(\d*))?)?)?)?"
    r"(Z|[+-]\d{2}:?\d{2}|[+-]\d{2})?\s*"
)
_DIGITS: Final = re.compile(r"\s*(\d{5,14})(?:\.(\d*))?\s*")
_CLOCK: Final = re.compile(r"\s*(-?)\s*(?:(\d{1,2})\s+)?(\d{1,3})(?::(\d{1,2})(?::(\d{1,2}))?)?(?:\.(\d*))?\s*")
_COMPACT_CLOCK: Final = re.compile(r"\s*(-?)(\d{1,7})(?:\.(\d*))?\s*")


def parse_moment(text: str) -> tuple[Time, timedelta | None] | None:
    """A DATE or DATETIME from text, with all its digits, and its offset from UTC if it has one; None: it is none.

    The parts are in range, but the day may be one that the month has not.
    """
    found = _DATE.fullmatch(text)
    if found is not None:
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        if len(found[1]) <= 2:
            year = full_year(year)
        return _checked(year, month, day, hour, minute, second, found[7] or "", _offset(found[8]))
    found = _DIGITS.fullmatch(text)
    if found is None:
        return None
    digits, fraction = found[1], found[2] or ""
    if len(digits) in (8, 14):
        year, rest = int(digits[:4]), digits[4:]
    elif len(digits) in (5, 6, 12):
        digits = digits.rjust(6, "0")
        year, rest = full_year(int(digits[:2])), digits[2:]
    else:
        return None
    month, day, hour, minute, second = (int(rest[at : at + 2] or 0) for at in range(0, 10, 2))
    return _checked(year, month, day, hour, minute, second, fraction if len(rest) > 4 else "", None)


def _checked(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str, offset: timedelta | None
) -> tuple[Time, timedelta | None] | None:
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        return None
    moment = Time(year, month, day, hour, minute, second, int(fraction[:6].ljust(6, "0")))
    if len(fraction) > 6 and fraction[6] >= "5":
        if not is_real(moment):
            return moment, offset
        moment = add(moment, _MICROSECOND)
    return moment, offset


def _offset(text: str | None) -> timedelta | None:
    if text is None:
        return None
    if text == "Z":
        return timedelta()
    digits = text[1:].replace(":", "").ljust(4, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -size if text[0] == "-" else size


def full_year(year: int) -> int:
    return year + (2000 if year < 70 else 1900)


def moment_of_number(number: int | Decimal) -> Time | None:
    """From a number like 20240229123456; None if it is none."""
    whole = int(number)
    fraction = number - whole
    if whole < 0:
        return None
    if whole == 0:
        return ZERO
    if whole < 101:
        return None
    size = 6 if whole <= 991231 else 8 if whole <= 99991231 else 12 if whole <= 991231235959 else 14
    found = parse_moment(str(whole).rjust(size, "0"))
    if found is None:
        return None
    micros = int(Decimal(fraction * 1_000_000).to_integral_value()) if fraction else 0
    return add(found[0], timedelta(microseconds=micros)) if micros else found[0]


def parse_duration(text: str) -> timedelta | None:
    """A TIME from text, not yet held to its greatest; None: it is none."""
    found = _CLOCK.fullmatch(text)
    if found is not None and (found[4] is not None or found[2] is not None):
        sign, days, hours, minutes, seconds, fraction = found.groups()
        if int(minutes or 0) > 59 or int(seconds or 0) > 59:
            return None
        size = timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        return _signed(size + _fraction(fraction), sign)
    found = _COMPACT_CLOCK.fullmatch(text)
    if found is not None:
        digits = found[2].rjust(7, "0")
        hours, minutes, seconds = int(digits[:3]), int(digits[3:5]), int(digits[5:])
        if minutes > 59 or seconds > 59:
            return None
        return _signed(timedelta(hours=hours, minutes=minutes, seconds=seconds) + _fraction(found[3]), found[1])
    moment = parse_moment(text)
    return clock_of(moment[0]) if moment is not None else None


def _fraction(digits: str | None) -> timedelta:
    if not digits:
        return timedelta()
    micros = int(digits[:6].ljust(6, "0"))
    return timedelta(microseconds=micros + (len(digits) > 6 and digits[6] >= "5"))


def _signed(size: timedelta, sign: str) -> timedelta:
    return -size if sign == "-" else size


def is_zero(moment: Time) -> bool:
    return moment == ZERO


def has_zero_part(moment: Time) -> bool:
    return moment.month == 0 or moment.day == 0


def is_real(moment: Time) -> bool:
    """Whether the calendar has this day."""
    return (
        1 <= moment.month <= 12
        and moment.day >= 1
        and moment.year >= 1
        and moment.day <= monthrange(moment.year, moment.month)[1]
    )


def is_possible(moment: Time) -> bool:
    """Whether MySQL can hold it: a day of the calendar, or one with zeros in it."""
    if moment.month == 0 or moment.day == 0:
        return True
    if moment.year == 0:
        return moment.day <= monthrange(2000, moment.month)[1]
    return moment.day <= monthrange(moment.year, moment.month)[1]


def to_datetime(moment: Time) -> datetime:
    return datetime(*moment)


def of_datetime(moment: datetime) -> Time:
    return Time(moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second, moment.microsecond)


def add(moment: Time, size: timedelta) -> Time:
    """Raises ``OverflowError`` past the calendar's ends. The moment is a day of the calendar."""
    return of_datetime(datetime(*moment) + size)


def round_moment(moment: Time, fsp: int) -> Time:
    """To ``fsp`` fractional digits, half up."""
    step = 10 ** (6 - fsp)
    rest = moment.microsecond % step
    if rest == 0:
        return moment
    down = moment._replace(microsecond=moment.microsecond - rest)
    if rest * 2 < step:
        return down
    if down.microsecond + step < 1_000_000:
        return down._replace(microsecond=down.microsecond + step)
    return add(down, timedelta(microseconds=step)) if is_real(moment) else down


def round_duration(size: timedelta, fsp: int) -> timedelta:
    step = 10 ** (6 - fsp)
    micros = size // _MICROSECOND
    rounded = (abs(micros) + step // 2) // step * step
    return timedelta(microseconds=-rounded if micros < 0 else rounded)


def truncate_moment(moment: Time, fsp: int) -> Time:
    step = 10 ** (6 - fsp)
    return moment._replace(microsecond=moment.microsecond // step * step)


def date_of(moment: Time) -> Time:
    return Time(moment.year, moment.month, moment.day)


def clock_of(moment: Time) -> timedelta:
    return timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond)


def number_of_date(moment: Time) -> int:
    return moment.year * 10000 + moment.month * 100 + moment.day


def number_of_moment(moment: Time, fsp: int) -> int | Decimal:
    whole = number_of_date(moment) * 1_000_000 + moment.hour * 10000 + moment.minute * 100 + moment.second
    return whole if fsp == 0 else whole + Decimal(moment.microsecond).scaleb(-6).quantize(Decimal(1).scaleb(-fsp))


def number_of_duration(size: timedelta, fsp: int) -> int | Decimal:
    micros = size // _MICROSECOND
    seconds, fraction = divmod(abs(micros), 1_000_000)
    whole = seconds // 3600 * 10000 + seconds // 60 % 60 * 100 + seconds % 60
    number = whole if fsp == 0 else whole + Decimal(fraction).scaleb(-6).quantize(Decimal(1).scaleb(-fsp))
    return -number if micros < 0 else number


# Time zones


def to_utc(moment: Time, zone: tzinfo) -> Time:
    """What a TIMESTAMP is kept as. Of an hour that comes twice the first is meant; ``ValueError`` for one that
    never comes."""
    if moment == ZERO:
        return moment
    local = datetime(*moment, tzinfo=zone)
    utc = local.astimezone(UTC)
    if utc.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise ValueError("no such time in this time zone")
    return of_datetime(utc)


def from_utc(moment: Time, zone: tzinfo) -> Time:
    if moment == ZERO or zone is UTC:
        return moment
    return of_datetime(datetime(*moment, tzinfo=UTC).astimezone(zone))


def fixed_zone(text: str) -> tzinfo | None:
    """``+08:00``; None if it is no offset."""
    found = re.fullmatch(r"([+-])(\d{1,2}):(\d{2})", text)
    if found is None:
        return None
    size = timedelta(hours=int(found[2]), minutes=int(found[3]))
    if size > timedelta(hours=14):
        return None
    return timezone(-size if found[1] == "-" else size)


# Intervals

_SIZES: Final = {
    "MICROSECOND": timedelta(microseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_MONTHS: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def add_interval(moment: Time, count: Decimal, unit: str) -> Time | None:
    """``moment + count unit``; None past the calendar's ends."""
    try:
        if unit in _MONTHS:
            months = moment.year * 12 + moment.month - 1 + _whole(count) * _MONTHS[unit]
            year, month = divmod(months, 12)
            if not 1 <= year <= 9999:
                return None
            day = min(moment.day, monthrange(year, month + 1)[1])
            return moment._replace(year=year, month=month + 1, day=day)
        if unit == "SECOND":
            return add(moment, timedelta(microseconds=int(count * 1_000_000)))
        return add(moment, _SIZES[unit] * _whole(count))
    except (OverflowError, ValueError):
        return None


def interval_size(count: Decimal, unit: str) -> timedelta:
    if unit == "SECOND":
        return timedelta(microseconds=int(count * 1_000_000))
    return _SIZES[unit] * _whole(count)


def _whole(count: Decimal) -> int:
    return int(count.to_integral_value(rounding="ROUND_HALF_UP"))
