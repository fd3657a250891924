"""Values on their way out, as text and binary, and on their way in as parameters."""

import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.sql.wire.columns import BINARY, NULL_TYPE, Column
from tidebox.sql.wire.errors import SqlError
from tidebox.sql.wire.packets import Reader, integer, text
from tidebox.sql.wire.parameters import decoder, read_parameters
from tidebox.sql.wire.rows import binary_encoder, rows_of, text_encoder
from tidemill.model.table import ColumnFlag, ColumnType


def column(kind: ColumnType, **more) -> Column:
    return Column("c", kind, **more)


UNSIGNED_BIG = column(ColumnType.LONGLONG, flags=ColumnFlag.UNSIGNED)
MICROS = column(ColumnType.DATETIME, decimals=6)

GOLDEN = [
    # column, value, as text, in binary
    (column(ColumnType.TINY), -1, "-1", "ff"),
    (column(ColumnType.TINY), True, "1", "01"),
    (column(ColumnType.SHORT), -2, "-2", "feff"),
    (column(ColumnType.INT24), 70000, "70000", "70110100"),
    (column(ColumnType.LONG), -(2**31), "-2147483648", "00000080"),
    (column(ColumnType.LONGLONG), -(2**63), "-9223372036854775808", "0000000000000080"),
    (UNSIGNED_BIG, 2**64 - 1, "18446744073709551615", "ffffffffffffffff"),
    (column(ColumnType.YEAR), 2026, "2026", "ea07"),
    (column(ColumnType.YEAR), 0, "0000", "0000"),
    (column(ColumnType.FLOAT), 10.2, "10.2", "33332341"),
    (column(ColumnType.DOUBLE), 10.2, "10.2", "6666666666662440"),
    (column(ColumnType.DOUBLE, decimals=2), 1.5, "1.50", "000000000000f83f"),
    (column(ColumnType.DOUBLE, decimals=2, table="t"), 1.5, "1.5", "000000000000f83f"),
    (column(ColumnType.NEWDECIMAL), Decimal("1.50"), "1.50", "04312e3530"),
    (column(ColumnType.NEWDECIMAL), Decimal("1E+3"), "1000", "0431303030"),
    (column(ColumnType.DATE), date(2010, 10, 17), "2010-10-17", "04da070a11"),
    (column(ColumnType.DATE), datetime(2010, 10, 17, 1, 2), "2010-10-17", "04da070a11"),
    (column(ColumnType.DATE), "0000-00-00", "0000-00-00", "00"),
    (column(ColumnType.DATE), "2010-00-00", "2010-00-00", "04da070000"),
    (column(ColumnType.DATETIME), datetime(2010, 10, 17, 19, 27, 30), "2010-10-17 19:27:30", "07da070a11131b1e"),
    (MICROS, datetime(2010, 10, 17, 19, 27, 30, 1), "2010-10-17 19:27:30.000001", "0bda070a11131b1e01000000"),
    (column(ColumnType.DATETIME, decimals=3), datetime(7, 1, 2, 3, 4, 5, 120000), "0007-01-02 03:04:05.120",
     "0b07000102030405c0d40100"),
    (column(ColumnType.TIMESTAMP), datetime(2010, 10, 17, tzinfo=UTC), "2010-10-17 00:00:00", "04da070a11"),
    (column(ColumnType.DATETIME), "0000-00-00 00:00:00", "0000-00-00 00:00:00", "00"),
    (column(ColumnType.DURATION), timedelta(0), "00:00:00", "00"),
    (column(ColumnType.DURATION, decimals=6), -timedelta(days=120, hours=19, minutes=27, seconds=30, microseconds=1),
     "-2899:27:30.000001", "0c0178000000131b1e01000000"),
    (column(ColumnType.DURATION), "-838:59:59", "-838:59:59", "080122000000163b3b"),
    (column(ColumnType.DURATION, decimals=2), time(1, 2, 3, 450000), "01:02:03.45", "0c0000000000010203d0dd0600"),
    (column(ColumnType.BIT, length=9), 257, b"\x01\x01", "020101"),
    (column(ColumnType.BIT, length=9), b"\x01\x01", b"\x01\x01", "020101"),
    (column(ColumnType.VARCHAR), "ü", "ü", "02c3bc"),
    (column(ColumnType.VARCHAR), "\udcff", b"\xff", "01ff"),
    (column(ColumnType.BLOB, collation=BINARY), b"\0\xff", b"\0\xff", "0200ff"),
    (column(ColumnType.JSON), '{"a": 1}', '{"a": 1}', "087b2261223a20317d"),
    (column(ColumnType.ENUM), "red", "red", "03726564"),
    (column(ColumnType.SET), "a,b", "a,b", "03612c62"),
    (column(ColumnType.VECTOR), "[1,2]", "[1,2]", "055b312c325d"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "shown", "packed"), GOLDEN, ids=[f"{c.type!r} {v!r}" for c, v, *_ in GOLDEN])
def test_a_value_has_one_form_in_text_and_one_in_binary(kind, value, shown, packed):
    expected = shown.encode() if isinstance(shown, str) else shown
    assert text_encoder([kind])([value]) == text(expected)
    assert binary_encoder([kind])([value]).hex() == "0000" + packed


def test_nulls_take_a_byte_as_text_and_a_bit_in_binary():
    columns = [column(ColumnType.LONG)] * 7
    row = [None, 1, None, 3, 4, 5, None]
    assert text_encoder(columns)(row) == b"\xfb\x011\xfb\x013\x014\x015\xfb"
    assert binary_encoder(columns)(row) == bytes((0, 0b00010100, 0b00000001)) + struct.pack("<iiii", 1, 3, 4, 5)


def test_a_column_of_nulls_holds_nothing_else():
    assert text_encoder([Column("NULL", NULL_TYPE)])([None]) == b"\xfb"
    with pytest.raises(TypeError, match="NULL"):
        text_encoder([Column("NULL", NULL_TYPE)])([1])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(column(ColumnType.LONG), "1", id="text as a number"),
        pytest.param(column(ColumnType.VARCHAR), 1, id="a number as text"),
        pytest.param(column(ColumnType.NEWDECIMAL), 1.5, id="a float as a decimal"),
        pytest.param(column(ColumnType.DATE), 5, id="a number as a date"),
        pytest.param(column(ColumnType.DATETIME), date(2020, 1, 1), id="a date as a datetime"),
        pytest.param(column(ColumnType.DURATION), 5, id="a number as a time"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(kind, value):
    with pytest.raises((TypeError, ValueError, struct.error)):
        text_encoder([kind])([value])
    with pytest.raises((TypeError, ValueError, struct.error)):
        binary_encoder([kind])([value])


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match="argument 2"):
        text_encoder([column(ColumnType.LONG)])([1, 2])


def test_an_arrow_table_gives_the_same_rows():
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int64()),
            "b": pa.array([Decimal("1.20"), None], pa.decimal128(10, 2)),
            "c": pa.array([datetime(2020, 1, 2, 3, 4, 5), None], pa.timestamp("us")),
            "d": pa.array(["x", None]),
            "e": pa.array([timedelta(hours=-1), None], pa.duration("us")),
        }
    )
    columns = [column(k) for k in (ColumnType.LONGLONG, ColumnType.NEWDECIMAL, ColumnType.DATETIME, ColumnType.VARCHAR)]
    encode = text_encoder([*columns, column(ColumnType.DURATION)])
    packets = [encode(row) for row in rows_of(table)]
    assert packets == [b"\x011\x041.20\x132020-01-02 03:04:05\x01x\x09-01:00:00", b"\xfb" * 5]


TIMES = st.timedeltas(min_value=timedelta(hours=-838), max_value=timedelta(hours=838))
VALUES = st.one_of(
    st.tuples(st.just(column(ColumnType.TINY)), st.integers(-(2**7), 2**7 - 1)),
    st.tuples(st.just(column(ColumnType.TINY, flags=32)), st.integers(0, 2**8 - 1)),
    st.tuples(st.just(column(ColumnType.SHORT)), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just(column(ColumnType.SHORT, flags=32)), st.integers(0, 2**16 - 1)),
    st.tuples(st.just(column(ColumnType.INT24)), st.integers(-(2**23), 2**23 - 1)),
    st.tuples(st.just(column(ColumnType.LONG)), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(column(ColumnType.LONG, flags=32)), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(column(ColumnType.LONGLONG)), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(UNSIGNED_BIG), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(column(ColumnType.YEAR)), st.integers(0, 2155)),
    st.tuples(st.just(column(ColumnType.FLOAT)), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(column(ColumnType.DOUBLE)), st.floats(allow_nan=False)),
    st.tuples(st.just(column(ColumnType.NEWDECIMAL)), st.decimals(allow_nan=False, allow_infinity=False, places=5)),
    st.tuples(st.just(column(ColumnType.VARCHAR)), st.text(max_size=400)),
    st.tuples(st.just(column(ColumnType.JSON)), st.text(max_size=20)),
    st.tuples(st.just(column(ColumnType.BLOB, collation=BINARY)), st.binary(max_size=400)),
    st.tuples(st.just(column(ColumnType.BIT, length=64)), st.binary(min_size=8, max_size=8)),
)


@given(VALUES)
def test_binary_values_read_back(pair):
    kind, value = pair
    packet = binary_encoder([kind])([value])
    reader = Reader(packet, 2)
    assert decoder((kind.type, kind.is_unsigned))(reader) == value
    assert reader.is_at_end


@given(st.datetimes(min_value=datetime(1, 1, 1)))
def test_binary_datetimes_read_back(value):
    read = decoder((ColumnType.DATETIME, False))(Reader(binary_encoder([MICROS])([value]), 2))
    assert datetime.fromisoformat(str(read)) == value


@given(TIMES)
def test_binary_times_read_back(value):
    kind = column(ColumnType.DURATION, decimals=6)
    read = str(decoder((ColumnType.DURATION, False))(Reader(binary_encoder([kind])([value]), 2)))
    assert binary_encoder([kind])([read]) == binary_encoder([kind])([value])
    shown = text_encoder([kind])([value])[1:].decode()
    assert read == (shown if "." in read else shown.removesuffix(".000000"))


# Parameters


def parameters_of(*pairs: tuple[int, bytes | None]) -> bytes:
    nulls = sum(1 << i for i, (_, data) in enumerate(pairs) if data is None)
    types = b"".join(struct.pack("<H", kind) for kind, _ in pairs)
    return (
        nulls.to_bytes((len(pairs) + 7) // 8, "little") + b"\1" + types + b"".join(d for _, d in pairs if d is not None)
    )


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (0x01, b"\xff", -1),
        (0x8001, b"\xff", 255),
        (0x8003, b"\xff\xff\xff\xff", 2**32 - 1),
        (0x08, b"\xfe" + b"\xff" * 7, -2),
        (0x00, b"\x041.50", Decimal("1.50")),
        (0xF6, b"\x03-12", Decimal("-12")),
        (0xFD, b"\x02\xc3\xbc", "ü"),
        (0xFE, b"\x01\xff", b"\xff"),
        (0xFC, b"\x02ab", b"ab"),
        (0xF5, b"\x02{}", "{}"),
        (0x06, b"", None),
        (0x0A, b"\x00", "0000-00-00"),
        (0x0A, b"\x04\xda\x07\x0a\x11", "2010-10-17"),
        (0x0C, b"\x00", "0000-00-00 00:00:00"),
        (0x0C, b"\x04\xda\x07\x0a\x11", "2010-10-17"),
        (0x0C, b"\x07\xda\x07\x0a\x11\x13\x1b\x1e", "2010-10-17 19:27:30"),
        (0x07, b"\x0b\xda\x07\x0a\x11\x13\x1b\x1e\x01\0\0\0", "2010-10-17 19:27:30.000001"),
        (0x0C, b"\x0d\xda\x07\x0a\x11\x13\x1b\x1e\x01\0\0\0\xe2\xff", "2010-10-17 19:27:30.000001-00:30"),
        (0x0B, b"\x00", "00:00:00"),
        (0x0B, b"\x08\x01\x01\0\0\0\x02\x03\x04", "-26:03:04"),
        (0x0B, b"\x0c\x00\x00\0\0\0\x02\x03\x04\x05\0\0\0", "02:03:04.000005"),
    ],
)
def test_a_parameter(kind, data, value):
    values, _ = read_parameters(Reader(parameters_of((kind, data))), 1, None, {})
    assert values == [value]


def test_nulls_need_no_value():
    packet = parameters_of((3, None), (3, struct.pack("<i", 5)), (0xFD, None))
    assert read_parameters(Reader(packet), 3, None, {})[0] == [None, 5, None]


def test_types_told_once_hold_for_the_next_time():
    values, types = read_parameters(Reader(parameters_of((0x8001, b"\xff"))), 1, None, {})
    again, _ = read_parameters(Reader(b"\0\0\xfe"), 1, types, {})
    assert (values, again) == ([255], [254])


def test_types_never_told_are_an_error():
    with pytest.raises(SqlError, match="1210"):
        read_parameters(Reader(b"\0\0\xfe"), 1, None, {})


def test_long_data_is_text_or_bytes_as_its_type_says():
    packet = parameters_of((0xFD, b""), (0xFC, b""), (3, struct.pack("<i", 5)))
    assert read_parameters(Reader(packet), 3, None, {0: b"ab", 1: b"ab"})[0] == ["ab", b"ab", 5]


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0", id="no types"),
        pytest.param(b"\0\1\3", id="half a type"),
        pytest.param(b"\0\1\3\0\1\2", id="half an integer"),
        pytest.param(b"\0\1\xfd\0" + integer(2**63), id="a text longer than any"),
        pytest.param(b"\0\1\xfd\0\xff", id="a length that is none"),
        pytest.param(b"\0\1\x0c\0\x05abcde", id="a date of an odd length"),
        pytest.param(b"\0\1\x0b\0\x03abc", id="a time of an odd length"),
        pytest.param(b"\0\1\xf6\0\x03abc", id="a decimal that is no number"),
        pytest.param(b"\0\1\xf6\0\x03NaN", id="a decimal that says so itself"),
        pytest.param(b"\0\1\xff\0\x00", id="a type that nobody sends"),
    ],
)
def test_malformed_parameters_are_errors(packet):
    with pytest.raises(SqlError, match=r"1835|8051"):
        read_parameters(Reader(packet), 1, None, {})


@given(st.binary(max_size=60), st.integers(0, 20))
def test_any_bytes_give_parameters_or_an_error(packet, count):
    try:
        values, _ = read_parameters(Reader(packet), count, None, {})
    except SqlError:
        return
    assert len(values) == count
