"""A coordinator and its agents without a network in between: every word arrives, everything is done at once.

What may go wrong in between is the simulation's business (``tidemill.testing.simulation``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tidemill.control.scheduler.agent import Agent, Command, Prepare, Release, Reset, Run, Stop
from tidemill.control.scheduler.captures import Fence
from tidemill.control.scheduler.coordinator import Coordinator, Situation
from tidemill.control.scheduler.handovers import HandOver, Whereabouts
from tidemill.control.scheduler.holdings import Holdings
from tidemill.control.scheduler.policies import Settings
from tidemill.model.orders import Assignment, Handover
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import (
    REST,
    CaptureId,
    ChangefeedKey,
    Message,
    TableId,
    TableState,
    TableStatus,
    Takeover,
)
from tidemill.model.ts import Ts

FEED = ChangefeedKey("default", "feed")
EPOCH = 7
OWNER = CaptureId("owner")
NOW_TS = Ts(1_000)
TICK_SECONDS = 0.05


class Executor:
    """Does at once whatever it is told. Tables that it has as some of the rest have no name here."""

    def __init__(self) -> None:
        self.tables: dict[TableId, TableStatus] = {}
        self.not_of_rest: set[TableId] = set()
        self.did: list[Command] = []

    @property
    def holdings(self) -> Holdings:
        return Holdings(dict(self.tables), frozenset(self.not_of_rest))

    def obey(self, command: Command) -> None:
        self.did.append(command)
        match command:
            case Prepare(requests):
                for request in requests:
                    self.tables[request.table] = TableStatus(request.table, TableState.PREPARED)
            case Run(requests):
                for request in requests:
                    self.tables[request.table] = TableStatus(request.table, TableState.REPLICATING)
                    if request.takeover is not None:
                        self.not_of_rest = {TableId(t) for t in request.takeover.assignment.tables}
                    elif REST in self.tables:
                        self.not_of_rest.discard(request.table)
                        del self.tables[request.table]  # it joins the others
            case Stop(tables):
                for table in tables:
                    self._stop(table)
            case Release(tables):
                for table in tables:
                    self.tables.pop(table, None)
            case Reset():
                self.tables, self.not_of_rest = {}, set()

    def _stop(self, table: TableId) -> None:
        before = self.tables.get(table)
        if before is None or before.state is TableState.REPLICATING:
            self.not_of_rest.add(table)
        self.tables[table] = TableStatus(table, TableState.STOPPED, written_ts=Ts(50))


class Cluster:
    """``drop``: says of a message whether it is lost."""

    def __init__(self, captures: Iterable[str], tables: Iterable[int], settings: Settings | None = None) -> None:
        self.coordinator = Coordinator(OWNER, FEED, 1, EPOCH, settings)
        self.agents: dict[CaptureId, Agent] = {}
        self.executors: dict[CaptureId, Executor] = {}
        self.fences: list[Fence] = []
        self.asks: list[HandOver] = []
        self.sent: list[Message] = []
        self.seconds = 0.0
        self.tables: Sequence[TableId] = sorted(map(TableId, tables))
        self.drop: Callable[[Message], bool] = lambda message: False
        self.orphans: set[TableId] = set()  # of a capture that is gone, until they are handed over
        self.named: set[TableId] = set()  # to be left out of the rest when that is taken over
        for name in captures:
            self.join(name)

    def join(self, name: str) -> CaptureId:
        capture = CaptureId(name)
        self.agents[capture] = Agent(capture, FEED, EPOCH, f"born-{name}")
        self.executors[capture] = Executor()
        return capture

    def leave(self, name: str) -> None:
        del self.agents[CaptureId(name)], self.executors[CaptureId(name)]

    def tick(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.seconds += TICK_SECONDS
            orphans = frozenset(self.orphans if self.fences else ())
            situation = Situation(frozenset(self.agents), self.tables, Ts(10), orphans)
            for action in self.coordinator.tick(self.seconds, situation):
                match action:
                    case Message():
                        self._deliver(action)
                    case Fence():
                        self.fences.append(action)
                        self.coordinator.fenced(action, NOW_TS)
                    case HandOver():
                        self.asks.append(action)
                        self.coordinator.handed_over(action, self._found(action))
            for capture in list(self.agents):
                self._poll(capture)

    def _found(self, ask: HandOver) -> dict[TableId, Whereabouts | None]:
        found: dict[TableId, Whereabouts | None] = {}
        for table, written_ts in ask.tables.items():
            if table == REST:
                everything = Assignment(frozenset(self.named), is_rest=True)
                found[table] = Takeover("gone", everything, Checkpoints(Ts(10)), written_ts)
            else:
                self.named.add(table)
                self.orphans.discard(table)
                found[table] = Handover(frozenset({int(table)}), {int(table): Ts(10)}, written_ts)
        return found

    def _deliver(self, message: Message) -> None:
        self.sent.append(message)
        if message.receiver not in self.agents or self.drop(message):
            return
        for command in self.agents[message.receiver].receive(message):
            self.executors[message.receiver].obey(command)

    def _poll(self, capture: CaptureId) -> None:
        agent, executor = self.agents[capture], self.executors[capture]
        commands, messages = agent.poll(executor.holdings)
        for command in commands:
            executor.obey(command)
        for message in messages:
            if not self.drop(message):
                self.coordinator.receive(message)

    def until(self, holds: Callable[[], bool], ticks: int = 400) -> None:
        for _ in range(ticks):
            if holds():
                return
            self.tick()
        raise AssertionError(f"it did not come to it in {ticks} ticks: {self.placement()}")

    @property
    def is_settled(self) -> bool:
        return self.coordinator.is_rebuilt and not self.coordinator.replicas.unsettled

    def settle(self) -> None:
        self.until(lambda: self.is_settled)
        self.tick(4)
        self.until(lambda: self.is_settled)

    def placement(self) -> dict[str, list[int]]:
        """Who writes which tables, of those that are captured, by what the executors say."""
        found: dict[str, list[int]] = {}
        for capture, executor in self.executors.items():
            holdings = replace(executor.holdings)
            mine = [int(t) for t in self.tables if holdings.of(t).state is TableState.REPLICATING]
            found[capture] = mine
        return found
