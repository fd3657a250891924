"""Ts: the cluster's timestamp, physical milliseconds shifted by 18 bits plus a counter."""

from datetime import UTC, datetime
from typing import NewType

Ts = NewType("Ts", int)

LOGICAL_BITS = 18
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
MAX_TS = Ts((1 << 64) - 1)
LEAST_TSO = Ts(1_000_000_000_000 << LOGICAL_BITS)  # of 2001; no cluster is older, and what lies below is no TSO
_UNIX_UNITS = (("seconds", 1), ("milliseconds", 1_000), ("microseconds", 1_000_000), ("nanoseconds", 1_000_000_000))
_PLAUSIBLE_SECONDS = (1_000_000_000, 4_000_000_000)  # 2001 to 2096


def compose(physical_ms: int, logical: int = 0) -> Ts:
    return Ts((physical_ms << LOGICAL_BITS) + logical)


def physical_ms(ts: int) -> int:
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    return ts & LOGICAL_MASK


def to_datetime(ts: int) -> datetime:
    return datetime.fromtimestamp(physical_ms(ts) / 1000, tz=UTC)


def show(ts: int) -> str:
    """For people: ``2026-03-01 10:15:00.123 UTC (ts 464613566054400000)``."""
    return f"{to_datetime(ts):%Y-%m-%d %H:%M:%S}.{physical_ms(ts) % 1000:03d} UTC (ts {ts})"


def why_not_a_ts(number: int) -> str | None:
    """What a number that is no TSO of any cluster seems to be instead, and what to write; None if it may be one."""
    least, most = _PLAUSIBLE_SECONDS
    for unit, per_second in _UNIX_UNITS:
        if least <= number / per_second < most:
            moment = datetime.fromtimestamp(number // per_second, tz=UTC)
            ts = compose(number * 1000 // per_second)
            return (
                f"it looks like {unit} since 1970. A ts is milliseconds since 1970 times 2^{LOGICAL_BITS}: write "
                f"{moment:%Y-%m-%dT%H:%M:%SZ}, or {ts}"
            )
    if LEAST_TSO <= number < MAX_TS:
        return None
    return (
        f"a ts is milliseconds since 1970 times 2^{LOGICAL_BITS}, so about 4.7e17 in 2026. Write a time such as "
        "2026-03-01T10:15:00Z, or a TSO such as 464613566054400000"
    )


def lag_seconds(ts: int, now_seconds: float) -> float:
    """How far ``ts`` lies behind the wall clock; never below zero."""
    return max(0.0, now_seconds - physical_ms(ts) / 1000)
