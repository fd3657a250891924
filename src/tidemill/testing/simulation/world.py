"""Time, chance and processes: one seed decides them all, so every run of a seed is the same.

A process is what can crash, or be stopped and continued. What it does is written as generators: ``yield`` a number of
milliseconds to let that time pass, or a condition to wait until it holds.
"""

import heapq
from collections.abc import Callable, Generator
from itertools import count
from random import Random

from tidemill.model.ts import Ts

Wait = int | Callable[[], bool]
Work = Generator[Wait, None, None]

_POLL_MS = 15
_TS_PER_MS = 1_000


class Violation(AssertionError):
    """What must never happen has happened."""


class Process:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.is_paused = False
        self.held: list[Callable[[], None]] = []  # what has to wait until it is continued


class World:
    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.chance = Random(seed)
        self.now_ms = 0
        self.steps = 0
        self.trace: list[str] | None = [] if keeps_trace else None
        self._events: list[tuple[int, int, Callable[[], None], Process | None]] = []
        self._numbers = count()
        self._last_ts = 0

    def ts(self) -> Ts:
        """The next ts of the upstream's oracle."""
        self._last_ts = max(self._last_ts + 1, self.now_ms * _TS_PER_MS)
        return Ts(self._last_ts)

    @property
    def past_ts(self) -> Ts:
        """Nothing will have this ts or one below."""
        return Ts(max(self._last_ts, self.now_ms * _TS_PER_MS - 1))

    def note(self, what: str, *args: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_ms / 1000:8.3f} s  {what.format(*args)}")

    def after(self, ms: int, do: Callable[[], None], process: Process | None = None) -> None:
        heapq.heappush(self._events, (self.now_ms + ms, next(self._numbers), do, process))

    def spawn(self, work: Work, process: Process | None = None, ms: int = 0) -> None:
        self.after(ms, lambda: self._advance(work, process), process)

    def _advance(self, work: Work, process: Process | None) -> None:
        wait = next(work, None)
        if wait is None:
            return
        if isinstance(wait, int):
            self.after(wait, lambda: self._advance(work, process), process)
        else:
            self._await(wait, work, process)

    def _await(self, condition: Callable[[], bool], work: Work, process: Process | None) -> None:
        if condition():
            self._advance(work, process)
        else:
            self.after(_POLL_MS, lambda: self._await(condition, work, process), process)

    def step(self) -> bool:
        """The next event; False where there is none."""
        if not self._events:
            return False
        self.now_ms, _, do, process = heapq.heappop(self._events)
        self.steps += 1
        if process is None or (process.is_up and not process.is_paused):
            do()
        elif process.is_up:
            process.held.append(do)
        return True

    def pause(self, process: Process) -> None:
        process.is_paused = True

    def resume(self, process: Process) -> None:
        """What it has missed happens now, in its order."""
        process.is_paused = False
        held, process.held = process.held, []
        for do in held:
            if process.is_up:
                do()
