"""When what failed is tried again, and when it is given up: numbers in, decision out.

A policy is data. Who retries says how often it has failed and for how long, and waits in its own way: on a clock, or
until it is told to stop. What is worth another try is said by the errors themselves (``errors.py``).
"""

import random
from dataclasses import dataclass
from math import inf
from typing import Protocol

_MOST_DOUBLINGS = 30  # of any pause: the longest is reached long before


class Chance(Protocol):
    """``random``, or a ``Random`` of one's own."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """Pauses double from the first up to the longest. Each is cut at random by up to the ``jitter`` part of it, so that
    thousands that failed together do not come back in one moment."""

    first_pause_seconds: float
    longest_pause_seconds: float
    jitter: float = 0.5
    deadline_seconds: float = inf
    most_failures: float = inf  # in a row

    def pause_seconds(self, failures: int, chance: Chance = random) -> float:
        """Before the next try, after so many failures in a row (one or more)."""
        doubled = self.first_pause_seconds * float(1 << min(failures - 1, _MOST_DOUBLINGS))
        whole = min(doubled, self.longest_pause_seconds)
        return whole * chance.uniform(1.0 - self.jitter, 1.0) if self.jitter else whole

    def gives_up(self, failures: int, elapsed_seconds: float = 0.0) -> bool:
        """Whether there is no next try, after so many failures in a row and so long since the first try."""
        return failures > self.most_failures or elapsed_seconds >= self.deadline_seconds
