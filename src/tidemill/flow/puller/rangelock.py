"""Who follows which keys of a span: at most one registration per key.

    puller ── region found ──► RangeLock ── granted · stale · wait ──► puller

PD, our cache and the stores learn of splits and merges at different times, so two pictures of the
regions may overlap for a while. The epoch's version decides: a picture that is older than one in
use is dropped; one that is newer waits until the old registrations have got their error, which is
on its way. How far a range has come is the ``Frontier``'s to know; here is only who holds it.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from tidemill.errors import InvariantError
from tidemill.model.span import Span


@dataclass(frozen=True, slots=True)
class Granted:
    """The range is ours; nobody else follows any of its keys."""


@dataclass(frozen=True, slots=True)
class Stale:
    """As new or newer a picture holds part of the range. ``rest`` is not held: look it up again."""

    rest: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Older pictures hold part of the range. Try again when one of them has let go."""


Verdict = Granted | Stale | Wait


@dataclass(frozen=True, slots=True)
class _Held:
    span: Span
    region_id: int
    version: int


class RangeLock:
    """Over one subscribed span. Holds no clock and does not wait: it answers."""

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._held: dict[bytes, _Held] = {}
        self._by_region: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._held)

    def lock(self, part: Span, region_id: int, version: int) -> Verdict:
        """Ask for ``part`` of a region, as a picture of that version shows it."""
        overlapping = self._overlapping(part)
        others = [self._held[start] for start in overlapping]
        elsewhere = self._by_region.get(region_id)
        if elsewhere is not None and elsewhere not in overlapping:
            others.append(self._held[elsewhere])
        if not others:
            insort(self._starts, part.start)
            self._held[part.start] = _Held(part, region_id, version)
            self._by_region[region_id] = part.start
            return Granted()
        if any(other.version >= version for other in others):
            return Stale(tuple(part.minus(other.span for other in others)))
        return Wait()

    def unlock(self, part: Span, region_id: int) -> None:
        """Give back exactly what was granted."""
        held = self._held.get(part.start)
        if held is None or held.span != part or held.region_id != region_id:
            raise InvariantError(f"region {region_id} gives back {part}, which it does not hold")
        del self._held[part.start]
        del self._by_region[region_id]
        del self._starts[bisect_left(self._starts, part.start)]

    def held(self, key: bytes) -> Span | None:
        """What is held around a key."""
        index = bisect_right(self._starts, key) - 1
        span = self._held[self._starts[index]].span if index >= 0 else None
        return span if span is not None and key in span else None

    def uncovered(self, part: Span) -> list[Span]:
        """What of ``part`` nobody holds, in key order."""
        return list(part.minus(self._held[start].span for start in self._overlapping(part)))

    def _overlapping(self, part: Span) -> list[bytes]:
        first = max(bisect_right(self._starts, part.start) - 1, 0)
        last = bisect_left(self._starts, part.end)
        return [start for start in self._starts[first:last] if self._held[start].span.overlaps(part)]
