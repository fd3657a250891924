"""flow.*: the whole way, from an embedded upstream's change stream through Spark to durable.

The upstream runs in a process of its own and does not count. Everything of ours does: this process (puller,
sorter, processor, Spark's driver), the JVM and its Python workers. The session is up and warm before the clock
starts, as it is in a changefeed that has been running for a while; starting the query itself is in the figures.

    flow.blackhole     rows/s; floor: Spark reads the same rows, decoded, from a trivial Python source into noop
    flow.canal_json    rows/s; floor: Spark writes the same bytes as text files
    flow.csv           rows/s; floor: Spark reads the same rows from Parquet and writes them to CSV
    flow.cpu_seconds   of all our processes, per million rows
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.data import RECORDED, TABLE_ID, grow
from tests.histories import load
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.ts import Ts
from tidemill.spark.session import open_session

Result = dict[str, Any]

_ROWS = 3_000_000  # starting a query costs some CPU-seconds once; they should not show
CANAL_JSON = "protocol=canal-json&enable-tidb-extension=true"
_CSV = "protocol=csv"


def bench_flow() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        history = grow("bench-narrow", _ROWS, folder / "narrow")
        spark = open_session(scratch=folder / "spark")
        try:
            warm_up(folder)
            return _throughput(spark, folder, history)
        finally:
            spark.stop()


def _throughput(spark: SparkSession, folder: Path, history: Path) -> list[Result]:
    ends = json.loads((history.parent / "meta.json").read_text())
    files, csv = folder / "files", folder / "csv"
    with upstream(folder / "upstream", history) as (pd, process):
        to_blackhole = capture(pd, process.pid, "blackhole://", folder / "d1", ends)
        to_files = capture(pd, process.pid, f"file://{files}?{CANAL_JSON}", folder / "d2", ends)
        to_csv = capture(pd, process.pid, f"file://{csv}?{_CSV}", folder / "d3", ends)
    floors = [
        to_blackhole.rows / _noop_seconds(spark, folder, to_blackhole.rows),
        to_files.rows / _text_seconds(spark, files, folder / "text"),
        to_csv.rows / _csv_seconds(spark, csv, folder),
    ]
    runs = {"blackhole": to_blackhole, "canal_json": to_files, "csv": to_csv}
    return [
        *(
            _result(f"flow.{name}", r.rate, "rows/s", floor)
            for (name, r), floor in zip(runs.items(), floors, strict=True)
        ),
        *(_result(f"flow.cpu_seconds.{name}", r.cpu_per_million, "s/M rows", None) for name, r in runs.items()),
    ]


@dataclass(frozen=True, slots=True)
class Run:
    """What one changefeed took, from beginning to end."""

    rows: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_per_million(self) -> float:
        return self.cpu_seconds / self.rows * 1e6


def capture(pd: str, upstream_pid: int, uri: str, data_dir: Path, ends: dict[str, int]) -> Run:
    """Run a changefeed over the whole of a history. The process of the upstream does not count."""
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
        return Run(feed.status().totals.rows, seconds, _cpu_seconds(upstream_pid) - cpu)
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


def warm_up(folder: Path) -> None:
    """A small history through the sinks: kernels are compiled, workers are up, the JVM knows its way."""
    history = RECORDED / "bench-narrow" / "history.parquet"
    ends = json.loads((history.parent / "meta.json").read_text())
    with upstream(folder / "warm-upstream", history) as (pd, process):
        sinks = (f"file://{folder / 'warm-json'}?{CANAL_JSON}", f"file://{folder / 'warm-csv'}?{_CSV}")
        for number, uri in enumerate(("blackhole://", *sinks)):
            capture(pd, process.pid, uri, folder / f"warm-{number}", ends)


@contextmanager
def upstream(data_dir: Path, history: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
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


def _csv_seconds(spark: SparkSession, files: Path, folder: Path) -> float:
    """How long Spark takes to write the same records from Parquet, which it reads without Python, to CSV."""
    records = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "CDC*.csv").csv(str(files))
    records.write.mode("overwrite").parquet(str(folder / "records"))
    frame = spark.read.parquet(str(folder / "records"))
    frame.limit(1000).write.mode("overwrite").csv(str(folder / "again"))
    began = time.perf_counter()
    frame.write.mode("overwrite").csv(str(folder / "again"))
    return time.perf_counter() - began


def _result(name: str, value: float, unit: str, floor: float | None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}
