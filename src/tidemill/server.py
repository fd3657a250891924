"""Builds a changefeed from its parts and runs it in the foreground. The only place that picks concrete classes.

main thread    Spark's driver, signals, what the user sees
loop thread    PD, puller, sorter, schema, processor (asyncio)
Spark          JVM, Python workers: the pipeline
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.config import sink_parameters
from tidemill.control.progress import stage
from tidemill.control.state import ChangefeedState, DataDir
from tidemill.copying import InitialCopy
from tidemill.driver import SparkDriver
from tidemill.errors import (
    ConfigError,
    InvariantError,
    UpstreamError,
    UsageError,
)
from tidemill.flow.deadletter import forget_after
from tidemill.flow.filter import ColumnSelector, RowFilter, TableFilter
from tidemill.flow.hot import LEAST_BYTES
from tidemill.flow.pipeline import Pipeline
from tidemill.flow.puller import Puller
from tidemill.flow.scan import plan_scan, read_part
from tidemill.flow.schema import SchemaStore
from tidemill.flow.schema.loader import load_schema
from tidemill.flow.sink import Sink, named, open_sink, read_sink_uri, safe_uri, traits
from tidemill.flow.sorter import Sorter
from tidemill.log import get_logger
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, lag_seconds, show
from tidemill.processor import Admission, Processor, Totals
from tidemill.upstream.gc import GcHold
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

log = get_logger("server")

T = TypeVar("T")

_GC_TTL_SECONDS = 86_400
_GC_PERIOD_SECONDS = 60.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class RunOptions:
    pd: str
    sink_uri: str
    data_dir: Path
    start_ts: Ts | None = None  # default: now
    target_ts: Ts | None = None  # default: go on until stopped
    spark_master: str = "local[2]"
    zone: str = "UTC"
    tasks: int = 2  # how many Spark tasks a batch is cut into at most
    available_now: bool = False  # take what the upstream has at the start, then end: Spark's trigger of that name
    config: ChangefeedConfig = field(default_factory=lambda: ChangefeedConfig(ignore_ineligible_table=True))
    least_shared_bytes: int = LEAST_BYTES  # of a table in a batch, before several tasks share it
    initial_copy: bool = False  # a new changefeed first copies the rows as of its start-ts


@dataclass(frozen=True, slots=True)
class Snapshot:
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
        scheme = options.sink_uri.partition("://")[0].lower()
        self._sink_options = read_sink_uri(options.sink_uri, sink_parameters(options.config, scheme))
        self._traits = traits(self._sink_options)
        self._zone = self._traits.zone or options.zone
        self._data_dir = data_dir or DataDir(options.data_dir)
        self._open_sink = open_sink
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="processor", daemon=True)
        self._service_id = self._data_dir.changefeed
        self._pd: PdClient | None = None
        self._gc_hold: GcHold | None = None
        self._disk_quota = 0
        self._is_begun = False  # something is written down that a later run would resume
        self._upstream: _Upstream | None = None
        self._pulling: Future[None] | None = None
        self._spark: SparkDriver | None = None

    @property
    def processor(self) -> Processor:
        return self._parts.processor

    @property
    def data_dir(self) -> Path:
        return self._data_dir.path

    def start(self) -> None:
        """Connect, read the schema, subscribe, start Spark. Raises a TidemillError that says what is wrong."""
        self._data_dir.acquire()
        shutil.rmtree(self._data_dir.scratch, ignore_errors=True)  # of a run that was killed
        self._data_dir.scratch.mkdir(exist_ok=True)
        self._disk_quota = self._options.config.disk_quota or shutil.disk_usage(self._data_dir.path).free // 2
        self._thread.start()
        self._upstream = self._on_loop(self._open_upstream())
        if self._upstream.copy is None:
            self._stream()

    def _stream(self) -> None:
        """Follow the upstream from the checkpoint on."""
        self._on_loop(self._attach())
        self._pulling = asyncio.run_coroutine_threadsafe(self._pull(), self._loop)
        if not self.processor.progress.is_finished:
            self._spark = SparkDriver(
                self._pipeline,
                self.processor,
                self._loop,
                self._data_dir,
                master=self._options.spark_master,
                tasks=min(self._options.tasks, self._traits.most_tasks),
                available_now=self._options.available_now,
            )

    def poll(self, seconds: float = _POLL_SECONDS) -> bool:
        """Wait a little; True once everything up to the target is durable. Raises what stopped it."""
        if self._parts.copy is not None:
            self._copy_some(self._parts.copy)
            return False
        if self.processor.failure is not None:
            raise self.processor.failure
        if self.processor.is_done:
            return True
        if self._pulling is not None and self._pulling.done():
            self._pulling.result()
            raise InvariantError("the puller ended by itself")
        if self._spark is not None:
            self._spark.wait(seconds)
        return False

    def _copy_some(self, copy: InitialCopy) -> None:
        """Take one batch of the initial copy; after the last one the stream begins."""
        from tidemill.spark.batch import run_units
        from tidemill.spark.session import open_session

        units = copy.take()
        if units:
            session = open_session(self._options.spark_master, scratch=self._data_dir.scratch)
            copy.commit(run_units(session, self._pipeline, units, self._tasks))
            return
        self.processor.resume(copy.finish())
        self._upstream = replace(self._parts, copy=None)
        self._stream()

    def look(self) -> Snapshot:
        """How it stands. Asked on the loop: what it looks at changes there all the time."""
        return self._on_loop(self._look())

    async def _look(self) -> Snapshot:
        progress, puller = self.processor.progress, self._parts.puller.stats()
        sorter = self._parts.sorter.stats()
        return Snapshot(
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
        )

    def drain(self, seconds: float = 60.0) -> None:
        """Begin no new batch and wait for the one at hand, unless the sink is away."""
        self._on_loop(self.processor.stop())
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        while self.processor.progress.in_flight_ts is not None and SYSTEM_CLOCK.monotonic() < deadline:
            if self._spark is not None:
                if self._spark.is_waiting_for_sink:
                    return
                self._spark.wait(_POLL_SECONDS)

    def close(self, *, is_finished: bool = False, stop_spark: bool = False) -> None:
        """Stop everything; what was reached is written down. A finished changefeed lets go of the upstream's GC.
        ``stop_spark``: the session too, which others of this process may share."""
        with ExitStack() as steps:  # run from the last to the first, each whatever happens to the others
            steps.callback(self._data_dir.release)
            steps.callback(self._stop_loop)
            if self._thread.is_alive():
                steps.callback(lambda: self._on_loop(self._close_upstream(is_finished)))
            if self._spark is not None:
                steps.callback(self._spark.close, stop_session=stop_spark)

    def _stop_loop(self) -> None:
        if self._thread.is_alive():
            self._on_loop(_settle())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    # Runs on the loop.

    async def _open_upstream(self) -> _Upstream:
        options = self._options
        pd = self._pd = PdClient(options.pd)
        await pd.connect()
        state = await self._resume(pd)
        if options.target_ts is not None and options.target_ts < state.checkpoint_ts:
            raise UsageError(
                f"target-ts {show(options.target_ts)} lies before {show(state.checkpoint_ts)}, where this changefeed "
                "stands. Choose a later --target-ts."
            )
        await self._hold_gc(pd, state.checkpoint_ts)
        # The sink's own checkpoint is published after ours is saved, so it is never above it, unless it is another's.
        zone = ZoneInfo(self._zone)
        target = named(self._sink_options, self._service_id, pd.cluster_id)
        sink = self._open_sink(
            target,
            state.sink_state,
            start_ts=state.checkpoint_ts,
            zone=zone,
            rescan=self._rescan,
            written_ts=await pd.get_ts() if self._is_begun else None,
        )
        await asyncio.to_thread(sink.recover)
        forget_after(self._data_dir.undecodable, state.checkpoint_ts)
        self._data_dir.save(state)
        self._is_begun = True
        versions = {int(table): Ts(ts) for table, ts in state.table_versions.items()}
        reader = SnapshotReader(pd, RegionCache(pd))
        try:
            schema = await load_schema(reader, state.ddl_ts, state.start_ts, versions)
        finally:
            await reader.close()
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
                sharing=self._traits.sharing_among(self._tasks),
                least_shared=options.least_shared_bytes,
            ),
            config=options.config,
            joins_partitions=self._traits.joins_partitions,
            keeps_partitions=self._traits.keeps_partitions,
        )
        wanted = TableFilter(options.config)
        self._check_tables(schema, wanted, state)
        copy = None
        if state.copied is not None:
            selector = ColumnSelector(options.config)
            copy = InitialCopy(pd, schema, wanted, sink, self._traits, selector, state, self._data_dir, self._zone)
            await copy.plan()
            await asyncio.to_thread(copy.make_tables)
        return _Upstream(
            pd,
            Puller(pd, processor, spill=self._data_dir.scratch),
            self._open_sorter(self._data_dir.segments),
            processor,
            copy,
        )

    def _open_sorter(self, folder: Path) -> Sorter:
        return Sorter(folder, memory_bytes=self._options.config.memory_quota, disk_bytes=self._disk_quota)

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
        sink, given = safe_uri(self._options.sink_uri), self._options.start_ts
        state = self._data_dir.load()
        if state is None:
            now_ts = await pd.get_ts()
            start_ts = given if given is not None else now_ts
            if start_ts > now_ts:
                raise UsageError(
                    f"start-ts {show(start_ts)} lies in the future: the upstream is at {show(now_ts)}. "
                    "Leave --start-ts out to start now, or choose an earlier one."
                )
            copied: dict[str, str] | None = {} if self._options.initial_copy else None
            return ChangefeedState(pd.cluster_id, sink, start_ts, start_ts, start_ts, 0, {}, None, copied)
        remedy = f"Use another --data-dir for this one, or give what {self._data_dir.path} was started with."
        if state.cluster_id != pd.cluster_id:
            raise UsageError(f"data-dir belongs to cluster {state.cluster_id}, PD says {pd.cluster_id}. {remedy}")
        if state.sink != sink:
            raise UsageError(f"data-dir belongs to a changefeed into {state.sink}, not {sink}. {remedy}")
        if given not in (None, state.start_ts):
            raise UsageError(f"data-dir belongs to a changefeed from start-ts {state.start_ts}, not {given}. {remedy}")
        self._is_begun = True
        log.info("resuming", checkpoint_ts=state.checkpoint_ts, rows=state.rows)
        return state

    async def _hold_gc(self, pd: PdClient, checkpoint_ts: Ts) -> None:
        """Keep the upstream from collecting what we still need; refuse what it has collected already."""
        if self._gc_hold is None:
            self._gc_hold = GcHold(pd, self._service_id, _GC_TTL_SECONDS)
        await self._gc_hold.hold(checkpoint_ts)

    async def _pull(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._parts.puller.run())
                tasks.create_task(self._keep_gc(self._parts.pd))
        except BaseExceptionGroup as group:
            # One of ours is the reason; the other task was merely cancelled for it.
            raise group.exceptions[0] from None

    async def _keep_gc(self, pd: PdClient) -> None:
        while True:
            await SYSTEM_CLOCK.sleep(_GC_PERIOD_SECONDS)
            try:
                await self._hold_gc(pd, self.processor.progress.checkpoint_ts)
            except UpstreamError as error:
                log.warning("could not renew the GC safepoint; trying again", reason=str(error))

    async def _close_upstream(self, is_finished: bool) -> None:
        if self._pulling is not None:
            self._pulling.cancel()
            with suppress(CancelledError, asyncio.CancelledError, Exception):
                await asyncio.wrap_future(self._pulling)
        try:
            if self._upstream is not None:
                await self._upstream.processor.close()
        finally:
            if self._upstream is not None:
                self._upstream.sorter.close()
            if self._pd is not None:
                await self._leave(self._pd, lets_go=is_finished or not self._is_begun)

    async def _leave(self, pd: PdClient, *, lets_go: bool) -> None:
        """``lets_go``: nobody will come back for what the upstream keeps for us."""
        if self._gc_hold is not None and lets_go:
            with suppress(UpstreamError):
                await self._gc_hold.release()
        await pd.close()

    # Small things.

    @property
    def _parts(self) -> _Upstream:
        if self._upstream is None:
            raise InvariantError("the changefeed has not been started")
        return self._upstream

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def _tasks(self) -> int:
        return min(self._options.tasks, self._traits.most_tasks)

    @property
    def _pipeline(self) -> Pipeline:
        return Pipeline(self._sink_options, self._zone, self._options.config)

    def _stage(self) -> str:
        copy = self._parts.copy
        if copy is not None:
            return f"copying {copy.parts_done}/{copy.parts} parts of tables"
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


async def _settle() -> None:
    """Let what gRPC has still under way on this loop come to its end."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def run_changefeed(
    options: RunOptions,
    should_stop: Callable[[], bool],
    on_ready: Callable[[Changefeed], None],
    on_tick: Callable[[Snapshot], None],
    *,
    stop_spark: bool = False,
) -> tuple[bool, Snapshot]:
    """Run until the target is reached (True) or ``should_stop`` says so (False); and how it stood then.

    ``stop_spark``: stop the Spark session at the end. Without, the process keeps it for the next one.
    """
    feed = Changefeed(options)
    finished = False
    try:
        feed.start()
        on_ready(feed)
        while not (finished or should_stop()):
            finished = feed.poll()
            on_tick(feed.look())
        if not finished:
            feed.drain()
        return finished, feed.look()
    finally:
        feed.close(is_finished=finished, stop_spark=stop_spark)
