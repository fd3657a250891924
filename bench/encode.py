"""encode.canal_json: changes a second on one core, beside orjson over the same rows as dicts.

The rows are those of ``bench-narrow``, decoded, repeated until they fill a batch of the size that the
sorter hands on: inserts, a quarter updates, a tenth deletes. The floor only turns dicts into bytes: its
message dicts are there before the clock starts, which no real encoder would find. Seconds are of one
core's time; rounds of the two alternate, and each figure is a median.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pyarrow as pa

from bench.data import TABLE_ID
from tests.histories import load
from tidemill.flow.encoder import CanalJson
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.row import RowBatch
from tidemill.model.ts import Ts

_BATCH = 1 << 16
_SAMPLE = 8192  # changes that the floor encodes in a round
_ROUNDS = 7


def bench_encode() -> list[dict[str, Any]]:
    with _one_core():
        rows = _rows("bench-narrow")
        encoder = CanalJson(enable_tidb_extension=True).encoder(1_700_000_000_123)
        messages = encoder.encode(rows).messages()[:_SAMPLE]
        dicts = [orjson.loads(message) for message in messages]
        if [orjson.dumps(message) for message in dicts] != messages:
            raise AssertionError("encode.canal_json: the encoder and orjson write different messages")
        seconds, floor_seconds = [], []
        for _ in range(_ROUNDS):
            seconds.append(_timed(lambda: encoder.encode(rows)))
            floor_seconds.append(_timed(lambda: [orjson.dumps(message) for message in dicts]))
    value = len(rows) / statistics.median(seconds)
    floor = len(dicts) / statistics.median(floor_seconds)
    return [{"name": "encode.canal_json", "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}]


def _rows(name: str) -> RowBatch:
    history = load(name)
    store = SchemaStore.from_snapshot(history.meta_at(history.bootstrap_ts), Ts(history.bootstrap_ts))
    store.apply(history.job_changes())
    table = store.table(TABLE_ID, history.end_ts)
    if table is None:
        raise AssertionError(f"{name} has no table {TABLE_ID}: restore it from the repository")
    changes = history.row_changes(TABLE_ID)
    batch = pa.Table.from_batches([changes] * (_BATCH // len(changes) + 1)).slice(0, _BATCH)
    return mount(table, TABLE_ID, batch.combine_chunks().to_batches()[0])


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@contextmanager
def _one_core() -> Iterator[None]:
    """Nothing runs beside the thread that is measured, Arrow's own threads included."""
    allowed, threads = os.sched_getaffinity(0), pa.cpu_count()
    os.sched_setaffinity(0, {min(allowed)})
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        pa.set_cpu_count(threads)


if __name__ == "__main__":
    for line in bench_encode():
        print(line)
