"""INSERT, REPLACE, UPDATE and DELETE: what they leave, what they answer, and how they fail."""

import pytest

from tidebox.sql.wire.errors import SqlError


def rows(session, query):
    return [tuple(row) for row in session.execute(query).rows]


def refused(session, statement):
    with pytest.raises(SqlError) as caught:
        session.execute(statement)
    return caught.value.number, caught.value.message


@pytest.fixture
def table(session):
    session.execute("create table t (id int primary key, a int, b varchar(10), unique key ua (a), key kb (b))")
    session.execute("insert into t values (1, 10, 'one'), (2, 20, 'two'), (3, null, 'three')")
    return session


def test_inserted_rows_are_counted(table):
    result = table.execute("insert into t (id, a) values (4, 40), (5, 50)")
    assert (result.rows, result.info) == (2, "Records: 2  Duplicates: 0  Warnings: 0")


def test_a_failed_statement_inserts_nothing(table):
    assert refused(table, "insert into t values (4, 40, 'x'), (1, 1, 'y')")[0] == 1062
    assert rows(table, "select count(*) from t") == [(3,)]


@pytest.mark.parametrize(
    ("statement", "number", "message"),
    [
        ("insert into t values (1, 1, 'x')", 1062, "Duplicate entry '1' for key 't.PRIMARY'"),
        ("insert into t values (9, 10, 'x')", 1062, "Duplicate entry '10' for key 't.ua'"),
        ("insert into t (a) values (1)", 1364, "Field 'id' doesn't have a default value"),
        ("insert into t values (null, 1, 'x')", 1048, "Column 'id' cannot be null"),
        ("insert into t values (9, 1)", 1136, "Column count doesn't match value count at row 1"),
        ("insert into t (id, id) values (9, 9)", 1110, "Column 'id' specified twice"),
        ("insert into t (nope) values (9)", 1054, "Unknown column 'nope' in 'field list'"),
        ("insert into t values (9, 3000000000, 'x')", 1264, "Out of range value for column 'a' at row 1"),
        ("insert into t values (9, 'abc', 'x')", 1366, "Incorrect int value: 'abc' for column 'a' at row 1"),
        ("insert into t values (9, 1, 'far too long')", 1406, "Data too long for column 'b' at row 1"),
        ("update t set a = 20 where id = 1", 1062, "Duplicate entry '20' for key 't.ua'"),
        ("update t set id = 2 where id = 1", 1062, "Duplicate entry '2' for key 't.PRIMARY'"),
        ("update t set nope = 1", 1054, "Unknown column 'nope' in 'field list'"),
        ("update t set a = 1 where nope = 1", 1054, "Unknown column 'nope' in 'where clause'"),
        ("delete from nope", 1146, "doesn't exist"),
        ("update t, t x set a = 1", 1235, "UPDATE of several tables"),
        ("delete t from t", 1235, "DELETE of several tables"),
    ],
)
def test_what_is_refused(table, statement, number, message):
    found = refused(table, statement)
    assert found[0] == number
    assert message in found[1]
    assert rows(table, "select * from t order by id") == [(1, 10, "one"), (2, 20, "two"), (3, None, "three")]


@pytest.mark.parametrize(
    ("statement", "affected", "left"),
    [
        ("insert into t values (1, 1, 'x') on duplicate key update b = 'dup'", 2, (1, 10, "dup")),
        ("insert into t values (9, 10, 'x') on duplicate key update a = values(a) + 1, b = a", 2, (1, 11, "11")),
        ("insert into t values (1, 1, 'x') on duplicate key update b = b", 0, (1, 10, "one")),
        ("insert ignore into t values (1, 1, 'x')", 0, (1, 10, "one")),
        ("replace into t values (1, 1, 'new')", 2, (1, 1, "new")),
        ("replace into t values (1, 20, 'both')", 3, (1, 20, "both")),
        ("replace into t values (1, 10, 'one')", 1, (1, 10, "one")),
        ("insert into t values (1, 1, 'x') as new on duplicate key update b = new.b", 2, (1, 10, "x")),
        ("update t set a = a + 1, b = a where id = 1", 1, (1, 11, "10")),
        ("update t set a = default where id = 1", 1, (1, None, "one")),
        ("update t set b = 'one' where id = 1", 0, (1, 10, "one")),
        ("update ignore t set a = 20 where id = 1", 0, (1, 10, "one")),
        ("update t set a = 5 where b = 'one'", 1, (1, 5, "one")),
        ("update t set a = a * 2 where a >= 10 order by a desc limit 1", 1, (1, 10, "one")),
        ("update t set b = (select max(b) from t) where id = 1", 1, (1, 10, "two")),
    ],
)  # fmt: skip
def test_a_change(table, statement, affected, left):
    assert table.execute(statement).rows == affected
    assert rows(table, "select * from t where id = 1") == [left]
    table.execute("admin check table t")


def test_rows_matched_are_told_beside_rows_changed(table):
    result = table.execute("update t set b = 'one'")
    assert result.info == "Rows matched: 3  Changed: 2  Warnings: 0"


def test_rows_are_deleted_by_condition_order_and_limit(table):
    assert table.execute("delete from t where a is not null order by a desc limit 1").rows == 1
    assert rows(table, "select id from t") == [(1,), (3,)]
    assert table.execute("delete from t").rows == 2


def test_numbers_are_given_in_turn_and_follow_what_was_written(session):
    session.execute("create table n (id int primary key auto_increment, v int)")
    assert session.execute("insert into n (v) values (1), (2)").last_insert_id == 1
    session.execute("insert into n values (10, 3)")
    session.execute("insert into n values (0, 4), (null, 5)")
    assert rows(session, "select id from n") == [(1,), (2,), (10,), (11,), (12,)]
    assert rows(session, "select last_insert_id()") == [(11,)]


def test_two_nodes_take_numbers_from_ranges_of_their_own(session, other):
    session.execute("create table n (id int primary key auto_increment, v int)")
    session.execute("insert into n (v) values (1)")
    other.execute("insert into n (v) values (2)")
    assert rows(session, "select id from n") == [(1,), (30001,)]


def test_generated_columns_are_computed_and_cannot_be_given(session):
    session.execute("create table g (a int primary key, b int as (a * 2) virtual, c int as (a + 1) stored, key kb (b))")
    session.execute("insert into g (a) values (1), (2)")
    session.execute("update g set a = 5 where b = 4")
    assert rows(session, "select * from g") == [(1, 2, 2), (5, 10, 6)]
    assert refused(session, "insert into g values (1, 2, 3)")[0] == 3105
    session.execute("admin check table g")


def test_a_moment_of_change_moves_only_when_something_changes(session):
    session.execute("set timestamp = 1700000000")
    session.execute("create table m (id int primary key, v int, at timestamp(3) on update current_timestamp(3))")
    session.execute("insert into m values (1, 1, null)")
    session.execute("update m set v = 1")
    assert rows(session, "select at from m") == [(None,)]
    session.execute("update m set v = 2")
    assert rows(session, "select at from m") == [("2023-11-14 22:13:20.000",)]


def test_without_strict_rules_values_are_bent_with_a_warning(session):
    session.execute("create table s (a tinyint, b varchar(3), c date)")
    session.execute("set sql_mode = ''")
    result = session.execute("insert into s values (300, 'abcdef', '2024-13-01')")
    assert result.warnings == 3
    codes = [row[1] for row in session.execute("show warnings").rows]
    assert codes == [1264, 1406, 1292]
    assert rows(session, "select * from s") == [(127, "abc", "0000-00-00")]


def test_rows_of_a_query_are_inserted_as_it_found_them(table):
    table.execute("insert into t select id + 10, a + 100, b from t")
    assert rows(table, "select id, a from t where id > 10") == [(11, 110), (12, 120), (13, None)]


def test_a_text_key_is_found_whatever_its_case_where_the_collation_says_so(session):
    session.execute("create table c (a varchar(10) primary key, v int) collate utf8mb4_general_ci")
    session.execute("insert into c values ('Key', 1)")
    session.execute("update c set v = 2 where a = 'kEY'")
    assert refused(session, "insert into c values ('KEY', 3)") == (1062, "Duplicate entry 'KEY' for key 'c.PRIMARY'")
    assert rows(session, "select * from c") == [("Key", 2)]
