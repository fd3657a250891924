"""Garbage collection: old versions that nobody may ask for any more leave the engine.

    safepoints ──► how far ──┐
    locks ──► what stays ────┼──► blocks of garbage ──► one write each
    snapshot ────────────────┘

A pass reads a snapshot, without the cluster's mutex; only removing takes it, for one block at a
time. A pass that ends half way, by ``kill -9`` too, has done no harm: every read at or above the
safepoint is the same after each block, and the next pass removes the rest.

Whoever moves the GC safepoint should have resolved the locks below it. Where a lock was left all
the same, what its transaction needs to be ended rightly stays until it is gone.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidebox import blocks
from tidebox.blocks import Garbage
from tidebox.engine import Batch, Engine, Family, Snapshot
from tidebox.inflight import InFlight
from tidebox.kernels import Stamps
from tidebox.mvcc import LockTable, physical_key
from tidebox.safepoints import Safepoints
from tidebox.tso import Tso
from tidemill.errors import TidemillError
from tidemill.log import get_logger
from tidemill.model.ts import LOGICAL_BITS, physical_ms

INTERVAL_SECONDS = 10.0
RAW_LIFETIME_SECONDS = 24 * 3600.0

_DONE = b"gc_done"
_RAW_STEPS = 24  # raw versions are looked through so many times in a lifetime

log = get_logger("store.gc")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a pass removed. ``is_whole``: it came to the end, and kept nothing for an unfinished transaction."""

    safepoint: int
    versions: int
    raw_versions: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass goes by, all of one moment."""

    snapshot: Snapshot
    held: Stamps  # start-ts of unfinished transactions, ascending
    locked: set[bytes]  # physical keys that are left alone; grows


class Sweeper:
    """Collects in a thread of its own whenever a safepoint has moved, looking every so often."""

    def __init__(self, collector: "Collector", interval_seconds: float) -> None:
        self._collector = collector
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gc", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends a pass at its next block, and waits for that."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            try:
                self._collector.collect_if_due(self._stopping.is_set)
            except TidemillError as error:
                log.error("garbage collection failed; trying again", error=error)


class Collector:
    """One pass at a time, from any thread. Not to be called with the cluster's mutex held."""

    def __init__(
        self,
        engine: Engine,
        mutex: threading.RLock,
        safepoints: Safepoints,
        locks: LockTable,
        in_flight: InFlight,
        tso: Tso,
        collect_raw: Callable[[int], int],
    ) -> None:
        self._engine = engine
        self._mutex = mutex
        self._safepoints = safepoints
        self._locks = locks
        self._in_flight = in_flight
        self._tso = tso
        self._collect_raw = collect_raw
        self._turn = threading.Lock()
        self._done = int.from_bytes(engine.get(Family.META, _DONE) or b"", "big")
        self._raw_done = 0
        self.raw_lifetime_seconds = RAW_LIFETIME_SECONDS
        self.records_per_block = blocks.RECORDS_PER_BLOCK

    def collect(self, should_stop: Callable[[], bool] = lambda: False) -> Collected:
        """Remove everything that may go now. ``should_stop`` is asked between blocks."""
        return self._collect(should_stop, raw_step_seconds=0, since=0)

    def collect_if_due(self, should_stop: Callable[[], bool] = lambda: False) -> Collected:
        """Like ``collect``, for whoever asks often: does nothing while no safepoint has moved."""
        return self._collect(should_stop, raw_step_seconds=self.raw_lifetime_seconds / _RAW_STEPS, since=self._done)

    def _collect(self, should_stop: Callable[[], bool], *, raw_step_seconds: float, since: int) -> Collected:
        with self._turn:
            safepoint, raw_before = self._bounds()
            versions, is_whole, raw_versions = 0, True, 0
            if safepoint > since:
                versions, is_whole = self._collect_versions(safepoint, should_stop)
            step = int(raw_step_seconds * 1000) << LOGICAL_BITS
            if raw_before >= self._raw_done + step and not should_stop():
                raw_versions = self._collect_raw(raw_before)
                self._raw_done = raw_before
            return Collected(safepoint, versions, raw_versions, is_whole)

    def _bounds(self) -> tuple[int, int]:
        """Up to which ts versions may be collected, and before which ts raw ones."""
        with self._mutex:
            # A safepoint from the future must not overtake commits that are still to come.
            present = self._tso.advance()
            lowest = self._safepoints.lowest_barrier()
            aged_ms = physical_ms(present) - int(self.raw_lifetime_seconds * 1000)
            raw_before = max(aged_ms, 0) << LOGICAL_BITS
            if lowest is not None:
                raw_before = min(raw_before, lowest.ts)
            return min(self._safepoints.collectable(), present), raw_before

    def _collect_versions(self, safepoint: int, should_stop: Callable[[], bool]) -> tuple[int, bool]:
        """How many commit records went, and whether none is left that should go."""
        removed = kept = 0
        this = self._begin(safepoint)
        for found in blocks.garbage(this.snapshot, safepoint, this.held, this.locked, self.records_per_block):
            if should_stop():
                return removed, False
            gone = self._remove(found, this.locked)
            removed += len(gone.writes)
            kept += gone.kept
        if kept == 0 and safepoint > self._done:
            self._done = safepoint
            self._engine.put(Family.META, _DONE, safepoint.to_bytes(8, "big"))
        if removed:
            log.info("garbage collected", safepoint=safepoint, versions=removed, kept_for_locks=kept)
        return removed, kept == 0

    def _begin(self, safepoint: int) -> _Pass:
        with self._mutex:
            # What settles its commit-ts from now on settles above the safepoint, and so writes nothing that
            # takes the place of a record which is about to go. What has settled before is locked, or in flight.
            self._in_flight.observe(safepoint)
            found = [*self._locks.within(b"", b""), *self._in_flight.locks()]
            old = [(key, lock) for key, lock in found if lock.start_ts <= safepoint]
            # A lock that comes later belongs to a transaction of which nothing is in the snapshot.
            held = np.unique(np.array([lock.start_ts for _, lock in old], np.uint64))
            return _Pass(self._engine.snapshot(), held, {physical_key(key) for key, _ in old})

    def _remove(self, found: Garbage, locked: set[bytes]) -> Garbage:
        """Remove what was found, as far as nobody is on it; return what went."""
        batch = self._batch(found)
        # Under the mutex, because a snapshot must not show a commit record without its value.
        with self._mutex:
            if self._in_flight.latched:
                # A command that has read the key and waits to be applied may write one of these anew.
                locked.update(map(physical_key, self._in_flight.latched))
                found = found.without(locked)
                batch = self._batch(found)
            if found.writes:
                self._engine.write(batch)
        return found

    def _batch(self, found: Garbage) -> Batch:
        batch = self._engine.batch()
        for key in found.writes:
            batch.delete(Family.WRITE, key)
        for key in found.values:
            batch.delete(Family.DEFAULT, key)
        return batch
