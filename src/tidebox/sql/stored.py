"""What is stored, as a transaction sees it: locks of others are waited for, or passed."""

from collections.abc import Callable, Iterator
from typing import Final

from tidebox import blocks
from tidebox.cluster import Cluster
from tidebox.mvcc import Lock, Reader, physical_key
from tidebox.reads import View
from tidebox.sql.buffer import Pair
from tidebox.sql.lock_conflicts import LocksInWay
from tidebox.txn.read import ReadAt, Sight
from tidemill._pb import kvrpcpb_pb2

_SCAN_KEYS: Final = 1 << 30


class Stored:
    """``read_ts`` is what reads see: the start-ts, but within a pessimistic statement that writes its own ts."""

    def __init__(
        self, cluster: Cluster, start_ts: int, lock_wait_seconds: float, is_interrupted: Callable[[], bool]
    ) -> None:
        self.read_ts = start_ts
        self._cluster = cluster
        self._start_ts = start_ts
        self._lock_wait_seconds = lock_wait_seconds
        self._is_interrupted = is_interrupted
        self._bypass: set[int] = set()

    def _at(self) -> ReadAt:
        return ReadAt(self.read_ts, frozenset((int(self._start_ts), *self._bypass)))

    def get(self, key: bytes) -> bytes | None:
        cluster = self._cluster
        in_way = None
        with cluster.mutex:
            while True:
                cluster.in_flight.observe(self.read_ts)
                lock = cluster.in_flight.lock(key) or cluster.locks.get(key)
                if lock is None or self._at().sight(key, lock) is Sight.PASSES:
                    found = Reader(cluster.engine.live()).get(key, self.read_ts)
                    return found.value if found is not None else None
                in_way = in_way or self.in_way(self._lock_wait_seconds)
                self._pass(in_way, key, lock)

    def _pass(self, in_way: LocksInWay, key: bytes, lock: Lock) -> None:
        passed = in_way.pass_reader(key, lock, self.read_ts)
        if passed is not None:
            self._bypass.add(passed)

    def _view(self, start: bytes, end: bytes) -> View:
        """The snapshot of a range, once no lock is in the way any more."""
        in_way = None
        with self._cluster.mutex:
            while True:
                _, _, view = self._cluster.reads.of_range(lambda: (start, end), self._at())
                if not view.special:
                    return view
                in_way = in_way or self.in_way(self._lock_wait_seconds)
                for key, lock in view.special.items():
                    self._pass(in_way, key, lock)

    def range(self, start: bytes, end: bytes, most: int = _SCAN_KEYS) -> Iterator[Pair]:
        if end and start >= end:
            return
        view = self._view(start, end)
        low, high = physical_key(start) if start else b"", physical_key(end) if end else b""
        for part in blocks.visible(view.snapshot, low, high, self.read_ts, most):
            for pair in kvrpcpb_pb2.ScanResponse.FromString(part.data.tobytes()).pairs:
                yield pair.key, pair.value

    def backwards(self, start: bytes, end: bytes) -> Iterator[Pair]:
        if end and start >= end:
            return
        reader = Reader(self._view(start, end).snapshot)
        at = reader.previous_key(end)
        while at is not None and at >= start:
            found = reader.get(at, self.read_ts)
            if found is not None:
                yield at, found.value
            at = reader.previous_key(at)

    def in_way(self, wait_seconds: float) -> LocksInWay:
        give_up = self._cluster.clock.monotonic() + wait_seconds
        return LocksInWay(self._cluster, int(self._start_ts), give_up, self._is_interrupted)
