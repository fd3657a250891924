"""Every protocol through the sink into a real broker and back by its reader: the same rows, DDLs and resolved-ts."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.encoder.samples import COMMIT_TS, FIRST, ITEM, KEY, SECOND, UNSIGNED, Row, column, rows_of, table_of
from tests.flow.reader.plain import Change, all_changes, changes, received
from tests.flow.reader.rows import EVERY_TYPE
from tests.kafka import Broker
from tests.sinks.kafka.feed import BY_KEY, Feed
from tidemill.errors import SinkError
from tidemill.flow.deadletter import quarantine, read_quarantine
from tidemill.flow.encoder import Avro
from tidemill.flow.reader import Events
from tidemill.flow.reader.registry import reader_for
from tidemill.model.changefeed import Dispatch
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.retry import Policy
from tidemill.sinks import read_sink_uri
from tidemill.sinks.kafka import KafkaOptions
from tidemill.testing.schema_registry import StandInRegistry

END = 1000
FULL: Row = {
    "a_id": -5,
    "b_unsigned": 2**64 - 1,
    "c_tiny": -128,
    "d_float": 1.5,
    "e_double": 1e300,
    "f_decimal": "-12345678.90",
    "g_year": 2024,
    "h_bit": 2**63,
    "i_enum": 2,
    "j_set": 3,
    "k_char": 'a"\\<é\n',
    'l_"<é\\': "l",
    "m_binary": b'\0\xff"\\',
    "n_varbinary": b"\xc3\xa9\x7f",
    "o_text": "t\u2028",
    "p_blob": bytes(range(256)),
    "q_json": '{"a": [1, "x"]}',
    "r_datetime": "0000-00-00 00:00:00.000000",
    "s_timestamp": "2020-01-01 00:00:00",
    "t_time": "-838:59:59",
    "u_date": "2024-01-05",
    "v_vector": "[1,2.5]",
    "w_generated": 5,
}
BARE: Row = {**dict.fromkeys(FULL), "a_id": 6, 'l_"<é\\': ""}
LOSSLESS = {
    "open-protocol": "protocol=open-protocol",
    "open-protocol, snappy": "protocol=open-protocol&large-message-handle-compression=snappy&max-batch-size=1",
    "open-protocol, lz4": "protocol=open-protocol&large-message-handle-compression=lz4",
    "canal-json": "protocol=canal-json&enable-tidb-extension=true",
    "canal-json, lz4": "protocol=canal-json&enable-tidb-extension=true&large-message-handle-compression=lz4",
    "simple": "protocol=simple",
    "simple, snappy": "protocol=simple&large-message-handle-compression=snappy",
    "simple in Avro": "protocol=simple&encoding-format=avro",
    "simple in Avro, lz4": "protocol=simple&encoding-format=avro&large-message-handle-compression=lz4",
    "simple, in one": "protocol=simple&send-all-bootstrap-at-start=true&send-bootstrap-to-all-partition=false"
    "&partition-num=1",
}


def sample(table: TableInfo, *rows: tuple[Row | None, Row | None]) -> RowBatch:
    return rows_of(table, *rows)


EVERY = sample(EVERY_TYPE, (None, FULL), (None, BARE), (FULL, {**FULL, "c_tiny": None}), (BARE, None))
ITEMS = sample(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None), (None, SECOND))


def sent_through(feed: Feed, rows: RowBatch) -> None:
    """The rows, then a DDL, then a resolved-ts."""
    table = rows.table
    receipt = feed.target(END, table).write(iter([rows]))
    feed.saved = feed.owner.take(feed.writer.commit(Ts(COMMIT_TS + END), [receipt]))
    at = Ts(COMMIT_TS + END - 1)
    kind = ActionType.MODIFY_COLUMN
    feed.owner.ddl(DdlEvent(at, Ts(at - 1), 0, kind, kind, "alter table x comment ''", table.schema, table.name, table))
    feed.owner.publish(at)


def heard(broker: Broker, feed: Feed, topic: str) -> list[Events]:
    """By partition, each with a reader of its own."""
    return [
        reader_for(feed.options.protocol).read(received(*((m.key, m.value) for m in part)))
        for part in broker.messages(topic)
    ]


def rows_heard(events: Sequence[Events]) -> list[Change]:
    for each in events:
        assert not [mark for _, mark in each.marks if isinstance(mark, Unreadable)]
        assert each.waiting == ()
    return sorted((change for each in events for change in all_changes(each)), key=lambda change: change[0])


@pytest.mark.parametrize("form", LOSSLESS)
def test_rows_of_every_type_come_back_as_they_were(broker: Broker, topic: str, form: str) -> None:
    feed = Feed(broker.uri(topic, LOSSLESS[form]), BY_KEY)
    feed.owner.know([EVERY_TYPE])
    sent_through(feed, EVERY)
    events = heard(broker, feed, topic)
    assert rows_heard(events) == changes(EVERY)
    for number, each in enumerate(events):
        resolved = [mark for _, mark in each.marks if isinstance(mark, ResolvedSeen)]
        assert resolved == [ResolvedSeen(Ts(COMMIT_TS + END - 1))]
        queries = [mark.query for _, mark in each.marks if isinstance(mark, DdlSeen) and mark.query]
        assert len(queries) == (0 if form.startswith("canal") and number else 1)


def test_the_schema_of_simple_comes_before_its_rows_and_again_when_it_is_due(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=simple&send-bootstrap-in-msg-count=4&partition-num=2"), BY_KEY)
    sent_through(feed, ITEMS)
    sent_through(feed, ITEMS)
    for part in broker.messages(topic):
        types = [json.loads(message.value or b"")["type"] for message in part]
        assert types[0] == "BOOTSTRAP"
        assert types.count("BOOTSTRAP") == 2
    assert rows_heard(heard(broker, feed, topic)) == sorted(changes(ITEMS) * 2, key=lambda change: change[0])


LARGE = {**FIRST, "note": "x" * 5000}
LARGES = sample(ITEM, (None, FIRST), (None, LARGE), (LARGE, SECOND), (LARGE, None))
SPEAKING_LARGE = ("open-protocol", "canal-json&enable-tidb-extension=true", "simple")


@pytest.mark.parametrize("protocol", SPEAKING_LARGE)
def test_rows_too_large_are_sent_with_their_key_alone(broker: Broker, topic: str, protocol: str) -> None:
    broker.create(topic, 2, max_message_bytes="3000")
    feed = Feed(broker.uri(topic, f"protocol={protocol}&large-message-handle-option=handle-key-only"), BY_KEY)
    sent_through(feed, LARGES)
    events = heard(broker, feed, topic)
    seen = [each for part in events for each in part.rows]
    whole = [change for each in seen if not each.is_partial for change in changes(each.rows)]
    key = {"id": 7}
    short = sorted((c for each in seen if each.is_partial for c in changes(each.rows)), key=lambda change: change[0])
    assert whole == [(COMMIT_TS, None, FIRST)]
    assert short == [(COMMIT_TS + 1, None, key), (COMMIT_TS + 2, key, key), (COMMIT_TS + 3, key, None)]


@pytest.mark.parametrize(
    ("protocol", "compression", "raw"),
    [
        ("open-protocol", "none", ""),
        ("open-protocol", "lz4", ""),
        ("canal-json&enable-tidb-extension=true", "none", ""),
        ("simple", "snappy", ""),
        ("simple", "none", "&claim-check-raw-value=true"),
        ("simple&encoding-format=avro", "none", "&claim-check-raw-value=true"),
    ],
)
def test_rows_too_large_are_kept_aside_and_found_again(
    broker: Broker, topic: str, tmp_path: Path, protocol: str, compression: str, raw: str
) -> None:
    broker.create(topic, 2, max_message_bytes="3000")
    large = {**FIRST, "note": "".join(f"{n * n:x}" for n in range(2000))}  # not small when it is compressed either
    rows = sample(ITEM, (None, FIRST), (None, large), (large, SECOND), (large, None))
    asked = f"large-message-handle-option=claim-check&large-message-handle-compression={compression}{raw}"
    uri = broker.uri(topic, f"protocol={protocol}&{asked}&claim-check-storage-uri={(tmp_path / 'claims').as_uri()}/")
    feed = Feed(uri, BY_KEY)
    sent_through(feed, rows)
    readers = [reader_for(feed.options.protocol) for _ in range(2)]
    found: list[Change] = []
    for reader, part in zip(readers, broker.messages(topic), strict=True):
        for each in reader.read(received(*((m.key, m.value) for m in part))).rows:
            if not each.claim:
                found += changes(each.rows)
                continue
            content = (tmp_path / "claims" / each.claim.rpartition("/")[2]).read_bytes()
            key, value = (None, content) if raw else unpacked(content)
            found += all_changes(reader.read(received((key, value))))
    assert sorted(found, key=lambda change: change[0]) == changes(rows)
    assert len(list((tmp_path / "claims").iterdir())) == 3


def unpacked(content: bytes) -> tuple[bytes | None, bytes]:
    said = json.loads(content)
    key = said["key"]
    return None if key is None else base64.b64decode(key), base64.b64decode(said["value"])


@pytest.mark.parametrize(
    "protocol",
    ["open-protocol", "canal-json&enable-tidb-extension=true", "simple", "debezium"],
)
def test_rows_too_large_are_put_aside_whole_and_the_others_go_out(
    broker: Broker, topic: str, tmp_path: Path, protocol: str
) -> None:
    feed = Feed(broker.uri(topic, f"protocol={protocol}&max-message-bytes=3000&on-too-large=quarantine"))
    rows = sample(ITEM, (None, FIRST), (None, LARGE), (LARGE, SECOND), (SECOND, None))
    feed.owner.know([ITEM])
    receipt = feed.target(END, ITEM).write(iter([rows]))
    assert receipt.rows == 2
    quarantine(tmp_path / "undecodable", lambda table: Ts(COMMIT_TS + END), receipt.aside)
    aside = read_quarantine(tmp_path / "undecodable")
    assert [(each.table, each.commit_ts) for each in aside] == [("shop.item", COMMIT_TS + n) for n in (1, 2)]
    assert all("bytes, more than topic" in each.reason for each in aside)
    reader = reader_for(feed.options.protocol)
    schemas = [m.value for part in broker.messages(topic) for m in part if b"BOOTSTRAP" in (m.value or b"")]
    held = reader.read(received(*((None, each) for each in schemas), *((e.key or None, e.value) for e in aside)))
    notes = [{image["note"] for image in (old, new) if image} for _, old, new in all_changes(held)]
    assert [LARGE["note"] in each for each in notes] == [True, True]
    feed.saved = feed.owner.take(feed.writer.commit(Ts(COMMIT_TS + END), [receipt]))
    found = rows_heard(heard(broker, feed, topic))
    assert sorted(ts - COMMIT_TS for ts, _, _ in found) == [0, 3]


def test_a_place_for_large_messages_that_cannot_be_written_stops_the_changefeed(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    asked = f"large-message-handle-option=claim-check&claim-check-storage-uri={(tmp_path / 'file' / 'claims').as_uri()}"
    feed = Feed(broker.uri(topic, f"protocol=simple&max-message-bytes=3000&{asked}"))
    with pytest.raises(SinkError, match=r"cannot keep a large message in .*Check claim-check-storage-uri") as raised:
        sent_through(feed, LARGES)
    assert not raised.value.retryable


@pytest.fixture(scope="module")
def registry() -> Iterator[StandInRegistry]:
    with StandInRegistry() as started:
        yield started


@pytest.mark.parametrize("more", ["", "&avro-decimal-handling-mode=string&avro-bigint-unsigned-handling-mode=string"])
def test_avro_registers_the_schemas_of_its_topic(
    broker: Broker, registry: StandInRegistry, topic: str, more: str
) -> None:
    asked = f"protocol=avro&schema-registry={registry.uri}&enable-tidb-extension=true&avro-enable-watermark=true{more}"
    feed = Feed(broker.uri(topic, asked), (Dispatch(("*.*",), "index-value", topic=f"{topic}.{{schema}}.{{table}}"),))
    priced = table_of(
        column("id", ColumnType.LONGLONG, KEY),
        column("price", ColumnType.NEWDECIMAL, flen=40, decimal=3),
        column("many", ColumnType.LONGLONG, UNSIGNED),
        name="priced",
    )
    row = {"id": 1, "price": "-1234567890123456789012345678901234567.890", "many": 2**64 - 1}
    rows = sample(priced, (None, row), (row, {**row, "price": None}), ({**row, "price": None}, None))
    sent_through(feed, rows)
    name = f"{topic}.shop.priced"
    assert {subject for subject in registry.schemas if topic in subject} == {
        f"{name.replace('.', '_')}-{part}" for part in ("key", "value")
    }
    events = heard(broker, feed, name)
    assert rows_heard(events) == [  # an update reads as an insert; a delete says no more than its key
        (0, {"id": 1}, None),
        (COMMIT_TS, None, row),
        (COMMIT_TS + 1, None, {**row, "price": None}),
    ]
    for each in events:
        assert [mark for _, mark in each.marks if isinstance(mark, ResolvedSeen)] == [
            ResolvedSeen(Ts(COMMIT_TS + END - 1))
        ]


def test_avro_without_its_registry_waits_for_it(broker: Broker, topic: str) -> None:
    with StandInRegistry() as gone:
        uri = gone.uri
    options = read_sink_uri(broker.uri(topic, f"protocol=avro&schema-registry={uri}"))
    assert isinstance(options, KafkaOptions)
    assert isinstance(options.protocol, Avro)
    with pytest.raises(SinkError, match="Start it, or correct schema-registry") as raised:
        replace(options.protocol.registry, policy=Policy(0.1, 0.1, most_failures=0)).check()
    assert raised.value.retryable


def test_the_long_form_says_what_is_new_and_the_key_of_what_is_gone(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=long-form"), BY_KEY)
    sent_through(feed, EVERY)
    events = heard(broker, feed, topic)
    assert rows_heard(events) == [(ts, None, new) if new else (ts, {"a_id": 6}, None) for ts, _, new in changes(EVERY)]
    for part in broker.messages(topic):
        assert (json.loads(part[-1].key or b"")["type"], part[-1].value) == ("Resolved", None)


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4"])
def test_debezium_comes_back_with_its_key(broker: Broker, topic: str, compression: str) -> None:
    asked = f"protocol=debezium&enable-tidb-extension=true&large-message-handle-compression={compression}"
    feed = Feed(broker.uri(topic, asked), BY_KEY)
    sent_through(feed, ITEMS)
    assert rows_heard(heard(broker, feed, topic)) == changes(ITEMS)
