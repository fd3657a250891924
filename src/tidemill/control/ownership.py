"""What the owner of a changefeed knows of its processors, and what it may do next. Pure: state in, decision out.

The checkpoint of the changefeed is the lowest of all its tables', wherever they are: with a processor, or on their way
from one to another. It does not move while a table is missing.

A DDL at F runs once each table that it touches *is* at F, that is, every row of theirs with commit-ts ≤ F is durable
and no later one, and all others have passed F, but for those that wait for a DDL themselves. Where readers take a DDL
for a promise about all tables, as a queue's do (``orders_ddls``), these have to be there as well. DDLs run in order. A
sync point is noted when all tables are exactly there, and every DDL up to it has run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from tidemill.control.barriers import Barriers, Pending
from tidemill.errors import InvariantError
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import MAX_TS, Ts

_MOST_TOGETHER = 64  # DDLs: what comes again after a crash


@dataclass(frozen=True, slots=True)
class Ownership:
    """``ddl_ts``: every DDL with finished-ts ≤ it has run, and the schema is that of this ts for all tables: of those
    that are further behind it has not changed since."""

    at: Mapping[str, Checkpoints]  # of each processor's tables
    ddl_ts: Ts
    schema_ts: Ts
    barriers: Barriers = field(default_factory=Barriers)
    in_transit: Mapping[int, Ts] = field(default_factory=dict)  # physical ids that no processor has
    target_ts: Ts | None = None
    orders_ddls: bool = False  # each runs behind every row before it, of whatever table
    sync_ts: Ts | None = None  # where the sink wants to be told that everything is there, and nothing beyond
    is_ddl_running: bool = False
    is_syncing: bool = False
    is_stopping: bool = False

    @property
    def lowest_ts(self) -> Ts:
        """Where the table is that is furthest behind."""
        return Ts(min((*(at.lowest_ts for at in self.at.values()), *self.in_transit.values()), default=MAX_TS))

    @property
    def base_ts(self) -> Ts:
        """Where most tables are, of the processor that is furthest behind."""
        return Ts(min((at.base_ts for at in self.at.values()), default=MAX_TS))

    @property
    def checkpoint_ts(self) -> Ts:
        """Every row up to here is durable, every DDL below it has run."""
        known_ts = min(self.lowest_ts, Ts(self.ddl_ts + 1))  # a restart has yet to hear of what has not run
        first = self.barriers.first
        return known_ts if first is None else min(known_ts, first.ts)

    @property
    def is_finished(self) -> bool:
        """Everything up to the target is durable, a DDL exactly at it included."""
        if self.target_ts is None or min(self.lowest_ts, self.schema_ts) < self.target_ts:
            return False
        return self.barriers.first is None or self.barriers.first.ts > self.target_ts

    def is_at(self, ddl: Pending) -> bool:
        """Whether every row is durable that goes before it."""
        if self.orders_ddls and self.lowest_ts < ddl.ts:
            return False
        if self.base_ts < ddl.ts or any(self.in_transit.get(i, MAX_TS) < ddl.ts for i in ddl.touched):
            return False
        return all(at.of(i) >= ddl.ts for at in self.at.values() for i in ddl.touched)


def can_run_ddl(owned: Ownership) -> bool:
    """Whether the first DDL that waits may run now. Batches of other tables go on meanwhile. After a restart it waits
    until everything is known again that was: what is saved then speaks of all tables and DDLs."""
    first = owned.barriers.first
    if first is None or owned.is_ddl_running or owned.is_syncing or owned.is_stopping:
        return False
    highest_ts = max((at.base_ts for at in owned.at.values()), default=MAX_TS)
    return owned.schema_ts >= highest_ts and owned.is_at(first)


def first_ddls(owned: Ownership, waiting: Iterable[Pending]) -> int:
    """Where the first DDL that waits may run now: how many may, up to one that touches what another one does, or that
    has to wait. Each would be next by itself as soon as those before it have run."""
    count, touched = 0, set[int]()
    for ddl in islice(waiting, _MOST_TOGETHER):
        if not touched.isdisjoint(ddl.touched) or not owned.is_at(ddl):
            break
        count, touched = count + 1, touched | ddl.touched
    return count


def can_sync(owned: Ownership) -> bool:
    """Whether everything is where the sink wants to note it."""
    at, first = owned.sync_ts, owned.barriers.first
    if at is None or owned.is_ddl_running or owned.is_syncing or min(owned.lowest_ts, owned.schema_ts) < at:
        return False
    return first is None or first.ts > at


def reported(owned: Ownership, processor: str, at: Checkpoints) -> Ownership:
    """A processor is further. Raises where one of its tables would have moved back, or passed what holds all."""
    before = owned.at.get(processor)
    if before is None:
        raise InvariantError(f"processor {processor!r} reports, and no table is assigned to it. Report it.")
    for physical_id in before.own.keys() & at.own.keys():
        if at.own[physical_id] < before.own[physical_id]:
            raise InvariantError(f"table {physical_id} of processor {processor!r} would move back. Report it.")
    if at.base_ts < before.base_ts:
        raise InvariantError(f"processor {processor!r} would move back from {before.base_ts} to {at.base_ts}.")
    if owned.sync_ts is not None and at.highest_ts > owned.sync_ts:
        raise InvariantError(f"processor {processor!r} has passed the sync point {owned.sync_ts}. Report it.")
    return _settled(replace(owned, at={**owned.at, processor: at}))


def accepted(owned: Ownership, processor: str, at: Checkpoints, ids: Iterable[int] = ()) -> Ownership:
    """A processor has come, or has taken tables over: ``at`` is where all of its tables are; ``ids``: the new ones."""
    here = frozenset(ids)
    left = {i: ts for i, ts in owned.in_transit.items() if i not in here}
    return replace(owned, at={**owned.at, processor: at}, in_transit=left)


def given_up(owned: Ownership, processor: str, at: Checkpoints, gone: Mapping[int, Ts]) -> Ownership:
    """A processor has let go of tables, and is ``at`` with the others. They are in transit until another has them."""
    return replace(owned, at={**owned.at, processor: at}, in_transit={**owned.in_transit, **gone})


def left(owned: Ownership, processor: str) -> Ownership:
    """A processor that has no tables any more."""
    return replace(owned, at={name: at for name, at in owned.at.items() if name != processor})


def learned(owned: Ownership, schema_ts: Ts, barriers: Barriers) -> Ownership:
    """The DDLs up to ``schema_ts`` are known."""
    return _settled(replace(owned, schema_ts=schema_ts, barriers=barriers))


def ddl_done(owned: Ownership, barriers: Barriers) -> Ownership:
    """The first DDL has run downstream; ``barriers`` are those of the others."""
    return _settled(replace(owned, barriers=barriers, is_ddl_running=False))


def sync_done(owned: Ownership, next_sync_ts: Ts | None) -> Ownership:
    """The sink has noted the checkpoint; ``next_sync_ts`` is where it wants to do so again."""
    if next_sync_ts is not None and next_sync_ts <= owned.base_ts:
        raise InvariantError(f"the sink wants {next_sync_ts} noted, below the checkpoint {owned.base_ts}")
    return replace(owned, sync_ts=next_sync_ts, is_syncing=False)


def _settled(owned: Ownership) -> Ownership:
    """With the ts up to which all DDLs have run; of those above ``schema_ts`` nothing is known, after a restart."""
    first = owned.barriers.first
    ddl_ts = min(owned.base_ts, owned.schema_ts)
    if first is not None:
        ddl_ts = min(ddl_ts, Ts(first.ts - 1))
    return replace(owned, ddl_ts=max(owned.ddl_ts, ddl_ts))
