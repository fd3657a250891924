"""A changefeed's schema store follows the jobs through the change stream of the job table."""

from dataclasses import replace

import pytest

from tests.tidebox.sql.ddl.versions import versions
from tests.tidebox.sql.plain_ddl import session_on
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import SqlError
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.schema.store import SchemaStore
from tidemill.model.ts import Ts
from tidemill.tidb.keys import record_range
from tidemill.tidb.meta import JOB_TABLE_ID

STATEMENTS = [
    "create database shop",
    "create database shop2 collate utf8mb4_general_ci",
    "use shop",
    "create table a (id int primary key, v varchar(10), n int, key kn (n))",
    "insert into a values (1, '1', 1), (2, '2', 2)",
    "alter table a add column d int not null default 5 after id",
    "alter table a modify column v varchar(100)",
    "alter table a modify column v int",
    "alter table a change column n m bigint unsigned first",
    "alter table a drop column d",
    "alter table a add unique index um (m), add column e json, drop index kn",
    "alter table a add unique index bad (e)",
    "insert into a (id, v, m) values (3, 1, 7), (4, 1, 8)",
    "alter table a add unique index uv (v)",
    "create table b like a",
    "create table c (x varchar(20) not null, y datetime(3) default current_timestamp(3), primary key (x) nonclustered)",
    "alter table c drop primary key",
    "alter table c add unique key ux (x)",
    "rename table b to shop2.b2, c to c2",
    "truncate table shop2.b2",
    "alter table a comment 'changed', auto_increment = 100",
    "alter table a rename index um to um2",
    "create table gone (id int primary key)",
    "drop table gone",
    "alter database shop2 collate utf8mb4_bin",
    "create database shop3",
    "create table shop3.t (id int primary key)",
    "drop database shop3",
]


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=3600) as upstream:
        yield upstream.cluster


def test_after_each_statement_the_schema_store_has_the_tables_that_sessions_see(cluster):
    node = SqlNodes(cluster).nodes[0]
    session = session_on(node)
    store = None
    told = 0
    compared = 0
    for statement in STATEMENTS:
        try:
            session.execute(statement)
        except SqlError:
            assert "bad" in statement or "uv" in statement
        now = int(cluster.tso.next())
        if store is None:
            pairs = [*Transaction(cluster).scan(b"m", b"n"), *Transaction(cluster).scan(*record_range(JOB_TABLE_ID))]
            store = SchemaStore.from_snapshot(pairs, Ts(now))
            continue
        changes = versions(cluster, *record_range(JOB_TABLE_ID))
        store.apply(changes[told:])
        told = len(changes)
        for schema in ("shop", "shop2"):
            for table in node.cache.current().tables(schema) if node.cache.current().has_database(schema) else ():
                known = store.table(table.id, now)
                if table.info.is_eligible:
                    assert known is not None
                    assert replace(known, version_ts=table.info.version_ts) == table.info
                    compared += 1
    assert compared > 40
    session.close()
