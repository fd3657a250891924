"""The columnar mounter equals the plain decoder: on generated rows, on damaged rows, and on any float."""

import json
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.flow.mounter.tables import ID, column, outcomes, rows_of, table, text
from tests.flow.schema.stores import fed_store
from tests.histories import load
from tests.reference import encode as e
from tests.reference.rows import Decoder, Undecodable, go_float, single_text
from tests.rounds import examples
from tidemill.columnar.floats import LONGEST_FLOAT, powers_of_ten, write_float
from tidemill.errors import RowUndecodableError
from tidemill.flow.mounter import mount, mount_values
from tidemill.model.table import ColumnFlag, ColumnInfo, TableInfo
from tidemill.model.table import ColumnType as T

# A kind of column: how to make one, the cells it may have, and how format v1 flags them.
Kind = tuple[Callable[[int], ColumnInfo], st.SearchStrategy[bytes], Callable[[bytes], bytes]]


def v1_signed(cell: bytes) -> bytes:
    return e.v1_int(int.from_bytes(cell, "little", signed=True))


def v1_unsigned(cell: bytes) -> bytes:
    return e.v1_uint(int.from_bytes(cell, "little"))


def raw(flag: int) -> Callable[[bytes], bytes]:
    return lambda cell: e.v1_raw(flag, cell)


def decimals() -> st.SearchStrategy[bytes]:
    def cell(precision: int, scale: int, digits: int) -> bytes:
        whole = digits % 10**precision if digits >= 0 else -(-digits % 10**precision)
        return e.decimal_cell(Decimal(whole).scaleb(-scale), precision, scale)

    sizes = st.integers(1, 65).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, min(p, 30))))
    return st.builds(lambda size, digits: cell(*size, digits), sizes, st.integers(-(10**65), 10**65))


def times(first_year: int, last_year: int, least: int) -> st.SearchStrategy[bytes]:
    fields = (
        st.integers(first_year, last_year),
        st.integers(least, 12),
        st.integers(least, 28),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(0, 59),
        st.integers(0, 999999),
    )
    return st.builds(e.time_cell, *fields) | st.just(b"\0")


finite = st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | finite | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
words = st.text(max_size=40)
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
UNSIGNED = ColumnFlag.UNSIGNED

KINDS: list[Kind] = [
    (lambda i: column(i, T.LONGLONG), st.integers(-(2**63), 2**63 - 1).map(e.int_cell), v1_signed),
    (lambda i: column(i, T.TINY), st.integers(-128, 127).map(e.int_cell), v1_signed),
    (lambda i: column(i, T.LONGLONG, flag=UNSIGNED), st.integers(0, 2**64 - 1).map(e.uint_cell), v1_unsigned),
    (lambda i: column(i, T.YEAR), st.integers(0, 2155).map(e.int_cell), v1_signed),
    (lambda i: column(i, T.BIT), st.integers(0, 2**64 - 1).map(e.uint_cell), v1_unsigned),
    (lambda i: column(i, T.ENUM, elems=("a", "b", "c")), st.integers(0, 9).map(e.uint_cell), v1_unsigned),
    (lambda i: column(i, T.SET, elems=("a", "b", "c")), st.integers(0, 7).map(e.uint_cell), v1_unsigned),
    (lambda i: column(i, T.FLOAT), st.floats().map(e.float_cell), raw(5)),
    (lambda i: column(i, T.DOUBLE), st.floats().map(e.float_cell), raw(5)),
    (lambda i: column(i, T.NEWDECIMAL), decimals(), raw(6)),
    (lambda i: column(i, T.DATE), times(0, 9999, 0), v1_unsigned),
    (lambda i: column(i, T.DATETIME, decimal=i % 7), times(0, 9999, 0), v1_unsigned),
    (lambda i: column(i, T.TIMESTAMP, decimal=i % 7), times(1971, 2037, 1), v1_unsigned),
    (
        lambda i: column(i, T.DURATION, decimal=i % 7),
        st.integers(-3020399999999, 3020399999999).map(lambda n: e.int_cell(n * 1000)),
        v1_signed,
    ),
    (lambda i: text(i), words.map(str.encode), e.v1_bytes),
    (lambda i: text(i, charset="latin1"), st.binary(max_size=9), e.v1_bytes),
    (lambda i: column(i, T.BLOB), st.binary(max_size=60), e.v1_bytes),
    (lambda i: column(i, T.JSON), documents.map(e.json_cell), raw(10)),
    (lambda i: column(i, T.VECTOR), st.lists(singles, max_size=5).map(e.vector_cell), raw(20)),
]

ABSENT = "absent"


@st.composite
def batches(draw: st.DrawFn) -> tuple[TableInfo, list[tuple[bytes, bytes]], str]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    ids = draw(st.lists(st.integers(1, 400), min_size=len(kinds), max_size=len(kinds), unique=True))
    made = dict(zip(ids, kinds, strict=True))
    pairs = []
    for n in range(draw(st.integers(1, 5))):
        cells = {i: draw(st.just(ABSENT) | st.none() | kind[1]) for i, kind in made.items()}
        present = {i: cell for i, cell in cells.items() if cell is not ABSENT}
        if draw(st.booleans()):
            value = e.row_v2(present, large=draw(st.booleans()), checksum=draw(st.sampled_from([b"", b"\2abcd"])))
        else:
            value = e.row_v1({i: e.V1_NULL if c is None else made[i][2](c) for i, c in present.items()})
        pairs.append((e.record_key(ID, n), value))
    zone = draw(st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia"]))
    return table(*(kind[0](i) for i, kind in made.items())), pairs, zone


@settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches())
def test_any_batch_decodes_as_its_rows_do_one_by_one(batch: tuple[TableInfo, list[tuple[bytes, bytes]], str]) -> None:
    t, pairs, zone = batch
    plain = Decoder(t, ID, zone)
    assert rows_of(t, pairs, zone) == [plain.decode(key, value) for key, value in pairs]


def damage(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + 1 :]
        case 2:
            return data[:at] + bytes([rng.randrange(256)]) + data[at:]
        case 3:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 4:
            return data[:at] + rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\x01"]) + data[at + 4 :]
        case _:
            return data + data[:at]


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches(), st.randoms(use_true_random=False))
def test_a_damaged_row_of_either_format_is_refused_or_read_alike(
    batch: tuple[TableInfo, list[tuple[bytes, bytes]], str], rng: random.Random
) -> None:
    t, pairs, zone = batch
    for key, value in pairs:
        damaged = damage(rng, value) or b"\x80"
        mine, plain = outcomes(t, key, damaged, zone)
        assert mine == plain


@pytest.mark.parametrize("where", ["value", "key"])
def test_a_damaged_row_is_refused_or_read_as_the_reference_reads_it(where: str) -> None:
    rng = random.Random(where)
    history, (store, _) = load("types"), fed_store("types")
    refused = 0
    for physical_id in history.physical_ids():
        rows = [
            row for row in history.row_changes(physical_id).to_pylist() if row["value"] and len(row["value"]) < 4000
        ]
        for _ in range(40):
            row = rng.choice(rows)
            t = store.table(physical_id, row["commit_ts"])
            if t is None:
                continue
            key, value = (
                (damage(rng, row["key"]), row["value"]) if where == "key" else (row["key"], damage(rng, row["value"]))
            )
            mine, plain = both(t, physical_id, key, value)
            assert mine == plain, (t.full_name, key.hex(), value.hex())
            refused += mine is None
    assert refused > 100


def both(t: TableInfo, physical_id: int, key: bytes, value: bytes) -> tuple[Any, Any]:
    try:
        decoded = mount_values(t, physical_id, pa.array([key]), pa.array([value]))
        decoded.validate(full=True)
        mine = decoded.to_pylist()[0]
    except RowUndecodableError:
        mine = None
    if not value:
        return mine, None
    try:
        plain = Decoder(t, physical_id).decode(key, value)
    except Undecodable:
        plain = None
    return mine, plain


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_no_document_or_read_alike(cell: bytes) -> None:
    mine, plain = outcomes(table(column(2, T.JSON)), e.record_key(ID, 1), e.row_v2({2: cell}))
    assert mine == plain


@settings(max_examples=examples(300), deadline=None)
@given(documents.map(e.json_cell), st.randoms(use_true_random=False))
def test_a_damaged_document_is_refused_or_read_alike(cell: bytes, rng: random.Random) -> None:
    mine, plain = outcomes(table(column(2, T.JSON)), e.record_key(ID, 1), e.row_v2({2: damage(rng, cell)}))
    assert mine == plain


@settings(max_examples=examples(300), deadline=None)
@given(documents)
def test_a_document_reads_back_as_json(document: Any) -> None:
    (row,) = rows_of(table(column(2, T.JSON)), [(e.record_key(ID, 1), e.row_v2({2: e.json_cell(document)}))])
    assert alike(json.loads(row["c2"]), document)


def alike(found: Any, document: Any) -> bool:
    """Equal, where a double may have been printed without a fraction and so read as an integer."""
    match document:
        case float():
            return float(found) == document
        case list():
            return len(found) == len(document) and all(map(alike, found, document))
        case dict():
            return found.keys() == document.keys() and all(alike(found[k], v) for k, v in document.items())
        case _:
            return bool(found == document)


def printed(bits: int, *, is_single: bool) -> str:
    out = np.empty(LONGEST_FLOAT, np.uint8)
    end = write_float(out, 0, np.uint64(bits), is_single, not is_single, powers_of_ten())
    return out[:end].tobytes().decode()


@settings(max_examples=examples(500), deadline=None)
@given(finite | st.floats(-1e6, 1e6) | st.integers(-1074, 1023).map(lambda n: 2.0**n))
def test_a_double_prints_with_the_fewest_digits_that_read_back(value: float) -> None:
    text_ = printed(struct.unpack("<Q", struct.pack("<d", value))[0], is_single=False)
    assert text_ == go_float(value)
    assert float(text_) == value


@settings(max_examples=examples(500), deadline=None)
@given(singles)
def test_a_float_prints_with_the_fewest_digits_that_read_back(value: float) -> None:
    text_ = printed(struct.unpack("<I", struct.pack("<f", value))[0], is_single=True)
    assert text_ == single_text(value)
    assert np.float32(text_) == np.float32(value)


def test_the_same_changes_in_other_batches_give_the_same_rows() -> None:
    history, (store, _) = load("types"), fed_store("types")
    for physical_id in history.physical_ids():
        changes = history.row_changes(physical_id)
        t = store.table(physical_id, history.end_ts)
        if t is None:
            continue
        whole = mount(t, physical_id, changes)
        parts = [mount(t, physical_id, changes.slice(at, 3)) for at in range(0, len(changes), 3)]
        assert pa.Table.from_batches([whole.new]).equals(pa.Table.from_batches([p.new for p in parts]).combine_chunks())
        assert np.concatenate([p.op for p in parts]).tolist() == whole.op.tolist()
