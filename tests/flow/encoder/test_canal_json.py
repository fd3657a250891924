"""canal-json equals the recorded examples byte for byte, and says of any value exactly what it is."""

import json
import pickle
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
from tidemill.errors import InvariantError, SinkError
from tidemill.flow.encoder import CanalJson
from tidemill.flow.encoder.port import Message
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo
from tidemill.model.ts import Ts
from tidemill.tidb.mysql_type import full_mysql_type, mysql_type

EXTENDED = CanalJson(enable_tidb_extension=True)
HEAD = '{"id":0,"database":"shop","table":"item","pkNames":["id"],"isDdl":false,"type":"%s","es":1700000000000,'
TYPES = (
    '"ts":1700000000123,"sql":"","sqlType":{"id":-5,"sku":12,"qty":4,"tag":2004,"kind":4,"note":2005},'
    '"mysqlType":{"id":"bigint","sku":"varchar","qty":"int unsigned","tag":"varbinary","kind":"enum","note":"text"},'
)
OLD = '{"id":"7","sku":"A-1","qty":null,"tag":"\\u0000aÿ","kind":"2","note":"héllo"}'
NEW = OLD.replace("null", '"5"')


def encode(protocol: CanalJson, rows: RowBatch, terminator: bytes = b"\r\n") -> list[str]:
    return [m.decode() for m in protocol.encoder(BUILT_MS, terminator).encode(rows).messages()]


def only(options: CanalJson, rows: RowBatch) -> Any:
    (message,) = encode(options, rows)
    return json.loads(message)


@pytest.mark.parametrize(
    ("options", "change", "expected"),
    [
        pytest.param(
            EXTENDED,
            (None, FIRST),
            HEAD % "INSERT" + TYPES + f'"old":null,"data":[{OLD}],"_tidb":{{"commitTs":445644800000000005}}}}\r\n',
            id="insert",
        ),
        pytest.param(
            EXTENDED,
            (FIRST, SECOND),
            HEAD % "UPDATE" + TYPES + f'"old":[{OLD}],"data":[{NEW}],"_tidb":{{"commitTs":445644800000000005}}}}\r\n',
            id="update",
        ),
        pytest.param(
            EXTENDED,
            (SECOND, None),
            HEAD % "DELETE" + TYPES + f'"old":null,"data":[{NEW}],"_tidb":{{"commitTs":445644800000000005}}}}\r\n',
            id="a deleted row is in data",
        ),
        pytest.param(
            CanalJson(),
            (FIRST, SECOND),
            HEAD % "UPDATE" + TYPES + f'"old":[{OLD}],"data":[{NEW}]}}\r\n',
            id="without the extension",
        ),
        pytest.param(
            CanalJson(only_output_updated_columns=True),
            (FIRST, SECOND),
            HEAD % "UPDATE" + TYPES + f'"old":[{{"qty":null}}],"data":[{NEW}]}}\r\n',
            id="only updated columns",
        ),
        pytest.param(
            CanalJson(only_output_updated_columns=True),
            (FIRST, {**SECOND, "note": None, "sku": "A-2"}),
            HEAD % "UPDATE"
            + TYPES
            + '"old":[{"sku":"A-1","qty":null,"note":"héllo"}],"data":['
            + NEW.replace("A-1", "A-2").replace('"héllo"', "null")
            + "]}\r\n",
            id="several updated columns, one to null",
        ),
        pytest.param(
            CanalJson(only_output_updated_columns=True),
            (FIRST, FIRST),
            HEAD % "UPDATE" + TYPES + f'"old":[{{}}],"data":[{OLD}]}}\r\n',
            id="no updated column",
        ),
        pytest.param(
            CanalJson(delete_only_output_handle_key_columns=True),
            (SECOND, None),
            HEAD % "DELETE"
            + '"ts":1700000000123,"sql":"","sqlType":{"id":-5},"mysqlType":{"id":"bigint"},"old":null,'
            + '"data":[{"id":"7"}]}\r\n',
            id="a delete of keys only",
        ),
    ],
)
def test_messages(options: CanalJson, change: Any, expected: str) -> None:
    assert encode(options, rows_of(ITEM, change)) == [expected]


def test_messages_of_a_queue_have_no_terminator_and_no_key() -> None:
    rows = rows_of(ITEM, (None, FIRST), (FIRST, SECOND))
    encoded = EXTENDED.encoder(BUILT_MS).encode(rows, np.array([2, 0], np.int32))
    assert [m.decode() + "\n" for m in encoded.messages()] == encode(EXTENDED, rows, b"\n")
    assert encoded.partitions is not None
    assert (encoded.message_keys(), encoded.partitions.tolist()) == (None, [2, 0])


def test_messages_of_a_batch_stand_in_order_and_carry_their_commit_ts() -> None:
    encoded = EXTENDED.encoder(BUILT_MS).encode(
        rows_of(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None), (None, SECOND), ts=[10, 10, 11, 12])
    )
    messages = [json.loads(m) for m in encoded.messages()]
    assert [m["type"] for m in messages] == ["INSERT", "UPDATE", "DELETE", "INSERT"]
    assert [m["_tidb"]["commitTs"] for m in messages] == encoded.commit_ts.tolist() == [10, 10, 11, 12]
    assert [m["data"][0]["qty"] for m in messages] == [None, "5", "5", "5"]
    assert encoded.ends[-1] == len(encoded.payload)


def test_an_empty_batch_has_no_messages() -> None:
    encoded = EXTENDED.encoder(BUILT_MS).encode(rows_of(ITEM))
    assert len(encoded) == 0
    assert encoded.payload.size == 0


def test_one_encoder_serves_one_table_after_the_other() -> None:
    other = table_of(column("a", ColumnType.LONG), name="other")
    encoder = EXTENDED.encoder(BUILT_MS)
    tables = [json.loads(encoder.encode(rows).messages()[0])["table"] for rows in _alternate(other)]
    assert tables == ["item", "other", "item"]


def _alternate(other: Any) -> list[RowBatch]:
    first = rows_of(ITEM, (None, FIRST))
    return [first, rows_of(other, (None, {"a": 1})), first]


def test_slices_of_batches_are_read_where_they_begin() -> None:
    rows = rows_of(ITEM, *[(None, {**FIRST, "id": i, "qty": i if i % 3 else None, "note": str(i)}) for i in range(40)])
    part = RowBatch(
        rows.table, 108, rows.op[9:30], rows.start_ts[9:30], rows.commit_ts[9:30], rows.new.slice(9, 21), rows.old
    )
    assert encode(EXTENDED, part) == encode(EXTENDED, rows)[9:30]


def test_images_that_do_not_fit_the_changes_are_a_bug() -> None:
    rows = rows_of(ITEM, (None, FIRST))
    broken = RowBatch(rows.table, 108, rows.op, rows.start_ts, rows.commit_ts, rows.old, rows.old)
    with pytest.raises(InvariantError, match="1 inserts, 0 updates and 0 deletes has 0 new and 0 old rows"):
        encode(EXTENDED, broken)


def test_the_protocol_travels_to_executors() -> None:
    assert pickle.loads(pickle.dumps(EXTENDED)) == EXTENDED


def test_deletes_by_key_need_a_key() -> None:
    table = table_of(column("a", ColumnType.LONG), name="heap")
    with pytest.raises(SinkError, match=r"shop\.heap .* no handle key\. Give the table a primary key"):
        encode(CanalJson(delete_only_output_handle_key_columns=True), rows_of(table, ({"a": 1}, None)))


# sqlType and mysqlType


@pytest.mark.parametrize(
    ("kind", "flag", "value", "code"),
    [
        (ColumnType.TINY, UNSIGNED, 127, -6),
        (ColumnType.TINY, UNSIGNED, 128, 5),
        (ColumnType.SHORT, UNSIGNED, 32767, 5),
        (ColumnType.SHORT, UNSIGNED, 32768, 4),
        (ColumnType.INT24, UNSIGNED, 16777215, 4),
        (ColumnType.LONG, UNSIGNED, 2147483647, 4),
        (ColumnType.LONG, UNSIGNED, 3000000000, -5),
        (ColumnType.LONGLONG, UNSIGNED, 2**63 - 1, -5),
        (ColumnType.LONGLONG, UNSIGNED, 2**63, 3),
        (ColumnType.LONGLONG, UNSIGNED, None, -5),
        (ColumnType.LONGLONG, 0, 2**63 - 1, -5),
        (ColumnType.BIT, UNSIGNED, 2**64 - 1, -7),
    ],
)
def test_the_sql_type_of_an_unsigned_number_depends_on_its_value(
    kind: ColumnType, flag: int, value: int | None, code: int
) -> None:
    table = table_of(column("a", ColumnType.LONG, KEY), column("n", kind, flag), column("z", ColumnType.DATE))
    message = only(EXTENDED, rows_of(table, (None, {"a": 1, "n": value, "z": None})))
    assert message["sqlType"] == {"a": 4, "n": code, "z": 91}
    deleted = only(EXTENDED, rows_of(table, ({"a": 1, "n": value, "z": None}, None)))
    assert deleted["sqlType"] == message["sqlType"]


def test_promotion_looks_at_each_row_by_itself() -> None:
    table = table_of(column("a", ColumnType.TINY, UNSIGNED), column("b", ColumnType.TINY, UNSIGNED))
    rows = rows_of(table, *[(None, {"a": a, "b": b}) for a, b in [(1, 1), (200, 1), (1, None), (200, 200)]])
    found = [json.loads(m)["sqlType"] for m in encode(EXTENDED, rows)]
    assert found == [{"a": -6, "b": -6}, {"a": 5, "b": -6}, {"a": -6, "b": -6}, {"a": 5, "b": 5}]


ZEROFILL = int(ColumnFlag.UNSIGNED | ColumnFlag.ZEROFILL)


@pytest.mark.parametrize(
    ("info", "word", "full"),
    [
        (column("c", ColumnType.LONG, flen=11), "int", "int(11)"),
        (
            column("c", ColumnType.SHORT, ZEROFILL, flen=5),
            "smallint unsigned zerofill",
            "smallint(5) unsigned zerofill",
        ),
        (column("c", ColumnType.YEAR, ZEROFILL, flen=4), "year", "year(4)"),
        (column("c", ColumnType.BIT, UNSIGNED, flen=33), "bit", "bit(33)"),
        (
            column("c", ColumnType.NEWDECIMAL, UNSIGNED, flen=10, decimal=2),
            "decimal unsigned",
            "decimal(10,2) unsigned",
        ),
        (column("c", ColumnType.FLOAT, flen=12), "float", "float"),
        (column("c", ColumnType.DOUBLE, flen=15, decimal=4), "double", "double(15,4)"),
        (column("c", ColumnType.DATETIME, flen=26, decimal=6), "datetime", "datetime(6)"),
        (column("c", ColumnType.TIMESTAMP, flen=19, decimal=0), "timestamp", "timestamp"),
        (column("c", ColumnType.DURATION, flen=10, decimal=0), "time", "time"),
        (column("c", ColumnType.VARCHAR, flen=16), "varchar", "varchar(16)"),
        (column("c", ColumnType.STRING, flen=16, charset="binary"), "binary", "binary(16)"),
        (column("c", ColumnType.LONGBLOB), "longtext", "longtext"),
        (column("c", ColumnType.TINYBLOB, charset="binary"), "tinyblob", "tinyblob"),
        (column("c", ColumnType.ENUM, elems=("a", "it's")), "enum", "enum('a','it''s')"),
        (column("c", ColumnType.SET, elems=("x",)), "set", "set('x')"),
        (column("c", ColumnType.JSON), "json", "json"),
        (column("c", ColumnType.VECTOR, flen=3), "vector", "vector(3)"),
        (column("c", ColumnType.VECTOR), "vector", "vector"),
    ],
)
def test_type_words(info: ColumnInfo, word: str, full: str) -> None:
    assert (mysql_type(info), full_mysql_type(info)) == (word, full)


def test_content_compatible_writes_full_types_and_only_updated_columns() -> None:
    message = only(CanalJson(content_compatible=True), rows_of(ITEM, (FIRST, SECOND)))
    assert message["mysqlType"] == {
        "id": "bigint(20)",
        "sku": "varchar(16)",
        "qty": "int(10) unsigned",
        "tag": "varbinary(4)",
        "kind": "enum('a','b')",
        "note": "text",
    }
    assert message["old"] == [{"qty": None}]


# Values

ALL = table_of(
    column("i", ColumnType.LONGLONG, KEY),
    column("u", ColumnType.LONGLONG, UNSIGNED),
    column("t", ColumnType.VARCHAR),
    column("b", ColumnType.BLOB, charset="binary"),
    column("f", ColumnType.FLOAT),
    column("d", ColumnType.DOUBLE),
)
_texts = st.text() | st.text(alphabet='a"\\<>&\u2028\u2029\x00\x1f\x7fé🐬\t\r\n', max_size=30)
_finite = {"allow_nan": False, "allow_infinity": False}
_rows = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**63), 2**63 - 1),
        "u": st.none() | st.integers(0, 2**64 - 1),
        "t": st.none() | _texts,
        "b": st.none() | st.binary(),
        "f": st.none() | st.floats(width=32, **_finite),
        "d": st.none() | st.floats(**_finite),
    }
)


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.tuples(st.none() | _rows, _rows), min_size=1, max_size=8))
def test_any_row_reads_back_as_what_it_was(changes: list[tuple[Any, Any]]) -> None:
    messages = encode(EXTENDED, rows_of(ALL, *changes))
    for (old, new), message in zip(changes, messages, strict=True):
        found = json.loads(message)
        assert [_read(image) for image in found["data"]] == [new]
        assert (found["old"] and [_read(image) for image in found["old"]]) == (old and [old])


def _read(image: dict[str, str | None]) -> dict[str, Any]:
    readers: dict[str, Any] = {"t": str, "b": lambda text: text.encode("latin-1"), "f": float, "d": float}
    found = {name: None if text is None else readers.get(name, int)(text) for name, text in image.items()}
    assert all("e" not in (image[name] or "") for name in ("f", "d"))
    found["f"] = found["f"] if found["f"] is None else pa.scalar(found["f"], pa.float32()).as_py()
    return found


@settings(deadline=None)  # the first call may compile
@given(st.lists(_texts, min_size=1, max_size=5))
def test_text_is_escaped_as_go_escapes_it(texts: list[str]) -> None:
    special = {
        '"': '\\"',
        "\\": "\\\\",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
    special |= {chr(i): f"\\u{i:04x}" for i in [*range(0x20), *b"<>&"] if chr(i) not in special}
    table = table_of(column("t", ColumnType.VARCHAR))
    for text, message in zip(texts, encode(EXTENDED, rows_of(table, *[(None, {"t": t}) for t in texts])), strict=True):
        expected = "".join(special.get(char, char) for char in text)
        assert f'"data":[{{"t":"{expected}"}}]' in message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"caf\xe9", "caf\\ufffd"),
        (b"\xff\xfe", "\\ufffd\\ufffd"),
        (b"\xe2\x82", "\\ufffd\\ufffd"),
        (b"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"),
        (b"\xc0\xaf", "\\ufffd\\ufffd"),
        (b"\xf4\x90\x80\x80", "\\ufffd" * 4),
        (b"\xf0\x9f\x90\xac ok", "🐬 ok"),
    ],
)
def test_text_that_is_not_utf8_still_gives_valid_json(data: bytes, text: str) -> None:
    table = table_of(column("t", ColumnType.VARCHAR))
    cells = pa.array([data, b"\xac"], pa.binary()).view(pa.string())  # the next cell would complete a cut character
    rows = rows_of(table, (None, {"t": ""}), (None, {"t": ""}))
    rows = RowBatch(
        table, 1, rows.op, rows.start_ts, rows.commit_ts, pa.RecordBatch.from_arrays([cells], ["t"]), rows.old
    )
    assert f'[{{"t":"{text}"}}]' in encode(EXTENDED, rows)[0]


def test_binary_values_are_characters_of_the_same_number() -> None:
    table = table_of(column("b", ColumnType.BLOB, charset="binary"))
    (message,) = encode(EXTENDED, rows_of(table, (None, {"b": bytes.fromhex("00410a3c7f80ff")})))
    assert '"b":"\\u0000A\\n\\u003c\x7f\x80\xff"' in message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (1e15, "1000000000000000"),
        (1e21, "1" + "0" * 21),
        (1.7976931348623157e308, "17976931348623157" + "0" * 292),
        (5e-324, "0." + "0" * 323 + "5"),
        (-1.2345e-7, "-0.00000012345"),
        (123456789.5, "123456789.5"),
        (float("nan"), "0"),
        (float("-inf"), "0"),
    ],
)
def test_doubles_are_written_positionally(value: float, text: str) -> None:
    table = table_of(column("d", ColumnType.DOUBLE, NOT_NULL))
    assert only(EXTENDED, rows_of(table, (None, {"d": value})))["data"] == [{"d": text}]


def test_floats_have_the_digits_of_their_own_width() -> None:
    table = table_of(column("f", ColumnType.FLOAT))
    values = [0.1, 3.4028234663852886e38, 1.401298464324817e-45, None, 16777216.0]
    texts = [
        json.loads(m)["data"][0]["f"] for m in encode(EXTENDED, rows_of(table, *[(None, {"f": v}) for v in values]))
    ]
    assert texts == ["0.1", "34028235" + "0" * 31, "0." + "0" * 44 + "1", None, "16777216"]


def test_names_are_escaped_like_values() -> None:
    table = table_of(column('q"<数据', ColumnType.LONG, KEY), schema="a&b", name="we`ird\\name")
    (message,) = encode(CanalJson(), rows_of(table, (None, {'q"<数据': 1})))
    assert message.startswith(
        '{"id":0,"database":"a\\u0026b","table":"we`ird\\\\name","pkNames":["q\\"\\u003c数据"],"isDdl":false'
    )
    assert json.loads(message)["data"] == [{'q"<数据': "1"}]


def test_names_of_the_primary_key_are_in_the_order_of_the_tables_columns() -> None:
    """As TiCDC writes them: columns a, b with PRIMARY KEY (b, a) give a, b."""
    primary = IndexInfo(1, "PRIMARY", (IndexColumn(2, -1), IndexColumn(0, -1)), True, True)
    columns = [column(name, ColumnType.LONG, KEY if name != "v" else 0) for name in ("a", "v", "b")]
    table = replace(table_of(*columns, pk_is_handle=False), indexes=(primary,), is_common_handle=True)
    for change in ((None, {"a": 1, "v": 2, "b": 3}), ({"a": 1, "v": 2, "b": 3}, None)):
        (message,) = encode(CanalJson(), rows_of(table, change))
        assert '"pkNames":["a","b"],' in message


# DDL and watermarks


def ddl(action: int = ActionType.ADD_COLUMN, query: str = "ALTER TABLE item ADD COLUMN c INT") -> DdlEvent:
    return DdlEvent(Ts(COMMIT_TS), Ts(COMMIT_TS - 1), 0, action, action, query, "shop", "item", ITEM)


def test_a_ddl_message() -> None:
    assert EXTENDED.ddl(ddl(), BUILT_MS) == Message(
        b'{"id":0,"database":"shop","table":"item","pkNames":null,"isDdl":true,"type":"ALTER","es":1700000000000,'
        b'"ts":1700000000123,"sql":"ALTER TABLE item ADD COLUMN c INT","sqlType":null,"mysqlType":null,"data":null,'
        b'"old":null,"_tidb":{"commitTs":445644800000000005}}',
        Ts(COMMIT_TS),
        partition=0,
    )


def test_a_watermark_message() -> None:
    assert EXTENDED.resolved(Ts(COMMIT_TS), BUILT_MS) == Message(
        b'{"id":0,"database":"","table":"","pkNames":null,"isDdl":false,"type":"TIDB_WATERMARK","es":1700000000000,'
        b'"ts":1700000000123,"sql":"","sqlType":null,"mysqlType":null,"data":null,"old":null,'
        b'"_tidb":{"watermarkTs":445644800000000005}}',
        Ts(COMMIT_TS),
    )
    assert CanalJson().resolved(Ts(COMMIT_TS), BUILT_MS) is None


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (ActionType.CREATE_TABLE, "CREATE"),
        (ActionType.DROP_TABLE, "ERASE"),
        (ActionType.TRUNCATE_TABLE, "TRUNCATE"),
        (ActionType.RENAME_TABLE, "RENAME"),
        (ActionType.ADD_PRIMARY_KEY, "CINDEX"),
        (ActionType.DROP_FOREIGN_KEY, "DINDEX"),
        (ActionType.REORGANIZE_PARTITION, "ALTER"),
        (ActionType.MULTI_SCHEMA_CHANGE, "ALTER"),
        (ActionType.CREATE_SCHEMA, "QUERY"),
        (ActionType.EXCHANGE_PARTITION, "QUERY"),
        (ActionType.ALTER_TTL, "QUERY"),
        (ActionType.CREATE_VIEW, "QUERY"),
        (9999, "QUERY"),
    ],
)
def test_ddl_words(action: int, word: str) -> None:
    assert json.loads(EXTENDED.ddl(ddl(action), BUILT_MS).value)["type"] == word


def test_queries_are_escaped() -> None:
    query = "create view v as select '\b\f<\u2028' from t where a > 1 and b & 2"
    message = EXTENDED.ddl(ddl(ActionType.CREATE_VIEW, query), BUILT_MS).value
    assert b"'\\u0008\\u000c\\u003c\\u2028' from t where a \\u003e 1 and b \\u0026 2" in message
    assert json.loads(message)["sql"] == query
