"""The open protocol read back: what we wrote, what both generations of TiCDC write, and what nobody should have."""

import json
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import BUILT_MS, COMMIT_TS, FIRST, ITEM, KEY, SECOND, Row, column, rows_of, table_of
from tests.flow.reader.plain import all_changes, changes, received, sent, sent_alone
from tests.flow.reader.rows import EVERY_TYPE, any_row
from tidemill.flow.encoder import OpenProtocol
from tidemill.flow.encoder.framing import framed, framed_key
from tidemill.flow.reader import Events
from tidemill.flow.reader.open_protocol import OpenProtocolReader
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.event import AdminSeen, DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, PartitionInfo
from tidemill.model.ts import Ts

ID = '"id":{"t":8,"h":true,"f":11,"v":7}'
SKU = '"sku":{"t":15,"f":16,"v":"A-1"}'


def read(*events: tuple[str, str]) -> Events:
    """One message with these keys and values."""
    key = framed_key(b"")[:8] + framed(*(key.encode() for key, _ in events))
    return OpenProtocolReader().read(received((key, framed(*(value.encode() for _, value in events)))))


def read_value(value: str, key: str = '{"ts":5,"scm":"s","tbl":"t","t":1}') -> Events:
    return read((key, value))


def same(rows: RowBatch, protocol: OpenProtocol | None = None) -> Events:
    protocol = protocol or OpenProtocol()
    events = OpenProtocolReader().read(sent(protocol.encoder(BUILT_MS).encode(rows)))
    assert events.marks == []
    assert all_changes(events) == changes(rows)
    return events


@given(st.lists(st.tuples(st.none() | any_row(), any_row(), st.booleans()), max_size=12), st.integers(1, 5))
def test_any_rows_read_back_as_what_they_were(pairs: list[tuple[Row | None, Row, bool]], most: int) -> None:
    changed = [(new, None) if is_delete else (old, new) for old, new, is_delete in pairs]
    rows = rows_of(EVERY_TYPE, *changed)
    events = same(rows, OpenProtocol(max_batch_size=most))
    if changed:
        (seen,) = events.rows
        assert seen.message.tolist() == [n // most for n in range(len(changed))]
        again = OpenProtocol(max_batch_size=most).encoder(BUILT_MS).encode(seen.rows)
        assert again.messages() == OpenProtocol(max_batch_size=most).encoder(BUILT_MS).encode(rows).messages()


def test_old_values_that_are_left_out_are_those_of_the_new_row() -> None:
    rows = rows_of(ITEM, (FIRST, SECOND), (FIRST, FIRST), (SECOND, {**FIRST, "sku": "A-2"}))
    same(rows, OpenProtocol(only_output_updated_columns=True))


def test_an_update_without_its_old_row_is_an_insert() -> None:
    rows = rows_of(ITEM, (FIRST, SECOND))
    events = OpenProtocolReader().read(sent(OpenProtocol(output_old_value=False).encoder(BUILT_MS).encode(rows)))
    assert all_changes(events) == [(COMMIT_TS, None, SECOND)]


def test_a_delete_may_hold_its_key_alone() -> None:
    rows = rows_of(ITEM, (None, FIRST), (FIRST, None))
    protocol = OpenProtocol(delete_only_output_handle_key_columns=True)
    events = OpenProtocolReader().read(sent(protocol.encoder(BUILT_MS).encode(rows)))
    assert all_changes(events) == [(COMMIT_TS, None, FIRST), (COMMIT_TS + 1, {"id": 7}, None)]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ('{"ts":5,"scm":"s","tbl":"t","rid":7,"ptn":9,"t":1}', (9, False, "")),
        ('{"ts":5,"scm":"s","tbl":"t","t":1,"ptn":9}', (9, False, "")),
        ('{"ts":5,"scm":"s","tbl":"t","t":1}', (0, False, "")),
        ('{"ts":5,"scm":"s","tbl":"t","t":1,"ohk":true}', (0, True, "")),
        ('{"ts":5,"scm":"s","tbl":"t","t":1,"ohk":true,"ccl":"s3://b/x.json","ohk":false}', (0, True, "s3://b/x.json")),
        ('{"t":1,"tbl":"t" , "scm":"\\u0073","ts":5}', (0, False, "")),
    ],
)
def test_keys_of_both_generations(key: str, told: tuple[int, bool, str]) -> None:
    events = read_value(f'{{"u":{{{ID}}}}}', key)
    (seen,) = events.rows
    assert (seen.rows.physical_id, seen.is_partial, seen.claim) == told
    assert seen.rows.table.physical_ids == ((9,) if told[0] else (0,))
    assert seen.rows.table.full_name == "s.t"
    assert all_changes(events) == [(5, None, {"id": 7})]


def test_keys_and_indexes_come_from_flags() -> None:
    events = same(rows_of(ITEM, (None, FIRST)))
    table = events.rows[0].rows.table
    assert [column.name for column in table.handle_key] == ["id"]
    assert [column.name for column in table.primary_key] == ["id"]
    assert {column.name for column in table.unique_key_columns} == {"id", "sku"}
    assert {c.name: c.charset for c in table.columns if c.name in ("tag", "note")} == {
        "tag": "binary",
        "note": "utf8mb4",
    }


def test_a_unique_key_may_be_the_handle() -> None:
    keyed = table_of(column("a", ColumnType.LONG, 1), column("b", ColumnType.LONG, 1), uniques=[["a", "b"]])
    (seen,) = same(rows_of(keyed, (None, {"a": 1, "b": 2}))).rows
    assert [c.name for c in seen.rows.table.handle_key] == ["a", "b"]
    assert seen.rows.table.primary_key == ()


def test_flags_that_are_left_out() -> None:
    events = read_value('{"u":{"id":{"t":8,"h":true,"v":-1},"c":{"t":15,"v":"x"}}}')
    (seen,) = events.rows
    assert [c.name for c in seen.rows.table.handle_key] == ["id"]
    assert [c.is_not_null for c in seen.rows.table.columns] == [True, False]
    assert all_changes(events) == [(5, None, {"id": -1, "c": "x"})]


def test_a_column_that_became_null_without_its_name_is_tolerated() -> None:
    value = f'{{"u":{{{ID},"c":{{"t":3,"f":65,"v":null}}}},"p":{{"t":3,"f":65,"v":5}}}}'
    assert all_changes(read_value(value)) == [(5, {"id": 7, "c": None}, {"id": 7, "c": None})]


def test_partitions_of_a_table_are_apart_and_one_table_is_one_object() -> None:
    keyed = table_of(column("id", ColumnType.LONG, KEY), partitions=(PartitionInfo(201, "a"), PartitionInfo(202, "b")))
    encoder, reader = OpenProtocol().encoder(BUILT_MS), OpenProtocolReader()
    rows = rows_of(keyed, (None, {"id": 1}), ({"id": 2}, None), ({"id": 3}, {"id": 4}))
    found = [reader.read(sent(encoder.encode(replace(rows, physical_id=id)))).rows for id in (201, 202, 201)]
    assert [[seen.rows.physical_id for seen in some] for some in found] == [[201], [202], [201]]
    assert found[0][0].rows.table is found[2][0].rows.table


def test_tables_in_one_message_are_apart_and_in_order() -> None:
    events = read(
        *(
            (f'{{"ts":{ts},"scm":"s","tbl":"{name}","t":1}}', f'{{"u":{{"id":{{"t":8,"h":true,"f":11,"v":{ts}}}}}}}')
            for ts, name in enumerate("abab", 1)
        )
    )
    found = {seen.rows.table.name: seen.rows.commit_ts.tolist() for seen in events.rows}
    assert found == {"a": [1, 3], "b": [2, 4]}


SPELLINGS = [
    lambda text: text,
    lambda text: json.dumps(json.loads(text)),
    lambda text: json.dumps(json.loads(text), indent=1, ensure_ascii=True),
    lambda text: json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False),
    lambda text: text.replace("u", "\\u0075", 1),
]


@given(st.lists(any_row(), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_any_spelling_of_json_is_read(rows: list[Row], chance: random.Random) -> None:
    batch = rows_of(EVERY_TYPE, *((None, row) for row in rows))
    encoded = OpenProtocol(max_batch_size=1).encoder(BUILT_MS).encode(batch)
    messages = []
    for key, value in zip(encoded.message_keys() or [], encoded.messages(), strict=True):
        spelled = [chance.choice(SPELLINGS)(part.decode()).encode() for part in (key[16:], value[8:])]
        members = list(json.loads(spelled[1])["u"].items())
        if chance.random() < 0.3:
            chance.shuffle(members)
            spelled[1] = json.dumps({"u": dict(members)}).encode()
        messages.append((framed_key(spelled[0]), framed(spelled[1])))
    events = OpenProtocolReader().read(received(*messages))
    assert events.marks == []
    assert all_changes(events) == changes(batch)
    assert len(events.rows) == 1


def test_more_shapes_than_are_remembered_are_read() -> None:
    names = [f"c{n}" for n in range(9)]
    wide = table_of(column("id", ColumnType.LONG, KEY), *(column(name, ColumnType.LONG) for name in names))
    some = [{"id": 1, **{name: int(bool(n >> k & 1)) for k, name in enumerate(names)}} for n in range(512)]
    rows = rows_of(wide, *((row, {"id": 1, **dict.fromkeys(names, 0)}) for row in some))
    same(rows, OpenProtocol(only_output_updated_columns=True))


def test_numbers_are_exact() -> None:
    kinds = {"s": (65, -(2**63)), "u": (193, 2**64 - 1), "o": (65, 2**53 + 1)}
    image = ",".join(f'"{name}":{{"t":8,"f":{flag},"v":{value}}}' for name, (flag, value) in kinds.items())
    assert all_changes(read_value(f'{{"u":{{{image}}}}}'))[0][2] == {name: value for name, (_, value) in kinds.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\ud83dx"', "\ufffdx"),
        ('"\\ude00"', "\ufffd"),
        ('"\\u00e9\\n\\/\\u2028<"', "é\n/\u2028<"),
        ('""', ""),
        ("null", None),
    ],
)
def test_strings_have_the_escapes_of_json(text: str, value: str | None) -> None:
    assert all_changes(read_value(f'{{"u":{{"c":{{"t":15,"f":64,"v":{text}}}}}}}')) == [(5, None, {"c": value})]


@pytest.mark.parametrize(
    ("kind", "flag", "text"),
    [
        (8, 65, "9223372036854775808"),
        (8, 193, "-1"),
        (8, 65, "1.5"),
        (8, 65, '"x"'),
        (8, 65, "true"),
        (15, 64, "5"),
        (252, 64, '"abc"'),
        (252, 64, '"ab=c"'),
        (15, 65, '"\\\\xg0"'),
        (15, 65, '"\\\\"'),
        (15, 65, '"\\\\U00110000"'),
        (5, 65, '"nan"'),
        (8, 65, "[]"),
        (8, 65, "{}"),
        (99, 65, "1"),
        (8, 65, "01"),
        (15, 64, '"\x01"'),
    ],
)
def test_a_value_that_makes_no_sense_spoils_its_row_alone(kind: int, flag: int, text: str) -> None:
    key = '{"ts":5,"scm":"s","tbl":"t","t":1}'
    good = f'{{"u":{{{ID},"c":{{"t":{kind},"f":{flag},"v":null}}}}}}'
    bad = f'{{"u":{{{ID},"c":{{"t":{kind},"f":{flag},"v":{text}}}}}}}'
    events = read((key, f'{{"u":{{{ID}}}}}'), (key, bad), *([(key, good)] if kind != 99 else []))
    assert len(all_changes(events)) == 2 - (kind == 99)
    ((place, mark),) = events.marks
    assert place == 0
    assert isinstance(mark, Unreadable)
    assert mark.why.startswith("a row of table s.t cannot be read: ")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, framed(b"{}"), "no version 1"),
        (b"\0\0\0\0\0\0\0\2" + framed(b"{}"), framed(b"{}"), "no version 1"),
        (framed_key(b"{}")[:-1], framed(b"{}"), "cut off"),
        (framed_key(b"{}"), framed(b"{}")[:-1], "cut off"),
        (framed_key(b"{}"), framed(b"{}", b"{}"), "different numbers of events"),
        (framed_key(b"{}") + framed(b"{}"), framed(b"{}"), "different numbers of events"),
        (framed_key(b"")[:8], b"", "no event"),
        (framed_key(b"{}"), framed(b"{}"), "the key of an event cannot be read"),
        (framed_key(b'{"ts":5,"t":9}'), framed(b""), "its type is none of 1"),
        (framed_key(b'{"ts":-5,"t":3}'), framed(b""), "its ts is no whole number"),
        (framed_key(b'{"ts":null,"t":3}'), framed(b""), "its ts is no whole number"),
        (framed_key(b'{"ts":5,"t":1}'), framed(b""), "names no schema"),
        (framed_key(b'{"ts":5,"scm":3,"tbl":"t","t":1}'), framed(b""), "member scm is no string"),
        (framed_key(b'{"ts":5,"scm":"s","tbl":"t","t":1}'), framed(b""), "s.t cannot be read: it is no JSON"),
        (framed_key(b'{"ts":5,"scm":"s","tbl":"t","t":1}'), framed(b"{}"), "it holds no columns"),
        (
            framed_key(b'{"ts":5,"scm":"s","tbl":"t","t":1}'),
            framed(b'{"u":{"a":{"t":3,"v":1}},"p":{"b":{"t":3,"v":1}}}'),
            "columns that its new one has not",
        ),
        (framed_key(b'{"ts":5,"scm":"s","tbl":"t","t":2}'), framed(b"{"), "value of a DDL cannot be read"),
        (framed_key(b'{"ts":5,"scm":"s","tbl":"t","t":2}'), framed(b'{"q":5}'), "its query is no string"),
        (framed_key(b'{"ts":5,"scm":"s","tbl":"t","t":2}'), framed(b"{}"), "it has no query"),
    ],
)
def test_what_is_no_message_is_named_and_does_not_stop_the_others(
    key: bytes | None, value: bytes | None, why: str
) -> None:
    good = OpenProtocol().resolved(Ts(9), BUILT_MS)
    messages = [(good.key, good.value), (key, value), (good.key, good.value)]
    events = OpenProtocolReader().read(received(*messages))
    assert events.rows == []
    first, (place, mark), last = events.marks
    assert (first, last) == ((0, ResolvedSeen(Ts(9))), (2, ResolvedSeen(Ts(9))))
    assert place == 1
    assert isinstance(mark, Unreadable)
    assert why in mark.why


def test_ddls_and_resolved_ts_are_in_order_among_rows() -> None:
    event = DdlEvent(Ts(8), Ts(7), 0, ActionType.ADD_COLUMN, ActionType.ADD_COLUMN, 'alter "é"', "shop", "item", ITEM)
    rows = sent(OpenProtocol().encoder(BUILT_MS).encode(rows_of(ITEM, (None, FIRST))))
    marks = sent_alone([OpenProtocol().ddl(event, 0), OpenProtocol().resolved(Ts(9), 0)])
    keys, values = (pa.concat_arrays([m, r, m]) for m, r in ((marks.keys, rows.keys), (marks.values, rows.values)))
    events = OpenProtocolReader().read(replace(rows, keys=keys, values=values))
    ddl = DdlSeen(Ts(8), "shop", "item", 'alter "é"', ActionType.ADD_COLUMN)
    assert events.marks == [(0, ddl), (1, ResolvedSeen(Ts(9))), (3, ddl), (4, ResolvedSeen(Ts(9)))]
    assert [seen.message.tolist() for seen in events.rows] == [[2]]


def test_a_resolved_ts_needs_no_value() -> None:
    message = OpenProtocol().resolved(Ts(9), 0)
    assert OpenProtocolReader().read(received((message.key, None))).marks == [(0, ResolvedSeen(Ts(9)))]


def test_nothing_received_is_nothing_said() -> None:
    assert OpenProtocolReader().read(received()) == Events([], [])


def test_a_slice_of_what_was_received_is_read_by_itself() -> None:
    whole = sent(
        OpenProtocol(max_batch_size=1).encoder(0).encode(rows_of(ITEM, *[(None, {**FIRST, "id": i}) for i in range(5)]))
    )
    events = OpenProtocolReader().read(replace(whole, keys=whole.keys.slice(1, 2), values=whole.values.slice(1, 2)))
    assert [row["id"] for _, _, row in all_changes(events) if row] == [1, 2]
    assert np.concatenate([seen.message for seen in events.rows]).tolist() == [0, 1]


def test_an_admin_event_reads_back_as_what_it_was() -> None:
    event = AdminSeen(9, 2, Ts(445644800000000005))
    message = OpenProtocol().admin(event)
    assert message.key is not None
    assert OpenProtocolReader().read(received((message.key, message.value))).marks == [(0, event)]


@pytest.mark.parametrize(
    "value",
    ["", "[]", "{}", '{"partition":0,"epoch":1}', '{"partition":3}', '{"partition":true,"epoch":1}'],
)
def test_an_admin_event_without_its_numbers_is_refused(value: str) -> None:
    ((_, mark),) = read(('{"ts":5,"t":4}', value)).marks
    assert isinstance(mark, Unreadable)
    assert "admin event" in mark.why
