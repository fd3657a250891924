"""What a real TiDB did, through schema store, mounter and encoder: the messages that TiCDC made of it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.flow.schema.stores import fed_store
from tests.histories import History, load
from tidemill.flow.encoder import CanalJson, OpenProtocol
from tidemill.flow.encoder.framing import framed_key
from tidemill.flow.encoder.port import Message
from tidemill.flow.mounter import mount
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

NAMES = ("types", "ddl", "online")
# TiCDC cannot follow "rename table s1 to s_tmp, s2 to s1, s_tmp to s2": it has no message of the renames,
# calls the two tables by each other's name from there on, and has none of their being dropped.
CONFUSED = {("ddl", 40): ("s1", "s2"), ("ddl", 41): ("s2", "s1")}
MISSED = {
    "ddl": [
        ("RENAME", "RENAME TABLE `shop`.`s1` TO `shop`.`s_tmp`"),
        ("RENAME", "RENAME TABLE `shop`.`s2` TO `shop`.`s1`"),
        ("RENAME", "RENAME TABLE `shop`.`s_tmp` TO `shop`.`s2`"),
        ("ERASE", "DROP TABLE `shop`.`s1`"),
        ("ERASE", "DROP TABLE `shop`.`s2`"),
    ]
}
BUILT_MS = 1234567890123
OPTIONS = {
    "canal-json": CanalJson(),
    "canal-json-tidb": CanalJson(enable_tidb_extension=True),
}
ALONE = OpenProtocol(max_batch_size=1)


def recorded(history: History, protocol: str, kind: str) -> list[dict[str, Any]]:
    messages = history.messages()
    wanted = pc.and_(pc.equal(messages["protocol"], protocol), pc.equal(messages["kind"], kind))
    return messages.filter(wanted).select(["ts", "seq", "key", "value"]).to_pylist()


def batches(history: History) -> Iterator[tuple[RowBatch, list[tuple[int, str]]]]:
    """All rows with a known schema, cut where it changes, and (commit-ts, key) of each."""
    store, _ = fed_store(history.name)
    for physical_id in history.physical_ids():
        changes = history.row_changes(physical_id)
        is_row = pc.or_(*(pc.greater(pc.binary_length(changes.column(c)), 0) for c in ("value", "old_value")))
        changes = changes.filter(is_row)
        tables = [store.table(physical_id, ts) for ts in changes.column("commit_ts").to_pylist()]
        begin = 0
        for end in range(1, len(tables) + 1):
            if end == len(tables) or tables[end] is not tables[begin]:
                table, part = tables[begin], changes.slice(begin, end - begin)
                if table is not None:
                    yield mount(table, physical_id, part), _keys(part)
                begin = end


def _keys(changes: pa.RecordBatch) -> list[tuple[int, str]]:
    columns = (changes.column(name).to_pylist() for name in ("commit_ts", "key"))
    return [(ts, key.hex()) for ts, key in zip(*columns, strict=True)]


def like_ours(theirs: bytes, ours: bytes) -> bytes:
    """TiCDC's message with our build time, and with its ``mysqlType``, which it writes in random order, in ours."""
    theirs = re.sub(rb'"ts":\d+', b'"ts":%d' % BUILT_MS, theirs, count=1)
    found = re.search(rb'"mysqlType":(\{[^}]*\})', ours)
    turned = re.search(rb'"mysqlType":(\{[^}]*\})', theirs)
    if found and turned and json.loads(found[1]) == json.loads(turned[1]):
        return theirs.replace(turned[1], found[1])
    return theirs


@pytest.mark.parametrize("name", NAMES)
def test_every_row_message_is_that_of_ticdc(name: str) -> None:
    history = load(name)
    encoders = {name: protocol.encoder(BUILT_MS) for name, protocol in OPTIONS.items()}
    ours: dict[Any, bytes] = {}
    for rows, keys in batches(history):
        for protocol, encoder in encoders.items():
            ours |= zip([(protocol, *key) for key in keys], encoder.encode(rows).messages(), strict=True)
    keys = {row["seq"]: (row["commit_ts"], row["key"]) for row in history.ticdc_rows()}
    for protocol in OPTIONS:
        messages = recorded(history, protocol, "row")
        assert len(messages) >= 145
        for message in messages:
            mine = ours[protocol, *keys[message["seq"]]].decode()
            right, wrong = CONFUSED.get((name, message["seq"]), ("", ""))
            renamed = mine.replace(f'"table":"{right}"', f'"table":"{wrong}"')
            assert renamed == like_ours(message["value"], mine.encode()).decode()


@pytest.mark.parametrize("protocol", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_every_ddl_message_is_that_of_ticdc(name: str, protocol: str) -> None:
    history = load(name)
    _, changes = fed_store(name)
    events = [event for change in changes for event in change.events]
    ours = [OPTIONS[protocol].ddl(event, BUILT_MS).value for event in events]
    theirs = [like_ours(message["value"], b"") for message in recorded(history, protocol, "ddl")]
    assert len(theirs) >= 27
    assert [message for message in ours if message in theirs] == theirs
    more = [json.loads(message) for message in ours if message not in theirs]
    assert [(m["type"], m["sql"]) for m in more] == MISSED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_the_watermark_is_that_of_ticdc(name: str) -> None:
    (message,) = recorded(load(name), "canal-json-tidb", "resolved")
    resolved = OPTIONS["canal-json-tidb"].resolved(Ts(message["ts"]), BUILT_MS)
    assert resolved is not None
    assert resolved.value == like_ours(message["value"], b"")


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_the_open_protocol_is_that_of_ticdc(name: str) -> None:
    history, encoder = load(name), ALONE.encoder(BUILT_MS)
    ours: dict[Any, tuple[TableInfo, bytes, bytes]] = {}
    for rows, keys in batches(history):
        encoded = encoder.encode(rows)
        found = zip(encoded.message_keys() or [], encoded.messages(), strict=True)
        ours |= {key: (rows.table, *message) for key, message in zip(keys, found, strict=True)}
    keys = {row["seq"]: (row["commit_ts"], row["key"]) for row in history.ticdc_rows()}
    messages = recorded(history, "open-protocol", "row")
    assert len(messages) >= 145
    for message in messages:
        table, key, value = ours[keys[message["seq"]]]
        right, wrong = CONFUSED.get((name, message["seq"]), ("", ""))
        assert key.replace(f'"tbl":"{right}"'.encode(), f'"tbl":"{wrong}"'.encode()) == _visible(table, message["key"])
        assert value == message["value"]


def _visible(table: TableInfo, key: bytes) -> bytes:
    """TiCDC's key without a handle that is no column."""
    if table.pk_is_handle:
        return key
    return framed_key(re.sub(rb',"rid":-?\d+', b"", key[16:]))


@pytest.mark.parametrize("name", NAMES)
def test_every_ddl_of_the_open_protocol_is_that_of_ticdc(name: str) -> None:
    _, changes = fed_store(name)
    made = [ALONE.ddl(event, BUILT_MS) for change in changes for event in change.events]
    ours = [(message.key, message.value) for message in made]
    theirs = [(message["key"], message["value"]) for message in recorded(load(name), "open-protocol", "ddl")]
    assert len(theirs) >= 27
    assert [message for message in ours if message in theirs] == theirs
    more = [json.loads(value[8:])["q"] for key, value in ours if (key, value) not in theirs]
    assert more == [query for _, query in MISSED.get(name, [])]
    assert all(message.partition is None for message in made)


@pytest.mark.parametrize("name", NAMES)
def test_the_resolved_ts_of_the_open_protocol_is_that_of_ticdc(name: str) -> None:
    (message,) = recorded(load(name), "open-protocol", "resolved")
    ts = Ts(message["ts"])
    assert ALONE.resolved(ts, BUILT_MS) == Message(message["value"], ts, message["key"])
