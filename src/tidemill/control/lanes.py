"""Which tables of a processor need a lane of their own, and when they may join the others again. Pure.

Tables that move together wait for the slowest of their regions. One that stands still, or that has a long way to
catch up, would hold all others back; in a lane of its own it holds back itself alone.
"""

from collections.abc import Collection
from dataclasses import dataclass

from tidemill.model.ts import Ts, physical_ms

SLOW_MS = 10_000  # behind the quickest, from which on a reading is slow
PATIENCE_SECONDS = 60.0  # without getting anywhere: what leaves is read again, so a scan that takes a while may
CLOSE_MS = 3_000  # behind the others, up to which tables may join them


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read together, and so resolved together; by logical table ids. It is where it has been for so long."""

    resolved_ts: Ts
    tables: frozenset[int]
    unmoved_seconds: float = 0.0


def slow_tables(readings: Collection[Reading]) -> frozenset[int]:
    """Those that should leave: far behind the quickest, standing still, and few. Where most are behind, the upstream
    is, or we are."""
    if not readings:
        return frozenset()
    quickest_ms = max(physical_ms(reading.resolved_ts) for reading in readings)
    behind = [reading for reading in readings if quickest_ms - physical_ms(reading.resolved_ts) > SLOW_MS]
    slow = [reading for reading in behind if reading.unmoved_seconds >= PATIENCE_SECONDS]
    if 2 * len(slow) > len(readings):
        return frozenset()
    return frozenset(table for reading in slow for table in reading.tables)


def may_join(lane_ts: Ts, frontier_ts: Ts, others_ts: Ts) -> bool:
    """Whether a lane that is at ``lane_ts``, and resolved up to ``frontier_ts``, is close enough to the others."""
    return physical_ms(others_ts) - physical_ms(Ts(min(lane_ts, frontier_ts))) <= CLOSE_MS
