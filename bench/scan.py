"""``scan.initial``: a table at a ts read by parts and decoded, against reading the same regions and dropping them.

An embedded upstream in a process of its own serves a grown history. Both ways send the same requests over the same
kind of connection, one part after the other; ours decodes the rows as well, while the next ones are on their way.
``scan.initial_cpu`` counts the processor time of this process alone, which no slow store can flatter.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.client import serving
from bench.data import grow
from tidemill.source.scan import ScanClient, ScanPart, TableName, read_part
from tidemill.source.scan.hold import ReadHold
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

ROWS = 300_000
ROUNDS = 5


def bench_scan_initial() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        history = grow("bench-narrow", ROWS, Path(folder) / "history")
        with serving(history, Path(folder) / "ready.json") as pd_address:
            return _measure(_parts(pd_address))


def _parts(pd_address: str) -> list[ScanPart]:
    with ScanClient(pd_address) as client:
        ts = client.now()
        table = client.find_table(TableName("bench", "sbtest"), ts)
        return client.plan_scan(table, ts, hold=ReadHold.new(ts))


def _measure(parts: list[ScanPart]) -> list[dict[str, Any]]:
    if _ours(parts) != _dropped(parts):  # which also compiles, and warms the store's cache
        raise AssertionError("the parts and the plain scan do not give equally many rows")
    ours, floors = [], []
    for _ in range(ROUNDS):
        ours.append(_timed(_ours, parts))
        floors.append(_timed(_dropped, parts))
    return [
        _result("scan.initial", "rows/s", [a for a, _ in ours], [a for a, _ in floors]),
        _result("scan.initial_cpu", "rows/cpu-s", [b for _, b in ours], [b for _, b in floors]),
    ]


def _ours(parts: list[ScanPart]) -> int:
    return sum(len(rows) for part in parts for rows in read_part(part))


def _dropped(parts: list[ScanPart]) -> int:
    async def drop() -> int:
        rows = 0
        for part in parts:
            async with PdClient(part.pd) as pd:
                reader = SnapshotReader(pd, RegionCache(pd))
                async for pairs in reader.scan(part.start, part.end, part.ts):
                    rows += len(pairs)
                await reader.close()
        return rows

    return asyncio.run(drop())


def _timed(read: Any, parts: list[ScanPart]) -> tuple[float, float]:
    """Rows a second, and rows a second of this process's processor time."""
    begin, cpu = time.perf_counter(), time.process_time()
    rows = read(parts)
    return rows / (time.perf_counter() - begin), rows / (time.process_time() - cpu)


def _result(name: str, unit: str, values: list[float], floors: list[float]) -> dict[str, Any]:
    value, floor = median(values), median(floors)
    return {"name": name, "value": round(value), "unit": unit, "floor": round(floor), "ratio": round(value / floor, 3)}
