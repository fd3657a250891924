"""Regions that stand still because a dead transaction has left a lock, and what is done about it.

    frontier does not move ──► StallWatch ── these regions, now ──► Unblocker ──► LockResolver ──► TiKV

A region's resolved-ts stops before the oldest lock on its data. Whoever wrote the lock removes it
within seconds; if that client has died, nobody may ever come by, and the changefeed would stand for
good. So a region that is behind and does not move is asked for its locks, and those whose transaction
is over are resolved. A transaction that lives is left alone, however long it takes.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.errors import IncompatibleUpstreamError, UpstreamError
from tidemill.flow.puller.coverage import Coverage
from tidemill.log import get_logger
from tidemill.model.ts import LOGICAL_BITS, Ts
from tidemill.upstream.feed.bounds import plain_bound
from tidemill.upstream.feed.registration import Registration
from tidemill.upstream.kv import KvClient
from tidemill.upstream.locks import Alive, Ended, LockResolver
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache

MAX_REGIONS = 8  # asked for their locks at the same time

log = get_logger("puller")


@dataclass(frozen=True, slots=True)
class LockResolving:
    """When to look for locks. The defaults are TiCDC's."""

    behind_seconds: float = 4.0  # the region's resolved-ts behind PD's clock, at least
    unmoved_seconds: float = 4.0  # the span's frontier has stood, at least
    region_pause_seconds: float = 10.0  # between two looks at the same region
    look_seconds: float = 2.0  # between two looks at the frontiers


class StallWatch:
    """Which frontiers stand, and which regions may be asked. Holds no clock: the caller says what time it is."""

    def __init__(self, when: LockResolving) -> None:
        self._when = when
        self._seen: dict[int, tuple[Ts, float]] = {}  # by request: its frontier, and since when it stands there
        self._asked: dict[int, float] = {}  # by region

    def standing(self, coverages: Iterable[Coverage], now: float) -> list[Coverage]:
        """Those whose frontier has not moved for long enough. Give all there are: others are forgotten."""
        seen: dict[int, tuple[Ts, float]] = {}
        standing = []
        for coverage in coverages:
            reached = coverage.frontier.resolved_ts
            before = self._seen.get(coverage.request_id)
            since = before[1] if before is not None and before[0] == reached else now
            seen[coverage.request_id] = (reached, since)
            if now - since >= self._when.unmoved_seconds:
                standing.append(coverage)
        self._seen = seen
        return standing

    def due(self, coverage: Coverage, present: Ts, now: float) -> list[tuple[Registration, Ts]]:
        """Regions of a standing frontier to be asked now, with the resolved-ts that they have reached."""
        pause = self._when.region_pause_seconds
        self._asked = {region: at for region, at in self._asked.items() if now - at < pause}
        due = []
        for registration, reached in coverage.behind(present - _ticks(self._when.behind_seconds)):
            if registration.region.id not in self._asked:
                self._asked[registration.region.id] = now
                due.append((registration, reached))
        return due

    def newest_lock(self, present: Ts, reached: Ts) -> Ts:
        """Locks of transactions that started later do not hold the region where it is."""
        return min(present, Ts(reached + _ticks(self._when.behind_seconds)))


class Unblocker:
    """Looks after the coverages of one puller, on its loop."""

    def __init__(self, pd: PdClient, regions: RegionCache, when: LockResolving, *, clock: Clock) -> None:
        self._pd = pd
        self._when = when
        self._clock = clock
        self._kv = KvClient(regions, clock=clock)
        self._resolver = LockResolver(self._kv, pd)
        self._watch = StallWatch(when)
        self._is_unknown = False  # a store has said that it does not know how to resolve locks
        self.resolved_transactions = 0
        self.open_transactions: dict[int, Ts] = {}  # by region that stands still: the oldest that lives, its start-ts

    async def run(self, coverages: Callable[[], Iterable[Coverage]]) -> None:
        """Until cancelled. What goes wrong is logged and tried again: a changefeed never fails over a lock."""
        try:
            while True:
                await self._clock.sleep(self._when.look_seconds)
                try:
                    await self._examine(list(coverages()))
                except UpstreamError as error:
                    log.warning("cannot look for locks; trying again", error=error)
        finally:
            await self._kv.close()

    async def _examine(self, coverages: list[Coverage]) -> None:
        standing = self._watch.standing(coverages, self._clock.monotonic())
        regions = {registration.region.id for coverage in standing for registration in coverage.registrations}
        self.open_transactions = {i: ts for i, ts in self.open_transactions.items() if i in regions}
        if not standing:
            return
        present = await self._pd.get_ts()
        now = self._clock.monotonic()
        due = [each for coverage in standing for each in self._watch.due(coverage, present, now)]
        turns = asyncio.Semaphore(MAX_REGIONS)

        async def in_turn(registration: Registration, reached: Ts) -> None:
            async with turns:
                await self._unblock(registration, self._watch.newest_lock(present, reached), reached)

        async with asyncio.TaskGroup() as tasks:
            for registration, reached in due:
                tasks.create_task(in_turn(registration, reached))

    async def _unblock(self, registration: Registration, newest: Ts, reached: Ts) -> None:
        # Of the region only our part holds us back; it is also all that we know to be in use.
        start, end = plain_bound(registration.part.start) or b"", plain_bound(registration.part.end) or b""
        region = registration.region.id
        try:
            found = await self._resolver.resolve(start, end, newest)
        except IncompatibleUpstreamError as error:
            if not self._is_unknown:
                self._is_unknown = True
                log.warning("locks cannot be resolved here; abandoned ones will hold us", region=region, error=error)
            return
        except UpstreamError as error:
            log.warning("locks not resolved; trying again", region=region, resolved_ts=reached, error=error)
            return
        self.open_transactions.pop(region, None)
        living = [one.start_ts for one in found if isinstance(one.fate, Alive)]
        if living:
            self.open_transactions[region] = Ts(min(living))
        for one in found:
            facts = {"region": region, "resolved_ts": reached, "start_ts": one.start_ts, "locks": one.locks}
            match one.fate:
                case Ended(commit_ts):
                    self.resolved_transactions += 1
                    log.info("locks resolved", **facts, action=one.action, commit_ts=commit_ts)
                case Alive():
                    log.info("locks left alone: their transaction lives", **facts)


def _ticks(seconds: float) -> int:
    return int(seconds * 1000) << LOGICAL_BITS
