"""What tests and ``tidemill fault`` do to a cluster that is serving: transactions, regions, faults."""

import threading
from collections.abc import Sequence

from tidebox.cluster import Cluster
from tidebox.mvcc import physical_key
from tidebox.pd import Pd
from tidebox.regions import Region
from tidebox.stores import ELECTION_SECONDS, Stores
from tidebox.timers import Later
from tidebox.transactions import Mutation
from tidemill.model.change import Op
from tidemill.model.ts import MAX_TS, Ts


class Controls:
    cluster: Cluster
    _stores: Stores
    _pd: Pd
    _pd_lock: threading.Lock
    _later: Later

    def tso(self) -> Ts:
        return self.cluster.tso.next()

    def commit(
        self, mutations: Sequence[Mutation], start_ts: int | None = None, commit_ts: int | None = None
    ) -> tuple[Ts, Ts]:
        """Prewrite and commit; return start-ts and commit-ts, taken from the TSO where not given."""
        start = self.prewrite(mutations, start_ts)
        return start, self.commit_prewritten([m.key for m in mutations], start, commit_ts)

    def prewrite(self, mutations: Sequence[Mutation], start_ts: int | None = None) -> Ts:
        start = Ts(start_ts if start_ts is not None else self.tso())
        self.cluster.prewrite(mutations, start)
        return start

    def commit_prewritten(self, keys: Sequence[bytes], start_ts: int, commit_ts: int | None = None) -> Ts:
        commit = Ts(commit_ts if commit_ts is not None else self.tso())
        self.cluster.commit(keys, start_ts, commit)
        self.cluster.tso.pass_by(commit)
        return commit

    def rollback(self, keys: Sequence[bytes], start_ts: int) -> None:
        self.cluster.rollback(keys, start_ts)

    def get(self, key: bytes, ts: int = MAX_TS) -> bytes | None:
        """The value of ``key`` at ``ts``, None if there is none; raises where a lock is in the way."""
        found = self.cluster.get(key, ts)
        return found.value if found is not None else None

    def set_gc_safepoint(self, ts: int) -> None:
        """Pretend that garbage collection has come this far: services may not ask for less any more."""
        with self.cluster.mutex:
            self.cluster.safepoints.update(b"gc_worker", ts, (1 << 63) - 1)
            self.cluster.safepoints.announce_gc(ts)

    def regions(self) -> list[Region]:
        with self.cluster.mutex:
            return list(self.cluster.regions)

    def region_of(self, raw_key: bytes) -> Region:
        with self.cluster.mutex:
            return self.cluster.regions.of_key(physical_key(raw_key))

    def split(self, raw_key: bytes) -> tuple[Region, ...]:
        """Cut the region that holds the key, at the key."""
        with self.cluster.mutex:
            physical = physical_key(raw_key)
            return self.cluster.split(self.cluster.regions.of_key(physical).id, [physical])

    def merge(self, source_id: int, target_id: int) -> Region:
        """Let ``target`` take in ``source``, its neighbour on either side; return what it has become."""
        return self.cluster.merge(source_id, target_id)

    def transfer_leader(self, region_id: int, store_id: int) -> None:
        self.cluster.transfer_leader(region_id, store_id)

    def hold_resolved(self, region_id: int) -> None:
        """A slow region: from now on it gets no resolved-ts, until it is released."""
        with self.cluster.mutex:
            self.cluster.subscriptions.hold(region_id)

    def release_resolved(self, region_id: int) -> None:
        with self.cluster.mutex:
            self.cluster.subscriptions.release(region_id)

    def publish_resolved(self) -> Ts:
        """Send a round of resolved-ts now, without waiting for the interval; return the ts it was made of."""
        return self.cluster.publish_resolved()

    def drop_streams(self, why: str = "connection reset", *, store_id: int | None = None) -> int:
        """Break every change stream, or those of one store; clients must register anew. Returns how many."""
        with self.cluster.mutex:
            streams = [s for s in self.cluster.streams if store_id in (None, s.store_id)]
        for stream in streams:
            stream.close(failure=why)
        return len(streams)

    def stop_store(self, store_id: int) -> None:
        """Other stores lead its regions where they can; then it stops answering."""
        self._stores.stop(store_id)

    def kill_store(self, store_id: int, election_seconds: float = ELECTION_SECONDS) -> None:
        """It is gone at once; other stores lead its regions only after a moment."""
        self._stores.kill(store_id, election_seconds)

    def start_store(self, store_id: int, *, elsewhere: bool = False) -> str:
        """The store answers again, at the address it had or at another; return it."""
        return self._stores.start(store_id, elsewhere=elsewhere)

    def start_store_later(self, store_id: int, seconds: float) -> None:
        """The end of an outage; a store that is up by then is left alone."""
        self._later.call(seconds, f"starting store {store_id}", lambda: self._stores.start(store_id))

    def pd_away(self, seconds: float | None = None) -> None:
        """PD's connections are cut and nobody gets a timestamp, the stores included; for ``seconds``, or until back."""
        with self._pd_lock:
            if not self.cluster.is_pd_away:
                self.cluster.is_pd_away = True
                self._pd.set_away(True)
        if seconds is not None:
            self._later.call(seconds, "PD coming back", self.pd_back)

    def pd_back(self) -> None:
        with self._pd_lock:
            if self.cluster.is_pd_away:
                self._pd.set_away(False)
                self.cluster.is_pd_away = False

    def delay_apply(self, seconds: float) -> None:
        """Every write waits this long between being decided and being applied; 0 turns it off."""
        with self.cluster.mutex:
            self.cluster.in_flight.delay_seconds = seconds

    def orphan_lock(self, key: bytes, ttl_ms: int) -> Ts:
        """Lock a key as a transaction does whose client then dies; return its start-ts."""
        start = self.tso()
        with self.cluster.mutex:
            self.cluster.transactions.prewrite([Mutation(Op.PUT, key, b"orphan")], start, ttl_ms=ttl_ms)
        return start
