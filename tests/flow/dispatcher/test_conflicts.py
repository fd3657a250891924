"""Which rows can stand in each other's way: those that have a value of a unique key in common."""

import numpy as np
import pyarrow as pa
import pytest

from tidemill.errors import ConfigError
from tidemill.flow.dispatcher.conflicts import NO_KEY, key_hashes
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts


def share(rows: RowBatch) -> bool:
    """Whether the two changes have a value of a key in common."""
    one, other = (set(keys.tolist()) - {NO_KEY} for keys in key_hashes(rows))
    return bool(one & other)


def column(offset: int, name: str, collate: str = "utf8mb4_bin", expr: str = "") -> ColumnInfo:
    kind, charset = (ColumnType.LONGLONG, "binary") if offset == 0 else (ColumnType.VARCHAR, "utf8mb4")
    flag = ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL if offset == 0 else 0
    return ColumnInfo(offset + 1, name, offset, kind, int(flag), 20, -1, charset, collate, generated_expr=expr)


def table(*, length: int = -1, collate: str = "utf8mb4_bin", expr: str = "") -> TableInfo:
    columns = column(0, "id"), column(1, "a", collate, expr), column(2, "b")
    indexes = tuple(IndexInfo(n, f"u{n}", (IndexColumn(n, length),), True, False) for n in (1, 2))
    return TableInfo(1, 1, "shop", "item", Ts(1), columns, indexes, pk_is_handle=True)


def inserts(info: TableInfo, *rows: tuple[int, str | None, str | None]) -> RowBatch:
    schema = arrow_schema(info)
    new = pa.RecordBatch.from_pylist([dict(zip(("id", "a", "b"), row, strict=True)) for row in rows], schema)
    ts = np.arange(1, len(rows) + 1, dtype=np.uint64)
    op = np.full(len(rows), RowOp.INSERT, np.uint8)
    return RowBatch(info, 1, op, ts, ts, new, pa.RecordBatch.from_pylist([], schema))


@pytest.mark.parametrize(
    ("info", "one", "other", "conflict"),
    [
        pytest.param(table(), (1, "x", "y"), (2, "x", "z"), True, id="a unique value is shared"),
        pytest.param(table(), (1, "x", "y"), (2, "y", "x"), False, id="of two indexes, values are not"),
        pytest.param(table(), (1, None, "y"), (2, None, "z"), False, id="NULL is in nobody's way"),
        pytest.param(table(), (1, "x", "y"), (2, "x ", "z"), True, id="spaces at the end do not count"),
        pytest.param(table(), (1, "x", "y"), (2, "X", "z"), False, id="a binary collation tells cases apart"),
        pytest.param(table(collate="utf8mb4_general_ci"), (1, "é", "y"), (2, "E", "z"), True, id="another may not"),
        pytest.param(table(length=2), (1, "abc", "y"), (2, "abd", "z"), True, id="a prefix is shared"),
    ],
)
def test_which_rows_conflict(
    info: TableInfo, one: tuple[int, str | None, str], other: tuple[int, str | None, str], conflict: bool
) -> None:
    assert share(inserts(info, one, other)) is conflict


def test_a_delete_conflicts_with_who_takes_its_value() -> None:
    info = table()
    gone = inserts(info, (1, "x", "y"))
    new = inserts(info, (2, "x", "z"))
    both = RowBatch(
        info, 1, np.array([RowOp.DELETE, RowOp.INSERT], np.uint8), np.array([1, 2], np.uint64),
        np.array([1, 2], np.uint64), new.new, gone.new,
    )  # fmt: skip
    assert share(both)


def test_an_index_on_a_virtual_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"column 'a', which is virtual.*partition = 'table'"):
        key_hashes(inserts(table(expr="b"), (1, "x", "y")))
