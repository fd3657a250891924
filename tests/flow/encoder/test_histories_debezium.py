"""What a real TiDB did, through schema store, mounter and encoder: TiCDC's messages for Debezium, byte for byte."""

import json
import re
from typing import Any

import pytest

from tests.flow.encoder.test_histories import BUILT_MS, CONFUSED, NAMES, batches, recorded
from tests.flow.schema.stores import fed_store
from tests.histories import load
from tidemill.flow.encoder import Debezium

# TiCDC cannot follow the renames in "ddl" (see test_histories), and up to 9.0 does not tell of TRUNCATE.
MORE = {
    "ddl": [
        "RENAME TABLE `shop`.`s1` TO `shop`.`s_tmp`",
        "RENAME TABLE `shop`.`s2` TO `shop`.`s1`",
        "RENAME TABLE `shop`.`s_tmp` TO `shop`.`s2`",
        "truncate table b6",
        "DROP TABLE `shop`.`s1`",
        "DROP TABLE `shop`.`s2`",
    ],
    "online": ["truncate table t"],
}


def with_our_clock(theirs: bytes) -> bytes:
    return re.sub(rb'\},"ts_ms":\d+', b'},"ts_ms":%d' % BUILT_MS, theirs, count=1)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_that_of_ticdc(name: str) -> None:
    history, encoder = load(name), Debezium().encoder(BUILT_MS)
    ours: dict[Any, tuple[bytes, bytes]] = {}
    for rows, keys in batches(history):
        encoded = encoder.encode(rows)
        ours |= zip(keys, zip(encoded.message_keys() or [], encoded.messages(), strict=True), strict=True)
    keys = {row["seq"]: (row["commit_ts"], row["key"]) for row in history.ticdc_rows()}
    messages = recorded(history, "debezium", "row")
    assert len(messages) >= 145
    for message in messages:
        key, value = ours[keys[message["seq"]]]
        right, wrong = (word.encode() for word in CONFUSED.get((name, message["seq"]), ("", "")))
        if right:
            key = key.replace(b"shop." + right, b"shop." + wrong)
            value = value.replace(b"shop." + right, b"shop." + wrong).replace(b'"%b"' % right, b'"%b"' % wrong)
        assert key.decode() == message["key"].decode()
        assert value.decode() == with_our_clock(message["value"]).decode()


@pytest.mark.parametrize("name", NAMES)
def test_every_ddl_is_that_of_ticdc(name: str) -> None:
    _, changes = fed_store(name)
    made = [Debezium().ddl(event, BUILT_MS) for change in changes for event in change.events]
    ours = [(message.key, message.value) for message in made if message is not None]
    theirs = [(message["key"], with_our_clock(message["value"])) for message in recorded(load(name), "debezium", "ddl")]
    assert len(theirs) >= 26
    assert [message for message in ours if message in theirs] == theirs
    assert [json.loads(value)["payload"]["ddl"] for key, value in ours if (key, value) not in theirs] == MORE.get(
        name, []
    )
