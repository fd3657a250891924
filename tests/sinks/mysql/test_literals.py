"""Values as SQL literals: what the downstream reads is what the upstream held."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import KEY, NOT_NULL, UNSIGNED, column, rows_of, table_of
from tidemill.model.table import ColumnInfo, ColumnType
from tidemill.sinks.mysql.literals import Literals, shown_key, written_columns
from tidemill.sinks.mysql.plan import Form
from tidemill.sinks.mysql.statement import Shapes


def written(info: ColumnInfo, value: Any) -> str:
    table = table_of(column("id", ColumnType.LONG, KEY), info)
    rows = rows_of(table, (None, {"id": 1, info.name: value}))
    text = bytes(Literals(table).write(rows.new, rows.old).payload).decode()
    assert text.startswith("(1,")
    assert text.endswith("),")
    return text[3:-2]


TEXT = column("c", ColumnType.VARCHAR, flen=20)
BYTES = column("c", ColumnType.VARCHAR, flen=20, charset="binary")


@pytest.mark.parametrize(
    ("info", "value", "expected"),
    [
        (TEXT, "it's", "'it''s'"),
        (TEXT, 'a\\b\n\0"', "'a\\b\n\0\"'"),
        (TEXT, "", "''"),
        (TEXT, None, "NULL"),
        (TEXT, "NULL", "'NULL'"),
        (BYTES, b"\0a\xff'", "x'0061ff27'"),
        (BYTES, b"", "x''"),
        (column("c", ColumnType.LONGLONG), -(1 << 63), "-9223372036854775808"),
        (column("c", ColumnType.LONGLONG, UNSIGNED), (1 << 64) - 1, "18446744073709551615"),
        (column("c", ColumnType.BIT, flen=64), 5, "5"),
        (column("c", ColumnType.ENUM, elems=("a", "b")), 2, "2"),
        (column("c", ColumnType.SET, elems=("a", "b")), 3, "3"),
        (column("c", ColumnType.NEWDECIMAL, flen=10, decimal=2), "-12.50", "-12.50"),
        (column("c", ColumnType.DATETIME), "0000-00-00 00:00:00", "'0000-00-00 00:00:00'"),
        (column("c", ColumnType.JSON), '{"a": "it\'s"}', "'{\"a\": \"it''s\"}'"),
        (column("c", ColumnType.YEAR), 0, "0"),
    ],
)
def test_each_kind_of_value(info: ColumnInfo, value: Any, expected: str) -> None:
    assert written(info, value) == expected


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back_as_the_same_number(value: float) -> None:
    assert float(written(column("c", ColumnType.DOUBLE), value)) == value


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_floats_are_written_as_the_double_they_are(value: float) -> None:
    assert float(written(column("c", ColumnType.FLOAT), value)) == struct.unpack("f", struct.pack("f", value))[0]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_reads_back(value: str) -> None:
    text = written(TEXT, value)
    assert (text[0], text[-1], text[1:-1].replace("''", "'")) == ("'", "'", value)


def test_statements_name_written_columns_and_the_key() -> None:
    table = table_of(
        column("a`b", ColumnType.LONG, KEY),
        column("s", ColumnType.VARCHAR, KEY),
        column("g", ColumnType.LONG, generated_expr="1", is_stored=True),
        column("v", ColumnType.LONG, NOT_NULL),
    )
    shapes = Shapes.of(table)
    assert [c.name for _, c in written_columns(table)] == ["a`b", "s", "v"]
    assert shapes.heads[Form.DELETE] == b"DELETE FROM `shop`.`item` WHERE (`a``b`,`s`) IN ("
    assert shapes.heads[Form.INSERT] == b"INSERT INTO `shop`.`item` (`a``b`,`s`,`v`) VALUES "
    assert shapes.tails[Form.UPDATE] == b" ON DUPLICATE KEY UPDATE `v`=VALUES(`v`)"
    rows = rows_of(table, ({"a`b": 1, "s": "x'y", "g": 1, "v": 2}, None))
    assert bytes(Literals(table).write(rows.new, rows.old).payload) == b"(1,'x''y'),"
    assert shown_key(table, rows.old) == "a`b = 1, s = x'y"
