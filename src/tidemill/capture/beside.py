"""What an owner does in the sink while all else goes on: one call at a time, and again while the sink is away."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from tidemill.capture.batches import wait_out
from tidemill.capture.trouble import SinkTrouble
from tidemill.clock import Clock
from tidemill.sinks import OwnerSink

T = TypeVar("T")
P = ParamSpec("P")
Work = Callable[[], Coroutine[object, object, None]]


class Beside:
    """Runs on the owner's loop. ``failure``: what has ended a piece of work, and is not to be waited out."""

    def __init__(self, sink: OwnerSink, clock: Clock, on_failure: Callable[[], None]) -> None:
        self._sink, self._clock, self._on_failure = sink, clock, on_failure
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sink")
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False
        self.failure: Exception | None = None
        self.away = SinkTrouble("owner", clock)

    @property
    def trouble(self) -> str | None:
        """Why the sink is waited for; None: it is there."""
        return self.away.reason

    async def in_sink(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call that may take its time, in the sink's thread."""
        work = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def begin(self, work: Work, on_end: Callable[[], None] | None = None) -> None:
        """What nobody waits for: its failure is kept for whoever looks after the changefeed. ``on_end``: once it is
        over, after all that was tried again."""
        task = asyncio.create_task(self._kept(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if on_end is not None:
            task.add_done_callback(lambda _: on_end())

    async def interrupt(self) -> None:
        """End what the sink is at, be it a DDL. It is of no further use."""
        await asyncio.to_thread(self._sink.close)

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await self.interrupt()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def _kept(self, work: Work) -> None:
        try:
            await wait_out(work, self.away.note, lambda: self.is_closing, self._clock)
            self.away.clear()
        except Exception as error:
            self.failure = self.failure or error
            self._on_failure()
