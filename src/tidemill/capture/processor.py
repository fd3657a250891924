"""The processor: what a capture runs for one changefeed, over the tables that the owner has assigned to it.

    assigned tables ──► main lane ──────────────────────────────► sink
                          │  slow, or far behind    ▲ caught up
                          └──► a lane of their own ─┘

It accepts tables at any ts and in any order, gives them up between batches, and says where they are. Tables that move
together are in the main lane. Those that would hold it back are in lanes of their own until they have caught up; a lane
is to the owner what a processor is, so nothing else needs to know.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from tidemill.capture.lanes import LaneBuilder, RunningLane
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.lanes import Reading, may_join, slow_tables
from tidemill.log import get_logger
from tidemill.model.orders import Assignment, Handover
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

log = get_logger("processor")

_LOOK_SECONDS = 1.0
_JOIN_SECONDS = 5.0  # at most, for which the main lane waits for tables that are about to join it
_SMALL_SHARE = 0.25  # of memory and disk, for a lane beside the main one


class SpanProcessor:
    """Runs on the capture's loop. ``start`` it, ``close`` it in any case."""

    def __init__(self, name: str, lanes: LaneBuilder, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self._build = lanes
        self._clock = clock
        self._numbers = count()
        self._main: RunningLane | None = None
        self._others: dict[str, RunningLane] = {}
        self._moving = asyncio.Lock()  # tables between lanes, or to and from other processors
        self._looking: asyncio.Task[None] | None = None
        self._seen: dict[int, tuple[Ts, float]] = {}  # by reading of the main lane: where it is, and since when

    @property
    def main(self) -> RunningLane:
        assert self._main is not None, "it has not been started"
        return self._main

    @property
    def lanes(self) -> Iterator[RunningLane]:
        """The main one first."""
        if self._main is not None:
            yield self._main
        yield from list(self._others.values())

    @property
    def failure(self) -> BaseException | None:
        """What has ended one of its lanes, or the care for them; None: they go on."""
        if self._looking is not None and self._looking.done() and not self._looking.cancelled():
            return self._looking.exception()
        return next((lane.failure for lane in self.lanes if lane.failure is not None), None)

    async def start(
        self, assignment: Assignment, at: Checkpoints, *, written_ts: Ts | None, replaces: str | None = None
    ) -> None:
        """Begin with these tables, where they are ``at``; ``replaces``: a processor that had them and is gone. Changes
        up to ``written_ts`` may have been written by somebody who did not come to commit them."""
        self._main = await self._build.open(self._lane_name(), assignment, at, written_ts=written_ts, replaces=replaces)
        self._main.start()
        self._looking = asyncio.create_task(self._look_after_lanes())

    async def take_over(self, lost: Mapping[str, tuple[Assignment, Checkpoints]], *, written_ts: Ts) -> None:
        """Begin with what lanes had that are gone and fenced, as ``ChangefeedOwner.dismiss`` says."""
        first, *others = sorted(lost, key=lambda name: not lost[name][0].is_rest)
        assignment, at = lost[first]
        await self.start(assignment, at, written_ts=written_ts, replaces=first)
        async with self._moving:
            for name in others:
                assignment, at = lost[name]
                await self._open_beside(assignment, at, at.own, written_ts, replaces=name)

    def _lane_name(self) -> str:
        return f"{self.name}/{next(self._numbers)}"

    async def accept(self, handover: Handover) -> None:
        """Take tables over where they are. They are this one's, durably, when it returns."""
        async with self._moving:
            await self._accept(handover)

    async def _accept(self, handover: Handover) -> None:
        main = self.main.lane
        if all(ts >= main.taken_ts for ts in handover.at.values()) and await main.accept(handover):
            return
        base_ts = min(handover.at.values(), default=main.progress.at.base_ts)
        at = Checkpoints(base_ts).having(handover.at)
        await self._open_beside(Assignment(handover.tables), at, handover.at, handover.written_ts)

    async def _open_beside(
        self,
        assignment: Assignment,
        at: Checkpoints,
        ids: Iterable[int],
        written_ts: Ts | None,
        replaces: str | None = None,
    ) -> None:
        """A lane for tables that cannot be in the main one yet; ``ids`` are those that were handed over."""
        name = self._lane_name()
        running = await self._build.open(
            name, assignment, at, written_ts=written_ts, replaces=replaces, share=_SMALL_SHARE
        )
        self._others[name] = running
        running.start()
        await running.lane.announce(ids)
        log.info("tables have a lane of their own until they have caught up", lane=name, tables=len(assignment.tables))

    async def give_up(self, tables: frozenset[int]) -> list[Handover]:
        """Let go of logical tables, between batches. Where they are is durable when this returns."""
        async with self._moving:
            handovers = []
            for running in self.lanes:
                mine = frozenset(t for t in tables if t in running.lane.assignment)
                if mine:
                    handovers.append(await running.lane.give_up(mine))
            await self._close_empty()
            return handovers

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*(running.close() for running in self.lanes))

    # Lanes.

    async def _look_after_lanes(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            async with self._moving:
                await self._part_slow()
                for running in list(self._others.values()):
                    await self._join_if_close(running)

    async def _part_slow(self) -> None:
        """Give a lane to tables that hold all others back."""
        if self.main.sorter.stats().is_full:  # it is us who are slow
            self._seen.clear()
            return
        slow = slow_tables(self._readings())
        if slow:
            log.warning("tables are far behind the others; they go on by themselves", tables=sorted(slow))
            handover = await self.main.lane.give_up(slow)
            base_ts = min(handover.at.values(), default=self.main.lane.progress.at.base_ts)
            at = Checkpoints(base_ts).having(handover.at)
            await self._open_beside(Assignment(slow), at, handover.at, handover.written_ts)

    def _readings(self) -> list[Reading]:
        """Of the main lane. Asked regularly: so it is known since when one stands still."""
        now, before = self._clock.monotonic(), self._seen
        found, self._seen = [], {}
        for number, (resolved_ts, tables) in self.main.lane.readings().items():
            seen_ts, since = before.get(number, (None, now))
            self._seen[number] = (resolved_ts, since if seen_ts == resolved_ts else now)
            found.append(Reading(resolved_ts, tables, now - self._seen[number][1]))
        return found

    async def _join_if_close(self, running: RunningLane) -> None:
        """Let the main lane wait for a lane that has nearly caught up, then let its tables join."""
        main, lane = self.main.lane, running.lane
        if not may_join(lane.progress.at.lowest_ts, lane.progress.frontier_ts, main.progress.at.base_ts):
            return
        if any(ts < main.taken_ts for ts in lane.progress.barriers.by_id.values()):
            return  # a DDL has to run first
        main.hold(main.taken_ts)
        try:
            deadline = self._clock.monotonic() + _JOIN_SECONDS
            while lane.progress.at.lowest_ts < main.taken_ts:
                if self._clock.monotonic() > deadline:
                    return  # again later
                await lane.moved()
            await self._accept(await lane.give_up(lane.assignment.tables))
            log.info("tables have caught up and joined the others", lane=lane.name)
        finally:
            main.hold(None)
        await self._close_empty()

    async def _close_empty(self) -> None:
        for name, running in list(self._others.items()):
            if not running.lane.assignment.tables:
                await running.close(is_last=True)
                del self._others[name]
