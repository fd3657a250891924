"""Dates, times of day and durations: packed numbers, the bit fields of documents, and text both ways."""

import re
from datetime import timedelta

from tidebox.sql.codec.datum import Time
from tidemill.errors import CorruptDataError

_MICROSECOND = timedelta(microseconds=1)


def pack(time: Time) -> int:
    """The number that a DATE, DATETIME or TIMESTAMP is stored as; it orders as the moments do."""
    year, month, day, hour, minute, second, microsecond = time
    if not (
        0 <= year <= 9999
        and 0 <= month <= 12
        and 0 <= day <= 31
        and 0 <= hour <= 23
        and 0 <= minute <= 59
        and 0 <= second <= 59
        and 0 <= microsecond <= 999999
    ):
        raise OverflowError("a part of the date or time is out of its range")
    return (((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second) << 24 | microsecond


def unpack(packed: int) -> Time:
    date, clock = packed >> 41, packed >> 24 & 0x1FFFF
    year, month = divmod(date >> 5, 13)
    hour, minute, second, microsecond = clock >> 12, clock >> 6 & 63, clock & 63, packed & 0xFFFFFF
    if year > 9999 or hour > 23 or minute > 59 or second > 59 or microsecond > 999999:
        raise CorruptDataError(f"packed time {packed} has a part out of its range")
    return Time(year, month, date & 31, hour, minute, second, microsecond)


def nanoseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND * 1000


def duration_of(count: int) -> timedelta:
    microseconds, rest = divmod(count, 1000)
    if rest:
        raise CorruptDataError("a duration of a fraction of a microsecond, which TiDB has not")
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise CorruptDataError("a duration longer than any calendar") from error


def core_time(time: Time) -> int:
    """The bit field of a moment inside a document. Its lowest four bits, TiDB's own in memory, are always zero."""
    pack(time)  # refuses parts out of range
    year, month, day, hour, minute, second, microsecond = time
    return year << 50 | month << 46 | day << 41 | hour << 36 | minute << 30 | second << 24 | microsecond << 4


def read_core_time(word: int) -> Time:
    time = Time(
        word >> 50,
        word >> 46 & 15,
        word >> 41 & 31,
        word >> 36 & 31,
        word >> 30 & 63,
        word >> 24 & 63,
        word >> 4 & 0xFFFFF,
    )
    try:
        pack(time)
    except OverflowError as error:
        raise CorruptDataError("a date in a JSON document has a part out of its range") from error
    return time


# Text


def time_text(time: Time, fsp: int) -> str:
    clock = f"{time.hour:02}:{time.minute:02}:{time.second:02}"
    return f"{date_text(time)} {clock}{_fraction(time.microsecond, fsp)}"


def date_text(time: Time) -> str:
    return f"{time.year:04}-{time.month:02}-{time.day:02}"


def duration_text(duration: timedelta, fsp: int) -> str:
    microseconds = duration // _MICROSECOND
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{'-' if microseconds < 0 else ''}{clock}{_fraction(fraction, fsp)}"


def _fraction(microsecond: int, fsp: int) -> str:
    return f".{microsecond:06}"[: fsp + 1] if fsp > 0 else ""


_TIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")


def parse_time(text: str) -> Time:
    """The canonical text of a date or moment, as schemas keep it in defaults; not all that SQL accepts."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("not a date or time in the form YYYY-MM-DD hh:mm:ss.ffffff")
    year, month, day, hour, minute, second = map(int, found.groups(default="0")[:6])
    time = Time(year, month, day, hour, minute, second, int((found[7] or "").ljust(6, "0")))
    pack(time)
    return time


def parse_duration(text: str) -> timedelta:
    """The canonical text of a TIME, as schemas keep it in defaults."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("not a time in the form hh:mm:ss.ffffff")
    sign, hours, minutes, seconds, fraction = found.groups(default="0")
    size = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int(fraction.ljust(6, "0"))
    )
    return -size if sign == "-" else size
