"""Waiting between tries, in threads: the one place where the MySQL sink's driver side stands still."""

import random
import threading
from collections.abc import Iterator

from tidemill.clock import SYSTEM_CLOCK


class Patience:
    """How long a failure that may pass is borne. ``end`` it from any thread, and whoever waits has its last try."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._is_ended = threading.Event()

    def end(self) -> None:
        self._is_ended.set()

    def pause(self, seconds: float) -> None:
        self._is_ended.wait(seconds)

    def tries(self, first_seconds: float = 0.05, longest_seconds: float = 2.0) -> Iterator[bool]:
        """Yields for each try whether it is the last, and stands still in between, longer each time."""
        deadline, wait_seconds = SYSTEM_CLOCK.monotonic() + self.seconds, first_seconds
        while True:
            is_last = self._is_ended.is_set() or SYSTEM_CLOCK.monotonic() >= deadline
            yield is_last
            if is_last:
                return
            self.pause(random.uniform(wait_seconds / 2, wait_seconds))
            wait_seconds = min(wait_seconds * 2, longest_seconds)
