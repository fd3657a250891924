"""How many rows and bytes lie up to a ts, from the samples of the segments alone.

Between two samples rows are taken to be spread evenly over time, so a batch is cut about where it
should be, whatever the number of segments, and no file is read.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.flow.sorter.order import Stamps
from tidemill.flow.sorter.segment import Segment

_Amounts = npt.NDArray[np.float64]


class Estimate:
    """The rows and bytes of some segments over time. Made once per set of segments."""

    def __init__(self, segments: Sequence[Segment], only: Collection[int] = (), without: Collection[int] = ()) -> None:
        """Of ``only`` these spans, or of all ``without`` these."""
        no_ts, none = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.float64)
        chosen = [_samples(segment, only, without) for segment in segments]
        self._first: Stamps = np.concatenate([no_ts, *(s.ts[c] for s, c in zip(segments, chosen, strict=True))])
        self._last: Stamps = np.concatenate(
            [no_ts, *(s.sample_last_ts[c] for s, c in zip(segments, chosen, strict=True))]
        )
        self._rows: _Amounts = np.concatenate(
            [none, *(np.diff(s.row)[c] for s, c in zip(segments, chosen, strict=True))]
        )
        self._bytes: _Amounts = np.concatenate(
            [none, *(np.diff(s.sample_bytes)[c] for s, c in zip(segments, chosen, strict=True))]
        )

    def largest_to(self, from_ts: int, bound_ts: int, max_rows: int, max_bytes: int) -> int:
        """The largest ts ≤ ``bound_ts`` such that about no more than allowed lies above ``from_ts`` up to it."""
        inside = (self._last > np.uint64(from_ts)) & (self._first <= np.uint64(bound_ts))
        first, last = self._first[inside], self._last[inside]
        amounts = np.stack((self._rows[inside], self._bytes[inside]))
        allowed = amounts @ _share(first, last, from_ts) + (max_rows + 0.5, max_bytes + 0.5)  # sums are rounded

        def fits(ts: int) -> bool:
            return bool((amounts @ _share(first, last, ts) <= allowed).all())

        low, high = from_ts, bound_ts  # low fits
        if fits(high):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def _samples(segment: Segment, only: Collection[int], without: Collection[int]) -> npt.NDArray[np.bool_] | slice:
    """Which samples of a segment belong to the spans that are asked for."""
    if not (only or without):
        return slice(None)
    is_chosen = np.isin(segment.span_ids, list(only)) if only else ~np.isin(segment.span_ids, list(without))
    return np.repeat(is_chosen, np.diff(segment.section_sample))


def _share(first: Stamps, last: Stamps, ts: int) -> _Amounts:
    """Which share of each sample's rows lies at or below ``ts``."""
    passed = np.maximum(np.uint64(ts), first) - first
    return np.where(last <= np.uint64(ts), 1.0, passed / np.maximum(last - first, np.uint64(1)))
