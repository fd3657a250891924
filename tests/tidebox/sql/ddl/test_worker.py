"""DDL statements on SQL nodes over the store: jobs, their states, rows that are filled in, and going back."""

import pytest

from tests.histories import load
from tests.tidebox.sql.plain_ddl import session_on
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        yield upstream.cluster


@pytest.fixture
def sql(cluster, request):
    """SQL nodes, and a session in a database of its own on each."""
    nodes = SqlNodes(cluster, 2)
    first = session_on(nodes.nodes[0])
    schema = f"db{abs(hash(request.node.name)) % 10**9}"
    first.execute(f"create database {schema}")
    nodes.schema = schema
    nodes.sessions = [session_on(node, schema) for node in nodes.nodes]
    yield nodes
    for session in (first, *nodes.sessions):
        session.close()


def run(session, *statements):
    for statement in statements:
        result = session.execute(statement)
    return result


def rows(session, query):
    return [tuple(row) for row in _pairs(session.execute(query).rows)]


def _pairs(found):
    return zip(*(c.to_pylist() for c in found.columns), strict=True) if hasattr(found, "num_columns") else found


def test_a_table_is_created_filled_altered_and_read(sql):
    session = sql.sessions[0]
    run(
        session,
        "create table t (id int primary key, v varchar(10))",
        "insert into t values (1, 'one'), (2, 'two')",
        "alter table t add column n int not null default 7 after id",
        "insert into t values (3, 33, 'three')",
        "alter table t add unique key uv (v)",
    )
    assert rows(session, "select * from t order by id") == [(1, 7, "one"), (2, 7, "two"), (3, 33, "three")]
    with pytest.raises(SqlError, match="1062"):
        session.execute("insert into t values (4, 4, 'one')")
    session.execute("admin check table t")
    run(session, "alter table t drop column n", "alter table t drop index uv", "rename table t to u")
    assert rows(session, "select * from u order by id") == [(1, "one"), (2, "two"), (3, "three")]
    run(session, "truncate table u", "drop table u")
    with pytest.raises(SqlError, match="1146"):
        session.execute("select * from u")


def test_another_node_knows_of_a_table_when_its_statement_returns(sql):
    sql.sessions[0].execute("create table t (id int primary key)")
    sql.sessions[1].execute("insert into t values (1)")
    assert rows(sql.sessions[0], "select * from t") == [(1,)]


def test_a_lossy_change_of_type_rewrites_rows_and_indexes(sql):
    session = sql.sessions[0]
    run(
        session,
        "create table t (id int primary key, v varchar(10), key kv (v), key kiv (id, v))",
        "insert into t values (1, '10'), (2, null), (3, '-5')",
        "alter table t modify column v int",
        "insert into t values (4, 100)",
    )
    assert rows(session, "select id, v from t order by v, id") == [(2, None), (3, -5), (1, 10), (4, 100)]
    session.execute("admin check table t")


def test_a_value_that_cannot_be_cast_takes_the_change_back(sql):
    session = sql.sessions[0]
    run(session, "create table t (id int primary key, v varchar(10), key (v))", "insert into t values (1, 'abc')")
    with pytest.raises(SqlError, match=r"1292|1366|1265"):
        session.execute("alter table t modify column v int")
    assert rows(session, "select * from t") == [(1, "abc")]
    document = sql.nodes[0].cache.current().table(sql.schema, "t").document
    assert [c["name"]["O"] for c in document["cols"]] == ["id", "v"]
    assert [i["idx_name"]["O"] for i in document["index_info"]] == ["v"]


def test_a_duplicate_takes_a_unique_index_back(sql):
    session = sql.sessions[0]
    run(session, "create table t (id int primary key, v int)", "insert into t values (1, 5), (2, 5)")
    with pytest.raises(SqlError, match=r"1062.*'5' for key 't.uv'"):
        session.execute("alter table t add unique key uv (v)")
    run(session, "insert into t values (3, 5)", "admin check table t")
    assert sql.nodes[0].cache.current().table(sql.schema, "t").document["index_info"] == []


def test_not_null_waits_for_rows_without_nulls(sql):
    session = sql.sessions[0]
    run(session, "create table t (id int primary key, v int)", "insert into t values (1, null)")
    with pytest.raises(SqlError, match="1265"):
        session.execute("alter table t modify column v int not null")
    run(session, "insert into t values (2, null)", "delete from t", "alter table t modify column v int not null")
    with pytest.raises(SqlError, match="1048"):
        session.execute("insert into t values (3, null)")


def test_several_changes_come_into_force_together(sql):
    session = sql.sessions[0]
    run(
        session,
        "create table t (id int primary key, a int, b varchar(10), c int, index ia (a))",
        "insert into t values (1, 1, 'b', 1), (2, 2, 'bb', 2)",
        "alter table t add column d int default 4, drop column c, modify column a bigint unsigned, "
        "rename index ia to ia2, add index ib (b)",
        "insert into t values (3, 18446744073709551615, 'bbb', 5)",
        "admin check table t",
    )
    assert rows(session, "select * from t order by id") == [
        (1, 1, "b", 4),
        (2, 2, "bb", 4),
        (3, 18446744073709551615, "bbb", 5),
    ]


def test_a_clause_that_fails_takes_the_others_back(sql):
    session = sql.sessions[0]
    run(session, "create table t (id int primary key, v int, w int)")
    session.execute("insert into t values (1, 5, 5), (2, 5, 5)")
    before = sql.nodes[0].cache.current().table(sql.schema, "t").document
    with pytest.raises(SqlError, match="1062"):
        session.execute("alter table t add column n int, add unique key uv (v), drop column w")
    after = sql.nodes[0].cache.current().table(sql.schema, "t").document
    assert [c["name"]["O"] for c in after["cols"]] == [c["name"]["O"] for c in before["cols"]]
    assert not after["index_info"]
    assert rows(session, "select * from t order by id") == [(1, 5, 5), (2, 5, 5)]


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("create table t (id int)", 1050),
        ("create table u (a int, a int)", 1060),
        ("create table u (a int primary key, b int primary key)", 1068),
        ("create table u (a int, key (b))", 1072),
        ("create table u (a text, key (a))", 1170),
        ("create table u (a char(300))", 1074),
        ("create table u (a int default 'x')", 1067),
        ("create table u (a blob default 'x')", 1101),
        ("drop table nosuch", 1051),
        ("truncate table nosuch", 1146),
        ("rename table nosuch to u", 1146),
        ("alter table t add column id int", 1060),
        ("alter table t drop column nosuch", 1091),
        ("alter table t drop column id", 8200),
        ("alter table t drop index nosuch", 1091),
        ("alter table t add index (nosuch)", 1072),
        ("alter table t modify column nosuch int", 1054),
        ("alter table t drop primary key", 8200),
        ("alter table t add primary key (id)", 1068),
        ("alter table t drop column v, add column v int", 1060),
        ("alter table t add column a int, add column a int", 8200),
        ("alter table t add column a int, add column b int after a", 1054),
        ("create view w as select 1", 1235),
        ("create table p (a int) partition by hash (a) partitions 2", 1235),
        ("create table", 1064),
        ("create database test", 1007),
        ("drop database nosuch", 1008),
    ],
)
def test_what_is_wrong_is_refused_by_its_number(sql, statement, number):
    session = sql.sessions[0]
    session.execute("create table t (id int primary key, v int)")
    with pytest.raises(SqlError) as refused:
        session.execute(statement)
    assert refused.value.number == number


def test_a_loaded_history_is_altered_and_written_on():
    folder = load("ddl").folder
    with EmbeddedUpstream.start(load=folder / "history.parquet", resolved_interval_seconds=3600) as upstream:
        session = session_on(SqlNodes(upstream.cluster, lease_seconds=3600).nodes[0], "shop")
        before = rows(session, "select * from a order by id")
        run(
            session,
            "alter table a add column later int default 5, add unique key uid (id, v)",
            "insert into a (id, v) values (1000, 'new')",
            "create table fresh (id int primary key auto_increment, v decimal(5,2))",
            "insert into fresh (v) values (1.25)",
            "admin check table a",
        )
        after = rows(session, "select * from a order by id")
        assert after[:-1] == [(*row, 5) for row in before]
        assert after[-1][0] == 1000
        assert len(rows(session, "select * from fresh")) == 1
        with pytest.raises(SqlError, match="1235"):
            session.execute("alter table pt add column x int")
        session.close()
