"""flow.start*: how long, and how much CPU, from starting ``tidemill run`` to its being ready, and to a first row.

On a machine that is warm: ``tidemill warm`` runs before, which does nothing where it has been done. *Ready* is what the
ready-file says: the schema is read, tables are followed, Spark's session is up. Python workers start with the first
batch, so the first row waits for them as well; it lies in the upstream from the beginning.

    flow.start, flow.start_cpu             s and CPU s until ready; the median of some starts
    flow.first_row, flow.first_row_cpu     until a row is durable in a canal-json file, from the same moment
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.data import RECORDED
from bench.flow import CANAL_JSON, upstream
from bench.measured import Measured, measured

Result = dict[str, Any]

_STARTS = 5
_PATIENCE_SECONDS = 300.0


def bench_start() -> list[Result]:
    subprocess.run([sys.executable, "-m", "tidemill", "warm"], check=True, stdout=subprocess.DEVNULL)
    history = RECORDED / "bench-narrow" / "history.parquet"
    start_ts = json.loads((history.parent / "meta.json").read_text())["bootstrap_ts"]
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        with upstream(folder / "upstream", history) as (pd, _):
            starts = [_start(pd, folder / str(number), start_ts) for number in range(_STARTS)]
    medians = [statistics.median(column) for column in zip(*starts, strict=True)]
    names = [("flow.start", "s"), ("flow.start_cpu", "CPU s"), ("flow.first_row", "s"), ("flow.first_row_cpu", "CPU s")]
    return [
        {"name": name, "value": value, "unit": unit, "floor": None, "ratio": None}
        for (name, unit), value in zip(names, medians, strict=True)
    ]


def _start(pd: str, folder: Path, start_ts: int) -> tuple[float, float, float, float]:
    folder.mkdir()
    files, ready, log = folder / "files", folder / "ready", folder / "log"
    command = [sys.executable, "-m", "tidemill", "run", "--pd", pd, "--sink-uri", f"file://{files}?{CANAL_JSON}"]
    command += ["--data-dir", str(folder / "data"), "--start-ts", str(start_ts), "--ready-file", str(ready)]
    with measured(command, log) as run:
        until_ready = _until(ready.exists, run, log)
        until_row = _until(lambda: any(files.glob("**/CDC*.json")), run, log)
    return *until_ready, *until_row


def _until(is_so: Callable[[], bool], run: Measured, log: Path) -> tuple[float, float]:
    while not is_so():
        if run.process.poll() is not None or run.seconds() > _PATIENCE_SECONDS:
            raise RuntimeError(f"tidemill run did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)
    return run.seconds(), run.cpu_seconds()
