"""flow.cpu_slope.*, flow.peak_memory.*: what rows cost once everything runs, and the most memory that takes.

``tidemill run`` catches up, in a process of its own, with 2 million narrow rows and with 10 (or with what
BENCH_SLOPE_ROWS says, and a fifth of that). The CPU seconds of the second less those of the first, per million rows
that it had more, are what a row costs: start, compilation and end are in both. All of our processes count: capture,
JVM, Python workers. The upstream is another one, and does not.

    flow.cpu_slope.blackhole, .canal_json     CPU s per million rows
    flow.peak_memory.blackhole, .canal_json   MB of all processes (PSS) at the worst moment of the larger run
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.data import grow
from bench.flow import CANAL_JSON, upstream
from bench.measured import MB, Usage, measured

Result = dict[str, Any]

_ROWS = 10_000_000
_SHARE = 5


def bench_slope() -> list[Result]:
    rows = int(os.environ.get("BENCH_SLOPE_ROWS", _ROWS))
    results = []
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        history = grow("bench-narrow", rows, folder / "history")
        end_ts = json.loads((history.parent / "meta.json").read_text())["end_ts"]
        starts = [_start_ts(history, rows // _SHARE), _start_ts(history, rows)]
        with upstream(folder / "upstream", history) as (pd, _):
            for sink, uri in (("blackhole", "blackhole://"), ("canal_json", f"file://{folder}/files?{CANAL_JSON}")):
                few, many = (_run(pd, uri, folder / f"{sink}-{at}", ts, end_ts) for at, ts in enumerate(starts))
                slope = (many[1].cpu_seconds - few[1].cpu_seconds) / (many[0] - few[0]) * 1e6
                results.append(_result(f"flow.cpu_slope.{sink}", slope, "CPU s/M rows"))
                results.append(_result(f"flow.peak_memory.{sink}", many[1].peak_bytes / MB, "MB"))
    return results


def _start_ts(history: Path, rows: int) -> int:
    """Below the last so many changes, or a few more."""
    with pq.ParquetFile(history) as file:
        for group in range(file.num_row_groups - 1, 0, -1):  # in the first are the changes of the schema
            rows -= file.metadata.row_group(group).num_rows
            if rows <= 0 or group == 1:
                return int(file.read_row_group(group, columns=["start_ts"])["start_ts"][0].as_py()) - 1
    raise ValueError(f"{history} has fewer rows than two groups hold: take more")


def _run(pd: str, uri: str, folder: Path, start_ts: int, end_ts: int) -> tuple[int, Usage]:
    """Rows that went out, and what that took."""
    folder.mkdir()
    command = [sys.executable, "-m", "tidemill", "run", "--pd", pd, "--data-dir", str(folder / "data")]
    command += ["--sink-uri", uri.replace("/files?", f"/{folder.name}/files?"), "--output", "json"]
    command += ["--start-ts", str(start_ts), "--target-ts", str(end_ts)]
    log = folder / "log"
    with measured(command, log) as run:
        usage = run.wait()
    if usage.exit_code != 0:
        raise RuntimeError(f"tidemill run ended with {usage.exit_code}: {log.read_text()[-2000:]}")
    return json.loads(log.read_text().splitlines()[-1])["rows"], usage


def _result(name: str, value: float, unit: str) -> Result:
    return {"name": name, "value": value, "unit": unit, "floor": None, "ratio": None}
