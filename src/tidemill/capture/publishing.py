"""Telling the readers of a sink how far it is: beside everything else, and only of what is saved."""

import asyncio
from collections.abc import Callable

from tidemill.capture.beside import Beside
from tidemill.capture.metadata import StateWriter
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.model.ts import Ts
from tidemill.sinks import OwnerSink


class Publishing:
    """Runs on the owner's loop."""

    def __init__(
        self,
        sink: OwnerSink,
        states: StateWriter,
        beside: Beside,
        taking: asyncio.Lock,
        may_publish: Callable[[], bool],
        interval_seconds: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``taking`` is held from what the sink takes until the state tells of it: a sink publishes all it took.
        ``interval_seconds`` is the least time from one to the next."""
        self._interval_seconds, self._clock = interval_seconds, clock
        self._next_at = clock.monotonic()
        self._sink, self._states, self._beside = sink, states, beside
        self._taking, self._may_publish = taking, may_publish
        self.is_under_way = False
        self.told_ts = Ts(0)  # the last checkpoint that readers were told of, in this run

    def begin(self) -> None:
        """Unless it is under way, or is not to be."""
        if self._may_publish() and not self.is_under_way:
            self.is_under_way = True
            self._beside.begin(self._publish, self._end)

    def _end(self) -> None:
        self.is_under_way = False

    async def _publish(self) -> None:
        """Tell readers of the checkpoint that was saved last; of those in between nobody needs to hear."""
        told = None
        while told != self._states.checkpoint_ts and self._may_publish():
            if (early := self._next_at - self._clock.monotonic()) > 0:
                await self._clock.sleep(early)
                continue  # by then it may be further, or not allowed
            async with self._taking:
                if self._may_publish():
                    told = self._states.checkpoint_ts
                    await self._beside.in_sink(self._sink.publish, told)
                    self.told_ts = told
                    self._next_at = self._clock.monotonic() + self._interval_seconds
