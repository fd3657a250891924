"""Where MariaDB is not TiDB: foreign keys, tables that come back, defaults, names and generated columns, each as a DDL
and the rows upstream.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tests.mariadb import MariaDb
from tests.sinks.mysql.rescanned import Upstream, upstream_into
from tests.sinks.mysql.test_ddl import event
from tidemill.errors import SinkError
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql import write_rows


@pytest.fixture
def upstream(mariadb: MariaDb) -> Iterator[Upstream]:
    yield from upstream_into(mariadb)


# Foreign keys


def child(name: str) -> str:
    return (
        f"CREATE TABLE `{name}` (\n  `id` int NOT NULL,\n  `p` int DEFAULT NULL,\n  PRIMARY KEY (`id`),\n  KEY `ip` "
        "(`p`),\n  CONSTRAINT `fk_1` FOREIGN KEY (`p`) REFERENCES `ddls`.`parent` (`id`) ON DELETE CASCADE\n)"
    )


def child_info(name: str) -> TableInfo:
    return table_of(column("id", ColumnType.LONG, KEY), column("p", ColumnType.LONG), schema="ddls", name=name)


def with_children(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.parent (id INT PRIMARY KEY)")
    for name in ("a", "b"):
        upstream.run(event("…", ActionType.CREATE_TABLE, 1, child_info(name), creation=child(name), seq=ord(name)))


def foreign_keys(upstream: Upstream) -> dict[str, str]:
    found = upstream.select(
        "SELECT table_name, constraint_name FROM information_schema.referential_constraints WHERE constraint_schema = "
        "'ddls' ORDER BY 1"
    )
    return dict(found)


def test_foreign_keys_of_one_name_get_two(upstream: Upstream) -> None:
    with_children(upstream)
    names = foreign_keys(upstream)
    assert names["a"] == "fk_1"
    assert names["b"].startswith("fk_1__")


def test_a_foreign_key_is_dropped_by_the_name_that_it_got(upstream: Upstream) -> None:
    with_children(upstream)
    before = child_info("b")
    after = table_of(*before.columns, column("c", ColumnType.LONG), schema="ddls", name="b")
    query = "alter table b drop foreign key fk_1, add column c int"
    upstream.run(event(query, ActionType.MULTI_SCHEMA_CHANGE, 2, after, pre_table_info=before))
    assert [*foreign_keys(upstream)] == ["a"]


def test_a_foreign_key_that_is_gone_upstream_is_in_no_ddls_way(upstream: Upstream) -> None:
    """TiDB's DROP FOREIGN KEY is not replicated; then the column may go."""
    with_children(upstream)
    after = table_of(column("id", ColumnType.LONG, KEY), schema="ddls", name="b")
    query = "alter table b drop index ip, drop column p"
    upstream.run(event(query, ActionType.MULTI_SCHEMA_CHANGE, 2, after, pre_table_info=child_info("b")))
    assert [*foreign_keys(upstream)] == ["a"]


def test_a_cascade_is_not_carried_out_twice(upstream: Upstream) -> None:
    """Its rows come as changes of their own; one that came back meanwhile must stay."""
    with_children(upstream)
    parent = table_of(column("id", ColumnType.LONG, KEY), schema="ddls", name="parent")
    upstream.insert(parent, parent.id, {"id": 1})
    upstream.insert(child_info("a"), 1, {"id": 7, "p": 1})
    gone = rows_of(parent, ({"id": 1}, None))
    write_rows(upstream.sink.target(parent, parent.id, (Ts(0), Ts(COMMIT_TS + 2))), iter([gone]))
    assert upstream.select("SELECT id FROM ddls.a") == [(7,)]


# Tables that come back, get a key or cannot be altered


BACK = table_of(column("id", ColumnType.LONG, KEY), schema="ddls", name="t", table_id=7)
BACK_MADE = "CREATE TABLE `t` (\n  `id` int NOT NULL,\n  PRIMARY KEY (`id`)\n)"


def test_a_database_that_comes_back_is_filled_from_the_upstream(upstream: Upstream) -> None:
    """As FLASHBACK DATABASE does: the downstream has dropped its tables for good, or never had them."""
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.rows[7] = [{"id": 1}, {"id": 2}]
    upstream.run(
        event("drop database ddls", ActionType.DROP_SCHEMA, 1, None),
        event("CREATE DATABASE `ddls`", ActionType.CREATE_SCHEMA, 2, None),
        event("recover", ActionType.RECOVER_TABLE, 2, BACK, seq=1, creation=BACK_MADE),
    )
    assert upstream.select("SELECT id FROM ddls.t ORDER BY id") == [(1,), (2,)]


def test_what_another_changefeed_put_aside_is_not_brought_back(upstream: Upstream) -> None:
    other = upstream.open("another")
    upstream.select(
        "CREATE TABLE ddls.t (id INT PRIMARY KEY)",
    )
    upstream.select("INSERT INTO ddls.t VALUES (404)")
    other.ddl(event("drop table t", ActionType.DROP_TABLE, 1, BACK))
    upstream.rows[7] = [{"id": 1}]
    upstream.sink.ddl(event("recover table t", ActionType.RECOVER_TABLE, 2, BACK, creation=BACK_MADE))
    assert upstream.select("SELECT id FROM ddls.t") == [(1,)]
    other.close()


def test_a_table_that_gets_a_key_is_read_from_the_upstream(upstream: Upstream) -> None:
    keyless = replace(BACK, indexes=(), pk_is_handle=False, columns=(column("id", ColumnType.LONG, NOT_NULL),))
    upstream.run(event("create table t (id int not null)", ActionType.CREATE_TABLE, 1, keyless))
    upstream.select("INSERT INTO ddls.t VALUES (404), (404)")  # from before it lost an earlier key
    upstream.rows[7] = [{"id": 1}, {"id": 2}]
    upstream.run(
        event("alter table t add primary key (id)", ActionType.ADD_PRIMARY_KEY, 2, BACK, pre_table_info=keyless)
    )
    assert upstream.select("SELECT id FROM ddls.t ORDER BY id") == [(1,), (2,)]


def test_a_table_that_cannot_be_altered_is_made_anew(upstream: Upstream) -> None:
    after = table_of(
        column("id", ColumnType.LONG, KEY), column("v", ColumnType.VARCHAR, flen=9), schema="ddls", name="t", table_id=7
    )
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.select("INSERT INTO ddls.t VALUES (1)")
    upstream.rows[7] = [{"id": 1, "v": "old"}]
    creation = BACK_MADE.replace("NOT NULL,", "NOT NULL,\n  `v` varchar(9) DEFAULT 'old',")
    query = "alter table t add column v varchar(9) default 'old' of_a_kind_that_only_tidb_knows"
    upstream.run(event(query, ActionType.ADD_COLUMN, 2, after, pre_table_info=BACK, creation=creation))
    assert upstream.select("SELECT id, v FROM ddls.t") == [(1, "old")]
    assert upstream.select("SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'anew%'") == [(0,)]


@pytest.mark.parametrize("name", ["f", "g"])
def test_a_column_that_becomes_another_type_is_written_as_tidb_converted_it(upstream: Upstream, name: str) -> None:
    """Under its name, or under another one that CHANGE COLUMN gives it."""
    was = column("f", ColumnType.FLOAT)
    became = column(name, ColumnType.VARCHAR, flen=30)
    before = table_of(column("id", ColumnType.LONG, KEY), was, schema="ddls", name="t", table_id=7)
    after = table_of(column("id", ColumnType.LONG, KEY), became, schema="ddls", name="t", table_id=7)
    after = replace(after, columns=(after.columns[0], replace(after.columns[1], id=9)))
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY, f FLOAT)")
    upstream.select("INSERT INTO ddls.t VALUES (1, 1e20)")
    upstream.rows[7] = [{"id": 1, name: "100000000000000000000"}]
    query = f"alter table t change column f {name} varchar(30)"
    upstream.run(event(query, ActionType.MODIFY_COLUMN, 1, after, pre_table_info=before))
    assert upstream.select(f"SELECT {name} FROM ddls.t") == [("100000000000000000000",)]


def test_a_change_that_is_made_already_does_not_take_the_others_along(upstream: Upstream) -> None:
    """An index of this name is there, for whatever reason: the server refuses all of the statement."""
    after = table_of(column("id", ColumnType.LONG, KEY), column("c", ColumnType.LONG), schema="ddls", name="t")
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY, KEY i (id))")
    upstream.rows[after.id] = [{"id": 1, "c": 5}]
    query = "alter table t add index i (id), add column c int default 5"
    made = BACK_MADE.replace("NOT NULL,", "NOT NULL,\n  `c` int DEFAULT '5',")
    upstream.run(event(query, ActionType.MULTI_SCHEMA_CHANGE, 1, after, pre_table_info=BACK, creation=made))
    assert upstream.select("SELECT id, c FROM ddls.t") == [(1, 5)]


def test_a_statement_hidden_in_a_ddl_is_not_run(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    with pytest.raises(SinkError, match=r"refused the DDL.*1064"):
        upstream.sink.ddl(event("alter table t comment 'x'; drop table t", ActionType.MODIFY_TABLE_COMMENT, 1))
    assert upstream.select("SELECT COUNT(*) FROM ddls.t") == [(0,)]


# Defaults


def test_rows_that_were_there_get_the_fraction_of_the_moment(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.select("INSERT INTO ddls.t VALUES (1)")
    fields = {"default": "CURRENT_TIMESTAMP", "origin_default": "2026-01-01 00:00:00.123", "decimal": 3}
    moments = [
        column("at", ColumnType.TIMESTAMP, **fields),
        column("seen", ColumnType.DATETIME, **{**fields, "origin_default": "2026-01-01 14:00:00.123"}),
    ]
    after = table_of(column("id", ColumnType.LONG, KEY), *moments, schema="ddls", name="t")
    query = (
        "alter table t add column at timestamp(3) default current_timestamp(3), add column seen datetime(3) default "
        "current_timestamp(3)"
    )
    upstream.run(event(query, ActionType.MULTI_SCHEMA_CHANGE, 1, after, pre_table_info=BACK))
    assert upstream.select("SELECT UNIX_TIMESTAMP(at) + 0e0, CAST(seen AS CHAR) FROM ddls.t") == [
        (1767225600.123, "2026-01-01 14:00:00.123")
    ]


def test_a_default_typed_in_a_zone_that_mariadb_has_not(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.select("INSERT INTO ddls.t VALUES (1)")
    after = table_of(
        column("id", ColumnType.LONG, KEY), column("at", ColumnType.TIMESTAMP, default="2019-12-31 10:00:00"),
        schema="ddls", name="t",
    )  # fmt: skip
    query = "alter table t add column at timestamp default '2020-01-01 00:00:00'"  # with time_zone = '+14:00'
    upstream.run(event(query, ActionType.ADD_COLUMN, 1, after, pre_table_info=BACK))
    assert upstream.select("SELECT UNIX_TIMESTAMP(at) FROM ddls.t") == [(1577786400,)]


def test_a_default_with_the_empty_member_of_a_set(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.select("INSERT INTO ddls.t VALUES (1)")
    added = column("s", ColumnType.SET, elems=("", "a", "b"), default=",b", origin_default=",b")
    after = table_of(column("id", ColumnType.LONG, KEY), added, schema="ddls", name="t")
    query = "alter table t add column s set('', 'a', 'b') default ',b'"
    upstream.run(event(query, ActionType.ADD_COLUMN, 1, after, pre_table_info=BACK))
    assert upstream.select("SELECT s + 0 FROM ddls.t") == [(5,)]


def test_a_default_is_settled_after_a_crash_right_behind_the_statement(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.select("INSERT INTO ddls.t VALUES (1)")
    added = column("s", ColumnType.SET, elems=("", "a", "b"), default=",b", origin_default=",b")
    after = table_of(column("id", ColumnType.LONG, KEY), added, schema="ddls", name="t")
    query = "alter table t add column s set('', 'a', 'b') default ',b'"
    change = event(query, ActionType.ADD_COLUMN, 1, after, pre_table_info=BACK)
    upstream.sink.ddl(change)
    upstream.select("UPDATE ddls.t SET s = 4")  # as the statement alone had left it
    upstream.select("UPDATE tidb_cdc.tidemill_ddl_v2 SET is_done = 0")
    upstream.sink.ddl(change)
    assert upstream.select("SELECT s + 0 FROM ddls.t") == [(5,)]


# Names in another case, views, and text that depends on the session


def test_a_table_is_altered_whatever_the_case_of_its_name_in_the_statement(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    after = table_of(column("id", ColumnType.LONG, KEY), column("c", ColumnType.LONG), schema="ddls", name="t")
    upstream.run(
        event("alter table DDLS.T add column c int", ActionType.ADD_COLUMN, 1, after, pre_table_info=BACK),
        event("create index i on T (c)", ActionType.ADD_INDEX, 2, after, pre_table_info=after),
        event("truncate table T", ActionType.TRUNCATE_TABLE, 3, after, pre_table_info=after),
    )
    assert upstream.select("SELECT COUNT(*) FROM ddls.t FORCE INDEX (i) WHERE c = 1") == [(0,)]


def test_a_database_is_dropped_and_altered_whatever_the_case_of_its_name(upstream: Upstream) -> None:
    upstream.run(event("alter schema collate utf8mb4_general_ci", ActionType.MODIFY_SCHEMA_CHARSET, 1, None))
    found = "SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = 'ddls'"
    assert upstream.select(found) == [("utf8mb4_general_ci",)]
    upstream.run(event("drop database DDLS", ActionType.DROP_SCHEMA, 2, None))
    assert upstream.select(found) == []


def test_a_view_that_mariadb_cannot_have_is_left_out(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    view = replace(BACK, name="v", is_view=True, indexes=(), pk_is_handle=False)
    upstream.run(
        event("create definer=nobody@`%` view v as select id from t", ActionType.CREATE_VIEW, 1, view),
        event("create or replace view v as select id->'$.a' from t", ActionType.CREATE_VIEW, 2, view),
        event("DROP VIEW `ddls`.`v`", ActionType.DROP_VIEW, 3, view),
    )
    assert upstream.select("SELECT COUNT(*) FROM information_schema.views WHERE table_schema = 'ddls'") == [(0,)]


def test_a_view_reads_the_tables_of_the_database_in_which_its_session_was(upstream: Upstream) -> None:
    """And joins texts where ``||`` did so: the document tells both, the statement neither."""
    upstream.select("CREATE OR REPLACE DATABASE ddls2")
    upstream.select("CREATE TABLE ddls2.t (a VARCHAR(9)) SELECT 'x' AS a")
    upstream.select("CREATE TABLE ddls.t (a INT)")
    view = replace(BACK, name="v", is_view=True, indexes=(), pk_is_handle=False)
    made = "CREATE OR REPLACE VIEW `ddls`.`v` (`z`) AS SELECT CONCAT(`a`, _UTF8MB4'y') AS `z` FROM `ddls2`.`t`"
    upstream.run(
        event("create view ddls.v as select a || 'y' z from t", ActionType.CREATE_VIEW, 1, view, creation=made)
    )
    assert upstream.select("SELECT z FROM ddls.v") == [("xy",)]
    upstream.select("DROP DATABASE ddls2")


def test_a_character_set_without_a_collation_means_what_it_means_to_tidb(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY) COLLATE utf8mb4_bin")
    after = table_of(column("id", ColumnType.LONG, KEY), column("c", ColumnType.VARCHAR), schema="ddls", name="t")
    query = "alter table t add column c varchar(9) charset latin1 unique"
    upstream.run(event(query, ActionType.ADD_COLUMN, 1, after, pre_table_info=BACK))
    upstream.select("INSERT INTO ddls.t VALUES (1, 'a'), (2, 'A')")
    upstream.run(event("alter table t convert to charset utf8mb4", ActionType.MODIFY_TABLE_CHARSET, 2, after))
    assert upstream.select("SELECT COUNT(*) FROM ddls.t WHERE c = 'a'") == [(1,)]


def test_an_index_that_was_left_out_does_not_take_the_statement_along(upstream: Upstream) -> None:
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    after = table_of(column("id", ColumnType.LONG, KEY), column("c", ColumnType.LONG), schema="ddls", name="t")
    query = "alter table t rename index ie to ie2, alter index ie invisible, add column c int"
    upstream.run(event(query, ActionType.MULTI_SCHEMA_CHANGE, 1, after, pre_table_info=BACK))
    assert upstream.select("SELECT COUNT(c) FROM ddls.t") == [(0,)]


def test_a_default_that_mariadb_cannot_work_out_is_left_out(upstream: Upstream) -> None:
    made = BACK_MADE.replace("NOT NULL,", "NOT NULL,\n  `u` varbinary(16) DEFAULT (uuid_to_bin(uuid())),")
    after = table_of(column("id", ColumnType.LONG, KEY), column("u", ColumnType.VARCHAR), schema="ddls", name="t")
    upstream.run(event("create table t …", ActionType.CREATE_TABLE, 1, after, creation=made))
    assert upstream.select("SELECT id, u FROM ddls.t") == []


# Generated columns


def generated(expression: str, how: str = "STORED") -> tuple[TableInfo, str]:
    made = BACK_MADE.replace(
        "NOT NULL,", f"NOT NULL,\n  `g` varchar(40) GENERATED ALWAYS AS ({expression}) {how} NOT NULL COMMENT 'g',", 1
    )
    g = column("g", ColumnType.VARCHAR, NOT_NULL, flen=40, generated_expr=expression, is_stored=how == "STORED")
    return table_of(column("id", ColumnType.LONG, KEY), g, schema="ddls", name="t", table_id=7), made


@pytest.mark.parametrize("expression", ["`id` + 1", "date_format(from_days(`id`), _utf8mb4'%Y')", "bin_to_uuid(`id`)"])
def test_a_generated_column_has_its_value_however_the_downstream_gets_it(upstream: Upstream, expression: str) -> None:
    """MariaDB takes no NOT NULL of one, and few functions."""
    table, made = generated(expression)
    upstream.run(event("create table t …", ActionType.CREATE_TABLE, 1, table, creation=made))
    upstream.insert(table, 7, {"id": 1, "g": "2"})
    assert upstream.select("SELECT id, g FROM ddls.t") == [(1, "2")]
    upstream.run(event("alter table t drop column g", ActionType.DROP_COLUMN, 2, BACK, pre_table_info=table))
    upstream.insert(BACK, 7, {"id": 2})
    upstream.rows[7] = [{"id": 1, "g": "2"}, {"id": 2, "g": "3"}]
    query = f"alter table t add column g varchar(40) as ({expression}) stored not null comment 'g'"
    upstream.run(event(query, ActionType.ADD_COLUMN, 3, table, pre_table_info=BACK, creation=made))
    upstream.insert(table, 7, {"id": 3, "g": "4"})
    assert upstream.select("SELECT id, g FROM ddls.t ORDER BY id") == [(1, "2"), (2, "3"), (3, "4")]


def test_a_virtual_column_that_mariadb_cannot_work_out_is_null(upstream: Upstream) -> None:
    table, made = generated("bin_to_uuid(`id`)", "VIRTUAL")
    upstream.run(event("create table t …", ActionType.CREATE_TABLE, 1, table, creation=made))
    upstream.insert(table, 7, {"id": 1})
    assert upstream.select("SELECT id, g FROM ddls.t") == [(1, None)]


def test_an_expression_means_what_tidb_understood(upstream: Upstream) -> None:
    """Typed under PIPES_AS_CONCAT; and MariaDB knows no arrows."""
    upstream.select("CREATE TABLE ddls.t (id INT PRIMARY KEY)")
    upstream.select("INSERT INTO ddls.t VALUES (1)")
    columns = [
        column("a", ColumnType.VARCHAR, flen=9, generated_expr="concat(`id`, `id`)"),
        column("b", ColumnType.VARCHAR, flen=9, generated_expr="json_extract(_utf8mb4'{\"k\": 5}', _utf8mb4'$.k')"),
        column("c", ColumnType.VARCHAR, flen=9, generated_expr="concat(_utf8mb4'\\\\', _utf8mb4'it''s\\\\x')"),
    ]
    after = table_of(column("id", ColumnType.LONG, KEY), *columns, schema="ddls", name="t", table_id=7)
    query = "alter table t add column a varchar(9) as (id || id), add b varchar(9) as ('{\"k\": 5}'->'$.k') virtual, "
    query += "add c varchar(9) as ('\\\\' || 'it''s\\\\x')"
    upstream.run(event(query, ActionType.MULTI_SCHEMA_CHANGE, 1, after, pre_table_info=BACK))
    upstream.select("FLUSH TABLES")
    assert upstream.select("SELECT id, a, b, c FROM ddls.t") == [(1, "11", "5", "\\it's\\x")]


# What the server itself does not survive, or has no room for


def test_a_row_that_is_too_long_has_its_texts_outside(upstream: Upstream) -> None:
    made = BACK_MADE.replace(
        "NOT NULL,", "NOT NULL,\n  `a` varchar(16000) DEFAULT 'x',\n  `b` varbinary(60000) NOT NULL,", 1
    )
    columns = [
        column("a", ColumnType.VARCHAR, flen=16000),
        column("b", ColumnType.VARCHAR, NOT_NULL, flen=60000, charset="binary"),
    ]
    table = table_of(column("id", ColumnType.LONG, KEY), *columns, schema="ddls", name="t", table_id=7)
    upstream.run(event("create table t …", ActionType.CREATE_TABLE, 1, table, creation=made))
    upstream.insert(table, 7, {"id": 1, "a": "日" * 16000, "b": b"\0" * 60000})
    assert upstream.select("SELECT CHAR_LENGTH(a), LENGTH(b) FROM ddls.t") == [(16000, 60000)]


def test_an_index_of_a_virtual_column_that_mariadb_refuses_is_left_out(upstream: Upstream) -> None:
    expression = "date_format(from_days(730000 + `id`), _utf8mb4'%Y')"
    table, made = generated(expression, "VIRTUAL")
    upstream.rows[7] = [{"id": 1}]
    index = IndexInfo(2, "ig", (IndexColumn(1, -1),), is_unique=True, is_primary=False)
    after = replace(table, indexes=(*table.indexes, index))
    indexed = made.replace("PRIMARY KEY (`id`)", "PRIMARY KEY (`id`),\n  UNIQUE KEY `ig` (`g`)")
    upstream.run(event("create table t …", ActionType.CREATE_TABLE, 1, after, creation=indexed))
    upstream.insert(after, 7, {"id": 1})
    assert upstream.select("SELECT id, g FROM ddls.t") == [(1, "1998")]
    query = "alter table t add index ig (g)"
    upstream.run(event(query, ActionType.ADD_INDEX, 2, after, pre_table_info=table, creation=indexed))
    assert upstream.select("SELECT id, g FROM ddls.t") == [(1, "1998")]
    assert upstream.asked == []


def test_an_update_in_place_keeps_what_is_empty_in_an_enum_and_a_set(upstream: Upstream) -> None:
    members = ("", *(f"m{n}" for n in range(63)))
    table = table_of(
        column("id", ColumnType.LONG, KEY), column("e", ColumnType.ENUM, elems=("a", "")),
        column("s", ColumnType.SET, elems=members), schema="ddls", name="t", table_id=7,
    )  # fmt: skip
    texts = ",".join(f"'{member}'" for member in members)
    upstream.select(f"CREATE TABLE ddls.t (id INT PRIMARY KEY, e ENUM('a', ''), s SET({texts}))")
    upstream.insert(table, 7, *({"id": n, "e": 1, "s": 2} for n in range(4)))
    upstream.sink.commit(Ts(COMMIT_TS + 1), [])
    values = [{"e": 0, "s": 3}, {"e": 2, "s": 1}, {"e": None, "s": 2**64 - 1}, {"e": 1, "s": 0}]
    changes = rows_of(table, *(({"id": n, "e": 1, "s": 2}, {"id": n, **row}) for n, row in enumerate(values)))
    target = upstream.sink.target(table, 7, (Ts(0), Ts(COMMIT_TS + 2)))
    assert not target.is_safe  # it updates in place
    write_rows(target, iter([changes]))
    found = upstream.select("SELECT e + 0, CAST(s AS UNSIGNED) FROM ddls.t ORDER BY id")
    assert found == [(row["e"], row["s"]) for row in values]


def test_a_topics_table_has_plain_columns_where_their_expressions_are_not_allowed(upstream: Upstream) -> None:
    """A topic tells of the statement alone."""
    query = (
        "create table t (id int unsigned primary key, d date, s varchar(9) as (date_format(d, '%Y')) stored, "
        "n int as (id + 1))"
    )
    upstream.sink.ddl(replace(event(query, ActionType.CREATE_TABLE, 1, None), table="t"))
    upstream.select("INSERT INTO ddls.t (id, d, s) VALUES (1, '2020-01-01', '2020')")
    assert upstream.select("SELECT s, n FROM ddls.t") == [("2020", 2)]
