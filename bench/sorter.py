"""sorter.catch_up, sorter.live: CPU seconds per million narrow rows for add, seal, plan and read together.

catch_up: a table scanned in key order, so that every segment covers all of the time and batches are merged.
live: changes in commit order, so that segments follow one another and are read where they lie.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.data import TABLE_ID
from tests.histories import load
from tidemill.flow.sorter import Sorter, read_slices
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import Ts

_COPIES = 150
_ROUNDS = 3
_BATCH_ROWS = 200_000


def bench_sorter() -> list[dict[str, Any]]:
    recorded = load("bench-narrow").row_changes(TABLE_ID)
    by_key = recorded.sort_by([("key", "ascending"), ("commit_ts", "descending")])
    times = np.random.default_rng(3).permutation(_COPIES).tolist()
    scanned = [_moved(by_key, turn, later) for turn, later in enumerate(times)]
    live = [_moved(recorded, turn, turn) for turn in range(_COPIES)]
    return [
        {"name": name, "value": _cpu_seconds(batches), "unit": "CPU s per million rows", "floor": None, "ratio": None}
        for name, batches in (("sorter.catch_up", scanned), ("sorter.live", live))
    ]


def _moved(changes: pa.RecordBatch, turn: int, later: int) -> pa.RecordBatch:
    """The same changes with other handles and at another time."""
    commit, start = changes["commit_ts"].to_numpy(), changes["start_ts"].to_numpy()
    shift = np.uint64(later) * (commit.max() - start.min() + np.uint64(1))
    keys: npt.NDArray[np.uint8] = np.frombuffer(b"".join(changes["key"].to_pylist()), np.uint8).reshape(-1, 19).copy()
    handles = keys[:, -8:].copy().view(">u8") + np.uint64(turn * 5000)
    keys[:, -8:] = handles.astype(">u8").view(np.uint8)
    offsets = np.arange(0, keys.size + 1, 19, dtype=np.int32)
    key = pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(keys)])
    columns = [start + shift, commit + shift, changes["op"], key, changes["value"], changes["old_value"]]
    return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=changes.schema)


def _cpu_seconds(batches: list[pa.RecordBatch]) -> float:
    rounds = []
    for _ in range(_ROUNDS):
        with TemporaryDirectory() as folder:
            sorter = Sorter(Path(folder))
            before = time.process_time()
            rows = asyncio.run(_through(sorter, batches))
            rounds.append((time.process_time() - before) / rows * 1e6)
            sorter.close()
    return min(rounds)


async def _through(sorter: Sorter, batches: list[pa.RecordBatch]) -> int:
    sorter.open_span(1, Ts(0))
    for batch in batches:
        await sorter.add(1, batch)
    end = Ts(max(int(batch["commit_ts"].to_numpy().max()) for batch in batches))
    sorter.advance(1, end)
    at, rows = Ts(0), 0
    while at < end:
        to = sorter.next_to(at, end, _BATCH_ROWS, 1 << 40)
        rows += sum(len(batch) for plan in sorter.plan(Extent(at, to)) for batch in read_slices(plan))
        sorter.release(Checkpoints(to))
        at = to
    return rows
