"""What an executor has at a moment, which is what its agent tells the owner. Pure.

A real executor and a simulated one both say it by ``held``, and take a ``Stop`` apart by ``ending``: what these leave
out, the simulation finds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidemill.model.orders import Assignment
from tidemill.model.schedule import NO_TS, REST, TableId, TableState, TableStatus
from tidemill.model.ts import Ts

_WRITTEN = frozenset({TableState.REPLICATING, TableState.STOPPING})


@dataclass(frozen=True, slots=True)
class Holdings:
    """What an executor has at this moment. A table that is one of the rest need not be named. One that is on its way
    from one lane to another of the same executor is being written: what is absent here may be given to others."""

    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)
    not_of_rest: frozenset[TableId] = frozenset()  # where it has the rest: tables that others have

    def of(self, table: TableId) -> TableStatus:
        found = self.tables.get(table)
        if found is not None:
            return found
        rest = self.tables.get(REST)
        if rest is not None and rest.state in _WRITTEN and table not in self.not_of_rest:
            return replace(rest, table=table, is_of_rest=True, rows_per_second=0.0)
        return TableStatus(table, TableState.ABSENT)


@dataclass(frozen=True, slots=True)
class HeldLane:
    """A lane that writes. ``at``: where its tables are, by name, and where the rest is, if it has that."""

    assignment: Assignment
    at: Mapping[TableId, Ts]
    resolved_ts: Ts = NO_TS


def held(
    lanes: Iterable[HeldLane],
    between: Collection[int],
    prepared: Mapping[TableId, TableStatus],
    stopped: Mapping[TableId, Ts | None],
    under_way: Mapping[TableId, TableState],
) -> Holdings:
    """``between``: tables on their way from one lane to another. ``prepared``: those that are, or are being.
    ``stopped``: up to where each may have been written. ``under_way``: what a command is at work for, and what it is
    until that is done."""
    found, not_of_rest = dict(prepared), frozenset[int]()
    found |= {TableId(table): TableStatus(TableId(table), TableState.REPLICATING) for table in between}
    for lane in lanes:
        for table, ts in lane.at.items():
            found[table] = TableStatus(table, TableState.REPLICATING, ts, Ts(max(ts, lane.resolved_ts)))
        if lane.assignment.is_rest:
            not_of_rest = lane.assignment.tables
    for table, written_ts in stopped.items():
        found[table] = TableStatus(table, TableState.STOPPED, written_ts=written_ts)
    for table, state in under_way.items():
        found[table] = replace(found.get(table) or TableStatus(table, state), state=state)
    return Holdings(found, frozenset(TableId(table) for table in not_of_rest))


@dataclass(frozen=True, slots=True)
class Ending:
    """What a ``Stop`` means: what is only ``prepared`` is dropped, and nothing else, since it may be written here as
    one of the rest; what is ``written`` by name is given up; the rest is let go of as a whole."""

    prepared: frozenset[int]
    written: frozenset[int]
    is_rest: bool


def ending(tables: Iterable[TableId], prepared: Collection[TableId]) -> Ending:
    """``prepared``: all that are, or are being."""
    told = frozenset(tables)
    only = told & frozenset(prepared)
    return Ending(frozenset(only - {REST}), frozenset(told - only - {REST}), REST in told - only)
