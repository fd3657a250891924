"""How much a batch takes: as much as the sink makes durable in a few seconds. Pure: a batch's figures in, limits out.

A quick sink gets batches as big as memory allows, since each costs Spark a fixed time. A slow one gets smaller ones, so
that the checkpoint moves every few seconds, the disk is given back, and a batch that is lost costs little.

Limits begin at the most, also after a restart: what was under way then comes again in one batch, or nearly so. No
sink depends on that: each leaves out, replaces or removes what a batch of any other length has left.
"""

from dataclasses import dataclass

_GROWTH = 2.0  # at most, from one batch to the next
_SHRINKAGE = 0.25  # one batch that hung says little of those to come


@dataclass(frozen=True, slots=True)
class Amount:
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which a batch is kept, and how long it should take at most."""

    least: Amount = Amount(10_000, 4 << 20)
    most: Amount = Amount(400_000, 256 << 20)
    goal_seconds: float = 5.0


def next_limit(bounds: Bounds, limit: Amount, taken: Amount, seconds: float) -> Amount:
    """What the next batch may take, where one that was allowed ``limit`` took ``taken`` and so many seconds.

    A batch that was far from its limit says nothing about bigger ones. One transaction may exceed any limit.
    """
    goal = bounds.goal_seconds
    if seconds > goal:
        factor = max(_SHRINKAGE, goal / seconds)
        limit = Amount(
            min(limit.rows, max(int(taken.rows * factor), int(limit.rows * _SHRINKAGE))),
            min(limit.bytes, max(int(taken.bytes * factor), int(limit.bytes * _SHRINKAGE))),
        )
    elif seconds * _GROWTH < goal and (2 * taken.rows >= limit.rows or 2 * taken.bytes >= limit.bytes):
        limit = Amount(int(limit.rows * _GROWTH), int(limit.bytes * _GROWTH))
    return Amount(
        _between(bounds.least.rows, limit.rows, bounds.most.rows),
        _between(bounds.least.bytes, limit.bytes, bounds.most.bytes),
    )


def _between(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))
