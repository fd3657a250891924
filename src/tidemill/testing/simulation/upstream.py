"""The upstream: tables that come and go, rows, and DDLs. A table has one physical id, its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.control.barriers import Pending
from tidemill.model.schedule import TableId
from tidemill.model.ts import Ts
from tidemill.testing.simulation.world import World


@dataclass(slots=True)
class SimTable:
    """A row, or a schema, at its ts. ``physical_id`` and ``until_ts``: as what follows a table has them."""

    id: int
    born_ts: Ts
    until_ts: Ts | None = None
    rows: list[Ts] = field(default_factory=list)  # commit-ts, ascending

    @property
    def physical_id(self) -> int:
        return self.id


class Upstream:
    """Also the schema store that owners and lanes ask; what they may know of it is up to ``world.past_ts``."""

    def __init__(self, world: World, tables: int) -> None:
        self._world = world
        start_ts = world.ts()
        self.tables_by_id = {number: SimTable(number, start_ts) for number in range(1, tables + 1)}
        self.start_ts = start_ts
        self.ddls: list[Pending] = []
        self.stuck: dict[int, Ts] = {}  # tables whose regions promise nothing new
        self._ids: tuple[tuple[int, Ts], tuple[TableId, ...]] = ((-1, Ts(0)), ())

    # What happens to it.

    def write(self, number: int) -> None:
        table = self.tables_by_id[number]
        if table.until_ts is None:
            table.rows.append(self._world.ts())

    def ddl(self, kind: str, number: int) -> None:
        """``create``, ``alter`` or ``drop`` a table."""
        ts = self._world.ts()
        if kind == "create":
            self.tables_by_id[number] = SimTable(number, ts)
        elif kind == "drop":
            self.tables_by_id[number].until_ts = ts
        self.ddls.append(Pending(ts, frozenset({number})))
        self._world.note("upstream: {} table {} at {}", kind, number, ts)

    @property
    def living(self) -> list[int]:
        return [number for number, table in self.tables_by_id.items() if table.until_ts is None]

    def resolved_ts(self, number: int) -> Ts:
        return self.stuck.get(number, self._world.past_ts)

    # What is asked of it.

    def captured(self, ddl_ts: Ts) -> tuple[TableId, ...]:
        """All tables but those that a DDL has dropped which has run."""
        mark = (len(self.ddls), ddl_ts)
        if self._ids[0] != mark:
            there = [t for t in self.tables_by_id.values() if t.until_ts is None or t.until_ts > ddl_ts]
            found = tuple(TableId(table.id) for table in there)
            self._ids = (mark, self._ids[1] if found == self._ids[1] else found)
        return self._ids[1]

    def table(self, physical_id: int, commit_ts: int) -> SimTable | None:
        table = self.tables_by_id.get(physical_id)
        if table is None or commit_ts <= table.born_ts:
            return None
        return table if table.until_ts is None or commit_ts <= table.until_ts else None

    def tables_above(self, physical_id: int, ts: int) -> list[SimTable]:
        table = self.tables_by_id.get(physical_id)
        return [table] if table is not None and (table.until_ts is None or table.until_ts > ts) else []

    def followed(self) -> Iterator[SimTable]:
        yield from self.tables_by_id.values()
