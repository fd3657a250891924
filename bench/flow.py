"""flow.*: the whole way, from an embedded upstream's change stream through Spark to durable.

The upstream runs in a process of its own and does not count. Everything of ours does: this process (puller,
sorter, processor, Spark's driver), the JVM and its Python workers. The session is up and warm before the clock
starts, as it is in a changefeed that has been running for a while; starting the query itself is in the figures.

    flow.blackhole     rows/s; floor: Spark reads the same rows, decoded, from a trivial Python source into noop
    flow.canal_json    rows/s; floor: Spark writes the same bytes as text files
    flow.cpu_seconds   of all our processes, per million rows
    flow.latency       commit → durable in files, one transaction a second; and where the time goes
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.data import RECORDED, TABLE_ID, grow
from tests.histories import load
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.change import Op
from tidemill.model.ts import Ts
from tidemill.server import Changefeed, RunOptions
from tidemill.spark.session import open_session
from tidemill.store.transactions import Mutation
from tidemill.store.upstream import EmbeddedUpstream
from tidemill.upstream.keys import record_key

Result = dict[str, Any]

_ROWS = 3_000_000  # starting a query costs some CPU-seconds once; they should not show
_TRANSACTIONS = 40  # one a second, for the latency
_CANAL_JSON = "protocol=canal-json&enable-tidb-extension=true"


def bench_flow() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        history = grow("bench-narrow", _ROWS, folder / "narrow")
        spark = open_session(scratch=folder / "spark")
        try:
            _warm_up(folder)
            return _throughput(spark, folder, history)
        finally:
            spark.stop()


def bench_latency() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        spark = open_session(scratch=Path(name) / "spark")
        try:
            _warm_up(Path(name))
            return _latency(Path(name))
        finally:
            spark.stop()


def _throughput(spark: SparkSession, folder: Path, history: Path) -> list[Result]:
    with _upstream(folder / "upstream", history) as (pd, process):
        ends = json.loads((history.parent / "meta.json").read_text())
        rows, seconds, cpu = _capture(pd, process.pid, "blackhole://", folder / "d1", ends)
        files = folder / "files"
        rows_f, seconds_f, cpu_f = _capture(pd, process.pid, f"file://{files}?{_CANAL_JSON}", folder / "d2", ends)
    floor = rows / _noop_seconds(spark, folder, rows)
    text_floor = rows_f / _text_seconds(spark, files, folder / "text")
    return [
        _result("flow.blackhole", rows / seconds, "rows/s", floor),
        _result("flow.canal_json", rows_f / seconds_f, "rows/s", text_floor),
        _result("flow.cpu_seconds.blackhole", cpu / rows * 1e6, "s/M rows", None),
        _result("flow.cpu_seconds.canal_json", cpu_f / rows_f * 1e6, "s/M rows", None),
    ]


def _capture(pd: str, upstream_pid: int, uri: str, data_dir: Path, ends: dict[str, int]) -> tuple[int, float, float]:
    """Rows, seconds and CPU seconds of one changefeed from beginning to end."""
    options = RunOptions(
        pd=pd, sink_uri=uri, data_dir=data_dir, start_ts=Ts(ends["bootstrap_ts"]), target_ts=Ts(ends["end_ts"])
    )
    began, cpu = time.perf_counter(), _cpu_seconds(upstream_pid)
    feed = Changefeed(options)
    try:
        feed.start()
        while not feed.poll():
            pass
        seconds = time.perf_counter() - began
        return feed.processor.totals.rows, seconds, _cpu_seconds(upstream_pid) - cpu
    finally:
        feed.close(is_finished=True)


def _cpu_seconds(but: int) -> float:
    """CPU time of this process and all below it, those that ended included, except the upstream's."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        if process.pid != but:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
            if process.pid != me.pid:
                total += times.children_user + times.children_system
    return total


def _warm_up(folder: Path) -> None:
    """A small history through both sinks: kernels are compiled, workers are up, the JVM knows its way."""
    history = RECORDED / "bench-narrow" / "history.parquet"
    ends = json.loads((history.parent / "meta.json").read_text())
    with _upstream(folder / "warm-upstream", history) as (pd, process):
        for number, uri in enumerate(("blackhole://", f"file://{folder / 'warm'}?{_CANAL_JSON}")):
            _capture(pd, process.pid, uri, folder / f"warm-{number}", ends)


@contextmanager
def _upstream(data_dir: Path, history: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    ready = data_dir.with_suffix(".json")
    command = [sys.executable, "-m", "tidemill", "upstream", "--pd-port", "0", "--data-dir", str(data_dir)]
    command += ["--load", str(history), "--ready-file", str(ready)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise RuntimeError("the embedded upstream did not start")
            time.sleep(0.05)
        yield json.loads(ready.read_text())["pd"], process
    finally:
        process.terminate()
        process.wait()


# Floors.


class _Rows(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trivial-rows"

    def schema(self) -> str:
        return "id bigint, k bigint, c string, pad string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowsReader(self.options["path"], int(self.options["copies"]))


class _RowsReader(DataSourceReader):
    def __init__(self, path: str, copies: int) -> None:
        self._path = path
        self._copies = copies

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None) for _ in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self._path) as file, pa.ipc.open_file(file) as batches:
            for _ in range(self._copies // 2):
                for number in range(batches.num_record_batches):
                    yield batches.get_batch(number)


def _noop_seconds(spark: SparkSession, folder: Path, rows: int) -> float:
    """How long Spark takes to read as many decoded rows of the same table from Python and drop them."""
    decoded = _decoded()
    path = folder / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, decoded.schema) as writer:
        writer.write_table(decoded, max_chunksize=10_000)
    copies = max(2, 2 * round(rows / len(decoded) / 2))
    spark.dataSource.register(_Rows)
    frame = spark.read.format("trivial-rows").options(path=str(path), copies=str(copies)).load()
    frame.limit(1000).write.format("noop").mode("overwrite").save()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return (time.perf_counter() - began) * rows / (copies * len(decoded))


def _decoded() -> pa.Table:
    history = load("bench-narrow")
    store = SchemaStore.from_snapshot(list(history.meta_at(history.end_ts)), Ts(history.end_ts))
    table = store.table(TABLE_ID, history.end_ts + 1)
    if table is None:
        raise AssertionError(f"table {TABLE_ID} of bench-narrow has no schema")
    return pa.Table.from_batches([mount(table, TABLE_ID, history.row_changes(TABLE_ID)).new])


def _text_seconds(spark: SparkSession, files: Path, to: Path) -> float:
    """How long Spark takes to read the same lines and write them as text files."""
    frame = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "CDC*.json").text(str(files))
    began = time.perf_counter()
    frame.write.mode("overwrite").text(str(to))
    seconds = time.perf_counter() - began
    shutil.rmtree(to)
    return seconds


# Latency.


def _latency(folder: Path) -> list[Result]:
    history = RECORDED / "bench-narrow" / "history.parquet"
    with EmbeddedUpstream.start(load=history) as upstream:
        options = RunOptions(
            pd=upstream.pd_address, sink_uri=f"file://{folder / 'live'}?{_CANAL_JSON}", data_dir=folder / "live-data"
        )
        feed = Changefeed(options)
        try:
            feed.start()
            samples = [_one_transaction(upstream, feed, number) for number in range(_TRANSACTIONS + 3)][3:]
        finally:
            feed.close(is_finished=True)
    totals = sorted(sum(sample.values()) for sample in samples)
    results = [
        _result("flow.latency_p50", statistics.median(totals), "s", None),
        _result("flow.latency_p99", totals[min(len(totals) - 1, int(len(totals) * 0.99))], "s", None),
    ]
    for stage in samples[0]:
        value = statistics.median(sample[stage] for sample in samples)
        results.append(_result(f"flow.latency_part.{stage}", value, "s", None))
    return results


def _one_transaction(upstream: EmbeddedUpstream, feed: Changefeed, number: int) -> dict[str, float]:
    """Commit one row; the seconds that each stage took until it was durable. Begins a second after the last."""
    value = _a_row_value()
    began = time.monotonic()
    _, commit_ts = upstream.commit([Mutation(Op.PUT, record_key(TABLE_ID, 10_000_000 + number), value)])
    committed = time.monotonic()
    traces = feed.processor.traces
    while not traces or traces[-1].to_ts < commit_ts:
        feed.poll(0.005)
    trace = traces[-1]
    time.sleep(max(0.0, began + 1.0 - time.monotonic()))
    return {
        "resolved": trace.offered_at - committed,
        "spark_plan": trace.planned_at - trace.offered_at,
        "spark_and_pipeline": trace.written_at - trace.planned_at,
        "commit": trace.durable_at - trace.written_at,
    }


def _a_row_value() -> bytes:
    values = load("bench-narrow").row_changes(TABLE_ID)["value"].to_pylist()
    return next(bytes(value) for value in values if value)


def _result(name: str, value: float, unit: str, floor: float | None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}
