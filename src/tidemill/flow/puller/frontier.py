"""How far a span is resolved, when each of its regions resolves on its own.

    puller ── (region range, resolved_ts) ──► Frontier ── resolved_ts ──► sorter

The sorter may release a change only once every key of the span is past it, so the frontier is a
minimum. Regions split and merge while we watch, so progress is kept per key range and never per
region id.

A span may have a hundred thousand regions, each of which reports every second. A report about a
range that is known as such costs a dictionary look-up. The minimum is kept in a heap that holds
each range once, with a ts that it has reached; when such an old ts comes to the top it is put
right, so a report costs at most one turn of the heap.
"""

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush, heapreplace

from tidemill.model.span import Span
from tidemill.model.ts import Ts


class _Range:
    """Keys ``[start, end)`` that have reached ``resolved_ts``. ``end`` is empty once it is gone."""

    __slots__ = ("end", "number", "resolved_ts", "start")

    def __init__(self, number: int, start: bytes, end: bytes, resolved_ts: Ts) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.resolved_ts = resolved_ts


class Frontier:
    """The lowest resolved-ts over ``span``. It never moves backwards."""

    def __init__(self, span: Span, start_ts: Ts) -> None:
        whole = _Range(0, span.start, span.end, start_ts)
        self._span = span
        self._starts = [span.start]  # of the ranges that tile the span, in order
        self._ranges = {span.start: whole}
        self._next_number = 1  # of ranges; among equal ts it settles the heap's order without a comparison of ours
        self._heap = [(start_ts, 0, whole)]  # every range once, with a ts it has reached
        self.turns = 0  # of the heap: what all reports together have cost

    def __len__(self) -> int:
        """The number of ranges that are told apart."""
        return len(self._starts)

    @property
    def span(self) -> Span:
        return self._span

    @property
    def resolved_ts(self) -> Ts:
        return self._slowest().resolved_ts

    @property
    def slowest(self) -> Span:
        """A range that holds the frontier where it is."""
        found = self._slowest()
        return Span(found.start, found.end)

    def advance(self, part: Span, resolved_ts: Ts) -> None:
        """Note that ``part`` will see no more commits at or below ``resolved_ts``.

        Where a key was promised more before, that promise has been acted upon and stands. Keys
        outside the span are nothing to us.
        """
        known = self._ranges.get(part.start)
        if known is not None and known.end == part.end:
            if resolved_ts > known.resolved_ts:
                known.resolved_ts = resolved_ts
            return
        inside = part.intersect(self._span)
        if inside is not None:
            self._advance_across(inside, resolved_ts)

    def lowest(self, part: Span) -> Ts:
        """The lowest resolved-ts of any key of ``part``, which must touch the span."""
        first = max(bisect_right(self._starts, part.start) - 1, 0)
        last = bisect_left(self._starts, part.end)
        return min(self._ranges[start].resolved_ts for start in self._starts[first:last])

    def behind(self, ts: int) -> list[tuple[Span, Ts]]:
        """The ranges that have not reached ``ts``, in key order, and what they have reached. Looks at all of them."""
        ranges = (self._ranges[start] for start in self._starts)
        return [(Span(r.start, r.end), r.resolved_ts) for r in ranges if r.resolved_ts < ts]

    def _slowest(self) -> _Range:
        while True:
            ts, number, found = self._heap[0]
            if not found.end:
                heappop(self._heap)
            elif ts == found.resolved_ts:
                return found
            else:
                heapreplace(self._heap, (found.resolved_ts, number, found))
            self.turns += 1

    def _advance_across(self, part: Span, resolved_ts: Ts) -> None:
        self._cut(part.start)
        self._cut(part.end)
        first, last = bisect_left(self._starts, part.start), bisect_left(self._starts, part.end)
        ranges = [self._ranges[start] for start in self._starts[first:last]]
        if len(ranges) > 1 and all(r.resolved_ts <= resolved_ts for r in ranges):
            # One region now answers for what several did: they are one range from here on.
            for gone in ranges[1:]:
                del self._ranges[gone.start]
                gone.end = b""
            del self._starts[first + 1 : last]
            ranges[0].end = part.end
            self._sweep()
            ranges = ranges[:1]
        for r in ranges:
            r.resolved_ts = max(r.resolved_ts, resolved_ts)

    def _cut(self, key: bytes) -> None:
        """Make ``key`` a boundary between ranges."""
        if key in self._ranges or not self._span.start < key < self._span.end:
            return
        left = self._ranges[self._starts[bisect_right(self._starts, key) - 1]]
        right = _Range(self._next_number, key, left.end, left.resolved_ts)
        self._next_number += 1
        left.end = key
        insort(self._starts, key)
        self._ranges[key] = right
        heappush(self._heap, (right.resolved_ts, right.number, right))

    def _sweep(self) -> None:
        """Ranges that are gone stay in the heap until they surface; do not let them become most of it."""
        if len(self._heap) > 2 * len(self._starts) + 16:
            self._heap = [(r.resolved_ts, r.number, r) for r in self._ranges.values()]
            heapify(self._heap)
