"""The owner of a changefeed: what concerns it as a whole.

    processors ── reports ──► owner ── orders ──► processors
                                │
      schema feed ── DDLs ──────┤── sink: DDLs, sync points, the published checkpoint
                                └── metadata: the state, saved before anybody is told of it

It needs no Spark. With its processors it shares nothing but values (``model.orders``), so they may be elsewhere. What
to do next is decided by ``control.ownership``; this module does it. The sink is called in a thread of its own, one call
at a time; a DDL that takes an hour there holds back no batch of other tables.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from tidemill.capture.beside import Beside
from tidemill.capture.ddls import Ddls
from tidemill.capture.link import Tell
from tidemill.capture.meeting import Meeting
from tidemill.capture.members import NOBODY, Members
from tidemill.capture.metadata import ChangefeedState, StateWriter
from tidemill.capture.publishing import Publishing
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.ownership import (
    Ownership,
    can_run_ddl,
    learned,
)
from tidemill.errors import SinkError
from tidemill.flow.filter import LeftOut, TableFilter
from tidemill.flow.schema import SchemaChange
from tidemill.log import get_logger
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.orders import Assignment, Handover, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts
from tidemill.sinks import OwnerSink

log = get_logger("owner")

T = TypeVar("T")
P = ParamSpec("P")
_IDLE_SAVE_SECONDS = 2.0  # how often a checkpoint that moves without data is written down
_CLOSING_SECONDS = 1.5  # for what is being published


class ChangefeedOwner:
    """Runs on one asyncio loop. Whoever starts a processor ``admit``s it; then it reports, and is told its orders."""

    def __init__(
        self,
        feed: SchemaFeed,
        sink: OwnerSink,
        state: ChangefeedState,
        states: StateWriter,
        *,
        target_ts: Ts | None = None,
        config: ChangefeedConfig | None = None,
        orders_ddls: bool = False,
        is_together: bool = False,
        publish_interval_seconds: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.feed = feed
        self._sink = sink
        self._states = states
        self._clock = clock
        self.left_out = LeftOut(TableFilter(config or ChangefeedConfig()))
        self.members = Members(feed.store)
        self._reports: deque[Report] = deque()  # with something for the sink, not taken by it yet
        self._wakes = asyncio.Event()
        self.taking = asyncio.Lock()  # from what the sink takes to the state that tells of it; no reader hears of it
        self.beside = Beside(sink, clock, self.tell)
        self.meeting = Meeting(self, sink, states)
        self.publishing = Publishing(
            sink, states, self.beside, self.taking, self._may_publish, publish_interval_seconds, clock
        )
        self._is_closing = False
        self._is_idle_move_unsaved = False
        self._idle_saved_at = clock.monotonic()
        self.state = state  # as it is to be saved next
        self.ddls = Ddls(self, sink, states, config or ChangefeedConfig())
        self.owned = Ownership(
            {NOBODY: state.at},
            state.ddl_ts,
            feed.resolved_ts,
            target_ts=target_ts,
            orders_ddls=orders_ddls,
            is_together=is_together,
            # One below: all may have come to a sync point that was not noted any more. None lies between the tables.
            sync_ts=sink.next_barrier(Ts(state.at.base_ts - 1)),
        )

    @property
    def orders(self) -> Orders:
        now = self.owned
        is_over = self.beside.failure is not None
        return Orders(
            now.ddl_ts, now.sync_ts, now.target_ts, now.is_stopping, is_over, self.members.saved, self.meeting.epoch,
            self._sink.term, now.resolved_ts,
        )  # fmt: skip

    @property
    def is_done(self) -> bool:
        """Everything up to the target is durable, and readers of the sink have been told."""
        now, saved = self.owned, self._states.saved
        is_idle = not (now.is_ddl_running or now.is_syncing or self._reports or self.publishing.is_under_way)
        is_saved = saved is not None and saved.checkpoint_ts >= now.checkpoint_ts
        return now.is_finished and is_idle and is_saved and self.publishing.told_ts >= now.checkpoint_ts

    def start(self) -> None:
        """On the loop, once the first processors are there."""
        self.feed.listen(self._learn)
        self.beside.begin(self._save_states)
        self.publishing.begin()  # an earlier run may not have come to it, and there may be nothing more to save
        if self.feed.resolved_ts > self.owned.schema_ts:  # it has been running for a while
            self._learn(list(self.feed.changes), self.feed.resolved_ts)
        self.turn()

    def resume(self, state: ChangefeedState) -> None:
        """Another state of the same checkpoint, before it is started: that of a copy that is complete."""
        self.state = state

    # What processors do.

    async def admit(
        self, name: str, assignment: Assignment, at: Checkpoints, tell: Tell, *, replaces: str | None = None
    ) -> Orders:
        return self.enter(name, assignment, at, tell, replaces=replaces)

    def enter(
        self, name: str, assignment: Assignment, at: Checkpoints, tell: Tell, *, replaces: str | None = None
    ) -> Orders:
        """A processor begins with these tables, where they are ``at``, perhaps in place of one that is gone. All
        later orders go to ``tell``."""
        before = self.owned.resolved_ts
        self.owned = self.members.admit(self.owned, name, assignment, at, tell, replaces)
        if before is None and self.owned.resolved_ts is not None:  # there was one alone
            self.tell()
        return self.orders

    def report(self, report: Report) -> None:
        """A processor's, in the order in which it made them. Of one that was dismissed, nothing counts."""
        self.meeting.expect(report)
        owned = self.members.hear(self.owned, report)
        if owned is None:
            return
        before, self.owned = self.owned, owned
        self.meeting.heard()
        is_move = report.gone is not None or report.came is not None or report.is_last
        if report.committed is not None or is_move:
            self._reports.append(report)
            self._wakes.set()
        else:
            self._is_idle_move_unsaved = True
        self.turn()
        if owned.resolved_ts != before.resolved_ts:
            self.tell()

    async def sink_state(self) -> Mapping[str, Any] | None:
        async with self.taking:
            saved = self._states.saved
            return saved.sink_state if saved is not None else None

    async def dismiss(self, names: Sequence[str]) -> dict[str, tuple[Assignment, Checkpoints]]:
        """Processors that are gone, or said to be: nothing that they or their tasks still do has an effect when this
        returns. Gives what each had, and where its tables are. Somebody has to replace them: until then the checkpoint
        does not move."""
        known = [name for name in names if name in self.owned.at]  # others have just left
        self.members.mute(known)
        async with self.taking:  # what has been taken of them is being saved; of the rest nothing counts
            self._reports = deque(report for report in self._reports if report.processor not in known)
            saved = (self._states.saved or self.state).at
            self.owned = self.members.dismissed(
                self.owned, known, saved
            )  # before anything is decided by where they were
            await self.beside.in_sink(self._sink.fence, known)
        left = [name for name in known if name in self.members]
        return {name: (self.members.by_name[name].assignment, self.owned.at[name]) for name in left}

    def hand_over(self, tables: Collection[int], written_ts: Ts | None) -> dict[int, Handover]:
        """Tables that nobody has any more, each for a processor that is to accept it: they were given up, or are those
        of one that was dismissed. Changes up to ``written_ts`` may have been written, and not committed."""
        self.owned, handovers = self.members.hand_over(self.owned, tables, written_ts)
        return handovers

    # How it moves.

    def stop(self) -> None:
        """Begin nothing new."""
        self.owned = replace(self.owned, is_stopping=True)
        self.tell()

    def end_at(self, ts: Ts) -> None:
        """From now on go no further than this."""
        target = self.owned.target_ts
        self.owned = replace(self.owned, target_ts=ts if target is None else Ts(min(ts, target)))
        self.tell()

    def tell(self) -> None:
        orders = self.orders
        for member in self.members:
            member.tell(orders)

    def turn(self) -> None:
        if can_run_ddl(self.owned):
            self.owned = replace(self.owned, is_ddl_running=True)
            self.beside.begin(self.ddls.run)
        elif self.meeting.is_complete:
            self.owned = replace(self.owned, is_syncing=True)
            self.beside.begin(self.meeting.hold)
        is_due = self._clock.monotonic() - self._idle_saved_at >= _IDLE_SAVE_SECONDS
        if self._is_idle_move_unsaved and (is_due or self.owned.is_finished):
            self._wakes.set()

    def _learn(self, changes: Sequence[SchemaChange], resolved_ts: Ts) -> None:
        # Those up to there had run before the restart; what they say of the tables is needed all the same.
        new = [change for change in changes if change.finished_ts > self.owned.ddl_ts]
        self.ddls.add(new)
        if changes:
            self.left_out.note(self.feed.store.tables())
        before = self.owned.ddl_ts
        self.owned = learned(self.owned, resolved_ts, self.ddls.barriers)
        if new or self.owned.ddl_ts != before:
            self.note_idle_move()
        self.turn()

    def note_idle_move(self) -> None:
        """Something has moved without rows: it is saved when there is time."""
        self._is_idle_move_unsaved = True

    # What is saved, and told.

    async def _save_states(self) -> None:
        """Whatever there is to be saved, as soon as the one before is. Ends with the changefeed."""
        while not self._is_closing:
            await self._wakes.wait()
            self._wakes.clear()
            async with self.taking:
                await self.save()

    async def save_what_came(self) -> None:
        """With ``taking`` held: what was being saved is saved by now. So is all that had been reported."""
        if self._reports:
            await self.save()

    async def save(self, sink_state: dict[str, Any] | None = None) -> None:
        """All that is known by now, with what the sink has to take of it. Durable when this returns, and the processors
        have been told. With ``taking`` held."""
        rows = self.state.rows
        while self._reports:
            committed = self._reports.popleft().committed
            if committed is not None:
                sink_state, rows = self._sink.take(committed.sink), rows + committed.rows
        self._is_idle_move_unsaved = False
        numbers = {name: member.number for name, member in self.members.by_name.items()}
        self.state = replace(self._current(sink_state), rows=rows)
        await self._states.save(self.state)
        self._idle_saved_at = self._clock.monotonic()
        self.members.note_saved(numbers)
        # What waits for a DDL to become somebody's table may be below all that is saved.
        self.feed.forget(min(self._states.passed_ts, self.owned.lowest_ts))
        self.tell()
        self.members.forget_those_that_left()
        self.publishing.begin()

    def _current(self, sink_state: dict[str, Any] | None) -> ChangefeedState:
        now, at = self.owned, self.members.whereabouts(self.owned)
        schema_ts = min(now.ddl_ts, at.lowest_ts)
        return replace(
            self.state,
            checkpoint_ts=now.checkpoint_ts,
            base_ts=at.base_ts,
            behind={str(table): ts for table, ts in at.own.items()},
            ddl_ts=now.ddl_ts,
            table_versions={str(table): ts for table, ts in self.feed.store.versions(schema_ts).items()},
            sink_state=self.state.sink_state if sink_state is None else sink_state,
        )

    def _may_publish(self) -> bool:
        """Not behind a DDL, which may take an hour: what is committed meanwhile would wait for it. Nor where something
        was taken and not saved: readers would hear of it."""
        is_held = self.owned.is_ddl_running or (self.meeting.is_cutting and self.owned.is_syncing)
        return not (self._is_closing or is_held or self.beside.failure is not None)

    # How it ends.

    async def close(self) -> None:
        """Write down how far it came, tell readers, and let go of the sink. Call when the processors are closed."""
        self._is_closing = self.beside.is_closing = True
        self.meeting.close()
        self.feed.leave(self._learn)
        is_well = self.beside.failure is None and self.beside.trouble is None and not self.owned.is_ddl_running
        if is_well and NOBODY not in self.members:
            with suppress(SinkError, TimeoutError):
                async with asyncio.timeout(_CLOSING_SECONDS), self.taking:
                    if self._is_idle_move_unsaved or self._reports:
                        await self.save()
                    await self.beside.in_sink(self._sink.publish, self._states.checkpoint_ts)
        await self.beside.close()
