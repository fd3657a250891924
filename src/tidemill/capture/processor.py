"""The processor: what a capture runs for one changefeed, from the upstream's regions to a durable checkpoint.

    puller ──► sorter (segments)            the driver asks:  offer ─► batch            what the next one takes
       └─────► schema store (DDL jobs)                        units(batch)              what to read, how to decode it
                                                              commit(batch, receipts)   it is durable: move on

A DDL waits for the rows of the tables that it touches, and those for the DDL; batches of the others go on beside it.

Everything here runs on one asyncio loop, so its state needs no locks; so does the ``driver`` that takes batches from
here to Spark and back. What to do next is decided by ``control.progress``;
this module does it. The sink may take its time, so it is called in a thread of its own, one call at a time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.capture.batches import Admission, Batch, BatchTrace, Totals, wait_out
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.pace import Amount, next_limit
from tidemill.control.progress import (
    Advance,
    Barriers,
    Finish,
    Offer,
    Pending,
    Progress,
    Sync,
    Wait,
    began,
    can_run_ddl,
    ddl_done,
    decide,
    learned,
    moved,
    sync_done,
)
from tidemill.control.retries import pause_seconds
from tidemill.errors import DataDirError, InvariantError, SinkError, SupersededError
from tidemill.flow.deadletter import forget_after, quarantine
from tidemill.flow.filter import ColumnSelector, DdlFilter, LeftOut, TableFilter
from tidemill.flow.pipeline import Part, Unit, make_units
from tidemill.flow.puller import Puller
from tidemill.flow.schema import JOB_TABLE_ID, SchemaChange, SchemaStore
from tidemill.flow.skew import share_skewed
from tidemill.flow.sorter import Sorter
from tidemill.log import get_logger
from tidemill.model.change import RAW_CHANGE_SCHEMA
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Extent
from tidemill.model.ts import Ts, lag_seconds, show
from tidemill.sinks import Receipt, Sink
from tidemill.source.intake import FEW_READINGS, Intake
from tidemill.tidb.keys import record_span

log = get_logger("processor")

T = TypeVar("T")
P = ParamSpec("P")
Work = Callable[[], Coroutine[object, object, None]]

_DDL_SPAN = 1  # the subscription to the DDL jobs; the intake takes the numbers after it
_TRACES = 1024  # of the latest batches are kept
_IDLE_SAVE_SECONDS = 2.0  # how often a checkpoint that moves without data is written down


class Processor:
    def __init__(
        self,
        schema: SchemaStore,
        sink: Sink,
        state: ChangefeedState,
        data_dir: DataDir,
        upstream_now: Callable[[], Awaitable[Ts]],
        *,
        target_ts: Ts | None = None,
        admission: Admission | None = None,
        config: ChangefeedConfig | None = None,
        joins_partitions: bool = False,
        keeps_partitions: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._schema = schema
        self._sink = sink
        self._state = state
        self._data_dir = data_dir
        self._upstream_now = upstream_now
        self._admission = admission or Admission()
        self._tables = TableFilter(config or ChangefeedConfig())
        self.left_out = LeftOut(self._tables)
        self._ddl_filter = DdlFilter(config or ChangefeedConfig())
        self._selector = ColumnSelector(config or ChangefeedConfig())
        self._joins_partitions, self._keeps_partitions = joins_partitions, keeps_partitions
        self._clock = clock
        self._ddls: deque[SchemaChange] = deque()
        self._job_rows: list[pa.RecordBatch] = []
        self._changed = asyncio.Event()
        self._batch_ready: float | None = None
        self._batch_started = -1e9
        self._batch_planned = -1e9
        self._batch_limit = self._admission.bounds.most
        self._batch_taken = Amount(0, 0)
        self._batches = 0  # that were offered
        self.generation = 0  # ends when a batch is lost or cut short; who asks or reports names theirs
        self._ending = asyncio.Lock()  # of a batch: by its commit, or because it is taken back
        self._attempts = 0  # to write a batch that the sink was away for, since the last that was committed
        self.traces: deque[BatchTrace] = deque(maxlen=_TRACES)
        self.latencies: deque[float] = deque(maxlen=_TRACES)  # from the commit of a batch's first row to durable
        self._idle_saved = clock.monotonic()
        self._intake: Intake
        self._sink_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sink")
        self._busy: asyncio.Task[None] | None = None  # with a DDL or a sync point
        self._committing: asyncio.Future[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._saving = asyncio.Lock()  # from what the sink takes to the state that tells of it; no reader hears of it
        self._unsaved: DataDirError | None = None  # why the sink has taken something that no state tells of
        self._is_closing = False
        self._is_closed = False  # the sink is, so nobody is told of anything any more
        self.failure: Exception | None = None  # of what runs beside: a DDL, or telling readers of the checkpoint
        self.sink_trouble: str | None = None  # why the sink is waited for; None: it is not, as far as is known
        self.totals = Totals()
        self.progress = Progress(
            at=state.at,
            ddl_ts=state.ddl_ts,
            frontier_ts=state.at.lowest_ts,
            schema_ts=state.schema_ts,
            # One below: all may have come to a sync point that was not noted any more. None lies between the tables.
            sync_ts=sink.next_barrier(Ts(state.at.base_ts - 1)),
            target_ts=target_ts,
        )

    def resume(self, state: ChangefeedState) -> None:
        """Another state of the same checkpoint, before it is attached: that of a copy that is complete."""
        self._state = state

    @property
    def batch_seconds(self) -> float | None:
        """How long the batch at hand has been under way; None: there is none."""
        is_under_way = self.progress.in_flight is not None
        return self._clock.monotonic() - self._batch_started if is_under_way else None

    @property
    def is_done(self) -> bool:
        """Everything up to the target is durable, and readers of the sink have been told."""
        now = self.progress
        is_idle = now.in_flight is None and not now.is_ddl_running and not now.is_syncing
        return now.is_finished and is_idle and self._publishing is None

    # What the puller calls.

    def attach(
        self, puller: Puller, sorter: Sorter, open_early: Callable[[], Sorter], *, few_readings: int = FEW_READINGS
    ) -> None:
        """Subscribe to the DDL jobs and to every table that is followed. Called once, before all else."""
        captures = self._tables.captures
        self._intake = Intake(
            self._schema, puller, sorter, open_early, captures, few_readings=few_readings,
            replays=not self._keeps_partitions,
        )  # fmt: skip
        # One below: the schema store wants to see again what was done exactly at its ts.
        puller.subscribe(_DDL_SPAN, record_span(JOB_TABLE_ID), Ts(self.progress.schema_ts - 1))
        self._intake.follow(self.progress.at)
        self._turn()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        if subscription == _DDL_SPAN:
            self._job_rows.append(changes)
        else:
            await self._intake.receive(subscription, changes)

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        if subscription == _DDL_SPAN:
            self._apply_jobs(resolved_ts)
        else:
            self._intake.advance(subscription, resolved_ts)
        self._turn()

    # What Spark's side calls.

    async def offer(self, wait_seconds: float) -> Batch | None:
        """The next batch, once there are changes to take; None after ``wait_seconds``, or at the end. Changes above
        the checkpoints only; what lies below is durable."""
        deadline = self._clock.monotonic() + wait_seconds
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            decision = decide(self.progress, self._has_changes)
            due = self._batch_started + self._admission.flush_interval_seconds
            match decision:
                case Offer(limit):
                    extent = self._next(limit)
                    is_cut = extent != self.progress.extent(limit)
                    if now >= due or is_cut or self.progress.is_barred:  # it would not grow by waiting
                        return self._begin(extent)
                case Finish():
                    await self._clock.sleep(min(wait_seconds, 0.05))
                    return None
                case Wait():
                    due = deadline
                case _:
                    self._turn()
                    continue
            if now >= deadline:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(deadline, due) - now)):  # wait_for may swallow a cancellation
                    await self._changed.wait()

    def _next(self, limit_ts: Ts) -> Extent:
        """What the next batch takes: about as much as it may, and as much again of tables that are catching up."""
        most = self._batch_limit
        whole = self.progress.extent(limit_ts)
        catch_up_ts = self._intake.catch_up_ts(whole, most.rows, most.bytes)
        to_ts = self._intake.next_to(whole, most.rows, most.bytes)
        return self.progress.extent(to_ts, catch_up_ts)

    async def units(self, batch: Batch) -> list[Unit]:
        """What a batch that was offered consists of. Asked twice, it answers the same."""
        self._check_at_hand(batch)
        units = await self._units(batch.extent)
        self._check_at_hand(batch)  # they have targets of the sink's generation, which has ended as well
        return units

    async def shorten(self, batch: Batch, to_ts: Ts) -> tuple[Batch | None, list[Unit]]:
        """The batch at hand cannot be taken beyond ``to_ts``. Begins a generation, and gives a batch and its units up
        to there, to be committed in place of the other; none if nothing of it is left. What was written of it
        downstream is gone when this returns."""
        async with self._ending:
            self._check_current(batch.generation)
            self._end_generation()
            await self._take_back()
            self.progress = replace(self.progress, in_flight=None)
            shorter = batch.extent.up_to(to_ts)
            units = await self._units(shorter) if not shorter.is_empty else []
            return (self._begin(shorter), units) if units else (None, [])

    async def begin_again(self, trouble: SinkError | None = None) -> None:
        """Spark has lost the batch at hand, or the sink could not take it: ``trouble`` says why, if it passes. What was
        written of it downstream is gone when this returns, and whoever asked or reports for it is refused. A sink that
        is away is waited for."""
        async with self._ending:  # what is being committed is not lost
            self._end_generation()
            if trouble is not None:
                self.note_trouble(trouble)
                self._attempts += 1
                await self._clock.sleep(pause_seconds(self._attempts))
            await self._wait_out(self._take_back)
            self.progress = replace(self.progress, in_flight=None)
        self._turn()

    async def _take_back(self) -> None:
        """What was written of batches that were not committed. Not while the sink has taken something, be it of a DDL,
        that no state tells of yet: it would tell readers."""
        async with self._saving:
            if self._unsaved is not None:
                raise self._unsaved
            await self._in_sink(self._sink.recover, self.progress.at)
            forget_after(self._data_dir.undecodable, self.progress.at)

    def _end_generation(self) -> int:
        """Before anything is taken back. Until it has been, the batch stands in the way of all others."""
        self.generation += 1
        self._changed.set()  # who waits for an offer is to hear of it
        return self.generation

    def _check_current(self, generation: int) -> None:
        if generation != self.generation:
            raise SupersededError(
                f"a batch of generation {generation} is too late: it was taken back since, in generation "
                f"{self.generation}, and comes again. Nothing is lost."
            )

    def _check_at_hand(self, batch: Batch) -> None:
        self._check_current(batch.generation)
        if batch.extent is not self.progress.in_flight or batch.number != self._batches:
            raise InvariantError(f"a batch up to {show(batch.to_ts)} is not the one at hand. Report it.")

    async def _units(self, extent: Extent) -> list[Unit]:
        parts: list[Part] = []
        for physical_id, slices in self._intake.plan(extent):
            to_ts = extent.of(physical_id)[1]
            table = self._schema.table(physical_id, to_ts)
            if table is None:
                raise InvariantError(f"changes of table id {physical_id} up to {to_ts}, but no schema for them")
            if self._tables.captures(table):
                parts.append((table, physical_id, slices))
        units = await self._in_sink(self._make_units, parts, extent)
        self._batch_planned = self._clock.monotonic()
        taken = [slices for _, _, slices in parts]
        self._batch_taken = Amount(sum(each.rows for each in taken), sum(each.bytes for each in taken))
        return units

    def _make_units(self, parts: Sequence[Part], extent: Extent) -> list[Unit]:
        """In the sink's thread: targets may take their time, and so may picking keys."""
        units = make_units(
            parts,
            lambda table, physical_id: self._sink.target(
                self._selector.table(table), physical_id, extent.of(physical_id)
            ),
            joins_partitions=self._joins_partitions,
        )
        tasks = self._admission.tasks()
        return share_skewed(units, tasks, self._admission.sharing(tasks).allows, self._admission.least_shared)

    async def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """The batch is durable downstream: the checkpoints move to its end. Raises SupersededError, and changes
        nothing, where it has been taken back meanwhile."""
        self._check_current(batch.generation)  # at once: it may be a while until what has been taken back is gone
        # Whoever waits for it may be cancelled; between what the sink takes and the state that tells of it nobody is.
        self._committing = asyncio.ensure_future(self._committed(batch, receipts))
        await asyncio.shield(self._committing)

    async def _committed(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        async with self._ending, self._saving:
            self._check_at_hand(batch)
            await self._commit(batch.extent, receipts)
        self._turn()

    async def _commit(self, extent: Extent, receipts: Sequence[Receipt]) -> None:
        written_at = self._clock.monotonic()
        aside = [row for receipt in receipts for row in receipt.aside]
        quarantine(self._data_dir.undecodable, lambda table: extent.of(table)[1], aside)
        sink_state = await self._in_sink(self._sink.commit, extent.to_ts, receipts)
        self.totals.count(receipts)
        self.progress = moved(self.progress, extent)
        self.sink_trouble, self._attempts = None, 0
        rows = sum(receipt.rows for receipt in receipts)
        self._save(rows=self._state.rows + rows, sink_state=sink_state)
        durable_at = self._clock.monotonic()
        worked = sum(receipt.seconds for receipt in receipts)
        # What Spark takes for itself is no reason for smaller batches: those would only pay it more often.
        seconds = min(worked, written_at - self._batch_planned) + durable_at - written_at
        self._batch_limit = next_limit(self._admission.bounds, self._batch_limit, self._batch_taken, seconds)
        first_ts = min((receipt.first_ts for receipt in receipts if receipt.first_ts), default=None)
        if first_ts is not None:
            self.latencies.append(lag_seconds(Ts(first_ts), self._clock.now()))
        self._trace(extent.to_ts, written_at, durable_at, worked)

    def _trace(self, to_ts: Ts, written_at: float, durable_at: float, pipeline_seconds: float) -> None:
        ready_at = self._batch_started if self._batch_ready is None else self._batch_ready
        times = (ready_at, self._batch_started, self._batch_planned, written_at, durable_at)
        self.traces.append(BatchTrace(to_ts, *times, pipeline_seconds))
        self._batch_ready = None

    async def stop(self) -> None:
        """Begin no further batch. The one at hand may still be committed."""
        self.progress = replace(self.progress, is_stopping=True)
        self._changed.set()

    async def available_now(self) -> Ts:
        """From now on go no further than this moment of the upstream (Spark's AvailableNow)."""
        now_ts, target = await self._upstream_now(), self.progress.target_ts
        end = now_ts if target is None else Ts(min(now_ts, target))
        self.progress = replace(self.progress, target_ts=end)
        self._changed.set()
        return end

    # How it moves.

    def _turn(self) -> None:
        """Do whatever needs no batch: move over empty stretches, run DDLs, notice the frontier."""
        while True:
            self._look()
            if can_run_ddl(self.progress):
                self.progress = replace(self.progress, is_ddl_running=True)
                self._keep_busy(self._run_ddl)
            match decide(self.progress, self._has_changes):
                case Advance(extent):
                    self.progress = moved(self.progress, extent)
                    self._save_idle()
                case Sync(_):
                    self.progress = replace(self.progress, is_syncing=True)
                    self._keep_busy(self._sync)
                    break
                case Offer(_):
                    if self._batch_ready is None:
                        self._batch_ready = self._clock.monotonic()
                    break
                case _:
                    break
        is_busy = self.progress.is_ddl_running or self.progress.is_syncing
        self._intake.allow(self.progress.reach, is_busy=is_busy)
        self._changed.set()

    def _look(self) -> None:
        frontier_ts, waiting = self._intake.frontier_ts, self._intake.waiting(self.progress.at)
        self.progress = replace(self.progress, frontier_ts=frontier_ts, waiting=waiting)

    def _has_changes(self, extent: Extent) -> bool:
        return self._intake.has_changes(extent)

    def _begin(self, extent: Extent) -> Batch:
        self._batch_started = self._clock.monotonic()
        self._batches += 1
        self.progress = began(self.progress, extent)
        return Batch(self._batches, self.generation, extent)

    def _keep_busy(self, work: Work) -> None:
        self._busy = asyncio.create_task(self._beside(work))

    async def _sync(self) -> None:
        """Everything is at this very ts, and the sink is to hear of it."""
        async with self._saving:
            sink_state = await self._in_sink(self._sink.sync, self.progress.at.base_ts)
            self.progress = sync_done(self.progress, self._sink.next_barrier(self.progress.at.base_ts))
            self._save(sink_state=sink_state)
        self._turn()

    async def _run_ddl(self) -> None:
        for event in self._ddls[0].events:
            if not self._ddl_filter.keeps(event):
                log.info("leaving DDL out", ts=event.finished_ts, schema=event.schema, query=event.query)
                continue
            log.info("running DDL", ts=event.finished_ts, schema=event.schema, table=event.table, query=event.query)
            async with self._saving:
                sink_state = await self._in_sink(self._sink.ddl, self._as_it_goes_out(event))
                if sink_state is not None:
                    self._save(sink_state=sink_state)
            self.totals.ddls += 1
        self._ddls.popleft()
        self.progress = ddl_done(self.progress, self._barriers())
        self._save()
        self._turn()

    def _barriers(self) -> Barriers:
        return Barriers.of(Pending(change.finished_ts, change.touched) for change in self._ddls)

    def _as_it_goes_out(self, event: DdlEvent) -> DdlEvent:
        """With the columns that go out."""
        after, before = event.table_info, event.pre_table_info
        return replace(
            event,
            table_info=self._selector.table(after) if after is not None else None,
            pre_table_info=self._selector.table(before) if before is not None else None,
        )

    def _save(self, rows: int | None = None, sink_state: dict[str, object] | None = None) -> None:
        if self._unsaved is not None:
            raise self._unsaved
        state = replace(
            self._state,
            checkpoint_ts=self.progress.checkpoint_ts,
            base_ts=self.progress.at.base_ts,
            behind={str(table): ts for table, ts in self.progress.at.behind.items()},
            ddl_ts=self.progress.ddl_ts,
            rows=self._state.rows if rows is None else rows,
            table_versions={str(table): ts for table, ts in self._schema.versions(self._schema_ts).items()},
            sink_state=self._state.sink_state if sink_state is None else sink_state,
        )
        try:
            self._data_dir.save(state)
        except DataDirError as error:
            self._unsaved = error  # a later state would leave out what this one tells of the sink
            raise
        self._state = state
        self._idle_saved = self._clock.monotonic()
        if self._publishing is None and not self._is_closed:
            self._publishing = asyncio.create_task(self._beside(self._publish))
        self._intake.release(self.progress.at)
        self._schema.gc(self._schema_ts)

    @property
    def _schema_ts(self) -> Ts:
        """From where on the schema is needed: by rows that are still to come, and by DDLs."""
        return min(self.progress.ddl_ts, self.progress.at.lowest_ts)

    def _save_idle(self) -> None:
        if self.progress.is_finished or self._clock.monotonic() - self._idle_saved >= _IDLE_SAVE_SECONDS:
            self._save()

    async def _publish(self) -> None:
        """Tell readers of the checkpoint that was saved last; of those in between nobody needs to hear."""
        told = None
        while told != self._state.checkpoint_ts and self._unsaved is None:
            async with self._saving:
                told = self._state.checkpoint_ts
                if self._unsaved is None:
                    await self._in_sink(self._sink.publish, told)
        self._publishing = None

    async def close(self) -> None:
        """Write down how far it came and let go of the sink. Call when no batch is at hand any more."""
        self._is_closing = True
        committing = self._committing if self._committing is not None and not self._committing.done() else None
        if self._busy is not None and not self._busy.done():
            self._busy.cancel()
        elif (
            committing is None
            and self.progress.checkpoint_ts > self._state.checkpoint_ts
            and self.failure is None
            and not self._unsaved
        ):
            self._save()
        if self._publishing is not None:
            if self.sink_trouble is not None or committing is not None:
                self._publishing.cancel()
            with suppress(asyncio.CancelledError):
                await self._publishing
        self._is_closed = True
        await asyncio.to_thread(self._sink.close)  # beside a DDL that still runs there: it ends by this
        await asyncio.to_thread(self._sink_thread.shutdown)
        if committing is not None:
            await asyncio.gather(committing, return_exceptions=True)  # what the sink took is in the state by then

    async def _in_sink(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._sink_thread, work)

    async def _beside(self, work: Work) -> None:
        """What nobody waits for: its failure is kept for whoever looks after the changefeed."""
        try:
            await self._wait_out(work)
            self.sink_trouble = None
        except Exception as error:
            self.failure = error

    async def _wait_out(self, work: Callable[[], Awaitable[None]]) -> None:
        await wait_out(work, self.note_trouble, lambda: self._is_closing, self._clock)

    def note_trouble(self, error: SinkError) -> None:
        """The sink is away for a reason that passes. Nothing is taken in beyond the bounds meanwhile."""
        if self.sink_trouble is None:
            log.warning("the sink is away; waiting for it", reason=str(error))
        self.sink_trouble = str(error)

    # How it follows the schema.

    def _apply_jobs(self, resolved_ts: Ts) -> None:
        if resolved_ts <= self.progress.schema_ts:
            return
        rows = self._take_job_rows(resolved_ts)
        changes = self._schema.apply(rows)
        # Those up to there had run before the restart; what they say of the tables is needed all the same.
        self._ddls.extend(change for change in changes if change.finished_ts > self._state.ddl_ts)
        if len(rows):
            self.left_out.note(self._schema.tables())
        self.progress = learned(self.progress, resolved_ts, self._barriers())
        self._intake.follow(self.progress.at)

    def _take_job_rows(self, resolved_ts: Ts) -> pa.RecordBatch:
        """Job rows in [schema_ts, resolved_ts], in commit order. The store drops what it has seen before."""
        held = pa.Table.from_batches(self._job_rows, RAW_CHANGE_SCHEMA)
        commit_ts = held["commit_ts"]
        self._job_rows = held.filter(pc.greater(commit_ts, pa.scalar(resolved_ts, pa.uint64()))).to_batches()
        due = held.filter(pc.less_equal(commit_ts, pa.scalar(resolved_ts, pa.uint64())))
        due = due.sort_by([("commit_ts", "ascending"), ("start_ts", "ascending"), ("key", "ascending")])
        batches: list[pa.RecordBatch] = due.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], RAW_CHANGE_SCHEMA)
