"""What a real TiDB did, in the simple protocol: the messages that TiCDC made of it."""

import json
import re
from base64 import b64decode
from typing import Any

import pytest

from tests.flow.encoder.test_histories import BUILT_MS, CONFUSED, MISSED, NAMES, batches, recorded
from tests.flow.schema.stores import fed_store
from tests.histories import load
from tidemill.flow.encoder import CanalJson, Simple
from tidemill.model.row import arrow_type
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts

SIMPLE = Simple().of_changefeed("Local")  # which is what the recorder called UTC


def like_ours(theirs: bytes) -> bytes:
    return re.sub(rb'"buildTs":\d+', b'"buildTs":%d' % BUILT_MS, theirs, count=1)


def is_shuffled(table: TableInfo) -> bool:
    """TiCDC sorts the columns of a table, in place, when it encodes a DDL; where that changes their order it puts the
    values of later rows into the wrong columns."""
    return [column.id for column in table.columns] != sorted(column.id for column in table.columns)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_that_of_ticdc(name: str) -> None:
    history, encoder, canal = load(name), SIMPLE.encoder(BUILT_MS), CanalJson().encoder(BUILT_MS)
    ours: dict[Any, tuple[TableInfo, bytes, bytes]] = {}
    for rows, keys in batches(history):
        made = zip(encoder.encode(rows).messages(), canal.encode(rows).messages(), strict=True)
        ours |= {key: (rows.table, *found) for key, found in zip(keys, made, strict=True)}
    keys = {row["seq"]: (row["commit_ts"], row["key"]) for row in history.ticdc_rows()}
    messages = recorded(history, "simple", "row")
    assert len(messages) >= 145
    for message in messages:
        table, mine, other = ours[keys[message["seq"]]]
        right, wrong = CONFUSED.get((name, message["seq"]), ("", ""))
        renamed = mine.replace(f'"table":"{right}"'.encode(), f'"table":"{wrong}"'.encode())
        if is_shuffled(table):
            assert without_values(renamed) == without_values(like_ours(message["value"]))
            assert images(table, json.loads(mine)) == images_of_canal(json.loads(other))
        else:
            assert renamed.decode() == like_ours(message["value"]).decode()


def without_values(message: bytes) -> Any:
    return {k: sorted(v) if isinstance(v, dict) else v for k, v in json.loads(message).items()}


def images(table: TableInfo, message: Any) -> list[Any]:
    """Values as canal-json writes them, whose messages have been compared with TiCDC's."""
    kinds = {column.name: (column.type, arrow_type(column)) for column in table.columns}

    def text(name: str, value: Any) -> Any:
        kind, form = kinds[name]
        if value is None or kind is ColumnType.TIMESTAMP:
            return value and value["value"]
        return b64decode(value).decode("latin-1") if form == "binary" else value

    found = [message.get(member) for member in ("data", "old")]
    return [image and {name: text(name, value) for name, value in image.items()} for image in found]


def images_of_canal(message: Any) -> list[Any]:
    (data,), old = message["data"], (message["old"] or [None])[0]
    return [None, data] if message["type"] == "DELETE" else [data, old]


@pytest.mark.parametrize("name", NAMES)
def test_every_ddl_is_that_of_ticdc(name: str) -> None:
    _, changes = fed_store(name)
    made = [SIMPLE.ddl(event, BUILT_MS) for change in changes for event in change.events]
    theirs = [like_ours(message["value"]).decode() for message in recorded(load(name), "simple", "ddl")]
    ours = [message.value.decode() for message in made]
    assert len(theirs) >= 27
    assert [message for message in ours if message in theirs] == theirs
    more = [json.loads(message) for message in ours if message not in theirs]
    assert [(m["type"], m["sql"]) for m in more] == MISSED.get(name, [])
    assert all((message.key, message.partition) == (None, None) for message in made)


@pytest.mark.parametrize("name", NAMES)
def test_the_watermark_is_that_of_ticdc(name: str) -> None:
    (message,) = recorded(load(name), "simple", "resolved")
    assert SIMPLE.resolved(Ts(message["ts"]), BUILT_MS).value == like_ours(message["value"])
