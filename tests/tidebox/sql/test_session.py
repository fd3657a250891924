"""A session: transactions between two of them, variables, what is shown, reads of the past, prepared statements."""

from threading import Thread

import pytest

from tidebox.sql.session import SqlSession
from tidebox.sql.wire.errors import SqlError


def rows(session, query, parameters=None):
    return [tuple(row) for row in session.execute(query, parameters).rows]


def refused(session, statement):
    with pytest.raises(SqlError) as caught:
        session.execute(statement)
    return caught.value.number


@pytest.fixture
def table(session, other):
    session.execute("create table t (id int primary key, v int)")
    session.execute("insert into t values (1, 10), (2, 20)")
    return session


# Transactions


def test_others_see_a_transaction_once_it_has_committed(table, other):
    table.execute("begin")
    table.execute("insert into t values (3, 30)")
    assert table.status.is_in_transaction
    assert rows(other, "select count(*) from t") == [(2,)]
    table.execute("commit")
    assert rows(other, "select count(*) from t") == [(3,)]
    assert not table.status.is_in_transaction


def test_a_transaction_reads_what_was_there_when_it_began(table, other):
    table.execute("begin")
    assert rows(table, "select v from t where id = 1") == [(10,)]
    other.execute("update t set v = 11 where id = 1")
    assert rows(table, "select v from t where id = 1") == [(10,)]
    table.execute("rollback")
    assert rows(table, "select v from t where id = 1") == [(11,)]


def test_a_pessimistic_change_is_made_to_the_newest_row(table, other):
    table.execute("begin pessimistic")
    other.execute("update t set v = v + 1 where id = 1")
    table.execute("update t set v = v * 2 where id = 1")
    table.execute("commit")
    assert rows(table, "select v from t where id = 1") == [(22,)]


def test_of_two_optimistic_changes_the_later_commit_fails(table, other):
    table.execute("begin optimistic")
    table.execute("update t set v = 1 where id = 1")
    other.execute("update t set v = 2 where id = 1")
    assert refused(table, "commit") == 9007
    assert rows(table, "select v from t where id = 1") == [(2,)]


def test_a_failed_statement_does_not_end_the_transaction(table):
    table.execute("begin")
    table.execute("update t set v = 0 where id = 1")
    assert refused(table, "insert into t values (2, 2)") == 1062
    table.execute("commit")
    assert rows(table, "select v from t order by id") == [(0,), (20,)]


def test_without_autocommit_every_statement_is_in_a_transaction(table, other):
    table.execute("set autocommit = 0")
    table.execute("insert into t values (3, 30)")
    assert rows(other, "select count(*) from t") == [(2,)]
    table.execute("set autocommit = 1")
    assert rows(other, "select count(*) from t") == [(3,)]


def test_savepoints_roll_back_a_part(table):
    table.execute("begin")
    table.execute("savepoint a")
    table.execute("delete from t")
    table.execute("rollback to a")
    table.execute("insert into t values (3, 3)")
    table.execute("commit")
    assert rows(table, "select count(*) from t") == [(3,)]
    table.execute("begin")
    assert refused(table, "rollback to a") == 1305


def test_a_read_only_transaction_refuses_changes(table):
    table.execute("start transaction read only")
    assert refused(table, "delete from t") == 1792


def test_rows_locked_for_update_are_waited_for(table, other):
    other.execute("set innodb_lock_wait_timeout = 0")
    table.execute("begin")
    assert rows(table, "select v from t where id = 1 for update") == [(10,)]
    other.execute("begin")
    assert refused(other, "update t set v = 5 where id = 1") == 1205
    assert refused(other, "select * from t where id = 1 for update nowait") == 3572
    other.execute("update t set v = 5 where id = 2")
    table.execute("rollback")
    other.execute("commit")


def test_a_commit_on_an_older_schema_is_refused_or_goes_through_whole(table, other):
    table.execute("begin")
    table.execute("insert into t values (3, 3)")
    other.execute("alter table t add column n int default 1")
    assert refused(table, "commit") == 8028
    assert rows(table, "select * from t") == [(1, 10, 1), (2, 20, 1)]


def test_closing_rolls_back(nodes, table):
    gone = SqlSession(nodes.nodes[0])
    gone.use(table.database)
    gone.execute("begin")
    gone.execute("update t set v = 0")
    gone.close()
    table.execute("update t set v = v + 1")
    assert rows(table, "select v from t") == [(11,), (21,)]


# The past


def test_the_past_is_read_by_snapshot_and_as_of(nodes, table):
    ts = int(nodes.nodes[0].cluster.tso.next())
    table.execute("update t set v = 0")
    table.execute("alter table t add column n int")
    assert rows(table, f"select * from t as of timestamp {ts}") == [(1, 10), (2, 20)]
    table.execute(f"set @@tidb_snapshot = '{ts}'")
    assert rows(table, "select * from t") == [(1, 10), (2, 20)]
    assert [row[0] for row in table.execute("desc t").rows] == ["id", "v"]
    assert refused(table, "delete from t") == 1105
    table.execute("set @@tidb_snapshot = ''")
    assert rows(table, "select v, n from t") == [(0, None), (0, None)]


def test_the_future_is_refused(table):
    assert refused(table, "set @@tidb_snapshot = '2199-01-01 00:00:00'") == 1105
    assert refused(table, "select * from t as of timestamp '2199-01-01'") == 1105


# Variables


@pytest.mark.parametrize(
    ("statement", "query", "value"),
    [
        ("set names utf8mb4", "select @@character_set_client", "utf8mb4"),
        ("set @a = 5", "select @a + 1", 6),
        ("set @a := 'x', @b = 2", "select concat(@a, @b)", "x2"),
        ("set sql_mode = 'STRICT_TRANS_TABLES'", "select @@sql_mode", "STRICT_TRANS_TABLES"),
        ("set session wait_timeout = 100", "select @@wait_timeout", 100),
        ("set time_zone = '+08:00'", "select @@time_zone", "+08:00"),
        ("set character_set_results = NULL", "select @@character_set_results", ""),
        ("set session transaction isolation level repeatable read", "select @@tx_isolation", "REPEATABLE-READ"),
    ],
)
def test_a_variable_is_set(session, statement, query, value):
    session.execute(statement)
    assert rows(session, query) == [(value,)]


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("set nope = 1", 1193),
        ("select @@nope", 1193),
        ("set version = 'x'", 1238),
        ("set autocommit = 7", 1231),
        ("set time_zone = 'Nowhere/City'", 1298),
        ("set sql_mode = 'ANSI_QUOTES'", 1235),
        ("set sql_mode = 'NOPE'", 1231),
        ("set transaction_isolation = 'SERIALIZABLE'", 1235),
    ],
)
def test_a_variable_is_refused(session, statement, number):
    assert refused(session, statement) == number


def test_a_timestamp_is_shown_in_the_sessions_time_zone(session):
    session.execute("create table z (a timestamp, b datetime)")
    session.execute("set time_zone = '+08:00'")
    session.execute("insert into z values ('2024-01-01 08:00:00', '2024-01-01 08:00:00')")
    session.execute("set time_zone = 'America/New_York'")
    assert rows(session, "select * from z") == [("2023-12-31 19:00:00", "2024-01-01 08:00:00")]


# What is shown


def test_a_table_is_shown_as_it_was_made(session):
    session.execute(
        "create table s (id bigint unsigned not null auto_increment, a varchar(20) collate utf8mb4_general_ci "
        "default 'x''y' comment 'c', b decimal(5,2) not null, c timestamp(3) default current_timestamp(3) on update "
        "current_timestamp(3), d int as (b + 1) virtual, primary key (id), unique key ua (a(5)), key kb (b, a))"
    )
    assert session.execute("show create table s").rows[0][1] == (
        "CREATE TABLE `s` (\n"
        "  `id` bigint unsigned NOT NULL AUTO_INCREMENT,\n"
        "  `a` varchar(20) COLLATE utf8mb4_general_ci DEFAULT 'x''y' COMMENT 'c',\n"
        "  `b` decimal(5,2) NOT NULL,\n"
        "  `c` timestamp(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),\n"
        "  `d` int GENERATED ALWAYS AS (`b` + 1) VIRTUAL,\n"
        "  PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */,\n"
        "  UNIQUE KEY `ua` (`a`(5)),\n"
        "  KEY `kb` (`b`,`a`)\n"
        ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )
    assert rows(session, "desc s") == [
        ("id", "bigint unsigned", "NO", "PRI", None, "auto_increment"),
        ("a", "varchar(20)", "YES", "UNI", "x'y", ""),
        ("b", "decimal(5,2)", "NO", "MUL", None, ""),
        ("c", "timestamp(3)", "YES", "", "CURRENT_TIMESTAMP(3)", "DEFAULT_GENERATED on update CURRENT_TIMESTAMP(3)"),
        ("d", "int", "YES", "", None, "VIRTUAL GENERATED"),
    ]
    keys = [(row[2], row[4], row[1]) for row in session.execute("show index from s").rows]
    assert keys == [("PRIMARY", "id", 0), ("ua", "a", 0), ("kb", "b", 1), ("kb", "a", 1)]


def test_tables_and_databases_are_listed(table):
    schema = table.database
    assert rows(table, "show tables") == [("t",)]
    assert rows(table, "show full tables like 'T%'") == [("t", "BASE TABLE")]
    assert (schema,) in rows(table, "show databases")
    assert rows(table, f"show databases like '{schema}'") == [(schema,)]
    query = f"select table_name, table_type from information_schema.tables where table_schema = '{schema}'"
    assert rows(table, query) == [("t", "BASE TABLE")]
    columns = "select column_name, column_key from information_schema.columns where table_name = 't' and "
    assert rows(table, f"{columns} table_schema = '{schema}'") == [("id", "PRI"), ("v", "")]
    assert rows(table, "show variables like 'autocommit'") == [("autocommit", "ON")]
    assert refused(table, "show nonsense") == 1235


# Prepared


def test_a_prepared_statement_is_checked_and_then_run_with_values(table):
    prepared = table.prepare("select id, v from t where v > ? order by id limit ?")
    assert prepared.parameter_count == 2
    assert [column.name for column in prepared.columns] == ["id", "v"]
    assert rows(table, "select id, v from t where v > ? order by id limit ?", [5, 1]) == [(1, 10)]
    table.execute("insert into t values (?, ?)", [3, None])
    assert rows(table, "select v from t where id = ?", [3]) == [(None,)]


def test_a_statement_is_prepared_as_text(table):
    table.execute("prepare p from 'select v from t where id = ?'")
    table.execute("set @id = 2")
    assert rows(table, "execute p using @id") == [(20,)]
    table.execute("deallocate prepare p")
    assert refused(table, "execute p") == 8111


# Interruption


def test_an_interrupted_statement_ends_with_1317(nodes, table, other):
    other.execute("set innodb_lock_wait_timeout = 1000")
    table.execute("begin")
    table.execute("update t set v = 0 where id = 1")
    other.execute("begin")

    failures = []
    waiting = Thread(target=lambda: failures.append(refused(other, "update t set v = 1 where id = 1")))
    waiting.start()
    while not nodes.nodes[0].cluster.transactions.waits.waiting():
        pass
    other.interrupt()
    waiting.join(20)
    table.execute("rollback")
    assert failures == [1317]
