"""The simple protocol in Avro, held against a library of Avro with the schema that TiCDC has, and read back."""

import io
import random
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import BUILT_MS, COMMIT_TS, FIRST, ITEM, SECOND, Row, rows_of
from tests.flow.encoder.test_histories import NAMES, batches
from tests.flow.reader.plain import all_changes, changes, received, sent, sent_alone
from tests.flow.reader.rows import EVERY_TYPE, any_row
from tests.flow.reader.simple_avro_schema import SCHEMA
from tests.flow.schema.stores import fed_store
from tests.fuzz.mutate import mutated
from tests.histories import load
from tidemill.flow.encoder import Simple
from tidemill.flow.encoder.large import Handling
from tidemill.flow.encoder.simple import Format
from tidemill.flow.reader.simple import SimpleReader
from tidemill.model.event import DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.row import RowBatch
from tidemill.model.ts import Ts

AVRO = Simple(encoding_format=Format.AVRO).of_changefeed("UTC")


def decoded(message: bytes) -> Any:
    stream = io.BytesIO(message)
    found = fastavro.schemaless_reader(stream, SCHEMA, None)
    assert stream.read() == b""
    return found


def bootstrapped(rows: RowBatch) -> SimpleReader:
    reader = SimpleReader()
    reader.read(sent_alone([AVRO.bootstrap(rows.table, BUILT_MS)]))
    return reader


def test_a_row_as_another_library_reads_it() -> None:
    table = replace(ITEM, update_ts=Ts(44))
    messages = AVRO.encoder(BUILT_MS).encode(rows_of(table, (None, FIRST), (FIRST, SECOND), (SECOND, None))).messages()
    assert {message[0] for message in messages} == {0x16}
    insert, update, delete = map(decoded, messages)
    image = {"id": 7, "sku": "A-1", "qty": None, "tag": b"\0a\xff", "kind": 2, "note": "héllo"}
    common = {
        "version": 1, "database": "shop", "table": "item", "tableID": 108, "buildTs": BUILT_MS, "schemaVersion": 44,
        "claimCheckLocation": None, "handleKeyOnly": None, "checksum": None,
    }  # fmt: skip
    assert insert == {
        "type": "DML",
        "payload": {**common, "type": "INSERT", "commitTs": COMMIT_TS, "data": image, "old": None},
    }
    assert update["payload"]["data"] == {**image, "qty": 5}
    assert (update["payload"]["old"], update["payload"]["type"]) == (image, "UPDATE")
    assert (delete["payload"]["data"], delete["payload"]["type"]) == (None, "DELETE")


def test_values_are_in_the_branches_of_their_types() -> None:
    row: Row = {each.name: None for each in EVERY_TYPE.columns}
    row |= {"a_id": -1, "b_unsigned": 2**64 - 1, "d_float": 0.5, "e_double": 0.25, "s_timestamp": "2020-01-01 00:00:00"}
    row |= {"h_bit": 5, 'l_"<é\\': "x", "p_blob": b"\xff", "f_decimal": "1.50"}
    (message,) = AVRO.encoder(1).encode(rows_of(EVERY_TYPE, (None, row))).messages()
    data = decoded(message)["payload"]["data"]
    assert data["b_unsigned"] == {"value": -1}
    assert data["s_timestamp"] == {"location": "UTC", "value": "2020-01-01 00:00:00"}
    assert (data["h_bit"], data["p_blob"], data["f_decimal"], data["c_tiny"]) == (5, b"\xff", "1.50", None)


@given(st.lists(st.tuples(st.none() | any_row(), any_row(), st.booleans()), min_size=1, max_size=12))
def test_any_rows_read_back_as_what_they_were(pairs: list[tuple[Row | None, Row, bool]]) -> None:
    rows = rows_of(EVERY_TYPE, *((new, None) if is_delete else (old, new) for old, new, is_delete in pairs))
    encoded = AVRO.encoder(BUILT_MS).encode(rows)
    for message in encoded.messages():
        decoded(message)
    events = bootstrapped(rows).read(sent(encoded))
    assert (events.marks, events.waiting) == ([], ())
    assert all_changes(events) == changes(rows)


@given(st.randoms(use_true_random=False))
def test_a_map_may_have_any_order(chance: random.Random) -> None:
    """Go's maps have none."""
    rows = rows_of(ITEM, (FIRST, SECOND), (None, FIRST))
    messages = []
    for message in AVRO.encoder(1).encode(rows).messages():
        content = decoded(message)
        for member in ("data", "old"):
            image = content["payload"][member]
            if image:
                content["payload"][member] = dict(chance.sample(sorted(image.items()), len(image)))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, SCHEMA, ("com.pingcap.simple.avro.Message", content))
        messages.append((None, out.getvalue()))
    assert all_changes(bootstrapped(rows).read(received(*messages))) == changes(rows)


@pytest.mark.parametrize("name", NAMES[:2])
def test_what_a_real_tidb_did_reads_back_as_from_json(name: str) -> None:
    _, made = fed_store(name)
    ddls = [event for change in made for event in change.events]
    readers = []
    for protocol in (AVRO, Simple()):
        reader = SimpleReader()
        events = reader.read(sent_alone([protocol.ddl(event, 1) for event in ddls] + [protocol.resolved(Ts(5), 1)]))
        assert [isinstance(mark, DdlSeen | ResolvedSeen) for _, mark in events.marks] == [True] * (len(ddls) + 1)
        readers.append((protocol, reader, events))
    assert readers[0][2] == readers[1][2]
    count = 0
    for rows, _ in batches(load(name)):
        avro, json = (reader.read(sent(p.encoder(1).encode(rows))) for p, reader, _ in readers)
        assert (all_changes(avro), avro.waiting) == (all_changes(json), json.waiting)
        assert [seen.rows.table for seen in avro.rows] == [seen.rows.table for seen in json.rows]
        count += len(all_changes(avro))
    assert count > 140


def test_rows_wait_for_their_schema_and_may_be_among_json() -> None:
    rows, reader = rows_of(ITEM, (None, FIRST)), SimpleReader()
    (avro,), (json,) = (p.encoder(1).encode(rows).messages() for p in (AVRO, Simple()))
    messages = received((None, json), (None, avro), (None, json), (None, avro))
    assert reader.read(messages).waiting == (0, 1, 2, 3)
    schema = AVRO.bootstrap(ITEM, 1)
    events = reader.read(received((None, avro), (None, schema.value), (None, json)))
    assert (len(all_changes(events)), [place for place, _ in events.marks]) == (2, [1])


@pytest.mark.parametrize("handling", [Handling.HANDLE_KEY_ONLY, Handling.CLAIM_CHECK])
def test_large_rows(handling: Handling) -> None:
    rows, kept = rows_of(ITEM, (None, FIRST), (None, {**FIRST, "note": "x" * 4000})), {}
    protocol = replace(
        AVRO, max_message_bytes=1000, large_message_handle_option=handling, claim_check_storage_uri="file:///c"
    )
    events = bootstrapped(rows).read(sent(protocol.encoder(1, kept.__setitem__).encode(rows)))
    whole, short = events.rows
    assert (changes(whole.rows), whole.is_partial) == (changes(rows)[:1], False)
    assert (changes(short.rows), short.is_partial) == ([(COMMIT_TS + 1, None, {"id": 7})], True)
    if kept:
        ((name, _),) = kept.items()
        assert short.claim == f"file:///c/{name}"


def test_damaged_messages_are_read_or_refused_by_themselves() -> None:
    chance = random.Random(11)
    rows = rows_of(ITEM, (None, FIRST), (FIRST, SECOND), (SECOND, None))
    others = [AVRO.bootstrap(ITEM, 1).value, AVRO.resolved(Ts(5), 1).value]
    good = [*AVRO.encoder(1).encode(rows).messages(), *(each for each in others if each)]
    for _ in range(400):
        bad = mutated(chance, chance.choice(good))
        events = bootstrapped(rows).read(received((None, good[0]), (None, b"\x16" + bad[1:]), (None, good[2])))
        if any(isinstance(mark, DdlSeen) and mark.table_info for _, mark in events.marks):
            continue  # it described the table, and the others are read by what it says
        assert all(place == 1 for place, _ in events.marks)
        said = [mark for _, mark in events.marks if isinstance(mark, Unreadable)]
        assert len(all_changes(events)) + len(events.waiting) + len(said) >= 2
