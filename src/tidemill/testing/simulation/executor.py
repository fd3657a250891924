"""What a capture does when its agent is told to: like the processor of a real one, with lanes that take their time."""

from collections.abc import Callable, Iterator

from tidemill.control.scheduler.agent import Command, Prepare, Release, Reset, Run, Stop
from tidemill.control.scheduler.holdings import HeldLane, Holdings, ending, held
from tidemill.errors import SupersededError
from tidemill.model.orders import Assignment, Handover, Orders, Report, joined
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import REST, AddTable, TableId, TableState, TableStatus, Takeover
from tidemill.model.ts import Ts
from tidemill.testing.simulation.downstream import Downstream
from tidemill.testing.simulation.lanes import Lane
from tidemill.testing.simulation.upstream import Upstream
from tidemill.testing.simulation.world import Process, Wait, Work, World

Admit = Callable[[str, Assignment, Checkpoints, str | None, Callable[[Orders], None]], None]


class Executor:
    """For one owner. ``admit`` asks it to let a lane begin, and calls back with its orders, or never."""

    def __init__(
        self,
        world: World,
        upstream: Upstream,
        downstream: Downstream,
        process: Process,
        name: str,
        term: int,
        admit: Admit,
        report: Callable[[Report], None],
    ) -> None:
        self._world, self._upstream, self._downstream, self._process = world, upstream, downstream, process
        self.name, self._term, self._admit, self._report = name, term, admit, report
        self._born = 0
        self.main: Lane | None = None
        self.others: list[Lane] = []
        self._ending: list[Lane] = []  # which have still to hear that their last report was saved
        self._prepared: list[tuple[Lane, frozenset[int]]] = []
        self._between: frozenset[int] = frozenset()  # tables on their way from one lane to another
        self._since: dict[TableId, Ts] = {}
        self._ready: set[TableId] = set()
        self._stopped: dict[TableId, Ts | None] = {}
        self._under_way: dict[TableId, TableState] = {}
        self._is_moving = False
        self.is_closed = False
        self.failure: SupersededError | None = None
        self.orders: Orders | None = None

    @property
    def lanes(self) -> Iterator[Lane]:
        if self.main is not None:
            yield self.main
        yield from self.others

    def close(self) -> None:
        self.is_closed = True
        for lane in self.lanes:
            lane.close()

    def hear(self, orders: Orders) -> None:
        self.orders = orders
        for lane in (*self.lanes, *self._ending):
            lane.obey(orders)
            lane.turn()

    def turn(self) -> None:
        for lane in self.lanes:
            lane.turn()
            self.failure = self.failure or lane.failure

    # What it is told.

    def obey(self, command: Command) -> None:
        match command:
            case Prepare(requests):
                self._begin(TableState.PREPARING, [r.table for r in requests], self._prepare(requests))
            case Run(requests):
                self._begin(TableState.PREPARED, [r.table for r in requests], self._run(requests))
            case Stop(tables):
                self._begin(TableState.STOPPING, list(tables), self._stop(tables))
            case Release(tables):
                for table in tables:
                    self._stopped.pop(table, None)
            case Reset():
                raise AssertionError("a new owner gets a new executor")

    def _begin(self, state: TableState, tables: list[TableId], work: Work) -> None:
        for table in tables:
            self._under_way[table] = state
            self._stopped.pop(table, None)
        self._world.spawn(self._kept(tables, work), self._process)

    def _kept(self, tables: list[TableId], work: Work) -> Work:
        """One after the other; what fails ends the processor."""
        yield self._world.chance.randint(1, 40)
        if self._is_moving:
            yield lambda: not self._is_moving
        self._is_moving = True
        try:
            yield from self._guarded(work)
        finally:
            self._is_moving = False
        if self.failure is None:
            for table in tables:
                self._under_way.pop(table, None)

    def _guarded(self, work: Work) -> Iterator[Wait]:
        try:
            for wait in work:
                yield wait
                if self.is_closed:
                    return
        except SupersededError as error:
            self.failure = error

    def _lane(self, assignment: Assignment, at: Checkpoints) -> Lane:
        self._born += 1
        return Lane(
            self._world, self._upstream, self._downstream, self._process, f"{self.name}/{self._born}", self._term,
            assignment, at, self._report,
        )  # fmt: skip

    def _prepare(self, requests: tuple[AddTable, ...]) -> Work:
        tables = frozenset(request.table for request in requests)
        since_ts = Ts(min(request.checkpoint_ts for request in requests))
        self._since |= dict.fromkeys(tables, since_ts)
        if tables - {REST}:
            lane = self._lane(Assignment(frozenset[int](tables - {REST})), Checkpoints(since_ts))
            self._prepared.append((lane, frozenset[int](tables - {REST})))
        self._world.spawn(self._get_ready(tables), self._process)
        yield 1

    def _get_ready(self, tables: frozenset[TableId]) -> Work:
        yield self._world.chance.randint(10, 250)
        self._ready |= {table for table in tables if table in self._since}

    def _drop_prepared(self, tables: frozenset[int]) -> None:
        self._prepared = [each for each in self._prepared if not each[1] & tables]

    def _run(self, requests: tuple[AddTable, ...]) -> Work:
        handovers = [request.handover for request in requests if request.handover is not None]
        if handovers:
            yield from self._accept(joined(handovers))
        for request in requests:
            if request.takeover is not None:
                yield from self._take_rest(request.takeover)
            self._since.pop(request.table, None)
            self._ready.discard(request.table)

    def _accept(self, handover: Handover) -> Work:
        ready = next((lane for lane, tables in self._prepared if tables == handover.tables), None)
        self._drop_prepared(handover.tables)
        if ready is None and self.main is not None:
            refused: list[bool] = []
            if all(ts >= self.main.taken_ts for ts in handover.at.values()):
                yield from self.main.accept(handover.tables, dict(handover.at), handover.written_ts, refused)
                if not refused:
                    return
        orders = self.orders
        base_ts = min(handover.at.values(), default=orders.ddl_ts if orders is not None else Ts(0))
        at = Checkpoints(base_ts).having(handover.at)
        if ready is not None and base_ts < ready.progress.at.base_ts:
            raise AssertionError("it is prepared from where it has been already")
        lane = ready or self._lane(Assignment(handover.tables), at)
        yield from self._open(lane, Assignment(handover.tables), at, handover.written_ts, None)
        yield from lane.durable(came=frozenset(handover.at) | lane.ids)

    def _take_rest(self, takeover: Takeover) -> Work:
        lane = self._lane(takeover.assignment, takeover.at)
        yield from self._open(lane, takeover.assignment, takeover.at, takeover.written_ts, takeover.replaces)
        yield from lane.durable(came=frozenset())

    def _open(
        self, lane: Lane, assignment: Assignment, at: Checkpoints, written_ts: Ts | None, replaces: str | None
    ) -> Work:
        answers: list[Orders] = []
        self._admit(lane.name, assignment, at, replaces, answers.append)
        yield lambda: bool(answers)
        orders = self.orders or answers[0]
        orders = orders if orders.ddl_ts >= answers[0].ddl_ts else answers[0]
        yield self._world.chance.randint(1, 30)  # the sink recovers
        lane.wake(assignment, at, orders, written_ts)
        if assignment.is_rest:
            self.others += [self.main] if self.main is not None else []
            self.main = lane
        elif self.main is None:
            self.main = lane
        else:
            self.others.append(lane)
        lane.turn()

    def _stop(self, tables: tuple[TableId, ...]) -> Work:
        ends = ending(tables, self._preparing)
        written: dict[TableId, Ts | None] = dict.fromkeys(tables)
        self._drop_prepared(ends.prepared)
        for table in tables:
            self._since.pop(table, None)
            self._ready.discard(table)
        for lane in list(self.lanes):
            mine = frozenset(table for table in ends.written if table in lane.assignment)
            if mine:
                out: dict[int, tuple[dict[int, Ts], Ts | None]] = {}
                yield from lane.give_up(mine, out)
                written |= {TableId(table): ts for table, (_, ts) in out.items()}
        rest = next((lane for lane in self.lanes if lane.assignment.is_rest), None)
        if ends.is_rest and rest is not None:
            yield from rest.between_batches()
            rest.close()
            written[REST] = rest.written_ts
            self._remove(rest)
        yield from self._close_empty()
        self._stopped |= written

    def _close_empty(self) -> Work:
        for lane in [each for each in self.lanes if each.assignment == Assignment()]:
            self._remove(lane)
            lane.close()
            self._ending.append(lane)
            yield from lane.durable(is_last=True)
            self._ending.remove(lane)

    def _remove(self, lane: Lane) -> None:
        if lane is self.main:
            self.main = self.others.pop(0) if self.others else None
        else:
            self.others.remove(lane)

    # Lanes part and join by themselves.

    def rearrange(self) -> Work:
        """A table that is slow gets a lane of its own; one that has caught up joins the main lane again."""
        main = self.main
        if self._is_moving or main is None or self.is_closed:
            return
        self._is_moving = True
        try:
            yield from self._guarded(self._join_or_part(main))
        finally:
            self._is_moving = False

    def _join_or_part(self, main: Lane) -> Work:
        for lane in list(self.others):
            if not lane.assignment.is_rest and lane.progress.at.lowest_ts >= main.progress.at.base_ts:
                yield from self._transfer(lane, frozenset(lane.assignment.tables))
                yield from self._close_empty()
                return
        slow = frozenset(table.id for table in main.read() if table.id in self._upstream.stuck)
        if slow:
            yield from self._transfer(main, slow)

    def _transfer(self, lane: Lane, tables: frozenset[int]) -> Work:
        out: dict[int, tuple[dict[int, Ts], Ts | None]] = {}
        self._between = tables
        yield from lane.give_up(tables, out)
        at = {i: ts for ids, _ in out.values() for i, ts in ids.items()}
        written_ts = max((ts for _, ts in out.values() if ts is not None), default=None)
        yield from self._accept(Handover(tables, at, written_ts))
        self._between = frozenset()

    # How its tables are.

    @property
    def _preparing(self) -> dict[TableId, TableStatus]:
        """Of the tables of a lane that was given up with one of them, none is."""
        there = {REST, *(TableId(table) for _, tables in self._prepared for table in tables)}
        found = {}
        for table, since_ts in self._since.items():
            if table in there:
                state = TableState.PREPARED if table in self._ready else TableState.PREPARING
                found[table] = TableStatus(table, state, since_ts)
        return found

    @property
    def holdings(self) -> Holdings:
        lanes = []
        for lane in self.lanes:
            names = [REST] if lane.assignment.is_rest else [TableId(t) for t in lane.assignment.tables]
            lanes.append(HeldLane(lane.assignment, dict.fromkeys(names, lane.progress.at.lowest_ts)))
        return held(lanes, self._between, self._preparing, self._stopped, self._under_way)
