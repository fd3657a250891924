"""The worked examples of TiDB's encoding, E1 to E63: each of those bytes reads as what they were written from."""

from typing import Any

import pyarrow as pa
import pytest

from tests.flow.mounter.tables import ID, column, outcomes, primary, table, text
from tests.reference.encode import record_key, row_v1, row_v2
from tidemill.flow.mounter import mount_values
from tidemill.model.table import ColumnFlag, ColumnInfo, TableInfo
from tidemill.model.table import ColumnType as T

UNSIGNED = ColumnFlag.UNSIGNED
BIG = column(2, T.LONGLONG)
BIG_UNSIGNED = column(2, T.LONGLONG, flag=UNSIGNED)
DOUBLE = column(2, T.DOUBLE)
DECIMAL = column(2, T.NEWDECIMAL, flen=14, decimal=4)
DATETIME = column(2, T.DATETIME, decimal=0)
DATETIME6 = column(2, T.DATETIME, decimal=6)
TIME = column(2, T.DURATION, decimal=0)
JSON = column(2, T.JSON)
VECTOR = column(2, T.VECTOR)


def decode(t: TableInfo, key: bytes, value: bytes) -> Any:
    mine, plain = outcomes(t, key, value)
    assert mine == plain
    return mine


@pytest.mark.parametrize(
    ("col", "cell", "value"),
    [
        pytest.param(DOUBLE, "bff0000000000000", 1.0, id="E5 one"),
        pytest.param(DOUBLE, "400fffffffffffff", -1.0, id="E5 minus one"),
        pytest.param(DOUBLE, "bffccccccccccccd", 1.8, id="E6"),
        pytest.param(DOUBLE, "4003333333333332", -1.8, id="E6 negative"),
        pytest.param(DOUBLE, "c0091eb851eb851f", 3.14, id="E7 double"),
        pytest.param(column(2, T.FLOAT), "c0091eb860000000", 3.140000104904175, id="E7 float"),
        pytest.param(BIG, "7f", 127, id="E15 127"),
        pytest.param(BIG, "8000", 128, id="E15 128"),
        pytest.param(BIG, "80", -128, id="E15 -128"),
        pytest.param(BIG, "7fff", -129, id="E15 -129"),
        pytest.param(BIG, "ff7f", 32767, id="E16 32767"),
        pytest.param(BIG, "00800000", 32768, id="E16 32768"),
        pytest.param(BIG, "ffffff7f", 2**31 - 1, id="E16 2^31-1"),
        pytest.param(BIG, "0000008000000000", 2**31, id="E16 2^31"),
        pytest.param(BIG_UNSIGNED, "ff", 255, id="E17 255"),
        pytest.param(BIG_UNSIGNED, "0001", 256, id="E17 256"),
        pytest.param(BIG_UNSIGNED, "00000100", 65536, id="E17 65536"),
        pytest.param(BIG_UNSIGNED, "0000000001000000", 2**32, id="E17 2^32"),
        pytest.param(DECIMAL, "0e04810dfb38d204d2", "1234567890.1234", id="E18"),
        pytest.param(DECIMAL, "0e047ef204c72dfb2d", "-1234567890.1234", id="E19"),
        pytest.param(DECIMAL, "0a02800000030e", "3.14", id="E20"),
        pytest.param(DECIMAL, "04028c22", "12.34", id="E21"),
        pytest.param(DECIMAL, "040273dd", "-12.34", id="E21 negative"),
        pytest.param(DECIMAL, "05027ffffe", "-0.01", id="E22"),
        pytest.param(DECIMAL, "06048b26ac", "11.9900", id="E23"),
        pytest.param(DECIMAL, "010081", "1", id="E24"),
        pytest.param(DECIMAL, "0a0285f5e0ff63", "99999999.99", id="E25"),
        pytest.param(column(2, T.DATE), "000000000042a519", "2020-01-01", id="E26"),
        pytest.param(DATETIME, "0000008733e69e19", "2018-01-19 03:14:07", id="E27"),
        pytest.param(
            DATETIME6,
            (1840446893366133311).to_bytes(8, "little").hex(),
            "2011-11-10 11:11:11.999999",
            id="E28",
        ),
        pytest.param(DATETIME6, "a60200053104af19", "2023-01-02 03:04:05.000678", id="E29"),
        pytest.param(TIME, "00ca9a3b", "00:00:01", id="E30"),
        pytest.param(TIME, "003665c4", "-00:00:01", id="E30 negative"),
        pytest.param(column(2, T.DURATION, decimal=6), "00321457931a0000", "08:07:00.123456", id="E31"),
        pytest.param(column(2, T.YEAR, flag=UNSIGNED), "e707", 2023, id="E32"),
        pytest.param(column(2, T.YEAR, flag=UNSIGNED), "00", 0, id="E32 zero"),
        pytest.param(column(2, T.BIT, flen=24, flag=UNSIGNED), "30303100", 3223600, id="E33"),
        pytest.param(JSON, "0400", "null", id="E34 null"),
        pytest.param(JSON, "0b000000000000f83f", "1.5", id="E34 double"),
        pytest.param(JSON, "0c03666f6f", '"foo"', id="E34 string"),
        pytest.param(JSON, "01010000001c0000001300000003000c160000006b65790576616c7565", '{"key": "value"}', id="E35"),
        pytest.param(JSON, "01010000001c0000001300000001000914000000610200000000000000", '{"a": 2}', id="E36"),
        pytest.param(
            JSON,
            "03030000002100000009170000000c1f000000040100000001000000000000000178",
            '[1, "x", true]',
            id="E37",
        ),
        pytest.param(
            JSON,
            "01020000002e0000001e00000001001f000000030009220000000c2a00000061666f6f2a0000000000000003626172",
            '{"a": 42, "foo": "bar"}',
            id="E38",
        ),
        pytest.param(VECTOR, "030000000000803f0000004000004040", "[1,2,3]", id="E39"),
        pytest.param(VECTOR, "00000000", "[]", id="E39 empty"),
    ],
)
def test_a_cell(col: ColumnInfo, cell: str, value: object) -> None:
    t = table(primary(), col, pk_is_handle=True)
    assert decode(t, record_key(ID, 7), row_v2({2: bytes.fromhex(cell)})) == {"id": 7, "c2": value}


@pytest.mark.parametrize(
    ("handle", "flag", "value"),
    [
        pytest.param("8000000000000000", 0, 0, id="E1"),
        pytest.param("8000000000000001", 0, 1, id="E2 one"),
        pytest.param("7fffffffffffffff", 0, -1, id="E2 minus one"),
        pytest.param("0000000000000000", 0, -(2**63), id="E3 least"),
        pytest.param("ffffffffffffffff", 0, 2**63 - 1, id="E3 greatest"),
        pytest.param("7fffffffffffffff", UNSIGNED, 2**64 - 1, id="E41 unsigned"),
    ],
)
def test_an_integer_handle(handle: str, flag: int, value: int) -> None:
    t = table(primary(flag=flag), pk_is_handle=True)
    key = bytes.fromhex("7480000000000000645f72" + handle)
    assert decode(t, key, row_v2({})) == {"id": value}


@pytest.mark.parametrize(
    ("handle", "columns", "row", "values"),
    [
        pytest.param("010000000000000000f7", [column(1, T.VARCHAR)], {}, [b""], id="E8"),
        pytest.param("010102030000000000fa", [column(1, T.VARCHAR)], {}, [b"\1\2\3"], id="E9"),
        pytest.param("010102030000000000fb", [column(1, T.VARCHAR)], {}, [b"\1\2\3\0"], id="E10"),
        pytest.param(
            "010102030405060708ff0000000000000000f7", [column(1, T.VARCHAR)], {}, [bytes(range(1, 9))], id="E11"
        ),
        pytest.param("016162630000000000fa", [column(1, T.VARCHAR)], {}, [b"abc"], id="E12"),
        pytest.param(
            "0400000000000000ff", [column(1, T.LONGLONG, flag=UNSIGNED)], {}, [255], id="E4 an unsigned column"
        ),
        pytest.param(
            "016161610000000000fa0419a5420000000000",
            [text(1), column(2, T.DATE)],
            {1: b"aaa"},
            ["aaa", "2020-01-01"],
            id="E42 with row E51",
        ),
        pytest.param("060100850000000000", [column(1, T.NEWDECIMAL, flen=1, decimal=0)], {}, ["5"], id="E43 filled up"),
        pytest.param(
            "016162000000000000f9038000000000000005",
            [text(1), column(2, T.LONG)],
            {1: b"ab "},
            ["ab ", 5],
            id="E44 the row has the trailing space",
        ),
        pytest.param(
            "010041004200000000fb",
            [text(1, collate="utf8mb4_general_ci")],
            {1: b"Ab"},
            ["Ab"],
            id="E45 the row has what the sort key lost",
        ),
    ],
)
def test_a_common_handle(handle: str, columns: list[ColumnInfo], row: dict[int, bytes], values: list[object]) -> None:
    t = table(*columns, clustered=[(i, -1) for i in range(len(columns))])
    key = record_key(ID, bytes.fromhex(handle))
    assert list(decode(t, key, row_v2(row)).values()) == values


def big(*ids: int, flags: dict[int, int] | None = None) -> list[ColumnInfo]:
    return [column(i, T.LONGLONG, flag=(flags or {}).get(i, 0)) for i in ids]


@pytest.mark.parametrize(
    ("value", "columns", "values"),
    [
        pytest.param("80000100000001010001", big(1), [1], id="E50"),
        pytest.param("80000200000001030300040061616164", [text(1), *big(3)], ["aaa", 100], id="E51"),
        pytest.param("800002000000020308000900736869726c79613422", [text(2), *big(3)], ["shirlya4", 34], id="E52"),
        pytest.param("80000200010002030401000300076869", [*big(2), text(3), *big(4)], [7, "hi", None], id="E53"),
        pytest.param("800000000000", big(1), [None], id="E54"),
        pytest.param(
            "800002000000010208000900ffffffffffffffffff", big(1, 2, flags={1: UNSIGNED}), [2**64 - 1, -1], id="E55"
        ),
        pytest.param(
            "8001040001000100000003000000080000000c0000004f01000002000000030000000500000006000000e80303ff7f02",
            big(1, 3, 8, 12, 335),
            [1000, 3, 32767, 2, None],
            id="E56",
        ),
        pytest.param("800102000000010000002c01000001000000020000000178", [*big(1), text(300)], [1, "x"], id="E57"),
        pytest.param("80000200000001030300040061622009", [text(1), *big(3)], ["ab ", 9], id="E58"),
        pytest.param("0802020241", [text(1)], ["A"], id="E59"),
        pytest.param("0802080e080402046869080600", [*big(1), text(2), *big(3)], [7, "hi", None], id="E60"),
        pytest.param("80020200000002030100030007686902ec8d4e10", [*big(2), text(3)], [7, "hi"], id="E61"),
        pytest.param("80020200000002030100030007686901431e13fc", [*big(2), text(3)], [7, "hi"], id="E62"),
        pytest.param("80020200000002030100030007686900b8e64e0e", [*big(2), text(3)], [7, "hi"], id="E63"),
        pytest.param("00", big(1), [None], id="the empty row of format v1"),
    ],
)
def test_a_row(value: str, columns: list[ColumnInfo], values: list[object]) -> None:
    assert list(decode(table(*columns), record_key(ID, 1), bytes.fromhex(value)).values()) == values


def test_the_golden_row_of_all_kinds() -> None:
    row = bytes.fromhex(
        "80000b000100"
        "0103060708090c0d0e0f1021"
        "020003000b000e001000180019002100240041004500"
        "e803034003333333333332616263ff7fbffccccccccccccd02"
        "0000008733e69e19010081"
        "01010000001c0000001300000003000c160000006b65790576616c7565"
        "00ca9a3b"
    )
    kinds = {1: T.LONGLONG, 6: T.DOUBLE, 8: T.LONGLONG, 9: T.DOUBLE, 12: T.LONGLONG, 13: T.DATETIME, 14: T.NEWDECIMAL}
    columns = [column(id_, kind) for id_, kind in (kinds | {15: T.JSON, 16: T.DURATION, 33: T.LONG}).items()]
    t = table(*columns, column(3, T.LONGLONG, flag=UNSIGNED), text(7))
    assert decode(t, record_key(ID, 1), row) == {
        "c1": 1000,
        "c6": -1.8,
        "c8": 32767,
        "c9": 1.8,
        "c12": 2,
        "c13": "2018-01-19 03:14:07",
        "c14": "1",
        "c15": '{"key": "value"}',
        "c16": "00:00:01",
        "c33": None,
        "c3": 3,
        "c7": "abc",
    }


@pytest.mark.parametrize(
    ("number", "flagged"),
    [
        pytest.param(1, "0802", id="E13 1"),
        pytest.param(-1, "0801", id="E13 -1"),
        pytest.param(64, "088001", id="E13 64"),
        pytest.param(300, "08d804", id="E13 300"),
        pytest.param(300, "09ac02", id="E14 300 unsigned"),
    ],
)
def test_a_varint_of_format_v1(number: int, flagged: str) -> None:
    assert decode(table(BIG), record_key(ID, 1), row_v1({2: bytes.fromhex(flagged)})) == {"c2": number}


def test_the_record_key_e40() -> None:
    t = TableInfo(104, 1, "test", "t", 0, table(primary()).columns, pk_is_handle=True)
    key = bytes.fromhex("7480000000000000685f728000000000000001")
    decoded = mount_values(t, 104, pa.array([key]), pa.array([row_v2({})]))
    assert decoded.to_pylist() == [{"id": 1}]
