"""Time zones as tables: when the offset from UTC changes, and to what, for TIMESTAMP columns."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from tidemill.columnar.jit import Longs
from tidemill.errors import UsageError

# TIMESTAMP holds 1970 to 2038; the table goes as far as 32 bits of seconds would.
FIRST_SECOND = 0
LAST_SECOND = (1 << 32) - 1
_STEP = 3 * 86400  # no zone has changed its offset twice within three days since 1970
_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class Zone:
    """From ``since[i]`` (seconds since 1970, UTC) on, local time is ``offset[i]`` seconds ahead of UTC."""

    name: str
    since: Longs
    offset: Longs

    @property
    def is_utc(self) -> bool:
        return len(self.offset) == 1 and int(self.offset[0]) == 0


@lru_cache(maxsize=32)
def zone_table(name: str) -> Zone:
    """The table of an IANA zone (``Asia/Shanghai``) or a fixed offset (``+08:00``)."""
    zone = parse_zone(name)
    if zone is UTC or isinstance(zone, timezone):
        return Zone(name, np.array([FIRST_SECOND]), np.array([_offset_at(zone, FIRST_SECOND)]))
    since, offset = [FIRST_SECOND], [_offset_at(zone, FIRST_SECOND)]
    for second in range(FIRST_SECOND + _STEP, LAST_SECOND + _STEP, _STEP):
        ahead = _offset_at(zone, second)
        if ahead != offset[-1]:
            since.append(_change_between(zone, second - _STEP, second))
            offset.append(ahead)
    return Zone(name, np.array(since), np.array(offset))


def parse_zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return UTC
    match = _OFFSET.fullmatch(name)
    if match and int(match[2]) <= 14 and int(match[3]) < 60:
        ahead = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(ahead if match[1] == "+" else -ahead)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"there is no time zone named {name!r}. Give an IANA name such as 'Asia/Shanghai', "
            "an offset such as '+08:00', or 'UTC'."
        ) from error


def _offset_at(zone: tzinfo, second: int) -> int:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    ahead = moment.astimezone(zone).utcoffset()
    assert ahead is not None  # an aware datetime has one
    return int(ahead.total_seconds())


def _change_between(zone: tzinfo, before: int, after: int) -> int:
    """The first second in ``(before, after]`` with the offset that is in force at ``after``."""
    wanted = _offset_at(zone, after)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset_at(zone, middle) == wanted:
            after = middle
        else:
            before = middle
    return after
