"""Ts: the cluster's timestamp, physical milliseconds shifted by 18 bits plus a counter."""

from datetime import UTC, datetime
from typing import NewType

Ts = NewType("Ts", int)

LOGICAL_BITS = 18
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
MAX_TS = Ts((1 << 64) - 1)


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


def lag_seconds(ts: int, now_seconds: float) -> float:
    """How far ``ts`` lies behind the wall clock; never below zero."""
    return max(0.0, now_seconds - physical_ms(ts) / 1000)
