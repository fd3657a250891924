"""A capture looks at its lanes, for those that do not move, and says so to the owner, who tells users why."""

from collections.abc import Callable, Sequence

from tidemill.capture.lanes import RunningLane
from tidemill.capture.peers.letters import HeldBack
from tidemill.clock import Clock
from tidemill.control.hindrances import LaneFacts, Standing
from tidemill.model.cluster import Held
from tidemill.model.schedule import CaptureId
from tidemill.model.ts import MAX_TS, Ts

_LOOK_SECONDS = 1.0
_SAY_AGAIN_SECONDS = 10.0


class LaneWatch:
    """Of one processor. To be polled."""

    def __init__(self, say: Callable[[HeldBack], None], clock: Clock) -> None:
        self._say, self._clock = say, clock
        self._standing = Standing()
        self._frontiers: dict[str, Ts] = {}
        self._looked_at = self._said_at = clock.monotonic()
        self._said: tuple[Held, ...] = ()

    def poll(self, lanes: Sequence[RunningLane]) -> None:
        now = self._clock.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        facts = [facts_of(each, self._stands(each)) for each in lanes]
        self._frontiers = {each.lane: each.frontier_ts for each in facts}
        held = self._standing.held(facts, self._clock.now())
        is_due = bool(held) and now - self._said_at >= _SAY_AGAIN_SECONDS
        if is_due or _subjects(held) != _subjects(self._said):
            self._said, self._said_at = held, now
            self._say(HeldBack(held))

    def _stands(self, running: RunningLane) -> bool:
        return self._frontiers.get(running.lane.name) == running.lane.progress.frontier_ts


class HeldLanes:
    """What all captures say, kept by the owner. Of each its newest processor counts."""

    def __init__(self) -> None:
        self._by: dict[CaptureId, tuple[str, tuple[Held, ...]]] = {}

    def note(self, capture: CaptureId, epoch: str, by: tuple[Held, ...]) -> None:
        self._by[capture] = epoch, by

    def forget(self, capture: CaptureId, epoch: str) -> None:
        """This processor is gone."""
        if capture in self._by and self._by[capture][0] == epoch:
            del self._by[capture]

    @property
    def all(self) -> list[tuple[CaptureId, Held]]:
        """The one furthest behind first."""
        found = [(capture, each) for capture, (_, by) in self._by.items() for each in by]
        return sorted(found, key=lambda pair: pair[1].ts)


def facts_of(running: RunningLane, is_standing: bool) -> LaneFacts:
    """``is_standing``: its frontier has not moved for a while. Only then it is worth to look for the reason."""
    lane = running.lane
    at_ts, frontier_ts = lane.progress.at.lowest_ts, lane.progress.frontier_ts
    trouble, seconds = lane.writing.trouble, lane.batches.seconds
    if not is_standing:
        return LaneFacts(lane.name, at_ts, frontier_ts, trouble, seconds, region_ts=frontier_ts)
    stats, sorted_ = running.puller.stats(), running.sorter.stats()
    slowest = stats.slowest
    return LaneFacts(
        lane.name, at_ts, frontier_ts, trouble, seconds, sorted_.is_full,
        table=_table_of(running, slowest.subscription) if slowest is not None else "",
        region=slowest.region_id if slowest is not None else 0,
        region_ts=slowest.resolved_ts if slowest is not None else frontier_ts,
        scanned=stats.initialized_regions, regions=stats.regions, locks=stats.open_transactions,
    )  # fmt: skip


def _table_of(running: RunningLane, subscription: int) -> str:
    """One of those that are read together."""
    store = running.lane.feed.store
    _, ids = running.lane.intake.readings().get(subscription, (None, []))
    for physical_id in ids:
        table = store.table(physical_id, MAX_TS)
        if table is not None:
            return f"table '{table.schema}.{table.name}' ({table.id})"
    return ""


def _subjects(held: Sequence[Held]) -> list[tuple[object, ...]]:
    return [(each.cause, each.subject, each.detail, each.ts) for each in held]
