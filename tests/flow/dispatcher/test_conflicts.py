"""Rows that stand in each other's way share a partition, or readers meet between them; shown against plain loops."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import ConfigError
from tidemill.flow.dispatcher.conflicts import NO_KEY, Conflicts, Hashes, components, key_hashes
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

ROWS = st.lists(st.lists(st.integers(0, 12), min_size=4, max_size=4), min_size=1, max_size=30)
PORTIONS = st.lists(ROWS, min_size=1, max_size=6)


def hashed(rows: list[list[int]]) -> Hashes:
    """Small numbers as they are, spread over 64 bits; 0 is no key."""
    return np.array(rows, np.uint64).reshape(len(rows), 4) * np.uint64(0x9E3779B97F4A7C15)


def brute(rows: list[list[int]]) -> list[int]:
    named = list(range(len(rows)))
    while True:
        before = list(named)
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                if set(one) & set(other) - {NO_KEY}:
                    named[i] = named[j] = min(named[i], named[j])
        if named == before:
            return named


@given(ROWS)
def test_components_are_those_that_plain_loops_find(rows: list[list[int]]) -> None:
    assert components(hashed(rows)).tolist() == brute(rows)


@given(PORTIONS, st.integers(1, 5), st.sampled_from([0, 5, 1 << 20]))
def test_a_key_is_in_one_partition_until_readers_meet(
    portions: list[list[list[int]]], partitions: int, most_keys: int
) -> None:
    conflicts = Conflicts(partitions, most_keys)
    where: dict[int, int] = {}  # since readers met last
    for number, rows in enumerate(portions):
        chosen, must_meet = conflicts.place(hashed(rows))
        assert must_meet or number, "at first nobody knows what was sent before"
        if must_meet:
            where.clear()
        for keys, partition in zip(rows, chosen.tolist(), strict=True):
            assert 0 <= partition < partitions
            for key in set(keys) - {NO_KEY}:
                assert where.setdefault(key, partition) == partition


@given(PORTIONS, st.integers(1, 5))
def test_readers_meet_only_where_keys_were_in_two_partitions(portions: list[list[list[int]]], partitions: int) -> None:
    conflicts = Conflicts(partitions)
    where: dict[int, int] = {}
    for number, rows in enumerate(portions):
        chosen, must_meet = conflicts.place(hashed(rows))
        groups: dict[int, set[int]] = {}
        for name, keys in zip(brute(rows), rows, strict=True):
            groups.setdefault(name, set()).update(where[key] for key in keys if key in where)
        assert must_meet == (not number or any(len(seen) > 1 for seen in groups.values()))
        if must_meet:
            where.clear()
        where |= {k: p for keys, p in zip(rows, chosen.tolist(), strict=True) for k in keys if k != NO_KEY}


def test_what_was_forgotten_makes_readers_meet() -> None:
    conflicts = Conflicts(3)
    some = hashed([[1, 2, 3, 4]])
    assert [conflicts.place(some)[1], conflicts.place(some)[1]] == [True, False]
    conflicts.forget()
    assert conflicts.place(some)[1]


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
    found = components(key_hashes(inserts(info, one, other))).tolist()
    assert found == ([0, 0] if conflict else [0, 1])


def test_a_delete_conflicts_with_who_takes_its_value() -> None:
    info = table()
    gone = inserts(info, (1, "x", "y"))
    new = inserts(info, (2, "x", "z"))
    both = RowBatch(
        info, 1, np.array([RowOp.DELETE, RowOp.INSERT], np.uint8), np.array([1, 2], np.uint64),
        np.array([1, 2], np.uint64), new.new, gone.new,
    )  # fmt: skip
    assert components(key_hashes(both)).tolist() == [0, 0]


def test_an_index_on_a_virtual_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"column 'a', which is virtual.*partition = 'table'"):
        key_hashes(inserts(table(expr="b"), (1, "x", "y")))
