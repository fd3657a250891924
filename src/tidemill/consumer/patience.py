"""Kafka is asked again and again, as long as no broker answers and nobody wants us to stop."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import StoppedError, UpstreamUnavailableError
from tidemill.log import get_logger
from tidemill.retry import Policy

log = get_logger("consumer")

_RETRY = Policy(1.0, 10.0)
_LOOK_SECONDS = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """``say`` is told once a call why it waits."""

    say: Callable[[str], None]
    should_stop: Callable[[], bool]

    def __call__(self, ask: Callable[[], T]) -> T:
        """Raises StoppedError where it is to stop, and what does not pass by waiting."""
        tries = 0
        while True:
            try:
                return ask()
            except UpstreamUnavailableError as error:
                if not tries:
                    self.say(f"waiting for Kafka: {error}")
                log.warning("waiting for Kafka", reason=str(error), tries=tries)
            tries += 1
            until = SYSTEM_CLOCK.monotonic() + _RETRY.pause_seconds(tries)
            while SYSTEM_CLOCK.monotonic() < until:
                if self.should_stop():
                    raise StoppedError("stopped while no broker answered.")
                threading.Event().wait(_LOOK_SECONDS)
