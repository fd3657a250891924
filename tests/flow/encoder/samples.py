"""Tables and rows made by hand: the example table of TiCDC's formats, and any other in one line a column."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

COMMIT_TS = 445644800000000005  # 2023-11-14 22:13:20 UTC, counter 5
BUILT_MS = 1_700_000_000_123
Row = dict[str, Any]


def column(name: str, kind: ColumnType, flag: int = 0, *, flen: int = -1, decimal: int = -1, **more: Any) -> ColumnInfo:
    """``offset`` and ``id`` are set by ``table_of``. Text is utf8mb4 unless ``charset="binary"``."""
    text = kind in (ColumnType.ENUM, ColumnType.SET) or kind >= ColumnType.TINYBLOB or kind is ColumnType.VARCHAR
    charset = more.pop("charset", "utf8mb4" if text else "binary")
    return ColumnInfo(0, name, 0, kind, flag, flen, decimal, charset, charset, **more)


def table_of(
    *columns: ColumnInfo,
    schema: str = "shop",
    name: str = "item",
    table_id: int = 108,
    version_ts: int = 445600000000000001,
    uniques: Sequence[Sequence[str]] = (),
    **more: Any,
) -> TableInfo:
    placed = tuple(
        ColumnInfo(**{**{f: getattr(c, f) for f in c.__slots__}, "id": i + 1, "offset": i})
        for i, c in enumerate(columns)
    )
    offsets = {c.name: c.offset for c in placed}
    indexes = tuple(
        IndexInfo(i + 1, f"u{i}", tuple(IndexColumn(offsets[n], -1) for n in names), True, False)
        for i, names in enumerate(uniques)
    )
    has_key = any(c.flag & ColumnFlag.PRI_KEY for c in placed)
    more.setdefault("pk_is_handle", has_key)
    return TableInfo(table_id, 1, schema, name, Ts(version_ts), placed, indexes, **more)


KEY = int(ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY)
NOT_NULL = int(ColumnFlag.NOT_NULL)
UNSIGNED = int(ColumnFlag.UNSIGNED)

ITEM = table_of(
    column("id", ColumnType.LONGLONG, KEY, flen=20),
    column("sku", ColumnType.VARCHAR, NOT_NULL, flen=16),
    column("qty", ColumnType.LONG, UNSIGNED, flen=10),
    column("tag", ColumnType.VARCHAR, flen=4, charset="binary"),
    column("kind", ColumnType.ENUM, elems=("a", "b")),
    column("note", ColumnType.BLOB, flen=65535),
    uniques=[["sku"]],
)
FIRST: Row = {"id": 7, "sku": "A-1", "qty": None, "tag": b"\0a\xff", "kind": 2, "note": "héllo"}
SECOND: Row = {**FIRST, "qty": 5}


def rows_of(table: TableInfo, *changes: tuple[Row | None, Row | None], ts: Sequence[int] | None = None) -> RowBatch:
    """Each change is (old row, new row); None: there was, or is, none."""
    ops = [RowOp.INSERT if old is None else RowOp.DELETE if new is None else RowOp.UPDATE for old, new in changes]
    commit_ts = np.array(ts if ts is not None else [COMMIT_TS + i for i in range(len(changes))], dtype=np.uint64)
    schema = arrow_schema(table)
    return RowBatch(
        table,
        table.id,
        np.array(ops, dtype=np.uint8),
        commit_ts - np.uint64(1),
        commit_ts,
        pa.RecordBatch.from_pylist([new for _, new in changes if new is not None], schema),
        pa.RecordBatch.from_pylist([old for old, _ in changes if old is not None], schema),
    )
