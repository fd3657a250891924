"""Rows as typed columns: dates from their text, ENUM and SET by name, and rows of other forms of the table."""

from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import SchemaError, UsageError
from tidemill.model.row import RowBatch, RowOp, arrow_schema
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.source.scan import Dates, HandleBounds, Presenter
from tidemill.source.scan.handles import key_ranges
from tidemill.source.scan.moments import days_of, micros_of
from tidemill.tidb.keys import record_key, record_prefix

EPOCH = datetime(1970, 1, 1)


@given(st.lists(st.none() | st.dates(), max_size=20))
def test_days_are_those_of_the_calendar(dates: list[date | None]) -> None:
    texts = pa.array([d and d.isoformat() for d in dates], pa.string())
    days, is_none = days_of(texts)
    assert not is_none.any()
    assert [EPOCH.date() + timedelta(int(n)) if d else None for d, n in zip(dates, days, strict=True)] == dates


@given(st.lists(st.none() | st.datetimes(), max_size=20), st.sampled_from([0, 3, 6]))
def test_moments_are_those_of_the_calendar(moments: list[datetime | None], digits: int) -> None:
    cut = [m and m.replace(microsecond=m.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits)) for m in moments]
    spec = {0: "seconds", 3: "milliseconds", 6: "microseconds"}[digits]
    texts = pa.array([m and m.isoformat(" ", spec) for m in cut], pa.string())
    micros, is_none = micros_of(texts)
    assert not is_none.any()
    assert [EPOCH + timedelta(microseconds=int(n)) if m else None for m, n in zip(cut, micros, strict=True)] == cut


@pytest.mark.parametrize(
    "text", ["0000-00-00", "2021-00-01", "2021-01-00", "2021-02-30", "1900-02-29", "0000-05-01", "2021-13-01"]
)
def test_dates_that_no_calendar_has_are_told(text: str) -> None:
    assert days_of(pa.array([text, "2020-02-29", None]))[1].tolist() == [True, False, False]
    assert micros_of(pa.array([text + " 00:00:00", "2020-02-29 10:00:00"]))[1].tolist() == [True, False]


def column(id_: int, name: str, kind: ColumnType, **more: Any) -> ColumnInfo:
    given: dict[str, Any] = {"flag": 0, "flen": 11, "decimal": 0, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    return ColumnInfo(id_, name, 0, kind, **{**given, **more})


def table(*columns: ColumnInfo, version_ts: int = 10) -> TableInfo:
    bare = TableInfo(1, 1, "shop", "t", Ts(version_ts), columns)
    return bare.with_columns(columns)


def rows(of: TableInfo, ops: list[RowOp], new: list[dict[str, Any]], old: list[dict[str, Any]]) -> RowBatch:
    stamps = np.arange(100, 100 + len(ops), dtype=np.uint64)
    schema = arrow_schema(of)
    images = (pa.RecordBatch.from_pylist(some, schema=schema) for some in (new, old))
    return RowBatch(of, of.id, np.array(ops, np.uint8), stamps, stamps, *images)


def test_a_delete_shows_the_row_that_was_and_all_else_the_row_that_is() -> None:
    of = table(column(1, "id", ColumnType.LONG), column(2, "e", ColumnType.ENUM, elems=("a", "b")))
    batch = rows(
        of,
        [RowOp.INSERT, RowOp.DELETE, RowOp.UPDATE, RowOp.DELETE],
        [{"id": 1, "e": 1}, {"id": 3, "e": None}],
        [{"id": 2, "e": 2}, {"id": 3, "e": 1}, {"id": 4, "e": 0}],
    )
    shown = Presenter(of, has_changes=True).present(batch)
    assert shown.column("id").to_pylist() == [1, 2, 3, 4]
    assert shown.column("e").to_pylist() == ["a", "b", None, ""]
    assert shown.column("_op").to_pylist() == ["insert", "delete", "update", "delete"]
    assert shown.column("_commit_ts").to_pylist() == [100, 101, 102, 103]


def test_sets_are_their_elements() -> None:
    of = table(column(1, "s", ColumnType.SET, elems=("x", "y", "z")))
    batch = rows(of, [RowOp.INSERT] * 4, [{"s": 5}, {"s": 0}, {"s": None}, {"s": 5}], [])
    assert Presenter(of).present(batch).column("s").to_pylist() == ["x,z", "", None, "x,z"]


def test_rows_from_before_a_column_have_its_original_default_and_from_after_it_null() -> None:
    narrow = [column(1, "id", ColumnType.LONG)]
    added = column(2, "n", ColumnType.LONG, flag=ColumnFlag.NOT_NULL, origin_default="7")
    target = table(*narrow, added, version_ts=20)
    before, after = (table(*narrow, version_ts=ts) for ts in (10, 30))
    shown = [Presenter(target).present(rows(of, [RowOp.INSERT], [{"id": 1}], [])) for of in (before, after)]
    assert [s.column("n").to_pylist() for s in shown] == [[7], [None]]


def test_a_column_keeps_its_values_under_a_new_name_and_in_a_wider_type() -> None:
    before = table(column(1, "old", ColumnType.SHORT), column(2, "d", ColumnType.NEWDECIMAL, flen=5, decimal=1))
    target = table(
        column(1, "new", ColumnType.LONGLONG), column(9, "d", ColumnType.NEWDECIMAL, flen=9, decimal=3), version_ts=20
    )
    shown = Presenter(target).present(rows(before, [RowOp.INSERT], [{"old": 3, "d": "1.5"}], []))
    assert [list(map(str, shown.column(i).to_pylist())) for i in (0, 1)] == [["3"], ["1.500"]]


def test_values_that_the_present_type_cannot_hold_are_refused() -> None:
    before, target = table(column(1, "v", ColumnType.VARCHAR)), table(column(1, "v", ColumnType.LONG), version_ts=20)
    with pytest.raises(SchemaError, match=r"column 'v' of shop.t is of another type at .* endingTs"):
        Presenter(target).present(rows(before, [RowOp.INSERT], [{"v": "12"}], []))


def test_columns_that_cannot_be_had_are_refused() -> None:
    of = table(column(1, "id", ColumnType.LONG), column(2, "w", ColumnType.LONG, generated_expr="`id`*2"))
    with pytest.raises(UsageError, match=r"'w' of shop.t: it is a virtual generated column"):
        Presenter(of, ["w"])
    with pytest.raises(UsageError, match="has a column '_op' of its own"):
        Presenter(table(column(1, "_op", ColumnType.LONG)), has_changes=True)
    assert Presenter(of, dates=Dates.TEXT).schema.names == ["id"]


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.lists(st.integers(-99, 99)))
def test_key_ranges_hold_the_handles_within_and_no_others(low: int, high: int, near: list[int]) -> None:
    of = TableInfo(5, 1, "s", "t", Ts(1), (column(1, "id", ColumnType.LONGLONG, flag=2),), pk_is_handle=True)
    ranges = key_ranges(of, 5, HandleBounds().within(low, high))
    for handle in {*near, low, high, low - 1, high + 1} - {-(1 << 63) - 1, 1 << 63}:
        key = record_key(5, handle)
        assert any(start <= key < end for start, end in ranges) == (low <= handle <= high)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.lists(st.integers(0, (1 << 64) - 1)))
def test_unsigned_handles_lie_upper_half_first(low: int, high: int, others: list[int]) -> None:
    flags = ColumnFlag.PRI_KEY | ColumnFlag.UNSIGNED
    of = TableInfo(5, 1, "s", "t", Ts(1), (column(1, "id", ColumnType.LONGLONG, flag=flags),), pk_is_handle=True)
    ranges = key_ranges(of, 5, HandleBounds().within(low, high))
    assert ranges == sorted(ranges)
    for handle in {*others, low, high}:
        key = record_key(5, handle)
        assert any(start <= key < end for start, end in ranges) == (low <= handle <= high)


def test_a_table_without_an_integer_in_front_is_read_as_a_whole() -> None:
    of = TableInfo(5, 1, "s", "t", Ts(1), (column(1, "v", ColumnType.VARCHAR),))
    assert key_ranges(of, 5, HandleBounds().within(1, 2)) == [(record_prefix(5), record_prefix(5)[:-1] + b"s")]
