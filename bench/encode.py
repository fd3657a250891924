"""encode.canal_json: rows a second on one core, beside orjson over the same rows as dicts.

The rows are of the sysbench kind (id, k, c char(120), pad char(60)): inserts, a quarter updates, a tenth
deletes. The floor builds nothing but bytes: the message dicts are there before its clock starts, which
a real encoder would not find.
"""

import time
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tidemill.flow.encoder import CanalJsonEncoder, CanalJsonOptions
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts, compose

_ROWS = 50_000
_ROUNDS = 5


def bench_encode() -> list[dict[str, Any]]:
    rows = _narrow_rows(_ROWS)
    encoder = CanalJsonEncoder(CanalJsonOptions(enable_tidb_extension=True), built_ms=1_700_000_000_123)
    messages = [orjson.loads(message) for message in encoder.encode(rows).messages()]  # compiles, too
    seconds = min(_timed(lambda: encoder.encode(rows)) for _ in range(_ROUNDS))
    floor_seconds = min(_timed(lambda: [orjson.dumps(message) for message in messages]) for _ in range(_ROUNDS))
    value, floor = _ROWS / seconds, _ROWS / floor_seconds
    return [{"name": "encode.canal_json", "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}]


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _narrow_table() -> TableInfo:
    def column(offset: int, name: str, kind: ColumnType, flag: int, flen: int, charset: str) -> ColumnInfo:
        return ColumnInfo(offset + 1, name, offset, kind, flag, flen, 0, charset, charset)

    key = ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY
    columns = (
        column(0, "id", ColumnType.LONG, key, 11, "binary"),
        column(1, "k", ColumnType.LONG, ColumnFlag.NOT_NULL, 11, "binary"),
        column(2, "c", ColumnType.STRING, ColumnFlag.NOT_NULL, 120, "utf8mb4"),
        column(3, "pad", ColumnType.STRING, ColumnFlag.NOT_NULL, 60, "utf8mb4"),
    )
    return TableInfo(100, 1, "bench", "sbtest1", Ts(1), columns, pk_is_handle=True)


def _narrow_rows(count: int) -> RowBatch:
    table = _narrow_table()
    random = np.random.default_rng(7)
    op = np.full(count, RowOp.INSERT, dtype=np.uint8)
    op[::4] = RowOp.UPDATE
    op[1::10] = RowOp.DELETE
    commit_ts = np.uint64(compose(1_700_000_000_000)) + np.arange(count, dtype=np.uint64)

    def image(rows: int) -> pa.RecordBatch:
        digits = random.integers(10**10, 10**11, (rows, 15))
        groups = ["-".join(map(str, row)) for row in digits.tolist()]
        columns = [
            pa.array(np.arange(rows)),
            pa.array(random.integers(0, 10**6, rows)),
            pa.array([text[:119] for text in groups]),
            pa.array([text[-59:] for text in groups]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(table))

    new, old = image(int((op != RowOp.DELETE).sum())), image(int((op != RowOp.INSERT).sum()))
    return RowBatch(table, table.id, op, commit_ts - np.uint64(1), commit_ts, new, old)


if __name__ == "__main__":
    for line in bench_encode():
        print(line)
