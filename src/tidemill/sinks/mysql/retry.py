"""Waiting between tries, in threads: the one place where the MySQL sink's driver side stands still."""

import threading
from collections.abc import Callable, Iterator
from itertools import count

from tidemill.clock import SYSTEM_CLOCK
from tidemill.retry import Policy


class Patience:
    """How long a failure that may pass is borne. ``end`` it from any thread, and whoever waits has its last try."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._is_ended = threading.Event()

    def end(self) -> None:
        self._is_ended.set()

    @property
    def is_ended(self) -> bool:
        return self._is_ended.is_set()

    def until(self, is_over: Callable[[], bool], every_seconds: float) -> bool:
        """Ask again and again, however long it takes; False if it was ended before."""
        while not is_over():
            if self._is_ended.wait(every_seconds):
                return False
        return True

    def tries(self, first_seconds: float = 0.05, longest_seconds: float = 2.0) -> Iterator[bool]:
        """Yields for each try whether it is the last, and stands still in between, longer each time."""
        policy, began = Policy(first_seconds, longest_seconds, deadline_seconds=self.seconds), SYSTEM_CLOCK.monotonic()
        for failures in count():
            is_last = self._is_ended.is_set() or policy.gives_up(failures, SYSTEM_CLOCK.monotonic() - began)
            yield is_last
            if is_last:
                return
            self._is_ended.wait(policy.pause_seconds(failures + 1))
