"""A lane: some tables of a capture that move together. Its decisions are those of ``control.progress``.

A batch is written by *workers*: they are no part of the capture's process, and go on when that is stopped or killed.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace

from tidemill.control.barriers import Barriers
from tidemill.control.progress import Advance, Offer, Progress, began, decide, moved
from tidemill.errors import SupersededError
from tidemill.model.orders import Assignment, Committed, Orders, Report
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import Ts
from tidemill.testing.simulation.downstream import Downstream
from tidemill.testing.simulation.upstream import SimTable, Upstream
from tidemill.testing.simulation.world import Process, Work, World

_WRITE_MS = (2, 12)
_MOST_ROWS = 12  # of a batch


class Lane:
    def __init__(
        self,
        world: World,
        upstream: Upstream,
        downstream: Downstream,
        process: Process,
        name: str,
        term: int,
        assignment: Assignment,
        at: Checkpoints,
        report: Callable[[Report], None],
    ) -> None:
        """It sleeps until it is woken: it reads, and writes nothing. ``term``: of its owner."""
        self.world, self._upstream, self._downstream, self._process = world, upstream, downstream, process
        self.name, self._term, self.assignment = name, term, assignment
        self._say = report
        self.is_awake = self.is_closed = False
        self.generation = 0
        self.written_ts: Ts | None = None
        self._made = self.saved = 0
        self._reported: Checkpoints | None = None
        self.progress = Progress(at, Ts(0), at.lowest_ts, Ts(0))
        self.failure: SupersededError | None = None

    # What it has.

    def read(self) -> Iterator[SimTable]:
        """The tables whose rows are still to come."""
        at = self.progress.at
        for table in self._upstream.tables_by_id.values():
            if table.id in self.assignment and (table.until_ts is None or table.until_ts > at.of(table.id)):
                yield table

    @property
    def ids(self) -> frozenset[int]:
        """Those that it answers for by name, also where only the DDL has still to run that ends one."""
        if self.assignment.is_rest:
            return frozenset()
        ended = (t.id for t in self._upstream.tables_by_id.values() if (t.until_ts or 0) > self.progress.ddl_ts)
        return frozenset((*(table.id for table in self.read()), *(i for i in ended if i in self.assignment)))

    @property
    def taken_ts(self) -> Ts:
        flying = self.progress.in_flight
        return max(self.progress.at.highest_ts, flying.highest_ts if flying is not None else Ts(0))

    @property
    def frontier_ts(self) -> Ts:
        return Ts(min((self._upstream.resolved_ts(table.id) for table in self.read()), default=self.world.past_ts))

    def wake(self, assignment: Assignment, at: Checkpoints, orders: Orders, written_ts: Ts | None) -> None:
        self.generation = self._downstream.recover(self.name, self._term)
        self.assignment, self.is_awake, self.written_ts = assignment, True, written_ts
        self.progress = replace(self.progress, at=at)
        self.obey(orders)

    def obey(self, orders: Orders) -> None:
        self.saved = max(self.saved, orders.saved.get(self.name, 0))
        ddl_ts = max(self.progress.ddl_ts, orders.ddl_ts)
        self.progress = replace(self.progress, ddl_ts=ddl_ts, is_stopping=orders.is_stopping)

    # How it moves.

    def turn(self) -> None:
        if not self.is_awake or self.is_closed or self.failure is not None:
            return
        self._look()
        while True:
            match decide(self.progress, self._has_rows):
                case Advance(extent):
                    self.progress = moved(self.progress, extent)
                    continue
                case Offer(limit_ts):
                    self._begin(limit_ts)
            break
        if self.progress.at != self._reported:
            self.report()

    def _look(self) -> None:
        read = {table.id for table in self.read()}
        first, by_id = None, dict[int, Ts]()
        for ddl in self._upstream.ddls:
            if ddl.ts > self.progress.ddl_ts:
                first = first or ddl
                for number in ddl.touched & read:
                    by_id.setdefault(number, ddl.ts)
        self.progress = replace(
            self.progress,
            frontier_ts=self.frontier_ts,
            schema_ts=self.world.past_ts,
            barriers=Barriers(first, by_id),
        )

    def _rows(self, extent: Extent) -> list[tuple[Ts, int]]:
        found = []
        for table in self.read():
            low, high = extent.of(table.id)
            found += [
                (ts, table.id) for ts in table.rows[bisect_right(table.rows, low) : bisect_right(table.rows, high)]
            ]
        return sorted(found)

    def _has_rows(self, extent: Extent) -> bool:
        return bool(self._rows(extent))

    def _begin(self, limit_ts: Ts) -> None:
        rows = self._rows(self.progress.extent(limit_ts))
        above = [ts for ts, _ in rows if ts > self.progress.at.base_ts]
        if len(above) > _MOST_ROWS:
            limit_ts = above[_MOST_ROWS]
        extent = self.progress.extent(limit_ts)
        rows = [(ts, number) for ts, number in self._rows(extent)]
        self.progress = began(self.progress, extent)
        self.written_ts = max(self.written_ts or Ts(0), extent.highest_ts)
        done: list[bool] = []
        self.world.spawn(self._write(rows, self.generation, done))
        self.world.spawn(self._commit(extent, len(rows), self.generation, done), self._process)

    def _write(self, rows: list[tuple[Ts, int]], generation: int, done: list[bool]) -> Work:
        """Workers: nobody's process. One of them may hang for long, and be killed with its capture or not."""
        chance = self.world.chance
        for ts, number in rows:
            yield chance.randint(*_WRITE_MS) if chance.random() > 0.005 else chance.randint(50, 2_500)
            self._downstream.write(self.name, generation, number, ts)
        done.append(True)

    def _commit(self, extent: Extent, rows: int, generation: int, done: list[bool]) -> Work:
        yield lambda: bool(done)
        if self.is_closed or generation != self.generation:
            return
        if self._downstream.is_fenced(self.name):
            self.failure = SupersededError(f"writer {self.name} is fenced")
            return
        self.progress = moved(self.progress, extent)
        self.report(committed=Committed(rows, {}))
        self.turn()

    # What it says.

    def report(self, **what: object) -> int:
        self._made += 1
        self._reported = self.progress.at
        self._say(Report(self.name, self._made, self.assignment, self._reported, self.ids, **what))  # type: ignore[arg-type]  # as Report has it
        return self._made

    # How tables come and go, between two batches.

    def between_batches(self) -> Work:
        self.progress = replace(self.progress, is_paused=True)
        yield lambda: self.progress.in_flight is None or self.failure is not None
        if self.failure is not None:
            raise self.failure

    def go_on(self) -> None:
        self.progress = replace(self.progress, is_paused=False)
        self.turn()

    def durable(self, **what: object) -> Work:
        number = self.report(**what)
        yield lambda: self.saved >= number

    def give_up(self, tables: frozenset[int], out: dict[int, tuple[dict[int, Ts], Ts | None]]) -> Work:
        """Of each table, into ``out``: where it is, and up to where it may be written."""
        yield from self.between_batches()
        at = self.progress.at
        gone = {table.id: at.of(table.id) for table in self.read() if table.id in tables}
        self.assignment = self.assignment.minus(tables)
        self.progress = replace(self.progress, at=at.without(gone))
        yield from self.durable(gone=gone)
        for number in tables:
            out[number] = ({i: ts for i, ts in gone.items() if i == number}, self.written_ts)
        self.go_on()

    def accept(self, tables: frozenset[int], at: dict[int, Ts], written_ts: Ts | None, refused: list[bool]) -> Work:
        """Take tables over; ``refused`` says whether one is below what was taken here."""
        yield from self.between_batches()
        if any(ts < self.taken_ts for ts in at.values()):
            refused.append(True)
            self.go_on()
            return
        self.generation = self._downstream.recover(self.name, self._term)
        self.written_ts = max(self.written_ts or Ts(0), written_ts or Ts(0))
        self.assignment = self.assignment.plus(tables)
        self.progress = replace(self.progress, at=self.progress.at.having(at))
        yield from self.durable(came=frozenset(at))
        self.go_on()

    def close(self) -> None:
        """Nothing is begun any more. What its workers do is another matter."""
        self.is_closed = True
