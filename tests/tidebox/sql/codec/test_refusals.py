"""What has no bytes, or bytes that are no value, is refused by name."""

from datetime import timedelta
from decimal import Decimal

import pytest

from tests.tidebox.sql.codec.tables import PRIMARY, UNSIGNED, clustered, column, index, table, text
from tidebox.sql.codec import Datum, Json, TableCodec, Time, handle_in, rowid_handle
from tidebox.sql.codec.documents import parse_document, read_document
from tidemill.errors import CorruptDataError, SchemaError, UnencodableError, UnsupportedCollationError
from tidemill.model.table import ColumnInfo
from tidemill.model.table import ColumnType as T
from tidemill.tidb.keys import record_key


def nested(depth: int) -> list[object]:
    document: list[object] = []
    for _ in range(depth - 1):
        document = [document]
    return document


@pytest.mark.parametrize(
    ("col", "value"),
    [
        pytest.param(column(2, T.LONGLONG), 2**63, id="an integer of more than 64 bits"),
        pytest.param(column(2, T.LONGLONG, flag=UNSIGNED), -1, id="a negative unsigned integer"),
        pytest.param(column(2, T.LONG), "1", id="text for a number"),
        pytest.param(column(2, T.LONG), 1.5, id="a float for an integer"),
        pytest.param(column(2, T.FLOAT), 1e39, id="a float beyond four bytes"),
        pytest.param(column(2, T.NEWDECIMAL, flen=4, decimal=2), Decimal("100"), id="too many digits"),
        pytest.param(column(2, T.NEWDECIMAL, flen=4, decimal=2), Decimal("0.001"), id="too many decimals"),
        pytest.param(column(2, T.NEWDECIMAL, flen=4, decimal=2), Decimal("NaN"), id="a decimal that is no number"),
        pytest.param(text(2), 7, id="a number for text"),
        pytest.param(column(2, T.DATETIME), Time(2024, 13, 1), id="a thirteenth month"),
        pytest.param(column(2, T.DURATION), 3, id="a number for a duration"),
        pytest.param(column(2, T.DURATION), timedelta(days=10**8), id="a duration of more than 64 bits"),
        pytest.param(column(2, T.JSON), {"a": 1}, id="a document that is not marked as one"),
        pytest.param(column(2, T.JSON), Json(float("nan")), id="a document with NaN"),
        pytest.param(column(2, T.JSON), Json(2**64), id="a document with too large an integer"),
        pytest.param(column(2, T.JSON), Json(nested(101)), id="a document too deep"),
        pytest.param(column(2, T.JSON), Json({"k" * 65536: 1}), id="a document with too long a key"),
        pytest.param(column(2, T.VECTOR), (float("inf"),), id="an infinite vector"),
        pytest.param(column(2, T.VECTOR), (0.0,) * 16384, id="a vector of too many dimensions"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_column(col: ColumnInfo, value: Datum) -> None:
    codec = TableCodec(table(column(1, T.LONG), col))
    with pytest.raises(UnencodableError, match=r"cannot write column 'c2' of table test\.t: a "):
        codec.record(rowid_handle(1), [1, value])


def test_a_value_that_does_not_fit_a_key_is_refused_with_its_column() -> None:
    codec = TableCodec(clustered(column(1, T.DATE, flag=PRIMARY), indexes=(index(1, 0),)))
    with pytest.raises(UnencodableError, match="column 'c1'"):
        codec.handle_of(["2024-01-01"])
    with pytest.raises(UnencodableError, match="column 'c1'"):
        codec.index_entries(b"", ["2024-01-01"])


def test_a_row_that_is_too_short_is_refused() -> None:
    codec = TableCodec(table(column(1, T.LONG), column(2, T.LONG)))
    with pytest.raises(UnencodableError, match="1 values for 2 columns"):
        codec.record(rowid_handle(1), [1])


def test_a_table_that_is_not_clustered_has_no_handle_of_its_own() -> None:
    with pytest.raises(SchemaError, match=r"test\.t is not clustered"):
        TableCodec(table(column(1, T.LONG))).handle_of([1])


@pytest.mark.parametrize("collation", ["gb18030_chinese_ci", "utf8mb4_de_pb_0900_ai_ci"])
def test_keys_in_a_collation_without_weights_are_refused_by_name(collation: str) -> None:
    with pytest.raises(UnsupportedCollationError, match=f"cannot make keys in collation '{collation}'"):
        TableCodec(table(text(1, collate=collation), indexes=(index(1, 0),)))


def test_text_in_any_collation_is_stored_where_no_key_has_it() -> None:
    codec = TableCodec(table(text(1, collate="gbk_chinese_ci")))
    assert codec.decode(*codec.record(rowid_handle(1), ["中文"])) == ["中文"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param("", "the row has no bytes", id="no bytes"),
        pytest.param("81", "row version 129 is unknown", id="a version to come"),
        pytest.param("8000010000", "cut off in its head", id="half a head"),
        pytest.param("80000100000001", "cut off in its ids and ends", id="no ends"),
        pytest.param("80000100000001020001", "ends outside the row", id="a cell cut off"),
        pytest.param("8000010000000101000100", "1 bytes behind its last cell", id="a byte too many"),
        pytest.param("8000020000000101010002000102", "column id twice", id="a column twice"),
        pytest.param("80040100000001010001", "unknown flags 0x4", id="a flag to come"),
        pytest.param("8002010000000101000107", "checksum version 7 is unknown", id="a checksum to come"),
        pytest.param("800201000000010100010200", "checksum block has 2 bytes", id="a checksum cut off"),
        pytest.param("80000100000001030001ffff", "an integer of 3 bytes", id="an integer of three bytes"),
        pytest.param("0802", "a flagged value is missing", id="format v1 without its value"),
        pytest.param("080263", "unknown flag 99", id="format v1 with an unknown flag"),
    ],
)
def test_a_corrupt_row_is_refused_with_table_and_key(value: str, reason: str) -> None:
    key = record_key(100, 7)
    with pytest.raises(CorruptDataError) as found:
        TableCodec(table(column(1, T.LONG))).decode(key, bytes.fromhex(value))
    assert f"table test.t, key {key.hex()}: " in str(found.value)
    assert reason in str(found.value)


@pytest.mark.parametrize(
    ("col", "cell"),
    [
        pytest.param(column(1, T.DOUBLE), b"1234567", id="seven bytes for a double"),
        pytest.param(column(1, T.DATETIME), b"\xff" * 8, id="a date out of range"),
        pytest.param(column(1, T.DURATION), b"\x01", id="a nanosecond"),
        pytest.param(column(1, T.NEWDECIMAL, flen=5, decimal=2), b"\x05\x02\x80", id="a decimal cut off"),
        pytest.param(column(1, T.NEWDECIMAL, flen=5, decimal=2), b"\x05\x40\x80", id="a decimal of a wrong scale"),
        pytest.param(column(1, T.SET, elems=("a",)), b"\x02", id="an element that the set has not"),
        pytest.param(column(1, T.JSON), b"\x03\x01\0\0\0\x09\0\0\0\x09\xff\0\0\0", id="a document that lies"),
        pytest.param(column(1, T.VECTOR), b"\x02\0\0\0", id="a vector cut off"),
    ],
)
def test_a_corrupt_cell_is_refused_with_its_column(col: ColumnInfo, cell: bytes) -> None:
    value = b"\x80\0\1\0\0\0\1" + len(cell).to_bytes(2, "little") + cell
    with pytest.raises(CorruptDataError, match=r"cannot decode column 'c1' of table test\.t, key 74"):
        TableCodec(table(col)).decode(record_key(100, 7), value)


def test_an_enum_element_that_is_gone_reads_as_the_empty_one() -> None:
    value = bytes.fromhex("80000100000001010009")
    assert TableCodec(table(column(1, T.ENUM, elems=("a",)))).decode(record_key(100, 7), value) == [0]


def test_a_document_that_contains_itself_is_refused() -> None:
    loop = b"\x03" + b"\1\0\0\0" + b"\x0d\0\0\0" + b"\x03\0\0\0\0"
    with pytest.raises(CorruptDataError, match="nests too deep"):
        read_document(loop)


@pytest.mark.parametrize("text_", ["", "{", "NaN", "1e999", "[1,]", '{"a"}', "[" * 101 + "]" * 101, "nul"])
def test_text_that_is_no_document_is_refused(text_: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the words are Python's
        parse_document(text_)


def test_only_record_keys_have_handles() -> None:
    with pytest.raises(CorruptDataError, match="no record key"):
        handle_in(b"m")
