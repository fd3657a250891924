"""The DDLs of a changefeed: those that wait, in order, and how they are run downstream.

    learned ─► barriers ─► due (the tables are there, and their rows are saved) ─► sink ─► done, the next

Where a sink gains by it, those that are due and have nothing to do with each other are run at once.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from tidemill.capture.metadata import StateWriter
from tidemill.control.barriers import BarrierQueue, Barriers, Pending
from tidemill.control.ownership import can_run_ddl, ddl_done, first_ddls
from tidemill.flow.filter import ColumnSelector, DdlFilter
from tidemill.flow.schema import SchemaChange
from tidemill.log import get_logger
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.sinks import OwnerSink
from tidemill.sinks.port import GroupingOwner

if TYPE_CHECKING:
    from tidemill.capture.owner import ChangefeedOwner

log = get_logger("owner")

_TELLING_SECONDS = 0.1  # between two looks at which of several DDLs have run


class Ddls:
    """Belongs to the owner, and runs on its loop."""

    def __init__(
        self, owner: "ChangefeedOwner", sink: OwnerSink, states: StateWriter, config: ChangefeedConfig
    ) -> None:
        self._owner, self._sink, self._states = owner, sink, states
        self._filter, self._selector = DdlFilter(config), ColumnSelector(config)
        self._waiting: deque[SchemaChange] = deque()
        self._queue = BarrierQueue()
        self.count = 0  # that were run

    @property
    def barriers(self) -> Barriers:
        return self._queue.barriers

    @property
    def first_name(self) -> str:
        """Of the one that runs next, for people: what it does, and to what. Its text may hold values."""
        events = self._waiting[0].events if self._waiting else ()
        return next((f" ({_kind(each.type)} '{each.schema}.{each.table}')" for each in events), "")

    def add(self, changes: Sequence[SchemaChange]) -> None:
        """Those that have become known, behind the others."""
        self._waiting.extend(changes)
        self._queue.extend(Pending(change.finished_ts, change.touched) for change in changes)

    async def run(self) -> None:
        """The first that waits, and those behind it that may run by then."""
        owner = self._owner
        while due := await self._due():
            if len(due) > 1:
                await self._run_together(due)
            else:
                await self._run(due[0])
                self._pass(1)
        owner.owned = replace(owner.owned, is_ddl_running=False)
        owner.tell()
        owner.publishing.begin()
        owner.turn()

    async def _due(self) -> list[SchemaChange]:
        """The DDLs that may run now, none or one, or several at once where the sink gains by that. The rows before them
        have not only been reported, they are saved as well: after a crash they would come again, behind the DDL. What
        others report meanwhile is not waited for: there may be always some."""
        owner = self._owner
        async with owner.taking:
            while True:
                reported = self._ready()
                await owner.save_what_came()
                ready = self._ready()
                if ready <= reported:
                    break
        is_due = ready > 0 and owner.beside.failure is None
        owner.owned = replace(owner.owned, is_ddl_running=is_due)
        due = list(takewhile(_brings_no_rows, islice(self._waiting, ready)))
        return due or [self._waiting[0]] if is_due else []

    def _ready(self) -> int:
        """How many of those that wait may run, by what has been reported."""
        owned = replace(self._owner.owned, is_ddl_running=False)
        if not can_run_ddl(owned):
            return 0
        return first_ddls(owned, self._queue) if isinstance(self._sink, GroupingOwner) else 1

    def _pass(self, count: int) -> None:
        """So many of the first have run."""
        owner = self._owner
        for _ in range(count):
            self._waiting.popleft()
            self._queue.pop()
            owner.owned = replace(ddl_done(owner.owned, self.barriers), is_ddl_running=True)  # until the last
        owner.note_idle_move()

    async def _run_together(self, changes: Sequence[SchemaChange]) -> None:
        """One may take an hour: the tables of those before it go on meanwhile."""
        assert isinstance(self._sink, GroupingOwner)
        sent, ends = list[DdlEvent](), list[int]()
        for change in changes:
            sent += [self._as_it_goes_out(event) for event in self._kept(change)]
            ends.append(len(sent))
        said = told = 0

        def passed(count: int) -> None:
            nonlocal said
            said = count

        async def tell() -> None:
            nonlocal told
            while True:
                await asyncio.sleep(_TELLING_SECONDS)
                count = bisect_right(ends, said)
                if count > told:
                    self._pass(count - told)
                    told = count
                    self._owner.tell()

        telling = asyncio.create_task(tell())
        try:
            await self._owner.beside.in_sink(self._sink.ddls, sent, passed)
            self._pass(len(changes) - told)
            told = len(changes)
        finally:
            telling.cancel()
            self.count += ends[told - 1] if told else 0

    async def _run(self, change: SchemaChange) -> None:
        owner = self._owner
        for event in self._kept(change):
            sent = self._as_it_goes_out(event)
            # It may bring rows, which count like a batch's; or decide where those of a new table go.
            if event.gives_key or owner.owned.orders_ddls:
                async with owner.taking:
                    sink_state = await owner.beside.in_sink(self._sink.ddl, sent)
                    if sink_state is not None:  # writers of the table go by what is saved, and published
                        await owner.save(sink_state)
                        await owner.beside.in_sink(self._sink.publish, self._states.checkpoint_ts)
            else:
                await owner.beside.in_sink(self._sink.ddl, sent)
            self.count += 1

    def _kept(self, change: SchemaChange) -> Iterator[DdlEvent]:
        """Of its events, those that are not left out; each is about to run."""
        for event in change.events:
            if not self._filter.keeps(event):
                log.info("leaving DDL out", ts=event.finished_ts, schema=event.schema, query=event.query)
                continue
            log.info("running DDL", ts=event.finished_ts, schema=event.schema, table=event.table, query=event.query)
            yield event

    def _as_it_goes_out(self, event: DdlEvent) -> DdlEvent:
        """With the columns that go out."""
        after, before = event.table_info, event.pre_table_info
        return replace(
            event,
            table_info=self._selector.table(after) if after is not None else None,
            pre_table_info=self._selector.table(before) if before is not None else None,
        )


def _kind(number: int) -> str:
    try:
        return ActionType(number).name.lower().replace("_", " ")
    except ValueError:
        return f"kind {number}"


def _brings_no_rows(change: SchemaChange) -> bool:
    return not any(event.gives_key for event in change.events)
