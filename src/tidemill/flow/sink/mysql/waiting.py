"""Waiting between tries, in threads: the one place where the MySQL sink's driver side stands still."""

import random
import threading
from collections.abc import Iterator

from tidemill.clock import SYSTEM_CLOCK

_NEVER = threading.Event()


def pause(seconds: float) -> None:
    _NEVER.wait(seconds)


def tries(patience_seconds: float, first_seconds: float = 0.05, longest_seconds: float = 2.0) -> Iterator[bool]:
    """Yields for each try whether it is the last, and stands still in between, longer each time."""
    deadline, wait_seconds = SYSTEM_CLOCK.monotonic() + patience_seconds, first_seconds
    while True:
        is_last = SYSTEM_CLOCK.monotonic() >= deadline
        yield is_last
        if is_last:
            return
        pause(random.uniform(wait_seconds / 2, wait_seconds))
        wait_seconds = min(wait_seconds * 2, longest_seconds)
