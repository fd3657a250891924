"""mount.narrow and mount.wide: changes a second on one core, old images included.

The rows are those of ``bench-narrow`` and ``bench-wide``, repeated until they fill a batch of the size
that the sorter hands on. The floor is the plain per-row decoder that the tests keep as the reference;
before anything is timed both have to give the same rows. Seconds are of one core's time, so that waiting
for the core does not count; rounds of the two alternate, and each figure is a median.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from bench.data import TABLE_ID
from tests.histories import load
from tests.reference.rows import Decoder
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.row import RowOp
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

_BATCH = 1 << 16
_ROUNDS = 7


def bench_mount() -> list[dict[str, Any]]:
    with _one_core():
        return [_measure("mount.narrow", "bench-narrow", 2000), _measure("mount.wide", "bench-wide", 400)]


def _measure(name: str, history: str, sample: int) -> dict[str, Any]:
    """``sample``: how many changes the reference decodes in a round."""
    table, changes = _changes(history)
    few = changes.slice(0, sample)
    if _columnar_rows(table, few) != _plain_rows(table, few):
        raise AssertionError(f"{name}: the mounter and the reference decode the rows of {history} differently")
    batch = pa.Table.from_batches([changes] * (_BATCH // len(changes) + 1))
    batch = batch.slice(0, _BATCH).combine_chunks().to_batches()[0]
    seconds, floor_seconds = [], []
    for _ in range(_ROUNDS):
        seconds.append(_timed(lambda: mount(table, TABLE_ID, batch)))
        floor_seconds.append(_timed(lambda: _plain_rows(table, few)))
    value = len(batch) / statistics.median(seconds)
    floor = len(few) / statistics.median(floor_seconds)
    return {"name": name, "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}


def _changes(name: str) -> tuple[TableInfo, pa.RecordBatch]:
    history = load(name)
    store = SchemaStore.from_snapshot(history.meta_at(history.bootstrap_ts), Ts(history.bootstrap_ts))
    store.apply(history.job_changes())
    table = store.table(TABLE_ID, history.end_ts)
    if table is None:
        raise AssertionError(f"{name} has no table {TABLE_ID}: restore it from the repository")
    return table, history.row_changes(TABLE_ID)


def _plain_rows(table: TableInfo, changes: pa.RecordBatch) -> list[tuple[Any, Any]]:
    decoder = Decoder(table, TABLE_ID)
    columns = (changes.column(name).to_pylist() for name in ("key", "value", "old_value"))
    return [
        (decoder.decode(key, new) if new else None, decoder.decode(key, old) if old else None)
        for key, new, old in zip(*columns, strict=True)
    ]


def _columnar_rows(table: TableInfo, changes: pa.RecordBatch) -> list[tuple[Any, Any]]:
    rows = mount(table, TABLE_ID, changes)
    new, old = iter(rows.new.to_pylist()), iter(rows.old.to_pylist())
    return [
        (next(new) if op != RowOp.DELETE else None, next(old) if op != RowOp.INSERT else None)
        for op in rows.op.tolist()
    ]


def _timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep to one core while measuring, where the system lets a process choose."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
