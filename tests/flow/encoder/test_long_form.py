"""The long form: spelled as the protocol's first design spells it, and read back as what it was."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, FIRST, ITEM, KEY, SECOND, Row, column, rows_of, table_of
from tests.flow.encoder.test_histories import NAMES, batches, recorded
from tests.flow.reader.plain import all_changes, changes, received, sent, sent_alone
from tests.flow.reader.rows import EVERY_TYPE, any_row
from tests.histories import load
from tidemill.flow.encoder import LongForm
from tidemill.flow.reader.long_form import LongFormReader
from tidemill.flow.reader.open_protocol import OpenProtocolReader
from tidemill.flow.reader.port import Events
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import AdminSeen, DdlSeen, ResolvedSeen
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

LONG = LongForm()
WHOLE = LongForm(delete_only_output_handle_key_columns=False)


def read(rows: RowBatch, protocol: LongForm = LONG) -> Events:
    return LongFormReader().read(sent(protocol.encoder(1).encode(rows)))


def test_rows_are_spelled_as_in_the_design() -> None:
    table = table_of(
        column("columnName1", ColumnType.LONG, KEY),
        column("columnName2", ColumnType.BLOB),
        schema="schema1",
        name="table1",
    )
    row: Row = {"columnName1": 7766, "columnName2": "aabb"}
    encoded = LONG.encoder(1).encode(rows_of(table, (None, row), (row, None), ts=[1, 1]))
    key = '{"ts":1,"type":"Row","schema":"schema1","table":"table1"}'
    unique = '"columnName1":{"type":"Long","value":7766,"unique":true}'
    assert [each.decode() for each in encoded.message_keys() or []] == [key, key]
    assert [each.decode() for each in encoded.messages()] == [
        f'{{"update":{{{unique},"columnName2":{{"type":"Text","value":"aabb"}}}}}}',
        f'{{"delete":{{{unique}}}}}',
    ]


def test_the_example_table_byte_for_byte() -> None:
    (message,) = LONG.encoder(1).encode(rows_of(ITEM, (None, FIRST))).messages()
    assert message.decode() == (
        '{"update":{"id":{"type":"Longlong","value":7,"unique":true},"sku":{"type":"Varchar","value":"A-1"},'
        '"qty":{"type":"Long","value":null,"unsigned":true},"tag":{"type":"Varchar","value":"AGH/","binary":true},'
        '"kind":{"type":"Enum","value":2},"note":{"type":"Text","value":"héllo"}}}'
    )


def test_what_is_no_row() -> None:
    ts, kind = Ts(COMMIT_TS), ActionType.DROP_TABLE
    ddl = LONG.ddl(DdlEvent(ts, Ts(ts - 1), 0, kind, kind, "drop table a;", "schema1", "table1", None), 1)
    assert json.loads(ddl.key or b"") == {"ts": ts, "type": "DDL", "schema": "schema1", "table": "table1"}
    assert json.loads(ddl.value or b"") == {"query": "drop table a;"}
    resolved, admin = LONG.resolved(ts, 1), LONG.admin(AdminSeen(5, 2, ts))
    assert (resolved.key, resolved.value) == (f'{{"ts":{ts},"type":"Resolved"}}'.encode(), None)
    assert (ddl.partition, resolved.partition, admin.partition) == (None, None, None)
    events = LongFormReader().read(sent_alone([ddl, resolved, admin]))
    assert [mark for _, mark in events.marks] == [
        DdlSeen(ts, "schema1", "table1", "drop table a;"),
        ResolvedSeen(ts),
        AdminSeen(5, 2, ts),
    ]


@given(st.lists(st.tuples(st.none() | any_row(), any_row(), st.booleans()), min_size=1, max_size=12))
def test_any_rows_read_back_as_what_they_were(pairs: list[tuple[Row | None, Row, bool]]) -> None:
    rows = rows_of(EVERY_TYPE, *((new, None) if is_delete else (old, new) for old, new, is_delete in pairs))
    events = read(rows, WHOLE)
    assert events.marks == []
    old_rows_gone = [(ts, None if new else old, new) for ts, old, new in changes(rows)]
    assert all_changes(events) == old_rows_gone


def test_a_delete_holds_its_key() -> None:
    assert all_changes(read(rows_of(ITEM, (None, SECOND), (SECOND, None)))) == [
        (COMMIT_TS, None, SECOND),
        (COMMIT_TS + 1, {"id": 7}, None),
    ]


def test_a_table_without_a_key_has_whole_deletes() -> None:
    table = table_of(column("a", ColumnType.LONG), column("b", ColumnType.VARCHAR))
    row: Row = {"a": 1, "b": None}
    assert all_changes(read(rows_of(table, (row, None)))) == [(COMMIT_TS, row, None)]


@pytest.mark.parametrize("name", NAMES[:2])
def test_rows_of_a_real_tidb_read_back_as_in_the_open_protocol(name: str) -> None:
    """Which TiCDC has written: both spellings say the same."""
    history = load(name)
    keys = {row["seq"]: (row["commit_ts"], row["key"]) for row in history.ticdc_rows()}
    messages = recorded(history, "open-protocol", "row")
    theirs = all_changes(OpenProtocolReader().read(received(*((m["key"], m["value"]) for m in messages))))
    wanted = dict(zip((keys[message["seq"]] for message in messages), theirs, strict=True))
    compared = 0
    for rows, names in batches(history):
        for key, mine in zip(names, all_changes(read(rows, WHOLE)), strict=True):
            if key in wanted:
                ts, old, new = wanted[key]
                assert mine == (ts, None if new else old, new)
                compared += 1
    assert compared == len(messages)
