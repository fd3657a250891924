"""Bringing a history into the cluster: at once, or live at a pace.

    History ──► bulk load     commit records straight into the engine, before anyone is served
            └─► Replay        one transaction after the other: locks, then commits

How many rows are in is kept with the data, in the same write as the data, so that a restart goes
on where it stopped and nothing is brought in twice.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidebox import kernels
from tidebox.cluster import Cluster
from tidebox.engine import Engine, Family
from tidebox.history import History, buffers
from tidebox.kernels import Ints, Stamps
from tidebox.mvcc import SHORT_VALUE_MAX_BYTES, physical_key
from tidebox.transactions import Mutation
from tidemill.clock import Clock
from tidemill.errors import DataDirError, TidemillError, UsageError
from tidemill.log import get_logger
from tidemill.model.ts import MAX_TS, physical_ms

_KEY = b"history"
_TABLE_PREFIX_BYTES = 9

log = get_logger("store.load")


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of which history is in."""

    fingerprint: str
    rows: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def progress_of(engine: Engine, history: History) -> Progress:
    """Where the folder stands with this history; ``DataDirError`` if it holds another."""
    stored = engine.get(Family.META, _KEY)
    if stored is None:
        return Progress(history.fingerprint, 0)
    progress = Progress(**json.loads(stored))
    if progress.fingerprint != history.fingerprint:
        raise DataDirError(
            f"cannot load {history.path}: the data folder already holds another history. "
            "Choose another --data-dir, or load the history that was loaded before."
        )
    return progress


def load(cluster: Cluster, history: History, rows: int) -> None:
    """Bring in the first ``rows`` rows at once, where they are not in yet. Nobody may be connected."""
    done = progress_of(cluster.engine, history).rows
    if len(cluster.locks) and done < len(history):
        # A replay was cut short between lock and commit.
        end, mutations = history.transaction_at(done)
        apply_transaction(cluster, history, done, end, mutations)
        done = end
    _pass_by(cluster, history, max(done, rows))
    if done >= rows:
        return
    _ingest(cluster.engine, history, done, rows)
    split_at_tables(cluster, pc.unique(pc.binary_slice(history.keys[done:rows], 0, _TABLE_PREFIX_BYTES)).to_pylist())
    cluster.spread_leaders()
    cluster.engine.put(Family.META, _KEY, Progress(history.fingerprint, rows).encode())
    log.info("history loaded", rows=rows - done, regions=len(cluster.regions))


def _pass_by(cluster: Cluster, history: History, rows: int) -> None:
    """The first ``rows`` rows are the past; but a commit-ts that continues behind them is not over yet."""
    if rows:
        last = int(history.commit_ts[rows - 1])
        is_split = rows < len(history) and int(history.commit_ts[rows]) == last
        cluster.tso.pass_by(last - 1 if is_split else last)


def apply_transaction(cluster: Cluster, history: History, row: int, end: int, mutations: Sequence[Mutation]) -> None:
    """Prewrite and commit the transaction of rows ``[row, end)``, and note that it is in."""
    start_ts, commit_ts = int(history.start_ts[row]), int(history.commit_ts[row])
    # Whoever wrote this may have locked its keys long after it began, so that it does not
    # conflict with what was committed in between.
    with cluster.mutex:
        cluster.transactions.prewrite(mutations, start_ts, for_update_ts=commit_ts - 1, is_free_of_conflict=True)
    with cluster.mutex:  # taken anew: a resolved-ts may fall between lock and commit
        batch = cluster.engine.batch()
        batch.put(Family.META, _KEY, Progress(history.fingerprint, end).encode())
        cluster.transactions.commit([m.key for m in mutations], start_ts, commit_ts, batch=batch)


def split_at_tables(cluster: Cluster, prefixes: Iterable[bytes]) -> None:
    """Give each table a region of its own, as TiDB does when it creates one; other prefixes are left alone."""
    tables = [p for p in prefixes if p[:1] == b"t" and len(p) == _TABLE_PREFIX_BYTES]
    cluster.split_at([physical_key(table) for table in tables])


class Replay:
    """Applies the rest of a history in its own thread, and is the cluster's clock meanwhile."""

    def __init__(self, cluster: Cluster, history: History, speed: float, clock: Clock) -> None:
        if speed < 0:
            raise UsageError(f"cannot replay at speed {speed}: give 0 for as fast as it goes, 1 for its own pace")
        self._cluster = cluster
        self._history = history
        self._speed = speed
        self._clock = clock
        self._row = progress_of(cluster.engine, history).rows
        self._tables: set[bytes] = set()
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self.failure: TidemillError | None = None
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        if self._row == len(history):
            self._finished.set()
            return
        self.limit = int(history.commit_ts[self._row])
        if cluster.tso.last >= self.limit:
            raise UsageError(
                f"cannot replay {history.path}: its next commit is at {self.limit}, "
                f"but this cluster's clock is already at {cluster.tso.last}. Choose an empty --data-dir."
            )
        self._from_ms = physical_ms(int(history.commit_ts[self._row - 1])) if self._row else physical_ms(self.limit)
        self._applied_ms = self._from_ms
        self._began = clock.monotonic()
        cluster.tso.follow(self)

    def start(self) -> None:
        if not self._finished.is_set():
            self._began = self._clock.monotonic()
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Whether all is in, at the latest when the time is up."""
        done = self._finished.wait(timeout_seconds)
        if self.failure is not None:
            raise self.failure
        return done

    def now_ms(self) -> int:
        """The history's present: as far as it should have come by now."""
        if self._speed == 0:
            return self._applied_ms
        return self._from_ms + int((self._clock.monotonic() - self._began) * 1000 * self._speed)

    def _run(self) -> None:
        first = self._row
        try:
            while self._row < len(self._history) and self._wait_until_due():
                self._step()
        except TidemillError as error:
            self.failure = error
            log.error("replay failed", error=error)
        if self._row == len(self._history):
            self._cluster.tso.follow(None)
            log.info("history replayed", rows=self._row - first)
        if not self._stopping.is_set() or self._row == len(self._history):
            self._finished.set()

    def _wait_until_due(self) -> bool:
        """False: asked to stop."""
        if self._speed == 0:
            return not self._stopping.is_set()
        due_seconds = (physical_ms(self.limit) - self._from_ms) / 1000 / self._speed
        left = due_seconds - (self._clock.monotonic() - self._began)
        return not self._stopping.wait(max(left, 0))

    def _step(self) -> None:
        commit_ts = int(self._history.commit_ts[self._row])
        end, mutations = self._history.transaction_at(self._row)
        fresh = {m.key[:_TABLE_PREFIX_BYTES] for m in mutations} - self._tables
        if fresh:
            self._tables |= fresh
            split_at_tables(self._cluster, fresh)
        apply_transaction(self._cluster, self._history, self._row, end, mutations)
        with self._cluster.mutex:
            self._row = end
            self._applied_ms = physical_ms(commit_ts)
            # Only now may a timestamp above this commit be given out.
            self.limit = int(self._history.commit_ts[end]) if end < len(self._history) else MAX_TS
            if self.limit != commit_ts:
                self._cluster.tso.pass_by(commit_ts)


def _ingest(engine: Engine, history: History, first: int, end: int) -> None:
    """Rows ``[first, end)`` as stored pairs, sorted, straight into the engine."""
    keys, values = history.keys[first:end], history.values[first:end]
    start, commit = history.start_ts[first:end], history.commit_ts[first:end]
    is_put = history.is_put[first:end]
    key_bytes, ko = buffers(keys)
    value_bytes, vo = buffers(values)
    order = _newest_first(keys, commit)
    sizes = np.diff(vo)
    records = np.empty(len(order) * 16 + int(sizes[sizes <= SHORT_VALUE_MAX_BYTES].sum()), np.uint8)
    ends: Ints = np.empty(len(order), np.int64)
    kernels.write_records(start, is_put, vo, value_bytes, order, SHORT_VALUE_MAX_BYTES, records, ends)
    engine.ingest(Family.WRITE, _stored_keys(key_bytes, ko, commit, order), _slices(records, ends))
    is_long = np.flatnonzero(is_put & (sizes > SHORT_VALUE_MAX_BYTES))
    order = is_long[_newest_first(keys.take(pa.array(is_long)), start[is_long])]
    longs = [value_bytes[vo[i] : vo[i + 1]].tobytes() for i in order.tolist()]
    engine.ingest(Family.DEFAULT, _stored_keys(key_bytes, ko, start, order), longs)


def _newest_first(keys: pa.Array, stamps: Stamps) -> Ints:
    table = pa.table({"key": keys, "ts": stamps})
    order: Ints = pc.sort_indices(table, [("key", "ascending"), ("ts", "descending")]).to_numpy().astype(np.int64)
    return order


def _stored_keys(keys: kernels.Bytes, ko: Ints, stamps: Stamps, order: Ints) -> list[bytes]:
    lengths = np.diff(ko)[order]
    out = np.empty(int((lengths // 8 + 1).sum()) * 9 + 8 * len(order), np.uint8)
    ends: Ints = np.empty(len(order), np.int64)
    kernels.stored_keys(keys, ko, stamps, order, out, ends)
    return _slices(out, ends)


def _slices(data: kernels.Bytes, ends: Ints) -> list[bytes]:
    whole = data.tobytes()
    bounds = ends.tolist()
    return [whole[a:b] for a, b in zip([0, *bounds], bounds, strict=False)]
