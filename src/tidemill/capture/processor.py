"""The processor: what a capture runs for one changefeed, over the tables that the owner has assigned to it.

    assigned tables ──► main lane ──────────────────────────────► sink
                          │  slow, or far behind    ▲ caught up
                          └──► a lane of their own ─┘

It accepts tables at any ts and in any order, gives them up between batches, and says where they are. Those that are
about to come can be *prepared*: read and sorted while another processor still writes them. Tables that move together
are in the main lane. Those that would hold it back are in lanes of their own until they have caught up; a lane
is to the owner what a processor is, so nothing else needs to know.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from tidemill.capture.lane import Lane
from tidemill.capture.lanes import LaneBuilder, RunningLane
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.lanes import Reading, may_join, slow_tables
from tidemill.log import get_logger
from tidemill.model.orders import Assignment, Handover
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import Takeover
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
        self.preparing: list[RunningLane] = []  # of tables that are still somebody else's
        self.between: frozenset[int] = frozenset()  # tables on their way from one lane to another
        self._moving = asyncio.Lock()  # tables between lanes, or to and from other processors
        self._looking: asyncio.Task[None] | None = None
        self._watch = _Watch(clock)

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
        lanes = (*self.lanes, *self.preparing)
        return next((lane.failure for lane in lanes if lane.failure is not None), None)

    async def start(
        self, assignment: Assignment, at: Checkpoints, *, written_ts: Ts | None, replaces: str | None = None
    ) -> None:
        """Begin with these tables, where they are ``at``; ``replaces``: a processor that had them and is gone. Changes
        up to ``written_ts`` may have been written by somebody who did not come to commit them."""
        self._main = await self._build.open(self._lane_name(), assignment, at, written_ts=written_ts, replaces=replaces)
        self._main.start()
        self._looking = self._looking or asyncio.create_task(self._look_after_lanes())

    async def take_over(self, lost: Mapping[str, tuple[Assignment, Checkpoints]], *, written_ts: Ts) -> None:
        """Begin with what lanes had that are gone and fenced, as ``ChangefeedOwner.dismiss`` says. Nothing, where all
        tables had just been given up: who is to have those brings them with ``accept``."""
        if not lost:
            return
        first, *others = sorted(lost, key=lambda name: not lost[name][0].is_rest)
        assignment, at = lost[first]
        await self.start(assignment, at, written_ts=written_ts, replaces=first)
        async with self._moving:
            for name in others:
                assignment, at = lost[name]
                await self._open_beside(assignment, at, at.own, written_ts, replaces=name)

    def _lane_name(self) -> str:
        return f"{self.name}/{next(self._numbers)}"

    async def prepare(self, tables: frozenset[int], ts: Ts) -> Ts:
        """Read and sort these from ``ts`` on, or from where it is returned: a schema that was read since then begins
        where the tables have been saved to be. Nothing of them is written before they are handed over."""
        async with self._moving:
            since_ts = max(ts, self._build.feed.store.floor_ts)
            running = await self._build.prepare(
                self._lane_name(), Assignment(tables), Checkpoints(since_ts), share=_SMALL_SHARE
            )  # fmt: skip
            self.preparing.append(running)
            running.pull()
            return since_ts

    def prepared(self) -> dict[int, Ts]:
        """How far the tables are resolved that are being prepared."""
        return {i: each.lane.progress.frontier_ts for each in self.preparing for i in each.lane.assignment.tables}

    async def unprepare(self, tables: frozenset[int]) -> None:
        """These will not come after all, nor those that were prepared together with them."""
        async with self._moving:
            await self._drop_prepared(tables)

    async def _drop_prepared(self, tables: frozenset[int]) -> None:
        for running in [each for each in self.preparing if each.lane.assignment.tables & tables]:
            self.preparing.remove(running)
            await running.close()

    async def accept(self, handover: Handover) -> None:
        """Take tables over where they are. They are this one's, durably, when it returns."""
        async with self._moving:
            for running in list(self.preparing):
                if running.lane.assignment.tables == handover.tables:
                    await self._commit(running, handover)
                    return
            await self._drop_prepared(handover.tables)
            await self._accept(handover)

    async def _commit(self, running: RunningLane, handover: Handover) -> None:
        """Let tables that were prepared be written, in a lane of their own until they have caught up. Until then it
        needs the schema from where it was prepared, and counts as being so."""
        at = _checkpoints(handover, running.lane.progress.at.base_ts)
        try:
            await self._build.commit(running, Assignment(handover.tables), at, written_ts=handover.written_ts)
        except BaseException:
            self.preparing.remove(running)
            await running.close()
            raise
        self.preparing.remove(running)
        await self._begin(running, handover.at)

    async def _begin(self, running: RunningLane, ids: Iterable[int]) -> None:
        """``ids``: those that were handed over."""
        if self._main is None:
            self._main = running
        else:
            self._others[running.lane.name] = running
        running.start()
        self._looking = self._looking or asyncio.create_task(self._look_after_lanes())
        await running.lane.announce(ids)

    async def _accept(self, handover: Handover) -> None:
        main = self._main.lane if self._main is not None else None
        if main is not None and all(ts >= main.taken_ts for ts in handover.at.values()) and await main.accept(handover):
            return
        base_ts = main.progress.at.base_ts if main is not None else self._build.link.orders.ddl_ts
        at = _checkpoints(handover, base_ts)
        await self._open_beside(Assignment(handover.tables), at, handover.at, handover.written_ts)

    async def take_rest(self, takeover: Takeover) -> None:
        """Continue what a processor had that is gone: every table that no other one has."""
        async with self._moving:
            running = await self._build.open(
                self._lane_name(), takeover.assignment, takeover.at,
                written_ts=takeover.written_ts, replaces=takeover.replaces,
            )  # fmt: skip
            if self._main is not None:
                self._others[self._main.lane.name] = self._main
            self._main = running
            running.start()
            self._looking = self._looking or asyncio.create_task(self._look_after_lanes())
            await running.lane.announce(())

    async def release_rest(self) -> tuple[str, Ts | None]:
        """Stop writing what it has of the rest, between batches. The owner has to dismiss the lane of that name; up to
        the ts its changes may have been written, and not committed."""
        async with self._moving:
            running = next(each for each in self.lanes if each.lane.assignment.is_rest)
            written_ts = await running.retire()
            self._remove(running)
            return running.lane.name, written_ts

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
        await self._begin(running, ids)
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
        await asyncio.gather(*(running.close() for running in (*self.lanes, *self.preparing)))

    # Lanes.

    async def _look_after_lanes(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            async with self._moving:
                if self._main is None:
                    continue
                await self._part_slow()
                for running in list(self._others.values()):
                    await self._join_if_close(running)

    async def _part_slow(self) -> None:
        """Give a lane to tables that hold all others back."""
        if self.main.sorter.stats().is_full:  # it is us who are slow
            self._watch.forget()
            return
        slow = slow_tables(self._watch.look(self.main.lane))
        if slow:
            log.warning("tables are far behind the others; they go on by themselves", tables=sorted(slow))
            self.between = slow  # where that fails, they stay it: nobody knows who has them
            handover = await self.main.lane.give_up(slow)
            at = _checkpoints(handover, self.main.lane.progress.at.base_ts)
            await self._open_beside(Assignment(slow), at, handover.at, handover.written_ts)
            self.between = frozenset()

    async def _join_if_close(self, running: RunningLane) -> None:
        """Let the main lane wait for a lane that has nearly caught up, then let its tables join."""
        main, lane = self.main.lane, running.lane
        if lane.assignment.is_rest or not lane.assignment.tables:
            return
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
            self.between = lane.assignment.tables
            await self._accept(await lane.give_up(self.between))
            self.between = frozenset()
            log.info("tables have caught up and joined the others", lane=lane.name)
        finally:
            main.hold(None)
        await self._close_empty()

    async def _close_empty(self) -> None:
        for running in [each for each in self.lanes if each.lane.assignment == Assignment()]:
            self._remove(running)
            await running.close(is_last=True)

    def _remove(self, running: RunningLane) -> None:
        """The first of the others becomes the main one in its place."""
        if running is self._main:
            name = next(iter(self._others), None)
            self._main = self._others.pop(name) if name is not None else None
            self._watch.forget()
        else:
            del self._others[running.lane.name]


class _Watch:
    """Since when what the main lane reads together stands still. To be asked regularly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[Ts, float]] = {}  # by reading: where it is, and since when

    def forget(self) -> None:
        self._seen.clear()

    def look(self, lane: Lane) -> list[Reading]:
        now, before = self._clock.monotonic(), self._seen
        found, self._seen = [], {}
        for number, (resolved_ts, tables) in lane.readings().items():
            seen_ts, since = before.get(number, (None, now))
            self._seen[number] = (resolved_ts, since if seen_ts == resolved_ts else now)
            found.append(Reading(resolved_ts, tables, now - self._seen[number][1]))
        return found


def _checkpoints(handover: Handover, base_ts: Ts) -> Checkpoints:
    """Of the tables that are handed over; ``base_ts`` where none of them has rows any more."""
    return Checkpoints(min(handover.at.values(), default=base_ts)).having(handover.at)
