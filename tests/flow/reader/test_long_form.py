"""The long form of the protocol's first design, by its own examples."""

import json
from typing import Any

import pytest

from tests.flow.reader.plain import all_changes, received
from tidemill.flow.reader import Events
from tidemill.flow.reader.long_form import LongFormReader
from tidemill.model.event import AdminSeen, DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.ts import Ts

ROW = {"ts": 1, "type": "Row", "schema": "schema1", "table": "table1"}
FIRST = {"type": "Long", "value": 7766, "unique": True}
UPDATE = {"update": {"columnName1": FIRST, "columnName2": {"type": "Text", "value": "aabb"}}}
DELETE = {"delete": {"columnName1": FIRST}}


def read(*messages: tuple[Any, Any]) -> Events:
    def text(part: Any) -> bytes | None:
        return None if part is None else json.dumps(part, indent=4).encode()

    return LongFormReader().read(received(*((text(key), text(value)) for key, value in messages)))


def test_the_design_s_own_rows() -> None:
    events = read((ROW, UPDATE), ({**ROW, "ts": 2}, DELETE), ({**ROW, "ts": 3}, UPDATE))
    row = {"columnName1": 7766, "columnName2": "aabb"}
    assert events.marks == []
    assert all_changes(events) == [(1, None, row), (2, {"columnName1": 7766}, None), (3, None, row)]
    for seen in events.rows:
        assert seen.rows.table.full_name == "schema1.table1"
        assert [column.name for column in seen.rows.table.handle_key] == ["columnName1"]


def test_the_design_s_own_marks() -> None:
    ddl = {"ts": 1, "type": "DDL", "schema": "schema1", "table": "table1"}
    events = read(
        (ddl, {"query": "drop table a;"}),
        ({"ts": 1, "type": "Resolved"}, None),
        ({"type": "Admin"}, {"partition": 5}),
        ({"type": "Admin", "ts": 9}, {"partition": 6, "epoch": 2}),
    )
    assert events.rows == []
    assert events.marks == [
        (0, DdlSeen(Ts(1), "schema1", "table1", "drop table a;")),
        (1, ResolvedSeen(Ts(1))),
        (2, AdminSeen(5)),
        (3, AdminSeen(6, 2, Ts(9))),
    ]


@pytest.mark.parametrize(
    ("word", "value", "read_as"),
    [("Double", 1.5, 1.5), ("Bit", 2**64 - 1, 2**64 - 1), ("Decimal", "1.50", "1.50"), ("Year", None, None)],
)
def test_other_types_have_words_too(word: str, value: Any, read_as: Any) -> None:
    events = read((ROW, {"update": {"c": {"type": word, "value": value}}}))
    assert all_changes(events) == [(1, None, {"c": read_as})]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, UPDATE, "a key cannot be read: it is no JSON"),
        ({"ts": 1, "type": "Other"}, None, "none of Row, DDL, Resolved, Admin"),
        ({"type": "Resolved"}, None, "it has no ts"),
        ({"ts": -1, "type": "Resolved"}, None, "no whole number"),
        ({"ts": 1, "type": "Row"}, UPDATE, "it names no schema"),
        (ROW, {}, "it holds no columns"),
        (ROW, None, "schema1.table1 cannot be read: it is no JSON"),
        (ROW, {"update": {"c": {"type": "Strange", "value": 1}}}, "column c is of an unknown type"),
        (ROW, {"update": {"c": {"type": "Long"}}}, "a column has no value"),
        (ROW, {"update": {"c": {"type": "Long", "value": "x"}}}, "not of its column's type"),
        ({**ROW, "type": "DDL"}, {}, "of type DDL cannot be read"),
        ({"type": "Admin"}, {"partition": 0}, "of type Admin cannot be read"),
        ({"type": "Admin"}, {"partition": True}, "of type Admin cannot be read"),
    ],
)
def test_what_is_no_message_is_named_and_does_not_stop_the_others(key: Any, value: Any, why: str) -> None:
    events = read((ROW, DELETE), (key, value), (ROW, DELETE))
    assert len(all_changes(events)) == 2
    ((place, mark),) = events.marks
    assert place == 1
    assert isinstance(mark, Unreadable)
    assert why in mark.why
