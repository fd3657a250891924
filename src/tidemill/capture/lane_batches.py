"""The batches of a lane, one at a time: what each takes, and that it counts once or comes again.

offer ─► batch ─► units ─► (Spark) ─► commit: durable, the checkpoints move
                             └──────► begin_again, shorten: taken back, a new generation begins
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.capture.batches import Batch
from tidemill.control.pace import Amount
from tidemill.control.progress import Finish, Offer, Wait, began, decide, moved
from tidemill.errors import InvariantError, SinkError, SupersededError
from tidemill.flow.pipeline import Part, Unit
from tidemill.model.progress import Extent
from tidemill.model.ts import Ts, show
from tidemill.sinks import Receipt

if TYPE_CHECKING:
    from tidemill.capture.lane import Lane


class LaneBatches:
    """What the driver asks and tells. Runs on the lane's loop."""

    def __init__(self, lane: "Lane") -> None:
        self._lane = lane
        self._batches = 0  # that were offered
        self._generation = 0  # ends when a batch is lost or cut short; who asks or reports names theirs
        self.begun_ts = Ts(0)  # up to here batches have been begun
        self._ended = asyncio.Event()
        self._committing: asyncio.Future[None] | None = None
        self._ending = asyncio.Lock()  # of a batch: by its commit, or because it is taken back

    @property
    def seconds(self) -> float | None:
        """How long the batch at hand has been under way; None: there is none."""
        is_under_way = self._lane.progress.in_flight is not None
        return self._lane.clock.monotonic() - self._lane.pacer.started_at if is_under_way else None

    @asynccontextmanager
    async def none_at_hand(self) -> AsyncIterator[None]:
        """Wait until there is no batch. In here there is none, as long as the lane is paused."""
        while True:
            while self._lane.progress.in_flight is not None:
                await self._ended.wait()
            async with self._ending:
                if self._lane.progress.in_flight is None:  # one may just have been cut short, and go on
                    yield
                    return

    async def finish_commit(self) -> None:
        """Wait for what is being committed: what the sink took is saved by then."""
        if self._committing is not None and not self._committing.done():
            await asyncio.gather(self._committing, return_exceptions=True)

    async def offer(self, wait_seconds: float) -> Batch | None:
        """The next batch, once there are changes to take; None after ``wait_seconds``, or at the end. Changes above
        the checkpoints only; what lies below is durable."""
        deadline = self._lane.clock.monotonic() + wait_seconds
        while True:
            self._lane.changed.clear()
            if not self._lane.epoch.is_current and self._lane.progress.in_flight is None:
                await self._take_on_epoch()
                continue
            now = self._lane.clock.monotonic()
            due = self._lane.pacer.started_at + self._lane.admission.flush_interval_seconds
            match decide(self._lane.progress, self._lane.intake.has_changes):
                case Offer(limit):
                    extent = self._next(limit)
                    is_cut = extent != self._lane.progress.extent(limit)
                    if now >= due or is_cut or self._lane.progress.is_barred:  # it would not grow by waiting
                        return self._begin(extent)
                case Finish():
                    await self._lane.clock.sleep(min(wait_seconds, 0.05))
                    return None
                case Wait():
                    due = deadline
                case _:
                    self._lane.turn()
                    continue
            if now >= deadline:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(deadline, due) - now)):  # wait_for may swallow a cancellation
                    await self._lane.changed.wait()

    async def _take_on_epoch(self) -> None:
        """Where tables come or go meanwhile, behind that: both recover the writer."""
        async with self._ending:
            if self._lane.progress.in_flight is None:
                await self._lane.epoch.take_on()

    def _next(self, limit_ts: Ts) -> Extent:
        """What the next batch takes: about as much as it may, and as much again of tables that are catching up."""
        most = self._lane.pacer.limit
        whole = self._lane.progress.extent(limit_ts)
        catch_up_ts = self._lane.intake.catch_up_ts(whole, most.rows, most.bytes)
        to_ts = self._lane.intake.next_to(whole, most.rows, most.bytes)
        if self._lane.writing.ends_never_earlier:
            to_ts = max(to_ts, min(self.begun_ts, whole.to_ts))
        return self._lane.progress.extent(to_ts, catch_up_ts)

    def _begin(self, extent: Extent) -> Batch:
        self._lane.pacer.started()
        self._batches += 1
        self.begun_ts = max(self.begun_ts, extent.highest_ts)
        self._lane.progress = began(self._lane.progress, extent)
        self._ended.clear()
        return Batch(self._batches, self._generation, extent)

    async def units(self, batch: Batch) -> list[Unit]:
        """What a batch that was offered consists of. Asked twice, it answers the same."""
        self._check_at_hand(batch)
        units = await self._units(batch.extent)
        self._check_at_hand(batch)  # they have targets of the sink's generation, which has ended as well
        return units

    async def _units(self, extent: Extent) -> list[Unit]:
        parts: list[Part] = []
        for physical_id, slices in self._lane.intake.plan(extent):
            to_ts = extent.of(physical_id)[1]
            table = self._lane.feed.store.table(physical_id, to_ts)
            if table is None:
                raise InvariantError(f"changes of table id {physical_id} up to {to_ts}, but no schema for them")
            if self._lane.tables.has(table):
                parts.append((table, physical_id, slices))
        units = await self._lane.writing.units(parts, extent)
        taken = [slices for _, _, slices in parts]
        self._lane.pacer.planned(Amount(sum(each.rows for each in taken), sum(each.bytes for each in taken)))
        return units

    async def shorten(self, batch: Batch, to_ts: Ts) -> tuple[Batch | None, list[Unit]]:
        """The batch at hand cannot be taken beyond ``to_ts``. Begins a generation, and gives a batch and its units up
        to there, to be committed in place of the other; none if nothing of it is left. What was written of it
        downstream is gone when this returns."""
        async with self._ending:
            self._check_current(batch.generation)
            self._end_generation()
            await self._take_back()
            self._end_batch()
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
                await self._lane.writing.pause(trouble)
            await self._lane.writing.wait_out(self._take_back)
            self._end_batch()
        self._lane.turn()

    async def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """The batch is durable downstream: the checkpoints move to its end. Raises SupersededError, and changes
        nothing, where it has been taken back meanwhile."""
        self._check_current(batch.generation)  # at once: it may be a while until what has been taken back is gone
        # Whoever waits for it may be cancelled; between what the sink takes and the state that tells of it nobody is.
        self._committing = asyncio.ensure_future(self._committed(batch, receipts))
        await asyncio.shield(self._committing)

    async def _committed(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        written_at = self._lane.clock.monotonic()
        async with self._ending:
            self._check_at_hand(batch)
            committed = await self._lane.writing.commit(batch.extent, receipts)
            self._lane.totals.count(receipts)  # before anybody can see the checkpoint that covers them
            self._lane.progress = replace(moved(self._lane.progress, batch.extent), in_flight=batch.extent)
            await self._lane.durable(committed=committed)
            self._lane.pacer.durable(batch.to_ts, receipts, written_at)
            self._end_batch()
        self._lane.turn()

    def _end_batch(self) -> None:
        self._lane.progress = replace(self._lane.progress, in_flight=None)
        self._ended.set()

    def _end_generation(self) -> None:
        """Before anything is taken back. Until it has been, the batch stands in the way of all others."""
        self._generation += 1
        self._lane.changed.set()  # who waits for an offer is to hear of it

    async def _take_back(self) -> None:
        """What was written of batches that were not committed."""
        lane, ids = self._lane, self._lane.intake.physical_ids
        at, ddl_ts = lane.progress.at, lane.progress.ddl_ts
        tables = None if lane.assignment.is_everything else lane.tables.infos(ids, at, ddl_ts)
        state = await lane.link.sink_state()
        await lane.writing.recover(at, ids, tables, state, self.begun_ts, lane.link.orders.term)

    def _check_current(self, generation: int) -> None:
        if generation != self._generation:
            raise SupersededError(
                f"a batch of generation {generation} is too late: it was taken back since, in generation "
                f"{self._generation}, and comes again. Nothing is lost."
            )

    def _check_at_hand(self, batch: Batch) -> None:
        self._check_current(batch.generation)
        if batch.extent is not self._lane.progress.in_flight or batch.number != self._batches:
            raise InvariantError(f"a batch up to {show(batch.to_ts)} is not the one at hand. Report it.")
