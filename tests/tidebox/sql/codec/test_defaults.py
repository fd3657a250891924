"""Columns that a row lacks, and what the mounter makes of rows that are written here."""

from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.tidebox.sql.codec.tables import NOT_NULL, PRIMARY, UNSIGNED, column, table, text
from tidebox.sql.codec import Datum, Json, TableCodec, Time
from tidebox.sql.codec.checksums import checksum_payload
from tidebox.sql.codec.documents import document_text
from tidebox.sql.codec.numbers import decimal_text
from tidebox.sql.codec.times import duration_text, time_text
from tidebox.sql.floats import document_double
from tidemill.errors import SchemaError
from tidemill.flow.mounter import mount_values
from tidemill.model.table import ColumnInfo
from tidemill.model.table import ColumnType as T
from tidemill.tidb.keys import record_key

EMPTY = bytes.fromhex("800000000000")


@pytest.mark.parametrize(
    ("col", "value"),
    [
        pytest.param(column(1, T.LONG), None, id="nullable"),
        pytest.param(column(1, T.LONG, flag=NOT_NULL), 0, id="NOT NULL int"),
        pytest.param(column(1, T.LONG, origin_default="-7"), -7, id="int"),
        pytest.param(column(1, T.LONG, default="5"), None, id="a default for inserts only is no default for old rows"),
        pytest.param(column(1, T.YEAR, origin_default="2024"), 2024, id="year"),
        pytest.param(column(1, T.DOUBLE, origin_default="1.5e3"), 1500.0, id="double"),
        pytest.param(column(1, T.FLOAT, origin_default="0.1"), 0.10000000149011612, id="float"),
        pytest.param(column(1, T.DOUBLE, flag=NOT_NULL), 0.0, id="NOT NULL double"),
        pytest.param(column(1, T.NEWDECIMAL, flen=5, decimal=2, origin_default="1.23"), Decimal("1.23"), id="decimal"),
        pytest.param(column(1, T.NEWDECIMAL, flag=NOT_NULL), Decimal(0), id="NOT NULL decimal"),
        pytest.param(text(1, origin_default="zz"), "zz", id="text"),
        pytest.param(text(1, flag=NOT_NULL), "", id="NOT NULL text"),
        pytest.param(column(1, T.STRING, flen=4, origin_default="ab"), b"ab\0\0", id="binary"),
        pytest.param(column(1, T.STRING, flen=4, flag=NOT_NULL), bytes(4), id="NOT NULL binary"),
        pytest.param(column(1, T.BLOB, flag=NOT_NULL), b"", id="NOT NULL blob"),
        pytest.param(column(1, T.DATE, origin_default="2020-02-29"), Time(2020, 2, 29), id="date"),
        pytest.param(
            column(1, T.DATETIME, origin_default="2020-02-02 02:02:02.5"), Time(2020, 2, 2, 2, 2, 2, 500000), id="time"
        ),
        pytest.param(column(1, T.TIMESTAMP, flag=NOT_NULL), Time(), id="NOT NULL timestamp"),
        pytest.param(
            column(1, T.DURATION, origin_default="-01:02:03.25"),
            -timedelta(hours=1, minutes=2, seconds=3, milliseconds=250),
            id="duration",
        ),
        pytest.param(column(1, T.ENUM, elems=("a", "b"), origin_default="b"), 2, id="enum"),
        pytest.param(column(1, T.ENUM, elems=("a", "b"), flag=NOT_NULL), 1, id="NOT NULL enum"),
        pytest.param(column(1, T.SET, elems=("a", "b", "c"), origin_default="a,c"), 5, id="set"),
        pytest.param(column(1, T.SET, elems=("a",), origin_default=""), 0, id="empty set"),
        pytest.param(column(1, T.BIT, flen=4, origin_default_bit=b"\x05"), 5, id="bit"),
        pytest.param(column(1, T.JSON, flag=NOT_NULL), Json(None), id="NOT NULL json"),
        pytest.param(column(1, T.VECTOR, origin_default="[1,2.5]"), (1.0, 2.5), id="vector"),
    ],
)
def test_a_column_that_the_row_lacks_shows_its_original_default(col: ColumnInfo, value: Datum) -> None:
    assert TableCodec(table(col)).decode(record_key(100, 1), EMPTY) == [value]


@pytest.mark.parametrize(("kind", "text_"), [(T.LONG, "x"), (T.DATE, "tomorrow"), (T.NEWDECIMAL, "?"), (T.JSON, "{")])
def test_a_default_that_is_no_value_of_its_type_is_refused_with_its_column(kind: T, text_: str) -> None:
    with pytest.raises(SchemaError, match="column 'c1' has a default that is no "):
        TableCodec(table(column(1, kind, origin_default=text_)))


@pytest.mark.parametrize("is_default", [True, False])
def test_null_is_written_down_only_where_a_default_would_show(is_default: bool) -> None:
    codec = TableCodec(table(column(1, T.LONG, origin_default="1" if is_default else None)))
    record = codec.record(bytes(8), [None])
    assert record.value.hex() == ("80000000010001" if is_default else "800000000000")
    assert codec.decode(*record) == [None]


def test_virtual_columns_are_not_stored() -> None:
    virtual = column(2, T.LONG, generated_expr="c1 + 1")
    stored = column(3, T.LONG, generated_expr="c1 + 1", is_stored=True)
    codec = TableCodec(table(column(1, T.LONG), virtual, stored))
    record = codec.record(bytes(8), [1, 2, 2])
    assert record.value.hex() == "8000020000000103010002000102"
    assert codec.decode(*record) == [1, None, 2]


MOUNTED = table(
    ColumnInfo(1, "id", 0, T.LONGLONG, PRIMARY, 20, 0, "binary", "binary"),
    *(
        ColumnInfo(i, f"c{i}", i - 1, kind, flag, flen, scale, charset, collate)
        for i, (kind, flag, flen, scale, charset, collate) in enumerate(
            [
                (T.LONGLONG, UNSIGNED, 20, 0, "binary", "binary"),
                (T.NEWDECIMAL, 0, 20, 5, "binary", "binary"),
                (T.VARCHAR, 0, 20, 0, "utf8mb4", "utf8mb4_bin"),
                (T.DATETIME, 0, 26, 6, "binary", "binary"),
                (T.DURATION, 0, 17, 3, "binary", "binary"),
                (T.JSON, 0, -1, 0, "binary", "binary"),
                (T.DOUBLE, 0, 22, -1, "binary", "binary"),
            ],
            2,
        )
    ),
    pk_is_handle=True,
)
DOCUMENT = Json({"b": [1, 2.5, 1e21, 1e-7, "é\n\u2028\x01", None, True], "a": {"": -1}})


def test_the_mounter_reads_the_same_values_and_text() -> None:
    codec = TableCodec(MOUNTED)
    moment, duration = Time(2024, 2, 29, 12, 34, 56, 789), timedelta(hours=-100, milliseconds=-5)
    row: list[Datum] = [-5, 2**64 - 1, Decimal("-12.30000"), "text ", moment, duration, DOCUMENT, -0.125]
    key, value = codec.record(codec.handle_of(row), row)
    batch = mount_values(MOUNTED, 100, pa.array([key], pa.binary()), pa.array([value], pa.binary()), "UTC")
    assert list(batch.to_pylist()[0].values()) == [
        -5,
        2**64 - 1,
        decimal_text(Decimal("-12.3"), 5),
        "text ",
        time_text(moment, 6),
        duration_text(duration, 3),
        document_text(DOCUMENT),
        -0.125,
    ]


@pytest.mark.parametrize(
    ("value", "text_"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (0.1, "0.1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.25e-9, "1.25e-9"),
        (123456.75, "123456.75"),
    ],
)
def test_doubles_print_as_go_prints_them(value: float, text_: str) -> None:
    assert document_double(value) == text_


def test_the_checksum_of_columns_covers_texts_of_times_numbers_and_documents() -> None:
    columns = [
        column(1, T.DATE),
        column(2, T.DATETIME, decimal=3),
        column(3, T.DURATION, decimal=0),
        column(4, T.NEWDECIMAL, flen=5, decimal=2),
        column(5, T.JSON),
        column(6, T.DOUBLE),
        column(7, T.LONG),
        column(8, T.VECTOR),
        column(9, T.LONG),
    ]
    row: list[Datum] = [
        Time(2020, 1, 2),
        Time(2020, 1, 2, 3, 4, 5, 678000),
        timedelta(hours=-1),
        Decimal("1.5"),
        Json({"a": [1]}),
        1.0,
        -1,
        (1.0,),
        None,
    ]
    expected = b"".join(
        len(word).to_bytes(4, "little") + word
        for word in (b"2020-01-02", b"2020-01-02 03:04:05.678", b"-01:00:00", b"1.50", b'{"a": [1]}')
    )
    expected += bytes.fromhex("000000000000f03f" + "ff" * 8 + "01000000" + "0000803f")
    assert checksum_payload(columns[::-1], row[::-1]) == expected
