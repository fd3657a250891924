"""Which tables a lane has."""

from collections.abc import Iterable

from tidemill.flow.filter import TableFilter
from tidemill.flow.schema import SchemaStore
from tidemill.model.orders import Assignment
from tidemill.model.progress import Checkpoints
from tidemill.model.table import TableInfo
from tidemill.model.ts import MAX_TS, Ts


def table_at(store: SchemaStore, physical_id: int, at_ts: Ts, ddl_ts: Ts) -> TableInfo | None:
    """The table of a physical id that is at ``at_ts``, where the DDLs up to ``ddl_ts`` have run. At a DDL that has not
    run it is still what it was: an EXCHANGE PARTITION, say, makes it another's."""
    return store.table(physical_id, at_ts if at_ts > ddl_ts else at_ts + 1)


def holder_at(store: SchemaStore, physical_id: int, at_ts: Ts, ddl_ts: Ts) -> TableInfo | None:
    """The same; if it does not belong to a table yet, the first one that it will belong to."""
    found = table_at(store, physical_id, at_ts, ddl_ts)
    return found or next(iter(store.tables_above(physical_id, at_ts)), None)


class LaneTables:
    """Those of its ``assignment`` that the filter lets through. A physical id may be one table's now, and another's
    after a DDL; a lane that has the latter reads it from now on."""

    def __init__(self, store: SchemaStore, wanted: TableFilter, assignment: Assignment) -> None:
        self._store, self._wanted = store, wanted
        self.assignment = assignment

    def has(self, table: TableInfo) -> bool:
        return table.id in self.assignment and self._wanted.captures(table)

    def touching(self, tables: frozenset[int], read: Iterable[int], at: Checkpoints, ddl_ts: Ts) -> dict[int, Ts]:
        """Of the physical ids that are ``read``, those that are, or will be, of some logical tables; and where."""
        return {i: at.of(i) for i in read if any(t.id in tables for t in self._from(i, at, ddl_ts))}

    def own(self, read: Iterable[int], at: Checkpoints, ddl_ts: Ts) -> set[int]:
        """Of the physical ids that are ``read``, those that are its tables' where they are, or as soon as they are."""
        found = ((i, holder_at(self._store, i, at.of(i), ddl_ts)) for i in read)
        return {i for i, table in found if table is not None and self.has(table)}

    def infos(self, physical_ids: Iterable[int], at: Checkpoints, ddl_ts: Ts) -> list[TableInfo]:
        """The tables of these physical ids that it has, as of where they are; without those that come to be by a DDL
        that has not run: another one may have their name until then."""
        found = (table_at(self._store, i, at.of(i), ddl_ts) for i in physical_ids)
        return list({table.id: table for table in found if table is not None and self.has(table)}.values())

    def names(self, physical_ids: Iterable[int]) -> frozenset[int]:
        """The logical ids of these physical ones, in their newest form."""
        tables = (self._store.table(i, MAX_TS) for i in physical_ids)
        return frozenset(table.id for table in tables if table is not None)

    def _from(self, physical_id: int, at: Checkpoints, ddl_ts: Ts) -> list[TableInfo]:
        """What it is where it is, and whatever it will be."""
        now = table_at(self._store, physical_id, at.of(physical_id), ddl_ts)
        later = self._store.tables_above(physical_id, at.of(physical_id))
        return later if now is None else [now, *later]
