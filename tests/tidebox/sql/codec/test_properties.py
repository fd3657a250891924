"""What holds for all values: they come back as they were written, and keys sort as their values do."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.tidebox.sql.codec.strategies import COLUMNS, EXACT_IN_KEYS, NOT_WHOLE_IN_KEYS, TEXTS
from tests.tidebox.sql.codec.tables import clustered, column, index, table, text
from tidebox.sql.codec import (
    ChecksumVersion,
    Json,
    RowFormat,
    TableCodec,
    handle_in,
    rowid_handle,
    split_index_key,
    split_index_value,
)
from tidebox.sql.codec.cells import cell_reader, cell_writer
from tidebox.sql.codec.collation import sort_key
from tidebox.sql.codec.datum import Datum
from tidebox.sql.codec.documents import document_text, parse_document
from tidebox.sql.codec.flagged import flagged_reader, key_writer, value_writer
from tidebox.sql.codec.indexes import truncation
from tidebox.sql.codec.rows import is_raw_checksum_right, split_row
from tidebox.sql.floats import document_double
from tidemill.errors import CorruptDataError
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType

PLAIN = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
KINDS = st.sampled_from(sorted(COLUMNS))


def nullable(name: str) -> st.SearchStrategy[Datum]:
    return st.none() | COLUMNS[name][1]


@st.composite
def tables_and_rows(draw: st.DrawFn) -> tuple[list[ColumnInfo], list[Datum]]:
    names = draw(st.lists(KINDS, min_size=1, max_size=8))
    ids = draw(st.permutations(draw(st.sampled_from([range(1, 9), range(250, 260), (1, 2, 3, 300, 5, 6, 7, 70000)]))))
    columns = []
    for name, column_id in zip(names, ids, strict=False):
        parts = {slot: getattr(COLUMNS[name][0], slot) for slot in ColumnInfo.__slots__}
        columns.append(ColumnInfo(**(parts | {"id": column_id, "name": name})))
    return columns, [draw(nullable(name)) for name in names]


@pytest.mark.parametrize("name", COLUMNS)
@PLAIN
@given(data=st.data())
def test_a_cell_reads_as_what_was_written(name: str, data: st.DataObject) -> None:
    col, values = COLUMNS[name]
    value = data.draw(values)
    assert cell_reader(col)(cell_writer(col)(value)) == value


@pytest.mark.parametrize("name", COLUMNS)
@PLAIN
@given(data=st.data())
def test_a_value_of_format_v1_reads_as_what_was_written(name: str, data: st.DataObject) -> None:
    value = data.draw(nullable(name))
    col = COLUMNS[name][0]
    written = value_writer(col)(value)
    assert flagged_reader(col)(written + b"\xff", 0) == (value, len(written))


@pytest.mark.parametrize("name", EXACT_IN_KEYS)
@PLAIN
@given(data=st.data())
def test_a_value_in_a_key_reads_as_what_was_written(name: str, data: st.DataObject) -> None:
    value = data.draw(nullable(name))
    col = COLUMNS[name][0]
    written = key_writer(col)(value)
    assert flagged_reader(col)(written + b"\xff", 0) == (value, len(written))


@pytest.mark.parametrize("name", EXACT_IN_KEYS)
@PLAIN
@given(data=st.data())
def test_keys_sort_as_their_values_do(name: str, data: st.DataObject) -> None:
    col, values = COLUMNS[name]
    a, b = data.draw(values), data.draw(values)
    key_a, key_b = key_writer(col)(a), key_writer(col)(b)
    if isinstance(a, str) and isinstance(b, str):
        a, b = a.encode(), b.encode()
    assert (key_a < key_b) == (a < b)  # type: ignore[operator]  # both of one type
    assert (key_a == key_b) == (a == b)
    assert key_writer(col)(None) < key_a


@PLAIN
@given(TEXTS, TEXTS)
def test_padded_text_sorts_without_its_trailing_spaces(a: str, b: str) -> None:
    write = key_writer(text(1))
    plain_a, plain_b = a.encode().rstrip(b" "), b.encode().rstrip(b" ")
    assert (write(a) < write(b)) == (plain_a < plain_b)
    assert (write(a) == write(b)) == (plain_a == plain_b)
    assert write(a + "  ") == write(a)


@PLAIN
@given(tables_and_rows())
def test_a_row_reads_as_what_was_written(drawn: tuple[list[ColumnInfo], list[Datum]]) -> None:
    columns, row = drawn
    t = table(*columns)
    for row_format in RowFormat:
        codec = TableCodec(t, row_format=row_format)
        assert codec.decode(*codec.record(rowid_handle(7), row)) == row
    codec = TableCodec(t)
    assert codec.decode(*codec.backfilled_record(rowid_handle(7), row)) == row


@PLAIN
@given(tables_and_rows(), st.sampled_from(ChecksumVersion))
def test_a_checksum_changes_only_the_flag_and_the_end(
    drawn: tuple[list[ColumnInfo], list[Datum]], version: ChecksumVersion
) -> None:
    columns, row = drawn
    plain = TableCodec(table(*columns)).record(rowid_handle(7), row)
    checked = TableCodec(table(*columns), checksum=version).record(rowid_handle(7), row)
    assert checked.value[:1] + bytes((checked.value[1] & ~2,)) + checked.value[2:-5] == plain.value
    assert split_row(checked.value).cells == split_row(plain.value).cells
    if version is not ChecksumVersion.COLUMNS:
        assert is_raw_checksum_right(checked.value, checked.key, handle_in(checked.key))


@PLAIN
@given(st.binary(max_size=60000), st.binary(max_size=60000))
def test_a_row_is_large_when_its_cells_need_more_than_two_bytes_to_count(a: bytes, b: bytes) -> None:
    codec = TableCodec(table(column(1, ColumnType.BLOB), column(2, ColumnType.BLOB)))
    record = codec.record(rowid_handle(1), [a, b])
    assert bool(record.value[1] & 1) == (len(a) + len(b) > 65535)
    assert codec.decode(*record) == [a, b]


@pytest.mark.parametrize(("size", "is_large"), [(65535, False), (65536, True)])
def test_the_small_form_ends_at_65535_bytes_of_cells(size: int, is_large: bool) -> None:
    codec = TableCodec(table(column(1, ColumnType.BLOB)))
    record = codec.record(rowid_handle(1), [bytes(size)])
    assert bool(record.value[1] & 1) == is_large
    assert codec.decode(*record) == [bytes(size)]


@st.composite
def clustered_rows(draw: st.DrawFn) -> tuple[list[ColumnInfo], list[Datum]]:
    names = draw(st.lists(st.sampled_from([n for n in COLUMNS if n not in NOT_WHOLE_IN_KEYS]), min_size=1, max_size=4))
    columns = []
    for column_id, name in enumerate(names, 1):
        parts = {slot: getattr(COLUMNS[name][0], slot) for slot in ColumnInfo.__slots__}
        flag = parts["flag"] | ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL
        columns.append(ColumnInfo(**(parts | {"id": column_id, "flag": flag})))
    return columns, [draw(COLUMNS[name][1]) for name in names]


@PLAIN
@given(clustered_rows())
def test_a_row_of_keys_alone_reads_as_what_was_written(drawn: tuple[list[ColumnInfo], list[Datum]]) -> None:
    columns, row = drawn
    codec = TableCodec(clustered(*columns))
    handle = codec.handle_of(row)
    assert len(handle) >= 9
    assert codec.decode(*codec.record(handle, row)) == row


@PLAIN
@given(clustered_rows(), st.none() | TEXTS, st.sampled_from([0, 1]), st.booleans())
def test_an_index_entry_leads_to_its_row(
    drawn: tuple[list[ColumnInfo], list[Datum]], word: str | None, version: int, is_unique: bool
) -> None:
    columns, row = drawn
    last = len(columns)
    t = clustered(*columns, text(50), indexes=(index(3, last, is_unique=is_unique),))
    codec = TableCodec(t, common_handle_version=version)
    row = [*row, word]
    handle = codec.handle_of(row)
    (entry,) = codec.index_entries(handle, row)
    assert entry.is_distinct == (is_unique and word is not None)
    parts = split_index_key(entry.key)
    found = (
        split_index_value(entry.value).handle if entry.is_distinct else parts.values[len(key_writer(text(1))(word)) :]
    )
    assert found == handle


@PLAIN
@given(st.none() | TEXTS, st.booleans())
def test_restored_data_give_the_indexed_text_back(word: str | None, is_unique: bool) -> None:
    t = table(text(4), indexes=(index(3, 0, is_unique=is_unique),))
    (entry,) = TableCodec(t).index_entries(rowid_handle(-3), [word])
    parts = split_index_value(entry.value)
    assert parts.handle == (rowid_handle(-3) if entry.is_distinct else None)
    assert parts.restored is not None
    assert split_row(parts.restored).cells == {4: None if word is None else word.encode()}


@PLAIN
@given(TEXTS, st.integers(1, 5))
def test_a_prefix_counts_characters_of_text_and_bytes_of_others(word: str, length: int) -> None:
    of_text, of_bytes = truncation(text(1), length), truncation(column(1, ColumnType.VARCHAR), length)
    assert of_text is not None
    assert of_bytes is not None
    assert of_text(word) == word[:length]
    assert of_bytes(word.encode()) == word.encode()[:length]


@PLAIN
@given(st.text(st.characters(max_codepoint=0x7F), max_size=20), st.text(st.characters(max_codepoint=0x7F), max_size=20))
def test_ascii_text_sorts_without_case_in_general_ci(a: str, b: str) -> None:
    weigh = sort_key("utf8mb4_general_ci")
    plain_a, plain_b = a.upper().rstrip(" "), b.upper().rstrip(" ")
    assert (weigh(a) < weigh(b)) == (plain_a < plain_b)
    assert (weigh(a) == weigh(b)) == (plain_a == plain_b)


PLAIN_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda v: v != int(v) if abs(v) < 1e300 else False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@PLAIN
@given(PLAIN_JSON)
def test_a_document_reads_from_its_text(value: Any) -> None:
    document = parse_document(json.dumps(value, ensure_ascii=False))
    assert document == Json(value)
    assert parse_document(document_text(document)) == document


@PLAIN
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_reads_from_its_text(value: float) -> None:
    assert float(document_double(value)) == value


@settings(PLAIN, max_examples=examples(150))
@given(st.binary(max_size=80), tables_and_rows())
def test_no_bytes_are_too_odd_to_be_refused_by_name(noise: bytes, drawn: tuple[list[ColumnInfo], list[Datum]]) -> None:
    """Bytes that are no row are either read, by chance, or refused with our error."""
    columns, row = drawn
    codec = TableCodec(table(*columns))
    record = codec.record(rowid_handle(1), row)
    cut = record.value[: max(1, len(noise) % (len(record.value) + 1))]
    for value in (noise, b"\x80" + noise, b"\x08" + noise, cut, cut + noise, record.value[:6] + noise):
        assert is_read_or_refused(codec, record.key, value)


def is_read_or_refused(codec: TableCodec, key: bytes, value: bytes) -> bool:
    try:
        return len(codec.decode(key, value)) == len(codec.table.columns)
    except CorruptDataError as error:
        return f"table test.t, key {key.hex()}: " in str(error)
