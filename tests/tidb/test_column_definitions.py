"""Which columns a statement defines, and how."""

import pytest

from tidemill.tidb.column_definitions import ColumnDefinition as D
from tidemill.tidb.column_definitions import column_definitions


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param(
            "create table t (id int primary key, d datetime(3) default now(3), e enum('a,b','c'), key (id))",
            [D("id", "INT"), D("d", "DATETIME", 3, "CURRENT_TIMESTAMP"), D("e", "ENUM")],
            id="a table's columns, and neither keys nor commas in strings",
        ),
        pytest.param(
            "CREATE TABLE IF NOT EXISTS `a`.`t` (`key` year(4) DEFAULT 2020, `b` time default '01:02:03' comment 'x')",
            [D("key", "YEAR", 4, "2020"), D("b", "TIME", -1, "01:02:03")],
            id="a quoted name may be a keyword",
        ),
        pytest.param(
            "create table t (a timestamp null default null, b datetime default (date_add(now(), interval 1 day)), "
            "c int default -1, primary key (a, c))",
            [D("a", "TIMESTAMP", -1, "NULL"), D("b", "DATETIME", -1, "date_add"), D("c", "INT")],
            id="defaults of all kinds",
        ),
        pytest.param(
            "create table t (g int as (a + 1) stored, check (a > 0), constraint c foreign key (a) references b(c))",
            [D("g", "INT")],
            id="constraints are no columns",
        ),
        pytest.param(
            "alter table t add column a datetime after b, add (c time(6), d year), modify e timestamp(2)",
            [D("a", "DATETIME"), D("c", "TIME", 6), D("d", "YEAR"), D("e", "TIMESTAMP", 2)],
            id="added and modified columns",
        ),
        pytest.param(
            "alter table s.t change column if exists old `new` datetime(6) first, alter column x set default 5",
            [D("new", "DATETIME", 6), D("x")],
            id="changed columns go by their new names",
        ),
        pytest.param("alter table t add column index int", [D("index", "INT")], id="COLUMN says that it is one"),
        pytest.param("alter table t add index i (a), add partition (partition p values in (1))", [], id="no columns"),
        pytest.param("alter table t drop column a, rename column b to c, comment = 'd e'", [], id="none defined"),
        pytest.param("create table b like a", [], id="like another table"),
        pytest.param("create view v as select 1", [], id="a view"),
        pytest.param("create table t (a int, b 'never closed", [], id="no SQL"),
        pytest.param("", [], id="nothing"),
        pytest.param("create table t (", [], id="cut off"),
    ],
)
def test_definitions(query: str, expected: list[D]) -> None:
    assert column_definitions(query) == expected
