"""Builds a changefeed from its parts and runs it in the foreground. The only place that picks concrete classes.

caller         Spark's driver, what the user sees; any thread, but one at a time
loop thread    PD, puller, sorter, schema, processor (asyncio)
Spark          JVM, Python workers: the pipeline
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

from tidemill.capture.batches import Admission, Totals, wait_out
from tidemill.capture.copying import InitialCopy
from tidemill.capture.driver import BatchDriver
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.patience import Patience
from tidemill.capture.processor import Processor
from tidemill.clock import SYSTEM_CLOCK
from tidemill.config.changefeed import sink_parameters
from tidemill.config.sink_uri import loopbacks
from tidemill.control.progress import stage
from tidemill.errors import ConfigError, InvariantError, SinkError, StoppedError, UpstreamError, UsageError
from tidemill.flow.deadletter import forget_after
from tidemill.flow.filter import ColumnSelector, RowFilter, TableFilter
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.puller import Puller
from tidemill.flow.schema import SchemaStore
from tidemill.flow.schema.loader import load_schema, recovered_reader
from tidemill.flow.skew import LEAST_BYTES
from tidemill.flow.sorter import Shelf, Sorter
from tidemill.log import get_logger
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.row import RowBatch
from tidemill.model.security import Security
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, lag_seconds, show
from tidemill.private import make_private
from tidemill.sinks import Receipt, Sink, differences, open_sink, place_of, read_sink_uri
from tidemill.source.scan import plan_scan, read_part
from tidemill.upstream.gc import GcHold
from tidemill.upstream.pd import PdClient, parse_addresses
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader
from tidemill.upstream.tasks import settle

if TYPE_CHECKING:
    from tidemill.spark.engine import Engine
    from tidemill.spark.session import Lease

log = get_logger("server")

T = TypeVar("T")

_GC_TTL_SECONDS = 86_400
_STARTING_TTL_SECONDS = 600  # of a changefeed that nothing is written down of: nobody would come back for its hold
_POLL_SECONDS = 0.05
_RELEASE_SECONDS = 1.0  # for PD to hear that nothing needs to be kept for us; it forgets by itself

ShouldStop = Callable[[], bool]


def _never() -> bool:
    return False


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class RunOptions:
    pd: str
    sink_uri: str = field(repr=False)  # may hold a password
    data_dir: Path
    start_ts: Ts | None = None  # default: now
    target_ts: Ts | None = None  # default: go on until stopped
    spark_master: str | None = None  # default: of the session that is there, of Spark's own settings, or local[2]
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # settings of Spark; may hold secrets
    zone: str = "UTC"
    tasks: int | None = None  # how many Spark tasks a batch is cut into at most; default: as many as Spark has cores
    available_now: bool = False  # take what the upstream has at the start, then end: Spark's trigger of that name
    config: ChangefeedConfig = field(default_factory=ChangefeedConfig)
    least_shared_bytes: int = LEAST_BYTES  # of a table in a batch, before several tasks share it
    initial_copy: bool = False  # a new changefeed first copies the rows as of its start-ts
    security: Security | None = None  # to PD and TiKV; None: as the config says
    gc_ttl_seconds: int = _GC_TTL_SECONDS  # for which the upstream keeps what a changefeed that is away still needs


@dataclass(frozen=True, slots=True)
class Status:
    """How the changefeed stands, for the progress line."""

    stage: str
    checkpoint_ts: Ts
    lag_seconds: float
    latency_p50: float | None  # from commit to durable, of the latest batches' first rows, in seconds
    latency_p99: float | None
    totals: Totals
    pending_rows: int
    memory_bytes: int  # of changes that wait in memory
    disk_bytes: int  # and in the data folder
    most_disk_bytes: int  # that have waited there at one time, in this run
    disk_quota: int
    pulled_rows: int  # that came from the upstream in this run
    regions: int
    left_out: tuple[str, ...]  # tables that the filter asks for, and whose rows are not captured for want of a key


@dataclass(frozen=True, slots=True)
class _Upstream:
    """What runs on the loop."""

    pd: PdClient
    puller: Puller
    sorter: Sorter
    processor: Processor
    copy: InitialCopy | None  # while there is something to be copied


class Changefeed:
    """One changefeed in the foreground. ``start`` it, ``poll`` until it is finished, ``close`` it in any case."""

    def __init__(
        self, options: RunOptions, *, data_dir: DataDir | None = None, open_sink: Callable[..., Sink] = open_sink
    ) -> None:
        """``data_dir`` and ``open_sink``: others than the usual, as tests of crashes bring them."""
        self._options = options
        if options.config.force_replicate:
            raise ConfigError(
                "'force-replicate = true' is not supported: rows of tables without a key cannot be told apart, so a "
                "batch that comes again after a crash would be there twice. Give such tables a key, or take it out."
            )
        self._security = options.security if options.security is not None else options.config.security
        parse_addresses(options.pd, self._security)  # refused before anything is done
        scheme = options.sink_uri.partition("://")[0].lower()
        from_file = sink_parameters(options.config, scheme)
        self._sink_options = read_sink_uri(options.sink_uri, from_file)
        self._place = place_of(options.sink_uri, from_file)
        self._traits = self._sink_options.traits
        self._zone = self._traits.zone or options.zone
        self._data_dir = data_dir or DataDir(options.data_dir)
        self._open_sink = open_sink
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="processor", daemon=True)
        self._pd: PdClient | None = None
        self._gc_hold: GcHold | None = None
        self._keeping: asyncio.Task[None] | None = None  # renews the hold
        self._disk_quota = 0
        self._is_begun = False  # something is written down that a later run would resume
        self._upstream: _Upstream | None = None
        self._pulling: Future[None] | None = None
        self._sink: Sink | None = None
        self._lease: Lease | None = None
        self._engine: Engine | None = None
        self._shelf = Shelf()  # of segments, for workers on other hosts
        self._driver: BatchDriver | None = None
        self._batches: Future[None] | None = None
        self._driving: asyncio.Task[None] | None = None  # the same, on the loop
        self._should_stop: ShouldStop = _never

    @property
    def processor(self) -> Processor:
        return self._parts.processor

    @property
    def data_dir(self) -> Path:
        return self._data_dir.path

    @property
    def is_copying(self) -> bool:
        """Whether ``poll`` takes a whole batch, of the initial copy."""
        return self._upstream is not None and self._upstream.copy is not None

    def start(self, should_stop: ShouldStop = _never) -> None:
        """Connect, read the schema, subscribe, start Spark. Raises a TidemillError that says what is wrong, and a
        StoppedError as soon as ``should_stop``. Either way ``close`` is called afterwards."""
        self._should_stop = should_stop
        self._data_dir.acquire()  # before anything of the folder is touched: it may be in use
        shutil.rmtree(self._data_dir.scratch, ignore_errors=True)  # of a run that was killed
        make_private(self._data_dir.scratch)
        self._disk_quota = self._options.config.disk_quota or shutil.disk_usage(self._data_dir.path).free // 2
        self._thread.start()
        self._upstream = self._on_loop(self._open_upstream(), should_stop)
        if self._upstream.copy is None:
            self._stream()

    def _stream(self) -> None:
        """Follow the upstream from the checkpoint on."""
        self._on_loop(self._attach())
        self._pulling = asyncio.run_coroutine_threadsafe(self._parts.puller.run(), self._loop)
        if not self.processor.progress.is_finished:
            engine = self._spark()
            self._driver = BatchDriver(
                self._pipeline, self.processor, engine, available_now=self._options.available_now
            )
            self._batches = asyncio.run_coroutine_threadsafe(self._drive(self._driver), self._loop)

    def _spark(self) -> "Engine":
        """With the session running: what is wrong with it is to be told at the start."""
        from tidemill.spark.engine import Engine
        from tidemill.spark.session import borrow_session

        if self._lease is None:
            options, log_file = self._options, self._data_dir.path / "spark.log"
            self._lease = borrow_session(
                options.spark_master, conf=options.spark_conf, log=log_file, should_stop=self._should_stop
            )
        if self._engine is None:
            name, most_tasks = self._data_dir.path.name, self._traits.most_tasks
            local = loopbacks(self._place, self._options.pd if self.is_copying else "")
            engine = Engine(
                self._lease, name, self._options.tasks, most_tasks=most_tasks, shelf=self._shelf, loopbacks=local
            )
            engine.start()
            self._engine = engine
        return self._engine

    def poll(self, seconds: float = _POLL_SECONDS, on_wait: Callable[[], None] = _nothing) -> bool:
        """Wait a little; True once everything up to the target is durable. Raises what stopped it.

        In an initial copy it waits for a whole batch, and calls ``on_wait`` again and again meanwhile.
        """
        if self.failure is not None:
            raise self.failure
        if self._parts.copy is not None:
            self._copy_some(self._parts.copy, on_wait)
            return False
        if self.processor.is_done:
            return True
        if self._pulling is not None and self._pulling.done():
            raise InvariantError("the puller ended by itself")
        self._wait(seconds)
        return False

    def _wait(self, seconds: float) -> None:
        """Raises what ended the batches, should something."""
        if self._batches is None or (self._batches.done() and self._batches.exception() is None):
            threading.Event().wait(seconds)  # the last one is done; readers of the sink are being told
            return
        with suppress(TimeoutError):
            self._batches.result(seconds)
        if self._batches.done():
            self._batches.result()

    @property
    def failure(self) -> BaseException | None:
        """What has ended the puller, the hold on the upstream's past, or the sink's own work; None: they go on."""
        if self._keeping is not None and self._keeping.done() and not self._keeping.cancelled():
            return self._keeping.exception()
        if self._pulling is not None and self._pulling.done() and not self._pulling.cancelled():
            return self._pulling.exception()
        return self.processor.failure

    def _copy_some(self, copy: InitialCopy, on_wait: Callable[[], None]) -> None:
        """Take one batch of the initial copy; after the last one the stream begins."""
        patience = Patience(self._sink_options)
        receipts: list[Receipt] = []

        def gives_up() -> bool:
            on_wait()
            return self._should_stop() and patience.is_over()

        def run(units: list[Unit]) -> list[Receipt]:
            receipts[:] = self._spark().run(self._pipeline, units, "initial copy", gives_up)
            return receipts

        parts_done = copy.parts_done
        is_under_way = copy.step(run)
        if copy.parts_done > parts_done:
            self.processor.totals.count(receipts)
        if is_under_way:
            return
        self.processor.resume(copy.state)
        self._upstream = replace(self._parts, copy=None)
        self._stream()

    def status(self) -> Status:
        """How it stands. Asked on the loop: what it looks at changes there all the time."""
        return self._on_loop(self._status()) if self._upstream is not None else status_at_rest(self._options)

    async def _status(self) -> Status:
        progress, puller = self.processor.progress, self._parts.puller.stats()
        sorter = self._parts.sorter.stats()
        return Status(
            stage=self._stage(),
            checkpoint_ts=progress.checkpoint_ts,
            lag_seconds=lag_seconds(progress.checkpoint_ts, SYSTEM_CLOCK.now()),
            latency_p50=_quantile(self.processor.latencies, 0.5),
            latency_p99=_quantile(self.processor.latencies, 0.99),
            totals=self.processor.totals,
            pending_rows=sorter.rows,
            memory_bytes=sorter.memory_bytes,
            disk_bytes=sorter.disk_bytes,
            most_disk_bytes=sorter.most_disk_bytes,
            disk_quota=self._disk_quota,
            pulled_rows=puller.changes,
            regions=puller.regions,
            left_out=self.processor.left_out.names,
        )

    def drain(self, seconds: float = 60.0) -> None:
        """Begin no new batch and wait for the one at hand, unless the sink is away."""
        self._on_loop(self.processor.stop())
        patience = Patience(self._sink_options, seconds)
        while self._driver is not None and self.processor.progress.in_flight is not None:
            if self._driver.is_waiting_for_sink or self.processor.sink_trouble is not None or patience.is_over():
                return
            self._wait(_POLL_SECONDS)

    def close(self, *, is_finished: bool = False) -> None:
        """Stop everything; what was reached is written down. A finished changefeed lets go of the upstream's GC. The
        Spark session ends with the last changefeed of this process that uses it."""
        with ExitStack() as steps:  # run from the last to the first, each whatever happens to the others
            steps.callback(self._data_dir.release)
            if self._lease is not None:
                steps.callback(self._lease.release)
            steps.callback(self._stop_loop)
            if self._thread.is_alive():
                steps.callback(lambda: self._on_loop(self._close_upstream(is_finished)))
            if self._engine is not None:
                steps.callback(self._engine.close)  # again: after a start that failed there is no loop to do it

    def _stop_loop(self) -> None:
        if self._thread.is_alive():
            self._on_loop(settle())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    # Runs on the loop.

    async def _open_upstream(self) -> _Upstream:
        options = self._options
        pd = self._pd = PdClient(options.pd, security=self._security)
        await pd.connect()
        state = await self._resume(pd)
        if options.target_ts is not None and options.target_ts < state.at.base_ts:
            raise UsageError(
                f"target-ts {show(options.target_ts)} lies before {show(state.at.base_ts)}, where this changefeed "
                "stands. Choose a later --target-ts."
            )
        hold = await self._hold_gc(pd, state)
        schema = await _load_schema(pd, state)
        wanted = TableFilter(options.config)
        self._check_tables(schema, wanted, state)
        # The sink's own checkpoint is published after ours is saved, so it is never above it, unless it is another's.
        zone = ZoneInfo(self._zone)
        target = self._sink_options.named(state.changefeed_id, pd.cluster_id)
        written_ts = await pd.get_ts() if self._is_begun else None

        async def opened() -> Sink:
            # Beside the loop: a bucket or a catalog that does not answer is waited for within the call.
            sink = self._sink = await asyncio.to_thread(
                self._open_sink,
                target,
                state.sink_state,
                start_ts=state.checkpoint_ts,
                zone=zone,
                rescan=self._rescan,
                written_ts=written_ts,
            )
            await asyncio.to_thread(sink.recover, state.at)
            return sink

        # A new changefeed whose sink does not answer is rather told so: the URI may be wrong.
        sink = await (wait_out(opened, _say_that_the_sink_is_away) if self._is_begun else opened())
        forget_after(self._data_dir.undecodable, state.at)
        self._data_dir.save(state)
        self._is_begun = True
        hold.ttl_seconds = options.gc_ttl_seconds
        await hold.hold(state.checkpoint_ts)
        schema.read_recovered_with(recovered_reader(lambda: PdClient(options.pd, security=self._security)))
        processor = Processor(
            schema,
            sink,
            state,
            self._data_dir,
            pd.get_ts,
            target_ts=options.target_ts,
            admission=Admission(
                flush_interval_seconds=self._traits.flush_interval_seconds,
                tasks=self._tasks,
                sharing=self._traits.sharing_among,
                least_shared=options.least_shared_bytes,
            ),
            config=options.config,
            joins_partitions=self._traits.joins_partitions,
            keeps_partitions=self._traits.keeps_partitions,
        )
        processor.left_out.note(schema.tables())
        copy = None
        if state.copied is not None:
            selector = ColumnSelector(options.config)
            copy = InitialCopy(pd, schema, wanted, sink, self._traits, selector, state, self._data_dir, self._zone)
            await copy.plan()
            await wait_out(partial(asyncio.to_thread, copy.make_tables), _say_that_the_sink_is_away)
        return _Upstream(
            pd,
            Puller(pd, processor, spill=self._data_dir.scratch),
            self._open_sorter(self._data_dir.segments),
            processor,
            copy,
        )

    def _open_sorter(self, folder: Path) -> Sorter:
        quota = self._options.config.memory_quota
        return Sorter(folder, memory_bytes=quota, disk_bytes=self._disk_quota, shelf=self._shelf)

    def _check_tables(self, schema: SchemaStore, wanted: TableFilter, state: ChangefeedState) -> None:
        """Refuse at the start what a filter says that cannot be done."""
        tables = schema.tables()
        if state.checkpoint_ts == state.start_ts:
            wanted.check_eligible(tables)  # one that came later is left out, and must not keep us from going on
        row_filter, selector = RowFilter(self._options.config), ColumnSelector(self._options.config)
        for table in tables:
            if wanted.captures(table):
                row_filter.check(table)
                selector.table(table)

    async def _attach(self) -> None:
        self._parts.processor.attach(
            self._parts.puller, self._parts.sorter, lambda: self._open_sorter(self._data_dir.early_segments)
        )

    def _rescan(self, table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        """The rows of a table as of ``ts``, for a sink whose table a DDL has changed unseen. Blocks."""
        plan = plan_scan(self._parts.pd, table, ts, physical_ids=physical_ids, zone=self._zone)
        for part in self._on_loop(plan):
            yield from read_part(part)

    async def _resume(self, pd: PdClient) -> ChangefeedState:
        """What an earlier run has written down, or a new changefeed that nothing is written down of yet."""
        state = self._data_dir.load()
        if state is None:
            return await self._new_state(pd)
        given, remedy = (
            self._options.start_ts,
            f"Use another --data-dir for this one, or give what {self._data_dir.path} was started with.",
        )
        if state.cluster_id != pd.cluster_id:
            raise UsageError(f"data-dir belongs to cluster {state.cluster_id}, PD says {pd.cluster_id}. {remedy}")
        differing = differences(state.sink, self._place)
        if differing:
            raise UsageError(
                f"data-dir belongs to a changefeed into {state.sink}, not {self._place} ({differing}). {remedy}"
            )
        if given not in (None, state.start_ts):
            raise UsageError(f"data-dir belongs to a changefeed from start-ts {state.start_ts}, not {given}. {remedy}")
        self._is_begun = True
        log.info("resuming", checkpoint_ts=state.checkpoint_ts, rows=state.rows)
        return replace(state, sink=self._place, changefeed_id=state.changefeed_id or self._data_dir.former_name)

    async def _new_state(self, pd: PdClient) -> ChangefeedState:
        now_ts = await pd.get_ts()
        start_ts = self._options.start_ts if self._options.start_ts is not None else now_ts
        if start_ts > now_ts:
            raise UsageError(
                f"start-ts {show(start_ts)} lies in the future: the upstream is at {show(now_ts)}. "
                "Leave --start-ts out to start now, or choose an earlier one."
            )
        return ChangefeedState(
            pd.cluster_id,
            self._place,
            start_ts=start_ts,
            checkpoint_ts=start_ts,
            ddl_ts=start_ts,
            rows=0,
            table_versions={},
            sink_state=None,
            copied={} if self._options.initial_copy else None,
            changefeed_id=self._data_dir.changefeed_id(),
        )

    async def _hold_gc(self, pd: PdClient, state: ChangefeedState) -> GcHold:
        """Keep the upstream from collecting what we still need, from here to the end; refuse what it has collected
        already. What is claimed is what a crash would go back to: the checkpoint that was saved."""
        ttl = self._options.gc_ttl_seconds
        hold = GcHold(pd, state.changefeed_id, ttl if self._is_begun else min(ttl, _STARTING_TTL_SECONDS))
        self._gc_hold = hold
        await hold.hold(state.checkpoint_ts)

        def needed() -> Ts:
            return (self._data_dir.saved or state).checkpoint_ts

        self._keeping = asyncio.create_task(hold.keep(needed))
        return hold

    async def _drive(self, driver: BatchDriver) -> None:
        self._driving = asyncio.current_task()
        await driver.run()

    async def _close_upstream(self, is_finished: bool) -> None:
        if self._driving is not None:
            self._driving.cancel()  # before its job is: that would count as Spark's failure
        if self._engine is not None:
            self._engine.close()
        if self._driving is not None:
            await asyncio.gather(self._driving, return_exceptions=True)
        if self._pulling is not None:
            self._pulling.cancel()
            with suppress(CancelledError, asyncio.CancelledError, Exception):
                await asyncio.wrap_future(self._pulling)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        try:
            if self._upstream is not None:
                await self._upstream.processor.close()
            elif self._sink is not None:
                await asyncio.to_thread(self._sink.close)
        finally:
            if self._upstream is not None:
                self._upstream.sorter.close()
            if self._pd is not None:
                await self._leave(self._pd, lets_go=is_finished or not self._is_begun)

    async def _leave(self, pd: PdClient, *, lets_go: bool) -> None:
        """``lets_go``: nobody will come back for what the upstream keeps for us."""
        if self._gc_hold is not None and lets_go:
            with suppress(UpstreamError, TimeoutError):
                async with asyncio.timeout(None if self._is_begun else _RELEASE_SECONDS):
                    await self._gc_hold.release()
        await pd.close()

    # Small things.

    @property
    def _parts(self) -> _Upstream:
        if self._upstream is None:
            raise InvariantError("the changefeed has not been started")
        return self._upstream

    def _on_loop(self, work: Coroutine[Any, Any, T], should_stop: ShouldStop = _never) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            with suppress(TimeoutError):
                return future.result(_POLL_SECONDS)
            if future.done():  # just now, or with a TimeoutError of its own
                return future.result()
            if should_stop():
                future.cancel()
                raise StoppedError("stopped before the changefeed had started.")

    def _tasks(self) -> int:
        return self._engine.tasks if self._engine is not None else 1

    @property
    def _pipeline(self) -> Pipeline:
        wants = self._traits
        return Pipeline(self._zone, self._options.config, wants.splits_updates, wants.splits_large)

    def _stage(self) -> str:
        copy = self._parts.copy
        if copy is not None:
            return copy.stage
        processor, stats = self.processor, self._parts.puller.stats()
        return stage(
            processor.progress,
            batch_seconds=processor.batch_seconds,
            trouble=processor.sink_trouble,
            is_held=self._parts.sorter.stats().is_full,
            scanned=stats.initialized_regions,
            regions=stats.regions,
        )


def _quantile(values: Sequence[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def _say_that_the_sink_is_away(error: SinkError) -> None:
    log.warning("the sink is away; waiting for it before the changefeed can start", reason=str(error))


async def _load_schema(pd: PdClient, state: ChangefeedState) -> SchemaStore:
    versions = {int(table): Ts(ts) for table, ts in state.table_versions.items()}
    reader = SnapshotReader(pd, RegionCache(pd))
    try:
        return await load_schema(reader, state.schema_ts, state.start_ts, versions)
    finally:
        await reader.close()


def status_at_rest(options: RunOptions) -> Status:
    """How a changefeed stands that has not started; at 0 where nothing says where it would begin."""
    state = DataDir(options.data_dir).load()
    at_ts = state.checkpoint_ts if state is not None else options.start_ts or Ts(0)
    lag = lag_seconds(at_ts, SYSTEM_CLOCK.now())
    return Status("not started", at_ts, lag, None, None, Totals(), 0, 0, 0, 0, 0, 0, 0, left_out=())
