"""Where all tables of a changefeed meet at one ts: for a sync point, or for another number of partitions.

    repartition(n) ─► topics grown ─► a cut, which nobody has passed ─► all tables are there
                   ─► the epoch is saved ─► every writer is in it ─► readers are told ─► tables go on

The cut lies where the table is that is furthest ahead, and not below what anybody may have written who is gone. Who has
not heard of it may pass it with the batch at hand; then it lies there, and nobody who has heard of it has moved.
A crash finds the old epoch saved, and all begins anew, or the new one: then readers are told before anything is
written.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.capture.metadata import StateWriter
from tidemill.control.ownership import can_sync, sync_done
from tidemill.errors import StoppedError, UsageError
from tidemill.log import get_logger
from tidemill.model.orders import Obeyed, Report
from tidemill.model.ts import Ts
from tidemill.sinks import OwnerSink
from tidemill.sinks.port import PartitionedOwner

if TYPE_CHECKING:
    from tidemill.capture.owner import ChangefeedOwner

log = get_logger("owner")


class Meeting:
    """Belongs to the owner, and runs on its loop."""

    def __init__(self, owner: "ChangefeedOwner", sink: OwnerSink, states: StateWriter) -> None:
        self._owner, self._sink, self._states = owner, sink, states
        self.epoch = sink.epoch if isinstance(sink, PartitionedOwner) else 0  # that was saved
        self.is_cutting = False  # for another number of partitions, rather than for a sync point
        self._done: asyncio.Future[None] | None = None  # when that has changed
        self._acknowledged = asyncio.Event()

    @property
    def partitions(self) -> int | None:
        """Over which rows are spread now; None: it differs by topic, or there are none."""
        return self._sink.partitions if isinstance(self._sink, PartitionedOwner) else None

    async def repartition(self, partitions: int) -> None:
        """Spread rows over so many partitions, from some ts on. Returns when this is so: saved, and told to readers.
        Raises UsageError or SinkError where it cannot be; then nothing has changed, and all else goes on."""
        sink, owner = self._sink, self._owner
        if not isinstance(sink, PartitionedOwner):
            raise UsageError("this changefeed's sink has no partitions whose number could change.")
        if self.is_cutting:
            raise UsageError("the number of partitions is being changed already. Wait until that is done.")
        if sink.partitions == partitions:
            return
        await owner.beside.in_sink(sink.prepare, partitions)
        self.is_cutting, self._done = True, asyncio.get_running_loop().create_future()
        self._cut(Ts(0))
        await asyncio.shield(self._done)

    def _cut(self, above_ts: Ts) -> None:
        """All go on up to there, and no further."""
        owner = self._owner
        owned, members = owner.owned, list(owner.members)
        reached = [at.highest_ts for at in owned.at.values()] + list(owned.in_transit.values())
        written = [member.obeyed.written_ts or Ts(0) for member in members]
        cut_ts = Ts(max(above_ts, *reached, *written))
        if cut_ts != owned.sync_ts:
            owner.owned = replace(owned, sync_ts=cut_ts)
            log.info("all tables are to meet", ts=cut_ts)
            owner.tell()

    def expect(self, report: Report) -> None:
        """Before a report is heard: it may be of somebody who passed the cut before hearing of it."""
        reached_ts = Ts(max(report.at.highest_ts, report.obeyed.written_ts or 0))
        sync_ts = self._owner.owned.sync_ts
        if self.is_cutting and not self._owner.owned.is_syncing and sync_ts is not None and reached_ts > sync_ts:
            member = self._owner.members.by_name.get(report.processor)
            if member is not None and not member.is_gone:
                self._cut(reached_ts)

    def heard(self) -> None:
        self._acknowledged.set()

    @property
    def is_complete(self) -> bool:
        """All tables are there, and none is about to pass."""
        owned = self._owner.owned
        if not can_sync(owned):
            return False
        if not self.is_cutting:
            return True
        sync_ts = owned.sync_ts or Ts(0)
        return not owned.in_transit and all(
            each.sync_ts == sync_ts and (each.written_ts or 0) <= sync_ts for each in self._obeyed()
        )

    def _obeyed(self) -> list[Obeyed]:
        """Of all that have tables; of one that is gone nothing more comes, until another has taken its place."""
        return [member.obeyed for member in self._owner.members if not member.is_leaving]

    async def hold(self) -> None:
        """Everything is at this very ts, and the sink is to hear of it."""
        owner = self._owner
        async with owner.taking:
            await owner.save_what_came()
            at_ts = owner.owned.base_ts
            sink_state = await owner.beside.in_sink(self._sink.sync, at_ts)
            if not self.is_cutting:
                owner.owned = sync_done(owner.owned, self._sink.next_barrier(at_ts))
            await owner.save(sink_state)
        if self.is_cutting:
            await self._begin_epoch(at_ts)
            owner.owned = sync_done(owner.owned, None)
            self.is_cutting = False
        owner.tell()
        owner.publishing.begin()
        owner.turn()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def _begin_epoch(self, at_ts: Ts) -> None:
        """It has been saved. Every writer takes it on, and readers are told, before anything is written in it."""
        owner, sink = self._owner, self._sink
        assert isinstance(sink, PartitionedOwner)
        self.epoch = sink.epoch
        owner.tell()
        while not all(each.epoch == self.epoch for each in self._obeyed()):
            self._acknowledged.clear()
            await self._acknowledged.wait()
        async with owner.taking:
            await owner.beside.in_sink(sink.publish, self._states.checkpoint_ts)
            await owner.save(await owner.beside.in_sink(sink.sync, at_ts))  # that readers were told
        log.info("partitions changed", partitions=sink.partitions, epoch=self.epoch)

    def close(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(StoppedError("stopped before the number of partitions was changed."))
