"""Avro's messages: read back by fastavro with the schema in the registry, and a few of them byte for byte."""

import io
import json
import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import (
    COMMIT_TS,
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
from tidemill.columnar.encoded import Encoded
from tidemill.errors import InvariantError, SinkError, SinkUnavailableError, SinkUriError
from tidemill.flow.encoder import FOR_QUEUES, Avro, read_protocol
from tidemill.flow.encoder.port import Message, TopicProtocol
from tidemill.flow.encoder.schema_registry import forget
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnInfo, TableInfo
from tidemill.model.table import ColumnType as T
from tidemill.model.ts import Ts
from tidemill.testing.schema_registry import StandInRegistry

ID = ("id", T.LONGLONG, KEY)
Read = tuple[Any, Any]  # key and value


@pytest.fixture(scope="module")
def registry() -> Iterator[StandInRegistry]:
    forget()
    with StandInRegistry() as server:
        yield server
    forget()


@pytest.fixture
def avro(registry: StandInRegistry) -> Avro:
    return Avro(registry.uri, topic="shop.item")


def read(registry: StandInRegistry, message: bytes) -> Any:
    """As any reader does: by the number in front."""
    magic, number = struct.unpack_from(">BI", message)
    assert magic == 0
    body = io.BytesIO(message[5:])
    found = fastavro.schemaless_reader(body, json.loads(registry.texts[number]), None)
    assert body.read() == b""
    return found


def messages(registry: StandInRegistry, encoded: Encoded) -> list[Read]:
    keys = encoded.message_keys() or [None] * len(encoded)
    assert encoded.has_value is not None
    return [
        (None if key is None else read(registry, key), read(registry, value) if has_value else None)
        for key, value, has_value in zip(keys, encoded.messages(), encoded.has_value.tolist(), strict=True)
    ]


def encode(registry: StandInRegistry, protocol: Avro, rows: RowBatch) -> list[Read]:
    return messages(registry, protocol.encoder(0).encode(rows))


def schemas(registry: StandInRegistry, protocol: Avro, table: TableInfo) -> tuple[Any, Any]:
    """Of key and value, as they are registered for a table."""
    encoded = protocol.encoder(0).encode(rows_of(table, (None, _row(table))))
    numbers = [
        struct.unpack_from(">I", data, 1)[0] for data in (encoded.message_keys() or [b""])[:1] + encoded.messages()
    ]
    key, value = (json.loads(registry.texts[number]) for number in numbers)
    return key, value


def _row(table: TableInfo) -> dict[str, Any]:
    return {each.name: 1 if each.name == "id" else None for each in table.stored_columns}


def shown(registry: StandInRegistry, protocol: Avro, made: ColumnInfo, value: Any) -> Any:
    table = table_of(column(*ID), made)
    ((_, found),) = encode(registry, protocol, rows_of(table, (None, {"id": 1, made.name: value})))
    return found[made.name]


def test_a_key_and_a_value_byte_for_byte(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(column(*ID), column("qty", T.LONG, UNSIGNED), column("s", T.VARCHAR, NOT_NULL), name="bytes")
    rows = rows_of(table, (None, {"id": 7, "qty": None, "s": "hé"}), (None, {"id": -1, "qty": 300, "s": ""}))
    extended = replace(avro, enable_tidb_extension=True)
    encoded = extended.encoder(0).encode(rows)
    keys, values = encoded.message_keys(), encoded.messages()
    key, value = (struct.pack(">BI", 0, number) for number in (len(registry.texts) - 1, len(registry.texts)))
    ts, ms = (fast_long(number) for number in (COMMIT_TS, COMMIT_TS >> 18))
    second = fast_long(COMMIT_TS + 1)
    assert keys == [key + b"\x0e", key + b"\x01"]
    assert values == [
        value + b"\x0e" + b"\0" + b"\x06h\xc3\xa9" + b"\x02c" + ts + ms,
        value + b"\x01" + b"\x02\xd8\x04" + b"\0" + b"\x02c" + second + ms,
    ]


def fast_long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, {"type": "long"}, number)
    return out.getvalue()


def test_the_example_schemas_of_ticdc(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(column(*ID), column("qty", T.LONG, UNSIGNED))
    extended = replace(avro, enable_tidb_extension=True).for_topic("example")
    extended.encoder(0).encode(rows_of(table, (None, {"id": 7, "qty": 1})))
    identity = '{"name":"id","type":{"type":"long","connect.parameters":{"tidb_type":"BIGINT"}}}'
    head = '{"type":"record","name":"item","namespace":"default.shop","fields":['
    assert registry.texts[registry.schemas["example-key"][0]] == head + identity + "]}"
    assert registry.texts[registry.schemas["example-value"][0]] == (
        head + identity + ',{"default":null,"name":"qty","type":["null",{"type":"long","connect.parameters":'
        '{"tidb_type":"INT UNSIGNED"}}]},{"default":"","name":"_tidb_op","type":"string"},'
        '{"default":0,"name":"_tidb_commit_ts","type":"long"},'
        '{"default":0,"name":"_tidb_commit_physical_time","type":"long"}]}'
    )


def test_inserts_updates_and_deletes(avro: Avro, registry: StandInRegistry) -> None:
    rows = rows_of(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None))
    first = {**FIRST, "kind": "b"}
    assert encode(registry, avro, rows) == [({"id": 7}, first), ({"id": 7}, {**first, "qty": 5}), ({"id": 7}, None)]


def test_the_extension_tells_the_change(avro: Avro, registry: StandInRegistry) -> None:
    rows = rows_of(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None))
    found = encode(registry, replace(avro, enable_tidb_extension=True), rows)
    more = [None if value is None else list(value.items())[-3:] for _, value in found]
    assert more == [
        [("_tidb_op", op), ("_tidb_commit_ts", COMMIT_TS + at), ("_tidb_commit_physical_time", 1700000000000)]
        for at, op in enumerate("cu")
    ] + [None]


PRECISE = {"type": "bytes", "logicalType": "decimal"}


@pytest.mark.parametrize(
    ("made", "value", "expected", "schema"),
    [
        (column("c", T.TINY), -128, -128, {"type": "int", "tidb_type": "INT"}),
        (column("c", T.SHORT, UNSIGNED), 65535, 65535, {"type": "int", "tidb_type": "INT UNSIGNED"}),
        (column("c", T.INT24), 8388607, 8388607, {"type": "int", "tidb_type": "INT"}),
        (column("c", T.LONG), -(2**31), -(2**31), {"type": "int", "tidb_type": "INT"}),
        (column("c", T.LONG, UNSIGNED), 2**32 - 1, 2**32 - 1, {"type": "long", "tidb_type": "INT UNSIGNED"}),
        (column("c", T.LONGLONG), -(2**63), -(2**63), {"type": "long", "tidb_type": "BIGINT"}),
        (column("c", T.LONGLONG, UNSIGNED), 2**64 - 1, -1, {"type": "long", "tidb_type": "BIGINT UNSIGNED"}),
        (column("c", T.YEAR), 2155, 2155, {"type": "int", "tidb_type": "YEAR"}),
        (column("c", T.FLOAT), 0.5, 0.5, {"type": "float", "tidb_type": "FLOAT"}),
        (column("c", T.FLOAT), float("inf"), 0.0, None),
        (column("c", T.DOUBLE, UNSIGNED), 1e308, 1e308, {"type": "double", "tidb_type": "DOUBLE"}),
        (column("c", T.DOUBLE), float("nan"), 0.0, None),
        (
            column("c", T.NEWDECIMAL, flen=10, decimal=2),
            "-12345678.99",
            Decimal("-12345678.99"),
            {**PRECISE, "tidb_type": "DECIMAL", "precision": 10, "scale": 2},
        ),
        (
            column("c", T.NEWDECIMAL),
            "1234567890",
            Decimal(1234567890),
            {**PRECISE, "tidb_type": "DECIMAL", "precision": 10, "scale": 0},
        ),
        (column("c", T.BIT, flen=10), 0x2AA, b"\x02\xaa", {"type": "bytes", "length": "10", "tidb_type": "BIT"}),
        (column("c", T.BIT, flen=64), 2**64 - 1, b"\xff" * 8, None),
        (column("c", T.BIT, flen=64), 1 << 56, b"\x01" + b"\0" * 7, None),
        (column("c", T.BIT, flen=64), 0, b"\0", None),
        (column("c", T.VARCHAR), "数据 <&>", "数据 <&>", {"type": "string", "tidb_type": "TEXT"}),
        (column("c", T.BLOB), "", "", {"type": "string", "tidb_type": "TEXT"}),
        (column("c", T.STRING, charset="binary"), b"\0\xff", b"\0\xff", {"type": "bytes", "tidb_type": "BLOB"}),
        (
            column("c", T.ENUM, elems=("a", "b,c")),
            2,
            "b,c",
            {"type": "string", "allowed": "a,b\\,c", "tidb_type": "ENUM"},
        ),
        (column("c", T.ENUM, elems=("a",)), 0, "", None),
        (
            column("c", T.SET, elems=("x", "y", "z")),
            5,
            "x,z",
            {"type": "string", "allowed": "x,y,z", "tidb_type": "SET"},
        ),
        (column("c", T.JSON), '{"a": 1}', '{"a": 1}', {"type": "string", "tidb_type": "JSON"}),
        (column("c", T.DATE), "0000-00-00", "0000-00-00", {"type": "string", "tidb_type": "DATE"}),
        (
            column("c", T.DATETIME),
            "2024-01-00 00:00:00",
            "2024-01-00 00:00:00",
            {"type": "string", "tidb_type": "DATETIME"},
        ),
        (
            column("c", T.TIMESTAMP),
            "2024-01-01 00:00:00",
            "2024-01-01 00:00:00",
            {"type": "string", "tidb_type": "TIMESTAMP"},
        ),
        (column("c", T.DURATION), "-838:59:59", "-838:59:59", {"type": "string", "tidb_type": "TIME"}),
        (column("c", T.VECTOR), "[1,2]", "[1,2]", {"type": "string", "tidb_type": "TiDBVECTORFloat32"}),
    ],
)
def test_values_and_their_types(
    avro: Avro, registry: StandInRegistry, made: ColumnInfo, value: Any, expected: Any, schema: dict[str, Any] | None
) -> None:
    assert shown(registry, avro, made, value) == expected
    assert shown(registry, avro, replace(made, flag=made.flag | NOT_NULL), value) == expected
    assert shown(registry, avro, made, None) is None
    if schema is not None:
        field = schemas(registry, avro, table_of(column(*ID), made))[1]["fields"][1]
        assert (field["name"], field["default"], field["type"][0]) == ("c", None, "null")
        parameters = {name: schema[name] for name in ("allowed", "length", "tidb_type") if name in schema}
        rest = {name: member for name, member in schema.items() if name not in parameters}
        assert field["type"][1] == {**rest, "connect.parameters": parameters}


def test_numbers_may_be_strings(avro: Avro, registry: StandInRegistry) -> None:
    stringly = replace(avro, decimal_handling_mode="string", bigint_unsigned_handling_mode="string")
    assert shown(registry, stringly, column("c", T.NEWDECIMAL, flen=65, decimal=30), "-0.10") == "-0.10"
    assert shown(registry, stringly, column("c", T.LONGLONG, UNSIGNED), 2**64 - 1) == "18446744073709551615"
    assert shown(registry, stringly, column("c", T.LONGLONG), -5) == -5


@pytest.mark.parametrize(
    ("made", "default"),
    [
        (column("c", T.LONG, default="7"), 7),
        (column("c", T.LONGLONG, UNSIGNED, default="18446744073709551615"), -1),
        (column("c", T.LONGLONG, default="nextval(`a`.`b`)"), None),
        (column("c", T.FLOAT, default="0.1"), 0.10000000149011612),
        (column("c", T.DOUBLE, default="1e-7"), 1e-7),
        (column("c", T.VARCHAR, default='a"<b'), 'a"<b'),
        (column("c", T.VARCHAR, default="ab", charset="binary"), "YWI="),
        (column("c", T.BIT, flen=4, default="\5", default_bit=b"\5"), "BQ=="),
        (column("c", T.NEWDECIMAL, default="1.23"), None),
        (column("c", T.ENUM, elems=("p", "q"), default="q"), "q"),
        (column("c", T.YEAR, default="2020"), 2020),
        (column("c", T.TIMESTAMP, default="CURRENT_TIMESTAMP"), "CURRENT_TIMESTAMP"),
    ],
)
def test_a_default_is_the_first_branch_of_its_union(
    avro: Avro, registry: StandInRegistry, made: ColumnInfo, default: Any
) -> None:
    field = schemas(registry, avro, table_of(column(*ID), made))[1]["fields"][1]
    assert field["default"] == default
    assert field["type"].index("null") == (0 if default is None else 1)
    assert shown(registry, avro, made, None) is None  # and null stays null
    required = replace(made, flag=made.flag | NOT_NULL)
    table = table_of(column(*ID), required)
    values = {T.NEWDECIMAL: "1", T.VARCHAR: b"" if made.charset == "binary" else "", T.TIMESTAMP: ""}
    encoded = avro.encoder(0).encode(rows_of(table, (None, {"id": 1, "c": values.get(made.type, 1)})))
    field = json.loads(registry.texts[struct.unpack_from(">I", encoded.messages()[0], 1)[0]])["fields"][1]
    assert field.get("default") == default
    assert isinstance(field["type"], dict)


def test_values_of_both_branches_are_read_back(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(column(*ID), column("a", T.LONG, default="3"), column("b", T.LONG))
    rows = [{"id": i, "a": a, "b": b} for i, (a, b) in enumerate([(None, 1), (2, None), (5, 6), (None, None)])]
    assert [value for _, value in encode(registry, avro, rows_of(table, *((None, row) for row in rows)))] == rows


def test_names_are_sanitised(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(column("1-é", T.LONG, KEY), schema="my db", name="a.b")
    named = replace(avro, namespace="n-s").for_topic("sanitised")
    named.encoder(0).encode(rows_of(table, (None, {"1-é": 1})))
    for subject in ("sanitised-key", "sanitised-value"):
        schema = json.loads(registry.texts[registry.schemas[subject][0]])
        assert (schema["namespace"], schema["name"]) == ("n_s.my_db", "a_b")
        assert [each["name"] for each in schema["fields"]] == ["_1__"]


def test_columns_of_one_name_are_refused(avro: Avro) -> None:
    table = table_of(column(*ID), column("a-b", T.LONG), column("a_b", T.LONG))
    with pytest.raises(SinkError, match=r"'a-b' and 'a_b' of table shop\.item would both be 'a_b'.*column selector"):
        avro.encoder(0).encode(rows_of(table, (None, {"id": 1, "a-b": 1, "a_b": 2})))


def test_subjects_are_named_by_the_topic(avro: Avro, registry: StandInRegistry) -> None:
    avro.for_topic("cdc.shop.item").encoder(0).encode(rows_of(ITEM, (None, FIRST)))
    assert {"cdc_shop_item-key", "cdc_shop_item-value"} <= set(registry.schemas)
    with pytest.raises(InvariantError, match="no topic"):
        avro.for_topic("").encoder(0).encode(rows_of(ITEM, (None, FIRST)))


def test_a_table_without_a_key_has_none(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(column("a", T.LONG), name="keyless")
    encoded = avro.for_topic("keyless").encoder(0).encode(rows_of(table, (None, {"a": 1})))
    assert encoded.keys is None
    assert "keyless-key" not in registry.schemas


def test_keys_hold_the_handle_key_in_table_order(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(
        column("a", T.VARCHAR, NOT_NULL), column("v", T.LONG), column("b", T.LONG, NOT_NULL), uniques=[["b", "a"]]
    )
    ((key, value),) = encode(registry, avro, rows_of(table, ({"a": "x", "v": 1, "b": 2}, None)))
    assert (list(key.items()), value) == ([("a", "x"), ("b", 2)], None)


def test_the_registry_is_asked_once_for_a_table(avro: Avro, registry: StandInRegistry) -> None:
    table = table_of(column(*ID), column("once", T.LONG))
    before = len(registry.requests)
    for encoder in (avro.encoder(0), avro.encoder(0)):
        for _ in range(3):
            encoder.encode(rows_of(table, (None, {"id": 1, "once": 1})))
        encoder.encode(rows_of(replace(table, version_ts=Ts(1 << 60)), (None, {"id": 1, "once": 1})))
    assert len(registry.requests) - before <= 2


def test_a_changed_table_gets_a_new_schema(avro: Avro, registry: StandInRegistry) -> None:
    encoder = avro.for_topic("changing").encoder(0)
    encoder.encode(rows_of(table_of(column(*ID)), (None, {"id": 1})))
    (found,) = messages(
        registry, encoder.encode(rows_of(table_of(column(*ID), column("n", T.LONG)), (None, {"id": 1, "n": 2})))
    )
    assert found == ({"id": 1}, {"id": 1, "n": 2})
    assert len(registry.schemas["changing-value"]) == 2
    assert len(registry.schemas["changing-key"]) == 1


def test_a_registry_that_refuses_is_an_error_of_the_sink(avro: Avro, registry: StandInRegistry) -> None:
    registry.refused.add("refusing-value")
    with pytest.raises(SinkError, match="refuses with 409") as raised:
        avro.for_topic("refusing").encoder(0).encode(rows_of(ITEM, (None, FIRST)))
    assert not isinstance(raised.value, SinkUnavailableError)


def test_too_large_a_message_is_refused(avro: Avro) -> None:
    small = replace(avro, max_message_bytes=100)
    with pytest.raises(
        SinkError, match=r"table shop\.item becomes a message of \d+ bytes, above max-message-bytes \(100\)"
    ):
        small.encoder(0).encode(rows_of(ITEM, (None, {**FIRST, "note": "x" * 100})))


def test_a_null_in_a_column_that_has_none_is_noticed(avro: Avro) -> None:
    table = table_of(column(*ID), column("c", T.LONG, NOT_NULL))
    with pytest.raises(InvariantError, match="NOT NULL holds a null"):
        avro.encoder(0).encode(rows_of(table, (None, {"id": 1, "c": None})))


def test_partitions_are_kept_and_no_rows_give_no_messages(avro: Avro) -> None:
    partitions = np.array([3], np.int32)
    assert avro.encoder(0).encode(rows_of(ITEM, (None, FIRST)), partitions).partitions is partitions
    assert avro.encoder(0).encode(rows_of(ITEM)).messages() == []


VALUES = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "u": st.none() | st.integers(0, 2**32 - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "t": st.none() | st.text(),
        "b": st.none() | st.binary(),
        "n": st.none() | st.decimals(-(10**10), 10**10, places=4),
    }
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES), st.integers(0, 2), st.data())
def test_any_rows_are_read_back(
    avro: Avro, registry: StandInRegistry, rows: Any, begin: int, data: st.DataObject
) -> None:
    table = table_of(
        column(*ID),
        column("u", T.LONG, UNSIGNED),
        column("f", T.FLOAT),
        column("d", T.DOUBLE),
        column("t", T.VARCHAR, default="x"),
        column("b", T.BLOB, charset="binary"),
        column("n", T.NEWDECIMAL, flen=20, decimal=4),
    )
    stored = [{**row, "n": None if row["n"] is None else format(row["n"], "f")} for row in rows]
    changes = [data.draw(st.sampled_from([(None, row), (row, row), (row, None)])) for row in stored]
    batch = rows_of(table, *changes)
    found = encode(registry, avro, batch)
    assert found == [
        ({"id": row["id"]}, None if new is None else row) for row, (_, new) in zip(rows, changes, strict=True)
    ]


def test_the_protocol_travels_and_does_not_show_its_password(avro: Avro) -> None:
    secret = Avro("http://me:secret@host:1")
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert "secret" not in repr(secret)
    assert isinstance(avro, TopicProtocol)


def test_options_are_read_from_the_sink_uri() -> None:
    given_ = {
        "schema-registry": "https://me:secret@host:1",
        "schema-registry-ca": "/ca.pem",
        "enable-tidb-extension": "true",
        "avro-decimal-handling-mode": "string",
        "avro-bigint-unsigned-handling-mode": "string",
        "avro-enable-watermark": "true",
        "max-message-bytes": "1000",
    }
    assert read_protocol(FOR_QUEUES, "avro", given_) == Avro(
        "https://me:secret@host:1", "/ca.pem", "", "", True, "string", "string", True, 1000
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"avro needs a schema registry\. Add schema-registry=http://host:8081"),
        ({"schema-registry": "me:secret@host"}, r"'schema-registry' is this value; it must be an address such as"),
        ({"schema-registry": "http://h", "avro-decimal-handling-mode": "exact"}, r"must be precise or string"),
        ({"schema-registry": "http://h", "schema-registry-key": "k"}, r"belong together and need schema-registry-ca"),
        ({"schema-registry": "http://h", "avro-enable-watermark": "true"}, r"needs enable-tidb-extension=true"),
    ],
)
def test_what_is_wrong_with_them_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(SinkUriError, match=message) as raised:
        read_protocol(FOR_QUEUES, "avro", options)
    assert "secret" not in str(raised.value)


def test_ddls_and_resolved_ts_are_told_to_tests_only(avro: Avro) -> None:
    event = DdlEvent(Ts(5), Ts(4), 0, ActionType.ADD_COLUMN, ActionType.ADD_COLUMN, "alter <t>", "shop", "item", ITEM)
    assert (avro.ddl(event, 0), avro.resolved(Ts(5), 0)) == (None, None)
    telling = replace(avro, enable_tidb_extension=True, enable_watermark=True)
    assert telling.resolved(Ts(5), 0) == Message(b"\2\0\0\0\0\0\0\0\5", Ts(5))
    assert telling.ddl(event, 0) == Message(
        b'\1{"query":"alter \\u003ct\\u003e","type":5,"schema":"shop","table":"item","commitTs":5}', Ts(5)
    )
