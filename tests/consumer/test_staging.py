"""Rows on disk until they are due: each change once, in commit order, and never a torn transaction."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, column, rows_of, table_of
from tidemill.consumer.staging import Staging, cut, in_order
from tidemill.errors import SinkError
from tidemill.flow.reader import RowsSeen
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts

T = table_of(column("id", ColumnType.LONGLONG, KEY), column("v", ColumnType.LONGLONG), name="t")
WIDER = table_of(*T.columns, column("w", ColumnType.LONGLONG), name="t")
OTHER = table_of(column("id", ColumnType.LONGLONG, KEY), column("v", ColumnType.LONGLONG), name="other", table_id=9)


def seen(*changes: tuple[int, int], table: TableInfo = T, v: int = 0) -> RowsSeen:
    """Inserts: (commit-ts, id)."""
    rows = rows_of(table, *((None, {"id": i, "v": v}) for _, i in changes), ts=[ts for ts, _ in changes])
    return RowsSeen(rows, np.arange(len(changes)))


def read(parts: Iterable[Any]) -> list[tuple[str, int, int]]:
    """(table, commit-ts, id) of all rows, as an executor reads them."""
    return [
        (batch.table.name, int(ts), row["id"])
        for part in pickle.loads(pickle.dumps(parts))
        for batch in part.read()
        for ts, row in zip(batch.commit_ts, batch.new.to_pylist(), strict=True)
    ]


def to(ts: int, *partitions: int, above: int = 0) -> dict[int, tuple[Ts, Ts]]:
    return {p: (Ts(above), Ts(ts)) for p in partitions}


def test_rows_of_several_partitions_come_in_commit_order_up_to_where_they_are_due(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add(0, 100, [seen((10, 1), (30, 3))], Ts(0))
    staging.add(1, 500, [seen((20, 2), (15, 4))], Ts(0))
    plan = staging.plan(to(20, 0, 1), 1000, is_whole=True)
    assert read(plan.parts) == [("t", 10, 1), ("t", 15, 4), ("t", 20, 2)]
    assert (plan.rows, plan.to) == (3, {0: 20, 1: 20})


def test_copies_are_dropped_within_a_batch_and_against_what_was_written(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add(0, 100, [seen((10, 1), (20, 2))], Ts(0))
    staging.add(0, 102, [seen((10, 1), (20, 2), (20, 3))], Ts(10))
    assert read(staging.plan(to(20, 0), 1000, is_whole=True).parts) == [("t", 10, 1), ("t", 20, 2), ("t", 20, 3)]
    assert staging.rows == 4


def test_a_batch_ends_behind_enough_rows_and_never_within_a_transaction(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add(0, 0, [seen((10, 1), (20, 2), (20, 3))], Ts(0))
    staging.add(1, 0, [seen((20, 4), (30, 5))], Ts(0))
    plan = staging.plan(to(30, 0, 1), 2, is_whole=True)
    assert (plan.to, plan.rows) == ({0: 20, 1: 20}, 4)


def test_a_batch_ends_before_a_tables_form_changes(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    wide = RowsSeen(rows_of(WIDER, (None, {"id": 2, "v": 0, "w": 1}), ts=[20]), np.zeros(1, np.int64))
    staging.add(0, 0, [seen((10, 1)), wide, seen((25, 7), table=OTHER)], Ts(0))
    assert staging.plan(to(30, 0), 1000, is_whole=True).to == {0: 19}
    assert staging.plan(to(30, 0, above=19), 1000, is_whole=True).to == {0: 30}


def test_a_table_in_two_forms_at_one_ts_is_refused_by_name(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    wide = RowsSeen(rows_of(WIDER, (None, {"id": 2, "v": 0, "w": 1}), ts=[10]), np.zeros(1, np.int64))
    staging.add(0, 0, [seen((10, 1)), wide], Ts(0))
    with pytest.raises(SinkError, match=r"table shop\.t in two forms"):
        staging.plan(to(30, 0), 1000, is_whole=True)


def test_a_partition_is_read_again_from_its_first_message_that_was_not_written(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add(0, 100, [seen((10, 1))], Ts(0))
    staging.add(0, 200, [seen((20, 2), (12, 3))], Ts(0))
    assert (staging.oldest_offset(0, Ts(0)), staging.oldest_offset(0, Ts(10))) == (100, 200)
    staging.release({0: Ts(12)})
    assert (staging.rows, staging.oldest_offset(0, Ts(12)), staging.oldest_offset(0, Ts(20))) == (2, 200, None)
    staging.release({0: Ts(20)})
    assert list(tmp_path.glob("*.rows")) == []


def test_rows_above_a_cut_are_dropped_of_one_partition(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add(0, 0, [seen((10, 1), (25, 2)), seen((30, 3))], Ts(0))
    staging.add(1, 0, [seen((30, 4))], Ts(0))
    staging.drop_above(0, Ts(20))
    plan = staging.plan(to(40, 0, 1), 100, is_whole=True)
    assert [ts for _, ts, _ in read(plan.parts)] == [10, 30]
    staging.release({})
    assert len(list(tmp_path.glob("*.rows"))) == 2


def test_of_one_poll_only_rows_before_the_admin_event_are_cut() -> None:
    kept = cut(replace(seen((10, 1), (25, 2), (26, 3)), message=np.array([0, 1, 3])), 2, Ts(20))
    assert kept.rows.commit_ts.tolist() == [10, 26]
    assert kept.message.tolist() == [0, 3]


def test_what_an_earlier_run_has_left_is_removed(tmp_path: Path) -> None:
    Staging(tmp_path).add(0, 0, [seen((10, 1))], Ts(0))
    assert Staging(tmp_path).rows == 0
    assert list(tmp_path.glob("*.rows")) == []


def test_within_a_transaction_deletes_come_first_and_a_key_may_go_to_another_row() -> None:
    """Rows 1 and 2 take each other's place: two deletes and two inserts, none of them a copy."""
    old = [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    rows = rows_of(T, (None, old[1]), (old[0], None), (None, old[0]), (old[1], None), ts=[10] * 4)
    found = in_order(rows)
    assert found.op.tolist() == [RowOp.DELETE, RowOp.DELETE, RowOp.INSERT, RowOp.INSERT]
    assert (found.old.column(0).to_pylist(), found.new.column(0).to_pylist()) == ([1, 2], [2, 1])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=30), st.randoms(use_true_random=False))
def test_however_rows_arrive_and_however_often_each_change_comes_once(changes: list[tuple[int, int]], rng: Any) -> None:
    story = sorted(set(changes))
    arrived = [*story, *changes]
    rng.shuffle(arrived)
    batch = seen(*arrived).rows
    found = in_order(batch)
    assert _pairs(found) == story


def _pairs(rows: RowBatch) -> list[tuple[int, int]]:
    pairs = list(zip(rows.commit_ts.tolist(), rows.new.column(0).to_pylist(), strict=True))
    assert [ts for ts, _ in pairs] == sorted(ts for ts, _ in pairs)
    return sorted(pairs)


def test_a_transaction_is_read_in_one_piece_however_many_rows_a_step_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 1 and 2 take each other's key. Split apart from each other, one would be deleted behind its insert."""
    monkeypatch.setattr("tidemill.consumer.staging._ROWS_A_STEP", 2)
    one, two = {"id": 1, "v": 1}, {"id": 2, "v": 2}
    rows = rows_of(T, (None, {"id": 9, "v": 0}), (one, {"id": 2, "v": 1}), (two, {"id": 1, "v": 2}), ts=[10, 20, 20])
    staging = Staging(tmp_path)
    staging.add(0, 0, [RowsSeen(rows, np.arange(3))], Ts(0))
    (part,) = staging.plan(to(20, 0), 1000, is_whole=True).parts
    batches = [batch.commit_ts.tolist() for batch in part.read()]
    assert [ts for batch in batches for ts in batch] == [10, 20, 20]
    assert sum(20 in batch for batch in batches) == 1


def test_partitions_that_were_written_by_rows_so_far_go_on_by_transactions(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.add(0, 0, [seen((60, 1), (70, 2))], Ts(50))
    staging.add(1, 0, [seen((120, 3))], Ts(100))
    windows = {0: (Ts(50), Ts(150)), 1: (Ts(100), Ts(150))}
    assert staging.plan(windows, 1, is_whole=True).to == {0: 60}


def test_a_batch_is_bounded_in_bytes(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    for n in range(40):
        staging.add(0, n, [seen(*((10 * n + i, i) for i in range(10)))], Ts(0))
    of_one = staging.bytes // 40
    plan = staging.plan(to(1000, 0), 1000, is_whole=True, most_bytes=3 * of_one)
    assert 10 <= plan.rows <= 40
    assert staging.plan(to(1000, 0), 1000, is_whole=True, most_bytes=1).rows >= 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 9))
def test_whatever_is_staged_batches_take_all_of_it_in_order_each_row_once(files: list[list[int]], most: int) -> None:
    with TemporaryDirectory() as folder:
        staging = Staging(Path(folder))
        numbers = count()
        for n, stamps in enumerate(files):
            staging.add(n % 2, n, [seen(*((ts, next(numbers)) for ts in stamps))], Ts(0))
        low, found = 0, []
        while low < 60:
            plan = staging.plan(to(60, 0, 1, above=low), most, is_whole=True)
            found += [(ts, id) for _, ts, id in read(plan.parts)]
            low = int(plan.to[0])
        assert [ts for ts, _ in found] == sorted(ts for stamps in files for ts in stamps)
        assert len(set(found)) == len(found)


def test_rows_are_written_as_the_sink_knows_the_table(tmp_path: Path) -> None:
    form = table_of(column("w", ColumnType.VARCHAR), column("V", ColumnType.LONGLONG), *T.columns[:1], name="t")
    staging = Staging(tmp_path)
    staging.add(0, 0, [seen((10, 1), v=5)], Ts(0))
    (part,) = staging.plan(to(20, 0), 10, is_whole=True).parts
    (rows,) = replace(part, form=form).read()
    assert rows.new.to_pylist() == [{"w": None, "V": 5, "id": 1}]
    assert (part.first_ts, rows.table) == (10, form)


def test_what_one_partition_is_ahead_of_another_is_not_looked_at_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, looked = Staging(tmp_path), 0
    for n in range(300):
        staging.add(1, n, [seen((1000 + n, n))], Ts(0))

    def looking(file: Any) -> int:
        nonlocal looked
        looked += 1
        return int(file.first_ts)

    monkeypatch.setattr("tidemill.consumer.staging._first_ts", looking)
    for n in range(10):
        staging.add(0, n, [seen((10 + n, n))], Ts(0))
        plan = staging.plan(to(10 + n, 0, 1, above=9 + n), 100, is_whole=True)
        assert read(plan.parts) == [("t", 10 + n, n)]
        staging.release(dict.fromkeys((0, 1), Ts(10 + n)))
        assert (staging.oldest_offset(0, Ts(10 + n)), staging.oldest_offset(1, Ts(10 + n))) == (None, 0)
    assert staging.rows == 300
    assert looked < 10 * 100
