"""Recorded histories through a lake sink, without Spark: batches at given ts, DDLs at their barriers."""

import atexit
import pickle
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa

from tests.flow.schema.stores import fed_store
from tests.histories import History, load
from tests.sinks.folders import QuickFiles
from tests.sinks.halves import LakeHalves, lake_sink
from tests.sinks.moments import at
from tidemill.flow.mounter import mount
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.receipt import Receipt
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.lake import LakeOptions, parse_lake_uri, write_rows
from tidemill.sinks.lake.reader import Lake
from tidemill.tidb.keys import record_range

KINDS = ("iceberg", "delta", "parquet")


def uri_of(kind: str, root: Path) -> str:
    return f"file://{root}?protocol=parquet" if kind == "parquet" else f"{kind}://{root}"


def options_of(uri: str, changefeed: str = "feed", cluster_id: int = 7) -> LakeOptions:
    """As ``tidemill run`` has them."""
    options = parse_lake_uri(uri).named(changefeed, cluster_id)
    assert isinstance(options, LakeOptions)
    return options


def open_sink(options: LakeOptions, state: Any, history: History) -> LakeHalves:
    def rescan(table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        for physical_id in physical_ids:
            yield rows_of(history, table, physical_id, ts)

    files = None
    if not options.storage.is_s3:
        Path(options.storage.root).mkdir(parents=True, exist_ok=True)
        files = QuickFiles(options.storage.root)
    return lake_sink(options, state, start_ts=Ts(history.bootstrap_ts), rescan=rescan, files=files)


def rows_of(history: History, table: TableInfo, physical_id: int, ts: int) -> RowBatch:
    """A table's rows as of ``ts``, as inserts: what a scan of the upstream gives."""
    pairs = list(history.scan_at(*record_range(physical_id), ts))
    changes = pa.RecordBatch.from_pylist(
        [
            {"start_ts": ts, "commit_ts": ts, "op": int(Op.PUT), "key": key, "value": value, "old_value": b""}
            for key, value in pairs
        ],
        RAW_CHANGE_SCHEMA,
    )
    return mount(table, physical_id, changes)


class Replay:
    """One changefeed. ``state`` is what was saved; a new sink may be opened at any time, as after a crash."""

    def __init__(self, name: str, kind: str, root: Path, uri: str = "") -> None:
        self.history = load(name)
        self.options = options_of(uri or uri_of(kind, root))
        self.state: Any = None
        self.sink = open_sink(self.options, None, self.history)
        self.from_ts = self.history.bootstrap_ts

    def crash(self) -> None:
        self.sink.close()
        self.sink = open_sink(self.options, self.state, self.history)
        self.sink.recover(at(self.from_ts))

    def write(self, to_ts: int, only: Collection[str] = ()) -> list[Receipt]:
        """What executors do with a batch; of the tables named, if any are."""
        return list(self._receipts(to_ts, only))

    def _receipts(self, to_ts: int, only: Collection[str]) -> Iterator[Receipt]:
        store, _ = fed_store(self.history.name)
        for followed in store.followed():
            changes, rows = _changes(self.history.name, followed.physical_id), followed.rows_of(self.from_ts, to_ts)
            if rows is None:
                continue
            stamps = changes.column("commit_ts").to_numpy()
            begin, end = (int(np.searchsorted(stamps, np.uint64(ts), "right")) for ts in rows)
            if begin == end:
                continue
            table = store.table(followed.physical_id, to_ts)
            assert table is not None
            if only and table.name not in only:
                continue
            target = self.sink.target(table, followed.physical_id, (Ts(self.from_ts), Ts(to_ts)))
            batch = mount(table, followed.physical_id, changes.slice(begin, end - begin))
            files = None if self.options.storage.is_s3 else QuickFiles(self.options.storage.root)
            receipt = write_rows(target, iter([batch]), files)
            yield pickle.loads(pickle.dumps(receipt))

    def commit(self, to_ts: int, receipts: Sequence[Receipt]) -> None:
        self.state = self.sink.commit(Ts(to_ts), receipts)
        self.sink.publish(Ts(to_ts))
        self.from_ts = to_ts

    def run_ddl(self, at_ts: int) -> None:
        for event in self.events(at_ts):
            self.sink.ddl(event)

    def events(self, at_ts: int) -> list[Any]:
        _, changes = fed_store(self.history.name)
        return [event for change in changes if change.finished_ts == at_ts for event in change.events]

    def stops(self) -> list[int]:
        """Where batches must end: at DDLs, and at the end of the history."""
        _, changes = fed_store(self.history.name)
        return sorted({int(change.finished_ts) for change in changes} | {self.history.end_ts})

    def tables(self) -> Iterator[tuple[TableInfo, int]]:
        """Those at the end that can be replicated, by physical id."""
        store, _ = fed_store(self.history.name)
        for followed in store.followed():
            table = store.table(followed.physical_id, self.history.end_ts)
            if table is not None:
                yield table, followed.physical_id

    def run(self) -> None:
        for to_ts in self.stops():
            self.commit(to_ts, self.write(to_ts))
            self.run_ddl(to_ts)
        self.sink.publish(Ts(self.history.end_ts))


@cache
def calm_lake(name: str, kind: str) -> Lake:
    """A history that ran through without a crash; shared by the tests of a process, so not to be changed."""
    folder = Path(mkdtemp(prefix="tidemill-lake-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    replay = Replay(name, kind, folder / "lake")
    replay.run()
    return Lake(replay.options)


@cache
def _changes(name: str, physical_id: int) -> pa.RecordBatch:
    return load(name).row_changes(physical_id)
