"""The initial copy of a changefeed of a cluster: its owner runs it on its own Spark, before anybody captures a change.

How far it is lies in the state, which each batch saves on the condition that this capture is the owner still. So
another owner continues where it was, and what this one still writes then is fenced, as every writer's is; where the
sink has no fence, it asks before each batch whether it is the owner still (``guarding``).
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from threading import Event
from zoneinfo import ZoneInfo

from tidemill.capture.batches import Totals, wait_out
from tidemill.capture.cluster.guarding import Check, guarded
from tidemill.capture.copying import InitialCopy
from tidemill.capture.downstream import Downstream
from tidemill.capture.engines import Engines
from tidemill.capture.metadata import ChangefeedState, Home
from tidemill.capture.opening import Opened, say_that_the_sink_is_away
from tidemill.flow.filter import ColumnSelector, TableFilter
from tidemill.flow.pipeline import Unit
from tidemill.private import make_private
from tidemill.sinks import Receipt
from tidemill.upstream.pd import PdClient


class FirstCopy:
    """Runs on the capture's loop; its batches beside it. ``run`` it once. Cancelled, it ends when its batch has."""

    def __init__(self, name: str, downstream: Downstream, engines: Engines, home: Home, check: Check) -> None:
        """``name``: of its writer, used once in the life of the changefeed. ``check``: whether this is the owner still,
        for sinks that have no fence."""
        self._name, self._downstream, self._engines, self._home = name, downstream, engines, home
        self._check = check
        self._is_over = Event()
        self._copy: InitialCopy | None = None

    @property
    def stage(self) -> str:
        """What is being done, for people."""
        return self._copy.stage if self._copy is not None else "preparing the initial copy"

    async def run(self, pd: PdClient, opened: Opened) -> ChangefeedState:
        """The state of the changefeed once all is copied."""
        downstream, folder = self._downstream, self._home.path
        make_private(folder)
        zone = ZoneInfo(downstream.zone)
        open_writer = guarded(partial(opened.sink_options.open_writer, zone=zone), downstream.traits, self._check)
        writer = await asyncio.to_thread(open_writer, self._name)
        self._copy = copy = InitialCopy(
            pd, opened.source, opened.feed.store, TableFilter(downstream.config), opened.sink, writer,
            downstream.traits, ColumnSelector(downstream.config), opened.state, self._home, downstream.zone, Totals(),
        )  # fmt: skip
        try:
            await copy.plan()
            await wait_out(partial(asyncio.to_thread, copy.prepare), say_that_the_sink_is_away)
            await self._ended(asyncio.to_thread(self._engines.start, self._is_over.is_set))
            await self._ended(asyncio.to_thread(self._take_all, copy))
            return copy.state
        finally:
            await asyncio.to_thread(self._close, copy)

    def _take_all(self, copy: InitialCopy) -> None:
        while not self._is_over.is_set() and copy.step(self._batch):
            pass

    def _batch(self, units: list[Unit]) -> list[Receipt]:
        engine = self._engines.of_copy()
        return engine.run(self._downstream.pipeline, units, "initial copy", self._is_over.is_set)

    async def _ended(self, call: Coroutine[object, object, None]) -> None:
        """Of what looks at ``_is_over``: also when this is cancelled, since others close what it makes or uses."""
        work = asyncio.ensure_future(call)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._is_over.set()
            await asyncio.gather(work, return_exceptions=True)
            raise

    def _close(self, copy: InitialCopy) -> None:
        try:
            copy.close()
        finally:
            self._engines.close()


def name_of_copy(revision: int, epoch: int) -> str:
    """Of the writer, for each term and each run of a changefeed."""
    return f"copy-{revision}-{epoch}/0"
