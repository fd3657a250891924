"""flow.mysql: rows a second into a MariaDB of the bench's own, beside a bare client that sends the same statements.

The changes are those of ``bench-narrow``, decoded, repeated with other keys: inserts, a quarter updates, few deletes.
Half of each round goes into an empty table and half meets the rows it changes. Ours merges them by key, looks for
conflicts, writes literals and sends statements over four connections; the floor sends the texts that come of it,
there before the clock starts, over as many. Both count wall seconds on the same server, and the same changes; rounds
alternate, and each figure is a median.
"""

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from bench.data import TABLE_ID
from tests.histories import load
from tests.mariadb import MariaDb
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tidemill.flow.mounter import mount
from tidemill.flow.schema import SchemaStore
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import parse_mysql_uri, write_rows
from tidemill.sinks.mysql.literals import Literals
from tidemill.sinks.mysql.plan import Limits, make_plan
from tidemill.sinks.mysql.statement import Shapes

_ROWS = 60_000
_ROUNDS = 5
_WORKERS = 4


def bench_mysql() -> list[dict[str, Any]]:
    rows, create = some_rows()
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder, MariaDb(Path(folder)) as server:
        server.query("CREATE DATABASE bench", create)
        sink = mysql_sink(parse_mysql_uri(server.uri(f"worker-count={_WORKERS}")), None)
        sink.recover(START)
        sink.commit(Ts(1), [])
        phases = [phase for half in halves(rows) for phase in texts(half)]
        seconds, floor_seconds = [], []
        for number in range(_ROUNDS + 1):
            ours, theirs = _ours(server, sink, rows), bare(server, phases, rows.table.full_name)
            if number:  # the first round compiles and fills caches
                seconds.append(ours)
                floor_seconds.append(theirs)
        sink.close()
    value, floor = len(rows) / statistics.median(seconds), len(rows) / statistics.median(floor_seconds)
    return [{"name": "flow.mysql", "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}]


def some_rows(least: int = _ROWS) -> tuple[RowBatch, str]:
    """The recorded changes, repeated with other keys; and the statement that creates their table."""
    history = load("bench-narrow")
    store = SchemaStore.from_snapshot(history.meta_at(history.bootstrap_ts), Ts(history.bootstrap_ts))
    created = [event for change in store.apply(history.job_changes()) for event in change.events if event.table_info]
    table = store.table(TABLE_ID, history.end_ts)
    if table is None:
        raise AssertionError(f"bench-narrow has no table {TABLE_ID}: restore it from the repository")
    one = mount(table, TABLE_ID, history.row_changes(TABLE_ID))
    copies = -(-least // len(one))
    place = table.stored_columns.index(table.handle_key[0])
    whole = RowBatch(
        table,
        TABLE_ID,
        np.tile(one.op, copies),
        np.tile(one.start_ts, copies),
        np.concatenate([one.commit_ts + np.uint64(n << 40) for n in range(copies)]),
        _shifted(one.new, place, copies),
        _shifted(one.old, place, copies),
    )
    query = next(event.query for event in created if event.table == table.name)
    return whole, f"CREATE TABLE {table.schema}.{table.name} " + query[query.index("(") :]


def _shifted(batch: pa.RecordBatch, place: int, copies: int) -> pa.RecordBatch:
    keys = batch.column(place).to_numpy()
    span = int(keys.max()) + 1 if len(keys) else 1
    parts = []
    for number in range(copies):
        columns = list(batch.columns)
        columns[place] = pa.array(keys + number * span, batch.column(place).type)
        parts.append(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    return pa.concat_batches(parts)


def texts(rows: RowBatch) -> list[list[bytes]]:
    """Every statement that the sink sends for the rows, by phase."""
    limits = Limits(rows=2048, update_rows=256, bytes=4 << 20, lanes=_WORKERS)
    plan = make_plan(rows, limits, Literals(rows.table), is_safe=False, is_atomic=False)
    shapes = Shapes.of(rows.table)
    return [
        [b"".join(shapes.text(plan, s, is_safe=False)) for lane in lanes for transaction in lane for s in transaction]
        for lanes in plan.phases
    ]


def _ours(server: MariaDb, sink: MysqlHalves, rows: RowBatch) -> float:
    server.query(f"TRUNCATE TABLE {rows.table.full_name}")
    target = sink.target(rows.table, rows.physical_id, (Ts(0), Ts(2)))
    began = time.perf_counter()
    for half in halves(rows):
        write_rows(target, iter([half]))
    return time.perf_counter() - began


def halves(rows: RowBatch) -> list[RowBatch]:
    """All inserts as one batch, then what happens to those rows."""
    op, kept = rows.op, rows.op == RowOp.INSERT
    new_is_insert = op[op != RowOp.DELETE] == RowOp.INSERT
    found = []
    for wanted, new in ((kept, new_is_insert), (~kept, ~new_is_insert)):
        old = rows.old.slice(0, 0) if wanted is kept else rows.old
        found.append(
            RowBatch(
                rows.table,
                rows.physical_id,
                op[wanted],
                rows.start_ts[wanted],
                rows.commit_ts[wanted],
                rows.new.filter(pa.array(new)),
                old,
            )
        )
    return found


def bare(server: MariaDb, phases: list[list[bytes]], table: str) -> float:
    server.query(f"TRUNCATE TABLE {table}")
    mode = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES"
    settings = f"SET sql_mode='{mode}', foreign_key_checks=0, tx_isolation='READ-COMMITTED'"
    connections = [server.connect(init_command=settings) for _ in range(_WORKERS)]
    began = time.perf_counter()
    with ThreadPoolExecutor(_WORKERS) as threads:
        for phase in phases:
            queue: SimpleQueue[bytes] = SimpleQueue()
            for text in phase:
                queue.put(text)
            for done in [threads.submit(_send, connection, queue) for connection in connections]:
                done.result()
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return seconds


def _send(connection: Any, queue: "SimpleQueue[bytes]") -> None:
    while True:
        try:
            connection.query(queue.get_nowait())
        except Empty:
            return


if __name__ == "__main__":
    for line in bench_mysql():
        print(line)
