"""What a capture does with tables of one changefeed when its agent is told to: prepare, write, give up.

    agent ── Prepare, Run, Stop, Release ──► TableExecutor ──► SpanProcessor
      ▲──────────────── Holdings ──────────────────┘

Each command takes its time, beside the others, but behind the earlier ones of the same tables; until it is done the
state of its tables says so. What fails ends the processor: ``failure``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from itertools import count
from typing import Any

from tidemill.capture.lanes import RunningLane
from tidemill.capture.processor import SpanProcessor
from tidemill.control.scheduler.agent import Command, Prepare, Release, Reset, Run, Stop
from tidemill.control.scheduler.holdings import HeldLane, Holdings, ending, held
from tidemill.errors import InvariantError
from tidemill.log import get_logger
from tidemill.model.orders import joined
from tidemill.model.schedule import REST, AddTable, TableId, TableState, TableStatus
from tidemill.model.ts import MAX_TS, Ts

log = get_logger("executor")

Open = Callable[[], Coroutine[Any, Any, SpanProcessor]]
Work = Callable[[], Coroutine[Any, Any, None]]


class TableExecutor:
    """Runs on the capture's loop. ``close`` it in any case."""

    def __init__(self, open_processor: Open) -> None:
        """``open_processor``: asked for when the first table comes. It may take its time."""
        self._open_processor = open_processor
        self._opening: asyncio.Task[SpanProcessor] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: dict[TableId, asyncio.Task[None]] = {}  # of the commands that are at work for a table
        self._under_way: dict[TableId, TableState] = {}  # and what the table is meanwhile
        self._since: dict[TableId, Ts] = {}  # from where on tables are being prepared
        self._stopped: dict[TableId, Ts | None] = {}  # up to where they may have been written
        self._asked: dict[int, Ts] = {}  # where the tables are of commands that are under way, by command
        self._numbers = count()
        self._failure: BaseException | None = None

    @property
    def processor(self) -> SpanProcessor | None:
        """None until it is open."""
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        return opening.result()

    @property
    def failure(self) -> BaseException | None:
        processor = self.processor
        return self._failure or (processor.failure if processor is not None else None)

    # What it is told.

    def obey(self, command: Command) -> None:
        match command:
            case Prepare(requests):
                tables = frozenset(request.table for request in requests)
                since_ts = Ts(min(request.checkpoint_ts for request in requests))
                self._begin(TableState.PREPARING, tables, partial(self._prepare, tables, since_ts), since_ts)
            case Run(requests):
                tables = frozenset(request.table for request in requests)
                self._begin(TableState.PREPARED, tables, partial(self._run, requests), _lowest_ts(requests))
            case Stop(stopped):
                tables = frozenset(stopped)
                self._begin(TableState.STOPPING, tables, partial(self._stop, tables))
            case Release(released):
                for table in released:
                    self._stopped.pop(table, None)
            case Reset():
                raise InvariantError("an executor is replaced where there is another owner. Report it.")

    def _begin(self, state: TableState, tables: frozenset[TableId], work: Work, at_ts: Ts = MAX_TS) -> None:
        number, earlier = next(self._numbers), {self._last[table] for table in tables if table in self._last}
        self._asked[number] = at_ts
        for table in tables:
            self._under_way[table] = state
            self._stopped.pop(table, None)
        task = asyncio.create_task(self._kept(tables, earlier, work))
        self._last |= dict.fromkeys(tables, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._asked.pop(number, None))

    async def _kept(self, tables: frozenset[TableId], earlier: set[asyncio.Task[None]], work: Work) -> None:
        try:
            if earlier:
                await asyncio.wait(earlier)
            if self._failure is None:
                await work()
        except Exception as error:
            self._failure = self._failure or error
        if self._failure is not None:
            return  # their state stays as it is: nobody knows how far it came
        me = asyncio.current_task()
        for table in [table for table in tables if self._last.get(table) is me]:
            del self._last[table], self._under_way[table]

    async def _processor(self) -> SpanProcessor:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_processor())
        return await asyncio.shield(self._opening)

    async def _prepare(self, tables: frozenset[TableId], ts: Ts) -> None:
        processor = await self._processor()
        named = tables - {REST}
        if named:
            ts = await processor.prepare(frozenset[int](named), ts)
        self._since |= dict.fromkeys(tables, ts)

    async def _run(self, adds: Iterable[AddTable]) -> None:
        processor = await self._processor()
        handovers = [add.handover for add in adds if add.handover is not None]
        if handovers:
            await processor.accept(joined(handovers))
        for add in adds:
            if add.takeover is not None:
                await processor.take_rest(add.takeover)
            self._since.pop(add.table, None)

    async def _stop(self, tables: frozenset[TableId]) -> None:
        processor = await self._processor()
        ends = ending(tables, self._preparing)
        written: dict[TableId, Ts | None] = dict.fromkeys(tables)
        await processor.unprepare(ends.prepared)
        for handover in await processor.give_up(ends.written):
            written |= {TableId(table): handover.written_ts for table in handover.tables}
        if ends.is_rest and self._has_rest(processor):
            _, written[REST] = await processor.release_rest()
        for table in tables:
            self._since.pop(table, None)
        self._stopped |= written

    def leave(self) -> None:
        """Hear of no DDL any more: there is another owner, by whose words the schema is forgotten."""
        processor = self.processor
        for running in (*processor.lanes, *processor.preparing) if processor is not None else ():
            running.lane.feed.leave(running.lane.learn)

    async def close(self) -> None:
        """What is under way is given up."""
        tasks = [*self._tasks, *([self._opening] if self._opening is not None else [])]
        processor = self.processor
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        processor = processor or self.processor
        if processor is not None:
            await processor.close()

    # How its tables are.

    @property
    def lowest_ts(self) -> Ts:
        """Where the table is that is furthest behind, also of those that are being prepared, or are about to be."""
        processor = self.processor
        lanes = [*processor.lanes, *processor.preparing] if processor is not None else []
        found = (running.lane.progress.at.lowest_ts for running in lanes)
        return min((*found, *self._asked.values()), default=MAX_TS)

    @property
    def holdings(self) -> Holdings:
        processor = self.processor
        lanes = [_lane(running) for running in processor.lanes] if processor is not None else []
        between = processor.between if processor is not None else frozenset[int]()
        return held(lanes, between, self._preparing, self._stopped, self._under_way)

    @property
    def _preparing(self) -> dict[TableId, TableStatus]:
        """Of the tables of a lane that was given up with one of them, none is."""
        processor = self.processor
        resolved = processor.prepared() if processor is not None else {}
        found = {}
        for table, since_ts in self._since.items():
            if table == REST:
                found[table] = TableStatus(table, TableState.PREPARED, since_ts, since_ts)
            elif table in resolved:
                is_ready = resolved[table] > since_ts
                state = TableState.PREPARED if is_ready else TableState.PREPARING
                found[table] = TableStatus(table, state, since_ts, resolved[table])
        return found

    @staticmethod
    def _has_rest(processor: SpanProcessor) -> bool:
        return any(running.lane.assignment.is_rest for running in processor.lanes)


def _lowest_ts(adds: Iterable[AddTable]) -> Ts:
    found = [MAX_TS]
    for add in adds:
        found += add.handover.at.values() if add.handover is not None else ()
        found += [add.takeover.at.lowest_ts] if add.takeover is not None else ()
    return min(found)


def _lane(running: RunningLane) -> HeldLane:
    """The tables of a lane, those of the rest without names."""
    lane = running.lane
    at, own = lane.progress.at, lane.own_checkpoints()
    if lane.assignment.is_rest:
        where = {REST: at.lowest_ts}
    else:
        where = {TableId(table): own.get(table, at.base_ts) for table in lane.assignment.tables}
    return HeldLane(lane.assignment, where, lane.progress.frontier_ts)
