"""Why a lane does not move: facts about it, judged. What is judged here is told to users, so it is a sentence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemill.control.progress import SLOW_SECONDS
from tidemill.model.cluster import Cause, Held
from tidemill.model.schedule import NO_TS
from tidemill.model.ts import Ts

STANDING_SECONDS = 5.0  # a frontier that moves more often than that is healthy


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """Of one lane. ``table``: the one whose frontier is the lowest. ``region``: the one that holds it there; 0: no
    region of its keys is being followed. ``locks``: of regions, the start-ts of a transaction that is open there."""

    lane: str
    at_ts: Ts
    frontier_ts: Ts
    trouble: str | None = None
    batch_seconds: float | None = None
    is_full: bool = False
    table: str = ""
    region: int = 0
    region_ts: Ts = NO_TS
    scanned: int = 0
    regions: int = 0
    locks: Mapping[int, Ts] | None = None


def judged(facts: LaneFacts) -> tuple[Cause, str, str, Ts] | None:
    """What holds it back: the cause, its subject, a sentence, and where the subject is. None: nothing does."""
    if facts.trouble is not None:
        return Cause.SINK, f"the sink of lane {facts.lane}", facts.trouble, facts.at_ts
    if facts.batch_seconds is not None and facts.batch_seconds >= SLOW_SECONDS:
        held = "; nothing more is read from the upstream meanwhile" if facts.is_full else ""
        return Cause.SINK, f"a batch of lane {facts.lane}", f"the sink or Spark is slow with it{held}", facts.at_ts
    if facts.batch_seconds is not None or facts.frontier_ts > facts.at_ts:
        return None
    return _waits_for_upstream(facts)


def _waits_for_upstream(facts: LaneFacts) -> tuple[Cause, str, str, Ts]:
    of_table = f", {facts.table}" if facts.table else ""
    locked_ts = (facts.locks or {}).get(facts.region)
    if not facts.region:
        sentence = "no region of its keys is found, or it has no leader"
        return Cause.REGION, facts.table or f"a table of lane {facts.lane}", sentence, facts.region_ts
    subject = f"region {facts.region}{of_table}"
    if locked_ts is not None:
        sentence = f"a transaction of start-ts {locked_ts} is open there; end it, or wait for it"
        return Cause.LOCK, subject, sentence, facts.region_ts
    if facts.scanned < facts.regions:
        scan = f"{facts.scanned} of {facts.regions} regions have been read from the checkpoint on"
        return Cause.REGION, subject, scan, facts.region_ts
    return Cause.REGION, subject, "its store says nothing of a later resolved-ts", facts.region_ts


class Standing:
    """Remembers since when each lane has been held back by the same thing. Holds no clock."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, Cause, str], tuple[Ts, float]] = {}

    def held(self, lanes: Iterable[LaneFacts], now: float) -> tuple[Held, ...]:
        """Those that hold a lane back at ``now`` (Unix time), the one furthest behind first. Give all lanes there are:
        others are forgotten. What waits for the upstream counts when it has stood for ``STANDING_SECONDS``."""
        since, found = dict[tuple[str, Cause, str], tuple[Ts, float]](), list[Held]()
        for facts in lanes:
            told = judged(facts)
            if told is None:
                continue
            cause, subject, detail, ts = told
            key = facts.lane, cause, subject
            before_ts, began = self._since.get(key, (ts, now))
            began = now if before_ts != ts else began
            since[key] = ts, began
            is_sure = cause is Cause.SINK or now - began >= STANDING_SECONDS
            if is_sure:
                if facts.batch_seconds is not None and facts.trouble is None:
                    began = now - facts.batch_seconds
                found.append(Held(cause, subject, detail, ts, began))
        self._since = since
        return tuple(sorted(found, key=lambda each: each.ts))
