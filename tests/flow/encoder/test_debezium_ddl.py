"""Debezium's messages of DDLs and watermarks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.flow.encoder.samples import BUILT_MS, COMMIT_TS, ITEM, KEY, NOT_NULL, UNSIGNED, column, table_of
from tests.flow.encoder.test_debezium import BARE, HEAD, SOURCE
from tidemill.flow.encoder import Debezium
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnFlag, ColumnInfo, TableInfo
from tidemill.model.table import ColumnType as T
from tidemill.model.ts import Ts

ID = ("id", T.LONGLONG, KEY)


def ddl(table: TableInfo | None = ITEM, action: int = ActionType.ADD_COLUMN, query: str = "", **more: Any) -> DdlEvent:
    name = table.name if table is not None else ""
    return DdlEvent(Ts(COMMIT_TS), Ts(COMMIT_TS - 1), 0, action, action, query, "shop", name, table, **more)


def change(event: DdlEvent) -> Any:
    message = BARE.ddl(event, BUILT_MS)
    assert message is not None
    (found,) = json.loads(message.value)["payload"]["tableChanges"]
    return found


def told(made: ColumnInfo, query: str = "") -> Any:
    """What the message of a DDL says of a column, but for what is null, false, or its place."""
    found = change(ddl(table_of(column(*ID), made), query=query))["table"]["columns"][1]
    assert (found.pop("name"), found.pop("position")) == (made.name, 2)
    assert found.pop("optional") is not made.is_not_null
    return {name: value for name, value in found.items() if value is not None and value is not False}


def test_a_ddl_of_a_database() -> None:
    message = BARE.ddl(ddl(None, ActionType.CREATE_SCHEMA, 'create database shop /* "<>" */'), BUILT_MS)
    assert message is not None
    assert message.key == b'{"payload":{"databaseName":"shop"}}'
    assert message.partition is None
    assert message.value.decode() == (
        '{"payload":{"source":' + SOURCE % ("shop", "") + ',"ts_ms":1700000000123,"databaseName":"shop",'
        '"schemaName":null,"ddl":"create database shop /* \\"<>\\" */","tableChanges":[]}}'
    )


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (ActionType.CREATE_TABLE, "CREATE"),
        (ActionType.CREATE_VIEW, "CREATE"),
        (ActionType.ADD_COLUMN, "ALTER"),
        (ActionType.EXCHANGE_PARTITION, "ALTER"),
        (ActionType.ALTER_TTL, "ALTER"),
        (ActionType.DROP_INDEX, "DROP"),
        (ActionType.DROP_VIEW, "DROP"),
    ],
)
def test_words_of_ddls(action: int, word: str) -> None:
    assert change(ddl(action=action))["type"] == word


@pytest.mark.parametrize("action", [ActionType.CREATE_SEQUENCE, ActionType.SET_TIFLASH_REPLICA, 9999])
def test_other_kinds_of_ddls_have_no_message(action: int) -> None:
    assert BARE.ddl(ddl(action=action), BUILT_MS) is None


def test_a_dropped_table_is_not_described() -> None:
    assert change(ddl(action=ActionType.DROP_TABLE)) == {"type": "DROP", "id": '"shop"."item"', "table": None}


def test_a_truncated_table_has_no_changes() -> None:
    message = BARE.ddl(ddl(action=ActionType.TRUNCATE_TABLE), BUILT_MS)
    assert message is not None
    assert json.loads(message.value)["payload"]["tableChanges"] == []


def test_a_renamed_table_has_both_names() -> None:
    event = ddl(action=ActionType.RENAME_TABLE, pre_schema="old", pre_table="was")
    assert change(event)["id"] == '"old"."was","shop"."item"'


def test_a_table_is_described_by_charset_key_and_columns() -> None:
    table = change(ddl())["table"]
    assert (table["defaultCharsetName"], table["primaryKeyColumnNames"]) == ("utf8mb4", ["id"])
    assert [each["name"] for each in table["columns"]] == ["id", "sku", "qty", "tag", "kind", "note"]
    assert table["comment"] is None


def test_the_key_is_the_first_unique_one_without_nulls_where_none_is_primary() -> None:
    columns = [column("a", T.LONG), column("b", T.LONG, NOT_NULL), column("c", T.LONG, NOT_NULL)]
    assert change(ddl(table_of(*columns, uniques=[["a"], ["b", "c"], ["c"]])))["table"]["primaryKeyColumnNames"] == [
        "b",
        "c",
    ]
    assert change(ddl(table_of(*columns, uniques=[["a", "b"]])))["table"]["primaryKeyColumnNames"] == []


def test_hidden_columns_keep_their_places() -> None:
    hidden = column("_V$_i_0", T.LONG, generated_expr="lower(`a`)", is_hidden=True)
    found = change(ddl(table_of(column(*ID), hidden, column("v", T.LONG))))["table"]["columns"]
    assert [(each["name"], each["position"]) for each in found] == [("id", 1), ("v", 3)]


def test_a_views_columns_have_names_only() -> None:
    view = replace(table_of(name="v"), is_view=True, view_columns=("x", "y"))
    found = change(ddl(view, ActionType.CREATE_VIEW))["table"]["columns"]
    assert [(each["name"], each["typeName"], each["position"]) for each in found] == [
        ("x", "UNSPECIFIED", 1),
        ("y", "UNSPECIFIED", 2),
    ]


BINARY, ZEROFILL = int(ColumnFlag.BINARY), int(ColumnFlag.ZEROFILL)


def kind(jdbc: int, name: str, expression: str | None = None, **more: Any) -> dict[str, Any]:
    return {"jdbcType": jdbc, "typeName": name, "typeExpression": expression or name, **more}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (column("c", T.TINY, flen=4), kind(5, "TINYINT")),
        (column("c", T.TINY, flen=1), kind(5, "TINYINT", length=1)),
        (column("c", T.TINY, UNSIGNED, flen=3), kind(5, "TINYINT UNSIGNED")),
        (column("c", T.TINY, UNSIGNED | ZEROFILL, flen=4), kind(5, "TINYINT UNSIGNED ZEROFILL")),
        (column("c", T.LONG, UNSIGNED | ZEROFILL, flen=5), kind(4, "INT UNSIGNED ZEROFILL", length=5)),
        (column("c", T.LONGLONG, UNSIGNED, flen=20), kind(-5, "BIGINT UNSIGNED")),
        (column("c", T.FLOAT, flen=12), kind(6, "FLOAT")),
        (column("c", T.DOUBLE, flen=10, decimal=0), kind(8, "DOUBLE", length=10, scale=0)),
        (column("c", T.DOUBLE, flen=15, decimal=4), kind(8, "DOUBLE", "DOUBLE(15,4)", length=15, scale=4)),
        (column("c", T.NEWDECIMAL, UNSIGNED, flen=10, decimal=2), kind(3, "DECIMAL", length=10, scale=2)),
        (column("c", T.STRING, flen=1), kind(1, "CHAR", charsetName="utf8mb4")),
        (column("c", T.STRING, BINARY, flen=8, charset="binary"), kind(-2, "BINARY", length=8)),
        (column("c", T.VARCHAR, flen=5), kind(12, "VARCHAR", charsetName="utf8mb4")),
        (column("c", T.VARCHAR, BINARY, flen=9, charset="binary"), kind(-3, "VARBINARY", length=9)),
        (column("c", T.LONGBLOB, BINARY, flen=9, charset="binary"), kind(2004, "LONGBLOB")),
        (column("c", T.BLOB, flen=65535), kind(12, "TEXT", charsetName="utf8mb4")),
        (column("c", T.BIT, flen=1), kind(-7, "BIT")),
        (column("c", T.BIT, flen=9), kind(-7, "BIT", length=9)),
        (column("c", T.JSON), kind(1111, "JSON")),
        (column("c", T.VECTOR, flen=3), kind(12, "VECTOR", "VECTOR(3)", length=3)),
        (column("c", T.YEAR, flen=4), kind(4, "YEAR", length=4)),
        (column("c", T.DATE, flen=10, decimal=0), kind(91, "DATE")),
        (column("c", T.DATETIME, decimal=3), kind(93, "DATETIME", length=3)),
        (
            column("c", T.SET, elems=("a", "b")),
            kind(1, "SET", length=3, charsetName="utf8mb4", enumValues=["'a'", "'b'"]),
        ),
        (
            column("c", T.LONG, int(ColumnFlag.AUTO_INCREMENT), flen=11),
            kind(4, "INT", autoIncremented=True, generated=True),
        ),
        (
            column("c", T.TIMESTAMP, int(ColumnFlag.ON_UPDATE_NOW), decimal=0, default="current_timestamp"),
            kind(
                2014,
                "TIMESTAMP",
                length=0,
                defaultValueExpression="1970-01-01 00:00:00",
                autoIncremented=True,
                generated=True,
            ),
        ),
        (
            column("c", T.BIT, flen=12, default="\1\2", default_bit=b"\1\2"),
            kind(-7, "BIT", length=12, defaultValueExpression="000100000010"),
        ),
        (
            column("c", T.VARCHAR, flen=9, default="x", comment="why"),
            kind(12, "VARCHAR", length=9, charsetName="utf8mb4", defaultValueExpression="x", comment="why"),
        ),
    ],
)
def test_columns_of_ddls(made: ColumnInfo, expected: dict[str, Any]) -> None:
    assert told(made) == expected


@pytest.mark.parametrize(
    ("made", "query", "expected"),
    [
        pytest.param(
            column("c", T.DATETIME, decimal=0, default="2020-01-01 00:00:00"),
            "alter table item add column C datetime default '2020-1-1'",
            kind(93, "DATETIME", defaultValueExpression="2020-1-1"),
            id="a date is as the statement has it",
        ),
        pytest.param(
            column("c", T.YEAR, flen=4, default="1999"),
            "create table item (id bigint, c year default 99)",
            kind(4, "YEAR", defaultValueExpression="99"),
            id="a year too",
        ),
        pytest.param(
            column("c", T.TIMESTAMP, decimal=2),
            "alter table item modify c timestamp(2) null default null",
            kind(2014, "TIMESTAMP", length=2),
            id="a default of null is none",
        ),
        pytest.param(
            column("c", T.LONG, flen=11, default="1", comment="why"),
            "alter table item add column c int default '01' comment 'why'",
            kind(4, "INT", defaultValueExpression="1"),
            id="of others only the comment is left out",
        ),
        pytest.param(
            column("c", T.DATE, decimal=0, default="2020-01-01"),
            "alter table item modify c date default '2020-1-1'",
            kind(91, "DATE", defaultValueExpression="2020-01-01"),
            id="a date without time is as the schema has it",
        ),
    ],
)
def test_what_a_statement_spells_out(made: ColumnInfo, query: str, expected: dict[str, Any]) -> None:
    assert told(made, query) == expected


def test_a_ddl_carries_its_schema() -> None:
    message = Debezium().ddl(ddl(), BUILT_MS)
    assert message is not None
    assert message.key is not None
    assert json.loads(message.key)["schema"]["name"] == "io.debezium.connector.mysql.SchemaChangeKey"
    assert json.loads(message.value)["schema"]["name"] == "io.debezium.connector.mysql.SchemaChangeValue"


def test_watermarks_come_with_the_extension() -> None:
    extended = replace(BARE, enable_tidb_extension=True)
    message = extended.resolved(Ts(COMMIT_TS), BUILT_MS)
    assert message is not None
    assert (message.key, message.partition, message.commit_ts) == (b'{"payload":{}}', None, COMMIT_TS)
    assert message.value.decode() == HEAD.replace('"shop"', '""').replace('"item"', '""') + '"m"}}'
    assert Debezium().resolved(Ts(COMMIT_TS), BUILT_MS) is None


def test_a_watermark_carries_its_schema() -> None:
    message = Debezium(enable_tidb_extension=True, cluster_id="a-b").resolved(Ts(COMMIT_TS), BUILT_MS)
    assert message is not None
    assert message.key is not None
    assert json.loads(message.key)["schema"] == {
        "type": "struct",
        "name": "a_b.watermark.Key",
        "optional": False,
        "fields": [],
    }
    schema = json.loads(message.value)["schema"]
    assert schema["name"] == "a_b.watermark.Envelope"
    assert [each["field"] for each in schema["fields"]] == ["source", "op", "ts_ms", "transaction"]
