"""spark.batch_overhead: what a batch costs that has nothing to do: the job, its tasks, and what surrounds them.

The real engine runs the real pipeline, into the blackhole, over two units without a row, one batch after the other, as
the driver of a changefeed does.

    spark.batch_overhead       milliseconds per batch; the median
    spark.batch_overhead_cpu   CPU milliseconds per batch, of this process, the JVM and the Python workers together
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.data import TABLE_ID
from bench.measured import cpu_seconds, family
from tests.histories import load
from tidemill.flow.decoder import TableDecoder
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.schema import SchemaStore
from tidemill.model.ts import Ts
from tidemill.sinks.blackhole import BlackholeTarget
from tidemill.spark.engine import Engine
from tidemill.spark.session import borrow_session

Result = dict[str, Any]

_SETTLED, _BATCHES = 100, 300


def bench_overhead() -> list[Result]:
    history = load("bench-narrow")
    store = SchemaStore.from_snapshot(list(history.meta_at(history.end_ts)), Ts(history.end_ts))
    table = store.table(TABLE_ID, history.end_ts + 1)
    if table is None:
        raise AssertionError(f"table {TABLE_ID} of bench-narrow has no schema")
    units = [Unit(TableDecoder(table, TABLE_ID), None, BlackholeTarget(table.full_name))] * 2
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        lease = borrow_session(log=Path(name) / "spark.log")
        engine = Engine(lease, "bench", tasks=2)
        try:
            engine.start()
            _run(engine, units, _SETTLED)
            began = _cpu_seconds()
            seconds = _run(engine, units, _BATCHES)
            cpu = _cpu_seconds() - began
        finally:
            engine.close()
            lease.release()
    return [
        _result("spark.batch_overhead", statistics.median(seconds) * 1000, "ms"),
        _result("spark.batch_overhead_cpu", cpu / _BATCHES * 1000, "CPU ms"),
    ]


def _run(engine: Engine, units: list[Unit], batches: int) -> list[float]:
    seconds = []
    for number in range(batches):
        began = time.perf_counter()
        engine.submit(Pipeline("UTC"), units, f"batch {number}").result()
        seconds.append(time.perf_counter() - began)
    return seconds


def _cpu_seconds() -> float:
    return sum(map(cpu_seconds, family(os.getpid())))


def _result(name: str, value: float, unit: str) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": None, "ratio": None}
