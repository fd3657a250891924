"""Which region holds a key, and where its leader is: what PD said, kept until it proves wrong.

    PD ──► RegionCache ──► snapshot reader, puller

The cache is a guess that the stores correct: a request sent by an outdated picture is refused with
a region error, and ``react`` turns that error into what to do next. Only pictures with a leader on
a living TiKV store are handed out.

Every split and merge raises the version of the region that holds a key, so of two pictures that
overlap the one with the higher version is the later. PD hears of a split or merge after the stores
do: what it says from before does not displace what a store has said since.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from tidemill._pb import errorpb_pb2, metapb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import (
    IncompatibleUpstreamError,
    InvariantError,
    ProtocolViolationError,
    RegionUnavailableError,
    UpstreamError,
)
from tidemill.model.span import KEY_START, Span
from tidemill.retry import Policy
from tidemill.upstream.pd import PdClient
from tidemill.upstream.topology import Peer, Region, Store, peer_from, region_from

REGIONS_PER_SCAN = 1024
IDLE_SECONDS = 600.0  # a picture that nobody asked for in this time is looked up anew
_RELOAD_PAUSE_SECONDS = 0.1
_LOAD_SECONDS = 20.0


class Retry(Enum):
    """What a region error asks for."""

    AT_ONCE = "the cache knows better now"
    RELOAD = "the picture was dropped; look the keys up again"
    LATER = "the same region will answer after a pause"
    NEVER = "no retry can help"


_SOON = Policy(0.002, 0.5)


@dataclass(frozen=True, slots=True)
class Reaction:
    retry: Retry
    pauses: Policy = _SOON


_LATER: dict[str, Policy] = {
    "server_is_busy": Policy(2.0, 10.0),
    "stale_command": Policy(0.002, 1.0),
    "max_timestamp_not_synced": _SOON,
    "region_not_initialized": Policy(0.002, 1.0),
    "read_index_not_ready": _SOON,
    "proposal_in_merging_mode": _SOON,
    "data_is_not_ready": Policy(0.002, 2.0),
    "disk_full": Policy(0.5, 5.0),
    "RecoveryInProgress": Policy(0.1, 10.0),
    "undetermined_result": Policy(0.002, 0.5),
}
_NEVER = ("raft_entry_too_large", "FlashbackInProgress", "FlashbackNotPrepared")


@dataclass(slots=True)
class _Cached:
    region: Region
    used_at: float


class RegionCache:
    """For one event loop."""

    def __init__(self, pd: PdClient, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._pd = pd
        self._clock = clock
        self._starts: list[bytes] = []
        self._cached: dict[bytes, _Cached] = {}
        self._by_id: dict[int, bytes] = {}
        self._stores: dict[int, Store] = {}

    @property
    def pd(self) -> PdClient:
        return self._pd

    async def locate(self, key: bytes) -> Region:
        """The region with a leader that holds a physical key."""
        return (await self.load(Span(key, key + b"\0"), limit=1))[0]

    async def load(self, span: Span, limit: int = REGIONS_PER_SCAN) -> list[Region]:
        """Regions side by side, without gap, the first of which holds ``span.start``.

        They may end before the span does: go on from the last one's end. Waits while PD has no
        such region with a leader, for instance in the middle of a split; in the end it raises
        ``RegionUnavailableError``.
        """

        async def ask() -> list[Region]:
            return self._cached_run(span, limit) or self._take_in(await self._listed(span, limit), span)

        return await self._retried(ask, span.start)

    async def locate_below(self, key: bytes) -> Region:
        """The region with a leader that holds the keys just below a physical key; below ``KEY_END`` lies the last."""
        if key == KEY_START:
            raise InvariantError("there is no region below the first key")

        async def ask() -> list[Region]:
            index = bisect_left(self._starts, key) - 1
            known = self._cached[self._starts[index]] if index >= 0 else None
            if known is not None and key <= known.region.span.end and self._is_fresh(known):
                return [known.region]
            found = await self._pd.get_region(key)
            if found is not None and found.span.start == key:
                found = await self._pd.get_previous_region(key)
            if found is None or found.leader is None or not found.span.start < key <= found.span.end:
                return []
            self._insert_or_wait(found)
            return [found]

        return (await self._retried(ask, key))[0]

    async def store(self, store_id: int) -> Store:
        """A living TiKV store, asked of PD once."""
        known = self._stores.get(store_id)
        if known is None:
            try:
                known = await self._pd.get_store(store_id)
            except IncompatibleUpstreamError:
                raise
            except UpstreamError as error:
                raise RegionUnavailableError(f"PD does not know store {store_id}: {error}") from error
            if known.is_tombstone or not known.is_tikv or not known.address:
                raise RegionUnavailableError(
                    f"store {store_id} at {known.address or 'no address'} serves no regions any more"
                )
            self._stores[store_id] = known
        return known

    def forget_store(self, store_id: int) -> None:
        """Ask PD again for its address: it did not answer, or another store answered there."""
        self._stores.pop(store_id, None)

    def set_leader(self, region_id: int, leader: Peer) -> bool:
        """Note who leads now. False if the picture does not know this peer, and is dropped."""
        start = self._by_id.get(region_id)
        if start is None:
            return False
        cached = self._cached[start]
        if leader not in cached.region.peers:
            self.invalidate(region_id)
            return False
        cached.region = cached.region.led_by(leader)
        return True

    def rotate_leader(self, region: Region) -> None:
        """The leader's store does not answer: try the peer after it, and behind the last one ask PD again."""
        following = region.peers.index(region.leader) + 1 if region.leader in region.peers else len(region.peers)
        if following < len(region.peers):
            self.set_leader(region.id, region.peers[following])
        else:
            self.drop(region)

    def drop(self, region: Region) -> None:
        """This picture has proved wrong. One of a later epoch, which came meanwhile, stays."""
        start = self._by_id.get(region.id)
        if start is not None and not _is_later(self._cached[start].region, region):
            self.invalidate(region.id)

    def invalidate(self, region_id: int) -> None:
        start = self._by_id.pop(region_id, None)
        if start is not None:
            del self._cached[start]
            del self._starts[bisect_left(self._starts, start)]

    def insert(self, region: Region) -> bool:
        """Take a picture in, and drop every one that it contradicts. False: a later one contradicts it."""
        rivals = {self._cached[start].region for start in self._overlapping(region.span)}
        if region.id in self._by_id:
            rivals.add(self._cached[self._by_id[region.id]].region)
        if any(_is_later(rival, region) for rival in rivals):
            return False
        for rival in rivals:
            self.invalidate(rival.id)
        insort(self._starts, region.span.start)
        self._cached[region.span.start] = _Cached(region, self._clock.monotonic())
        self._by_id[region.id] = region.span.start
        return True

    def react(self, region: Region, error: errorpb_pb2.Error) -> Reaction:
        """Correct the cache by a region error of a request sent to ``region``, and say how to go on."""
        if error.HasField("not_leader"):
            leader = peer_from(error.not_leader.leader)
            if leader is not None and self.set_leader(region.id, leader):
                return Reaction(Retry.AT_ONCE)
            self.drop(region)
            return Reaction(Retry.RELOAD)
        if error.HasField("epoch_not_match"):
            return self.react_to_epoch(region, list(error.epoch_not_match.current_regions))
        if error.HasField("store_not_match") and region.leader is not None:
            self.forget_store(region.leader.store_id)
        if any(error.HasField(name) for name in _NEVER):
            return Reaction(Retry.NEVER)
        for name, pauses in _LATER.items():
            if error.HasField(name):
                return Reaction(Retry.LATER, pauses)
        self.drop(region)
        return Reaction(Retry.RELOAD)

    def react_to_epoch(self, region: Region, current: list[metapb_pb2.Region]) -> Reaction:
        """A store has another picture of the region. The later of the two counts.

        ``current`` is what became of the region as far as the store knows: its children after a
        split, the region that took it in after a merge, nothing in the middle of one.
        """
        own = next((r for r in current if r.id == region.id), None)
        if own is not None and own.region_epoch.version < region.version:
            return Reaction(Retry.LATER)  # the store is behind and will catch up
        self.drop(region)
        for each in current:
            # The store that answered led the old region; most likely it leads what became of it.
            store_id = region.leader.store_id if region.leader is not None else 0
            leader = next((p for p in each.peers if p.store_id == store_id), None)
            if leader is not None:
                with suppress(ProtocolViolationError):  # a range that is none: PD is asked instead
                    self.insert(region_from(each, leader))
        return Reaction(Retry.RELOAD)

    def _cached_run(self, span: Span, limit: int) -> list[Region]:
        run: list[Region] = []
        at = span.start
        while len(run) < limit and at < span.end:
            index = bisect_right(self._starts, at) - 1
            cached = self._cached[self._starts[index]] if index >= 0 else None
            if cached is None or at not in cached.region.span or not self._is_fresh(cached):
                break
            run.append(cached.region)
            at = cached.region.span.end
        return run

    def _is_fresh(self, cached: _Cached) -> bool:
        """Whether the picture may be handed out, which keeps it fresh."""
        now = self._clock.monotonic()
        if now - cached.used_at > IDLE_SECONDS:
            return False
        cached.used_at = now
        return True

    async def _listed(self, span: Span, limit: int) -> list[Region]:
        if limit != 1:
            return await self._pd.scan_regions(span, limit)
        one = await self._pd.get_region(span.start)
        return [one] if one is not None else []

    async def _retried(self, ask: Callable[[], Awaitable[list[Region]]], key: bytes) -> list[Region]:
        """Look until something is found, or for too long."""
        give_up = self._clock.monotonic() + _LOAD_SECONDS
        disputed: Span | None = None
        while True:
            try:
                found = await ask()
                if found:
                    return found
            except _OutdatedError as error:
                disputed = error.region.span
            if self._clock.monotonic() >= give_up:
                for start in self._overlapping(disputed) if disputed is not None else []:
                    self.invalidate(self._cached[start].region.id)  # what stores have said: PD had time to hear of it
                raise RegionUnavailableError(
                    f"PD knows no region with a leader for key {key.hex()} for {_LOAD_SECONDS:.0f} s. "
                    "Check that the TiKV stores are up; a region without a majority of its peers has no leader."
                )
            await self._clock.sleep(_RELOAD_PAUSE_SECONDS)

    def _insert_or_wait(self, region: Region) -> None:
        if not self.insert(region):
            raise _OutdatedError(region)

    def _take_in(self, listed: list[Region], span: Span) -> list[Region]:
        """Keep those that lie side by side from the span's start, up to the first that is missing or out of date."""
        run: list[Region] = []
        at = span.start
        for region in sorted(listed, key=lambda r: (r.span.start, -r.version)):
            if region.span.end <= at:
                continue
            if at not in region.span or at >= span.end or region.leader is None:
                break
            if not run:
                self._insert_or_wait(region)
            elif not self.insert(region):
                break
            run.append(region)
            at = region.span.end
        return run

    def _overlapping(self, span: Span) -> list[bytes]:
        first = max(bisect_right(self._starts, span.start) - 1, 0)
        last = bisect_left(self._starts, span.end)
        return [s for s in self._starts[first:last] if self._cached[s].region.span.overlaps(span)]


class _OutdatedError(Exception):
    """PD's picture of the keys asked for is from before a split or merge that we know of."""

    def __init__(self, region: Region) -> None:
        self.region = region
        super().__init__(f"region {region.id} at version {region.version} is out of date")


def _is_later(one: Region, other: Region) -> bool:
    """Of two pictures that share keys or an id. Peers change without a change of version."""
    return one.version > other.version or (
        one.id == other.id and one.version == other.version and one.conf_ver > other.conf_ver
    )
