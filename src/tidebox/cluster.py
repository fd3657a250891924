"""The state of the embedded cluster, and every way to change it.

    PD service ─┐
    KV service ─┼──► Cluster ──► Engine (RocksDB)
    CDC service ┘       └──────► Subscriptions ──► change streams

One mutex serialises writes, region changes and registrations, so the change stream sees them in
the order in which they happened. Reads take a snapshot under it and go on without it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidebox import regions as region_arithmetic
from tidebox.engine import Engine, Family
from tidebox.feed import FeedStream, Throttle
from tidebox.founding import NEXT_ID, REGION, found_cluster, region_key
from tidebox.gc import Collected, Collector
from tidebox.inflight import InFlight
from tidebox.mvcc import LockTable, Version
from tidebox.raw import RawStore
from tidebox.reads import Reads
from tidebox.regions import Peer, Region, RegionMap
from tidebox.safepoints import Safepoints
from tidebox.subscriptions import Subscriptions
from tidebox.transactions import Mutation, Transactions
from tidebox.tso import Tso
from tidebox.txn.read import ReadAt
from tidemill._pb import cdcpb_pb2, errorpb_pb2
from tidemill.clock import Clock
from tidemill.errors import UsageError
from tidemill.model.ts import MAX_TS, Ts

VERSION = "8.5.0"  # what our stores say they are


@dataclass
class StoreState:
    """A store as PD knows it. Ids are 1 to N; addresses change from start to start."""

    id: int
    address: str = ""
    is_up: bool = True
    deaths: int = 0  # what was asked of it before the last one is not done any more
    asked_at: float = 0.0  # when the last request came, by the clock that never goes back


class Cluster:
    def __init__(self, engine: Engine, clock: Clock, store_count: int, api_version: int = 1) -> None:
        self.engine = engine
        self.clock = clock
        self.api_version = api_version
        self.mutex = threading.RLock()
        self.in_flight = InFlight(self.mutex, clock)
        self.cluster_id, self._next_id = found_cluster(engine, clock, store_count, api_version)
        self.stores = {store_id: StoreState(store_id) for store_id in range(1, store_count + 1)}
        self.regions = RegionMap([Region.decode(v) for _, v in engine.items(Family.META, REGION, b"region0")])
        self.tso = Tso(engine, clock)
        # All up to here may have been read, or promised to subscribers, before a restart.
        self.in_flight.observe(self.tso.last)
        self.locks = LockTable(engine)
        self.subscriptions = Subscriptions(self.regions, self.locks, self.in_flight)
        self.transactions = Transactions(
            engine,
            self.mutex,
            clock,
            self.regions,
            self.locks,
            self.subscriptions,
            self.in_flight,
            self.tso.pass_by,
        )
        self.reads = Reads(engine, self.mutex, self.locks, self.in_flight)
        self.safepoints = Safepoints(engine, clock)
        self.streams: set[FeedStream] = set()
        self.scan_throttle = Throttle(clock)
        self.is_pd_away = False  # then stores get no timestamps
        self.at_stop: list[Callable[[], None]] = []  # called before the data is closed: ends threads that work on it
        self.raw = RawStore(
            engine, clock, self._ask_tso, self.regions, self.subscriptions, self.stores, self.in_flight, api_version
        )
        self.garbage = Collector(
            engine, self.mutex, self.safepoints, self.locks, self.in_flight, self.tso, self.raw.collect
        )

    # Reading

    def get(self, key: bytes, ts: int = MAX_TS) -> Version | None:
        """The value of ``key`` at ``ts``; ``KeyLockedError`` if a transaction may still commit below it."""
        return self.reads.get(key, ReadAt(ts))

    # Writing

    def prewrite(self, mutations: Sequence[Mutation], start_ts: int, *, for_update_ts: int = 0) -> None:
        with self.mutex:
            self.transactions.prewrite(mutations, start_ts, for_update_ts=for_update_ts)

    def commit(self, keys: Sequence[bytes], start_ts: int, commit_ts: int) -> None:
        with self.mutex:
            self.transactions.commit(keys, start_ts, commit_ts)

    def rollback(self, keys: Sequence[bytes], start_ts: int) -> None:
        with self.mutex:
            self.transactions.rollback(keys, start_ts)

    # Regions

    def region(self, region_id: int) -> Region:
        with self.mutex:
            region = self.regions.get(region_id)
            if region is None:
                known = ", ".join(str(r.id) for r in self.regions)
                raise UsageError(f"there is no region {region_id}; there are {known}")
            return region

    def split(self, region_id: int, physical_keys: Sequence[bytes]) -> tuple[Region, ...]:
        """Cut a region at keys strictly inside it; its subscribers are told and must register anew."""
        with self.mutex:
            region = self.region(region_id)
            children = region_arithmetic.split(region, physical_keys, self.allocate_id)
            self._store_regions([region], children)
            self.raw.on_split(region_id, [child.id for child in children])
            current = errorpb_pb2.EpochNotMatch(current_regions=[child.to_wire() for child in children])
            self.subscriptions.fail_region(region_id, cdcpb_pb2.Error(epoch_not_match=current))
            return children

    def merge(self, source_id: int, target_id: int) -> Region:
        """Let a region take in its neighbour; the subscribers of both are told and must register anew."""
        with self.mutex:
            source, target = self.region(source_id), self.region(target_id)
            merged = region_arithmetic.merge(source, target)
            self._store_regions([source, target], [merged])
            for region_id in (source_id, target_id):
                # No list: what the region has become is not known yet where this is said.
                unknown = errorpb_pb2.EpochNotMatch()
                self.subscriptions.fail_region(region_id, cdcpb_pb2.Error(epoch_not_match=unknown))
            self.subscriptions.forget_region(source_id)
            self.raw.on_merge(source_id, target_id)
            return merged

    def split_at(self, physical_keys: Sequence[bytes]) -> None:
        """Make every one of the keys a region boundary, where it is none yet."""
        with self.mutex:
            wanted: dict[int, list[bytes]] = {}
            for key in sorted(set(physical_keys)):
                region = self.regions.of_key(key)
                if region.start != key:
                    wanted.setdefault(region.id, []).append(key)
            for region_id, keys in wanted.items():
                self.split(region_id, keys)

    def spread_leaders(self) -> None:
        """Give each store its share of the leaders, in key order."""
        with self.mutex:
            for at, region in enumerate(list(self.regions)):
                self.transfer_leader(region.id, region.stores[at % len(region.stores)])

    def transfer_leader(self, region_id: int, store_id: int) -> None:
        with self.mutex:
            region = self.region(region_id)
            moved = replace(region, leader_store=region.peer_on(store_id).store_id)
            if not self.stores[store_id].is_up:
                raise UsageError(f"store {store_id} is down and cannot lead region {region_id}: start it first")
            if moved == region:
                return
            self._store_regions([region], [moved])
            self.raw.on_leader(moved)
            self.subscriptions.fail_region(region_id, cdcpb_pb2.Error(not_leader=self.not_leader(moved)))

    def leader_of(self, region: Region) -> Peer | None:
        """Who leads the region, as PD knows it. None: all its peers are down.

        A store that was killed goes on leading, dead, until others have noticed (``elect``).
        """
        return region.leader if any(self.stores[store].is_up for store in region.stores) else None

    def not_leader(self, region: Region) -> errorpb_pb2.NotLeader:
        """What a peer tells a client that came to the wrong one; without a leader while there is none."""
        leader = region.leader_to_wire() if self.stores[region.leader_store].is_up else None
        return errorpb_pb2.NotLeader(region_id=region.id, leader=leader)

    # Stores

    def store(self, store_id: int) -> StoreState:
        found = self.stores.get(store_id)
        if found is None:
            raise UsageError(f"there is no store {store_id}; there are {', '.join(map(str, self.stores))}")
        return found

    def move_leaders_from(self, store_id: int) -> None:
        """A store is about to go: its regions are led by another live peer, if there is one."""
        with self.mutex:
            for region in [r for r in self.regions if r.leader_store == store_id]:
                heirs = [s for s in region.stores if s != store_id and self.stores[s].is_up]
                if heirs:
                    self.transfer_leader(region.id, heirs[region.id % len(heirs)])

    def set_down(self, store_id: int) -> None:
        """A store is gone. What it leads is led by nobody who answers."""
        with self.mutex:
            state = self.store(store_id)
            state.is_up = False
            state.deaths += 1

    def elect(self) -> None:
        """Stores have noticed who is gone: regions with a dead leader and a live peer get a new one."""
        with self.mutex:
            for store_id in [store.id for store in self.stores.values() if not store.is_up]:
                self.move_leaders_from(store_id)

    def set_up(self, store_id: int) -> None:
        """A store is back: it leads again what nobody else has taken over, and what nobody leads."""
        with self.mutex:
            self.store(store_id).is_up = True
            self.raw.on_restart(store_id)
            for region in [r for r in self.regions if store_id in r.stores]:
                if not self.stores[region.leader_store].is_up:
                    self.transfer_leader(region.id, store_id)

    def allocate_id(self, count: int = 1) -> int:
        """Reserve ``count`` ids; return the last."""
        with self.mutex:
            self._next_id += count
            self.engine.put(Family.META, NEXT_ID, self._next_id.to_bytes(8, "big"))
            return self._next_id - 1

    # Garbage

    def collect_garbage(self) -> Collected:
        """Remove every version that nobody may ask for any more, now."""
        return self.garbage.collect()

    # Change streams

    def publish_resolved(self) -> Ts:
        """One round of resolved-ts to everybody; return the present it was made of."""
        with self.mutex:
            if self.is_pd_away:
                return self.tso.last  # without a ts from PD there is nothing to promise
            present = self.tso.advance()
            self.in_flight.observe(present)
            self.raw.clocks.refresh(present)
            self.subscriptions.publish_resolved(present, self.raw.promise)
            return present

    def attach(self, stream: FeedStream) -> None:
        with self.mutex:
            self.streams.add(stream)

    def detach(self, stream: FeedStream) -> None:
        with self.mutex:
            self.streams.discard(stream)
            self.subscriptions.forget(stream)

    def _ask_tso(self) -> Ts | None:
        """PD's present, as a store gets it."""
        return None if self.is_pd_away else self.tso.advance()

    def _store_regions(self, old: Sequence[Region], new: Sequence[Region]) -> None:
        batch = self.engine.batch()
        for region in old:
            batch.delete(Family.META, region_key(region.id))
        for region in new:
            batch.put(Family.META, region_key(region.id), region.encode())
        self.engine.write(batch)
        self.regions.replace(old, new)
        self.raw.on_replaced(old)
