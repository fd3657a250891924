"""Moments as people write them: a TSO, a time, ``now``, or how long ago, such as ``-15m``.

Read in one way by flags and by Spark's options. What cannot be read is a ValueError whose text goes behind the name of
the flag and what it was given.
"""

import re
from datetime import UTC, datetime, tzinfo

from tidemill.model.ts import LEAST_TSO, MAX_TS, Ts, compose, why_not_a_ts

MOST_TSO = Ts((1 << 63) - 1)  # what etcd, Spark and TiDB's own functions can hold
_LONGEST_TEXT = 64
_MOST_DIGITS = 30  # of a number that is worth being explained
_BACK = re.compile(r"-((?:\d{1,9}[dhms])+)", re.ASCII)
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS_A_SECOND = 1000


def ts_of(text: str, now_seconds: float, zone: tzinfo = UTC) -> Ts:
    """The ts of ``text``; ``zone`` is that of times which name none, and ``now_seconds`` what a clock says.

    Raises ValueError: what is wrong, and what to write.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        reason = why_not_a_ts(int(text))
        if reason is not None or int(text) > MOST_TSO:
            raise ValueError(f"is not a ts: {reason or 'it is too large'}.")
        return Ts(int(text))
    if text.lower() == "now":
        return compose(int(now_seconds * _MILLISECONDS_A_SECOND))
    if back := _BACK.fullmatch(text):
        seconds = sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)([dhms])", back[1]))
        milliseconds = int((now_seconds - seconds) * _MILLISECONDS_A_SECOND)
    else:
        milliseconds = _milliseconds_of(text, zone)
    ts = compose(milliseconds)
    if not LEAST_TSO <= ts <= min(MOST_TSO, MAX_TS):
        raise ValueError("is a time at which no cluster runs. Give one after 2001.")
    return ts


def is_now(text: str) -> bool:
    return text.strip().lower() == "now"


def shortened(text: str) -> str:
    """To be quoted in an error."""
    return text if len(text) <= _LONGEST_TEXT else text[:_MOST_DIGITS] + "…"


def _milliseconds_of(text: str, zone: tzinfo) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "is neither a time nor a ts. Write a time such as 2026-03-01T10:15:00Z, a ts such as 464613566054400000, "
            "now, or how long ago, such as -15m."
        ) from None
    since = (time if time.tzinfo is not None else time.replace(tzinfo=zone)) - _EPOCH
    return (since.days * _SECONDS["d"] + since.seconds) * _MILLISECONDS_A_SECOND + since.microseconds // 1000
