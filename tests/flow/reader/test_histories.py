"""What TiCDC's encoders made of a real TiDB's rows, read back: the rows that TiCDC had decoded."""

import json
from typing import Any

import pytest

from tests.flow.encoder.test_histories import NAMES, recorded
from tests.flow.reader.oracle import image, oracle_rows
from tests.flow.reader.plain import all_changes, received
from tests.histories import load
from tidemill.flow.reader import Events, Received
from tidemill.flow.reader.registry import READERS
from tidemill.model.event import DdlSeen, ResolvedSeen
from tidemill.model.ts import Ts

PROTOCOLS = {
    "open-protocol": "open-protocol",
    "canal-json-tidb": "canal-json",
    "simple": "simple",
}  # as recorded, and the reader of it


def read(
    name: str, protocol: str, kind: str, messages: list[dict[str, Any]] | None = None
) -> tuple[Events, list[dict[str, Any]]]:
    reader = READERS[PROTOCOLS[protocol]]()
    messages = recorded(load(name), protocol, kind) if messages is None else messages
    if protocol == "simple" and kind == "row":  # whose schemas are in DDLs
        reader.read(_received(recorded(load(name), protocol, "ddl")))
    return reader.read(_received(messages)), messages


def _received(messages: list[dict[str, Any]]) -> Received:
    return received(*((m["key"], m["value"]) for m in messages))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_what_ticdc_had_decoded(name: str, protocol: str) -> None:
    _, messages = read(name, protocol, "row")
    if protocol == "simple":
        messages = _right(name, messages)
    events = read(name, protocol, "row", messages)[0]
    assert (events.marks, events.waiting) == ([], ())
    rows = oracle_rows(load(name))
    expected = [(m["ts"], image(rows[m["seq"]]["pre_columns"]), image(rows[m["seq"]]["columns"])) for m in messages]
    assert len(expected) > 100
    assert all_changes(events) == expected


def _right(name: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those in which TiCDC gives values to the wrong columns: it names the columns by id and takes the values
    in their places, so where a column was added before another one, each gets the value of its neighbour."""
    orders: dict[Any, list[str]] = {}
    for message in recorded(load(name), "simple", "ddl"):
        for member in ("tableSchema", "preTableSchema"):
            if table := json.loads(message["value"]).get(member):
                orders[table["schema"], table["table"], table["version"]] = [c["name"] for c in table["columns"]]
    rows, found = oracle_rows(load(name)), []
    for message in messages:
        content, row = json.loads(message["value"]), rows[message["seq"]]
        by_id = orders[content["database"], content["table"], content["schemaVersion"]]
        in_place = [column["name"] for column in row["columns"] or row["pre_columns"]]
        if [each for each in by_id if each in in_place] == in_place:
            found.append(message)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_types_of_columns_are_what_ticdc_says(name: str, protocol: str) -> None:
    events, messages = read(name, protocol, "row")
    rows = oracle_rows(load(name))
    for seen in events.rows:
        told = rows[messages[int(seen.message[0])]["seq"]]
        columns = told["columns"] or told["pre_columns"]
        table = seen.rows.table
        assert table.full_name == f"{told['schema']}.{told['table']}"
        assert {(c.name, int(c.type)) for c in table.stored_columns} == {(c["name"], c["type"]) for c in columns}
        assert {c.name for c in table.columns if c.is_unsigned} == _flagged(columns, 128)
        assert {c.name for c in table.primary_key} == _flagged(columns, 8)


@pytest.mark.parametrize("name", NAMES)
def test_flags_of_the_open_protocol_are_what_ticdc_says(name: str) -> None:
    events, messages = read(name, "open-protocol", "row")
    rows = oracle_rows(load(name))
    for seen in events.rows:
        told = rows[messages[int(seen.message[0])]["seq"]]
        columns = told["columns"] or told["pre_columns"]
        table = seen.rows.table
        assert {column.name for column in table.handle_key} == _flagged(columns, 2)
        assert {c.name for c in table.columns if c.is_generated} == _flagged(columns, 4)
        assert {c.name for c in table.columns if not c.is_not_null} == _flagged(columns, 64)


def _flagged(columns: list[dict[str, Any]], flag: int) -> set[str]:
    return {column["name"] for column in columns if column["flag"] & flag}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_every_ddl_is_what_ticdc_sent(name: str, protocol: str) -> None:
    events, messages = read(name, protocol, "ddl")
    told = [ddl for ddl in load(name).ticdc_ddl() if "error" not in ddl]
    assert events.rows == []
    assert [place for place, _ in events.marks] == list(range(len(messages)))
    found = [mark for _, mark in events.marks if isinstance(mark, DdlSeen)]
    assert len(found) == len(messages) > 20
    assert {(ddl.ts, ddl.query) for ddl in found} <= {(ddl["commit_ts"], ddl["query"]) for ddl in told}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_the_resolved_ts_is_what_ticdc_sent(name: str, protocol: str) -> None:
    events, (message,) = read(name, protocol, "resolved")
    assert events.marks == [(0, ResolvedSeen(Ts(message["ts"])))]
