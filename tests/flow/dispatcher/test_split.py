"""An update that changes a key becomes a delete and an insert; nothing else changes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, NOT_NULL, column, rows_of, table_of
from tidemill.flow.dispatcher import split_key_updates
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnType, TableInfo

INSERT, UPDATE, DELETE = RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE
TABLE = table_of(
    column("id", ColumnType.LONG, KEY),
    column("code", ColumnType.VARCHAR),  # in a unique index, nullable
    column("ratio", ColumnType.DOUBLE, NOT_NULL),  # likewise, not null
    column("v", ColumnType.LONG),
    uniques=[["code"], ["ratio"]],
)
KEYLESS = table_of(column("a", ColumnType.LONG), column("b", ColumnType.LONG))


def row(id: int, code: str | None = "c", ratio: float = 1.0, v: int | None = 0) -> dict[str, Any]:
    return {"id": id, "code": code, "ratio": ratio, "v": v}


def told(rows: RowBatch) -> list[tuple[RowOp, int, Any, Any]]:
    """(op, commit-ts, old row, new row) of each change."""
    new, old = iter(rows.new.to_pylist()), iter(rows.old.to_pylist())
    out = []
    for op, ts in zip(rows.op.tolist(), rows.commit_ts.tolist(), strict=True):
        before = next(old) if op != INSERT else None
        out.append((RowOp(op), ts, before, next(new) if op != DELETE else None))
    assert next(new, None) is None
    assert next(old, None) is None
    return out


@pytest.mark.parametrize(
    ("table", "old", "new", "ops"),
    [
        pytest.param(TABLE, row(1), row(1, v=5), [UPDATE], id="a column of no key changes"),
        pytest.param(TABLE, row(1), row(2), [DELETE, INSERT], id="the primary key changes"),
        pytest.param(TABLE, row(1), row(1, code="d"), [DELETE, INSERT], id="a nullable unique index changes"),
        pytest.param(TABLE, row(1), row(1, code=None), [DELETE, INSERT], id="a key column becomes null"),
        pytest.param(TABLE, row(1, code=None), row(1), [DELETE, INSERT], id="a key column was null"),
        pytest.param(TABLE, row(1, code=None), row(1, code=None, v=1), [UPDATE], id="null stays null"),
        pytest.param(
            TABLE, row(1, ratio=0.0), row(1, ratio=-0.0), [DELETE, INSERT], id="texts differ where numbers are equal"
        ),
        pytest.param(TABLE, row(1), row(1), [UPDATE], id="nothing changes at all"),
        pytest.param(KEYLESS, {"a": 1, "b": 1}, {"a": 2, "b": 2}, [UPDATE], id="a table without any key"),
        pytest.param(TABLE, None, row(1), [INSERT], id="an insert"),
        pytest.param(TABLE, row(1), None, [DELETE], id="a delete"),
    ],
)
def test_what_is_split(table: TableInfo, old: Any, new: Any, ops: list[RowOp]) -> None:
    split = split_key_updates(rows_of(table, (old, new)))
    assert split.op.tolist() == ops
    if ops == [DELETE, INSERT]:
        assert told(split) == [(DELETE, told(split)[0][1], old, None), (INSERT, told(split)[0][1], None, new)]


def test_rows_of_a_transaction_with_a_split_go_delete_update_insert() -> None:
    swap = [
        (None, row(9)),
        (row(1), row(2)),
        (row(5, v=1), row(5, v=2)),
        (row(2), row(1)),
        (row(8), None),
    ]
    split = told(split_key_updates(rows_of(TABLE, *swap, ts=[10] * 5)))
    assert [(op, (old or new)["id"]) for op, _, old, new in split] == [
        (DELETE, 1),
        (DELETE, 2),
        (DELETE, 8),
        (UPDATE, 5),
        (INSERT, 9),
        (INSERT, 2),
        (INSERT, 1),
    ]


def test_transactions_without_a_split_keep_their_order() -> None:
    changes = [(None, row(1)), (row(2), None), (row(3), row(4)), (row(5), None), (None, row(6)), (row(7), None)]
    split = told(split_key_updates(rows_of(TABLE, *changes, ts=[10, 10, 20, 20, 30, 30])))
    assert [(op, ts) for op, ts, _, _ in split] == [
        (INSERT, 10),
        (DELETE, 10),
        (DELETE, 20),
        (DELETE, 20),
        (INSERT, 20),
        (INSERT, 30),
        (DELETE, 30),
    ]


def test_a_transaction_is_told_by_both_its_ts() -> None:
    rows = rows_of(TABLE, (None, row(1)), (row(3), row(4)), ts=[10, 10])
    rows = RowBatch(
        rows.table, rows.physical_id, rows.op, np.array([1, 2], np.uint64), rows.commit_ts, rows.new, rows.old
    )
    assert split_key_updates(rows).op.tolist() == [INSERT, DELETE, INSERT]
    assert split_key_updates(rows).start_ts.tolist() == [1, 2, 2]


def test_a_batch_with_nothing_to_split_is_handed_on_as_it_is() -> None:
    rows = rows_of(TABLE, (None, row(1)), (row(1), row(1, v=3)))
    assert split_key_updates(rows) is rows
    empty = rows_of(TABLE)
    assert split_key_updates(empty) is empty


_rows = st.builds(row, st.integers(0, 3), st.sampled_from(["a", "b", None]), st.just(1.0), st.integers(0, 2))
_changes = st.tuples(st.none() | _rows, st.none() | _rows).filter(lambda change: change != (None, None))


@settings(deadline=None)  # no test asserts wall-clock time
@given(st.lists(st.tuples(st.integers(1, 4), _changes), max_size=12))
def test_split_equals_the_slow_way(stamped: list[tuple[int, Any]]) -> None:
    stamped.sort(key=lambda pair: pair[0])
    rows = rows_of(TABLE, *(change for _, change in stamped), ts=[ts for ts, _ in stamped])
    expected: list[Any] = []
    for ts in sorted({ts for ts, _ in stamped}):
        pieces: list[tuple[RowOp, int, Any, Any]] = []
        was_split = False
        for change_ts, (old, new) in stamped:
            if change_ts != ts:
                continue
            if old and new and any(old[key] != new[key] for key in ("id", "code", "ratio")):
                pieces += [(DELETE, ts, old, None), (INSERT, ts, None, new)]
                was_split = True
            else:
                pieces.append((UPDATE if old and new else INSERT if new else DELETE, ts, old, new))
        if was_split:
            pieces.sort(key=lambda piece: [DELETE, UPDATE, INSERT].index(piece[0]))
        expected += pieces
    assert told(split_key_updates(rows)) == expected
