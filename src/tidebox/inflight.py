"""Writes that were accepted and are not applied yet, and the greatest ts anybody has read at.

    command ──► latch its keys ──► decide ──► in flight (memory locks) ──► applied

A store that replicates needs time between accepting a write and applying it. In that time readers
must already see that something is coming, or one with a newer ts could read past a commit-ts that
is settled but not visible; and no resolved-ts may pass it. So a write in flight shows its locks
from memory. Ours applies at once unless told to delay, but the rule is the same.

Everything here is done under the cluster's mutex; only a delay lets go of it.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Self

from tidebox.mvcc import Lock
from tidemill.clock import Clock
from tidemill.model.ts import MAX_TS


class InFlight:
    """What is on its way. ``max_ts`` never falls: a commit-ts settled from now on lies above it."""

    def __init__(self, mutex: threading.RLock, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition(mutex)
        self._latched: set[bytes] = set()
        self._locks: dict[bytes, Lock] = {}
        self._raw: dict[bytes, int] = {}
        self._delay_seconds = 0.0
        self.max_ts = 0

    @property
    def delay_seconds(self) -> float:
        """From deciding to applying. A change counts for what is on its way already, too."""
        return self._delay_seconds

    @delay_seconds.setter
    def delay_seconds(self, seconds: float) -> None:
        with self._changed:
            self._delay_seconds = seconds
            self._changed.notify_all()

    def observe(self, ts: int) -> None:
        """Somebody reads at ``ts``, or was promised that nothing more commits at or below it.

        The greatest ts of all is a way to ask for the newest, and no time at which one could read again.
        """
        if ts != MAX_TS:
            self.max_ts = max(self.max_ts, ts)

    def lock(self, key: bytes) -> Lock | None:
        """The memory lock on a plain key."""
        return self._locks.get(key)

    def locks(self) -> Iterable[tuple[bytes, Lock]]:
        return self._locks.items()

    def raw_writes(self) -> Iterable[tuple[bytes, int]]:
        """Plain keys of raw writes on their way, and a ts below the one they are written at."""
        return self._raw.items()

    def latch(self, keys: Iterable[bytes]) -> "Latch":
        """Be the only command on these plain keys while inside; entering waits for others, without the mutex.

        What was checked before may be wrong after the wait: check inside.
        """
        return Latch(self, keys if isinstance(keys, Set) else set(keys))

    @property
    def latched(self) -> Set[bytes]:
        """Plain keys that commands are on."""
        return self._latched

    def is_latched(self, key: bytes) -> bool:
        """Whether a command is on the plain key."""
        return key in self._latched

    def wait_idle(self, start: bytes, end: bytes) -> None:
        """Until no command is on a plain key of ``[start, end)``; an empty ``end`` means no end."""
        while any(start <= key and (not end or key < end) for key in self._latched):
            self._changed.wait()

    def _take(self, keys: Set[bytes]) -> None:
        while not self._latched.isdisjoint(keys):
            self._changed.wait()
        self._latched |= keys

    def _give_back(self, keys: Set[bytes]) -> None:
        self._latched -= keys
        self._changed.notify_all()

    def _delay(
        self, locks: Mapping[bytes, Lock], raw: Mapping[bytes, int], recheck: Callable[[], object] | None
    ) -> None:
        if self.delay_seconds <= 0:
            return
        self._locks.update(locks)
        self._raw.update(raw)
        try:
            began = self._clock.monotonic()
            while (left := began + self.delay_seconds - self._clock.monotonic()) > 0:
                self._changed.wait(left)
            if recheck is not None:
                recheck()
        finally:
            for key in locks:
                self._locks.pop(key, None)
            for key in raw:
                self._raw.pop(key, None)


class Latch:
    """The right to write some keys, while inside."""

    def __init__(self, in_flight: InFlight, keys: Set[bytes]) -> None:
        self._in_flight = in_flight
        self._keys = keys

    def __enter__(self) -> Self:
        self._in_flight._take(self._keys)
        return self

    def __exit__(self, *failure: object) -> None:
        self._in_flight._give_back(self._keys)

    def delay(
        self,
        locks: Mapping[bytes, Lock] | None = None,
        raw: Mapping[bytes, int] | None = None,
        recheck: Callable[[], object] | None = None,
    ) -> None:
        """The write is decided: let the delay pass, if one is set, with its locks in view.

        ``recheck`` is called at the end and raises if the region has changed meanwhile: then nothing
        may be applied. Apply right after this, still under the mutex.
        """
        self._in_flight._delay(locks or {}, raw or {}, recheck)
