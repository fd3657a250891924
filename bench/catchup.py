"""catchup.*: what a changefeed needs to catch up with much data: memory that follows its settings, not the data.

An upstream holds as many GB of changes as asked for (5 unless BENCH_CATCHUP_GB says otherwise; it takes about twice
that of disk). ``tidemill run`` catches up with the last fifth of them, then with all, into the blackhole, each time as
a process of its own, and is watched together with its JVM and its Python workers.

    catchup.peak_memory   MB of all processes together at their worst moment; floor: that with a fifth of the data
    catchup.peak_disk     MB of segments at the worst moment; floor: the MB of keys and values of the changes
    catchup.rate          MB/s of keys and values

Memory is what the processes hold for themselves (RssAnon). Pages of segments that they have mapped are the disk's,
and the system takes them back whenever it wants to.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from bench.data import grow
from bench.flow import upstream

Result = dict[str, Any]

MB = 1_000_000
_SHARE = 5  # the smaller run takes one part of so many
_ROW_BYTES = 1150  # about, of key and value of a change of bench-wide
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Peak:
    memory_bytes: int
    disk_bytes: int
    seconds: float


def bench_catchup(gigabytes: float | None = None) -> list[Result]:
    size = gigabytes if gigabytes is not None else float(os.environ.get("BENCH_CATCHUP_GB", "5"))
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        history = grow("bench-wide", int(size * 1e9 / _ROW_BYTES), folder / "wide")
        ends = json.loads((history.parent / "meta.json").read_text())
        begin_ts, end_ts, total = _begin_of_last_share(history), ends["end_ts"], _bytes(history)
        with upstream(folder / "upstream", history) as (pd, _):
            history.unlink()
            small = catch_up(pd, folder / "small", begin_ts, end_ts)
            big = catch_up(pd, folder / "big", ends["bootstrap_ts"], end_ts)
    return [
        _result("catchup.peak_memory", big.memory_bytes / MB, "MB", small.memory_bytes / MB),
        _result("catchup.peak_disk", big.disk_bytes / MB, "MB", total / MB),
        _result("catchup.rate", total / MB / big.seconds, "MB/s", None),
    ]


def catch_up(pd: str, data_dir: Path, start_ts: int, target_ts: int) -> Peak:
    """Run a changefeed over ``(start_ts, target_ts]`` and look at it all the time."""
    command = [sys.executable, "-m", "tidemill", "run", "--pd", pd, "--sink-uri", "blackhole://"]
    command += ["--data-dir", str(data_dir), "--start-ts", str(start_ts), "--target-ts", str(target_ts)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    memory = disk = 0
    try:
        while process.poll() is None:
            memory = max(memory, sum(map(_own_bytes, _family(process.pid))))
            disk = max(disk, sum(_file_bytes(path) for path in data_dir.glob("**/segment-*")))
            time.sleep(_LOOK_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"tidemill run ended with {process.returncode}")
    return Peak(memory, disk, time.perf_counter() - began)


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return


def _own_bytes(pid: int) -> int:
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


def _begin_of_last_share(history: Path) -> int:
    """The commit-ts behind which the last of the equal shares of the changes lies."""
    commit_ts = pq.read_table(history, columns=["commit_ts"])["commit_ts"]
    return int(commit_ts[len(commit_ts) - len(commit_ts) // _SHARE].as_py())


def _bytes(history: Path) -> int:
    """Of keys and values, uncompressed; lengths aside."""
    groups = pq.ParquetFile(history)
    return sum(
        sum(column.nbytes for column in batch.columns) for batch in groups.iter_batches(columns=["key", "value"])
    )


def _result(name: str, value: float, unit: str, floor: float | None) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": floor, "ratio": value / floor if floor else None}
