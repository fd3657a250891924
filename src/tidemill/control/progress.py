"""How far a changefeed is, and what it may do next. Pure: state in, decision out.

Some things hold all tables back: the frontier (what the upstream has promised), the schema's own resolved-ts (what we
know of DDL), a sync point of the sink, the target where the changefeed ends. The lowest of them is the limit.

A DDL holds back only the physical tables that it touches, before or after: its barrier. One at F runs once each of
them *is* at F, that is, every row of theirs with commit-ts ≤ F is durable and no later one, and all others have passed
F, but for those that wait for a DDL themselves. DDLs run in order. Then the tables go on from F, and catch up.

    table       ──────────── F ▌ DDL, once F is durable ▐ F ─────────────►  (catching up)
    all others  ──────────────────────────────────────────────────────────►  limit
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidemill.errors import InvariantError
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import MAX_TS, Ts

SLOW_SECONDS = 10.0  # a batch is cut to take half of that at most


@dataclass(frozen=True, slots=True)
class Pending:
    """A DDL that has not run, and the physical ids that it touches. Several may have one ts."""

    ts: Ts
    touched: frozenset[int]


@dataclass(frozen=True, slots=True)
class Barriers:
    """Of the DDLs that have not run: the first one, and for each physical id the first that touches it."""

    first: Pending | None = None
    by_id: Mapping[int, Ts] = field(default_factory=dict)

    @classmethod
    def of(cls, pending: Iterable[Pending]) -> "Barriers":
        """``pending`` in the order in which they run."""
        first, by_id = None, dict[int, Ts]()
        for each in pending:
            first = first or each
            for physical_id in each.touched:
                by_id.setdefault(physical_id, each.ts)
        return cls(first, by_id)


@dataclass(frozen=True, slots=True)
class Progress:
    """``ddl_ts``: every DDL with finished-ts ≤ it has run, and the schema is that of this ts for all tables: of those
    that are further behind it has not changed since."""

    at: Checkpoints
    ddl_ts: Ts
    frontier_ts: Ts
    schema_ts: Ts
    barriers: Barriers = field(default_factory=Barriers)
    target_ts: Ts | None = None
    in_flight: Extent | None = None  # the batch that Spark is working on
    sync_ts: Ts | None = None  # where the sink wants to be told that everything is there, and nothing beyond
    is_ddl_running: bool = False
    is_syncing: bool = False
    is_stopping: bool = False
    waiting: frozenset[int] = frozenset()  # physical ids that may not move yet, although no barrier holds them

    @property
    def checkpoint_ts(self) -> Ts:
        """Of the changefeed: every row up to here is durable, every DDL below it has run."""
        known_ts = min(self.at.lowest_ts, Ts(self.ddl_ts + 1))  # a restart has yet to hear of what has not run
        first = self.barriers.first
        return known_ts if first is None else min(known_ts, first.ts)

    @property
    def limit_ts(self) -> Ts:
        """The highest ts that any checkpoint may reach for now."""
        ends = [self.frontier_ts, self.schema_ts, self.sync_ts, self.target_ts]
        return Ts(min(MAX_TS if end is None else end for end in ends))

    @property
    def reach(self) -> Extent:
        """All that may be taken as things stand. Nothing after a restart, before what is promised and known has come to
        where most tables are: what would be taken of those behind is planned from there on."""
        base_ts, limit_ts = self.at.base_ts, self.limit_ts
        return self.extent(limit_ts) if limit_ts >= base_ts else Extent(base_ts, base_ts)

    @property
    def is_barred(self) -> bool:
        """A DDL, a sync point or the end waits for a batch: it does not get better by waiting for more rows."""
        first = self.barriers.first
        if first is not None and first.ts <= self.limit_ts and not (self.is_ddl_running or self.is_at(first)):
            return True
        return self.limit_ts < min(self.frontier_ts, self.schema_ts)

    @property
    def is_finished(self) -> bool:
        """Everything up to the target is durable, a DDL exactly at it included."""
        if self.target_ts is None or min(self.at.lowest_ts, self.schema_ts) < self.target_ts:
            return False
        return self.barriers.first is None or self.barriers.first.ts > self.target_ts

    def is_at(self, ddl: Pending) -> bool:
        """Whether every row is durable that goes before it."""
        return self.at.base_ts >= ddl.ts and all(self.at.of(i) >= ddl.ts for i in ddl.touched)

    def extent(self, to_ts: Ts, catch_up_ts: Ts = MAX_TS) -> Extent:
        """What a batch has that takes everything up to ``to_ts``, as far as no barrier is in the way; of what is behind
        only up to ``catch_up_ts``."""
        own = {}
        for physical_id in self.at.behind.keys() | self.barriers.by_id.keys() | self.waiting:
            low = self.at.of(physical_id)
            high = min(to_ts, self.barriers.by_id.get(physical_id, MAX_TS))
            if low < self.at.base_ts:
                high = min(high, catch_up_ts)
            if physical_id in self.waiting:
                high = low
            if (low, high) != (self.at.base_ts, to_ts):
                own[physical_id] = low, max(low, high)
        return Extent(self.at.base_ts, to_ts, own)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before something arrives."""


@dataclass(frozen=True, slots=True)
class Advance:
    """No changes in ``extent``: the checkpoints may move without any work downstream."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class Sync:
    """Everything is where the sink wants to note it."""

    at_ts: Ts


@dataclass(frozen=True, slots=True)
class Offer:
    """There are changes up to the limit: a batch may take some or all of them."""

    limit_ts: Ts


@dataclass(frozen=True, slots=True)
class Finish:
    """The target is reached."""


Decision = Wait | Advance | Sync | Offer | Finish


def can_run_ddl(progress: Progress) -> bool:
    """Whether the first DDL that waits may run now. Batches of other tables go on meanwhile. After a restart it waits
    until everything is known again that was: what is saved then speaks of all tables and DDLs."""
    first = progress.barriers.first
    if first is None or progress.is_ddl_running or progress.is_syncing or progress.is_stopping:
        return False
    return progress.schema_ts >= progress.at.base_ts and progress.is_at(first)


def decide(progress: Progress, has_changes: Callable[[Extent], bool]) -> Decision:
    """What to do next, besides a DDL. ``has_changes``: whether any change lies in an extent, which takes looking."""
    if progress.in_flight is not None or progress.is_syncing:
        return Wait()
    if _can_sync(progress):
        return Sync(progress.at.base_ts)
    if progress.is_finished:
        return Finish()
    extent = progress.reach
    if extent.is_empty:
        return Wait()
    if not has_changes(extent):
        return Advance(extent)
    return Wait() if progress.is_stopping else Offer(extent.to_ts)


def _can_sync(progress: Progress) -> bool:
    at, first = progress.sync_ts, progress.barriers.first
    if at is None or min(progress.at.lowest_ts, progress.schema_ts) < at or progress.is_ddl_running:
        return False
    return first is None or first.ts > at


def stage(
    progress: Progress,
    *,
    batch_seconds: float | None = None,
    trouble: str | None = None,
    is_held: bool = False,
    scanned: int = 0,
    regions: int = 0,
) -> str:
    """What is being done or waited for, for people. ``batch_seconds`` is how long the batch at hand has taken so far,
    ``trouble`` why the sink is away; ``is_held``: nothing is read from the upstream until the sink has taken some."""
    held = "; the upstream waits" if is_held else ""
    if trouble is not None:
        return f"waiting for the sink ({trouble.partition('. ')[0]}){held}"
    if batch_seconds is not None:
        slow = f" for {batch_seconds:.0f} s, the sink is slow" if batch_seconds >= SLOW_SECONDS else ""
        return f"writing{slow}{held}"
    if scanned < regions:
        return f"scanning {scanned}/{regions} regions"
    return "waiting for resolved-ts" if progress.limit_ts <= progress.at.base_ts else "idle"


def began(progress: Progress, extent: Extent) -> Progress:
    """A batch is under way."""
    return replace(progress, in_flight=extent)


def moved(progress: Progress, extent: Extent) -> Progress:
    """What lies in ``extent`` is durable. DDLs that waited for it have still to run."""
    if extent.highest_ts > progress.limit_ts:
        raise InvariantError(f"the checkpoint {extent.highest_ts} would pass the limit {progress.limit_ts}")
    for physical_id, barrier_ts in progress.barriers.by_id.items():
        if extent.of(physical_id)[1] > barrier_ts:
            raise InvariantError(f"table {physical_id} would pass the DDL at {barrier_ts} that it waits for")
    return _settled(replace(progress, at=progress.at.moved(extent), in_flight=None))


def learned(progress: Progress, schema_ts: Ts, barriers: Barriers) -> Progress:
    """The DDLs up to ``schema_ts`` are known."""
    return _settled(replace(progress, schema_ts=schema_ts, barriers=barriers))


def ddl_done(progress: Progress, barriers: Barriers) -> Progress:
    """The first DDL has run downstream; ``barriers`` are those of the others."""
    return _settled(replace(progress, barriers=barriers, is_ddl_running=False))


def sync_done(progress: Progress, next_sync_ts: Ts | None) -> Progress:
    """The sink has noted the checkpoint; ``next_sync_ts`` is where it wants to do so again."""
    if next_sync_ts is not None and next_sync_ts <= progress.at.base_ts:
        raise InvariantError(f"the sink wants {next_sync_ts} noted, below the checkpoint {progress.at.base_ts}")
    return replace(progress, sync_ts=next_sync_ts, is_syncing=False)


def _settled(progress: Progress) -> Progress:
    """With the ts up to which all DDLs have run; of those above ``schema_ts`` nothing is known, after a restart."""
    first = progress.barriers.first
    ddl_ts = min(progress.at.base_ts, progress.schema_ts)
    if first is not None:
        ddl_ts = min(ddl_ts, Ts(first.ts - 1))
    return replace(progress, ddl_ts=max(progress.ddl_ts, ddl_ts))
