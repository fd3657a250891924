"""What the mounter promises: images, missing columns, mixed formats, handles, zones, and refusals by name."""

import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tests.flow.mounter.tables import ID, changes, column, outcomes, primary, rows_of, table, text
from tests.reference.encode import (
    V1_NULL,
    comparable_bytes,
    comparable_int,
    core_time,
    decimal_cell,
    float_cell,
    int_cell,
    json_cell,
    record_key,
    row_v1,
    row_v2,
    time_cell,
    uint_cell,
    v1_bytes,
    v1_int,
    v1_raw,
    v1_uint,
    vector_cell,
)
from tidemill.errors import RowUndecodableError, UsageError
from tidemill.flow.mounter import mount, mount_values
from tidemill.model.row import RowOp
from tidemill.model.table import ColumnFlag, ColumnInfo
from tidemill.model.table import ColumnType as T

NOT_NULL = ColumnFlag.NOT_NULL
KEY = record_key(ID, 1)
SIMPLE = table(primary(), column(2, T.LONG), text(3), pk_is_handle=True)


def one(col: ColumnInfo, value: bytes, zone: str = "UTC") -> object:
    """The column's value in a row that holds ``value``; both decoders agree on it."""
    mine, plain = outcomes(table(col), KEY, value, zone)
    assert mine == plain
    return mine and mine[col.name]


def test_inserts_updates_and_deletes_keep_the_images_that_they_have() -> None:
    rows = [row_v2({2: int_cell(n), 3: b"x"}) for n in range(4)]
    batch = changes(
        (record_key(ID, 1), rows[0], b""), (record_key(ID, 2), rows[2], rows[1]), (record_key(ID, 3), b"", rows[3])
    )
    mounted = mount(SIMPLE, ID, batch)
    assert mounted.op.tolist() == [RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE]
    assert mounted.new.column("id").to_pylist() == [1, 2]
    assert mounted.old.column("id").to_pylist() == [2, 3]
    assert (mounted.new.column("c2").to_pylist(), mounted.old.column("c2").to_pylist()) == ([0, 2], [1, 3])
    assert (mounted.start_ts.tolist(), mounted.commit_ts.tolist()) == ([1, 3, 5], [2, 4, 6])


def test_a_delete_of_nothing_is_no_row() -> None:
    row = row_v2({2: b"\1"})
    mounted = mount(SIMPLE, ID, changes((record_key(ID, 1), b"", b""), (record_key(ID, 2), row, b"")))
    assert mounted.op.tolist() == [RowOp.INSERT]
    assert mounted.commit_ts.tolist() == [4]
    assert mounted.new.column("id").to_pylist() == [2]


def test_an_empty_batch_gives_empty_images() -> None:
    mounted = mount(SIMPLE, ID, changes())
    assert (len(mounted), mounted.new.num_rows, mounted.old.num_rows) == (0, 0, 0)
    assert mounted.new.schema.names == ["id", "c2", "c3"]


def test_a_slice_of_a_batch_decodes_like_its_own_rows() -> None:
    rows = [(record_key(ID, n), row_v2({2: int_cell(n), 3: b"s%d" % n}), b"") for n in range(40)]
    part = mount(SIMPLE, ID, changes(*rows).slice(7, 20))
    assert part.new.equals(mount(SIMPLE, ID, changes(*rows[7:27])).new)


def test_a_row_with_no_cells_at_all_is_a_row() -> None:
    assert rows_of(SIMPLE, [(KEY, row_v2({}))]) == [{"id": 1, "c2": None, "c3": None}]


def test_every_row_may_have_its_own_columns_and_nulls() -> None:
    cells = [
        {2: b"\1"},
        {3: b"x"},
        {2: None, 3: b"y"},
        {2: b"\2", 3: None},
        {},
        {2: b"\3", 3: b"z", 9: b"?", 300: None},
    ]
    pairs = [(record_key(ID, n), row_v2(c)) for n, c in enumerate(cells)]
    found = [(row["c2"], row["c3"]) for row in rows_of(SIMPLE, pairs)]
    assert found == [(1, None), (None, "x"), (None, "y"), (2, None), (None, None), (3, "z")]


def test_ids_beyond_a_byte_are_found_in_large_rows() -> None:
    t = table(column(2, T.LONG), column(256, T.LONG), text(70000))
    row = row_v2({2: b"\1", 256: b"\2", 257: b"\3", 70000: b"far"})
    assert rows_of(t, [(KEY, row), (KEY, row_v2({2: b"\4"}))]) == [
        {"c2": 1, "c256": 2, "c70000": "far"},
        {"c2": 4, "c256": None, "c70000": None},
    ]


def test_both_row_formats_live_in_one_batch() -> None:
    old = row_v1({3: v1_bytes(b"old"), 2: v1_int(-5), 77: v1_uint(3)})
    pairs = [(record_key(ID, 1), old), (record_key(ID, 2), row_v2({2: b"\6", 3: b"new"})), (record_key(ID, 3), b"\0")]
    assert rows_of(SIMPLE, pairs) == [
        {"id": 1, "c2": -5, "c3": "old"},
        {"id": 2, "c2": 6, "c3": "new"},
        {"id": 3, "c2": None, "c3": None},
    ]


def test_an_old_image_may_be_in_the_format_that_the_new_one_is_not() -> None:
    mounted = mount(SIMPLE, ID, changes((KEY, row_v2({2: b"\2"}), row_v1({2: v1_int(1), 3: V1_NULL}))))
    assert (mounted.new.column("c2").to_pylist(), mounted.old.column("c2").to_pylist()) == ([2], [1])


@pytest.mark.parametrize(
    ("col", "flagged", "value"),
    [
        (column(2, T.DOUBLE), v1_raw(5, float_cell(-2.5)), -2.5),
        (column(2, T.NEWDECIMAL), v1_raw(6, decimal_cell(Decimal("-7.25"), 5, 2)), "-7.25"),
        (column(2, T.JSON), v1_raw(10, json_cell({"a": [1, "ü"]})), '{"a": [1, "ü"]}'),
        (column(2, T.JSON), v1_raw(10, json_cell("s")), '"s"'),
        (column(2, T.JSON), v1_raw(10, json_cell(None)), "null"),
        (column(2, T.VECTOR), v1_raw(20, vector_cell([1.5, -2])), "[1.5,-2]"),
        (column(2, T.DURATION), v1_int(-1_000_000_000), "-00:00:01"),
        (column(2, T.LONGLONG, flag=ColumnFlag.UNSIGNED), v1_uint(2**64 - 1), 2**64 - 1),
        (column(2, T.VARCHAR), v1_bytes(b"\xff\0"), b"\xff\0"),
    ],
)
def test_values_of_row_format_v1(col: ColumnInfo, flagged: bytes, value: object) -> None:
    assert one(col, row_v1({9: v1_bytes(b"before"), 2: flagged, 1: v1_int(1)})) == value


@pytest.mark.parametrize(
    ("col", "cell", "value"),
    [
        pytest.param(column(2, T.DOUBLE), float_cell(float("inf")), 0.0, id="infinity reads as 0"),
        pytest.param(column(2, T.DOUBLE), float_cell(float("-inf")), 0.0, id="minus infinity reads as 0"),
        pytest.param(column(2, T.DOUBLE), bytes.fromhex("fff8000000000000"), 0.0, id="no number reads as 0"),
        pytest.param(column(2, T.FLOAT), float_cell(1e300), 0.0, id="too large for a float reads as 0"),
        pytest.param(column(2, T.FLOAT), float_cell(0.1), float(np.float32(0.1)), id="a float is narrowed"),
        pytest.param(column(2, T.ENUM, elems=("a", "b")), b"\2", 2, id="an enum is its index"),
        pytest.param(column(2, T.ENUM, elems=("a", "b")), b"\3", 0, id="an enum beyond its elements is empty"),
        pytest.param(column(2, T.SET, elems=("a", "b")), b"\3", 3, id="a set is its bitmap"),
        pytest.param(
            column(2, T.SET, elems=tuple(f"s{i}" for i in range(64))), b"\xff" * 8, 2**64 - 1, id="a full set"
        ),
        pytest.param(column(2, T.YEAR, flag=ColumnFlag.UNSIGNED), b"\xff", -1, id="YEAR is signed whatever its flag"),
        pytest.param(column(2, T.DATE), b"\0", "0000-00-00", id="the zero date"),
        pytest.param(column(2, T.DATETIME, decimal=3), b"\0", "0000-00-00 00:00:00.000", id="the zero datetime"),
        pytest.param(column(2, T.DATETIME), time_cell(2024, 1, 0), "2024-01-00 00:00:00", id="a zero day"),
        pytest.param(column(2, T.DATETIME), time_cell(2023, 2, 31), "2023-02-31 00:00:00", id="an impossible day"),
        pytest.param(
            column(2, T.DATETIME, decimal=-1), time_cell(1, 2, 3, 4, 5, 6), "0001-02-03 04:05:06", id="no digits given"
        ),
        pytest.param(
            column(2, T.DATETIME, decimal=2),
            time_cell(2024, 2, 29, 23, 59, 59, 999999),
            "2024-02-29 23:59:59.99",
            id="a fraction is cut, not rounded",
        ),
        pytest.param(column(2, T.DURATION), int_cell(-3020399 * 10**9), "-838:59:59", id="the least time"),
        pytest.param(
            column(2, T.DURATION, decimal=1), int_cell(362439_950_000_000), "100:40:39.9", id="three digits of hours"
        ),
        pytest.param(column(2, T.NEWDECIMAL), decimal_cell(Decimal("0.05"), 3, 2), "0.05", id="a leading zero"),
        pytest.param(column(2, T.NEWDECIMAL), decimal_cell(Decimal(0), 65, 30), "0." + "0" * 30, id="zero with scale"),
        pytest.param(
            column(2, T.NEWDECIMAL), decimal_cell(Decimal(10**64), 65, 0), "1" + "0" * 64, id="the widest integer"
        ),
        pytest.param(column(2, T.STRING), b"ab\0\0", b"ab\0\0", id="BINARY keeps its padding"),
        pytest.param(text(2), "数据 🐬".encode(), "数据 🐬", id="text"),
        pytest.param(text(2), b"", "", id="an empty string is not null"),
        pytest.param(text(2, charset="latin1"), "é".encode(), "é", id="latin1 mostly holds UTF-8"),
        pytest.param(text(2, charset="latin1"), b"caf\xe9 \x80\x81", "café €\x81", id="or else bytes of latin1"),
        pytest.param(column(2, T.VECTOR), vector_cell([0.1, 1e10, -0.0, 1e-7]), "[0.1,10000000000,-0,0.0000001]"),
    ],
)
def test_values_are_presented_as_ticdc_presents_them(col: ColumnInfo, cell: bytes, value: object) -> None:
    assert one(col, row_v2({2: cell})) == value


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({}, "{}"),
        ([], "[]"),
        ([[[[]]], {"": {}}], '[[[[]]], {"": {}}]'),
        ({"b": 1, "a": None, "é": True, "B": False}, '{"B": false, "a": null, "b": 1, "é": true}'),
        ([0, -1, 2**63 - 1, -(2**63), 2**64 - 1], f"[0, -1, {2**63 - 1}, {-(2**63)}, {2**64 - 1}]"),
        ([1.0, -0.0, 0.1, 1e20, 1e21], "[1, -0, 0.1, 100000000000000000000, 1e+21]"),
        ([1e-6, 9e-7, 1e100, 5e-324], "[0.000001, 9e-7, 1e+100, 5e-324]"),
        ('"\\\n\r\t\b\f\x01\x7f<>&', '"\\"\\\\\\n\\r\\t\\u0008\\u000c\\u0001\x7f<>&"'),
        ("\u2028\u2029\u2027", '"\\u2028\\u2029\u2027"'),
        (b"\x0c\x04a\xffb\xc3", '"a\\ufffdb\\ufffd"'),
        ([b"\x0d\xfd\x03abc", b"\x0d\x10\x01a"], '["base64:type253:YWJj", "base64:type16:YQ=="]'),
        (b"\x0d\x0f\x02ab", '"base64:type15:YWI="'),
        (b"\x0e" + core_time(2024, 2, 29, 0, 0, 0, 0, 0b1110), '"2024-02-29"'),
        (b"\x0f" + core_time(2024, 2, 29, 12, 34, 56, 789000, 6), '"2024-02-29 12:34:56.789000"'),
        (b"\x10" + core_time(1999, 12, 31, 23, 59, 59, 1, 13), '"1999-12-31 23:59:59.000001"'),
        (b"\x11" + (-45296 * 10**9).to_bytes(8, "little", signed=True) + b"\0\0\0\0", '"-12:34:56.000000"'),
    ],
)  # fmt: skip
def test_documents_print_as_tidb_prints_them(document: object, shown: str) -> None:
    assert one(column(2, T.JSON), row_v2({2: json_cell(document)})) == shown


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", "2024-07-01 00:00:00"),
        ("Asia/Shanghai", "2024-07-01 08:00:00"),
        ("America/New_York", "2024-06-30 20:00:00"),
        ("Asia/Kathmandu", "2024-07-01 05:45:00"),
    ],
)
def test_a_timestamp_is_shown_in_the_chosen_zone(zone: str, shown: str) -> None:
    assert one(column(2, T.TIMESTAMP), row_v2({2: time_cell(2024, 7, 1)}), zone) == shown
    assert one(column(2, T.DATETIME), row_v2({2: time_cell(2024, 7, 1)}), zone) == "2024-07-01 00:00:00"
    assert one(column(2, T.TIMESTAMP), row_v2({2: b"\0"}), zone) == "0000-00-00 00:00:00"


def test_both_sides_of_a_clock_change() -> None:
    shown = [
        one(column(2, T.TIMESTAMP), row_v2({2: time_cell(2024, 3, 10, 6, 59, 59)}), "America/New_York"),
        one(column(2, T.TIMESTAMP), row_v2({2: time_cell(2024, 3, 10, 7, 0, 0)}), "America/New_York"),
    ]
    assert shown == ["2024-03-10 01:59:59", "2024-03-10 03:00:00"]


def test_a_fixed_offset_is_a_zone_and_an_unknown_name_is_refused() -> None:
    pair = [(KEY, row_v2({2: time_cell(2024, 7, 1)}))]
    assert rows_of(table(column(2, T.TIMESTAMP)), pair, "-03:30") == [{"c2": "2024-06-30 20:30:00"}]
    with pytest.raises(UsageError, match="no time zone named 'Mars/Base'"):
        rows_of(table(column(2, T.TIMESTAMP)), pair, "Mars/Base")


@pytest.mark.parametrize(
    ("col", "value"),
    [
        pytest.param(column(2, T.LONG), None, id="null where it may be null"),
        pytest.param(column(2, T.LONG, default="7"), None, id="today's default is not asked"),
        pytest.param(column(2, T.LONG, origin_default="-10"), -10, id="an integer"),
        pytest.param(column(2, T.LONGLONG, flag=ColumnFlag.UNSIGNED, origin_default=str(2**64 - 1)), 2**64 - 1),
        pytest.param(column(2, T.FLOAT, origin_default="0.1"), float(np.float32(0.1)), id="a float"),
        pytest.param(column(2, T.DOUBLE, origin_default="-2.5e3"), -2500.0, id="a double"),
        pytest.param(column(2, T.NEWDECIMAL, decimal=3, origin_default="1.23"), "1.230", id="a decimal"),
        pytest.param(column(2, T.BIT, origin_default="\5", origin_default_bit=b"\1\5"), 261, id="a bit"),
        pytest.param(column(2, T.ENUM, elems=("p", "q"), origin_default="q"), 2, id="an enum"),
        pytest.param(column(2, T.SET, elems=("p", "q", "r"), origin_default="p,r"), 5, id="a set"),
        pytest.param(column(2, T.SET, elems=("p",), origin_default=""), 0, id="an empty set"),
        pytest.param(text(2, origin_default="dé"), "dé", id="a text"),
        pytest.param(column(2, T.VARCHAR, origin_default="ab"), b"ab", id="bytes"),
        pytest.param(column(2, T.STRING, flen=4, origin_default="ab"), b"ab\0\0", id="BINARY is filled up"),
        pytest.param(column(2, T.DATE, origin_default="2020-02-02"), "2020-02-02", id="a date"),
        pytest.param(
            column(2, T.DATETIME, decimal=3, origin_default="2020-02-02 02:02:02.5"), "2020-02-02 02:02:02.500"
        ),
        pytest.param(column(2, T.TIMESTAMP, origin_default="2020-02-02 20:02:02"), "2020-02-03 04:02:02", id="in zone"),
        pytest.param(column(2, T.TIMESTAMP, origin_default="0000-00-00 00:00:00"), "0000-00-00 00:00:00", id="zero ts"),
        pytest.param(column(2, T.DURATION, decimal=2, origin_default="-10:00:00"), "-10:00:00.00", id="a time"),
        pytest.param(column(2, T.YEAR, origin_default="2024"), 2024, id="a year"),
        pytest.param(column(2, T.JSON, origin_default="null"), "null", id="a document"),
        pytest.param(column(2, T.LONG, flag=NOT_NULL), 0, id="zero of an integer"),
        pytest.param(column(2, T.DOUBLE, flag=NOT_NULL), 0.0, id="zero of a double"),
        pytest.param(column(2, T.NEWDECIMAL, decimal=2, flag=NOT_NULL), "0.00", id="zero of a decimal"),
        pytest.param(column(2, T.ENUM, elems=("p", "q"), flag=NOT_NULL), 1, id="the first of an enum"),
        pytest.param(column(2, T.SET, elems=("p", "q"), flag=NOT_NULL), 0, id="zero of a set"),
        pytest.param(text(2, flag=NOT_NULL), "", id="zero of a text"),
        pytest.param(column(2, T.STRING, flen=3, flag=NOT_NULL), b"\0\0\0", id="zero of BINARY"),
        pytest.param(column(2, T.DATETIME, decimal=1, flag=NOT_NULL), "0000-00-00 00:00:00.0", id="zero of a datetime"),
        pytest.param(column(2, T.DURATION, flag=NOT_NULL), "00:00:00", id="zero of a time"),
        pytest.param(column(2, T.JSON, flag=NOT_NULL), "null", id="zero of a document"),
        pytest.param(column(2, T.VECTOR, flag=NOT_NULL), "[]", id="zero of a vector"),
        pytest.param(column(2, T.BIT, flag=NOT_NULL), 0, id="zero of a bit"),
    ],
)
def test_a_column_that_the_row_does_not_mention_is_filled(col: ColumnInfo, value: object) -> None:
    assert one(col, row_v2({}), "Asia/Shanghai") == value
    mixed = rows_of(
        table(col), [(KEY, row_v2({2: None})), (KEY, row_v2({})), (KEY, row_v2({2: None}))], "Asia/Shanghai"
    )
    assert [row["c2"] for row in mixed] == [None, value, None]


def test_a_stored_document_default_prints_in_tidbs_form() -> None:
    col = column(2, T.JSON, origin_default='{"b":[1,2.0],"a":"ü"}')
    assert rows_of(table(col), [(KEY, row_v2({}))]) == [{"c2": '{"a": "ü", "b": [1, 2]}'}]


def test_columns_of_a_common_handle_of_every_kind() -> None:
    columns = [
        column(1, T.LONG),
        column(2, T.LONGLONG, flag=ColumnFlag.UNSIGNED),
        column(3, T.DOUBLE),
        column(4, T.NEWDECIMAL),
        column(5, T.DURATION, decimal=2),
        column(6, T.DATETIME),
        text(7, kind=T.STRING),
        column(8, T.ENUM, elems=("x", "y")),
        column(9, T.YEAR),
        column(10, T.BIT),
        text(11),
    ]
    t = table(*columns, clustered=[(i, -1) for i in range(10)])
    handle = (
        b"\3" + comparable_int(-5)
        + b"\4" + (2**64 - 1).to_bytes(8, "big")
        + b"\5" + float_cell(-0.5)
        + b"\6" + decimal_cell(Decimal("-1.500"), 10, 3)
        + b"\7" + comparable_int(-36000_250_000_000)
        + b"\4" + int.from_bytes(time_cell(2024, 1, 2, 3, 4, 5), "little").to_bytes(8, "big")
        + b"\1" + comparable_bytes(b"twelve bytes")
        + b"\4" + (2).to_bytes(8, "big")
        + b"\3" + comparable_int(1999)
        + b"\4" + (21).to_bytes(8, "big")
    )  # fmt: skip
    mine, plain = outcomes(t, record_key(ID, handle), row_v2({11: b"v"}))
    assert mine == plain
    assert list(mine.values()) == [
        -5, 2**64 - 1, -0.5, "-1.500", "-10:00:00.25", "2024-01-02 03:04:05", "twelve bytes", 2, 1999, 21, "v"
    ]  # fmt: skip


def test_what_the_row_holds_wins_over_the_handle_and_the_handle_over_null() -> None:
    t = table(text(1), column(2, T.LONG), clustered=[(0, -1), (1, -1)])
    handle = b"\1" + comparable_bytes(b"key") + b"\3" + comparable_int(5)
    key = record_key(ID, handle)
    pairs = [
        (key, row_v2({1: b"Key "})),
        (key, row_v2({})),
        (key, row_v2({1: None, 2: b"\7"})),
        (key, row_v2({1: b""})),
    ]
    assert [tuple(row.values()) for row in rows_of(t, pairs)] == [("Key ", 5), ("key", 5), ("key", 7), ("", 5)]


def test_an_integer_key_may_also_lie_in_the_row() -> None:
    t = table(primary(), pk_is_handle=True)
    pairs = [(record_key(ID, 3), row_v2({1: b"\3"})), (record_key(ID, -4), row_v2({}))]
    assert rows_of(t, pairs) == [{"id": 3}, {"id": -4}]


def test_the_columns_of_a_prefix_key_come_from_the_row() -> None:
    t = table(text(1), clustered=[(0, 3)])
    key = record_key(ID, b"\1" + comparable_bytes(b"abc"))
    assert rows_of(t, [(key, row_v2({1: b"abcdef"}))]) == [{"c1": "abcdef"}]
    with pytest.raises(RowUndecodableError, match="only a prefix"):
        rows_of(t, [(key, row_v2({}))])


def test_virtual_columns_are_left_out_and_stored_ones_are_not() -> None:
    t = table(
        column(1, T.LONG),
        column(2, T.LONG, generated_expr="`c1` + 1"),
        column(3, T.LONG, generated_expr="`c1` + 2", is_stored=True),
    )
    assert rows_of(t, [(KEY, row_v2({1: b"\1", 3: b"\3"}))]) == [{"c1": 1, "c3": 3}]


def test_many_blocks_make_one_batch() -> None:
    t = table(
        primary(), text(2), column(3, T.NEWDECIMAL), column(4, T.JSON), text(5, origin_default="d"), pk_is_handle=True
    )
    pairs = []
    for n in range(9000):
        cells = {2: b"x" * (n % 50), 3: decimal_cell(Decimal(n), 10, 2), 4: json_cell([n]) if n % 3 else None}
        pairs.append((record_key(ID, n), row_v2(cells if n % 7 else {2: None})))
    rows = rows_of(t, pairs)
    assert rows[8998] == {"id": 8998, "c2": "x" * 48, "c3": "8998.00", "c4": "[8998]", "c5": "d"}
    assert rows[7] == {"id": 7, "c2": None, "c3": None, "c4": None, "c5": "d"}
    assert [row["id"] for row in rows] == list(range(9000))


# Refusals


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"\x80", "ends inside its header", id="cut off"),
        pytest.param(row_v2({2: b"\1"})[:8], "ends inside its header", id="cut off in the offsets"),
        pytest.param(row_v2({2: b"\1\2"})[:-1], "offsets", id="cut off in the cells"),
        pytest.param(row_v2({2: b"\1"}) + b"?", "bytes follow", id="too long"),
        pytest.param(b"\x80\x04" + row_v2({2: b"\1"})[2:], "flags", id="unknown flags"),
        pytest.param(bytes.fromhex("80000200000003020100020001ff"), "ascending", id="ids out of order"),
        pytest.param(bytes.fromhex("800002000000020302000100" + "0101"), "offsets", id="offsets out of order"),
        pytest.param(row_v2({2: b"\1"}, checksum=b"\3abcd"), "checksum block", id="an unknown checksum"),
        pytest.param(row_v2({2: b"\1"}, checksum=b"\1abc"), "checksum block", id="a short checksum"),
        pytest.param(b"\7", "format v1", id="neither format"),
        pytest.param(row_v1({2: v1_int(1)}) + b"\x08\x04", "format v1", id="a v1 row cut off"),
        pytest.param(row_v1({2: v1_bytes(b"12345678")}), "kind does not suit", id="a v1 value of another kind"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_with_its_table_and_key(value: bytes, reason: str) -> None:
    good = (record_key(ID, 1), row_v2({2: b"\1"}), b"")
    with pytest.raises(RowUndecodableError, match=reason) as caught:
        mount(SIMPLE, ID, changes(good, (record_key(ID, 2), value, b"")))
    assert (caught.value.table, caught.value.key, caught.value.column) == ("test.t", record_key(ID, 2), None)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize(
    ("col", "cell", "reason"),
    [
        (column(2, T.LONG), b"\1\2\3", "1, 2, 4 or 8 bytes"),
        (column(2, T.LONG), b"", "1, 2, 4 or 8 bytes"),
        (column(2, T.DOUBLE), b"\1\2\3\4", "8 bytes"),
        (column(2, T.NEWDECIMAL), b"\5\2\x80", "decimal"),
        (column(2, T.NEWDECIMAL), b"\1\2\x80\0", "decimal"),
        (column(2, T.NEWDECIMAL), b"\1\0\xff", "decimal"),
        (column(2, T.SET, elems=("a",)), b"\2", "beyond its list"),
        (column(2, T.DATETIME), uint_cell(63 << 24), "calendar"),
        (column(2, T.DATETIME), b"\1\2\3", "1, 2, 4 or 8 bytes"),
        (column(2, T.TIMESTAMP), time_cell(2023, 2, 30), "calendar"),
        (column(2, T.TIMESTAMP), time_cell(1969, 12, 31), "outside 1970"),
        (column(2, T.DURATION), int_cell(839 * 3600 * 10**9), "838:59:59"),
        (column(2, T.JSON), b"", "JSON"),
        (column(2, T.JSON), b"\x0c\x05abc", "JSON"),
        (column(2, T.JSON), b"\x02", "JSON"),
        (column(2, T.JSON), json_cell({"a": 1})[:-1], "JSON"),
        (column(2, T.VECTOR), b"\2\0\0\0\0\0\0\0", "vector"),
        (text(2), b"a\xff", "UTF-8"),
        (column(2, T.LONG, origin_default="seven"), None, "original default"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_column(
    col: ColumnInfo, cell: bytes | None, reason: str
) -> None:
    bad = row_v2({2: cell} if cell is not None else {})
    with pytest.raises(RowUndecodableError, match=reason) as caught:
        mount(
            table(column(1, T.LONG), col),
            ID,
            changes((KEY, row_v2({2: None}), row_v2({2: None})), (record_key(ID, 9), b"", bad)),
        )
    assert (caught.value.table, caught.value.key, caught.value.column) == ("test.t", record_key(ID, 9), "c2")


def test_a_document_that_contains_itself_is_refused() -> None:
    # An array of nine elements, each of them the array itself.
    entries = b"".join(b"\3" + (0).to_bytes(4, "little") for _ in range(9))
    document = b"\3" + (9).to_bytes(4, "little") + (8 + len(entries)).to_bytes(4, "little") + entries
    with pytest.raises(RowUndecodableError, match="JSON"):
        rows_of(table(column(2, T.JSON)), [(KEY, row_v2({2: document}))] * 50)


@pytest.mark.parametrize(
    ("t", "key", "reason"),
    [
        (SIMPLE, record_key(ID + 1, 1), "not a record key"),
        (SIMPLE, b"", "not a record key"),
        (SIMPLE, KEY[:9] + b"_i" + KEY[11:], "not a record key"),
        (SIMPLE, KEY + b"\0", "integer handle"),
        (table(text(1), clustered=[(0, -1)]), KEY, "clustered primary key"),
        (table(text(1), clustered=[(0, -1)]), record_key(ID, b"\3" + comparable_int(1)), "of another type"),
        (table(text(1), clustered=[(0, -1)]), record_key(ID, b"\1abcdefgh\xff"), "cut off"),
        (table(text(1), clustered=[(0, -1)]), record_key(ID, b"\1abcdefgh\xf8"), "badly encoded"),
        (table(column(1, T.LONG), clustered=[(0, -1)]), record_key(ID, b"\3" + comparable_int(1) + b"\0"), "cut off"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(t, key: bytes, reason: str) -> None:
    with pytest.raises(RowUndecodableError, match=reason) as caught:
        rows_of(t, [(key, row_v2({}))])
    assert caught.value.key == key


@pytest.mark.parametrize(("version", "block"), [(2, "02ec8d4e10"), (1, "01431e13fc")])
def test_a_damaged_row_is_found_by_its_checksum(version: int, block: str) -> None:
    t = table(column(2, T.LONG), text(3))
    row = row_v2({2: b"\7", 3: b"hi"}, checksum=bytes.fromhex(block))
    damaged = row.replace(b"hi", b"ho")

    def verified(value: bytes) -> list[dict[str, object]]:
        return mount_values(t, ID, pa.array([KEY]), pa.array([value]), verify=True).to_pylist()

    assert verified(row) == rows_of(t, [(KEY, row)]) == [{"c2": 7, "c3": "hi"}]
    assert rows_of(t, [(KEY, damaged)]) == [{"c2": 7, "c3": "ho"}]
    with pytest.raises(RowUndecodableError, match="damaged"):
        verified(damaged)


def test_checksums_over_values_are_passed_over() -> None:
    t = table(column(2, T.LONG))
    for block in (b"\0abcd", b"\x08abcdefgh"):
        mount_values(t, ID, pa.array([KEY]), pa.array([row_v2({2: b"\7"}, checksum=block)]), verify=True)
