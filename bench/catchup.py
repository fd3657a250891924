"""catchup.*: what a changefeed needs to catch up with much data: memory that follows its settings, not the data.

A changefeed of its own process takes 1 GB of changes, another one 5 GB (or what BENCH_CATCHUP_GB says), into the
blackhole, each watched together with its JVM and its Python workers. The changes do not come from a store, which would
need far longer to make them than we to take them: they are made in the place of the puller, in the order of an
incremental scan (by key, so each segment covers all of the time), and resolved when all have come. From there on
everything is as always: sorter, segments on disk (as many GB), batches, Spark, pipeline.

    catchup.peak_memory   MB of all processes together at their worst moment; floor: that with 1 GB
    catchup.peak_disk     MB of segments at the worst moment; floor: the MB of the changes
    catchup.rate          MB of changes a second

Memory is what the processes hold for themselves (RssAnon). Pages of segments that they have mapped are the disk's,
and the system takes them back whenever it wants to.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from bench.data import RECORDED, TABLE_ID
from bench.flow import upstream
from tests.histories import load
from tidemill.capture import changefeed as server
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.flow.puller import PullerStats
from tidemill.flow.puller.puller import ChangeReceiver
from tidemill.model.change import RAW_CHANGE_SCHEMA
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.tidb.keys import record_span
from tidemill.upstream.pd import PdClient

Result = dict[str, Any]

MB = 1_000_000
_LOOK_SECONDS = 0.1
_KEY_BYTES = 19


@dataclass(frozen=True, slots=True)
class Peak:
    memory_bytes: int
    disk_bytes: int
    seconds: float


def bench_catchup(gigabytes: float | None = None) -> list[Result]:
    size = gigabytes if gigabytes is not None else float(os.environ.get("BENCH_CATCHUP_GB", "5"))
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        with upstream(folder / "upstream", RECORDED / "bench-wide" / "history.parquet") as (pd, _):
            small, big = catch_up(pd, folder / "small", size / 5), catch_up(pd, folder / "big", size)
    return [
        _result("catchup.peak_memory", big.memory_bytes / MB, "MB", small.memory_bytes / MB),
        _result("catchup.peak_disk", big.disk_bytes / MB, "MB", size * 1000),
        _result("catchup.rate", size * 1000 / big.seconds, "MB/s", None),
    ]


def catch_up(pd: str, data_dir: Path, gigabytes: float) -> Peak:
    """Run a changefeed over so many changes and look at it all the time."""
    command = [sys.executable, "-m", "bench.catchup", pd, str(data_dir), str(gigabytes)]
    began = time.perf_counter()
    process = subprocess.Popen(command)
    memory = disk = 0
    try:
        while process.poll() is None:
            memory = max(memory, sum(map(own_bytes, family(process.pid))))
            disk = max(disk, sum(_file_bytes(path) for path in data_dir.glob("**/segment-*")))
            time.sleep(_LOOK_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the changefeed ended with {process.returncode}")
    return Peak(memory, disk, time.perf_counter() - began)


def family(pid: int) -> Iterator[int]:
    """The process and all below it."""
    yield pid
    try:
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return


def own_bytes(pid: int) -> int:
    """Anonymous memory that is resident; nothing where the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


# The changefeed's process.


class Scan:
    """The recorded changes of ``bench-wide`` again and again, by key, with commit-ts all over the time."""

    def __init__(self, gigabytes: float) -> None:
        history = load("bench-wide")
        self._changes = history.row_changes(TABLE_ID).sort_by([("key", "ascending"), ("commit_ts", "descending")])
        self._start, self._commit = (self._changes[name].to_numpy() for name in ("start_ts", "commit_ts"))
        self._keys = np.frombuffer(b"".join(self._changes["key"].to_pylist()), np.uint8).reshape(-1, _KEY_BYTES)
        self._period = int(self._commit.max() - self._start.min()) + 1
        self._begin = int(history.end_ts) + 1 - int(self._start.min())
        self.start_ts = Ts(history.end_ts)
        self.copies: int = max(1, round(gigabytes * 1e9 / self._changes.nbytes))
        self.end_ts = Ts(int(self._commit.max()) + self._begin + self.copies * self._period)

    def __len__(self) -> int:
        return self.copies * len(self._keys)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for turn, later in enumerate(np.random.default_rng(5).permutation(self.copies).tolist()):
            shift = np.uint64(self._begin + later * self._period)
            keys = self._keys.copy()
            handles = keys[:, -8:].copy().view(">u8") + np.uint64((turn + 1) * 100_000)
            keys[:, -8:] = handles.astype(">u8").view(np.uint8)
            ends = np.arange(0, keys.size + 1, _KEY_BYTES, dtype=np.int32)
            key = pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(ends), pa.py_buffer(keys)])
            rest = [self._changes[name] for name in ("op", "value", "old_value")]
            columns = [pa.array(self._start + shift), pa.array(self._commit + shift), rest[0], key, *rest[1:]]
            yield pa.RecordBatch.from_arrays(columns, schema=RAW_CHANGE_SCHEMA)


class _ScanPuller:
    """Stands in for the puller: brings a scan to whoever has subscribed to its table, then resolves all."""

    def __init__(self, scan: Scan, receiver: ChangeReceiver) -> None:
        self._scan = scan
        self._receiver = receiver
        self._spans: dict[int, Span] = {}
        self._brought = 0

    def subscribe(self, subscription: int, span: Span, start_ts: Ts) -> None:
        self._spans[subscription] = span

    def unsubscribe(self, subscription: int) -> None:
        del self._spans[subscription]

    async def run(self) -> None:
        (table,) = (number for number, span in self._spans.items() if span == record_span(TABLE_ID))
        for changes in self._scan.batches():
            await self._receiver.receive(table, changes)
            self._brought += len(changes)
            await asyncio.sleep(0)
        for number in list(self._spans):
            self._receiver.resolve(number, self._scan.end_ts)
        await asyncio.Event().wait()

    def stats(self) -> PullerStats:
        count = len(self._spans)
        return PullerStats(count, count, count, self._brought, 0, 0, 0, None, 0)


def run(pd: str, data_dir: Path, gigabytes: float) -> None:
    """A changefeed to the end of a scan; runs in a process of its own."""
    scan = Scan(gigabytes)

    def open_puller(_: PdClient, receiver: ChangeReceiver, **settings: Any) -> _ScanPuller:
        return _ScanPuller(scan, receiver)

    vars(server)["Puller"] = open_puller  # the one part that is not as always
    feed = Changefeed(RunOptions(pd, "blackhole://", data_dir, start_ts=scan.start_ts, target_ts=scan.end_ts))
    try:
        feed.start()
        while not feed.poll():
            pass
        rows = feed.status().totals.rows
    finally:
        feed.close(is_finished=True)
    if rows != len(scan):
        raise AssertionError(f"{len(scan)} changes were brought, {rows} rows came out")


def _result(name: str, value: float, unit: str, floor: float | None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
