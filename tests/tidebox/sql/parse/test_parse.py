"""Statements taken apart, and what is refused: 1064 with its place, 1235 with its name."""

import pytest

from tidebox.sql.parse import parse
from tidebox.sql.parse.cursor import Cursor
from tidebox.sql.parse.expressions import column_names, parse_expression, to_text
from tidebox.sql.parse.statements import (
    AddColumn,
    AddKey,
    After,
    AlterTable,
    CreateTable,
    DropColumn,
    DropKey,
    First,
    KeyKind,
    KeyPart,
    ModifyColumn,
    RenameTables,
    SetCharset,
    SetComment,
    TableName,
)
from tidebox.sql.wire.errors import SqlError


@pytest.mark.parametrize("text", ["'open", "`open", "/* open", "/*! open", "x'0'", "x'0g'", "b'2'", "\x01"])
def test_what_cannot_be_read_is_1064(text: str) -> None:
    with pytest.raises(SqlError, match="1064"):
        parse(text)


def test_an_error_tells_its_place() -> None:
    with pytest.raises(SqlError, match=r'1064.*line 2 column 12 near "nonsense\)" '):
        parse("create table t (id int,\n a nonsense)")


def test_a_table_is_taken_apart() -> None:
    statement = parse(
        "create table if not exists Shop.`T 1` (id bigint unsigned not null auto_increment, name varchar(20) "
        "character set utf8mb4 collate utf8mb4_bin default 'x' comment 'who', primary key (id, name(5)) nonclustered, "
        "unique key u using btree (name) invisible, key (id)) engine=InnoDB default charset utf8mb4 comment='c'"
    )
    assert isinstance(statement, CreateTable)
    assert statement.table == TableName("Shop", "T 1")
    assert [c.name for c in statement.columns] == ["id", "name"]
    assert statement.columns[0].is_auto_increment
    assert statement.columns[0].type.is_unsigned
    primary, unique, plain = statement.keys
    assert (primary.kind, primary.parts, primary.is_clustered) == (
        KeyKind.PRIMARY,
        (KeyPart("id"), KeyPart("name", 5)),
        False,
    )
    assert (unique.name, unique.is_invisible, unique.type) == ("u", True, "BTREE")
    assert plain.name is None
    assert (statement.options.charset, statement.options.comment) == ("utf8mb4", "c")


def test_the_clauses_of_alter_table_are_taken_apart() -> None:
    statement = parse(
        "alter table t add column a int first, add b int after a, drop column if exists c, modify d int, "
        "change e f int, add unique (a), drop index i, comment 'x', convert to character set utf8mb4"
    )
    assert isinstance(statement, AlterTable)
    kinds = [type(spec) for spec in statement.specs]
    assert kinds == [
        AddColumn, AddColumn, DropColumn, ModifyColumn, ModifyColumn, AddKey, DropKey, SetComment, SetCharset,
    ]  # fmt: skip
    first, second, dropped, _, changed, *_ = statement.specs
    assert isinstance(first, AddColumn)
    assert first.position == First()
    assert isinstance(second, AddColumn)
    assert second.position == After("a")
    assert isinstance(dropped, DropColumn)
    assert dropped.if_exists
    assert isinstance(changed, ModifyColumn)
    assert (changed.old_name, changed.column.name) == ("e", "f")


def test_renames_keep_their_order() -> None:
    statement = parse("rename table a to b, c.d to e")
    assert statement == RenameTables(
        ((TableName(None, "a"), TableName(None, "b")), (TableName("c", "d"), TableName(None, "e")))
    )


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("create view v as select 1", "CREATE VIEW"),
        ("create or replace view v as select 1", "CREATE VIEW"),
        ("create user u", "CREATE USER"),
        ("create procedure p() begin end", "CREATE PROCEDURE"),
        ("create sequence s", "CREATE SEQUENCE"),
        ("create temporary table t (a int)", "TEMPORARY TABLE"),
        ("create table t (a int) partition by hash (a)", "PARTITION"),
        ("create table t (a int, foreign key (a) references u(b))", "FOREIGN KEY"),
        ("create table t (a int references u(b))", "FOREIGN KEY"),
        ("create table t (a int check (a > 0))", "CHECK constraint"),
        ("create table t (a int, fulltext key (a))", "FULLTEXT index"),
        ("create table t (a int, key ((a + 1)))", "expression index"),
        ("create table t (a point)", "the type POINT"),
        ("create table t (a bigint primary key auto_random)", "AUTO_RANDOM"),
        ("create table t select 1", "CREATE TABLE ... SELECT"),
        ("alter table t add partition (partition p values less than (1))", "ADD PARTITION"),
        ("alter table t set tiflash replica 1", "SET TIFLASH REPLICA"),
        ("drop view v", "DROP VIEW"),
        ("admin checksum table t", "ADMIN CHECKSUM"),
    ],
)
def test_what_lies_outside_is_refused_by_its_name(sql: str, name: str) -> None:
    with pytest.raises(SqlError, match="1235") as refused:
        parse(sql)
    assert f"'{name}'" in refused.value.message


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a * 2", "`a` * 2"),
        ("A+1", "`A` + 1"),
        ("concat('v', t.a)", "concat(_utf8mb4'v', `a`)"),
        ("j->>'$.name'", "json_unquote(json_extract(`j`, _utf8mb4'$.name'))"),
        ("(a or b) and not c", "(`a` or `b`) and not `c`"),
        ("case when a > 1 then 'x' else null end", "case when `a` > 1 then _utf8mb4'x' else null end"),
        ("a between 1 and 2 or b not in (3, 4)", "`a` between 1 and 2 or `b` not in (3,4)"),
        ("a is not null", "`a` is not null"),
        ("cast(a as char(10))", "cast(`a` as char(10))"),
        ("-a % 3", "-`a` % 3"),
        ("now()", "current_timestamp()"),
        ("_latin1'it''s'", "_latin1'it''s'"),
    ],
)
def test_expressions_print_as_tidb_keeps_them(text: str, printed: str) -> None:
    assert to_text(parse_expression(Cursor(text))) == printed


def test_the_columns_of_an_expression_come_once_and_in_order() -> None:
    text = "b + a * case a when c then b else -d end"
    assert column_names(parse_expression(Cursor(text))) == ("b", "a", "c", "d")
