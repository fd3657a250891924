"""Debezium's messages: the worked examples, every type and edge value, options."""

import base64
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import (
    BUILT_MS,
    FIRST,
    ITEM,
    KEY,
    NOT_NULL,
    SECOND,
    UNSIGNED,
    column,
    rows_of,
    table_of,
)
from tidemill.flow.encoder import FOR_QUEUES, Debezium, read_protocol
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnInfo, ColumnType, IndexColumn, IndexInfo

BARE = Debezium(disable_schema=True)
SOURCE = (
    '{"version":"2.4.0.Final","connector":"TiCDC","name":"default","ts_ms":1700000000000,"snapshot":"false",'
    '"db":"%s","table":"%s","server_id":0,"gtid":null,"file":"","pos":0,"row":0,"thread":0,"query":null,'
    '"commit_ts":445644800000000005,"cluster_id":"default"}'
)
HEAD = '{"payload":{"source":' + SOURCE % ("shop", "item") + ',"ts_ms":1700000000123,"transaction":null,"op":'
OLD = '{"id":7,"sku":"A-1","qty":null,"tag":"AGH/","kind":"b","note":"héllo"}'
NEW = OLD.replace("null", "5")
ID = ("id", ColumnType.LONGLONG, KEY)


def encode(protocol: Debezium, rows: RowBatch) -> tuple[str, str]:
    encoded = protocol.encoder(BUILT_MS).encode(rows)
    ((key,), (value,)) = encoded.message_keys() or [], encoded.messages()
    return key.decode(), value.decode()


def shown(made: ColumnInfo, value: Any, protocol: Debezium = BARE) -> Any:
    """What a value becomes."""
    table = table_of(column(*ID), made)
    row = {"id": 1, made.name: value}
    return json.loads(encode(protocol, rows_of(table, (None, row)))[1])["payload"]["after"][made.name]


def field(made: ColumnInfo, protocol: Debezium | None = None) -> dict[str, Any]:
    """What the schema says of a column, without its name."""
    table = table_of(column(*ID), made)
    row = {"id": 1, made.name: None}
    message = json.loads(encode(protocol or Debezium(), rows_of(table, (None, row)))[1])
    before, after = message["schema"]["fields"][:2]
    assert before["fields"] == after["fields"]
    found: dict[str, Any] = after["fields"][1]
    assert found.pop("field") == made.name
    return found


@pytest.mark.parametrize(
    ("protocol", "change", "expected"),
    [
        pytest.param(BARE, (None, FIRST), f'"c","before":null,"after":{OLD}', id="insert"),
        pytest.param(BARE, (FIRST, SECOND), f'"u","before":{OLD},"after":{NEW}', id="update"),
        pytest.param(BARE, (SECOND, None), f'"d","after":null,"before":{NEW}', id="delete"),
        pytest.param(
            replace(BARE, output_old_value=False), (FIRST, SECOND), f'"u","after":{NEW}', id="update without old row"
        ),
    ],
)
def test_messages(protocol: Debezium, change: Any, expected: str) -> None:
    assert encode(protocol, rows_of(ITEM, change)) == ('{"payload":{"id":7}}', HEAD + expected + "}}")


def test_the_schema_is_beside_the_payload() -> None:
    key, value = encode(Debezium(), rows_of(ITEM, (None, FIRST)))
    assert key == (
        '{"payload":{"id":7},"schema":{"type":"struct","name":"default.shop.item.Key","optional":false,'
        '"fields":[{"type":"int64","optional":false,"field":"id"}]}}'
    )
    bare = encode(BARE, rows_of(ITEM, (None, FIRST)))[1]
    assert value.startswith(bare[:-1] + ',"schema":{"type":"struct","optional":false,"name":')
    schema = json.loads(value)["schema"]
    assert schema["name"] == "default.shop.item.Envelope"
    assert [each["field"] for each in schema["fields"]] == ["before", "after", "source", "op", "ts_ms", "transaction"]
    assert {each.get("name") for each in schema["fields"][:2]} == {"default.shop.item.Value"}


def test_the_cluster_names_the_source_and_the_schemas() -> None:
    table = table_of(column(*ID), schema="1st-é", name="a.b c")
    key, value = encode(Debezium(cluster_id="my cluster"), rows_of(table, (None, {"id": 1})))
    assert json.loads(key)["schema"]["name"] == "my_cluster._1st__.a.b_c.Key"
    source = json.loads(value)["payload"]["source"]
    assert (source["name"], source["cluster_id"], source["db"], source["table"]) == (
        "my cluster",
        "my cluster",
        "1st-é",
        "a.b c",
    )


T = ColumnType
ENUM = column("c", T.ENUM, elems=("a", "b,c", "it's"))
SET = column("c", T.SET, elems=("x", 'y"', "z"))


@pytest.mark.parametrize(
    ("made", "value", "expected", "schema"),
    [
        (column("c", T.TINY), -128, -128, {"type": "int16"}),
        (column("c", T.TINY, UNSIGNED), 255, 255, {"type": "int16"}),
        (column("c", T.SHORT), -32768, -32768, {"type": "int16"}),
        (column("c", T.SHORT, UNSIGNED), 65535, 65535, {"type": "int32"}),
        (column("c", T.INT24, UNSIGNED), 16777215, 16777215, {"type": "int32"}),
        (column("c", T.LONG), -(2**31), -(2**31), {"type": "int32"}),
        (column("c", T.LONG, UNSIGNED), 2**32 - 1, 2**32 - 1, {"type": "int64"}),
        (column("c", T.LONGLONG), 2**63 - 1, 2**63 - 1, {"type": "int64"}),
        (column("c", T.LONGLONG, UNSIGNED), 2**64 - 1, -1, {"type": "int64"}),
        (column("c", T.LONGLONG, UNSIGNED), 2**63, -(2**63), {"type": "int64"}),
        (column("c", T.FLOAT), 0.1, 0.1, {"type": "float"}),
        (column("c", T.FLOAT, decimal=3), 1.5, 1.5, {"type": "double"}),
        (column("c", T.DOUBLE), 1e-7, 1e-7, {"type": "double"}),
        (column("c", T.NEWDECIMAL), "-0.1234567890123456789", -0.12345678901234568, {"type": "double"}),
        (column("c", T.YEAR), 0, 0, {"type": "int32", "name": "io.debezium.time.Year", "version": 1}),
        (column("c", T.BIT, flen=1), 1, True, {"type": "boolean"}),
        (column("c", T.BIT, flen=1), 0, False, {"type": "boolean"}),
        (column("c", T.BIT), 1, True, {"type": "boolean"}),
        (
            column("c", T.BIT, flen=10),
            0x2AA,
            "qgI=",
            {"type": "bytes", "name": "io.debezium.data.Bits", "version": 1, "parameters": {"length": "10"}},
        ),
        (column("c", T.VARCHAR), '<"\\\u2028\n>', '<"\\\u2028\n>', {"type": "string"}),
        (column("c", T.BLOB, charset="binary"), b"\0a\xff", "AGH/", {"type": "string"}),
        (column("c", T.STRING, charset="binary"), b"", "", {"type": "string"}),
        (
            ENUM,
            2,
            "b,c",
            {
                "type": "string",
                "name": "io.debezium.data.Enum",
                "version": 1,
                "parameters": {"allowed": "a,b\\,c,it's"},
            },
        ),
        (ENUM, 0, "", None),
        (ENUM, 9, "", None),
        (
            SET,
            6,
            'y",z',
            {"type": "string", "name": "io.debezium.data.EnumSet", "version": 1, "parameters": {"allowed": 'x,y",z'}},
        ),
        (SET, 0, "", None),
        (SET, 8, "", None),
        (column("c", T.DATE), "2024-02-29", 19782, {"type": "int32", "name": "io.debezium.time.Date", "version": 1}),
        (column("c", T.DATE), "1000-01-01", -354285, None),
        (column("c", T.DATE), "0018-01-01", 17532, None),
        (column("c", T.DATE), "2024-00-00", None, None),
        (column("c", T.DATE, NOT_NULL), "0000-00-00", 0, None),
        (
            column("c", T.DATETIME, decimal=0),
            "1000-01-01 00:00:00",
            -30610224000000,
            {"type": "int64", "name": "io.debezium.time.Timestamp", "version": 1},
        ),
        (column("c", T.DATETIME, decimal=3), "1969-12-31 23:59:59.999", -1, None),
        (
            column("c", T.DATETIME, decimal=4),
            "9999-12-31 23:59:59.9999",
            253402300799999900,
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
        ),
        (column("c", T.DATETIME, decimal=0), "2024-01-00 00:00:00", None, None),
        (column("c", T.DATETIME, NOT_NULL, decimal=0), "0000-00-00 00:00:00", 0, None),
        (
            column("c", T.TIMESTAMP, decimal=0),
            "2024-07-01 08:00:00",
            "2024-07-01T08:00:00Z",
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
        ),
        (column("c", T.TIMESTAMP, decimal=6), "1970-01-01 00:00:01.000001", "1970-01-01T00:00:01.000001Z", None),
        (column("c", T.TIMESTAMP, decimal=3), "0000-00-00 00:00:00.000", "1970-01-01T00:00:00Z", None),
        (
            column("c", T.DURATION, decimal=3),
            "-838:59:58.999",
            -3020398999000,
            {"type": "int64", "name": "io.debezium.time.MicroTime", "version": 1},
        ),
        (
            column("c", T.JSON),
            '{"k": "é"}',
            '{"k": "é"}',
            {"type": "string", "name": "io.debezium.data.Json", "version": 1},
        ),
        (column("c", T.VECTOR), "[1,2.5]", "[1,2.5]", {"type": "string", "name": "io.debezium.data.TiDBVectorFloat32"}),
    ],
)
def test_values_and_their_fields(made: ColumnInfo, value: Any, expected: Any, schema: dict[str, Any] | None) -> None:
    assert shown(made, value) == expected
    assert type(shown(made, value)) is type(expected)
    if not made.is_not_null:
        assert shown(made, None) is None
    if schema is not None:
        assert field(made) == {**schema, "optional": True}


@pytest.mark.parametrize(
    ("made", "null", "default"),
    [
        (column("c", T.LONG, default="7"), 7, 7),
        (column("c", T.LONGLONG, UNSIGNED, default="18446744073709551615"), -1, 18446744073709552000),
        (column("c", T.LONGLONG, default="nextval(`a`.`s`)"), None, None),
        (column("c", T.NEWDECIMAL, default="1.23"), 1.23, 1.23),
        (column("c", T.DOUBLE, default="1e-7"), 1e-7, 1e-7),
        (column("c", T.VARCHAR, default='say "x"'), 'say "x"', 'say "x"'),
        (column("c", T.VARCHAR, default="uuid()"), "uuid()", "uuid()"),
        (column("c", T.VARCHAR, default="ab", charset="binary"), "YWI=", "ab"),
        (column("c", T.ENUM, elems=("p", "q"), default="q"), "q", "q"),
        (column("c", T.JSON, default="json_array(1)"), "json_array(1)", "json_array(1)"),
        (column("c", T.BIT, flen=1, default="\1", default_bit=b"\1"), True, True),
        (column("c", T.BIT, flen=12, default="\1\2", default_bit=b"\1\2"), "AgE=", "AgE="),
        (column("c", T.YEAR, default="2020"), 2020, 2020),
        (column("c", T.YEAR, default="0"), 0, 2000),
        (column("c", T.YEAR, default="99"), 99, 1999),
        (column("c", T.DATE, default="2020-02-02"), 18294, 18294),
        (column("c", T.DATE, default="0000-00-00"), None, None),
        (column("c", T.DATETIME, decimal=0, default="2020-02-02 02:02:02"), 1580608922000, 1580608922000),
        (column("c", T.DATETIME, decimal=6, default="CURRENT_TIMESTAMP"), 0, 0),
        (column("c", T.TIMESTAMP, decimal=0, default="CURRENT_TIMESTAMP"), None, None),
        (
            column("c", T.TIMESTAMP, decimal=2, default="2020-01-01 00:00:00.50"),
            "2020-01-01T00:00:00.50Z",
            "2020-01-01T00:00:00.50Z",
        ),
        (column("c", T.TIMESTAMP, decimal=0, default="0000-00-00 00:00:00"), None, None),
        (column("c", T.DURATION, decimal=0, default="-01:00:00"), -3600000000, -3600000000),
    ],
)
def test_null_is_the_default_where_there_is_one(made: ColumnInfo, null: Any, default: Any) -> None:
    assert shown(made, None) == null
    assert field(made).get("default") == default
    assert shown(made, None, replace(BARE, keep_nulls=True)) is None


@pytest.mark.parametrize(
    ("made", "default"),
    [
        (column("c", T.DATE, NOT_NULL, default="0000-00-00"), 0),
        (column("c", T.DATETIME, NOT_NULL, decimal=0, default="0000-00-00 00:00:00"), 0),
        (column("c", T.TIMESTAMP, NOT_NULL, decimal=0, default="CURRENT_TIMESTAMP"), "1970-01-01T00:00:00Z"),
        (column("c", T.TIMESTAMP, NOT_NULL, decimal=0, default="0000-00-00 00:00:00"), "1970-01-01T00:00:00Z"),
    ],
)
def test_a_default_that_is_no_moment_is_zero_where_null_is_not_allowed(made: ColumnInfo, default: Any) -> None:
    message = json.loads(encode(Debezium(), rows_of(table_of(column(*ID), made), (None, {"id": 1, "c": ""})))[1])
    assert message["schema"]["fields"][0]["fields"][1]["default"] == default


def test_what_is_no_date_is_null_and_null_the_default() -> None:
    table = table_of(column(*ID), column("c", T.DATE, default="1970-01-03"))
    rows = rows_of(table, *((None, {"id": 1, "c": text}) for text in ("2024-00-00", None, "1970-01-02")))
    messages = BARE.encoder(BUILT_MS).encode(rows).messages()
    assert [json.loads(message)["payload"]["after"]["c"] for message in messages] == [None, 2, 1]


@pytest.mark.parametrize(
    ("zone", "text", "expected"),
    [
        ("+08:00", "2024-07-01 08:00:00", "2024-07-01T00:00:00Z"),
        ("America/New_York", "2024-03-10 01:59:59", "2024-03-10T06:59:59Z"),
        ("America/New_York", "2024-07-01 00:00:00", "2024-07-01T04:00:00Z"),
        ("Europe/Berlin", "2024-12-31 23:30:00", "2024-12-31T22:30:00Z"),
        ("Asia/Kolkata", "1970-01-01 05:30:01", "1970-01-01T00:00:01Z"),
    ],
)
def test_timestamps_are_in_utc_whatever_the_zone(zone: str, text: str, expected: str) -> None:
    assert shown(column("c", T.TIMESTAMP, decimal=0), text, replace(BARE, time_zone=zone)) == expected


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (column("c", T.LONGLONG, UNSIGNED), "bigint unsigned"),
        (column("c", T.FLOAT, UNSIGNED), "float unsigned"),
        (column("c", T.NEWDECIMAL, UNSIGNED), "decimal"),
        (column("c", T.YEAR, UNSIGNED), "year"),
        (column("c", T.BIT, UNSIGNED, flen=3), "bit"),
        (column("c", T.BLOB, charset="binary"), "blob"),
        (column("c", T.BLOB), "text"),
        (column("c", T.ENUM, elems=("a",)), "enum"),
        (column("c", T.VECTOR), "vector"),
    ],
)
def test_with_the_extension_fields_begin_with_tidbs_type(made: ColumnInfo, word: str) -> None:
    found = field(made, Debezium(enable_tidb_extension=True))
    assert next(iter(found.items())) == ("tidb_type", word)
    assert "tidb_type" not in field(made)


def test_keys_hold_the_columns_of_the_handle_key_in_table_order() -> None:
    primary = IndexInfo(1, "PRIMARY", (IndexColumn(2, -1), IndexColumn(0, -1)), True, True)
    columns = [column(name, T.LONG, KEY if name != "v" else 0) for name in ("a", "v", "b")]
    table = replace(table_of(*columns, pk_is_handle=False), indexes=(primary,), is_common_handle=True)
    row = {"a": 1, "v": 2, "b": 3}
    assert encode(BARE, rows_of(table, (row, None)))[0] == '{"payload":{"a":1,"b":3}}'


def test_a_table_without_a_key_has_empty_keys() -> None:
    table = table_of(column("a", T.LONG))
    assert encode(BARE, rows_of(table, (None, {"a": 1})))[0] == '{"payload":{}}'
    assert json.loads(encode(Debezium(), rows_of(table, (None, {"a": 1})))[0])["schema"]["fields"] == []


def test_virtual_columns_are_in_the_schema_only_and_last() -> None:
    virtual = column("g", T.LONG, generated_expr="`v` * 2")
    table = table_of(column(*ID), virtual, column("v", T.LONG))
    message = json.loads(encode(Debezium(), rows_of(table, (None, {"id": 1, "v": 2})))[1])
    assert list(message["payload"]["after"]) == ["id", "v"]
    assert [each["field"] for each in message["schema"]["fields"][1]["fields"]] == ["id", "v", "g"]


def test_names_are_escaped() -> None:
    table = table_of(column('q"\\\n<数据', T.LONG, KEY), schema='a"&b', name="we`ird")
    key, value = encode(Debezium(), rows_of(table, (None, {'q"\\\n<数据': 1})))
    assert json.loads(key)["payload"] == {'q"\\\n<数据': 1}
    assert '"db":"a\\"&b","table":"we`ird"' in value


def test_partitions_and_order_are_kept() -> None:
    rows = rows_of(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None))
    partitions = np.array([2, 0, 2], np.int32)
    encoded = BARE.encoder(BUILT_MS).encode(rows, partitions)
    assert encoded.partitions is partitions
    assert [json.loads(message)["payload"]["op"] for message in encoded.messages()] == ["c", "u", "d"]
    assert encoded.message_keys() == [b'{"payload":{"id":7}}'] * 3


def test_an_encoder_follows_the_table() -> None:
    encoder, other = BARE.encoder(BUILT_MS), table_of(column("x", T.LONG, KEY), name="other")
    encoder.encode(rows_of(ITEM, (None, FIRST)))
    (message,) = encoder.encode(rows_of(other, (None, {"x": 3}))).messages()
    assert json.loads(message)["payload"]["after"] == {"x": 3}


def test_no_rows_give_no_messages() -> None:
    encoded = BARE.encoder(BUILT_MS).encode(rows_of(ITEM))
    assert (encoded.messages(), encoded.message_keys()) == ([], [])


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(), st.none() | st.binary())))
def test_any_row_is_read_back(values: list[tuple[int, str | None, bytes | None]]) -> None:
    table = table_of(column(*ID), column("t", T.VARCHAR), column("b", T.BLOB, charset="binary"))
    rows = [{"id": i, "t": t, "b": b} for i, t, b in values]
    encoded = BARE.encoder(BUILT_MS).encode(rows_of(table, *((None, row) for row in rows)))
    for message, row in zip(encoded.messages(), rows, strict=True):
        after = json.loads(message)["payload"]["after"]
        after["b"] = None if after["b"] is None else base64.b64decode(after["b"])
        assert after == row


def test_the_protocol_travels() -> None:
    assert pickle.loads(pickle.dumps(Debezium(cluster_id="x"))) == Debezium(cluster_id="x")


def test_options_are_read_from_the_sink_uri() -> None:
    given_ = {
        "enable-tidb-extension": "true",
        "debezium-disable-schema": "true",
        "debezium-output-old-value": "false",
        "debezium-keep-nulls": "true",
    }
    assert read_protocol(FOR_QUEUES, "debezium", given_) == Debezium(True, True, False, True)
