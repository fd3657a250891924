"""What should be done next; the first policy that wants something has the tick. Pure. The most important comes first:

    basic       tables that nobody has are given to somebody
    drain       everything leaves a capture that is about to stop
    move        a user's request, table by table
    rebalance   a user's request: as even as can be, at once
    balance     by and by: as many tables everywhere, then as much traffic

Neighbouring tables, by their ids, stay together and move together: they are read by one subscription, and are prepared
and handed over as one. Where as many tasks are under way as may be, only the first of them acts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from tidemill.control.scheduler.balancing import calm, even_out, spread
from tidemill.control.scheduler.captures import Captures
from tidemill.control.scheduler.replicas import Replicas
from tidemill.control.scheduler.tasks import AddTables, MoveTables, Plan, RemoveTables, ReturnTables, Running, Task
from tidemill.model.schedule import REST, CaptureId, TableId


@dataclass(frozen=True, slots=True)
class Settings:
    """A *task* is tables that move together, from one capture to another."""

    heartbeat_ticks: int = 2
    max_task_concurrency: int = 10  # tasks under way; what nobody has is added beyond it
    check_balance_seconds: float = 60.0
    add_table_batch_size: int = 10_000  # tables per tick. Those of one tick share a lane, so this is not TiCDC's 50
    move_table_batch_size: int = 1_000  # tables per task
    always_asked: int = 1_000  # tables on their way up to which every heartbeat asks for each
    rare_beats: int = 10  # and beyond that, which do


@dataclass(slots=True)
class Requests:
    """What users have asked for and is not done, and when balance is checked again."""

    moves: dict[TableId, CaptureId] = field(default_factory=dict)
    drained: CaptureId | None = None
    is_rebalance_asked: bool = False
    next_check_seconds: float = -inf
    checked_for: tuple[CaptureId, ...] = ()  # who was there at the last check


class View:
    """The state of things, for the length of a tick."""

    def __init__(
        self,
        settings: Settings,
        captures: Captures,
        replicas: Replicas,
        running: Running,
        tables: Sequence[TableId],
        unwanted: Collection[TableId],
        traffic: Mapping[TableId, float],
    ) -> None:
        """``tables``: ascending, all that have to be captured; ``unwanted``: those with a replica that are not."""
        self.settings, self.captures, self.replicas, self.running = settings, captures, replicas, running
        self.tables, self.unwanted, self.traffic = tables, unwanted, traffic

    @cached_property
    def working(self) -> list[CaptureId]:
        return self.captures.working

    @property
    def rest(self) -> CaptureId | None:
        """Who has the rest, and is not about to lose it."""
        replica = self.replicas.get(REST)
        return replica.primary if replica is not None and self.replicas.is_replicating(REST) else None

    @cached_property
    def unnamed(self) -> list[TableId]:
        """All that are of the rest."""
        return [table for table in self.tables if table not in self.replicas]

    def named(self, capture: CaptureId) -> list[TableId]:
        """What it writes by name, and what it is to have instead of nobody."""
        held = self.replicas.held_by(capture)
        return sorted(t for t in held if t != REST and t not in self.unwanted and self._belongs(t, capture))

    def _belongs(self, table: TableId, capture: CaptureId) -> bool:
        replica = self.replicas.get(table)
        return replica is not None and capture == (replica.secondary or replica.primary)

    def tables_of(self, capture: CaptureId) -> list[TableId]:
        """Ascending, those of the rest included."""
        named = self.named(capture)
        return sorted([*named, *self.unnamed]) if capture == self.rest else named

    @property
    def is_settled(self) -> bool:
        return not self.replicas.unsettled


def plan(view: View, requests: Requests, now_seconds: float) -> Plan:
    found = basic(view)
    if found.tasks or len(view.running) >= view.settings.max_task_concurrency or view.rest is None:
        return found
    for policy in (drain, move):
        found = policy(view, requests)
        if found.tasks:
            return found
    found = rebalance(view, requests)
    return found if found.tasks else balance(view, requests, now_seconds)


def basic(view: View) -> Plan:
    """What nobody has: the rest, tables by name, and those that are not captured any more, which join the rest."""
    working = view.working
    if not working:
        return Plan()
    lost = [t for t in view.replicas.absent if t not in view.running]
    named = [t for t in lost if t != REST and t not in view.unwanted]
    tasks: list[Task] = []
    if REST in lost:
        shares = spread(sorted([*named, *view.unnamed]), {c: len(view.named(c)) for c in working})
        nameless = frozenset(view.unnamed)
        # Whoever has the most of those without a name gets the rest: they need no name then.
        keeper = max(working, key=lambda c: (sum(t in nameless for t in shares[c]), c))
        shares[keeper] = [t for t in shares[keeper] if t not in nameless]
        tasks.append(AddTables((REST,), keeper))
    else:
        shares = spread(sorted(named), {c: len(view.tables_of(c)) for c in working}) if named else {}
    left = view.settings.add_table_batch_size
    for capture, tables in shares.items():
        if tables and left > 0:
            tasks.append(AddTables(tuple(tables[:left]), capture))
            left -= len(tables)
    return Plan((*tasks, *_returned(view)), is_burst=True)


def _returned(view: View) -> Iterable[Task]:
    """Tables that are not captured any more have no name, either."""
    if view.rest is None or not view.unwanted:
        return
    idle = [t for t in sorted(view.unwanted) if t not in view.running]
    absent = tuple(t for t in idle if t in view.replicas.absent)
    if absent:
        yield ReturnTables(absent, view.rest)
    elsewhere = tuple(t for t in idle if _writer(view, t) not in (None, view.rest))
    if elsewhere:
        yield RemoveTables(elsewhere)


def _writer(view: View, table: TableId) -> CaptureId | None:
    replica = view.replicas.get(table)
    return replica.primary if replica is not None and view.replicas.is_replicating(table) else None


def drain(view: View, requests: Requests) -> Plan:
    """One capture at a time; one that is stopping by itself is drained without being asked. The rest leaves last, when
    nothing is in it: what it writes cannot be prepared elsewhere."""
    target = requests.drained or next(iter(view.captures.stopping), None)
    if target is None:
        return Plan()
    heirs = [capture for capture in view.working if capture != target]
    if not heirs or view.captures.get(target) is None:
        requests.drained = None
        return Plan()
    if not view.is_settled:
        return Plan()
    tables = view.tables_of(target)
    if tables:
        return Plan(tuple(_moves(view, spread(tables, {c: len(view.tables_of(c)) for c in heirs}))))
    if view.rest == target:
        return Plan((MoveTables((REST,), min(heirs, key=lambda c: (len(view.tables_of(c)), c))),))
    requests.drained = None
    return Plan()


def move(view: View, requests: Requests) -> Plan:
    """Each until it is accepted. What cannot be is dropped: there is no such table or capture, or it is on its way."""
    tasks: list[Task] = []
    room = view.settings.max_task_concurrency - len(view.running)
    wanted = frozenset(view.tables) if requests.moves else frozenset()
    for table, capture in list(requests.moves.items()):
        if room <= 0:
            break
        del requests.moves[table]
        is_there = table in wanted and (table not in view.replicas or view.replicas.is_replicating(table))
        replica = view.replicas.get(table)
        source = view.rest if replica is None else replica.primary
        if is_there and capture in view.working and source != capture and table not in view.running:
            tasks.append(MoveTables((table,), capture))
            room -= 1
    return Plan(tuple(tasks))


def rebalance(view: View, requests: Requests) -> Plan:
    """All at once. The request is over when it is taken, or when there is nothing to do."""
    if not requests.is_rebalance_asked:
        return Plan()
    if view.captures.stopping or requests.drained is not None:
        requests.is_rebalance_asked = False
        return Plan()
    if not view.is_settled:
        return Plan()
    requests.is_rebalance_asked = False
    moves = even_out({c: view.tables_of(c) for c in view.working})
    return Plan(tuple(MoveTables(tuple(tables), c) for (_, c), tables in moves.items()), is_burst=True)


def balance(view: View, requests: Requests, now_seconds: float) -> Plan:
    """Every ``check_balance_seconds``, and again at once while there was something to do, or when a capture has come:
    after a restart it is not to stand idle until the minute is over."""
    working = tuple(view.working)
    is_due = now_seconds >= requests.next_check_seconds or not set(working) <= set(requests.checked_for)
    if not is_due or view.captures.stopping or requests.drained is not None:
        return Plan()
    if not view.is_settled or len(working) < 2:
        return Plan()
    by_capture = {c: view.tables_of(c) for c in view.working}
    moves = even_out(by_capture) or calm(by_capture, view.traffic)
    if not moves:
        requests.next_check_seconds = now_seconds + view.settings.check_balance_seconds
        requests.checked_for = working
        return Plan()
    most = view.settings.move_table_batch_size
    tasks = [MoveTables(tuple(tables[:most]), c) for (_, c), tables in moves.items()]
    return Plan(tuple(tasks[: view.settings.max_task_concurrency]))


def _moves(view: View, shares: Mapping[CaptureId, Sequence[TableId]]) -> list[Task]:
    most = view.settings.move_table_batch_size
    tasks: list[Task] = [MoveTables(tuple(tables[:most]), capture) for capture, tables in shares.items() if tables]
    return tasks[: view.settings.max_task_concurrency]
