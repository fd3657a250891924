"""The kinds of downstream, as the driver sees them: what can be compared of each table, and the sources of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.session import Flavor
from tidemill.verify.forms import Comparison
from tidemill.verify.mysql import MysqlDownstream, MysqlSource, is_readable, type_differs
from tidemill.verify.sources import Source


@dataclass(frozen=True, slots=True)
class Survey:
    """A table to look for downstream."""

    table: TableInfo  # with the columns that the changefeed selects
    left_out: frozenset[str] = frozenset()  # the others, in small letters: the downstream may have them or not


@dataclass(slots=True)
class Surveyed:
    """A table downstream. ``comparison`` is None where nothing of it can be compared."""

    comparison: Comparison | None
    problems: list[str] = field(default_factory=list)  # sentences


class Side(Protocol):
    """``has_sql``: whether statements could mend it. ``is_live``: it can only be read as it is, whatever the ts."""

    has_sql: bool
    is_live: bool

    def survey(self, wanted: Sequence[Survey], ts: Ts) -> Mapping[int, Surveyed]:
        """By table id."""
        ...

    def sources(self, comparison: Comparison, ts: Ts) -> list[Source]: ...


class MysqlSide:
    has_sql = True

    def __init__(self, downstream: MysqlDownstream, snapshot_ts: int | None = None) -> None:
        self.downstream = downstream
        self.snapshot_ts = snapshot_ts
        self.is_live = snapshot_ts is None

    def survey(self, wanted: Sequence[Survey], ts: Ts) -> Mapping[int, Surveyed]:
        found = self.downstream.columns([one.table for one in wanted], self.snapshot_ts)
        return {one.table.id: self._survey(one, found.get((one.table.schema, one.table.name))) for one in wanted}

    def sources(self, comparison: Comparison, ts: Ts, where: str = "") -> list[Source]:
        return [MysqlSource(self.downstream.settings, comparison, self.snapshot_ts, where)]

    def _survey(self, wanted: Survey, columns: Mapping[str, tuple[str, str]] | None) -> Surveyed:
        table = wanted.table
        if columns is None:
            return Surveyed(None, ["the downstream has no such table, or its user may not see it"])
        problems, kept = [], []
        for column in table.columns:
            found = columns.get(column.name.lower())
            if found is None:
                if not column.is_virtual:
                    problems.append(f"column {column.name!r} is missing downstream")
                continue
            difference = type_differs(column, *found)
            if difference:
                problems.append(f"column {column.name!r} has another type: {difference}")
            if is_readable(column, *found):
                kept.append(column)
        known = {column.name.lower() for column in table.columns} | wanted.left_out
        problems += [f"column {name!r} is there downstream only" for name in columns if name not in known]
        reduced = table if len(kept) == len(table.columns) else table.with_columns(kept)
        is_whole = {c.name for c in table.handle_key} <= {c.name for c in kept}
        if not is_whole:
            problems.append("its rows were not compared: their key is not the same downstream")
            return Surveyed(None, problems)
        reduced = reduced if reduced.handle_key else table
        return Surveyed(Comparison(reduced, spells_json=self.downstream.flavor is Flavor.MYSQL), problems)
