"""Builds a changefeed from its parts and runs it in the foreground: its owner and one processor that has all tables.

caller         what the user sees; any thread, but one at a time
loop thread    PD, schema feed, owner, processor (asyncio)
Spark          JVM, Python workers: the pipeline
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from tidemill.capture.batches import Totals, wait_out
from tidemill.capture.copying import InitialCopy
from tidemill.capture.downstream import Downstream
from tidemill.capture.engines import Engines
from tidemill.capture.lanes import LaneBuilder
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import DataDir, StateWriter
from tidemill.capture.opening import Opened, Opening, say_that_the_sink_is_away
from tidemill.capture.options import RunOptions, Status, status_at_rest
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.patience import Patience
from tidemill.capture.processor import SpanProcessor
from tidemill.capture.summary import status_of
from tidemill.capture.wishes import obey_wishes
from tidemill.errors import InvariantError, StoppedError, UpstreamError
from tidemill.flow.filter import ColumnSelector, TableFilter
from tidemill.flow.pipeline import Unit
from tidemill.log import context_of
from tidemill.model.orders import EVERYTHING
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.private import make_private
from tidemill.sinks import OwnerSink, Receipt, SinkOptions
from tidemill.source.scan import plan_scan, read_part
from tidemill.upstream.pd import PdClient, parse_addresses
from tidemill.upstream.tasks import settle

T = TypeVar("T")

_POLL_SECONDS = 0.05
_RELEASE_SECONDS = 1.0  # for PD to hear that nothing needs to be kept for us; it forgets by itself
_CLOSING_SECONDS = 1.0  # for a batch that is being committed, before what the sink is at is interrupted
_PROCESSOR = "main"

ShouldStop = Callable[[], bool]


def _never() -> bool:
    return False


def _nothing() -> None:
    pass


def _as_it_is(options: SinkOptions) -> SinkOptions:
    return options


class Changefeed:
    """One changefeed in the foreground. ``start`` it, ``poll`` until it is finished, ``close`` it in any case."""

    def __init__(
        self,
        options: RunOptions,
        *,
        data_dir: DataDir | None = None,
        sink: Callable[[SinkOptions], SinkOptions] = _as_it_is,
    ) -> None:
        """``data_dir`` and ``sink``: others than the usual, as tests of crashes bring them."""
        self._options = options
        downstream = Downstream.of(options)
        security = options.security if options.security is not None else options.config.security
        parse_addresses(options.pd, security)  # refused before anything is done
        self._sink_options = sink(downstream.sink)
        self._place, self._pipeline = downstream.place, downstream.pipeline
        self._traits = self._sink_options.traits
        self._zone = downstream.zone
        self._data_dir = data_dir or DataDir(options.data_dir)
        self._states = StateWriter(self._data_dir)
        self._context = context_of(changefeed=options.name)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="capture", daemon=True)
        self._pd = PdClient(options.pd, security=security)
        self._opening = Opening(
            options, self._data_dir, self._sink_options, self._place, self._zone, security, self._rescan,
            opened=lambda sink: setattr(self, "_sink", sink),
        )  # fmt: skip
        self._sink: OwnerSink | None = None
        self._opened: Opened | None = None
        self._owner: ChangefeedOwner | None = None
        self._processor: SpanProcessor | None = None
        self._following: asyncio.Task[None] | None = None  # the schema
        self._obeying: asyncio.Task[None] | None = None  # what is asked of it while it runs
        self._copy: InitialCopy | None = None  # while there is something to be copied
        self._totals = Totals()
        self._disk_quota = 0
        self._engines = Engines(options, self._place, self._traits, self._data_dir.path / "spark.log")
        self._should_stop: ShouldStop = _never

    @property
    def owner(self) -> ChangefeedOwner:
        if self._owner is None:
            raise InvariantError("the changefeed has not been started")
        return self._owner

    @property
    def processor(self) -> SpanProcessor:
        if self._processor is None:
            raise InvariantError("the changefeed follows nothing yet")
        return self._processor

    @property
    def data_dir(self) -> Path:
        return self._data_dir.path

    @property
    def is_copying(self) -> bool:
        """Whether ``poll`` takes a whole batch, of the initial copy."""
        return self._copy is not None

    def start(self, should_stop: ShouldStop = _never) -> None:
        """Connect, read the schema, subscribe, start Spark. Raises a TidemillError that says what is wrong, and a
        StoppedError as soon as ``should_stop``. Either way ``close`` is called afterwards."""
        self._should_stop = should_stop
        self._data_dir.acquire()  # before anything of the folder is touched: it may be in use
        for folder in (self._data_dir.scratch, self._data_dir.segments):
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
            make_private(folder)
        self._disk_quota = self._options.config.disk_quota or shutil.disk_usage(self._data_dir.path).free // 2
        self._thread.start()
        self._on_loop(self._open(), should_stop)
        if self._copy is None:
            self._stream()

    def _stream(self) -> None:
        """Follow the upstream from the checkpoint on."""
        if not self.owner.owned.is_finished:
            self._engines.start(self._should_stop)
        self._on_loop(self._follow(), self._should_stop)

    def poll(self, seconds: float = _POLL_SECONDS, on_wait: Callable[[], None] = _nothing) -> bool:
        """Wait a little; True once everything up to the target is durable. Raises what stopped it.

        In an initial copy it waits for a whole batch, and calls ``on_wait`` again and again meanwhile.
        """
        if self.failure is not None:
            raise self.failure
        if self._copy is not None:
            self._copy_some(self._copy, on_wait)
            return False
        if self.owner.is_done:
            return True
        threading.Event().wait(seconds)
        return False

    @property
    def failure(self) -> BaseException | None:
        """What has ended one of its parts; None: all go on. The owner first: what it cannot save ends the others."""
        if self._owner is not None and self._owner.beside.failure is not None:
            return self._owner.beside.failure
        for task in (self._opening.holding, self._following, self._obeying):
            if task is not None and task.done() and not task.cancelled():
                return task.exception()
        return self._processor.failure if self._processor is not None else None

    def _copy_some(self, copy: InitialCopy, on_wait: Callable[[], None]) -> None:
        """Take one batch of the initial copy; after the last one the stream begins."""
        patience = Patience(self._sink_options)

        def gives_up() -> bool:
            on_wait()
            return self._should_stop() and patience.is_over()

        def run(units: list[Unit]) -> list[Receipt]:
            self._engines.start(self._should_stop)
            return self._engines.of_copy().run(self._pipeline, units, "initial copy", gives_up)

        if not copy.step(run):
            self.owner.resume(copy.state)
            copy.close()
            self._copy = None
            self._stream()

    def status(self) -> Status:
        """How it stands. Asked on the loop: what it looks at changes there all the time."""
        return self._on_loop(self._status()) if self._owner is not None else self.status_at_start()

    def status_at_start(self) -> Status:
        """While ``start`` is at work, from any thread: what it does, and where it will continue."""
        return status_at_rest(self._options, self._opening.doing or self._engines.doing or "starting")

    async def _status(self) -> Status:
        return status_of(self.owner, self._processor, self._copy, self._totals, self._disk_quota)

    def drain(self, seconds: float = 60.0) -> None:
        """Begin no new batch and wait for the ones at hand, unless the sink is away."""
        self._on_loop(self._stop())
        patience = Patience(self._sink_options, seconds)
        lanes = list(self._processor.lanes) if self._processor is not None else []
        while any(running.lane.progress.in_flight is not None for running in lanes):
            is_away = any(running.is_waiting_for_sink for running in lanes) or self.owner.beside.trouble is not None
            if is_away or patience.is_over() or self.failure is not None:
                return
            threading.Event().wait(_POLL_SECONDS)

    async def _stop(self) -> None:
        self.owner.stop()

    def close(self, *, is_finished: bool = False) -> None:
        """Stop everything; what was reached is written down. A finished changefeed lets go of the upstream's GC. The
        Spark session ends with the last changefeed of this process that uses it."""
        with ExitStack() as steps:  # run from the last to the first, each whatever happens to the others
            steps.callback(self._data_dir.release)
            steps.callback(self._states.close)
            steps.callback(self._engines.close)
            steps.callback(self._stop_loop)
            if self._thread.is_alive():
                steps.callback(lambda: self._on_loop(self._close(is_finished)))

    def _stop_loop(self) -> None:
        if self._thread.is_alive():
            self._on_loop(settle())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    # Runs on the loop.

    async def _open(self) -> None:
        await self._pd.connect()
        opened = self._opened = await self._opening.run(self._pd)
        options, store = self._options, opened.feed.store
        owner = ChangefeedOwner(
            opened.feed, opened.sink, opened.state, self._states, target_ts=opened.target_ts, config=options.config,
            orders_ddls=self._traits.orders_ddls, is_together=self._traits.is_together,
            publish_interval_seconds=self._traits.publish_interval_seconds,
        )  # fmt: skip
        owner.left_out.note(store.tables())
        if opened.state.copied is not None:
            writer = await asyncio.to_thread(
                opened.sink_options.open_writer, f"{_PROCESSOR}/copy", zone=ZoneInfo(self._zone)
            )
            copy = InitialCopy(
                self._pd, opened.source, store, TableFilter(options.config), opened.sink, writer, self._traits,
                ColumnSelector(options.config), opened.state, self._data_dir, self._zone, self._totals,
            )  # fmt: skip
            self._copy = copy  # to be closed, whatever comes
            await copy.plan()
            await wait_out(partial(asyncio.to_thread, copy.prepare), say_that_the_sink_is_away)
        self._owner = owner

    async def _follow(self) -> None:
        opened = self._opened
        if opened is None:
            raise InvariantError("the changefeed has not been opened")
        owner, options = self.owner, self._options
        builder = LaneBuilder(
            self._pd,
            opened.feed,
            owner,
            partial(opened.sink_options.open_writer, zone=ZoneInfo(self._zone)),
            self._traits,
            options.config,
            self._data_dir.path,
            options.config.memory_quota,
            self._disk_quota,
            self._engines.shelf,
            self._engines.admission,
            self._pipeline,
            self._totals,
            self._engines.open if self._engines.is_up else None,
            source=opened.source,
        )
        processor = SpanProcessor(_PROCESSOR, builder)
        await processor.start(EVERYTHING, owner.state.at, written_ts=opened.written_ts, replaces=NOBODY)
        self._processor = processor
        if options.available_now:
            owner.end_at(await self._pd.get_ts())
        owner.start()
        self._following = asyncio.create_task(opened.feed.run())
        self._obeying = asyncio.create_task(obey_wishes(owner, self._data_dir.path))

    async def _close(self, is_finished: bool) -> None:
        for task in (self._following, self._obeying, self._opening.holding):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        try:
            if self._processor is not None:
                await self._close_processor(self._processor)
            if self._copy is not None:
                await asyncio.to_thread(self._copy.close)
            if self._owner is not None:
                await self._owner.close()
            elif self._sink is not None:
                await asyncio.to_thread(self._sink.close)
        finally:
            await self._leave(lets_go=is_finished or not self._opening.is_begun)

    async def _close_processor(self, processor: SpanProcessor) -> None:
        closing = asyncio.ensure_future(processor.close())
        _, late = await asyncio.wait([closing], timeout=_CLOSING_SECONDS)
        if late:  # a commit waits for what the owner does in the sink
            await self.owner.beside.interrupt()
        await closing

    async def _leave(self, *, lets_go: bool) -> None:
        """``lets_go``: nobody will come back for what the upstream keeps for us."""
        if self._opening.hold is not None and lets_go:
            with suppress(UpstreamError, TimeoutError):
                async with asyncio.timeout(None if self._opening.is_begun else _RELEASE_SECONDS):
                    await self._opening.hold.release()
        await self._pd.close()

    # Small things.

    def _rescan(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        """The rows of a table as of ``ts``, for a sink whose table a DDL has changed unseen. Blocks."""
        plan = plan_scan(self._pd, table, ts, physical_ids=physical_ids, zone=self._zone)
        for part in self._on_loop(plan):
            yield from read_part(part)

    def _on_loop(self, work: Coroutine[Any, Any, T], should_stop: ShouldStop = _never) -> T:
        future: Future[T] = self._context.copy().run(asyncio.run_coroutine_threadsafe, work, self._loop)
        while True:
            with suppress(TimeoutError):
                return future.result(_POLL_SECONDS)
            if future.done():  # just now, or with a TimeoutError of its own
                return future.result()
            if should_stop():
                future.cancel()
                raise StoppedError("stopped before the changefeed had started.")
