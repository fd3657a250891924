"""csv records: what stands where, what is quoted, and that any reader of csv gets the values back."""

import base64
import csv
import io
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import FIRST, ITEM, SECOND, UNSIGNED, column, rows_of, table_of
from tidemill.errors import CorruptDataError
from tidemill.flow.encoder import BinaryEncoding, Csv
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType

WITH_TS = Csv(include_commit_ts=True)


def encode(protocol: Csv, rows: RowBatch, terminator: bytes = b"\r\n") -> list[str]:
    return [m.decode() for m in protocol.encoder(0, terminator).encode(rows).messages()]


@pytest.mark.parametrize(
    ("options", "change", "expected"),
    [
        pytest.param(
            WITH_TS,
            (None, FIRST),
            '"I","item","shop",445644800000000005,7,"A-1",\\N,"AGH/","b","héllo"\r\n',
            id="insert",
        ),
        pytest.param(
            WITH_TS,
            (FIRST, SECOND),
            '"U","item","shop",445644800000000005,7,"A-1",5,"AGH/","b","héllo"\r\n',
            id="an update holds the new row",
        ),
        pytest.param(
            WITH_TS,
            (SECOND, None),
            '"D","item","shop",445644800000000005,7,"A-1",5,"AGH/","b","héllo"\r\n',
            id="a delete holds the old row",
        ),
        pytest.param(
            Csv(),
            (None, FIRST),
            '"I","item","shop",7,"A-1",\\N,"AGH/","b","héllo"\r\n',
            id="without commit-ts",
        ),
        pytest.param(
            Csv(include_commit_ts=True, output_old_value=True),
            (FIRST, SECOND),
            '"D","item","shop",445644800000000005,true,7,"A-1",\\N,"AGH/","b","héllo"\r\n'
            '"I","item","shop",445644800000000005,true,7,"A-1",5,"AGH/","b","héllo"\r\n',
            id="an update with its old value is two records",
        ),
        pytest.param(
            Csv(output_old_value=True),
            (None, FIRST),
            '"I","item","shop",false,7,"A-1",\\N,"AGH/","b","héllo"\r\n',
            id="an insert among such updates",
        ),
        pytest.param(
            Csv(binary_encoding=BinaryEncoding.HEX, delimiter="|+|", quote="'", null="NULL"),
            (None, {**FIRST, "note": "it's"}),
            "'I'|+|'item'|+|'shop'|+|7|+|'A-1'|+|NULL|+|'0061ff'|+|'b'|+|'it''s'\r\n",
            id="other marks",
        ),
        pytest.param(
            Csv(quote=""),
            (None, {**FIRST, "note": 'a,b\\c\r\n"'}),
            'I,item,shop,7,A-1,\\N,AGH/,b,a\\,b\\\\c\\r\\n"\r\n',
            id="no quotes: backslashes",
        ),
        pytest.param(
            Csv(quote="", delimiter="ab"),
            (None, {**FIRST, "note": "aababa"}),
            "IabitemabshopabA".replace("abA", "ab7abA-1ab\\NabAGH/abbaba\\a\\b\\a\\ba\r\n"),
            id="every character of a long delimiter gets a backslash",
        ),
    ],
)
def test_records(options: Csv, change: Any, expected: str) -> None:
    assert encode(options, rows_of(ITEM, change)) == [expected]


def test_every_record_of_an_update_ends_with_the_terminator() -> None:
    (message,) = encode(Csv(output_old_value=True), rows_of(ITEM, (FIRST, SECOND)), b"|\n")
    assert [record[:4] for record in message.split("|\n")] == ['"D",', '"I",', ""]


def test_null_the_empty_string_and_the_text_of_null_differ() -> None:
    table = table_of(column("t", ColumnType.VARCHAR))
    records = encode(Csv(), rows_of(table, *[(None, {"t": t}) for t in (None, "", "\\N")]))
    assert [r.split(",")[3].strip() for r in records] == ["\\N", '""', '"\\N"']


def test_the_header_names_all_that_a_record_holds() -> None:
    options = Csv(output_field_header=True, include_commit_ts=True, output_old_value=True)
    assert options.header(ITEM, b"\n") == (
        b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,ticdc-meta$is-update,"
        b"id,sku,qty,tag,kind,note\n"
    )
    assert Csv().header(ITEM, b"\n") == b""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100000.0, "100000"),
        (1000000.0, "1e+06"),
        (123456789.5, "1.234567895e+08"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-1.5e-7, "-1.5e-07"),
        (1e100, "1e+100"),
        (123456.7, "123456.7"),
        (0.0, "0"),
        (-0.0, "-0"),
        (2.25, "2.25"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_floats_take_an_exponent_outside_a_small_range(value: float, text: str) -> None:
    table = table_of(column("d", ColumnType.DOUBLE))
    assert encode(Csv(), rows_of(table, (None, {"d": value}))) == [f'"I","item","shop",{text}\r\n']


def test_enum_and_set_are_written_by_name() -> None:
    table = table_of(
        column("e", ColumnType.ENUM, elems=("a", 'b"')), column("s", ColumnType.SET, elems=("x", "y", "z"))
    )
    rows = rows_of(table, *[(None, {"e": e, "s": s}) for e, s in [(1, 0), (2, 5), (0, 7), (None, None), (1, 2)]])
    records = [record.split(",", 3)[3].strip() for record in encode(Csv(), rows)]
    assert records == ['"a",""', '"b""","x,z"', '"","x,y,z"', "\\N,\\N", '"a","y"']


@pytest.mark.parametrize("value", [{"e": 3, "s": 0}, {"e": 1, "s": 4}])
def test_a_value_beyond_the_elements_stops_the_flow(value: Any) -> None:
    table = table_of(column("e", ColumnType.ENUM, elems=("a", "b")), column("s", ColumnType.SET, elems=("x", "y")))
    with pytest.raises(
        CorruptDataError, match=r"column '[es]' of table shop\.item holds a value beyond its 2 elements"
    ):
        encode(Csv(), rows_of(table, (None, value)))


def test_the_protocol_travels_to_executors() -> None:
    assert pickle.loads(pickle.dumps(WITH_TS)) == WITH_TS


ALL = table_of(
    column("u", ColumnType.LONGLONG, UNSIGNED),
    column("t", ColumnType.VARCHAR),
    column("b", ColumnType.BLOB, charset="binary"),
    column("d", ColumnType.DOUBLE),
    column("j", ColumnType.JSON),
)
_rows = st.fixed_dictionaries(
    {
        "u": st.integers(0, 2**64 - 1),
        "t": st.text() | st.text(alphabet='",\r\n\\x', max_size=20),
        "b": st.binary(),
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "j": st.just('{"k": [1, "x"]}'),
    }
)


@settings(deadline=None)  # the first call may compile
@given(st.lists(_rows, min_size=1, max_size=6))
def test_a_csv_reader_gets_every_value_back(rows: list[dict[str, Any]]) -> None:
    text = "".join(encode(Csv(), rows_of(ALL, *[(None, row) for row in rows])))
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert [
        {"u": int(u), "t": t, "b": base64.b64decode(b), "d": float(d), "j": j} for _, _, _, u, t, b, d, j in found
    ] == rows


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.binary(max_size=10), min_size=1, max_size=5))
def test_hex_and_base64_of_any_bytes(values: list[bytes]) -> None:
    table = table_of(column("b", ColumnType.BLOB, charset="binary"))
    rows = rows_of(table, *[(None, {"b": value}) for value in values])
    in_hex = encode(Csv(binary_encoding=BinaryEncoding.HEX, quote=""), rows)
    in_base64 = encode(Csv(quote=""), rows)
    assert [r.strip().split(",")[3] for r in in_hex] == [value.hex() for value in values]
    assert [r.strip().split(",")[3] for r in in_base64] == [base64.b64encode(value).decode() for value in values]
