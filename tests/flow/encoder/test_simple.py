"""The simple protocol: rows by schema version, schemas by messages of their own."""

import json
import pickle
from base64 import b64decode
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import (
    BUILT_MS,
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
from tidemill.errors import SinkError, SinkUriError
from tidemill.flow.encoder import FOR_QUEUES, Simple, read_protocol
from tidemill.flow.encoder.port import BootstrapProtocol, Bootstraps, ChangefeedProtocol, Message
from tidemill.flow.encoder.simple_schema import table_schema
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnFlag, ColumnType, IndexColumn, IndexInfo
from tidemill.model.ts import Ts

TABLE = replace(ITEM, update_ts=Ts(445600000000000001))
HEAD = '{"version":1,"database":"shop","table":"item","tableID":108,"type":"%s","commitTs":445644800000000005,'
STAMPS = '"buildTs":1700000000123,"schemaVersion":445600000000000001,'
OLD = '{"id":"7","kind":"2","note":"héllo","qty":null,"sku":"A-1","tag":"AGH/"}'
NEW = OLD.replace('"qty":null', '"qty":"5"')


PLAIN = Simple()


def encode(rows: RowBatch, protocol: Simple = PLAIN) -> list[str]:
    return [message.decode() for message in protocol.encoder(BUILT_MS).encode(rows).messages()]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param((None, FIRST), HEAD % "INSERT" + STAMPS + f'"data":{OLD}}}', id="insert"),
        pytest.param((FIRST, SECOND), HEAD % "UPDATE" + STAMPS + f'"data":{NEW},"old":{OLD}}}', id="update"),
        pytest.param((SECOND, None), HEAD % "DELETE" + STAMPS + f'"old":{NEW}}}', id="a deleted row is in old"),
    ],
)
def test_messages(change: Any, expected: str) -> None:
    assert encode(rows_of(TABLE, change)) == [expected]


def test_messages_have_no_keys_and_keep_their_partitions() -> None:
    rows = rows_of(TABLE, (None, FIRST), (FIRST, SECOND))
    encoded = Simple().encoder(BUILT_MS).encode(rows, np.array([2, 0], np.int32))
    assert encoded.partitions is not None
    assert (encoded.message_keys(), encoded.partitions.tolist()) == (None, [2, 0])
    assert len(Simple().encoder(BUILT_MS).encode(rows_of(TABLE))) == 0


def test_the_table_id_is_that_of_the_partition() -> None:
    encoder, rows = Simple().encoder(BUILT_MS), rows_of(TABLE, (None, FIRST))
    found = [encoder.encode(replace(rows, physical_id=id)).messages() for id in (201, 202, 201)]
    assert [json.loads(message)["tableID"] for (message,) in found] == [201, 202, 201]


def test_a_timestamp_has_its_zone_and_other_times_have_none() -> None:
    table = table_of(column("t", ColumnType.TIMESTAMP), column("d", ColumnType.DATETIME), column("z", ColumnType.DATE))
    protocol = Simple().of_changefeed("Asia/Shanghai")
    row = {"t": "2020-02-20 10:20:20", "d": "2020-02-20 10:20:20", "z": None}
    found = [json.loads(m)["data"] for m in encode(rows_of(table, (None, row), (None, dict.fromkeys("tdz"))), protocol)]
    stamp = {"location": "Asia/Shanghai", "value": "2020-02-20 10:20:20"}
    assert found == [{**row, "t": stamp}, {"d": None, "t": None, "z": None}]
    assert isinstance(protocol, ChangefeedProtocol)


def test_columns_are_in_the_order_of_their_names_bytes() -> None:
    table = table_of(*(column(name, ColumnType.LONG) for name in ("é", "b", "B", "a<", "a")))
    (message,) = encode(rows_of(table, (None, dict.fromkeys(("é", "b", "B", "a<", "a"), 1))))
    assert message.endswith('"data":{"B":"1","a":"1","a\\u003c":"1","b":"1","é":"1"}}')


ALL = table_of(
    column("i", ColumnType.LONGLONG, KEY),
    column("u", ColumnType.LONGLONG, UNSIGNED),
    column("t", ColumnType.VARCHAR),
    column("b", ColumnType.BLOB, charset="binary"),
    column("f", ColumnType.FLOAT),
    column("d", ColumnType.DOUBLE),
    column("s", ColumnType.TIMESTAMP),
)
_finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
_texts = st.text() | st.text(alphabet='a"\\<>&\u2028\u2029\x00\x1f\x7fé🐬\t\r\n', max_size=30)
_rows = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**63), 2**63 - 1),
        "u": st.none() | st.integers(0, 2**64 - 1),
        "t": st.none() | _texts,
        "b": st.none() | st.binary(),
        "f": st.none() | st.floats(width=32, **_finite),
        "d": st.none() | st.floats(**_finite),
        "s": st.none() | st.just("2024-02-29 12:34:56"),
    }
)


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.tuples(st.none() | _rows, _rows), min_size=1, max_size=8))
def test_any_row_reads_back_as_what_it_was(changes: list[tuple[Any, Any]]) -> None:
    for (old, new), message in zip(changes, encode(rows_of(ALL, *changes)), strict=True):
        found = json.loads(message)
        assert _read(found["data"]) == new
        assert (_read(found["old"]) if "old" in found else None) == old


def _read(image: dict[str, Any]) -> dict[str, Any]:
    readers: dict[str, Any] = {"i": int, "u": int, "t": str, "b": b64decode, "d": float, "s": lambda s: s["value"]}
    readers["f"] = lambda text: pa.scalar(float(text), pa.float32()).as_py()
    return {name: None if text is None else readers[name](text) for name, text in image.items()}


# Schemas

EVENT = DdlEvent(Ts(COMMIT_TS), Ts(COMMIT_TS - 1), 0, 5, 5, "ALTER TABLE item ADD c INT", "shop", "item", TABLE)
SCHEMA = (
    '{"schema":"shop","table":"item","tableID":108,"version":445600000000000001,"columns":['
    '{"name":"id","dataType":{"mysqlType":"bigint","charset":"binary","collate":"binary","length":20,"decimal":-1},'
    '"nullable":false,"default":null},'
    '{"name":"sku","dataType":{"mysqlType":"varchar","charset":"utf8mb4","collate":"utf8mb4","length":16,"decimal":-1},'
    '"nullable":false,"default":null}],'
    '"indexes":[{"name":"u0","unique":true,"primary":false,"nullable":false,"columns":["sku"]},'
    '{"name":"primary","unique":true,"primary":true,"nullable":false,"columns":["id"]}]}'
)
SHORT = TABLE.with_columns(TABLE.columns[:2])


def test_a_ddl_describes_the_table_after_and_before() -> None:
    message = Simple().ddl(replace(EVENT, table_info=SHORT, pre_table_info=SHORT), BUILT_MS)
    assert message.value.decode() == (
        '{"version":1,"type":"ALTER","sql":"ALTER TABLE item ADD c INT","commitTs":445644800000000005,'
        f'"buildTs":1700000000123,"tableSchema":{SCHEMA},"preTableSchema":{SCHEMA}}}'
    )
    assert (message.key, message.partition, message.commit_ts) == (None, None, COMMIT_TS)


def test_a_ddl_of_a_database_describes_no_table() -> None:
    drop = ActionType.DROP_SCHEMA
    event = replace(EVENT, type=drop, job_type=drop, query="DROP DATABASE shop", table="", table_info=None)
    assert Simple().ddl(event, BUILT_MS).value.decode() == (
        '{"version":1,"type":"QUERY","sql":"DROP DATABASE shop","commitTs":445644800000000005,"buildTs":1700000000123}'
    )


def test_a_bootstrap_describes_a_table_at_no_ts() -> None:
    expected = f'{{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":1700000000123,"tableSchema":{SCHEMA}}}'
    assert Simple().bootstrap(SHORT, BUILT_MS) == Message(expected.encode(), Ts(0))
    first_only = Simple(send_bootstrap_to_all_partition=False).bootstrap(SHORT, BUILT_MS)
    assert first_only == Message(expected.encode(), Ts(0), partition=0)


def test_a_watermark() -> None:
    text = b'{"version":1,"type":"WATERMARK","commitTs":445644800000000005,"buildTs":1700000000123}'
    assert Simple().resolved(Ts(COMMIT_TS), BUILT_MS) == Message(text, Ts(COMMIT_TS))


def test_a_ddl_that_is_too_large_is_refused() -> None:
    with pytest.raises(
        SinkError, match=r"on shop\.item becomes a message of \d+ bytes, above max-message-bytes \(99\)"
    ):
        Simple(max_message_bytes=99).ddl(EVENT, BUILT_MS)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        pytest.param(column("c", ColumnType.BIT, UNSIGNED, flen=9, decimal=0, default_bit=b"\1\2"), 258, id="a number"),
        pytest.param(column("c", ColumnType.LONG, default="7"), "7", id="text"),
        pytest.param(column("c", ColumnType.LONG), None, id="none"),
    ],
)
def test_the_default_of_a_column(info: Any, expected: Any) -> None:
    (found,) = table_schema(table_of(info))["columns"]
    assert found["default"] == expected


@pytest.mark.parametrize(
    ("info", "more"),
    [
        (
            column("c", ColumnType.NEWDECIMAL, UNSIGNED, flen=10, decimal=2),
            {"length": 10, "decimal": 2, "unsigned": True},
        ),
        (column("c", ColumnType.DOUBLE, flen=15, decimal=4), {"length": 15}),
        (column("c", ColumnType.VECTOR, decimal=0), {"length": -1}),
        (column("c", ColumnType.ENUM, flen=1, decimal=0, elems=("a", "")), {"length": 1, "elements": ["a", ""]}),
        (column("c", ColumnType.LONG, int(ColumnFlag.ZEROFILL), flen=0, decimal=0), {"zerofill": True}),
    ],
)
def test_a_type_leaves_out_what_is_empty(info: Any, more: dict[str, Any]) -> None:
    (found,) = table_schema(table_of(info))["columns"]
    kind = found["dataType"]
    assert {name: kind[name] for name in kind if name not in ("mysqlType", "charset", "collate")} == more


def test_columns_of_a_schema_are_in_the_order_of_their_ids() -> None:
    turned = replace(SHORT, columns=tuple(replace(c, id=9 - c.id) for c in SHORT.columns))
    assert [found["name"] for found in table_schema(turned)["columns"]] == ["sku", "id"]


def test_a_view_has_columns_without_types() -> None:
    view = replace(TABLE, columns=(), indexes=(), pk_is_handle=False, is_view=True, view_columns=("z",))
    kind = {"mysqlType": "unspecified", "charset": "", "collate": ""}
    assert table_schema(view)["columns"] == [{"name": "z", "dataType": kind, "nullable": True, "default": None}]


def test_the_first_unique_index_without_nulls_stands_in_for_a_primary_key() -> None:
    table = table_of(
        column("a", ColumnType.LONG, NOT_NULL),
        column("b", ColumnType.LONG, NOT_NULL),
        column("n", ColumnType.LONG),
        uniques=[["n"], ["a", "b"], ["b"]],
    )
    found = table_schema(table)["indexes"]
    assert [(i["name"], i["primary"], i["nullable"], i["columns"]) for i in found] == [
        ("u0", False, True, ["n"]),
        ("u1", False, False, ["a", "b"]),
        ("u2", False, False, ["b"]),
        ("primary", True, False, ["a", "b"]),
    ]


def test_a_primary_key_that_is_an_index_is_there_once() -> None:
    key = IndexInfo(1, "PRIMARY", (IndexColumn(0, -1),), is_unique=True, is_primary=True)
    table = replace(table_of(column("a", ColumnType.LONG, KEY), pk_is_handle=False), indexes=(key,))
    assert [index["name"] for index in table_schema(table)["indexes"]] == ["PRIMARY"]


# Options


def test_its_options_are_read_from_the_parameters_of_a_uri() -> None:
    given = {
        "send-bootstrap-interval-in-sec": "30",
        "send-bootstrap-in-msg-count": "7",
        "send-bootstrap-to-all-partition": "false",
        "send-all-bootstrap-at-start": "true",
    }
    found = read_protocol(FOR_QUEUES, "simple", given)
    assert isinstance(found, BootstrapProtocol)
    assert found.bootstraps == Bootstraps(30, 7, to_all_partitions=False, all_at_start=True)
    assert pickle.loads(pickle.dumps(found)) == found
    assert Simple().bootstraps == Bootstraps(120, 10000, to_all_partitions=True, all_at_start=False)


@pytest.mark.parametrize("option", ["send-bootstrap-interval-in-sec", "send-bootstrap-in-msg-count"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_count_of_nothing_switches_bootstraps_off(option: str, value: str) -> None:
    found = read_protocol(FOR_QUEUES, "simple", {option: value})
    assert isinstance(found, BootstrapProtocol)
    assert found.bootstraps is None


def test_what_is_wrong_with_them_is_named() -> None:
    with pytest.raises(SinkUriError, match=r"'send-bootstrap-in-msg-count' is .*; it must be a whole number"):
        read_protocol(FOR_QUEUES, "simple", {"send-bootstrap-in-msg-count": "many"})
