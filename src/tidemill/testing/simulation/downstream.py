"""The downstream: a sink that knows terms and generations, and what must hold of the rows in it.

A word of an owner whose term is over has no effect, nor has a row of a writer that is fenced, or of an old generation.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable

from tidemill.control.barriers import Pending
from tidemill.errors import SupersededError
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts
from tidemill.testing.simulation.upstream import Upstream
from tidemill.testing.simulation.world import Violation, World


class Downstream:
    def __init__(self, world: World, upstream: Upstream) -> None:
        self._world, self._upstream = world, upstream
        self._term = 0
        self._generations: dict[str, int] = {}
        self._fenced: set[str] = set()
        self._count: dict[int, int] = {}  # of each table: its first so many rows are here
        self._ran: dict[int, Ts] = {}  # of each table: the last DDL that has run
        self.can_write: Callable[[int], Iterable[str]] = lambda table: ()  # writers that believe to have a table
        self.late = 0  # rows that were refused
        self.rows = 0

    # Owners.

    def begin(self, term: int) -> None:
        self._term = max(self._term, term)

    def fence(self, term: int, writers: Collection[str] | None = None) -> None:
        """None: all that there have been."""
        self._check(term)
        self._fenced |= set(self._generations if writers is None else writers)

    def is_fenced(self, writer: str) -> bool:
        return writer in self._fenced

    def _check(self, term: int) -> None:
        if term < self._term:
            raise SupersededError(f"the sink has an owner of term {self._term}")

    def ddl(self, term: int, ddl: Pending) -> None:
        self._check(term)
        for number in ddl.touched:
            rows = self._upstream.tables_by_id[number].rows
            if self._count.get(number, 0) < bisect_right(rows, ddl.ts):
                raise Violation(f"the DDL at {ddl.ts} ran before a row of table {number} that goes before it")
            self._ran[number] = max(ddl.ts, self._ran.get(number, ddl.ts))

    # Writers.

    def recover(self, writer: str, term: int) -> int:
        """A new generation. ``term``: of the owner that has admitted the writer. One that begins late, for an owner
        that is gone, could not be fenced by name: nobody knew it."""
        self._check(term)
        if writer in self._fenced:
            raise SupersededError(f"writer {writer} is fenced")
        self._generations[writer] = self._generations.get(writer, 0) + 1
        return self._generations[writer]

    def write(self, writer: str, generation: int, number: int, ts: Ts) -> None:
        if writer in self._fenced or self._generations.get(writer) != generation:
            self.late += 1
            return
        others = [name for name in self.can_write(number) if name != writer and name not in self._fenced]
        if others:
            raise Violation(f"table {number} has two writers: {writer} wrote {ts}, and {others[0]} has it, too")
        rows = self._upstream.tables_by_id[number].rows
        index, here = bisect_left(rows, ts), self._count.get(number, 0)
        if index > here:
            raise Violation(f"row {ts} of table {number} came before row {rows[here]}")
        ddl_ts = max((d.ts for d in self._upstream.ddls if number in d.touched and d.ts < ts), default=Ts(0))
        if ddl_ts > self._ran.get(number, Ts(0)):
            raise Violation(f"row {ts} of table {number} came before the DDL at {ddl_ts} had run")
        self._count[number] = max(here, index + 1)
        self.rows += 1

    def has_ended(self, number: int) -> bool:
        """Whether all rows of a table are here, and there will never be another."""
        table = self._upstream.tables_by_id.get(number)
        return table is None or (table.until_ts is not None and self._count.get(number, 0) == len(table.rows))

    def check_saved(self, at: Checkpoints) -> None:
        """Whatever is said to be durable is here."""
        for number, table in self._upstream.tables_by_id.items():
            here = self._count.get(number, 0)
            if here < len(table.rows) and table.rows[here] <= at.of(number):
                raise Violation(
                    f"table {number} is said to be at {at.of(number)}, and row {table.rows[here]} is missing"
                )
