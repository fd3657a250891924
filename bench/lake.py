"""Rows into an Iceberg table through the lake sink, beside pyiceberg appending the same rows.

The floor appends the finished Arrow tables, old and new images already made into changes. Ours makes them, writes their
files and commits them; both write the same columns with the same codec, and both commit once a batch.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.data import TABLE_ID
from tests.histories import load
from tests.sinks.halves import lake_sink
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.row import RowBatch
from tidemill.model.ts import Ts
from tidemill.sinks.lake import parse_lake_uri, write_rows
from tidemill.sinks.lake.changes import change_tables
from tidemill.sinks.lake.iceberg import open_catalog

Result = dict[str, Any]

_BATCHES = 3
_COPIES = 40  # of the recorded rows, a batch


def bench_lake() -> list[Result]:
    return [_bench("narrow", 1), _bench("wide", 4)]


def _bench(width: str, fewer: int) -> Result:
    rows = [_rows(f"bench-{width}")] * (_COPIES // fewer)
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        ours = _best(lambda number: _through_sink(folder / f"ours-{number}", rows))
        floor = _best(lambda number: _by_pyiceberg(folder / f"floor-{number}", rows))
    return {
        "name": "flow.iceberg" if width == "narrow" else f"flow.iceberg_{width}",
        "value": ours,
        "unit": "rows/s",
        "floor": floor,
        "ratio": ours / floor,
    }


def _best(run: Callable[[int], float]) -> float:
    return max(run(number) for number in range(3))


def _through_sink(root: Path, rows: list[RowBatch]) -> float:
    """Rows a second, of all batches together."""
    sink = lake_sink(parse_lake_uri(f"iceberg://{root}"), None)
    table, count = rows[0].table, 0
    sink.target(table, TABLE_ID, (Ts(0), Ts(1)))  # creates the table
    began = time.perf_counter()
    for batch in range(_BATCHES):
        to_ts = Ts(batch + 1)
        receipt = write_rows(sink.target(table, TABLE_ID, (Ts(0), to_ts)), iter(rows))
        sink.publish(Ts(sink.commit(to_ts, [receipt])["resolved_ts"]))
        count += receipt.rows
    seconds = time.perf_counter() - began
    sink.close()
    return count / seconds


def _by_pyiceberg(root: Path, rows: list[RowBatch]) -> float:
    root.mkdir()
    options = parse_lake_uri(f"iceberg://{root}")
    sink = lake_sink(options, None)
    target = sink.target(rows[0].table, TABLE_ID, (Ts(0), Ts(1)))
    changes = pa.concat_tables([table for batch in rows for table in change_tables(batch, target.columns)])
    changes = changes.cast(pa.schema([field.remove_metadata() for field in changes.schema]))
    lake = sink.writer.journal.tables[0]
    table = open_catalog(options).load_table((lake.schema, lake.name))
    began = time.perf_counter()
    for _ in range(_BATCHES):
        table.append(changes)
    seconds = time.perf_counter() - began
    sink.close()
    return len(changes) * _BATCHES / seconds


def _rows(name: str) -> RowBatch:
    history = load(name)
    store = SchemaStore.from_snapshot(list(history.meta_at(history.end_ts)), Ts(history.end_ts))
    table = store.table(TABLE_ID, history.end_ts + 1)
    if table is None:
        raise AssertionError(f"table {TABLE_ID} of {name} has no schema")
    return mount(table, TABLE_ID, history.row_changes(TABLE_ID))
