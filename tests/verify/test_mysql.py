"""A MariaDB against the embedded TiDB: equal where it is, and every planted difference found, named and mended."""

from typing import Any

import pytest

from tests.flow.encoder.samples import column
from tests.mariadb import MariaDb
from tests.verify.conftest import Pair
from tidemill.model.table import ColumnType
from tidemill.verify import Report
from tidemill.verify.mysql import selected, type_differs
from tidemill.verify.report import PREAMBLE

BY_RANGE = "id INT PRIMARY KEY"
BY_HASH = "id INT NOT NULL, PRIMARY KEY (id, a)"
COLUMNS = (
    "a VARCHAR(20) NOT NULL, f FLOAT, d DOUBLE, n DECIMAL(12,4), s DATETIME(3), m TIMESTAMP NULL, g DATE, h TIME(2), "
    "y YEAR, b BIT(9), e ENUM('x','y''z'), l SET('p','q'), j JSON, c CHAR(8), v BLOB, k BINARY(4), u BIGINT UNSIGNED"
)
ROWS = [
    "(1,'a',1.1,0.1,'1.5','2024-02-29 01:02:03.5','2024-01-01 00:00:00','2024-02-29','-838:59:59',2024,5,'x','p,q',"
    "'{\"b\": 1, \"a\": [2.5, null]}','c ',x'00ff',x'01',18446744073709551615)",
    "(2,'B',-3.4e38,1.7976931348623157e308,'-0.0001','0000-00-00','1999-12-31 23:59:59','0000-00-00','00:00:00.01',"
    "1901,511,'y''z','',NULL,'',x'',x'',0)",
    "(3,'ä ',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL)",
    "(-4,'it''s \\\\ 🙂',16777217,5e-324,'99999999.9999','2024-12-31','1970-01-01 00:00:01','2024-12-31',"
    "'838:59:58.99',2155,0,'x','q','\"é\"','x',x'27',x'00000001',9223372036854775808)",
]


def make(pair: Pair, key: str) -> None:
    pair.both(f"CREATE TABLE t ({key}, {COLUMNS})")
    columns = "id,a,f,d,n,s,m,g,h,y,b,e,l,j,c,v,k,u"
    pair.both(f"INSERT INTO t ({columns}) VALUES {','.join(ROWS)}")


def shown(report: Report) -> list[Any]:
    [table] = report.tables
    return [
        (d.kind.value, d.key[0][1], [(c.column, c.upstream, c.downstream) for c in d.cells]) for d in table.differences
    ]


def mend(pair: Pair, report: Report) -> None:
    statements = [d.sql for t in report.tables for d in sorted(t.differences, key=lambda d: d.kind.value != "extra")]
    pair.downstream(PREAMBLE, *statements)


@pytest.mark.parametrize("key", [BY_RANGE, BY_HASH])
def test_rows_of_all_types_are_equal(pair: Pair, key: str) -> None:
    make(pair, key)
    report = pair.verify("t")
    assert shown(report) == []
    assert report.is_equal
    assert report.tables[0].upstream_rows == report.tables[0].downstream_rows == len(ROWS)


@pytest.mark.parametrize("key", [BY_RANGE, BY_HASH])
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        pytest.param("DELETE FROM t WHERE id = 2", [("missing", "2", [])], id="a row that is missing"),
        pytest.param("INSERT INTO t (id, a) VALUES (9, 'n')", [("extra", "9", [])], id="a row too many"),
        pytest.param(
            "UPDATE t SET d = 0.10000000000000002 WHERE id = 1",
            [("changed", "1", [("d", "0.1", "0.10000000000000002")])],
            id="the last digit of a double",
        ),
        pytest.param(
            "UPDATE t SET f = 1.1000001 WHERE id = 1",
            [("changed", "1", [("f", "1.1", "1.1000001")])],
            id="the last digit of a float",
        ),
        pytest.param(
            "UPDATE t SET n = 1.5001 WHERE id = 1",
            [("changed", "1", [("n", "1.5000", "1.5001")])],
            id="the last digit of a decimal",
        ),
        pytest.param(
            "UPDATE t SET m = m + INTERVAL 2 HOUR WHERE id = 1",
            [("changed", "1", [("m", "2024-01-01 00:00:00", "2024-01-01 02:00:00")])],
            id="a timestamp of another time zone",
        ),
        pytest.param(
            "UPDATE t SET s = '2024-02-29 01:02:03.501' WHERE id = 1",
            [("changed", "1", [("s", "2024-02-29 01:02:03.500", "2024-02-29 01:02:03.501")])],
            id="a millisecond",
        ),
        pytest.param("UPDATE t SET v = NULL WHERE id = 2", [("changed", "2", [("v", "0x", None)])], id="NULL for ''"),
        pytest.param(
            "UPDATE t SET e = 1, l = 'q' WHERE id = 2",
            [("changed", "2", [("e", "y'z", "x"), ("l", "", "q")])],
            id="elements of ENUM and SET",
        ),
        pytest.param(
            'UPDATE t SET j = \'{"a": [2.5, 0], "b": 1}\' WHERE id = 1',
            [("changed", "1", [("j", '{"a": [2.5, null], "b": 1}', '{"a": [2.5, 0], "b": 1}')])],
            id="a JSON document",
        ),
        pytest.param(
            "UPDATE t SET u = u - 1 WHERE id = 1",
            [("changed", "1", [("u", "18446744073709551615", "18446744073709551614")])],
            id="the largest number",
        ),
        pytest.param("UPDATE t SET b = 4 WHERE id = 1", [("changed", "1", [("b", "5", "4")])], id="a bit"),
    ],
)
def test_a_planted_difference_is_found_and_mended(pair: Pair, key: str, statement: str, found: list[Any]) -> None:
    make(pair, key)
    pair.downstream(statement)
    report = pair.verify("t")
    assert shown(report) == found
    assert not report.is_equal
    mend(pair, report)
    assert pair.verify("t").is_equal


def test_a_space_behind_a_key_makes_another_row(pair: Pair) -> None:
    make(pair, BY_HASH)
    pair.downstream("UPDATE t SET a = 'ä' WHERE id = 3")
    report = pair.verify("t")
    assert [(d.kind.value, dict(d.key)["a"]) for d in report.tables[0].differences] == [
        ("extra", "ä"),
        ("missing", "ä "),
    ]
    mend(pair, report)
    assert pair.verify("t").is_equal


def test_json_that_is_only_spelled_otherwise_is_the_same(pair: Pair) -> None:
    make(pair, BY_RANGE)
    pair.downstream('UPDATE t SET j = \'{"b":1.0,"a":[2.5,null]}\' WHERE id = 1')
    assert pair.verify("t").is_equal


def test_members_are_the_same_however_the_server_prints_their_backslashes() -> None:
    made = column("e", ColumnType.ENUM, elems=("a\\b", "it's"))
    assert type_differs(made, "enum", "enum('a\\\\b','it''s')") == ""
    assert type_differs(made, "enum", "enum('a\\b','it''s')") == ""
    assert type_differs(made, "enum", "enum('ab','it''s')") != ""


def test_members_that_mariadbs_catalog_cannot_print_are_no_difference() -> None:
    made = column("e", ColumnType.ENUM, elems=("😀", "b"))
    assert type_differs(made, "enum", "enum('?','b')") == ""
    assert type_differs(made, "enum", "enum('??','b')") != ""
    assert type_differs(column("e", ColumnType.ENUM, elems=("ü", "b")), "enum", "enum('?','b')") != ""


def test_a_long_varchar_may_have_become_text() -> None:
    """As the sink makes it, where a row would be too long for the server."""
    long = column("v", ColumnType.VARCHAR, flen=9000)
    assert type_differs(long, "text", "text") == ""
    assert type_differs(long, "blob", "blob") != ""
    assert type_differs(column("v", ColumnType.VARCHAR, flen=255), "text", "text") != ""


def test_a_set_of_many_members_is_not_read_as_a_number_of_tidb(mariadb: MariaDb) -> None:
    """There ``CAST(s AS UNSIGNED)`` goes by a DOUBLE: it is rounded, or out of range."""
    elems = tuple(f"m'{n}" for n in range(64))
    made = column("s", ColumnType.SET, elems=elems)
    numbers = [(0,), (1,), ((1 << 53) + 1,), (1 << 63,), ((1 << 64) - 1,), (None,)]
    values = ",".join(f"({n}, {'NULL' if value is None else value})" for n, (value,) in enumerate(numbers))
    members = ",".join("'" + each.replace("'", "''") + "'" for each in elems)
    found = mariadb.query(
        "CREATE OR REPLACE DATABASE many", f"CREATE TABLE many.st (id INT, s SET({members}))",
        f"INSERT INTO many.st VALUES {values}", f"SELECT {selected(made, is_tidb=True)} FROM many.st ORDER BY id",
    )  # fmt: skip
    assert found == numbers
    few = column("s", ColumnType.SET, elems=elems[:53])
    assert selected(few, is_tidb=True) == selected(made, is_tidb=False) == "CAST(`s` AS UNSIGNED)"
