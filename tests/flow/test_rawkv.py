"""Raw changes of RawKV as rows, and as lines of JSON."""

import base64
import io
import json

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from tests.flow.encoder.samples import ITEM, rows_of
from tidemill.errors import UsageError
from tidemill.flow.decoder import Reading
from tidemill.flow.dispatcher import Dispatching, DispatchRules
from tidemill.flow.dispatcher.partition import Kind
from tidemill.flow.encoder import RawAvro, RawJson, RawJsonQueue
from tidemill.flow.rawkv import KeyDecoder, check_pattern, is_raw, key_tables, raw_table
from tidemill.model.change import FULL_CHANGE_SCHEMA, Op, without_rare
from tidemill.model.changefeed import Dispatch
from tidemill.model.keys import KeyApi, KeyFilter
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.ts import Ts
from tidemill.testing.schema_registry import StandInRegistry

TABLE = raw_table("DEFAULT", Ts(5))
KEYS = [b"a", b"", b"\x00\xff", b"a"]


def changes(*rows: tuple[bytes, bytes | None, int]) -> pa.RecordBatch:
    """(key, value or None for a delete, expiry); the n-th committed at 10 + n."""
    listed = [
        {
            "start_ts": 10 + number,
            "commit_ts": 10 + number,
            "op": Op.DELETE if value is None else Op.PUT,
            "expire_seconds": expiry,
            "txn_source": 0,
            "key": b"r\0\0\0" + key,
            "value": value or b"",
            "old_value": b"",
        }
        for number, (key, value, expiry) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(listed, FULL_CHANGE_SCHEMA)


def decoded(batch: pa.RecordBatch) -> RowBatch:
    return KeyDecoder(TABLE).decode(batch, Reading("UTC"), [])


SAMPLE = changes((b"a", b"1", 0), (b"", b"", 0), (b"\x00\xff", b"x" * 300, 1_700_000_100), (b"a", None, 0))


def test_a_put_is_an_insert_also_of_an_empty_value_and_a_delete_names_its_key() -> None:
    rows = decoded(SAMPLE)
    assert rows.op.tolist() == [RowOp.INSERT, RowOp.INSERT, RowOp.INSERT, RowOp.DELETE]
    assert rows.commit_ts.tolist() == [10, 11, 12, 13]
    assert rows.new.column("key").to_pylist() == KEYS[:3]
    assert rows.new.column("value").to_pylist() == [b"1", b"", b"x" * 300]
    assert rows.new.column("expire_seconds").to_pylist() == [0, 0, 1_700_000_100]
    assert rows.old.column("key").to_pylist() == [b"a"]


def test_changes_without_any_expiry_come_without_its_column() -> None:
    plain = decoded(without_rare(SAMPLE))
    assert plain.new.column("expire_seconds").to_pylist() == [0, 0, 0]
    assert plain.new.column("key").to_pylist() == KEYS[:3]


def test_a_slice_of_changes_is_decoded_by_itself() -> None:
    assert decoded(SAMPLE.slice(1, 3)).new.column("key").to_pylist() == [b"", b"\x00\xff"]
    assert len(decoded(SAMPLE.slice(0, 0))) == 0


def test_only_the_table_that_a_keyspace_is_counts_as_one() -> None:
    assert is_raw(TABLE)
    assert not is_raw(ITEM)


def test_each_change_is_a_line_of_json() -> None:
    encoded = RawJson().encoder(0, b"\n").encode(decoded(SAMPLE))
    lines = [json.loads(message) for message in encoded.messages()]
    assert [base64.b64decode(line["key"]) for line in lines] == KEYS
    assert [line["ts"] for line in lines] == [10, 11, 12, 13]
    assert [line["op"] for line in lines] == ["put", "put", "put", "delete"]
    assert [base64.b64decode(line["value"]) for line in lines[:3]] == [b"1", b"", b"x" * 300]
    assert lines[2]["expiry"] == 1_700_000_100
    assert [set(line) for line in (lines[0], lines[3])] == [{"key", "value", "ts", "op"}, {"key", "ts", "op"}]
    assert encoded.payload.to_pybytes().endswith(b"}\n")


def test_rows_of_a_table_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=f"{ITEM.full_name} is a table"):
        RawJson().encoder(0, b"\n").encode(rows_of(ITEM))


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        pytest.param(KeyFilter(), [b"a", b"", b"\x00\xff", b"a"], id="all"),
        pytest.param(KeyFilter((b"a",)), [b"a", b"a"], id="a prefix"),
        pytest.param(KeyFilter((b"b", b"\x00")), [b"\x00\xff"], id="any of two"),
        pytest.param(KeyFilter((), "^.?$"), [b"a", b"", b"a"], id="a pattern of keys"),
        pytest.param(KeyFilter((), "\\xff$"), [b"\x00\xff"], id="a byte is a character"),
        pytest.param(KeyFilter((), "", "^x+$"), [b"\x00\xff", b"a"], id="of values: a delete passes"),
        pytest.param(KeyFilter((b"a",), "a", "x"), [b"a"], id="all three"),
        pytest.param(KeyFilter((b"z",)), [], id="none"),
    ],
)
def test_a_filter_lets_those_changes_pass_that_match_all_of_it(chosen: KeyFilter, keys: list[bytes]) -> None:
    rows = KeyDecoder(TABLE, filter=chosen).decode(SAMPLE, Reading("UTC"), [])
    found = {int(ts): bytes(key) for ts, key in zip(rows.commit_ts, _keys(rows), strict=True)}
    assert [found[ts] for ts in sorted(found)] == keys


def _keys(rows: RowBatch) -> list[bytes]:
    new, old = (iter(side.column("key").to_pylist()) for side in (rows.new, rows.old))
    return [next(old) if op == RowOp.DELETE else next(new) for op in rows.op]


def test_what_is_no_pattern_is_refused() -> None:
    check_pattern("", "key-pattern")
    with pytest.raises(UsageError, match=r"key-pattern 'a\(' is not a regular expression of RE2: .*missing \)"):
        check_pattern("a(", "key-pattern")


def test_each_of_several_parts_has_a_number_and_a_name_of_its_own() -> None:
    assert [(table.id, table.name) for table in key_tables(KeyApi.raw, "k", Ts(1), 1)] == [(1, "k")]
    assert [(table.id, table.full_name) for table in key_tables(KeyApi.txn, "k", Ts(1), 2)] == [
        (1, "txnkv.k-1"),
        (2, "txnkv.k-2"),
    ]


def test_in_a_queue_each_message_has_its_key_and_json_tells_what_is_resolved() -> None:
    protocol = RawJsonQueue()
    rows = decoded(SAMPLE)
    encoded = protocol.encoder(0).encode(rows, np.array([2, 1, 0, 2], np.int32))
    assert encoded.message_keys() == KEYS
    assert encoded.partitions is not None
    assert encoded.partitions.tolist() == [2, 1, 0, 2]
    lines = [json.loads(message) for message in encoded.messages()]
    assert [(base64.b64decode(line["key"]), line["ts"]) for line in lines] == list(
        zip(KEYS, range(10, 14), strict=True)
    )
    resolved = protocol.resolved(Ts(17), 0)
    assert resolved is not None
    assert json.loads(resolved.value or b"") == {"ts": 17, "op": "resolved"}
    assert protocol.encoder(0).encode(decoded(SAMPLE.slice(0, 0))).message_keys() == []


def test_avro_says_the_same_in_one_schema() -> None:
    with StandInRegistry() as registry:
        protocol = RawAvro(registry.uri).for_topic("a.keys")
        encoded = protocol.encoder(0).encode(decoded(SAMPLE))
        (schema,) = registry.texts.values()
    assert encoded.message_keys() == KEYS
    read = fastavro.parse_schema(json.loads(schema))
    found = [fastavro.schemaless_reader(io.BytesIO(message[5:]), read, None) for message in encoded.messages()]
    assert {message[:1] for message in encoded.messages()} == {b"\0"}
    assert found == [
        {"key": key, "value": value, "ts": 10 + n, "op": op, "expiry": expiry}
        for n, (key, value, op, expiry) in enumerate(
            [
                (b"a", b"1", "put", 0),
                (b"", b"", "put", 0),
                (b"\x00\xff", b"x" * 300, "put", 1_700_000_100),
                (b"a", None, "delete", 0),
            ]
        )
    ]


def test_keys_are_spread_by_their_bytes_unless_something_else_is_asked_for() -> None:
    assert DispatchRules(Dispatching(), "t").destination(TABLE).rule.kind is Kind.INDEX_VALUE
    assert DispatchRules(Dispatching(), "t").destination(ITEM).rule.kind is Kind.TABLE
    asked = Dispatching((Dispatch(("*.*",), "ts"),))
    assert DispatchRules(asked, "t").destination(TABLE).rule.kind is Kind.TS
