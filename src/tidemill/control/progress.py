"""How far a changefeed is, and what it may do next. Pure: state in, decision out.

Three things hold the flow back: the frontier (what the upstream has promised), the schema's own
resolved-ts (what we know of DDL), and the barrier (a DDL that has to run exactly at its ts, a sync point
of the sink, or the target where the changefeed ends). The lowest of them is the limit; checkpoint ≤ limit,
always.

A DDL at F runs once the checkpoint *is* F: every row with commit-ts ≤ F is durable and no later one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.errors import InvariantError
from tidemill.model.ts import MAX_TS, Ts

SLOW_SECONDS = 10.0  # a batch is cut to take half of that at most


@dataclass(frozen=True, slots=True)
class Progress:
    """``ddl_ts``: every DDL with finished-ts ≤ it has run. It is the checkpoint, or one below it
    while the DDL that finished exactly at the checkpoint has still to run."""

    checkpoint_ts: Ts
    ddl_ts: Ts
    frontier_ts: Ts
    schema_ts: Ts
    barrier_ts: Ts | None = None  # of the first DDL that has not run
    target_ts: Ts | None = None
    in_flight_ts: Ts | None = None  # the end of the batch that Spark is working on
    sync_ts: Ts | None = None  # where the sink wants to be told that everything is there, and nothing beyond
    is_sink_busy: bool = False  # with a DDL that finished exactly at the checkpoint, or with a sync point there
    is_stopping: bool = False

    @property
    def limit_ts(self) -> Ts:
        """The highest ts that the checkpoint may reach for now."""
        ends = [self.frontier_ts, self.schema_ts, self.barrier_ts, self.sync_ts, self.target_ts]
        return Ts(min(MAX_TS if end is None else end for end in ends))

    @property
    def is_barred(self) -> bool:
        """A barrier is the limit: whatever the upstream promises next, a batch that waits here does not grow."""
        return self.limit_ts < min(self.frontier_ts, self.schema_ts)

    @property
    def is_finished(self) -> bool:
        """Everything up to the target is durable, a DDL exactly at it included."""
        if self.target_ts is None or min(self.checkpoint_ts, self.schema_ts) < self.target_ts:
            return False
        return self.barrier_ts is None or self.barrier_ts > self.target_ts


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before something arrives."""


@dataclass(frozen=True, slots=True)
class Advance:
    """No changes up to ``to_ts``: the checkpoint may move there without any work downstream."""

    to_ts: Ts


@dataclass(frozen=True, slots=True)
class RunDdl:
    """Every row up to the barrier is durable: run what finished exactly there."""

    at_ts: Ts


@dataclass(frozen=True, slots=True)
class Sync:
    """The checkpoint is where the sink wants to note it."""

    at_ts: Ts


@dataclass(frozen=True, slots=True)
class Offer:
    """There are changes in (checkpoint, limit]: a batch may take some or all of them."""

    limit_ts: Ts


@dataclass(frozen=True, slots=True)
class Finish:
    """The target is reached."""


Decision = Wait | Advance | RunDdl | Sync | Offer | Finish


def decide(progress: Progress, has_changes: Callable[[], bool]) -> Decision:
    """What to do next. ``has_changes``: whether any change lies in (checkpoint, limit], which takes looking."""
    if progress.in_flight_ts is not None or progress.is_sink_busy:
        return Wait()
    if progress.barrier_ts is not None and progress.barrier_ts <= progress.checkpoint_ts:
        return RunDdl(progress.barrier_ts)
    if progress.sync_ts is not None and progress.sync_ts <= progress.checkpoint_ts:
        return Sync(progress.checkpoint_ts)
    if progress.is_finished:
        return Finish()
    limit = progress.limit_ts
    if limit <= progress.checkpoint_ts:
        return Wait()
    if not has_changes():
        return Advance(limit)
    return Wait() if progress.is_stopping else Offer(limit)


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
    return "waiting for resolved-ts" if progress.limit_ts <= progress.checkpoint_ts else "idle"


def moved_to(progress: Progress, checkpoint_ts: Ts) -> Progress:
    """The changes up to ``checkpoint_ts`` are durable. A DDL exactly there has still to run."""
    if checkpoint_ts < progress.checkpoint_ts:
        raise InvariantError(f"the checkpoint would move back from {progress.checkpoint_ts} to {checkpoint_ts}")
    if checkpoint_ts > progress.limit_ts:
        raise InvariantError(f"the checkpoint {checkpoint_ts} would pass the limit {progress.limit_ts}")
    waits = progress.barrier_ts == checkpoint_ts
    return replace(
        progress,
        checkpoint_ts=checkpoint_ts,
        ddl_ts=Ts(checkpoint_ts - 1) if waits else checkpoint_ts,
        in_flight_ts=None,
    )


def ddl_done(progress: Progress, at_ts: Ts, next_barrier_ts: Ts | None) -> Progress:
    """What finished at ``at_ts`` has run downstream; ``next_barrier_ts`` is the DDL after it, if known."""
    if at_ts != progress.checkpoint_ts and at_ts > progress.ddl_ts + 1:
        raise InvariantError(f"a DDL of {at_ts} ran at the checkpoint {progress.checkpoint_ts}")
    return replace(progress, ddl_ts=progress.checkpoint_ts, barrier_ts=next_barrier_ts, is_sink_busy=False)


def sync_done(progress: Progress, next_sync_ts: Ts | None) -> Progress:
    """The sink has noted the checkpoint; ``next_sync_ts`` is where it wants to do so again."""
    if next_sync_ts is not None and next_sync_ts <= progress.checkpoint_ts:
        raise InvariantError(f"the sink wants {next_sync_ts} noted, below the checkpoint {progress.checkpoint_ts}")
    return replace(progress, sync_ts=next_sync_ts, is_sink_busy=False)
