"""Rows that come with a checksum are held to it."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, Row, column, rows_of, table_of
from tests.flow.reader.plain import all_changes, received
from tests.flow.reader.rows import EVERY_TYPE, any_row
from tests.flow.reader.simple_avro_schema import SCHEMA
from tests.flow.reader.test_simple import BOOTSTRAP, FIRST, SECOND, STAMP, read, row
from tests.flow.reader.test_simple_avro import AVRO, decoded
from tidemill.flow.reader.row_checksums import row_checksums
from tidemill.flow.reader.simple import SimpleReader
from tidemill.model.event import Unreadable
from tidemill.model.row import arrow_type
from tidemill.model.table import ColumnType, TableInfo

GOLDEN = 2107026242  # of 7, 'A-1' and NULL
SMALL = table_of(
    column("id", ColumnType.LONGLONG, KEY), column("sku", ColumnType.VARCHAR, flen=16), column("n", ColumnType.LONG)
)


def slow(table: TableInfo, row: Row) -> int:
    """As the protocol's description has it, value by value."""
    fed = b""
    for each in table.stored_columns:
        value, kind = row[each.name], arrow_type(each)
        if value is None:
            continue
        if pa.types.is_integer(kind):
            fed += struct.pack("<Q", value % (1 << 64))
        elif pa.types.is_floating(kind):
            number = pa.scalar(value, kind).as_py()
            fed += struct.pack("<d", number if number - number == 0 else 0.0)
        else:
            content = value if isinstance(value, bytes) else value.encode()
            fed += struct.pack("<I", len(content)) + content
    return zlib.crc32(fed)


def test_the_golden_vector() -> None:
    rows = rows_of(SMALL, (None, {"id": 7, "sku": "A-1", "n": None}))
    assert row_checksums(rows.new).tolist() == [GOLDEN] == [slow(SMALL, {"id": 7, "sku": "A-1", "n": None})]


@given(st.lists(any_row(), min_size=1, max_size=8))
def test_any_row_has_the_checksum_that_is_reckoned_value_by_value(values: list[Row]) -> None:
    rows = rows_of(EVERY_TYPE, *((None, each) for each in values))
    held = rows.new.to_pylist()
    assert row_checksums(rows.new).tolist() == [slow(EVERY_TYPE, each) for each in held]
    assert row_checksums(rows.new.slice(1)).tolist() == [slow(EVERY_TYPE, each) for each in held[1:]]


def summed(current: int, previous: int) -> dict[str, Any]:
    return {"checksum": {"version": 0, "corrupted": False, "current": current, "previous": previous}}


def sum_of(*values: bytes) -> int:
    return zlib.crc32(b"".join(values))


def text(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


ID, SKU, TAG, AT = struct.pack("<Q", 7), text(b"A-1"), text(b"\0a\xff"), text(b"2020-02-20 10:20:20")
OF_FIRST = sum_of(ID, SKU, TAG, AT)
OF_SECOND = sum_of(ID, SKU, struct.pack("<Q", 5), TAG)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (row(data=FIRST, **summed(OF_FIRST, 0)), ""),
        (row("UPDATE", data=SECOND, old=FIRST, **summed(OF_SECOND, OF_FIRST)), ""),
        (row("DELETE", old=SECOND, **summed(0, OF_SECOND)), ""),
        (row(data=FIRST, **summed(0, 0)), ""),  # it is not enabled
        (row(data=FIRST), ""),
        (row(data=FIRST, **summed(OF_FIRST + 1, 0)), f"the new row of table shop.item has the checksum {OF_FIRST}"),
        (row("UPDATE", data=SECOND, old=FIRST, **summed(OF_SECOND, 5)), "the old row of table shop.item"),
        (row("DELETE", old=SECOND, **summed(0, OF_FIRST)), "the old row of table shop.item"),
        (row(data={**FIRST, "at": {**STAMP, "location": "Asia/Tokyo"}}, **summed(1, 0)), ""),  # not held to it
        (row(data={"id": "7"}, handleKeyOnly=True, **summed(1, 0)), ""),
    ],
)
def test_a_row_that_is_not_what_was_written_is_named(message: dict[str, Any], why: str) -> None:
    events = read(SimpleReader(), BOOTSTRAP, row(data=FIRST, **summed(OF_FIRST, 0)), message)
    assert len(all_changes(events)) == 2
    said = [(place, mark.why) for place, mark in events.marks if isinstance(mark, Unreadable)]
    assert [place for place, _ in said] == ([2] if why else [])
    assert all(why in each for _, each in said)


@pytest.mark.parametrize(("spoil", "is_right"), [(lambda sum: sum, True), (lambda sum: sum ^ 1, False)])
def test_likewise_in_avro(spoil: Callable[[int], int], is_right: bool) -> None:
    rows = rows_of(SMALL, (None, {"id": 7, "sku": "A-1", "n": None}))
    content = decoded(AVRO.encoder(1).encode(rows).messages()[0])
    content["payload"]["checksum"] = {"version": 0, "corrupted": False, "current": spoil(GOLDEN), "previous": 0}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, ("com.pingcap.simple.avro.Message", content))
    reader = SimpleReader()
    schema = AVRO.bootstrap(SMALL, 1)
    events = reader.read(received((schema.key, schema.value), (None, out.getvalue())))
    assert [place for place, mark in events.marks if isinstance(mark, Unreadable)] == ([] if is_right else [1])
