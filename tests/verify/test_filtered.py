"""A changefeed's file in the check: what its filters and selectors left out on purpose does not count."""

from typing import Any

import pytest

from tests.verify.conftest import Pair
from tidemill.model.changefeed import ChangefeedConfig, ColumnSelection, EventFilter
from tidemill.verify.report import TableReport

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, n INT, note VARCHAR(20))"
ROWS = "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 30, 'c'), (4, 40, 'd')"


def check(pair: Pair, *, columns: tuple[str, ...] = (), **filters: Any) -> TableReport:
    pair_rules = (f"{pair.name}.t",)
    config = ChangefeedConfig(
        event_filters=(EventFilter(pair_rules, **filters),) if filters else (),
        column_selectors=(ColumnSelection(pair_rules, columns),) if columns else (),
    )
    [table] = pair.verify("t", config=config).tables
    return table


def counts(table: TableReport) -> tuple[int, int, int, int]:
    return table.missing, table.extra, table.changed, table.filtered


@pytest.mark.parametrize(
    ("planted", "filters", "found"),
    [
        pytest.param(
            "DELETE FROM t WHERE id >= 3", {"ignore_insert_value_expr": "n > 10"}, (0, 0, 0, 2), id="inserts by value"
        ),
        pytest.param(
            "DELETE FROM t WHERE id >= 2",
            {"ignore_insert_value_expr": "n > 10"},
            (1, 0, 0, 2),
            id="and one that is lost",
        ),
        pytest.param("DELETE FROM t", {"ignore_event": ("insert",)}, (0, 0, 0, 4), id="all inserts"),
        pytest.param("INSERT INTO t VALUES (9, 9, '')", {"ignore_event": ("delete",)}, (0, 0, 0, 1), id="all deletes"),
        pytest.param(
            "INSERT INTO t VALUES (8, 8, 'keep'), (9, 9, '')",
            {"ignore_delete_value_expr": "note = 'keep'"},
            (0, 1, 0, 1),
            id="deletes by value",
        ),
        pytest.param(
            "UPDATE t SET n = n - 1", {"ignore_update_new_value_expr": "n > 10"}, (0, 0, 2, 2), id="updates to a value"
        ),
        pytest.param(
            "UPDATE t SET n = -n", {"ignore_update_old_value_expr": "n < -10"}, (0, 0, 2, 2), id="updates from a value"
        ),
        pytest.param("UPDATE t SET n = 0", {"ignore_event": ("update",)}, (0, 0, 0, 4), id="all updates"),
        pytest.param("UPDATE t SET n = 0", {"ignore_event": ("insert", "delete")}, (0, 0, 4, 0), id="other kinds"),
    ],
)
def test_rows_that_a_filter_left_out_do_not_count(
    pair: Pair, planted: str, filters: dict[str, Any], found: tuple[int, int, int, int]
) -> None:
    pair.both(TABLE, ROWS)
    pair.downstream(planted)
    table = check(pair, **filters)
    assert counts(table) == found
    assert table.is_equal == (found[:3] == (0, 0, 0))
    assert len(table.differences) == sum(found[:3])


def test_columns_that_are_not_selected_may_hold_anything_or_be_missing(pair: Pair) -> None:
    pair.both(TABLE, ROWS)
    pair.downstream("UPDATE t SET note = NULL")
    assert counts(check(pair)) == (0, 0, 4, 0)
    assert check(pair, columns=("*", "!note")).is_equal
    pair.downstream("ALTER TABLE t DROP COLUMN note")
    assert check(pair, columns=("*", "!note")).is_equal
    assert check(pair).schema == ["column 'note' is missing downstream"]


def test_a_filter_may_speak_of_a_column_that_does_not_go_out(pair: Pair) -> None:
    pair.both(TABLE, ROWS)
    pair.downstream("ALTER TABLE t DROP COLUMN note", "DELETE FROM t WHERE id IN (1, 2)")
    table = check(pair, columns=("*", "!note"), ignore_insert_value_expr="note = 'a'")
    assert counts(table) == (1, 0, 0, 1)


def test_what_the_filters_explain_is_told(pair: Pair) -> None:
    pair.both(TABLE, ROWS)
    pair.downstream("DELETE FROM t WHERE id = 4")
    config = ChangefeedConfig(event_filters=(EventFilter((f"{pair.name}.*",), ignore_insert_value_expr="n = 40"),))
    report = pair.verify("t", config=config)
    assert report.document()["tables"][0]["filtered"] == 1
    lines = list(report.lines())
    assert lines[0] == "1 rows differ as the changefeed's filters explain; they do not count."
    assert lines[1].startswith("Equal at ")
