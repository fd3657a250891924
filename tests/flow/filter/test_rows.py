"""Which rows go on, and with which columns."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tests.flow.filter.sample import text
from tidemill.errors import FilterError
from tidemill.flow.filter import ColumnSelector, RowFilter
from tidemill.model.changefeed import ChangefeedConfig, ColumnSelection, EventFilter
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnType, IndexColumn, IndexInfo

TABLE = table_of(column("id", ColumnType.LONG, KEY), column("qty", ColumnType.LONG), text("sku"), uniques=[["sku"]])


def row(id: int, qty: int | None = 0, sku: str = "x") -> dict[str, Any]:
    return {"id": id, "qty": qty, "sku": sku}


CHANGES = rows_of(
    TABLE,
    (None, row(1)),
    (None, row(2, -1)),
    (row(3), row(3, 5)),
    (row(4, -1), row(4, 5)),
    (row(5), row(5, -1)),
    (row(6), None),
    (row(7, -1), None),
    (None, row(8, None)),
)


def config(*entries: EventFilter, **more: Any) -> ChangefeedConfig:
    return ChangefeedConfig(event_filters=entries, **more)


def kept(rows: RowBatch) -> list[int]:
    """The ids of the changes, each told by its new row or else its old one; both images must have kept step."""
    new, old = iter(rows.new.column("id").to_pylist()), iter(rows.old.column("id").to_pylist())
    ids: list[Any] = []
    for op in rows.op:
        before = next(old) if op != RowOp.INSERT else None
        after = next(new) if op != RowOp.DELETE else before
        assert before is None or before == after
        ids.append(after)
    assert (next(new, None), next(old, None)) == (None, None)
    assert len(rows.start_ts) == len(rows.commit_ts) == len(ids)
    return ids


ALL = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("entry", "out"),
    [
        pytest.param({}, [], id="an entry that asks for nothing"),
        pytest.param({"ignore_event": ("insert",)}, [1, 2, 8], id="inserts"),
        pytest.param({"ignore_event": ("Delete", "update")}, [3, 4, 5, 6, 7], id="several kinds, in any case"),
        pytest.param({"ignore_event": ("all dml",)}, ALL, id="all changes of rows"),
        pytest.param({"ignore_event": ("all ddl", "drop table")}, [], id="DDLs are not rows"),
        pytest.param({"ignore_insert_value_expr": "qty < 0"}, [2], id="inserts by their row; NULL is not out"),
        pytest.param({"ignore_update_old_value_expr": "qty < 0"}, [4], id="updates by the old row"),
        pytest.param({"ignore_update_new_value_expr": "qty < 0"}, [5], id="updates by the new row"),
        pytest.param({"ignore_delete_value_expr": "qty < 0"}, [7], id="deletes"),
        pytest.param(
            {"ignore_update_old_value_expr": "qty < 0", "ignore_update_new_value_expr": "qty < 0"},
            [4, 5],
            id="updates by either row",
        ),
        pytest.param({"matcher": ("other.*",), "ignore_event": ("all dml",)}, [], id="an entry for other tables"),
        pytest.param({"matcher": ("SHOP.Item",), "ignore_event": ("delete",)}, [6, 7], id="names without their case"),
    ],
)
def test_what_an_entry_leaves_out(entry: dict[str, Any], out: list[int]) -> None:
    found = RowFilter(config(EventFilter(**{"matcher": ("shop.*",), **entry}))).apply(CHANGES)
    assert kept(found) == [id for id in ALL if id not in out]


def test_every_entry_that_matches_is_asked() -> None:
    entries = (EventFilter(("*.*",), ("delete",)), EventFilter(("shop.item",), ignore_insert_value_expr="id = 1"))
    assert kept(RowFilter(config(*entries)).apply(CHANGES)) == [2, 3, 4, 5, 8]


def test_transactions_are_left_out_by_their_start_ts() -> None:
    start_ts = frozenset({COMMIT_TS - 1, COMMIT_TS + 5, 7})  # a change's start-ts is one below its commit-ts
    assert kept(RowFilter(config(ignore_txn_start_ts=start_ts)).apply(CHANGES)) == [2, 3, 4, 5, 6, 8]


def test_what_nothing_is_asked_of_is_passed_on_untouched() -> None:
    assert RowFilter(config()).apply(CHANGES) is CHANGES
    assert RowFilter(config(EventFilter(("shop.*",), ignore_insert_value_expr="id = 9"))).apply(CHANGES) is CHANGES


def test_case_counts_in_matchers_if_asked_for() -> None:
    entry = EventFilter(("Shop.*",), ("all dml",))
    assert kept(RowFilter(config(entry, case_sensitive=True)).apply(CHANGES)) == ALL


def test_a_filter_travels() -> None:
    found = RowFilter(config(EventFilter(("shop.*",), ignore_delete_value_expr="qty < 0")))
    found.apply(CHANGES)
    assert kept(pickle.loads(pickle.dumps(found)).apply(CHANGES)) == [1, 2, 3, 4, 5, 6, 8]


def test_a_table_without_the_column_is_refused_when_it_is_met() -> None:
    found = RowFilter(config(EventFilter(("shop.*",)), EventFilter(("shop.*",), ignore_delete_value_expr="qyt = 1")))
    message = r"event-filters\[1\].ignore-delete-value-expr: .*table shop.item: the table has no column 'qyt'.*'qty'"
    with pytest.raises(FilterError, match=message):
        found.check(TABLE)
    found.check(replace(TABLE, schema="elsewhere"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"ignore_event": ("delete", "drop tabel")}, r"ignore-event\[1\]: unknown event 'drop tabel'.*'drop table'"),
        ({"ignore_event": ("zzz",)}, "unknown event 'zzz'. Known are all dml"),
        ({"ignore_update_new_value_expr": "qty <"}, r"event-filters\[0\].ignore-update-new-value-expr: .*at its end"),
        ({"matcher": ("shop",)}, r"event-filters\[0\].matcher\[0\]: the rule 'shop'"),
    ],
)
def test_what_cannot_be_read_is_refused_at_the_start(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(FilterError, match=message):
        RowFilter(config(EventFilter(**{"matcher": ("shop.*",), **entry})))


IMAGES = st.tuples(st.integers(0, 2), st.integers(-2, 2), st.integers(-2, 2), st.integers(1, 4))


@given(st.lists(IMAGES, max_size=20))
def test_masks_leave_what_a_loop_would_leave(changes: list[tuple[int, int, int, int]]) -> None:
    pairs = []
    for id, (op, old, new, _) in enumerate(changes):
        pairs.append((None if op == 0 else row(id, old), None if op == 2 else row(id, new)))
    rows = rows_of(TABLE, *pairs, ts=[ts for *_, ts in changes])
    entry = EventFilter(
        ("shop.item",),
        ignore_insert_value_expr="qty > 0",
        ignore_update_old_value_expr="qty = 2",
        ignore_update_new_value_expr="qty = -2",
        ignore_delete_value_expr="qty between 0 and 1",
    )
    expected = []
    for id, (op, old, new, ts) in enumerate(changes):
        is_out = (new > 0, old == 2 or new == -2, 0 <= old <= 1)[op] or ts - 1 == 2
        expected += [] if is_out else [id]
    assert kept(RowFilter(config(entry, ignore_txn_start_ts=frozenset({2}))).apply(rows)) == expected


# Columns


def selector(*entries: tuple[tuple[str, ...], tuple[str, ...]]) -> ColumnSelector:
    return ColumnSelector(ChangefeedConfig(column_selectors=tuple(ColumnSelection(*entry) for entry in entries)))


def test_columns_that_are_not_chosen_do_not_go_out() -> None:
    found = selector((("shop.*",), ("*", "!QTY"))).apply(CHANGES)
    assert [c.name for c in found.table.columns] == found.new.schema.names == found.old.schema.names == ["id", "sku"]
    assert [c.offset for c in found.table.columns] == [0, 1]
    assert found.table.indexes == (IndexInfo(1, "u0", (IndexColumn(1, -1),), True, False),)
    assert [c.name for c in found.table.handle_key] == ["id"]
    assert [c.name for c in found.table.unique_key_columns] == ["id", "sku"]
    assert kept(found) == ALL
    assert found.new.column("sku").equals(CHANGES.new.column("sku"))


def test_an_index_that_is_not_whole_is_gone() -> None:
    found = selector((("*.*",), ("id", "qty"))).table(TABLE)
    assert (found.indexes, [c.name for c in found.handle_key]) == ((), ["id"])


def test_another_whole_key_may_take_the_primary_keys_place() -> None:
    table = table_of(column("id", ColumnType.LONG, KEY), column("code", ColumnType.LONG, NOT_NULL), uniques=[["code"]])
    found = selector((("*.*",), ("code",))).table(table)
    assert ([c.name for c in found.handle_key], found.pk_is_handle) == (["code"], False)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("sku", "qty"), "no whole primary or NOT NULL unique key would remain.*Add 'id'"),
        (("nothing",), "no whole primary"),
    ],
)
def test_a_table_must_keep_a_key(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(FilterError, match=r"sink.column-selectors\[0\]: of table shop.item " + message):
        selector((("*.*",), columns)).apply(CHANGES)


def test_the_first_selector_that_matches_counts() -> None:
    found = selector((("other.*",), ("id",)), (("shop.item",), ("id",)), (("*.*",), ("*",)))
    assert [c.name for c in found.table(TABLE).columns] == ["id"]
    assert found.table(replace(TABLE, name="log")).columns == TABLE.columns


def test_a_table_of_no_selector_keeps_all_columns() -> None:
    assert selector((("other.*",), ("id",))).apply(CHANGES) is CHANGES
    assert pickle.loads(pickle.dumps(selector((("shop.*",), ("id",))))).apply(CHANGES).new.schema.names == ["id"]
