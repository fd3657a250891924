"""Canal-JSON read back: what we wrote, what TiCDC and Canal itself write, and what nobody should have."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import BUILT_MS, COMMIT_TS, FIRST, ITEM, SECOND, Row, rows_of
from tests.flow.reader.plain import all_changes, changes, received, sent, sent_alone
from tests.flow.reader.rows import EVERY_TYPE, any_row
from tidemill.flow.encoder import CanalJson
from tidemill.flow.reader import Events
from tidemill.flow.reader.canal_json import CanalJsonReader
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts, compose, physical_ms

WHOLE = CanalJson(enable_tidb_extension=True)
FULL = CanalJson(enable_tidb_extension=True, content_compatible=True)


def read(protocol: CanalJson, *changed: tuple[Row | None, Row | None]) -> Events:
    return CanalJsonReader().read(sent(protocol.encoder(BUILT_MS).encode(rows_of(ITEM, *changed))))


def read_texts(*texts: str) -> Events:
    return CanalJsonReader().read(received(*((None, text.encode()) for text in texts)))


def message(**members: Any) -> str:
    """The insert of (7, "A-1") with some members of its message set otherwise; None: left out."""
    usual = {
        "id": 0, "database": "s", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT", "es": 1, "ts": 2,
        "sql": "", "sqlType": {"id": -5, "sku": 12}, "mysqlType": {"id": "bigint", "sku": "varchar"}, "old": None,
        "data": [{"id": "7", "sku": "A-1"}], "_tidb": {"commitTs": 5},
    }  # fmt: skip
    return json.dumps({name: value for name, value in {**usual, **members}.items() if value is not ...})


@given(
    st.lists(st.tuples(st.none() | any_row(), any_row(), st.booleans()), max_size=12),
    st.sampled_from([WHOLE, FULL, CanalJson(enable_tidb_extension=True, only_output_updated_columns=True)]),
)
def test_any_rows_read_back_as_what_they_were(pairs: list[tuple[Row | None, Row, bool]], protocol: CanalJson) -> None:
    changed = [(new, None) if is_delete else (old, new) for old, new, is_delete in pairs]
    rows = rows_of(EVERY_TYPE, *changed)
    events = CanalJsonReader().read(sent(protocol.encoder(BUILT_MS).encode(rows)))
    assert events.marks == []
    assert all_changes(events) == changes(rows)
    assert len(events.rows) == bool(changed)


def test_without_the_extension_a_commit_ts_is_that_of_its_millisecond() -> None:
    ts = compose(physical_ms(COMMIT_TS))
    assert all_changes(read(CanalJson(), (FIRST, SECOND))) == [(ts, FIRST, SECOND)]


def test_types_may_be_written_in_full() -> None:
    (seen,) = read(FULL, (None, FIRST)).rows
    columns = {column.name: column for column in seen.rows.table.columns}
    assert columns["kind"].elems == ("a", "b")
    assert (columns["sku"].flen, columns["qty"].is_unsigned, columns["tag"].is_binary) == (16, True, True)
    assert [column.name for column in seen.rows.table.primary_key] == ["id"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("decimal(10,2) unsigned", (ColumnType.NEWDECIMAL, 10, 2, True)),
        ("datetime(6)", (ColumnType.DATETIME, -1, 6, False)),
        ("int unsigned zerofill", (ColumnType.LONG, -1, -1, True)),
        ("mediumtext", (ColumnType.MEDIUMBLOB, -1, -1, False)),
    ],
)
def test_words_of_types(word: str, told: tuple[Any, ...]) -> None:
    events = read_texts(message(data=[{"c": None}], mysqlType={"c": word}))
    (column,) = events.rows[0].rows.table.columns
    assert (column.type, column.flen, column.decimal, column.is_unsigned) == told


def test_elements_with_quotes_and_commas() -> None:
    events = read_texts(message(data=[{"c": "1"}], mysqlType={"c": "enum('a,b','it''s',')')"}))
    assert events.rows[0].rows.table.columns[0].elems == ("a,b", "it's", ")")


def test_a_delete_is_in_data_and_may_hold_its_key_alone() -> None:
    assert all_changes(read(WHOLE, (FIRST, None))) == [(COMMIT_TS, FIRST, None)]
    by_key = CanalJson(enable_tidb_extension=True, delete_only_output_handle_key_columns=True)
    assert all_changes(read(by_key, (FIRST, None))) == [(COMMIT_TS, {"id": 7}, None)]
    older = message(type="DELETE", old=[{"id": "7", "sku": "A-1"}])
    assert all_changes(read_texts(older)) == [(5, {"id": 7, "sku": "A-1"}, None)]


@pytest.mark.parametrize(
    ("extension", "told"),
    [
        ({"commitTs": 5, "onlyHandleKey": True}, (True, "")),
        ({"commitTs": 5, "claimCheckLocation": "s3://b/x.json"}, (True, "s3://b/x.json")),
        ({"commitTs": 5, "rowkey": "AAA="}, (False, "")),
    ],
)
def test_rows_that_are_not_whole_say_so(extension: dict[str, Any], told: tuple[bool, str]) -> None:
    events = read_texts(message(_tidb=extension, pkNames=[], data=[{"id": "7"}], mysqlType={"id": "bigint"}))
    (seen,) = events.rows
    assert (seen.is_partial, seen.claim) == told
    assert [column.name for column in seen.rows.table.handle_key] == (["id"] if told[0] else [])


@given(st.lists(any_row(), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_members_may_be_in_any_order(rows: list[Row], chance: random.Random) -> None:
    batch = rows_of(EVERY_TYPE, *((None, row) for row in rows))
    messages = []
    for text in WHOLE.encoder(BUILT_MS).encode(batch).messages():
        content = json.loads(text)
        for name in chance.choice((["mysqlType"], ["mysqlType", "sqlType"], [])):
            members = list(content[name].items())
            chance.shuffle(members)
            content[name] = dict(members)
        whole = list(content.items())
        if chance.random() < 0.2:
            chance.shuffle(whole)
        messages.append((None, json.dumps(dict(whole), ensure_ascii=chance.random() < 0.5).encode()))
    events = CanalJsonReader().read(received(*messages))
    assert events.marks == []
    assert all_changes(events) == changes(batch)
    assert len(events.rows) == 1


def test_ddls_and_watermarks() -> None:
    event = DdlEvent(
        Ts(COMMIT_TS), Ts(7), 0, ActionType.ADD_COLUMN, ActionType.ADD_COLUMN, "alter é", "shop", "item", ITEM
    )
    watermark = WHOLE.resolved(Ts(9), 0)
    assert watermark is not None
    events = CanalJsonReader().read(sent_alone([WHOLE.ddl(event, 0), watermark, CanalJson().ddl(event, 0)]))
    at_least = compose(physical_ms(COMMIT_TS))
    assert events.marks == [
        (0, DdlSeen(Ts(COMMIT_TS), "shop", "item", "alter é")),
        (1, ResolvedSeen(Ts(9))),
        (2, DdlSeen(at_least, "shop", "item", "alter é")),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON"),
        ("{}", "its members are not those of the protocol"),
        (message(type="REPLACE"), "none of INSERT, UPDATE and DELETE"),
        (message(type="TIDB_WATERMARK", _tidb=...), "a watermark without its ts"),
        (message(_tidb={"commitTs": -1}), "its ts is no whole number"),
        (message(_tidb=..., es=1 << 50), "its ts is no whole number"),
        (message(_tidb={"watermarkTs": 1}), "its members are not those of the protocol"),
        (message(mysqlType={"id": "bigint", "sku": "varchat"}), "column sku is of an unknown type"),
        (message(mysqlType={"id": "bigint"}), "does not tell the types"),
        (message(mysqlType=None), "does not tell the types"),
        (message(data=[{"id": "x", "sku": "A-1"}]), "a row of table s.t cannot be read: a value is not of"),
        (message(data=[{"id": ["7"], "sku": "A-1"}]), "neither a string nor null"),
        (message(data=[{}]), "it holds no columns"),
        (message(data=[{"id": "7"}, {"id": "8"}]), "its members are not those of the protocol"),
        (message(type="UPDATE", old=[{"other": "1"}]), "old row has some that its new one has not"),
        (message(isDdl=True, sql=None), "a DDL whose query is no string"),
        (message(isDdl=True, sql=...), "a DDL without its query"),
        (message(database=5), "a name is no string"),
    ],
)
def test_what_is_no_message_is_named_and_does_not_stop_the_others(text: str, why: str) -> None:
    events = read_texts(message(), text, message())
    assert all_changes(events) == [(5, None, {"id": 7, "sku": "A-1"})] * 2
    ((place, mark),) = events.marks
    assert place == 1
    assert isinstance(mark, Unreadable)
    assert why in mark.why


def test_a_message_without_a_value_is_unreadable() -> None:
    ((_, mark),) = CanalJsonReader().read(received((None, None))).marks
    assert isinstance(mark, Unreadable)
