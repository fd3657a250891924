"""The worked examples of TiDB's encoding, E1 to E70, both ways."""

import zlib
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.tidebox.sql.codec.tables import PRIMARY, UNSIGNED, clustered, column, index, table, text
from tidebox.sql.codec import (
    ChecksumVersion,
    Datum,
    Json,
    RowFormat,
    TableCodec,
    Time,
    handle_in,
    rowid_handle,
    split_index_key,
    split_index_value,
)
from tidebox.sql.codec.cells import cell_reader, cell_writer
from tidebox.sql.codec.checksums import checksum_payload
from tidebox.sql.codec.flagged import flagged_reader, key_writer
from tidebox.sql.codec.indexes import index_id_of, index_prefix, temporary_index_id, version_0_value
from tidebox.sql.codec.numbers import (
    comparable_float,
    comparable_int,
    comparable_uint,
    read_comparable_float,
    read_comparable_int,
    read_comparable_uint,
    read_uvarint,
    read_varint,
    uvarint,
    varint,
)
from tidebox.sql.codec.rows import is_raw_checksum_right, split_row
from tidemill.model.table import ColumnInfo, TableInfo
from tidemill.model.table import ColumnType as T
from tidemill.tidb.keys import decode_bytes, encode_bytes, record_key, record_range, record_span

BIG = column(2, T.LONGLONG)
BIG_UNSIGNED = column(2, T.LONGLONG, flag=UNSIGNED)
DOUBLE = column(2, T.DOUBLE)
DATETIME = column(2, T.DATETIME, decimal=0)
DATETIME6 = column(2, T.DATETIME, decimal=6)
TIME = column(2, T.DURATION, decimal=0)
JSON = column(2, T.JSON)
VECTOR = column(2, T.VECTOR)


def decimal(precision: int, scale: int, column_id: int = 2) -> ColumnInfo:
    return column(column_id, T.NEWDECIMAL, flen=precision, decimal=scale)


@pytest.mark.parametrize(
    ("write", "read", "value", "encoded"),
    [
        pytest.param(comparable_int, read_comparable_int, 0, "8000000000000000", id="E1"),
        pytest.param(comparable_int, read_comparable_int, 1, "8000000000000001", id="E2"),
        pytest.param(comparable_int, read_comparable_int, -1, "7fffffffffffffff", id="E2 negative"),
        pytest.param(comparable_int, read_comparable_int, -(2**63), "0000000000000000", id="E3 least"),
        pytest.param(comparable_int, read_comparable_int, 2**63 - 1, "ffffffffffffffff", id="E3 largest"),
        pytest.param(comparable_uint, read_comparable_uint, 255, "00000000000000ff", id="E4"),
        pytest.param(comparable_float, read_comparable_float, 1.0, "bff0000000000000", id="E5"),
        pytest.param(comparable_float, read_comparable_float, -1.0, "400fffffffffffff", id="E5 negative"),
        pytest.param(comparable_float, read_comparable_float, 1.8, "bffccccccccccccd", id="E6"),
        pytest.param(comparable_float, read_comparable_float, -1.8, "4003333333333332", id="E6 negative"),
        pytest.param(encode_bytes, lambda b: decode_bytes(b)[0], b"", "0000000000000000f7", id="E8"),
        pytest.param(encode_bytes, lambda b: decode_bytes(b)[0], b"\1\2\3", "0102030000000000fa", id="E9"),
        pytest.param(encode_bytes, lambda b: decode_bytes(b)[0], b"\1\2\3\0", "0102030000000000fb", id="E10"),
        pytest.param(
            encode_bytes,
            lambda b: decode_bytes(b)[0],
            bytes(range(1, 9)),
            "0102030405060708ff0000000000000000f7",
            id="E11",
        ),
        pytest.param(encode_bytes, lambda b: decode_bytes(b)[0], b"abc", "6162630000000000fa", id="E12"),
        pytest.param(varint, lambda b: read_varint(b, 0)[0], 1, "02", id="E13 1"),
        pytest.param(varint, lambda b: read_varint(b, 0)[0], -1, "01", id="E13 -1"),
        pytest.param(varint, lambda b: read_varint(b, 0)[0], 64, "8001", id="E13 64"),
        pytest.param(varint, lambda b: read_varint(b, 0)[0], 300, "d804", id="E13 300"),
        pytest.param(uvarint, lambda b: read_uvarint(b, 0)[0], 300, "ac02", id="E14"),
    ],
)
def test_primitives(write: Any, read: Any, value: Any, encoded: str) -> None:
    assert write(value).hex() == encoded
    assert read(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize(
    ("col", "value", "cell"),
    [
        pytest.param(DOUBLE, 3.14, "c0091eb851eb851f", id="E7 double"),
        pytest.param(column(2, T.FLOAT), 3.140000104904175, "c0091eb860000000", id="E7 float"),
        pytest.param(BIG, 127, "7f", id="E15 127"),
        pytest.param(BIG, 128, "8000", id="E15 128"),
        pytest.param(BIG, -128, "80", id="E15 -128"),
        pytest.param(BIG, -129, "7fff", id="E15 -129"),
        pytest.param(BIG, 32767, "ff7f", id="E16 32767"),
        pytest.param(BIG, 32768, "00800000", id="E16 32768"),
        pytest.param(BIG, 2**31 - 1, "ffffff7f", id="E16 2^31-1"),
        pytest.param(BIG, 2**31, "0000008000000000", id="E16 2^31"),
        pytest.param(BIG_UNSIGNED, 255, "ff", id="E17 255"),
        pytest.param(BIG_UNSIGNED, 256, "0001", id="E17 256"),
        pytest.param(BIG_UNSIGNED, 65536, "00000100", id="E17 65536"),
        pytest.param(BIG_UNSIGNED, 2**32, "0000000001000000", id="E17 2^32"),
        pytest.param(decimal(14, 4), Decimal("1234567890.1234"), "0e04810dfb38d204d2", id="E18"),
        pytest.param(decimal(14, 4), Decimal("-1234567890.1234"), "0e047ef204c72dfb2d", id="E19"),
        pytest.param(decimal(10, 2), Decimal("3.14"), "0a02800000030e", id="E20"),
        pytest.param(decimal(4, 2), Decimal("12.34"), "04028c22", id="E21"),
        pytest.param(decimal(4, 2), Decimal("-12.34"), "040273dd", id="E21 negative"),
        pytest.param(decimal(5, 2), Decimal("-0.01"), "05027ffffe", id="E22"),
        pytest.param(decimal(6, 4), Decimal("11.99"), "06048b26ac", id="E23"),
        pytest.param(decimal(1, 0), Decimal("1"), "010081", id="E24"),
        pytest.param(decimal(10, 2), Decimal("99999999.99"), "0a0285f5e0ff63", id="E25"),
        pytest.param(column(2, T.DATE), Time(2020, 1, 1), "000000000042a519", id="E26"),
        pytest.param(DATETIME, Time(2018, 1, 19, 3, 14, 7), "0000008733e69e19", id="E27"),
        pytest.param(
            DATETIME6,
            Time(2011, 11, 10, 11, 11, 11, 999999),
            (1840446893366133311).to_bytes(8, "little").hex(),
            id="E28",
        ),
        pytest.param(DATETIME6, Time(2023, 1, 2, 3, 4, 5, 678), "a60200053104af19", id="E29"),
        pytest.param(DATETIME, Time(), "00", id="the zero date"),
        pytest.param(TIME, timedelta(seconds=1), "00ca9a3b", id="E30"),
        pytest.param(TIME, timedelta(seconds=-1), "003665c4", id="E30 negative"),
        pytest.param(
            column(2, T.DURATION, decimal=6),
            timedelta(hours=8, minutes=7, microseconds=123456),
            "00321457931a0000",
            id="E31",
        ),
        pytest.param(column(2, T.YEAR, flag=UNSIGNED), 2023, "e707", id="E32"),
        pytest.param(column(2, T.YEAR, flag=UNSIGNED), 0, "00", id="E32 zero"),
        pytest.param(column(2, T.BIT, flen=24, flag=UNSIGNED), 3223600, "30303100", id="E33"),
        pytest.param(JSON, Json(None), "0400", id="E34 null"),
        pytest.param(JSON, Json(1.5), "0b000000000000f83f", id="E34 double"),
        pytest.param(JSON, Json("foo"), "0c03666f6f", id="E34 string"),
        pytest.param(
            JSON, Json({"key": "value"}), "01010000001c0000001300000003000c160000006b65790576616c7565", id="E35"
        ),
        pytest.param(JSON, Json({"a": 2}), "01010000001c0000001300000001000914000000610200000000000000", id="E36"),
        pytest.param(
            JSON,
            Json([1, "x", True]),
            "03030000002100000009170000000c1f000000040100000001000000000000000178",
            id="E37",
        ),
        pytest.param(
            JSON,
            Json({"foo": "bar", "a": 42}),
            "01020000002e0000001e00000001001f000000030009220000000c2a00000061666f6f2a0000000000000003626172",
            id="E38",
        ),
        pytest.param(VECTOR, (1.0, 2.0, 3.0), "030000000000803f0000004000004040", id="E39"),
        pytest.param(VECTOR, (), "00000000", id="E39 empty"),
    ],
)
def test_cells(col: ColumnInfo, value: Datum, cell: str) -> None:
    assert cell_writer(col)(value).hex() == cell
    assert cell_reader(col)(bytes.fromhex(cell)) == value


# Keys

ID = column(1, T.LONGLONG, flag=PRIMARY)
PAIR = clustered(text(1, flag=PRIMARY), column(2, T.DATE, flag=PRIMARY), column(3, T.LONG), table_id=54)
PADDED = clustered(text(1, flag=PRIMARY), column(2, T.LONG, flag=PRIMARY), column(3, T.LONG), table_id=54)


@pytest.mark.parametrize(
    ("t", "row", "key"),
    [
        pytest.param(
            table(ID, table_id=104, pk_is_handle=True), [1], "7480000000000000685f728000000000000001", id="E40"
        ),
        pytest.param(
            table(column(1, T.LONGLONG, flag=PRIMARY | UNSIGNED), pk_is_handle=True),
            [2**64 - 1],
            "7480000000000000645f727fffffffffffffff",
            id="E41",
        ),
        pytest.param(
            PAIR,
            ["aaa", Time(2020, 1, 1), 100],
            "7480000000000000365f72016161610000000000fa0419a5420000000000",
            id="E42",
        ),
        pytest.param(
            clustered(column(1, T.NEWDECIMAL, flag=PRIMARY, flen=1, decimal=0)),
            [Decimal(5)],
            "7480000000000000645f72060100850000000000",
            id="E43",
        ),
        pytest.param(
            PADDED,
            ["ab ", 5, 9],
            "7480000000000000365f72016162000000000000f9038000000000000005",
            id="E44",
        ),
        pytest.param(
            clustered(text(1, collate="utf8mb4_general_ci", flag=PRIMARY)),
            ["Ab"],
            "7480000000000000645f72010041004200000000fb",
            id="E45",
        ),
    ],
)
def test_record_keys(t: TableInfo, row: list[Datum], key: str) -> None:
    codec = TableCodec(t)
    record = codec.record(codec.handle_of(row), row)
    assert record.key.hex() == key
    assert codec.decode(*record) == row


def test_the_forms_of_keys_that_ranges_and_the_store_use() -> None:
    e46 = encode_bytes(record_key(2246, 1))
    assert e46.hex() == "7480000000000008ffc65f728000000000ff0000010000000000fa"
    assert decode_bytes(e46) == (record_key(2246, 1), len(e46))
    e47 = "7480000000000000645f72", "7480000000000000645f73"
    assert tuple(key.hex() for key in record_range(100)) == e47
    e48 = record_span(100)
    assert (e48.start.hex(), e48.end.hex()) == (
        "7480000000000000ff645f720000000000fa",
        "7480000000000000ff645f730000000000fa",
    )
    e49 = "78000001" + record_key(281474976710654, 2).hex()
    assert e49 == "78000001748000fffffffffffe5f728000000000000002"


# Rows


@pytest.mark.parametrize(
    ("columns", "row", "value"),
    [
        pytest.param([column(1, T.LONG)], [1], "80000100000001010001", id="E50"),
        pytest.param(
            [text(2), column(3, T.LONG)], ["shirlya4", 34], "800002000000020308000900736869726c79613422", id="E52"
        ),
        pytest.param(
            [column(2, T.LONG), text(3), column(4, T.LONG, default="1")],
            [7, "hi", None],
            "80000200010002030401000300076869",
            id="E53",
        ),
        pytest.param([column(1, T.LONG)], [None], "800000000000", id="E54"),
        pytest.param(
            [column(1, T.LONGLONG, flag=UNSIGNED), column(2, T.LONGLONG)],
            [2**64 - 1, -1],
            "800002000000010208000900ffffffffffffffffff",
            id="E55",
        ),
        pytest.param(
            [*(column(i, T.LONG) for i in (1, 12, 3, 8)), column(335, T.LONG, origin_default="1")],
            [1000, 2, 3, 32767, None],
            "8001040001000100000003000000080000000c0000004f01000002000000030000000500000006000000e80303ff7f02",
            id="E56",
        ),
        pytest.param(
            [column(1, T.LONG), text(300)], [1, "x"], "800102000000010000002c01000001000000020000000178", id="E57"
        ),
    ],
)
def test_rows(columns: list[ColumnInfo], row: list[Datum], value: str) -> None:
    codec = TableCodec(table(*columns))
    record = codec.record(rowid_handle(1), row)
    assert record.value.hex() == value
    assert codec.decode(*record) == row


@pytest.mark.parametrize(
    ("t", "row", "value"),
    [
        pytest.param(PAIR, ["aaa", Time(2020, 1, 1), 100], "80000200000001030300040061616164", id="E51"),
        pytest.param(PADDED, ["ab ", 5, 9], "80000200000001030300040061622009", id="E58"),
    ],
)
def test_rows_repeat_only_what_their_handle_has_forgotten(t: TableInfo, row: list[Datum], value: str) -> None:
    codec = TableCodec(t)
    assert codec.record(codec.handle_of(row), row).value.hex() == value


@pytest.mark.parametrize(
    ("columns", "row", "value"),
    [
        pytest.param([text(1)], ["A"], "0802020241", id="E59"),
        pytest.param(
            [column(1, T.LONG), text(2), column(3, T.LONG, default="1")],
            [7, "hi", None],
            "0802080e080402046869080600",
            id="E60",
        ),
        pytest.param([text(1)], [None], "00", id="no columns"),
    ],
)
def test_rows_of_format_v1(columns: list[ColumnInfo], row: list[Datum], value: str) -> None:
    codec = TableCodec(table(*columns), row_format=RowFormat.V1)
    record = codec.record(rowid_handle(1), row)
    assert record.value.hex() == value
    assert codec.decode(*record) == row


GOLDEN = (
    "80000b000100"
    "0103060708090c0d0e0f1021"
    "020003000b000e001000180019002100240041004500"
    "e803034003333333333332616263ff7fbffccccccccccccd02"
    "0000008733e69e19010081"
    "01010000001c0000001300000003000c160000006b65790576616c7565"
    "00ca9a3b"
)


def test_the_row_of_mixed_types() -> None:
    columns = [
        column(1, T.LONG),
        column(3, T.LONG, flag=UNSIGNED),
        column(6, T.DOUBLE),
        text(7),
        column(8, T.SHORT),
        column(9, T.DOUBLE),
        column(12, T.LONG),
        column(13, T.DATETIME, decimal=0),
        decimal(1, 0, 14),
        column(15, T.JSON),
        column(16, T.DURATION, decimal=0),
        column(33, T.LONG, default="0"),
    ]
    datetime, second = Time(2018, 1, 19, 3, 14, 7), timedelta(seconds=1)
    row = [1000, 3, -1.8, "abc", 32767, 1.8, 2, datetime, Decimal(1), Json({"key": "value"}), second, None]
    codec = TableCodec(table(*columns))
    record = codec.record(rowid_handle(1), row)
    assert record.value.hex() == GOLDEN
    assert codec.decode(*record) == row


CHECKED = table(ID, column(2, T.LONG), text(3), pk_is_handle=True)


@pytest.mark.parametrize(
    ("version", "value"),
    [
        pytest.param(ChecksumVersion.RAW_HANDLE, "80020200000002030100030007686902ec8d4e10", id="E61"),
        pytest.param(ChecksumVersion.RAW_KEY, "80020200000002030100030007686901431e13fc", id="E62"),
        pytest.param(ChecksumVersion.COLUMNS, "80020200000002030100030007686900b8e64e0e", id="E63"),
    ],
)
def test_checksums(version: ChecksumVersion, value: str) -> None:
    codec = TableCodec(CHECKED, checksum=version)
    row: list[Datum] = [1, 7, "hi"]
    record = codec.record(codec.handle_of(row), row)
    assert record.value.hex() == value
    assert codec.decode(*record) == row
    block = split_row(record.value).checksum
    assert block is not None
    assert block.version is version
    if version is ChecksumVersion.COLUMNS:
        payload = checksum_payload(CHECKED.columns, row)
        assert payload.hex() == "01000000000000000700000000000000020000006869"
        assert block.crc == zlib.crc32(payload)
    else:
        assert is_raw_checksum_right(record.value, record.key, handle_in(record.key))
        assert not is_raw_checksum_right(record.value, record.key + b"\0", handle_in(record.key) + b"\0")


# Indexes

NUMBER = column(1, T.LONG)
WORD = text(2, collate="binary")
HANDLE_9 = rowid_handle(9)


@pytest.mark.parametrize(
    ("t", "handle", "row", "key", "value"),
    [
        pytest.param(
            table(NUMBER, indexes=(index(1, 0, is_unique=True),)),
            HANDLE_9,
            [5],
            "7480000000000000645f698000000000000001038000000000000005",
            "0000000000000009",
            id="E64",
        ),
        pytest.param(
            table(NUMBER, WORD, indexes=(index(2, 1),)),
            HANDLE_9,
            [5, b"abc"],
            "7480000000000000645f698000000000000002016162630000000000fa038000000000000009",
            "30",
            id="E65",
        ),
        pytest.param(
            table(NUMBER, indexes=(index(1, 0, is_unique=True),)),
            HANDLE_9,
            [None],
            "7480000000000000645f69800000000000000100038000000000000009",
            "30",
            id="E66",
        ),
        pytest.param(
            clustered(
                column(1, T.LONG, flag=PRIMARY),
                column(2, T.DOUBLE, flag=PRIMARY),
                text(3, T.STRING, flag=PRIMARY),
                table_id=59,
                indexes=(index(2, 0, 1, 2),),
            ),
            b"",
            [1, 1.1, "111"],
            "74800000000000003b5f69800000000000000203800000000000000105bff199999999999a013131310000000000fa",
            "007d01",
            id="E67",
        ),
    ],
)
def test_index_entries(t: TableInfo, handle: bytes, row: list[Datum], key: str, value: str) -> None:
    (entry,) = TableCodec(t).index_entries(handle, row)
    assert (entry.key.hex(), entry.value.hex()) == (key, value)
    parts = split_index_key(entry.key)
    assert (parts.physical_id, parts.index_id) == (t.id, t.indexes[-1].id)
    read, at = [], 0
    for part in t.indexes[-1].columns:
        datum, at = flagged_reader(t.columns[part.offset])(parts.values, at)
        read.append(datum)
    assert read == [row[part.offset] for part in t.indexes[-1].columns]
    if entry.is_distinct:
        assert split_index_value(entry.value).handle == handle
    else:
        assert parts.values[at:] == (b"" if t.is_common_handle else b"\x03") + handle


def test_a_unique_index_of_a_clustered_table_leads_to_the_common_handle() -> None:
    t = clustered(*PADDED.columns, indexes=(index(2, 2, is_unique=True),))
    codec = TableCodec(t)
    row: list[Datum] = ["ab ", 5, 9]
    handle = codec.handle_of(row)
    (entry,) = codec.index_entries(handle, row)
    e68 = "007d017f0013016162000000000000f9038000000000000005"
    assert entry.value.hex() == e68 + "800001000000010100" + "01"  # and that "ab " has one space behind it
    assert split_index_value(bytes.fromhex(e68)) == (handle, None, None)
    assert split_index_value(entry.value).handle == handle


def test_a_global_index_tells_the_partition() -> None:
    value = version_0_value(int_handle=HANDLE_9, partition_id=88)
    assert value.hex() == "087e80000000000000580000000000000009"  # E69
    assert split_index_value(value) == (HANDLE_9, 88, None)


def test_a_temporary_index_has_an_id_of_its_own() -> None:
    assert index_prefix(100, temporary_index_id(2))[-8:].hex() == "ffff000000000002"  # E70
    assert index_id_of(temporary_index_id(2)) == 2


def test_each_type_has_its_flag_in_keys() -> None:
    flags = {
        T.LONG: 3,
        T.YEAR: 3,
        T.DATE: 4,
        T.DATETIME: 4,
        T.TIMESTAMP: 4,
        T.ENUM: 4,
        T.SET: 4,
        T.BIT: 4,
        T.FLOAT: 5,
        T.DOUBLE: 5,
        T.NEWDECIMAL: 6,
        T.DURATION: 7,
        T.VARCHAR: 1,
        T.BLOB: 1,
    }
    values: dict[T, Datum] = {T.DURATION: timedelta(1), T.NEWDECIMAL: Decimal(1), T.VARCHAR: "1", T.BLOB: b"1"}
    times = dict.fromkeys((T.DATE, T.DATETIME, T.TIMESTAMP), Time(2020, 1, 1))
    for kind, flag in flags.items():
        assert key_writer(column(1, kind))((values | times).get(kind, 1))[0] == flag
