"""The clocks that raw writes are stamped by: one per store, and what must be known about each region.

    TSO ──► refresh (physical part) ──► Hlc of each store ──► t1 < t2 of a write
                                             ▲
    Region-Max-TS ──► on becoming leader ────┘

A clock is a hybrid logical one: PD's TSO sets it forward from time to time, each write by one step.
Stores do not wait for each other, so a store that takes over a region may be behind the one that led
it. Every peer therefore knows the greatest ts that was written or promised in the region, and on
becoming leader sets its store's clock past that. All of this is done under the cluster's mutex.
"""

from collections.abc import Iterable

from tidebox.engine import Engine, Family
from tidebox.regions import Region
from tidemill.errors import InvariantError
from tidemill.model.ts import LOGICAL_BITS

_KEY = b"raw_ts_bound"
_WINDOW = 500 << LOGICAL_BITS  # how far ahead the persisted bound is set


class Hlc:
    """A store's clock. What it gives out rises strictly, and is above all it was advanced to."""

    def __init__(self, last: int = 0) -> None:
        self._last = last
        self._is_synced = False

    @property
    def is_synced(self) -> bool:
        """Whether it has heard from the TSO. Until then it may be behind what was given out before a restart."""
        return self._is_synced

    @property
    def last(self) -> int:
        """The greatest given out or passed so far; the next is above it."""
        return self._last

    def refresh(self, tso: int) -> None:
        """PD has given out ``tso``. Not needed again: the clock goes on without PD, only slower than time."""
        self.advance_to(tso)
        self._is_synced = True

    def advance_to(self, ts: int) -> None:
        """Everything given out from now on is above ``ts``."""
        if ts > self._last:
            self._last = ts

    def next(self) -> int:
        # A full logical part runs over into the physical one, which only makes the clock fast.
        self._last += 1
        return self._last


class RegionClocks:
    """The clocks of all stores and the Region-Max-TS of all regions.

    A bound above everything given out or promised is kept in the engine, so that no ts is used
    twice and no promise is broken after a crash.
    """

    def __init__(self, engine: Engine, store_ids: Iterable[int]) -> None:
        self._engine = engine
        stored = engine.get(Family.META, _KEY)
        self._floor = self._bound = int.from_bytes(stored, "big") if stored else 0
        self._used = self._floor
        self._clocks = {store_id: Hlc(self._floor) for store_id in store_ids}
        self._max_ts: dict[int, int] = {}  # by region; the floor where nothing has happened since the start

    def clock(self, store_id: int) -> Hlc:
        return self._clocks[store_id]

    def max_ts(self, region_id: int) -> int:
        """Region-Max-TS: no write of the region may be stamped at or below this any more."""
        return self._max_ts.get(region_id, self._floor)

    def refresh(self, tso: int) -> None:
        for clock in self._clocks.values():
            clock.refresh(tso)

    def stamp(self, region: Region) -> tuple[int, int]:
        """Two ts for a write: one that holds the resolved-ts down while it is on its way, one for its data."""
        clock = self._clocks[region.leader_store]
        in_flight, data = clock.next(), clock.next()
        if in_flight <= self.max_ts(region.id):
            raise InvariantError(
                f"store {region.leader_store} would stamp {in_flight} in region {region.id}, which is at "
                f"{self.max_ts(region.id)}: its clock was not advanced when it became leader"
            )
        self._use(data)
        return in_flight, data

    def applied(self, region: Region, ts: int) -> None:
        """A write of the region was applied at ``ts``."""
        self.observe(region.id, ts)
        # The store may have restarted while the write was on its way, and its clock with it.
        self._clocks[region.leader_store].advance_to(ts)

    def observe(self, region_id: int, ts: int) -> None:
        """``ts`` was written in the region, or it was promised that nothing at or below comes any more."""
        if ts > self.max_ts(region_id):
            self._max_ts[region_id] = ts
        self._use(ts)

    def on_leader(self, region: Region) -> None:
        self._clocks[region.leader_store].advance_to(self.max_ts(region.id))

    def on_split(self, parent_id: int, child_ids: Iterable[int]) -> None:
        inherited = self.max_ts(parent_id)
        for child_id in child_ids:
            self._max_ts[child_id] = inherited

    def on_merge(self, source_id: int, target: Region) -> None:
        self._max_ts[target.id] = max(self.max_ts(source_id), self.max_ts(target.id))
        self._max_ts.pop(source_id, None)
        self.on_leader(target)

    def on_restart(self, store_id: int, led: Iterable[Region]) -> None:
        """The store's process is a new one: its clock is lost, what its regions know is not."""
        self._clocks[store_id] = Hlc()
        for region in led:
            self.on_leader(region)

    def close(self) -> None:
        """On the next start none of the reserve is lost."""
        if self._used != self._bound:
            self._store(self._used)

    def _use(self, ts: int) -> None:
        if ts > self._used:
            self._used = ts
            if ts > self._bound:
                self._store(ts + _WINDOW)

    def _store(self, bound: int) -> None:
        self._bound = bound
        self._engine.put(Family.META, _KEY, bound.to_bytes(8, "big"))
