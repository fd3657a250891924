"""How fast a client sends: so many bytes a second, over all of its requests.

Each request books its bytes behind those that were booked before, and is sent when its turn comes. What was not used
in a quiet time is given back for a moment only, so no burst follows.
"""

from tidemill.clock import SYSTEM_CLOCK, Clock

_BURST_SECONDS = 0.1  # that may be sent at once after a quiet time


class Pace:
    """For one event loop."""

    def __init__(self, bytes_per_second: float, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._booked = clock.monotonic()  # up to when the line is taken

    async def wait(self, size: int) -> None:
        """Until ``size`` bytes may be sent."""
        seconds = self.book(size, self._clock.monotonic())
        if seconds > 0:
            await self._clock.sleep(seconds)

    def book(self, size: int, now: float) -> float:
        """In how many seconds they may be sent."""
        begins = max(self._booked, now - _BURST_SECONDS)
        self._booked = begins + size / self._rate
        return max(0.0, begins - now)
