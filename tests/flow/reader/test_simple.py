"""The simple protocol read back: rows and the schemas they need, in whatever order they come."""

import json
from typing import Any

import pytest

from tests.flow.reader.plain import all_changes, received
from tidemill.flow.reader import Events
from tidemill.flow.reader.simple import SimpleReader
from tidemill.model.event import DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts


def column(name: str, word: str, *, nullable: bool = True, **kind: Any) -> dict[str, Any]:
    text = {"charset": "binary", "collate": "binary", **kind}
    return {"name": name, "dataType": {"mysqlType": word, **text}, "nullable": nullable, "default": None}


ITEM = {
    "schema": "shop", "table": "item", "tableID": 108, "version": 44,
    "columns": [
        column("id", "bigint", nullable=False, length=20),
        column("sku", "varchar", nullable=False, length=16, charset="utf8mb4", collate="utf8mb4_bin"),
        column("qty", "int", length=10, unsigned=True),
        column("tag", "varbinary", length=4),
        column("at", "timestamp", length=19),
        column("virtual", "int", length=11),
    ],
    "indexes": [
        {"name": "uk_sku", "unique": True, "primary": False, "nullable": False, "columns": ["sku"]},
        {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": ["id"]},
    ],
}  # fmt: skip
STAMP = {"location": "UTC", "value": "2020-02-20 10:20:20"}
FIRST = {"at": STAMP, "id": "7", "qty": None, "sku": "A-1", "tag": "AGH/"}
SECOND = {**FIRST, "at": None, "qty": "5"}
READ_FIRST = {"id": 7, "sku": "A-1", "qty": None, "tag": b"\0a\xff", "at": "2020-02-20 10:20:20"}
READ_SECOND = {**READ_FIRST, "qty": 5, "at": None}
BOOTSTRAP = {"version": 1, "type": "BOOTSTRAP", "commitTs": 0, "buildTs": 1, "tableSchema": ITEM}


def row(word: str = "INSERT", ts: int = 50, **more: Any) -> dict[str, Any]:
    usual = {"version": 1, "database": "shop", "table": "item", "tableID": 108, "type": word, "commitTs": ts}
    return {**usual, "buildTs": 1, "schemaVersion": 44, **more}


INSERT, UPDATE, DELETE = row(data=FIRST), row("UPDATE", 51, data=SECOND, old=FIRST), row("DELETE", 52, old=SECOND)


def read(reader: SimpleReader, *messages: dict[str, Any]) -> Events:
    return reader.read(received(*((None, json.dumps(each).encode()) for each in messages)))


def test_rows_come_back_with_the_types_of_their_schema() -> None:
    events = read(SimpleReader(), BOOTSTRAP, INSERT, UPDATE, DELETE)
    assert all_changes(events) == [(50, None, READ_FIRST), (51, READ_FIRST, READ_SECOND), (52, READ_SECOND, None)]
    (seen,) = events.rows
    table = seen.rows.table
    assert (table.id, table.version_ts, seen.rows.physical_id) == (108, 44, 108)
    assert [c.name for c in table.handle_key] == ["id"]
    assert [c.name for c in table.unique_key_columns] == ["id", "sku"]
    assert [c.name for c in table.columns if c.is_virtual] == ["virtual"]
    ((place, ddl),) = events.marks
    assert place == 0
    assert isinstance(ddl, DdlSeen)
    assert (ddl.query, ddl.table) == ("", "item")


def test_a_schema_may_come_after_its_rows() -> None:
    reader = SimpleReader()
    assert len(all_changes(read(reader, INSERT, BOOTSTRAP))) == 1
    other = {**BOOTSTRAP, "tableSchema": {**ITEM, "version": 45}}
    newer = row(ts=60, schemaVersion=45, data=FIRST)
    events = read(reader, newer, INSERT, newer)
    assert (len(all_changes(events)), events.waiting) == (1, (0, 2))
    events = read(reader, newer, newer, other)
    assert (len(all_changes(events)), events.waiting) == (2, ())


def test_partitions_are_apart_under_one_schema() -> None:
    events = read(SimpleReader(), BOOTSTRAP, *(row(tableID=id, data=FIRST) for id in (201, 202, 201)))
    assert {seen.rows.physical_id: seen.message.tolist() for seen in events.rows} == {201: [1, 3], 202: [2]}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"handleKeyOnly": True}, (True, "")),
        ({"handleKeyOnly": True, "claimCheckLocation": "s3://b/x.json"}, (True, "s3://b/x.json")),
    ],
)
def test_rows_that_are_not_whole_say_so(more: dict[str, Any], told: tuple[bool, str]) -> None:
    events = read(SimpleReader(), BOOTSTRAP, row(**more, data={"id": "7"}))
    (seen,) = events.rows
    assert (seen.is_partial, seen.claim) == told
    assert all_changes(events) == [(50, None, {"id": 7})]
    assert [c.name for c in seen.rows.table.handle_key] == ["id"]


def test_a_unique_key_that_stands_in_for_a_primary_one_is_none() -> None:
    keyed = {**ITEM, "indexes": [ITEM["indexes"][0], {**ITEM["indexes"][1], "columns": ["sku"]}]}  # type: ignore[index]
    events = read(SimpleReader(), {**BOOTSTRAP, "tableSchema": keyed})
    ((_, ddl),) = events.marks
    assert isinstance(ddl, DdlSeen)
    assert isinstance(ddl.table_info, TableInfo)
    assert ddl.table_info.primary_key == ()
    assert [c.name for c in ddl.table_info.handle_key] == ["sku"]


def test_ddls_and_watermarks() -> None:
    ddl = {"version": 1, "type": "ALTER", "sql": "alter", "commitTs": 45, "buildTs": 1, "tableSchema": ITEM}
    gone = {"version": 1, "type": "QUERY", "sql": "drop database shop", "commitTs": 46, "buildTs": 1}
    mark = {"version": 1, "type": "WATERMARK", "commitTs": 47, "buildTs": 1}
    events = read(SimpleReader(), ddl, gone, mark)
    (_, first), (_, second), last = events.marks
    assert isinstance(first, DdlSeen)
    assert (first.ts, first.schema, first.table, first.query) == (45, "shop", "item", "alter")
    assert second == DdlSeen(Ts(46), "", "", "drop database shop")
    assert last == (2, ResolvedSeen(Ts(47)))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({}, "its members are not those of the protocol"),
        ({**INSERT, "version": 2}, "it is not of version 1"),
        ({**INSERT, "type": "REPLACE"}, "none of INSERT, UPDATE and DELETE"),
        ({**INSERT, "commitTs": "x"}, "its commitTs is no whole number"),
        ({**INSERT, "tableID": None}, "its tableID or schemaVersion is no number"),
        ({**INSERT, "table": 5}, "a name is no string"),
        (row(data={**FIRST, "other": "1"}), "columns that its schema has not"),
        (row(data={**FIRST, "qty": "x"}), "a value of table shop.item is not of its column's type"),
        (row(data={**FIRST, "at": {"location": "UTC"}}), "a value of table shop.item is not of its column's type"),
        (row(data={**FIRST, "tag": "!"}), "a value of table shop.item is not of its column's type"),
        (row("UPDATE", data=FIRST), "it lacks a row"),
        (row("UPDATE", data=FIRST, old={"id": "7"}), "different columns"),
        ({"version": 1, "type": "BOOTSTRAP", "commitTs": 0}, "neither a query nor a schema"),
        ({"version": 1, "type": "BOOTSTRAP", "commitTs": 0, "tableSchema": {}}, "not those of the protocol"),
        ({**BOOTSTRAP, "tableSchema": {**ITEM, "columns": [column("a", "strange")], "indexes": []}}, "an unknown type"),
    ],
)
def test_what_is_no_message_is_named_and_does_not_stop_the_others(message: dict[str, Any], why: str) -> None:
    events = read(SimpleReader(), BOOTSTRAP, INSERT, message, INSERT)
    assert all_changes(events) == [(50, None, READ_FIRST)] * 2
    _, (place, mark) = events.marks
    assert place == 2
    assert isinstance(mark, Unreadable)
    assert why in mark.why
