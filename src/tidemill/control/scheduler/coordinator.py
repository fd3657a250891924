"""The owner's side of the scheduler, for one changefeed. Pure: events in, actions out; the clock is an argument.

    receive ── messages of agents ──────────┐
    fenced, handed_over ── done actions ────┼──► replicas, captures ──► tick ──► messages, Fence, HandOver
    move_table, rebalance, drain ── users ──┘

The driver ticks it every 50 ms or so, sends the messages (each may be lost), and does what a ``Fence`` or a
``HandOver`` says. Before the first tick it has fenced, in the sink, every writer of the owners before. Checkpoints are
no business of this: ``control.ownership`` has them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.control.scheduler import policies
from tidemill.control.scheduler.captures import Captures, Fence
from tidemill.control.scheduler.handovers import UNKNOWN_TS, HandOver, Handovers, Whereabouts
from tidemill.control.scheduler.outbox import Outbox
from tidemill.control.scheduler.policies import Settings, View
from tidemill.control.scheduler.replica import (
    ABSENT,
    Assign,
    Command,
    Event,
    Move,
    Remove,
    Replica,
    ReplicaState,
    Reported,
    Return,
    SendPrepare,
    SendRun,
    SendStop,
    rebuilt,
)
from tidemill.control.scheduler.replicas import Replicas
from tidemill.control.scheduler.tasks import AddTables, MoveTables, Plan, RemoveTables, ReturnTables, Running, Task
from tidemill.model.schedule import (
    REST,
    CaptureId,
    ChangefeedKey,
    DispatchResponse,
    HeartbeatResponse,
    Message,
    TableId,
    TableState,
    TableStatus,
)
from tidemill.model.ts import Ts

Action = Message | Fence | HandOver

_ENDED = frozenset({TableState.STOPPED, TableState.ABSENT})


@dataclass(frozen=True, slots=True)
class Situation:
    """What a tick sees. ``tables``: ascending, all that have to be captured, also those whose end (a DDL) has not run
    yet; hand over the same object while nothing has changed. ``checkpoint_ts``: of the changefeed, as it is saved.
    ``orphans``: tables that a processor had, by what its lanes said, which is fenced; nobody has them since. What its
    agent said of them may have been less, or nothing."""

    alive: frozenset[CaptureId]
    tables: Sequence[TableId]
    checkpoint_ts: Ts
    orphans: frozenset[TableId] = frozenset()


class Coordinator:
    def __init__(
        self,
        me: CaptureId,
        changefeed: ChangefeedKey,
        owner_revision: int,
        changefeed_epoch: int,
        settings: Settings | None = None,
    ) -> None:
        self._me, self._changefeed = me, changefeed
        self._revision, self._changefeed_epoch = owner_revision, changefeed_epoch
        self.settings = settings or Settings()
        self.captures = Captures()
        self.replicas = Replicas()
        self.running = Running()
        self.requests = policies.Requests()
        self._handovers = Handovers()
        self._outbox = Outbox(me, changefeed, owner_revision, changefeed_epoch, self.captures)
        self._first: dict[CaptureId, dict[TableId, TableStatus]] = {}  # what captures said before the rebuild
        self._traffic: dict[TableId, float] = {}
        self._tables: Sequence[TableId] = ()
        self._wanted: frozenset[TableId] = frozenset()
        self._unwanted: set[TableId] = set()
        self._ticks = 0
        self.is_rebuilt = False

    # What users ask for.

    def move_table(self, table: TableId, capture: CaptureId) -> None:
        self.requests.moves[table] = capture

    def rebalance(self) -> None:
        self.requests.is_rebalance_asked = True

    def drain(self, capture: CaptureId) -> int:
        """Let others take over what a capture has; how many tables it has still, and 1 where that is not known yet. It
        is no request where there is nothing, or nobody to take it, or another drain under way."""
        if not (self.is_rebuilt and self.captures.are_initialized):
            return 1
        left = self.tables_on(capture)
        others = [name for name in self.captures.working if name != capture]
        if left and others and self.requests.drained is None:
            self.requests.drained = capture
        return left

    def tables_on(self, capture: CaptureId) -> int:
        """How many it writes; the rest counts as one, and each table in it."""
        named = self.replicas.written_by(capture)
        return len(named) + (self._unnamed_count if REST in named else 0)

    def holder(self, table: TableId) -> CaptureId | None:
        """Who writes a table, or is to write it next; None: nobody yet."""
        return self.replicas.primary_of(table if table in self.replicas else REST)

    @property
    def _unnamed_count(self) -> int:
        followed = len(self.replicas) - (REST in self.replicas)
        return len(self._tables) - (followed - len(self._unwanted))

    # What agents say.

    def receive(self, message: Message) -> None:
        header, body = message.header, message.body
        is_ours = (message.changefeed, message.receiver) == (self._changefeed, self._me)
        if not is_ours or (header.owner_revision, header.changefeed_epoch) != (self._revision, self._changefeed_epoch):
            return
        if not isinstance(body, HeartbeatResponse | DispatchResponse) or not self.captures.hears(message):
            return
        if not self.is_rebuilt:
            self._first.setdefault(message.sender, {}).update({status.table: status for status in body.tables})
            return
        for status in body.tables:
            self._hear(message.sender, status)

    def _hear(self, capture: CaptureId, status: TableStatus) -> None:
        table, replica = status.table, self.replicas.get(status.table)
        if status.state is TableState.REPLICATING:
            _note(self._traffic, status)
        if replica is None:
            self._hear_of_unfollowed(capture, status)
            return
        if status.is_of_rest and status.state is TableState.REPLICATING and replica.primary is None:
            self._leave_to_the_rest(table)
            return
        if capture == replica.primary and status.state in _ENDED:
            self._handovers.note_end(status, is_committing=replica.state is ReplicaState.COMMIT)
        self._apply(table, Reported(capture, status.state))
        now = self.replicas.get(table)
        if status.is_of_rest and status.state is TableState.REPLICATING and now == _written_by(capture):
            self._forget(table)

    def _hear_of_unfollowed(self, capture: CaptureId, status: TableStatus) -> None:
        if status.is_of_rest:
            return
        match status.state:
            case TableState.REPLICATING:  # it has parted it from the rest
                self._follow(status.table, _written_by(capture))
            case TableState.PREPARING | TableState.PREPARED:
                self._outbox.stop(capture, status.table)

    # What the driver has done.

    def fenced(self, fence: Fence, written_ts: Ts) -> None:
        """Nothing that it still does has an effect. It may have written up to there, that is, up to now."""
        if not self.captures.fenced(fence):
            return
        self._first.pop(fence.capture, None)
        self._outbox.forget(fence.capture)
        for table in list(self.replicas.held_by(fence.capture)):
            replica = self.replicas.get(table)
            if replica is not None and replica.primary == fence.capture:
                self._handovers.note_written(table, written_ts)
            self.running.end(table)
            self._apply(table, Reported(fence.capture, TableState.STOPPED))

    def handed_over(self, ask: HandOver, found: Mapping[TableId, Whereabouts | None]) -> None:
        """The answer to a ``HandOver``."""
        for table in self._handovers.answered(ask, found):
            replica = self.replicas.get(table)
            if replica is None:
                self._handovers.forget(table)
            elif replica.state is ReplicaState.COMMIT and replica.primary is not None and replica.secondary is None:
                self._outbox.run(replica.primary, table)
        for table, whereabouts in found.items():
            if whereabouts is None:
                self._leave_to_the_rest(table)

    def _leave_to_the_rest(self, table: TableId) -> None:
        """Somebody has it without a name: whoever prepares it lets go of it."""
        replica, rest = self.replicas.get(table), self.replicas.get(REST)
        if replica is not None and rest is not None and table != REST:
            for capture in replica.holders:
                if replica.secondary == capture or rest.primary != capture:
                    self._outbox.stop(capture, table)
            self._forget(table)

    # How replicas change.

    def _apply(self, table: TableId, event: Event) -> None:
        before = self.replicas.get(table)
        for command in self.replicas.apply(table, event):
            self._command(table, command)
        after = self.replicas.get(table)
        if after is None or after == before:
            return
        if after.state is ReplicaState.REPLICATING:
            self._handovers.forget(table)
        if table not in self.replicas.unsettled or after.state is ReplicaState.ABSENT:
            self.running.end(table)

    def _command(self, table: TableId, command: Command) -> None:
        match command:
            case SendPrepare(capture):
                self._outbox.prepare(capture, table, self.replicas.primary_of(table))
            case SendStop(capture):
                self._outbox.stop(capture, table)
            case SendRun(capture):
                self._handovers.want(table)
                if self._handovers.of(table) is not None:
                    self._outbox.run(capture, table)

    def _follow(self, table: TableId, replica: Replica) -> None:
        self.replicas.put(table, replica)
        if table != REST and table not in self._wanted:
            self._unwanted.add(table)

    def _forget(self, table: TableId) -> None:
        """It is one of the rest."""
        self.replicas.forget(table)
        self.running.end(table)
        self._handovers.forget(table)
        self._unwanted.discard(table)

    # The tick.

    def tick(self, now_seconds: float, situation: Situation) -> tuple[Action, ...]:
        """``now_seconds``: of a clock that never goes back."""
        self._ticks += 1
        self.captures.become(situation.alive)
        self._take_tables(situation.tables)
        if self.captures.are_initialized:
            if not self.is_rebuilt and self.captures.are_fenced:
                self._rebuild()
            if self.is_rebuilt:
                self._find(situation.orphans)
                self._schedule(now_seconds)
        actions: list[Action] = [*self.captures.fences()]
        ask = self._handovers.ask()
        if ask is not None:
            actions.append(ask)
        actions += self._outbox.dispatches(self._handovers, situation.checkpoint_ts)
        if self._ticks % self.settings.heartbeat_ticks == 0 or self._ticks == 1:
            actions += self._outbox.heartbeats(self.replicas, self.settings.always_asked, self.settings.rare_beats)
        return tuple(actions)

    def _take_tables(self, tables: Sequence[TableId]) -> None:
        if tables is self._tables:
            return
        self._tables, self._wanted = tables, frozenset(tables)
        self._unwanted = {table for table, _ in self.replicas if table != REST and table not in self._wanted}

    def _rebuild(self) -> None:
        """What must be going on, by what all captures say."""
        self.is_rebuilt = True
        by_table: dict[TableId, dict[CaptureId, TableState]] = {REST: {}}
        for capture, statuses in self._first.items():
            for status in statuses.values():
                if not status.is_of_rest:
                    by_table.setdefault(status.table, {})[capture] = status.state
        self._first.clear()
        rest = rebuilt(by_table[REST])
        for table, reports in by_table.items():
            replica = rebuilt(reports)
            if table != REST and replica.secondary is not None and replica.primary is None:
                # Whoever has the rest may still have it; it says so when it is told to stop.
                is_other = rest.primary != replica.secondary
                replica = replace(replica, primary=rest.primary if is_other else None)
            if table == REST or replica.holders:
                self._follow(table, replica)

    def _find(self, orphans: Collection[TableId]) -> None:
        """Without a name they would pass for some of the rest, and the checkpoint would wait for them for ever."""
        for table in sorted(table for table in orphans if table not in self.replicas):
            self._follow(table, ABSENT)
            self._handovers.note_written(table, UNKNOWN_TS)

    def _schedule(self, now_seconds: float) -> None:
        view = View(
            self.settings, self.captures, self.replicas, self.running, self._tables, self._unwanted, self._traffic,
        )  # fmt: skip
        plan = policies.plan(view, self.requests, now_seconds)
        for task in plan.tasks:
            self._begin(task, plan)

    def _begin(self, task: Task, plan: Plan) -> None:
        if not plan.is_burst and len(self.running) >= self.settings.max_task_concurrency:
            return
        tables = tuple(table for table in task.tables if table not in self.running)
        self.running.begin(tables)
        for table in tables:
            match task:
                case AddTables(capture=capture):
                    self._add(table, capture)
                case ReturnTables(capture=capture):
                    self._apply(table, Return(capture))
                case MoveTables(capture=capture):
                    self._move(table, capture)
                case RemoveTables():
                    self._apply(table, Remove())

    def _add(self, table: TableId, capture: CaptureId) -> None:
        if table not in self.replicas:
            self._follow(table, ABSENT)
        self._apply(table, Assign(capture))
        if table != REST:
            self._handovers.want(table)  # nobody writes it, so where it is will not change any more

    def _move(self, table: TableId, capture: CaptureId) -> None:
        rest = self.replicas.get(REST)
        if table not in self.replicas and rest is not None and rest.primary is not None:
            self._follow(table, _written_by(rest.primary))
        self._apply(table, Move(capture))


def _written_by(capture: CaptureId) -> Replica:
    return Replica(ReplicaState.REPLICATING, primary=capture)


def _note(traffic: dict[TableId, float], status: TableStatus) -> None:
    if status.rows_per_second:
        traffic[status.table] = status.rows_per_second
    else:
        traffic.pop(status.table, None)
