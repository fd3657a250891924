"""How far a processor is with its tables, and what it may do next. Pure: state in, decision out.

Some things hold all tables back: the frontier (what the upstream has promised), the schema's own resolved-ts (what is
known of DDL), a sync point of the sink, the target where the changefeed ends; and where processors do not pass each
other, what those that are behind have resolved. The lowest of them is the limit.

A DDL holds back only the physical tables that it touches, before or after: its barrier. They stop at its ts F; once
every row of theirs with commit-ts ≤ F is durable, the owner runs it (``control.ownership``) and says so by ``ddl_ts``.
Then the tables go on from F, and catch up.

    table       ──────────── F ▌ DDL, once F is durable ▐ F ─────────────►  (catching up)
    all others  ──────────────────────────────────────────────────────────►  limit
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidemill.control.barriers import Barriers, Pending
from tidemill.errors import InvariantError
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import MAX_TS, Ts
from tidemill.model.words import lasting

CAUGHT_UP_SECONDS = 5.0  # of lag: what a healthy changefeed never has for long
SLOW_SECONDS = 10.0  # a batch is cut to take half of that at most


@dataclass(frozen=True, slots=True)
class Progress:
    """``ddl_ts``: every DDL with finished-ts ≤ it has run. ``barriers`` are those of the others."""

    at: Checkpoints
    ddl_ts: Ts
    frontier_ts: Ts
    schema_ts: Ts
    barriers: Barriers = field(default_factory=Barriers)
    target_ts: Ts | None = None
    in_flight: Extent | None = None  # the batch that Spark is working on
    sync_ts: Ts | None = None  # where the sink wants to be told that everything is there, and nothing beyond
    hold_ts: Ts | None = None  # where tables are waited for that are to join these
    together_ts: Ts | None = None  # up to where the tables of all processors are resolved, where these wait for that
    is_stopping: bool = False
    is_paused: bool = False  # tables are about to come or go, which they do between batches
    waiting: frozenset[int] = frozenset()  # physical ids that may not move yet, although no barrier holds them

    @property
    def limit_ts(self) -> Ts:
        """The highest ts that any checkpoint may reach for now."""
        ends = [self._resolved_ts, self.sync_ts, self.target_ts, self.hold_ts]
        return Ts(min(MAX_TS if end is None else end for end in ends))

    @property
    def _resolved_ts(self) -> Ts:
        return min(self.frontier_ts, self.schema_ts, MAX_TS if self.together_ts is None else self.together_ts)

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
        if first is not None and first.ts <= self.limit_ts and not is_at(self.at, first):
            return True
        return self.limit_ts < self._resolved_ts

    @property
    def is_finished(self) -> bool:
        """Everything up to the target is durable, a DDL exactly at it included."""
        if self.target_ts is None or min(self.at.lowest_ts, self.schema_ts) < self.target_ts:
            return False
        return self.barriers.first is None or self.barriers.first.ts > self.target_ts

    @property
    def waits_for_owner(self) -> bool:
        """Whether the tables are where a DDL or a sync point is the next thing, which is not theirs to do."""
        first = self.barriers.first
        if first is not None and first.ts <= self.schema_ts and is_at(self.at, first):
            return True
        return self.sync_ts is not None and self.at.lowest_ts >= self.sync_ts

    def extent(self, to_ts: Ts, catch_up_ts: Ts = MAX_TS) -> Extent:
        """What a batch has that takes everything up to ``to_ts``, as far as no barrier is in the way; of what is behind
        only up to ``catch_up_ts``."""
        own = {}
        for physical_id in self.at.own.keys() | self.barriers.by_id.keys() | self.waiting:
            low = self.at.of(physical_id)
            high = min(to_ts, self.barriers.by_id.get(physical_id, MAX_TS))
            if low < self.at.base_ts:
                high = min(high, catch_up_ts)
            if physical_id in self.waiting:
                high = low
            if (low, high) != (self.at.base_ts, to_ts):
                own[physical_id] = low, max(low, high)
        return Extent(self.at.base_ts, to_ts, own)


def is_at(at: Checkpoints, ddl: Pending) -> bool:
    """Whether every row is durable that goes before it."""
    return at.base_ts >= ddl.ts and all(at.of(i) >= ddl.ts for i in ddl.touched)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before something arrives."""


@dataclass(frozen=True, slots=True)
class Advance:
    """No changes in ``extent``: the checkpoints may move without any work downstream."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class Offer:
    """There are changes up to the limit: a batch may take some or all of them."""

    limit_ts: Ts


@dataclass(frozen=True, slots=True)
class Finish:
    """The target is reached."""


Decision = Wait | Advance | Offer | Finish


def decide(progress: Progress, has_changes: Callable[[Extent], bool]) -> Decision:
    """What to do next. ``has_changes``: whether any change lies in an extent, which takes looking."""
    if progress.in_flight is not None or progress.is_paused:
        return Wait()
    if progress.is_finished:
        return Finish()
    extent = progress.reach
    if extent.is_empty:
        return Wait()
    if not has_changes(extent):
        return Advance(extent)
    return Wait() if progress.is_stopping else Offer(extent.to_ts)


def stage(
    progress: Progress,
    *,
    batch_seconds: float | None = None,
    trouble: str | None = None,
    trouble_seconds: float = 0.0,
    lag_seconds: float = 0.0,
    is_held: bool = False,
    scanned: int = 0,
    regions: int = 0,
) -> str:
    """What is being done or waited for, for people. ``batch_seconds`` is how long the batch at hand has taken so far,
    ``trouble`` why the sink is away, and since when; ``is_held``: nothing is read from the upstream until the sink has
    taken some."""
    held = "; the upstream waits" if is_held else ""
    if trouble is not None:
        return f"{waiting_for_sink(trouble, trouble_seconds)}{held}"
    if batch_seconds is not None:
        slow = f" for {lasting(batch_seconds)}, the sink is slow" if batch_seconds >= SLOW_SECONDS else ""
        return f"writing{slow}{held}"
    if scanned < regions:
        return f"scanning {scanned}/{regions} regions"
    if lag_seconds < CAUGHT_UP_SECONDS:
        return "caught up"
    return "waiting for resolved-ts" if progress.limit_ts <= progress.at.base_ts else "idle"


def waiting_for_sink(trouble: str, seconds: float) -> str:
    return f"waiting for the sink since {lasting(seconds)} ({trouble.partition('. ')[0]})"


def began(progress: Progress, extent: Extent) -> Progress:
    """A batch is under way."""
    return replace(progress, in_flight=extent)


def moved(progress: Progress, extent: Extent) -> Progress:
    """What lies in ``extent`` is durable. DDLs that waited for it have still to run."""
    windows = [(extent.from_ts, extent.to_ts), *extent.own.values()]
    highest_ts = max((high for low, high in windows if low < high), default=Ts(0))
    if highest_ts > progress.limit_ts:
        raise InvariantError(f"the checkpoint {highest_ts} would pass the limit {progress.limit_ts}")
    for physical_id, barrier_ts in progress.barriers.by_id.items():
        low, high = extent.of(physical_id)
        if low < high > barrier_ts:
            raise InvariantError(f"table {physical_id} would pass the DDL at {barrier_ts} that it waits for")
    return replace(progress, at=progress.at.moved(extent), in_flight=None)
