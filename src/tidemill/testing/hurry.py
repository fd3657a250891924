"""A clock on which no sleep takes time: for tests of what happens after the third or tenth pause."""

import asyncio

from tidemill.clock import SystemClock


class HurriedClock(SystemClock):
    """Runs ahead of the machine's clock by whatever was slept."""

    def __init__(self) -> None:
        self.slept_seconds: list[float] = []

    def now(self) -> float:
        return super().now() + sum(self.slept_seconds)

    def monotonic(self) -> float:
        return super().monotonic() + sum(self.slept_seconds)

    async def sleep(self, seconds: float) -> None:
        self.slept_seconds.append(seconds)
        await asyncio.sleep(0)
