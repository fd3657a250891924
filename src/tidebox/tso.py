"""Timestamps of the embedded PD: strictly increasing over all callers and restarts.

The clock is the machine's, or the history's while one is replayed. Then no timestamp may pass
the next commit of the history, and a caller who finds no room below it waits until that commit
is applied. A history from the future sets the clock ahead for good: standing still until the
machine has caught up would let no resolved-ts move.
"""

import threading
from typing import Protocol

from tidebox.engine import Engine, Family
from tidemill.clock import Clock
from tidemill.errors import UpstreamUnavailableError, UsageError
from tidemill.model.ts import LOGICAL_BITS, Ts

_KEY = b"tso"
_PER_MILLISECOND = 1 << LOGICAL_BITS
_WINDOW = 500 << LOGICAL_BITS  # how far ahead the persisted bound is set
_REPLAY_WINDOW = 20 << LOGICAL_BITS
_WAIT_SECONDS = 0.2
_CATCH_UP_MS = 1000  # the machine's clock is waited for if it is less behind


class HistoryClock(Protocol):
    """Where a replay stands. Both are asked under the TSO's lock and must not block."""

    def now_ms(self) -> int: ...

    @property
    def limit(self) -> int:
        """The commit-ts that is applied next; nothing at or above it may be given out."""
        ...


class Tso:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._changed = threading.Condition()
        self._history: HistoryClock | None = None
        self._closed = False
        stored = engine.get(Family.META, _KEY)
        # All up to the bound may have been given out before a crash.
        self._bound = self._last = int.from_bytes(stored, "big") if stored else 0
        self._ahead_ms = 0
        self._set_ahead()

    @property
    def last(self) -> Ts:
        """The greatest given out or passed so far."""
        return Ts(self._last)

    def next(self, count: int = 1) -> Ts:
        """Give out ``count`` timestamps with one physical part; return the greatest of them."""
        if not 0 < count <= _PER_MILLISECOND:
            raise UsageError(f"cannot give out {count} timestamps at once: ask for 1 to {_PER_MILLISECOND}")
        with self._changed:
            while True:
                if self._closed:
                    raise UpstreamUnavailableError("the upstream is stopping and gives out no more timestamps")
                first = self._room_for(count)
                if first is not None:
                    return self._move_to(first + count - 1)
                self._changed.wait(_WAIT_SECONDS)

    def advance(self) -> Ts:
        """Move on to what the clock says and return it: all given out later is above it. Never waits."""
        with self._changed:
            now = self._now_ms() << LOGICAL_BITS
            if self._history is not None:
                now = min(now, self._history.limit - 1)
            return self._move_to(max(self._last, now))

    def pass_by(self, ts: int) -> None:
        """Everything given out from now on is above ``ts``."""
        with self._changed:
            # No reserve above it: what lies there may belong to a history that is replayed next.
            self._move_to(max(self._last, ts), reserve=0)
            self._set_ahead()
            self._changed.notify_all()

    def follow(self, history: HistoryClock | None) -> None:
        """Take the time from a history, or with None from the machine again."""
        with self._changed:
            self._history = history
            self._set_ahead()
            self._changed.notify_all()

    def close(self) -> None:
        """Give out no more; on the next start none of the reserve is lost."""
        with self._changed:
            self._closed = True
            self._bound = self._last
            self._engine.put(Family.META, _KEY, self._bound.to_bytes(8, "big"))
            self._changed.notify_all()

    def _now_ms(self) -> int:
        return self._history.now_ms() if self._history is not None else int(self._clock.now() * 1000) + self._ahead_ms

    def _set_ahead(self) -> None:
        lead_ms = (self._last >> LOGICAL_BITS) - int(self._clock.now() * 1000)
        if lead_ms > self._ahead_ms + _CATCH_UP_MS:
            self._ahead_ms = lead_ms

    def _room_for(self, count: int) -> int | None:
        starts = [max(self._last + 1, self._now_ms() << LOGICAL_BITS)]
        if self._history is not None:
            starts.append(self._last + 1)  # the clock may already stand at the next commit
        for first in starts:
            if (first + count - 1) >> LOGICAL_BITS != first >> LOGICAL_BITS:
                first = ((first >> LOGICAL_BITS) + 1) << LOGICAL_BITS
            if self._history is None or first + count - 1 < self._history.limit:
                return first
        return None

    def _move_to(self, ts: int, reserve: int = _WINDOW) -> Ts:
        if ts > self._bound:
            self._bound = ts + reserve
            if self._history is not None:
                self._bound = max(ts, min(ts + _REPLAY_WINDOW, self._history.limit - 1))
            self._engine.put(Family.META, _KEY, self._bound.to_bytes(8, "big"))
        self._last = ts
        return Ts(ts)
