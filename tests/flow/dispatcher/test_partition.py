"""The partition of a row is the one that TiCDC would choose."""

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, ITEM, KEY, NOT_NULL, column, rows_of, table_of
from tidemill.errors import ConfigError
from tidemill.flow.dispatcher.hashing import add_column, hash_names
from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, IndexColumn, IndexInfo, TableInfo

REGION = table_of(
    column("id", ColumnType.LONGLONG, KEY), column("region", ColumnType.VARCHAR), column("qty", ColumnType.LONG)
)
BY_INDEX = PartitionRule(Kind.INDEX_VALUE)


def partitions(rule: PartitionRule, rows: RowBatch, count: int) -> list[int]:
    return rule.partitions(rows, count).tolist()


def items(*ids: int) -> RowBatch:
    row = {"sku": "A-1", "qty": None, "tag": b"", "kind": 1, "note": ""}
    return rows_of(ITEM, *((None, {**row, "id": each}) for each in ids))


@pytest.mark.parametrize(
    ("rule", "rows", "count", "expected"),
    [
        pytest.param(PartitionRule(), items(7, 8), 3, [0, 0], id="table, 3"),
        pytest.param(PartitionRule(), items(7, 8), 6, [0, 0], id="table, 6"),
        pytest.param(BY_INDEX, items(7, 8, 9, 10), 6, [3, 2, 0, 1], id="index-value, 6"),
        pytest.param(BY_INDEX, items(7, 8, 9, 10), 3, [0, 2, 0, 1], id="index-value, 3"),
        pytest.param(PartitionRule(Kind.INDEX_VALUE, "U0"), items(7, 8), 6, [0, 0], id="index, whatever its case"),
        pytest.param(
            PartitionRule(Kind.COLUMNS, columns=("region", "id")),
            rows_of(REGION, (None, {"id": 7, "region": "eu", "qty": 1})),
            6,
            [5],
            id="columns",
        ),
        pytest.param(
            PartitionRule(Kind.COLUMNS, columns=("ID", "Region")),
            rows_of(REGION, (None, {"id": 7, "region": "eu", "qty": 1})),
            6,
            [5],
            id="columns in another order and case",
        ),
        pytest.param(PartitionRule(Kind.COLUMNS, columns=("qty",)), items(7), 6, [5], id="NULL is the word null"),
        pytest.param(PartitionRule(Kind.TS), items(7), 6, [1], id="ts, 6"),
        pytest.param(PartitionRule(Kind.TS), items(7), 3, [1], id="ts, 3"),
    ],
)
def test_a_row_lands_where_it_would_in_ticdc(
    rule: PartitionRule, rows: RowBatch, count: int, expected: list[int]
) -> None:
    assert partitions(rule, rows, count) == expected


@pytest.mark.parametrize(("names", "values", "expected"), [("a", [11], 2), ("ab", [11, 22], 5), ("ab", [11, 0], 14)])
def test_sixteen_partitions_by_index_value(names: str, values: list[int], expected: int) -> None:
    table = table_of(
        *(column(name, ColumnType.LONG, NOT_NULL) for name in names),
        schema="test", name="t1" if len(names) == 1 else "t2", uniques=[list(names)],
    )  # fmt: skip
    rows = rows_of(table, (None, dict(zip(names, values, strict=True))))
    assert partitions(BY_INDEX, rows, 16) == [expected]


def test_a_delete_goes_by_its_old_row_and_an_update_by_its_new_one() -> None:
    row = {"sku": "A-1", "qty": None, "tag": b"", "kind": 1, "note": ""}
    old, new = {**row, "id": 7}, {**row, "id": 8}
    rows = rows_of(ITEM, (old, None), (None, new), (old, new), (new, None), (new, old))
    assert partitions(BY_INDEX, rows, 6) == [3, 2, 2, 2, 3]


def test_the_hash_has_no_separators() -> None:
    assert hash_names("shop", "item") == hash_names("shopit", "em") == 0xC18BECDA


def reference(name: str, value: Any) -> int:
    text = "null" if value is None else value if isinstance(value, bytes) else str(value)
    return zlib.crc32(name.encode() + (text if isinstance(text, bytes) else text.encode()))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1))),
        (pa.uint64(), st.one_of(st.none(), st.integers(0, (1 << 64) - 1))),
        (pa.string(), st.one_of(st.none(), st.text())),
        (pa.binary(), st.one_of(st.none(), st.binary())),
    ],
)
def test_values_are_hashed_as_their_text(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    @given(st.lists(values), st.integers(0, 3))
    def check(column_values: list[Any], offset: int) -> None:
        array = pa.array(column_values, kind)[offset:]
        found = np.zeros(len(array), np.uint32)
        add_column(found, "col", array)
        assert found.tolist() == [reference("col", value) for value in column_values[offset:]]

    check()


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (1e21, "1" + "0" * 21), (-1e-7, "-0.0000001"), (3.0, "3")])
def test_floats_are_hashed_without_exponent(value: float, text: str) -> None:
    found = np.zeros(1, np.uint32)
    add_column(found, "f", pa.array([value], pa.float64()))
    assert found.tolist() == [reference("f", text)]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("", Kind.TABLE), ("default", Kind.TABLE), ("Table", Kind.TABLE), ("ts", Kind.TS), ("rowid", Kind.INDEX_VALUE),
        ("INDEX-VALUE", Kind.INDEX_VALUE),
    ],
)  # fmt: skip
def test_words_of_ticdc(word: str, kind: Kind) -> None:
    assert PartitionRule.read(word, "", (), "here").kind is kind


@pytest.mark.parametrize(
    ("word", "index", "columns", "said"),
    [
        ("hash", "", (), "here.partition is 'hash'; it must be one of 'default'"),
        ("ts", "u", (), "here.index is for partition = 'index-value'"),
        ("columns", "", (), "here.columns is empty"),
        ("table", "", ("a",), "here.columns is for partition = 'columns'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(word: str, index: str, columns: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PartitionRule.read(word, index, columns, "here")


def with_plain_index(table: TableInfo) -> TableInfo:
    index = IndexInfo(9, "k", (IndexColumn(1, -1),), False, False)
    return TableInfo(table.id, 1, table.schema, table.name, table.version_ts, table.columns, (index,))


@pytest.mark.parametrize(
    ("rule", "table", "said"),
    [
        (PartitionRule(Kind.INDEX_VALUE, "no"), ITEM, "shop.item has no unique index 'no' .* indexes are u0"),
        (PartitionRule(Kind.INDEX_VALUE, "k"), with_plain_index(REGION), "no unique index 'k' .* are none"),
        (PartitionRule(Kind.COLUMNS, columns=("id", "no")), ITEM, "shop.item has no column 'no'"),
        (
            PartitionRule(Kind.COLUMNS, columns=("v",)),
            table_of(column("id", ColumnType.LONG, KEY), column("v", ColumnType.LONG, generated_expr="id+1")),
            "virtual generated columns",
        ),
    ],
)
def test_a_rule_that_does_not_fit_a_table_is_refused(rule: PartitionRule, table: TableInfo, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rule.hashed_columns(table)


@pytest.mark.parametrize(
    ("rule", "table", "is_kept", "is_shared"),
    [
        (PartitionRule(), ITEM, True, False),
        (PartitionRule(Kind.TS), REGION, False, False),
        (BY_INDEX, REGION, True, True),
        (BY_INDEX, ITEM, False, False),
        (PartitionRule(Kind.COLUMNS, columns=("id",)), REGION, True, False),
        (PartitionRule(Kind.COLUMNS, columns=("region",)), REGION, False, False),
        (PartitionRule(Kind.INDEX_VALUE, "primary"), REGION, True, True),
        (PartitionRule(Kind.INDEX_VALUE, "u0"), ITEM, False, False),
    ],
)
def test_row_order_is_kept_where_one_key_decides(
    rule: PartitionRule, table: TableInfo, is_kept: bool, is_shared: bool
) -> None:
    assert (rule.keeps_row_order(table), rule.allows(table)) == (is_kept, is_shared)


def test_commit_ts_beyond_63_bits() -> None:
    rows = rows_of(REGION, (None, {"id": 1, "region": "", "qty": 1}), ts=[(1 << 64) - 1])
    assert partitions(PartitionRule(Kind.TS), rows, 7) == [((1 << 64) - 1) % 7]
    assert partitions(PartitionRule(Kind.TS), items(1), 7)[0] == COMMIT_TS % 7
