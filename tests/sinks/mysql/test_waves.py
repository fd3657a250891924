"""Which DDLs may run at the same time, by the names that they use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.flow.encoder.samples import KEY, column, table_of
from tests.flow.schema.stores import fed_store
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.waves import waves

TABLE = table_of(column("id", ColumnType.LONG, KEY))


def event(seq: int, kind: ActionType, place: str, query: str = "", was: str = "", **more: Any) -> DdlEvent:
    schema, _, table = place.partition(".")
    pre_schema, _, pre_table = was.partition(".")
    info = replace(TABLE, schema=schema, name=table) if table else None
    return DdlEvent(
        Ts(10), Ts(9), seq, kind, kind, query, schema, table, info, pre_schema, pre_table, **more
    )  # fmt: skip


ADD, CREATE, DROP = ActionType.ADD_COLUMN, ActionType.CREATE_TABLE, ActionType.DROP_TABLE
RENAME, MAKE, UNMAKE = ActionType.RENAME_TABLE, ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA


@pytest.mark.parametrize(
    ("story", "found"),
    [
        pytest.param([(ADD, "s.a"), (ADD, "s.b"), (DROP, "s.c")], [[0, 1, 2]], id="of different tables, at once"),
        pytest.param([(DROP, "s.a"), (CREATE, "s.a")], [[0], [1]], id="a name that is used again, behind"),
        pytest.param([(DROP, "s.a"), (CREATE, "S.A")], [[0], [1]], id="names differ by more than their case"),
        pytest.param([(MAKE, "s"), (CREATE, "s.a"), (CREATE, "t.a")], [[0, 2], [1]], id="a database before its tables"),
        pytest.param([(ADD, "s.a"), (UNMAKE, "s"), (MAKE, "t")], [[0, 2], [1]], id="tables before their database"),
        pytest.param([(UNMAKE, "s"), (MAKE, "s"), (CREATE, "s.a")], [[0], [1], [2]], id="a database that comes again"),
        pytest.param(
            [(RENAME, "s.t", "", "s.a"), (RENAME, "s.a", "", "s.b"), (RENAME, "s.b", "", "s.t"), (ADD, "s.c")],
            [[0, 3], [1], [2]], id="names that are swapped",
        ),
        pytest.param([(RENAME, "t.a", "", "s.a"), (UNMAKE, "s")], [[0], [1]], id="the database that a table leaves"),
        pytest.param([(RENAME, "t.a", "", "s.a"), (UNMAKE, "t")], [[0], [1]], id="the database that a table enters"),
        pytest.param(
            [(ADD, "s.a"), (ActionType.CREATE_VIEW, "s.v"), (ADD, "s.b")], [[0], [1], [2]], id="a view, by itself"
        ),
        pytest.param(
            [(ADD, "s.a"), (CREATE, "s.b", "create table b (i int references a (id))"), (ADD, "s.c")],
            [[0], [1], [2]], id="a foreign key, by itself",
        ),
        pytest.param([], [], id="nothing"),
    ],
)  # fmt: skip
def test_waves(story: Sequence[tuple[Any, ...]], found: list[list[int]]) -> None:
    events = [event(number, *each) for number, each in enumerate(story)]
    assert [[each.seq for each in wave] for wave in waves(events)] == found


def test_a_table_made_like_another_and_rows_written_anew_go_by_themselves() -> None:
    narrow = table_of(column("id", ColumnType.LONG, KEY), column("v", ColumnType.LONG))
    text = replace(narrow.columns[1], type=ColumnType.VARCHAR, id=narrow.columns[1].id + 100)
    converted = event(1, ActionType.MODIFY_COLUMN, "s.b", pre_table_info=narrow)
    converted = replace(converted, table_info=replace(narrow, columns=(narrow.columns[0], text)))
    story = [event(0, CREATE, "s.a", is_like=True), converted, event(2, ADD, "s.c")]
    assert [len(wave) for wave in waves(story)] == [1, 1, 1]
    assert [len(wave) for wave in waves([replace(converted, pre_table_info=converted.table_info), story[2]])] == [2]


@pytest.mark.parametrize("name", ["bench-ddl", "ddl"])
def test_every_event_is_in_one_wave_behind_all_that_used_its_names(name: str) -> None:
    events = [event for change in fed_store(name)[1] for event in change.events]
    found = waves(events)
    assert sorted(map(id, events)) == sorted(id(each) for wave in found for each in wave)
    at = {id(each): number for number, wave in enumerate(found) for each in wave}
    last: dict[tuple[str, str], int] = {}
    for each in events:
        places = {(each.schema, each.table), (each.pre_schema or each.schema, each.pre_table or each.table)}
        assert all(last.get(place, -1) < at[id(each)] for place in places if place[1])
        last |= dict.fromkeys(places, at[id(each)])
    assert name != "bench-ddl" or len(found) < len(events) / 5
