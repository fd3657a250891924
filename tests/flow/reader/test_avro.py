"""Avro read back: records that a stranger's library has written, under the schemas that TiCDC registers."""

import io
import json
import struct
from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.reader.plain import all_changes, received
from tests.fuzz.mutate import mutated
from tidemill.flow.reader import Events
from tidemill.flow.reader.avro import AvroReader
from tidemill.model.event import DdlSeen, ResolvedSeen, Unreadable
from tidemill.model.ts import Ts


def field(name: str, kind: str, word: str, *, nullable: bool = True, **more: Any) -> dict[str, Any]:
    parameters = {"tidb_type": word, **more.pop("parameters", {})}
    full = {"type": kind, "connect.parameters": parameters, **more}
    return {"name": name, "type": ["null", full], "default": None} if nullable else {"name": name, "type": full}


ID = field("id", "long", "BIGINT", nullable=False)
COLUMNS = [
    ID,
    field("u", "long", "INT UNSIGNED"),
    field("big", "long", "BIGINT UNSIGNED"),
    field("digits", "string", "BIGINT UNSIGNED"),
    field("f", "float", "FLOAT"),
    field("d", "double", "DOUBLE"),
    field("n", "bytes", "DECIMAL", logicalType="decimal", precision=40, scale=3),
    field("bit", "bytes", "BIT", parameters={"length": "12"}),
    field("t", "string", "TEXT"),
    field("b", "bytes", "BLOB"),
    field("e", "string", "ENUM", parameters={"allowed": "a,b\\,c"}),
    field("s", "string", "SET", parameters={"allowed": "x,y,z"}),
    field("at", "string", "DATETIME"),
    field("y", "int", "YEAR"),
    {"name": "k", "type": [{"type": "int", "connect.parameters": {"tidb_type": "INT"}}, "null"], "default": 5},
]
EXTENSION = [
    {"name": "_tidb_op", "type": "string", "default": ""},
    {"name": "_tidb_commit_ts", "type": "long", "default": 0},
    {"name": "_tidb_commit_physical_time", "type": "long", "default": 0},
]


def record(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": "item", "namespace": "default.shop", "fields": fields}


SCHEMAS = {1: record([ID]), 2: record(COLUMNS), 3: record([*COLUMNS, *EXTENSION]), 4: {"type": "string"}}


class Registry:
    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def schema(self, number: int) -> str:
        self.asked[number] += 1
        return json.dumps(SCHEMAS[number])


def written(number: int, content: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMAS[number], content)
    return struct.pack(">BI", 0, number) + out.getvalue()


def key(row: dict[str, Any]) -> bytes:
    return written(1, {"id": row["id"]})


NOTHING = dict.fromkeys(each["name"] for each in COLUMNS)
ROW = {
    "id": -7, "u": 2**32 - 1, "big": -1, "digits": str(2**64 - 1), "f": 0.5, "d": -1e300, "n": Decimal("-12.050"),
    "bit": b"\x0a\xaa", "t": "héllo", "b": b"\0\xff", "e": "b,c", "s": "x,z", "at": "2020-01-01 00:00:00", "y": 1999,
    "k": None,
}  # fmt: skip
READ = {**ROW, "big": 2**64 - 1, "digits": 2**64 - 1, "n": "-12.050", "bit": 0xAAA, "e": 2, "s": 5}


def test_rows_come_back_with_the_types_of_their_schema() -> None:
    value = written(3, {**ROW, "_tidb_op": "c", "_tidb_commit_ts": 5, "_tidb_commit_physical_time": 1})
    events = AvroReader(Registry()).read(received((key(ROW), value), (key(ROW), None)))
    assert events.marks == []
    assert all_changes(events) == [(5, None, READ), (0, {"id": -7}, None)]
    for seen in events.rows:
        assert seen.rows.table.full_name == "shop.item"
        assert [column.name for column in seen.rows.table.handle_key] == ["id"]


def test_without_the_extension_there_is_no_commit_ts() -> None:
    events = AvroReader(Registry()).read(
        received((key(ROW), written(2, ROW)), (None, written(2, {**NOTHING, "id": 1})))
    )
    assert all_changes(events) == [(0, None, READ), (0, None, {**NOTHING, "id": 1})]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.integers(-(2**63), 2**63 - 1),
                "n": st.none() | st.decimals(-(10**30), 10**30, places=3),
                "d": st.none() | st.floats(allow_nan=False),
                "t": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
                "b": st.none() | st.binary(max_size=9),
            }
        ),
        max_size=8,
    )
)
def test_any_rows_read_back_as_what_they_were(rows: list[dict[str, Any]]) -> None:
    messages = [(key(row), written(2, {**NOTHING, **row})) for row in rows]
    events = AvroReader(Registry()).read(received(*messages))
    found = [new for _, _, new in all_changes(events) if new is not None]
    for row, new in zip(rows, found, strict=True):
        right = {**row, "n": None if row["n"] is None else f"{row['n']:.3f}"}
        assert {name: new[name] for name in right} == right or float(right["n"]) == 0 == float(new["n"])


def test_a_registry_is_asked_once_for_each_schema() -> None:
    registry = Registry()
    reader = AvroReader(registry)
    for _ in range(3):
        reader.read(received(*[(key(ROW), written(2, ROW))] * 4))
    assert registry.asked == {1: 1, 2: 1}


def test_ddls_and_watermarks_of_ticdc_s_own_tests() -> None:
    ddl = {"query": "drop table t", "type": 4, "schema": "shop", "table": "t", "commitTs": 9}
    events = AvroReader(Registry()).read(
        received((None, b"\1" + json.dumps(ddl).encode()), (None, b"\2" + struct.pack(">Q", 9)))
    )
    assert events.marks == [(0, DdlSeen(Ts(9), "shop", "t", "drop table t")), (1, ResolvedSeen(Ts(9)))]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ((None, None), "neither a value nor a key"),
        ((None, b"\0\0\0\0"), "no message of Avro"),
        ((None, b"\1{}"), "no message of Avro"),
        ((key(ROW), b"\0\0\0\0\x09"), "the registry has no schema of number 9"),
        ((key(ROW), b"\0\0\0\0\x04abc"), "its schema is"),
        ((key(ROW), written(2, ROW)[:-1]), "a row of table shop.item is damaged"),
        ((key(ROW), written(2, ROW) + b"\0"), "a row of table shop.item is damaged"),
        ((key(ROW), written(2, {**ROW, "bit": b"123456789"})), "a row of table shop.item is damaged"),
        ((key(ROW), written(2, {**ROW, "digits": "x"})), "a row of table shop.item is damaged"),
    ],
)
def test_what_is_no_message_is_named_and_does_not_stop_the_others(message: Any, why: str) -> None:
    good = (key(ROW), written(2, ROW))
    events = AvroReader(Registry()).read(received(good, message, good))
    assert all_changes(events) == [(0, None, READ)] * 2
    ((place, mark),) = events.marks
    assert place == 1
    assert isinstance(mark, Unreadable)
    assert why in mark.why


def test_damaged_records_are_read_or_refused_by_themselves() -> None:
    reader, good = AvroReader(Registry()), written(2, ROW)
    for seed in range(400):
        chance = Random(seed)
        damaged = good[:5] + mutated(chance, good[5:])
        events: Events = reader.read(received((key(ROW), good), (key(ROW), damaged), (key(ROW), good)))
        found = {int(place) for seen in events.rows for place in seen.message}
        assert found | {place for place, _ in events.marks} == {0, 1, 2}
        assert {0, 2} <= found
        for seen in events.rows:
            seen.rows.new.validate(full=True)
