"""TiCDC's open protocol, against its worked examples and against what must hold for any rows."""

import base64
import json
import pickle
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import (
    BUILT_MS,
    COMMIT_TS,
    FIRST,
    ITEM,
    KEY,
    SECOND,
    UNSIGNED,
    Row,
    column,
    rows_of,
    table_of,
)
from tidemill.columnar.encoded import Encoded
from tidemill.errors import SinkError, SinkUriError
from tidemill.flow.encoder import FOR_QUEUES, OpenProtocol, read_protocol
from tidemill.flow.encoder.port import Message
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, PartitionInfo, TableInfo
from tidemill.model.ts import Ts

ALONE = OpenProtocol(max_batch_size=1)
ID = '"id":{"t":8,"h":true,"f":11,"v":7}'
OLD = (
    ID + ',"kind":{"t":247,"f":64,"v":2},"note":{"t":252,"f":64,"v":"aMOpbGxv"},"qty":{"t":3,"f":193,"v":null},'
    '"sku":{"t":15,"f":16,"v":"A-1"},"tag":{"t":15,"f":65,"v":"\\\\x00a\\\\xff"}'
)
NEW = OLD.replace("null", "5")


def encode(protocol: OpenProtocol, rows: RowBatch, partitions: list[int] | None = None) -> Encoded:
    return protocol.encoder(BUILT_MS).encode(rows, None if partitions is None else np.array(partitions, np.int32))


def parts(framed: bytes) -> list[bytes]:
    """What a frame holds, by the plainest reading of the format."""
    found = []
    while framed:
        (size,) = struct.unpack_from(">Q", framed)
        assert len(framed) >= 8 + size
        found.append(framed[8 : 8 + size])
        framed = framed[8 + size :]
    return found


def opened(encoded: Encoded) -> list[list[tuple[bytes, bytes]]]:
    """Key and value of each row of each message."""
    messages = []
    for key, value in zip(encoded.message_keys() or [], encoded.messages(), strict=True):
        assert key[:8] == struct.pack(">Q", 1)
        messages.append(list(zip(parts(key[8:]), parts(value), strict=True)))
    return messages


def values_of(table: TableInfo, *rows: Row) -> list[Any]:
    return [
        json.loads(value)["u"] for ((_, value),) in opened(encode(ALONE, rows_of(table, *((None, r) for r in rows))))
    ]


def test_the_worked_example() -> None:
    encoded = encode(ALONE, rows_of(ITEM, (None, FIRST)))
    key = b'{"ts":445644800000000005,"scm":"shop","tbl":"item","rid":7,"t":1}'
    value = b'{"u":{' + OLD.encode() + b"}}"
    assert (len(key), len(value)) == (65, 214)
    assert encoded.message_keys() == [bytes.fromhex("0000000000000001 0000000000000041") + key]
    assert encoded.messages() == [bytes.fromhex("00000000000000d6") + value]


@pytest.mark.parametrize(
    ("protocol", "change", "expected"),
    [
        pytest.param(ALONE, (FIRST, SECOND), f'{{"u":{{{NEW}}},"p":{{{OLD}}}}}', id="an update has both rows"),
        pytest.param(
            replace(ALONE, output_old_value=False), (FIRST, SECOND), f'{{"u":{{{NEW}}}}}', id="or the new one alone"
        ),
        pytest.param(
            replace(ALONE, only_output_updated_columns=True),
            (FIRST, SECOND),
            f'{{"u":{{{NEW}}},"p":{{"qty":{{"t":3,"f":193,"v":null}}}}}}',
            id="or what has changed of the old one",
        ),
        pytest.param(
            replace(ALONE, only_output_updated_columns=True),
            (SECOND, {**FIRST, "sku": "A-2"}),
            f'{{"u":{{{OLD.replace("A-1", "A-2")}}},"p":{{"qty":{{"t":3,"f":193,"v":5}},'
            '"sku":{"t":15,"f":16,"v":"A-1"}}}',
            id="several changed columns",
        ),
        pytest.param(
            replace(ALONE, only_output_updated_columns=True),
            (FIRST, FIRST),
            f'{{"u":{{{OLD}}},"p":{{}}}}',
            id="nothing has changed",
        ),
        pytest.param(ALONE, (SECOND, None), f'{{"d":{{{NEW}}}}}', id="a delete has the old row"),
        pytest.param(
            replace(ALONE, delete_only_output_handle_key_columns=True),
            (SECOND, None),
            f'{{"d":{{{ID}}}}}',
            id="or the handle key alone",
        ),
    ],
)
def test_values(protocol: OpenProtocol, change: Any, expected: str) -> None:
    (((_, value),),) = opened(encode(protocol, rows_of(ITEM, change)))
    assert value.decode() == expected


def test_deletes_by_key_need_a_key() -> None:
    table = table_of(column("a", ColumnType.LONG), name="heap")
    with pytest.raises(SinkError, match=r"shop\.heap .* no handle key"):
        encode(OpenProtocol(delete_only_output_handle_key_columns=True), rows_of(table, ({"a": 1}, None)))


@pytest.mark.parametrize(
    ("table", "id", "member"),
    [
        (table_of(column("id", ColumnType.LONGLONG, KEY)), -5, ',"rid":-5'),
        (table_of(column("id", ColumnType.LONGLONG, KEY)), 0, ""),
        (table_of(column("id", ColumnType.LONGLONG, KEY | UNSIGNED)), 2**63, ',"rid":-9223372036854775808'),
        (table_of(column("id", ColumnType.LONGLONG, KEY), pk_is_handle=False), 7, ""),
        (table_of(column("id", ColumnType.LONG, KEY), partitions=(PartitionInfo(9, "p"),)), 7, ',"rid":7,"ptn":108'),
    ],
)
def test_a_key_tells_of_its_handle_and_partition(table: TableInfo, id: int, member: str) -> None:
    for change in ((None, {"id": id}), ({"id": id}, None)):
        (((key, _),),) = opened(encode(ALONE, rows_of(table, change)))
        assert key.decode() == f'{{"ts":{COMMIT_TS},"scm":"shop","tbl":"item"{member},"t":1}}'


def test_one_encoder_serves_the_partitions_of_a_table() -> None:
    table = table_of(column("id", ColumnType.LONG, KEY), partitions=(PartitionInfo(201, "a"), PartitionInfo(202, "b")))
    encoder, rows = ALONE.encoder(BUILT_MS), rows_of(table, (None, {"id": 1}))
    keys = [encoder.encode(replace(rows, physical_id=id)).message_keys() for id in (201, 202, 201)]
    assert [json.loads(key[16:])["ptn"] for (key,) in (found or [] for found in keys)] == [201, 202, 201]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("00 61 ff 22 5c 0a c3 a9 7f c2 a0", '\\x00a\\xff\\"\\\\\\né\\x7f\\u00a0'),
        ("07 08 0c 0d 09 0b 20", "\\a\\b\\f\\r\\t\\v "),
        ("f0 9f 98 80", "\U0001f600"),
        ("f3 a0 80 81", "\\U000e0001"),
        ("ed a0 80", "\\xed\\xa0\\x80"),
        ("c0 80 f5 80", "\\xc0\\x80\\xf5\\x80"),
        ("f4 90 80 80", "\\xf4\\x90\\x80\\x80"),
        ("ef bf bd", "\ufffd"),
        ("e4 b8", "\\xe4\\xb8"),
        ("", ""),
    ],
)
def test_bytes_have_the_escapes_of_go(data: str, text: str) -> None:
    table = table_of(column("b", ColumnType.VARCHAR, charset="binary"))
    found = values_of(table, {"b": None}, {"b": bytes.fromhex(data)})
    assert [row["b"]["v"] for row in found] == [None, text]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (ColumnType.DOUBLE, 1e-6, "0.000001"),
        (ColumnType.DOUBLE, 9.5e-7, "9.5e-7"),
        (ColumnType.DOUBLE, 1e20, "100000000000000000000"),
        (ColumnType.DOUBLE, 1e21, "1e+21"),
        (ColumnType.DOUBLE, -1.7976931348623157e308, "-1.7976931348623157e+308"),
        (ColumnType.DOUBLE, 5e-324, "5e-324"),
        (ColumnType.FLOAT, 0.1, "0.1"),
        (ColumnType.FLOAT, 3.4028235e38, "3.4028235e+38"),
        (ColumnType.DOUBLE, -123456789.12345679, "-123456789.12345679"),
    ],
)
def test_floats_are_the_numbers_of_json(kind: ColumnType, value: float, text: str) -> None:
    (((_, found),),) = opened(encode(ALONE, rows_of(table_of(column("d", kind)), (None, {"d": value}))))
    assert found.decode() == f'{{"u":{{"d":{{"t":{int(kind)},"f":65,"v":{text}}}}}}}'


@pytest.mark.parametrize("kind", [ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB])
@pytest.mark.parametrize("charset", ["utf8mb4", "binary"])
def test_texts_and_blobs_are_base64(kind: ColumnType, charset: str) -> None:
    value = "é<" if charset == "utf8mb4" else b"\xff\0"
    (found,) = values_of(table_of(column("b", kind, charset=charset)), {"b": value})
    assert base64.b64decode(found["b"]["v"]) == (value.encode() if isinstance(value, str) else value)


MANY = rows_of(ITEM, *[(None, {**FIRST, "id": i}) for i in range(40)])


def ids(encoded: Encoded) -> list[list[int]]:
    return [[json.loads(value)["u"]["id"]["v"] for _, value in message] for message in opened(encoded)]


def test_a_message_holds_so_many_rows() -> None:
    encoded = encode(OpenProtocol(), MANY)
    assert ids(encoded) == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    assert encoded.changes is not None
    assert encoded.changes.tolist() == [16, 16, 8]
    assert encoded.commit_ts.tolist() == [COMMIT_TS + 15, COMMIT_TS + 31, COMMIT_TS + 39]
    assert encoded.partitions is None


def test_a_message_holds_so_many_bytes() -> None:
    ((key, value), *_) = (row for message in opened(encode(OpenProtocol(), MANY)) for row in message)
    three = 36 + 8 + 3 * (len(key) + len(value) + 16)  # ids from 0 to 9 are one byte long, but 0 has no handle
    few = rows_of(ITEM, *[(None, {**FIRST, "id": i}) for i in range(1, 10)])
    three += 3 * len(',"rid":1')
    assert ids(encode(OpenProtocol(max_message_bytes=three), few)) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert ids(encode(OpenProtocol(max_message_bytes=three - 1), few)) == [[1, 2], [3, 4], [5, 6], [7, 8], [9]]


def test_rows_of_a_partition_share_messages_in_their_order() -> None:
    rows = rows_of(ITEM, *[(None, {**FIRST, "id": i}) for i in range(9)])
    encoded = encode(OpenProtocol(max_batch_size=3), rows, [2, 0, 2, 2, 0, 5, 2, 0, 0])
    assert ids(encoded) == [[1, 4, 7], [8], [0, 2, 3], [6], [5]]
    assert encoded.partitions is not None
    assert encoded.partitions.tolist() == [0, 0, 2, 2, 5]


def test_a_row_that_is_too_large_is_refused() -> None:
    rows = rows_of(ITEM, (None, FIRST))
    assert len(encode(OpenProtocol(max_message_bytes=339), rows)) == 1
    with pytest.raises(SinkError, match=r"shop\.item becomes a message of 339 bytes, above max-message-bytes \(338\)"):
        encode(OpenProtocol(max_message_bytes=338), rows)


def test_no_rows_are_no_messages() -> None:
    encoded = encode(OpenProtocol(), rows_of(ITEM))
    assert (len(encoded), encoded.messages(), encoded.message_keys()) == (0, [], [])


WIDE = table_of(
    column("id", ColumnType.LONGLONG, KEY),
    column("b", ColumnType.VARCHAR, charset="binary"),
    column("a<é", ColumnType.VARCHAR),
    column("u", ColumnType.LONGLONG, UNSIGNED),
    column("c", ColumnType.BLOB, charset="binary"),
)
WIDE_ROW = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.binary(max_size=20) | st.text(max_size=8).map(lambda text: text.encode()),
        "a<é": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        "u": st.none() | st.integers(0, 2**64 - 1),
        "c": st.none() | st.binary(max_size=9),
    }
)


@given(st.lists(st.tuples(WIDE_ROW, st.integers(0, 3)), max_size=40), st.integers(1, 6))
def test_any_rows_read_back_as_what_they_were(rows: list[tuple[Row, int]], most: int) -> None:
    batch = rows_of(WIDE, *[(None, row) for row, _ in rows])
    encoded = encode(OpenProtocol(max_batch_size=most), batch, [partition for _, partition in rows])
    messages = opened(encoded)
    assert encoded.partitions is not None
    assert all(len(message) <= most for message in messages)
    placed = zip(encoded.partitions.tolist(), messages, strict=True)
    found = [(partition, read(value)) for partition, message in placed for _, value in message]
    assert found == [(p, row) for p in range(4) for row, partition in rows if partition == p]


def read(value: bytes) -> Row:
    columns = json.loads(value)["u"]
    found = {name: columns[name]["v"] for name in WIDE_ROW_NAMES}
    for name, back in (("b", unescaped), ("c", base64.b64decode)):
        found[name] = None if found[name] is None else back(found[name])
    return found


WIDE_ROW_NAMES = ("id", "b", "a<é", "u", "c")


def unescaped(text: str) -> bytes:
    data, at = b"", 0
    while at < len(text):
        if text[at] != "\\":
            data, at = data + text[at].encode(), at + 1
            continue
        letter = text[at + 1]
        digits = {"x": 2, "u": 4, "U": 8}.get(letter, 0)
        code = int(text[at + 2 : at + 2 + digits], 16) if digits else 0
        plain = dict(zip('abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))
        data += bytes([code]) if letter == "x" else chr(code).encode() if digits else bytes([plain[letter]])
        at += 2 + digits
    return data


def test_a_ddl_and_a_resolved_ts() -> None:
    add = ActionType.ADD_COLUMN
    event = DdlEvent(Ts(COMMIT_TS), Ts(COMMIT_TS - 1), 0, add, add, "ALTER TABLE item ADD c INT", "shop", "item", ITEM)
    message = OpenProtocol().ddl(event, BUILT_MS)
    assert message.key is not None
    assert parts(message.key[8:]) == [b'{"ts":445644800000000005,"scm":"shop","tbl":"item","t":2}']
    assert parts(message.value) == [b'{"q":"ALTER TABLE item ADD c INT","t":5}']
    of_database = OpenProtocol().ddl(replace(event, table=""), BUILT_MS)
    assert b'"scm":"shop","t":2' in (of_database.key or b"")
    key = bytes.fromhex("0000000000000001 000000000000001f") + b'{"ts":445644800000000005,"t":3}'
    assert OpenProtocol().resolved(Ts(COMMIT_TS), BUILT_MS) == Message(bytes(8), Ts(COMMIT_TS), key)


def test_its_options_are_read_from_the_parameters_of_a_uri() -> None:
    given = {"output-old-value": "false", "max-batch-size": "4", "max-message-bytes": "1000"}
    found = read_protocol(FOR_QUEUES, "open-protocol", given)
    assert found == OpenProtocol(output_old_value=False, max_batch_size=4, max_message_bytes=1000)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max-batch-size": "0"}, r"'max-batch-size' is .*; it must be a whole number, 1 or more"),
        ({"enable-tidb-extension": "true"}, r"belongs to protocol canal-json .*not to open-protocol"),
        ({"max-batch-sise": "4"}, r"unknown sink URI parameter 'max-batch-sise'\. Did you mean 'max-batch-size'\?"),
    ],
)
def test_what_is_wrong_with_them_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(SinkUriError, match=message):
        read_protocol(FOR_QUEUES, "open-protocol", given)
