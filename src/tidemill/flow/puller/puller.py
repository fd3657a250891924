"""Follows spans: finds their regions, registers them, and finds them again whenever one is lost.

    subscribe(span) ─► locate ─► range lock ─► register ─► changes ─────────► receiver.receive
                         ▲                        │   └──► resolved-ts ─► frontier ─► receiver.resolve
                         └──── lost, after a pause ◄┘

A range that is lost keeps the resolved-ts it has reached; whichever regions hold its keys next are
registered from the lowest of them. So nothing is missed; what lies above is delivered again, and
equal changes are dropped by whoever sorts them. Runs in the capture, on one event loop.

A transaction that was abandoned leaves a lock, and its region's resolved-ts, and so the span's
frontier, stand still before it: ``stats().slowest`` names the region, and ``stalls`` resolves the lock.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import InvariantError, RegionUnavailableError, UpstreamUnavailableError
from tidemill.flow.puller.backoff import Backoff, joined
from tidemill.flow.puller.coverage import Coverage
from tidemill.flow.puller.rangelock import Stale, Wait
from tidemill.flow.puller.stalls import LockResolving, Unblocker
from tidemill.log import get_logger
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.upstream.feed.client import FeedClient
from tidemill.upstream.feed.registration import TRANSACTIONS, Registration, StreamMode
from tidemill.upstream.feed.spill import Spill
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.tasks import raise_first, spawn
from tidemill.upstream.topology import Region

DEFAULT_LOCK_RESOLVING = LockResolving()
MAX_LOOKUPS = 16  # subscriptions that ask PD for their regions at the same time

log = get_logger("puller")


class ChangeReceiver(Protocol):
    """Who keeps what the puller brings. All calls come from the puller's loop."""

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        """Take raw changes with keys inside the span. While this waits, its store is not read."""
        ...

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        """The frontier of the whole span has moved; every change at or below it was received before."""
        ...


@dataclass(frozen=True, slots=True)
class SlowestRegion:
    """The region that holds its span's frontier furthest back."""

    subscription: int
    region_id: int  # 0: no region of these keys is registered at the moment
    resolved_ts: Ts


@dataclass(frozen=True, slots=True)
class PullerStats:
    subscriptions: int
    regions: int
    initialized_regions: int
    changes: int
    received_bytes: int
    inbox_bytes: int  # received and not yet taken by the receiver; bounded per store
    waiting_changes: int  # prewritten, not yet committed
    slowest: SlowestRegion | None
    resolved_transactions: int  # abandoned, whose locks were resolved
    # By region that stands still: the start-ts of the oldest one that lives.
    open_transactions: Mapping[int, Ts] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Subscription:
    id: int
    coverage: Coverage
    backoff: Backoff
    resolved_ts: Ts  # as last told to the receiver
    due: list[Span] = field(default_factory=list)  # to be looked up
    is_looked_up: bool = False

    @property
    def request_id(self) -> int:
        """On the wire; never used again, so that what comes late is told apart."""
        return self.coverage.request_id


class Puller:
    """For one event loop. ``subscribe`` and ``unsubscribe`` may be called at any time from it."""

    def __init__(
        self,
        pd: PdClient,
        receiver: ChangeReceiver,
        *,
        locks: LockResolving | None = DEFAULT_LOCK_RESOLVING,
        spill: Path | None = None,
        mode: StreamMode = TRANSACTIONS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``locks`` says when abandoned ones are resolved, where there are any; None: never. ``spill`` is a folder
        in which large transactions wait for their end; None: they do so in memory."""
        self._receiver = receiver
        self._clock = clock
        self._random = Random()
        self._regions = RegionCache(pd, clock=clock)
        self._feed = FeedClient(self._regions, self, spill=Spill(spill), mode=mode, clock=clock)
        self._unblocker = (
            Unblocker(pd, self._regions, locks, clock=clock) if locks is not None and mode.has_locks else None
        )
        self._subscriptions: dict[int, _Subscription] = {}
        self._by_request: dict[int, _Subscription] = {}
        self._next_request = 1
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled. Fails with a typed error on what waiting cannot heal."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._feed.run())
                await asyncio.sleep(0)  # lets it begin: regions are registered only with a running client
                self._tasks = tasks
                if self._unblocker is not None:
                    tasks.create_task(self._unblocker.run(lambda: [s.coverage for s in self._subscriptions.values()]))
                for subscription in self._subscriptions.values():
                    self._start_lookup(subscription)
        except BaseExceptionGroup as group:
            raise_first(group)
        finally:
            self._tasks = None

    def subscribe(self, subscription: int, span: Span, start_ts: Ts) -> None:
        """Follow ``span``: every change with commit-ts above ``start_ts``."""
        if subscription in self._subscriptions:
            raise InvariantError(f"subscription {subscription} is already followed")
        coverage = Coverage(self._next_request, span, start_ts)
        new = _Subscription(subscription, coverage, Backoff(self._random), resolved_ts=start_ts)
        self._next_request += 1
        self._subscriptions[subscription] = new
        self._by_request[new.request_id] = new
        new.due.append(span)
        self._start_lookup(new)

    def unsubscribe(self, subscription: int) -> None:
        """Stop following. The receiver hears no more of it, but for a call that is under way."""
        gone = self._subscriptions.pop(subscription, None)
        if gone is not None:
            del self._by_request[gone.request_id]
            self._feed.deregister(gone.request_id)

    def stats(self) -> PullerStats:
        subscriptions = self._subscriptions.values()
        slowest = min(subscriptions, key=lambda s: s.coverage.frontier.resolved_ts, default=None)
        return PullerStats(
            subscriptions=len(subscriptions),
            regions=sum(len(s.coverage) for s in subscriptions),
            initialized_regions=sum(s.coverage.initialized for s in subscriptions),
            changes=self._feed.stats.changes,
            received_bytes=self._feed.stats.bytes,
            inbox_bytes=self._feed.inbox_bytes,
            waiting_changes=self._feed.waiting_changes,
            slowest=_slowest_region(slowest) if slowest is not None else None,
            resolved_transactions=self._unblocker.resolved_transactions if self._unblocker is not None else 0,
            open_transactions=dict(self._unblocker.open_transactions) if self._unblocker is not None else {},
        )

    # What the change stream's client reports: Puller is its FeedListener.

    async def changes(self, request_id: int, changes: pa.RecordBatch) -> None:
        known = self._by_request.get(request_id)
        if known is not None:
            await self._receiver.receive(known.id, changes)

    def initialized(self, registration: Registration) -> None:
        known = self._by_request.get(registration.request_id)
        if known is not None:
            known.coverage.initialize(registration)
            known.backoff.clear(registration.part)

    def resolved(self, progress: list[tuple[Registration, Ts]]) -> None:
        moved: dict[int, _Subscription] = {}
        for registration, ts in progress:
            known = self._by_request.get(registration.request_id)
            if known is not None:
                known.coverage.frontier.advance(registration.part, ts)
                moved[known.request_id] = known
        for request_id, known in moved.items():
            reached = known.coverage.frontier.resolved_ts
            if reached > known.resolved_ts and request_id in self._by_request:
                known.resolved_ts = reached
                self._receiver.resolve(known.id, reached)

    def lost(self, registration: Registration, reason: str, at_least_seconds: float) -> None:
        known = self._by_request.get(registration.request_id)
        if known is None:
            return
        log.debug("region lost", subscription=known.id, region=registration.region.id, reason=reason)
        waiting = known.coverage.release(registration)
        self._retry(known, registration.part, at_least_seconds)
        if waiting:
            known.due += waiting
            self._start_lookup(known)

    def _retry(self, subscription: _Subscription, part: Span, at_least_seconds: float = 0.0) -> None:
        own = subscription.backoff.next_seconds(part, self._clock.monotonic())
        if self._tasks is not None:
            spawn(self._tasks, self._look_up_later(subscription, part, max(own, at_least_seconds)))

    async def _look_up_later(self, subscription: _Subscription, part: Span, seconds: float) -> None:
        await self._clock.sleep(seconds)
        subscription.due.append(part)
        self._start_lookup(subscription)

    def _start_lookup(self, subscription: _Subscription) -> None:
        if self._tasks is not None and not subscription.is_looked_up:
            subscription.is_looked_up = True
            spawn(self._tasks, self._look_up(subscription))

    async def _look_up(self, subscription: _Subscription) -> None:
        """Register every range that is due. Ranges that have come due together and touch are looked up as one."""
        async with self._lookups:
            while subscription.due and self._is_current(subscription):
                parts, subscription.due = joined(subscription.due), []
                for part in parts:
                    await self._cover(subscription, part)
        subscription.is_looked_up = False

    async def _cover(self, subscription: _Subscription, part: Span) -> None:
        at = part.start
        while at < part.end and self._is_current(subscription):
            rest = Span(at, part.end)
            try:
                regions = await self._regions.load(rest)
            except (RegionUnavailableError, UpstreamUnavailableError) as error:
                log.warning("regions not found; trying again", subscription=subscription.id, span=rest, error=error)
                self._retry(subscription, rest)
                return
            for region in regions:
                if self._is_current(subscription):
                    self._claim(subscription, region)
                at = region.span.end

    def _claim(self, subscription: _Subscription, region: Region) -> None:
        match subscription.coverage.claim(region):
            case Registration() as registration:
                self._feed.register(registration)
            case Stale(rest):
                if rest:
                    self._regions.drop(region)
                for span in rest:
                    self._retry(subscription, span)
            case Wait():
                pass  # until an older registration of these keys ends

    def _is_current(self, subscription: _Subscription) -> bool:
        return subscription.request_id in self._by_request


def _slowest_region(subscription: _Subscription) -> SlowestRegion:
    frontier = subscription.coverage.frontier
    holder = subscription.coverage.holder(frontier.slowest.start)
    return SlowestRegion(subscription.id, holder.region.id if holder is not None else 0, frontier.resolved_ts)
