"""What TiCDC's encoders made of a real TiDB's rows, read back: the rows that TiCDC had decoded."""

from typing import Any

import pytest

from tests.flow.encoder.test_histories import NAMES, recorded
from tests.flow.reader.oracle import image, oracle_rows
from tests.flow.reader.plain import all_changes, received
from tests.histories import load
from tidemill.flow.reader import Events
from tidemill.flow.reader.registry import READERS
from tidemill.model.event import DdlSeen, ResolvedSeen
from tidemill.model.ts import Ts

PROTOCOLS = {"open-protocol": "open-protocol", "canal-json-tidb": "canal-json"}  # as recorded, and the reader of it


def read(name: str, protocol: str, kind: str) -> tuple[Events, list[dict[str, Any]]]:
    messages = recorded(load(name), protocol, kind)
    return READERS[PROTOCOLS[protocol]]().read(received(*((m["key"], m["value"]) for m in messages))), messages


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_what_ticdc_had_decoded(name: str, protocol: str) -> None:
    events, messages = read(name, protocol, "row")
    assert events.marks == []
    rows = oracle_rows(load(name))
    expected = [(m["ts"], image(rows[m["seq"]]["pre_columns"]), image(rows[m["seq"]]["columns"])) for m in messages]
    assert all_changes(events) == expected


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
        assert {(c.name, int(c.type)) for c in table.columns} == {(c["name"], c["type"]) for c in columns}
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
