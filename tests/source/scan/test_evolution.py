"""Which forms of a table stop a reader whose output has a fixed form, and where."""

from typing import Any

import pytest

from tests.source.scan.test_present import column, table
from tidemill.model.table import ColumnInfo, ColumnType
from tidemill.model.ts import Ts
from tidemill.source.scan import Dates, Presenter, Stretch, cut, first_change
from tidemill.source.scan.evolution import differences
from tidemill.source.scan.history import Form

ID = column(1, "id", ColumnType.LONG)
NAME = column(2, "name", ColumnType.VARCHAR)
DAY = column(3, "day", ColumnType.DATE)


def of(*columns: ColumnInfo, **options: Any) -> list[str]:
    return differences(Presenter(table(ID, NAME, DAY), **options), table(*columns, version_ts=20))


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        pytest.param([ID, NAME, DAY], {}, [], id="the same"),
        pytest.param([DAY, NAME, ID], {}, [], id="in another order"),
        pytest.param([ID, DAY], {}, ["column 'name' dropped"], id="dropped"),
        pytest.param([ID, NAME, DAY, column(4, "x", ColumnType.LONG)], {}, ["column 'x' added"], id="added"),
        pytest.param(
            [ID, column(2, "title", ColumnType.VARCHAR), DAY], {}, ["column 'name' renamed to 'title'"], id="renamed"
        ),
        pytest.param(
            [ID, column(4, "name", ColumnType.LONG), DAY],
            {},
            ["column 'name' changed from string to int32"],
            id="a new column of the same name",
        ),
        pytest.param(
            [ID, column(4, "name", ColumnType.VARCHAR), DAY], {}, [], id="a new column of the same name and type"
        ),
        pytest.param(
            [ID, NAME, column(3, "day", ColumnType.DATETIME)], {"dates": Dates.TEXT}, [], id="both are shown as text"
        ),
        pytest.param([ID, DAY, column(4, "x", ColumnType.LONG)], {"columns": ["ID"]}, [], id="not asked for"),
        pytest.param(
            [ID, column(3, "name", ColumnType.VARCHAR), column(2, "day", ColumnType.DATE)],
            {},
            ["column 'name' renamed to 'day'", "column 'day' renamed to 'name'"],
            id="names that are exchanged",
        ),
    ],
)
def test_what_differs_is_named(columns: list[ColumnInfo], options: dict[str, Any], expected: list[str]) -> None:
    assert of(*columns, **options) == expected


def test_the_first_form_that_differs_and_came_later_is_where_it_stops() -> None:
    presenter = Presenter(table(ID, NAME, version_ts=30))
    forms = [table(ID, version_ts=10), table(ID, NAME, version_ts=20), table(ID, NAME, version_ts=40)]
    wider = table(ID, NAME, DAY, version_ts=50)
    stretch = Stretch(1, Ts(15), Ts(60), tuple(Form(t.version_ts, t) for t in [*forms, wider]))
    change = first_change(presenter, [stretch])
    assert change is not None
    assert (change.ts, change.differences) == (50, ("column 'day' added",))
    (kept,) = cut([stretch], change.ts)
    assert (kept.to_ts, [form.since_ts for form in kept.forms]) == (50, [10, 20, 40])
    assert first_change(presenter, [kept]) is None
    assert cut([stretch], Ts(15)) == []
