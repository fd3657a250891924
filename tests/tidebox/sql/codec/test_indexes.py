"""Index values of clustered tables, where the key's texts cannot be read back: what is restored, and how."""

import pytest

from tests.tidebox.sql.codec.tables import PRIMARY, clustered, column, index, table, text
from tidebox.sql.codec import Datum, TableCodec, rowid_handle, split_index_value
from tidebox.sql.codec.collation import sort_key
from tidebox.sql.codec.indexes import split_index_key
from tidebox.sql.codec.rows import split_row
from tidemill.model.table import ColumnInfo, IndexInfo
from tidemill.model.table import ColumnType as T

BIN, CI = "utf8mb4_bin", "utf8mb4_general_ci"
KEY = column(1, T.LONG, flag=PRIMARY)


def restored(columns: tuple[ColumnInfo, ...], which: IndexInfo, row: list[Datum], version: int = 1) -> object:
    codec = TableCodec(clustered(*columns, indexes=(which,)), common_handle_version=version)
    (entry,) = codec.index_entries(codec.handle_of(row), row)
    found = split_index_value(entry.value).restored
    return found if found is None else split_row(found).cells


@pytest.mark.parametrize(
    ("columns", "row", "cells"),
    [
        pytest.param((KEY, column(2, T.LONG)), [1, 2], None, id="numbers need nothing"),
        pytest.param((KEY, text(2, T.STRING)), [1, "a"], None, id="a CHAR has no spaces to lose"),
        pytest.param((KEY, text(2, collate="binary")), [1, b"a "], None, id="binary strings are their own keys"),
        pytest.param((KEY, text(2, collate="utf8mb4_0900_bin")), [1, "a "], None, id="so is what pads nothing"),
        pytest.param((KEY, text(2)), [1, "a  "], {2: b"\x02"}, id="of a VARCHAR the number of its spaces"),
        pytest.param((KEY, text(2)), [1, "a" + " " * 200], {2: b"\xc8"}, id="counted without a sign"),
        pytest.param((KEY, text(2)), [1, None], {2: b"\x00"}, id="NULL has none"),
        pytest.param((KEY, text(2, collate=CI)), [1, "aB "], {2: b"aB "}, id="of other collations the text"),
        pytest.param((KEY, text(2, collate=CI)), [1, None], {2: None}, id="or that it is NULL"),
        pytest.param((text(1, flag=PRIMARY), column(2, T.LONG)), ["k ", 2], {1: b"\x01"}, id="and the handle's texts"),
        pytest.param(
            (text(1, flag=PRIMARY), column(2, T.LONG)),
            ["k" + " " * 200, 2],
            {1: b"\xc8\x00"},
            id="whose spaces are counted with a sign",
        ),
        pytest.param(
            (text(3, collate=CI, flag=PRIMARY), text(2)), ["K", "v "], {2: b"\x01", 3: b"K"}, id="both, by column id"
        ),
    ],
)
def test_what_a_clustered_tables_index_restores(
    columns: tuple[ColumnInfo, ...], row: list[Datum], cells: dict[int, bytes] | None
) -> None:
    assert restored(columns, index(5, 1), row) == cells


@pytest.mark.parametrize(
    ("key_length", "index_length", "kept"),
    [
        pytest.param(-1, 2, b"abcdef", id="the handle has it all"),
        pytest.param(2, -1, b"abcdef", id="the index has it all"),
        pytest.param(2, 4, b"abcd", id="the index has more"),
        pytest.param(4, 2, b"abcd", id="the handle has more"),
    ],
)
def test_of_a_column_in_handle_and_index_the_longer_prefix_is_kept(
    key_length: int, index_length: int, kept: bytes
) -> None:
    columns = (text(1, collate=CI, flag=PRIMARY),)
    primary = index(1, (0, key_length), is_primary=True)
    t = table(*columns, indexes=(primary, index(2, (0, index_length))), is_common_handle=True)
    codec = TableCodec(t)
    (entry,) = codec.index_entries(codec.handle_of(["abcdef"]), ["abcdef"])
    found = split_index_value(entry.value).restored
    assert found is not None
    assert split_row(found).cells == {1: kept}


def test_the_primary_key_of_a_clustered_table_has_no_entries() -> None:
    assert TableCodec(clustered(KEY)).index_entries(b"", [1]) == []


def test_the_primary_key_of_another_table_is_a_unique_index() -> None:
    codec = TableCodec(table(KEY, indexes=(index(1, 0, is_primary=True),)))
    (entry,) = codec.index_entries(rowid_handle(4), [1])
    assert entry.is_distinct
    assert split_index_value(entry.value).handle == rowid_handle(4)


def test_version_0_restores_all_values_of_the_index() -> None:
    which = index(5, 1, 0)
    row: list[Datum] = [7, "a "]
    assert restored((KEY, text(2)), which, row, version=0) == {1: b"\x07", 2: b"a "}


def test_version_0_pads_short_values_to_ten_bytes() -> None:
    codec = TableCodec(clustered(KEY, column(2, T.LONG), indexes=(index(5, 1),)), common_handle_version=0)
    (entry,) = codec.index_entries(codec.handle_of([1, 2]), [1, 2])
    assert entry.value == b"0"
    codec = TableCodec(table(text(2, collate=CI), indexes=(index(5, 0),)))
    (entry,) = codec.index_entries(rowid_handle(1), [None])
    assert entry.value.hex() == "02" + "80000000010002" + "0000"


def test_a_prefix_of_text_counts_characters_and_loses_bytes_that_are_none() -> None:
    codec = TableCodec(table(text(2), indexes=(index(5, (0, 2)),)))
    (entry,) = codec.index_entries(rowid_handle(1), [b"\xe4\xb8\xad\xff\xff"])
    assert split_index_key(entry.key).values.startswith(b"\x01" + "中\ufffd".encode())


def test_a_partition_has_entries_under_its_own_id() -> None:
    codec = TableCodec(table(column(2, T.LONG), indexes=(index(5, 0), index(6, 0))))
    entries = codec.index_entries(rowid_handle(1), [3], physical_id=321)
    assert [split_index_key(e.key)[:2] for e in entries] == [(321, 5), (321, 6)]


@pytest.mark.parametrize(
    ("text_", "weights"),
    [
        pytest.param("aZ", "0041005a", id="letters weigh as capitals"),
        pytest.param("éÀñ", "00450041004e", id="without accents"),
        pytest.param("ß", "0053", id="sharp s as one s"),
        pytest.param("йёЖ", "041904150416", id="Й keeps its breve, Ё does not"),
        pytest.param("άΣς", "039103a303a3", id="Greek"),
        pytest.param("ⅷⓐａ", "216724b6ff21", id="numerals, letters in circles and wide letters"),
        pytest.param("中🐬", "4e2dfffd", id="beyond 16 bits all weigh the same"),
        pytest.param("a b  ", "004100200042", id="trailing spaces go"),
        pytest.param("ԁ", "0501", id="capitals that Unicode got later are not known"),
        pytest.param("a\udcffb", "0041", id="what is no UTF-8 ends it"),
    ],
)
def test_weights_of_general_ci(text_: str, weights: str) -> None:
    assert sort_key(CI)(text_).hex() == weights
    assert sort_key(CI)(text_.encode("utf-8", "surrogateescape")).hex() == weights


def test_without_the_new_collations_every_text_is_its_own_key() -> None:
    assert sort_key("utf8mb4_unicode_ci", is_new=False)("aB ") == b"aB "
    t = clustered(text(1, collate=CI, flag=PRIMARY))
    codec = TableCodec(t, is_new_collation=False)
    record = codec.record(codec.handle_of(["aB "]), ["aB "])
    assert record.value.hex() == "800000000000"
    assert codec.decode(*record) == ["aB "]
    assert restored((KEY, text(2)), index(5, 1), [1, "a "]) == {2: b"\x01"}
