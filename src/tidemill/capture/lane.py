"""A lane: some tables of a changefeed that move together, from the upstream's regions to what is durable downstream.

    puller ──────────► intake, sorter (segments) ──┐
    schema feed ─────► barriers ───────────────────┼─► batches, which the driver takes to Spark and back
    owner ── orders ─► where to stop ──────────────┘

Tables come and go between batches: ``give_up`` reports where each is, and ``accept`` continues there. A lane runs no
DDL: its tables stop before one, the owner hears that they are there, runs it, and says so in its orders.

Everything here runs on one asyncio loop, so its state needs no locks; so does the ``driver`` that takes batches from
here to Spark and back. What to do next is decided by ``control.progress``; this module does it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidemill.capture.batches import Admission, Pacer, Totals
from tidemill.capture.lane_batches import LaneBatches
from tidemill.capture.lane_tables import LaneTables
from tidemill.capture.link import OwnerLink
from tidemill.capture.reports import Reports
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.capture.sink_epoch import SinkEpoch
from tidemill.capture.writing import Writing
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.barriers import BarrierQueue, Barriers, Pending
from tidemill.control.progress import Advance, Offer, Progress, decide, moved
from tidemill.flow.filter import TableFilter
from tidemill.flow.puller import Puller
from tidemill.flow.schema import SchemaChange
from tidemill.flow.sorter import Sorter
from tidemill.model.orders import Assignment, Handover, Orders
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts
from tidemill.source.intake import FEW_READINGS, Intake
from tidemill.source.port import TABLES, Source

_LOOK_SECONDS = 0.5


class Lane:
    def __init__(
        self,
        name: str,
        feed: SchemaFeed,
        writing: Writing,
        link: OwnerLink,
        tables: TableFilter,
        assignment: Assignment,
        at: Checkpoints,
        *,
        totals: Totals | None = None,
        admission: Admission | None = None,
        keeps_partitions: bool = False,
        source: Source = TABLES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Of the tables of ``assignment``, from where they are ``at``. It sleeps until it is woken: it reads what is
        attached to it, takes no batch and reports nothing."""
        self.name = name
        self.tables = LaneTables(feed.store, tables, assignment)
        self.writing = writing
        self.feed = feed
        self.link = link
        self.admission = admission or Admission()
        self._keeps_partitions = keeps_partitions
        self._source = source
        self.clock = clock
        self.intake: Intake  # once it is attached
        self.changed = asyncio.Event()
        self.batches = LaneBatches(self)
        self._has_moved = asyncio.Event()
        self._moving = asyncio.Lock()  # of tables that come or go
        self._is_closed = False
        self.is_awake = False
        self._written_ts = Ts(0)
        self.epoch = SinkEpoch(self)
        self._reports = Reports(name, link)
        self._durable: Checkpoints | None = None  # what is not yet let go of
        self._queue = BarrierQueue()
        self.pacer = Pacer(self.admission.bounds, clock)
        self.totals = totals or Totals()
        # Which DDLs have run is known when it is woken.
        self.progress = Progress(at, Ts(0), frontier_ts=at.lowest_ts, schema_ts=feed.resolved_ts, is_paused=True)
        self._queue.extend(_pending(feed.changes, Ts(0)))

    # What the puller, the schema feed and the owner tell it.

    def attach(
        self, puller: Puller, sorter: Sorter, open_early: Callable[[], Sorter], *, few_readings: int = FEW_READINGS
    ) -> None:
        """Subscribe to every table that it has. Called once, before all else."""
        self.intake = Intake(
            self.feed.store, puller, sorter, open_early, self.tables.has, few_readings=few_readings,
            replays=not self._keeps_partitions, span_of=self._source.span_of,
        )  # fmt: skip
        self._rearrange(self.progress.at)
        self.feed.listen(self.learn)
        self.turn()

    def wake(self, assignment: Assignment, at: Checkpoints, orders: Orders, written_ts: Ts | None) -> None:
        """From here on it has these tables, where they are ``at``; ``orders`` are the owner's newest. Changes up to
        ``written_ts`` may have been written by somebody who did not come to commit them."""
        self.is_awake = True
        self._written_ts = written_ts or Ts(0)
        self.tables.assignment = assignment
        self._rearrange(at)
        self.obey(orders)
        self._durable = at
        self._release()
        self.progress = replace(self.progress, is_paused=False)
        self.turn()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        await self.intake.receive(subscription, changes)

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        self.intake.advance(subscription, resolved_ts)
        self.turn()

    def learn(self, changes: Sequence[SchemaChange], resolved_ts: Ts) -> None:
        """The DDLs up to ``resolved_ts`` are known."""
        self._queue.extend(_pending(changes, self.progress.ddl_ts))
        self.progress = replace(self.progress, schema_ts=resolved_ts)
        self.intake.follow(self.progress.at)
        if changes:
            self.progress = replace(self.progress, barriers=self._barriers())
        self._release()
        self.turn()

    def obey(self, orders: Orders) -> None:
        """What the owner says from now on."""
        if self._queue.pop_until(orders.ddl_ts):
            self.progress = replace(self.progress, barriers=self._barriers())
        self.progress = replace(
            self.progress,
            ddl_ts=max(self.progress.ddl_ts, orders.ddl_ts),
            sync_ts=orders.sync_ts,
            target_ts=orders.target_ts,
            is_stopping=orders.is_stopping,
            together_ts=_furthest(self.progress.together_ts, orders.resolved_ts),
        )
        self.epoch.obey(orders)
        self._durable = self._reports.saved(orders.saved.get(self.name, 0)) or self._durable
        self._release()
        if orders.is_over:
            self._reports.give_up()
        if not self._is_closed:
            self.turn()

    def _release(self) -> None:
        """Let go of what is durable. Not after a restart before the tables are known again that most have passed: one
        that is behind may come with a DDL below, and is read from there."""
        durable = self._durable
        if durable is not None and durable.base_ts <= self.progress.schema_ts and not self._is_closed:
            self.intake.release(durable)
            self._durable = None

    def hold(self, ts: Ts | None) -> None:
        """Take nothing above ``ts`` until further notice; None: go on."""
        self.progress = replace(self.progress, hold_ts=ts)
        self.turn()

    # How tables come and go.

    async def announce(self, ids: Iterable[int]) -> None:
        """Tell the owner that its first tables have come, with the physical ``ids`` that were handed over: some may be
        at their end, and are not read. They have come, durably, when this returns."""
        await self.durable(came=frozenset(ids) | self.intake.physical_ids)

    async def give_up(self, tables: frozenset[int]) -> Handover:
        """Let go of logical tables, between two batches; where they are then is durable. They are another one's now."""
        async with self._moving, self.between_batches():
            at, ddl_ts = self.progress.at, self.progress.ddl_ts
            gone = self.tables.touching(tables, self.intake.physical_ids, at, ddl_ts)
            self.tables.assignment = self.assignment.minus(tables)
            self._rearrange(at)
            self._rearrange(at.without(gone.keys() - self.intake.physical_ids))
            await self.durable(gone=gone)
            written_ts = self.written_ts
        return Handover(tables, gone, written_ts)

    async def accept(self, handover: Handover) -> bool:
        """Take tables over, between two batches; False where one of them is below what was taken here meanwhile."""
        async with self._moving, self.between_batches():
            # One that it has already goes on as it is until a DDL makes it the other table's.
            has = self.tables.own(self.intake.physical_ids, self.progress.at, self.progress.ddl_ts)
            new = {i: ts for i, ts in handover.at.items() if i not in has}
            if any(ts < self.taken_ts for ts in new.values()):
                return False
            at, before = self.progress.at.having(new), self.assignment
            self.tables.assignment = before.plus(handover.tables)
            tables = self.tables.infos(new, at, self.progress.ddl_ts)
            self.tables.assignment = before
            state = await self.link.sink_state()

            async def recover() -> None:
                term = self.link.orders.term
                await self.writing.recover(at, new.keys(), tables, state, handover.written_ts, term)

            await self.writing.wait_out(recover)
            self._written_ts = max(self._written_ts, handover.written_ts or Ts(0))
            self.tables.assignment = before.plus(handover.tables)
            self._rearrange(at)
            await self.durable(came=frozenset(handover.at))
        return True

    async def moved(self) -> None:
        """Wait until it has got further, or some time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                self._has_moved.clear()
                await self._has_moved.wait()

    def readings(self) -> dict[int, tuple[Ts, frozenset[int]]]:
        """What is read together, by number: how far it is resolved, and the logical tables in it."""
        found = self.intake.readings().items()
        return {number: (resolved_ts, self.tables.names(ids)) for number, (resolved_ts, ids) in found}

    def own_checkpoints(self) -> dict[int, Ts]:
        """Of logical tables that are not where most are, the lowest."""
        found: dict[int, Ts] = {}
        for physical_id, ts in self.progress.at.own.items():
            for table in self.tables.names([physical_id]):
                found[table] = min(ts, found.get(table, ts))
        return found

    @property
    def taken_ts(self) -> Ts:
        """What lies up to here has been taken, or needed no taking."""
        return max(self.intake.taken_ts, self.progress.at.base_ts)

    @property
    def written_ts(self) -> Ts | None:
        """Up to here changes may have been written, and not committed; None: nobody has written any."""
        return max(self._written_ts, self.batches.begun_ts) or None

    @property
    def assignment(self) -> Assignment:
        return self.tables.assignment

    def _rearrange(self, at: Checkpoints) -> None:
        self.progress = replace(self.progress, at=at)
        self.intake.follow(at, is_reassigned=True)
        # The next report is not to promise what tables that have just come have not resolved.
        self.progress = replace(self.progress, frontier_ts=self.intake.frontier_ts, barriers=self._barriers())

    def _barriers(self) -> Barriers:
        """Of the DDLs that have not run: those for physical ids that it reads. Others are not its business."""
        known, read = self._queue.barriers, self.intake.physical_ids
        return Barriers(known.first, {i: ts for i, ts in known.by_id.items() if i in read})

    @asynccontextmanager
    async def between_batches(self) -> AsyncIterator[None]:
        """In here no batch is begun."""
        self.progress = replace(self.progress, is_paused=True)
        try:
            async with self.batches.none_at_hand():
                yield
        finally:
            self.progress = replace(self.progress, is_paused=False)
            if not self._is_closed:
                self.turn()

    # How it moves.

    def turn(self) -> None:
        """Do whatever needs no batch: move over empty stretches, notice the frontier, tell the owner."""
        while True:
            frontier_ts, waiting = self.intake.frontier_ts, self.intake.waiting(self.progress.at)
            self.progress = replace(self.progress, frontier_ts=frontier_ts, waiting=waiting)
            match decide(self.progress, self.intake.has_changes):
                case Advance(extent):
                    self.progress = moved(self.progress, extent)
                    continue
                case Offer(_):
                    self.pacer.ready()
            break
        if self.is_awake and self._reports.is_news(self.progress.at, self.epoch.obeyed):
            self._has_moved.set()
            self._report()
        # A DDL or a sync point that waits for the owner, or for other tables, ends without more input.
        self.intake.allow(self.progress.reach, is_busy=self.progress.waits_for_owner)
        self.changed.set()

    def _report(self, **what: Any) -> int:
        """Returns its number."""
        ids = frozenset() if self.assignment.is_rest else frozenset(self.intake.physical_ids)
        return self._reports.make(self.assignment, self.progress.at, ids, self.epoch.obeyed, **what)

    async def durable(self, **what: Any) -> None:
        """Report, and wait until it has been saved."""
        await self._reports.durable(self._report(**what))

    async def close(self, *, is_last: bool = False) -> None:
        """Let go of the sink. Call when no batch is begun any more. ``is_last``: it has no tables any more."""
        self._is_closed = True
        self.feed.leave(self.learn)
        await self.writing.close()  # beside what still runs there: it ends by this
        await self.batches.finish_commit()
        if is_last:
            await self.durable(is_last=True)


def _furthest(before: Ts | None, told: Ts | None) -> Ts | None:
    """A new owner may not have heard of all that the one before had."""
    return told if told is None or before is None else max(before, told)


def _pending(changes: Iterable[SchemaChange], ddl_ts: Ts) -> Iterator[Pending]:
    """Those that have not run; what the others say of the tables is known to the store."""
    return (Pending(change.finished_ts, change.touched) for change in changes if change.finished_ts > ddl_ts)
