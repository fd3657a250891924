"""How long to leave a range alone after a loss.

A range that is lost again and again waits 50 ms, then twice as long each time, up to 2 s, each
pause cut at random to between half and whole, so that ten thousand regions of a lost store do not
come back in one moment. A region that gets through its incremental scan clears its range's record.
"""

from random import Random
from typing import Final

from tidemill.model.span import Span
from tidemill.retry import Policy

_RETRY: Final = Policy(0.05, 2.0)
REMEMBERED_SECONDS = 300.0
_FEW = 1024  # records that are not worth looking through for old ones


class Backoff:
    """The record of one subscription's losses. Holds no clock: the caller says what time it is."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sweep_at = _FEW
        self._losses: dict[bytes, tuple[int, float]] = {}  # by the range's start: how often, and when last

    def next_seconds(self, part: Span, now: float) -> float:
        """Note a loss of ``part``; how long to wait."""
        count, last = self._losses.get(part.start, (0, now))
        if now - last > REMEMBERED_SECONDS:
            count = 0
        if len(self._losses) >= self._sweep_at:
            self._losses = {start: x for start, x in self._losses.items() if now - x[1] <= REMEMBERED_SECONDS}
            self._sweep_at = max(_FEW, 2 * len(self._losses))
        self._losses[part.start] = (count + 1, now)
        return _RETRY.pause_seconds(count + 1, self._random)

    def clear(self, part: Span) -> None:
        self._losses.pop(part.start, None)


def joined(parts: list[Span]) -> list[Span]:
    """The same keys in as few spans as possible, in key order."""
    whole: list[Span] = []
    for part in sorted(parts):
        if whole and part.start <= whole[-1].end:
            whole[-1] = Span(whole[-1].start, max(whole[-1].end, part.end))
        else:
            whole.append(part)
    return whole
