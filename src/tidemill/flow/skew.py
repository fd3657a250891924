"""Hot tables: where most of a batch is one table, several tasks share it by ranges of its keys.

    units ──► how many shares each ──► bounds, from keys picked in its segments ──► units of a range each

All changes of a row have one key, so they stay in one share, in order. Each share reads the same slices and keeps its
range before anything is decoded: reading is the small part of the work. Ranges rather than a hash of the key, since
a range of a large transaction, and of what is sorted by key at all, is one piece; bounds come from the batch itself, so
rows that are inserted at the end of a table are spread as well as any.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidemill.flow.pipeline import Unit
from tidemill.flow.sorter import KeyRange, pick_keys
from tidemill.model.table import TableInfo

LEAST_BYTES = 4 << 20  # a smaller unit is written before another task has begun
_MARGIN = 1.5  # times its part of the batch, before a unit counts as hot
_PICKED_KEYS = 256


def share_skewed(
    units: Sequence[Unit], tasks: int, may_share: Callable[[TableInfo], bool], least_bytes: int = LEAST_BYTES
) -> list[Unit]:
    """The same work for ``tasks`` tasks, hot tables shared where they may be. The same units give the same shares."""
    found: list[Unit] = []
    for unit, count in zip(units, shares([unit.weight for unit in units], tasks, least_bytes), strict=True):
        is_shared = count > 1 and unit.slices is not None and unit.decoder.may_share(may_share)
        found += _shared(unit, count) if is_shared else [unit]
    return found


def shares(weights: Sequence[int], tasks: int, least_bytes: int = LEAST_BYTES) -> list[int]:
    """Into how many shares each unit is cut, so that tasks come out about equal."""
    part = sum(weights) / tasks
    return [round(w / part) if w >= least_bytes and w > _MARGIN * part else 1 for w in weights]


def _shared(unit: Unit, count: int) -> list[Unit]:
    slices = unit.slices
    assert slices is not None
    keys = pick_keys(slices, _PICKED_KEYS)
    # Distinct, for a row that changes all the time may be most of the batch; it has one range to itself then.
    bounds = sorted({keys[len(keys) * i // count] for i in range(1, count)} - {keys[0]})
    ranges = [KeyRange(low, high) for low, high in zip((b"", *bounds), (*bounds, None), strict=True)]
    return [
        replace(unit, slices=replace(slices, keys=each), target=unit.target.share(number), shares=len(ranges))
        for number, each in enumerate(ranges)
    ]
