"""DDLs downstream: once, also when they come again, in the spelling that the downstream takes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.flow.encoder.samples import COMMIT_TS, KEY, column, rows_of, table_of
from tests.mariadb import MariaDb
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tidemill.errors import SinkError
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType, PartitionInfo, TableInfo
from tidemill.model.ts import Ts, compose
from tidemill.sinks.mysql import parse_mysql_uri

TABLE = table_of(column("id", ColumnType.LONG, KEY), schema="ddls", name="t")


@pytest.fixture
def sink(mariadb: MariaDb) -> Iterator[MysqlHalves]:
    mariadb.query("CREATE OR REPLACE DATABASE ddls", "DROP DATABASE IF EXISTS tidb_cdc")
    found = mysql_sink(parse_mysql_uri(mariadb.uri("enable-sync-point=true&sync-point-interval=30s")), None)
    found.recover(START)
    yield found
    found.close()


def event(query: str, kind: ActionType, ts: int, table: TableInfo | None = TABLE, **more: Any) -> DdlEvent:
    fields = {"schema": "ddls", "table": table.name if table else "", "table_info": table, "seq": 0, **more}
    return DdlEvent(Ts(COMMIT_TS + ts), Ts(COMMIT_TS + ts - 1), type=kind, job_type=kind, query=query, **fields)


def tables(mariadb: MariaDb) -> list[str]:
    found = mariadb.query("SELECT table_name FROM information_schema.tables WHERE table_schema='ddls' ORDER BY 1")
    return [row[0] for row in found]


def again(sink: MysqlHalves, *events: DdlEvent) -> None:
    """Run events, lose all memory of it, and run them again."""
    for one in events:
        sink.ddl(one)
    sink.recover(START)
    for one in events:
        sink.ddl(one)


def test_tables_that_swap_their_names_swap_them_once(sink: MysqlHalves, mariadb: MariaDb) -> None:
    mariadb.query("CREATE TABLE ddls.a (one INT)", "CREATE TABLE ddls.b (two INT)")
    pairs = (("a", "tmp"), ("b", "a"), ("tmp", "b"))
    renames = [
        event("", ActionType.RENAME_TABLE, 10, table_of(*TABLE.columns, name=new, schema="ddls"), seq=seq,
              pre_schema="ddls", pre_table=old)
        for seq, (old, new) in enumerate(pairs)
    ]  # fmt: skip
    again(sink, *renames)
    assert mariadb.query("SELECT two FROM ddls.a") == mariadb.query("SELECT one FROM ddls.b") == []


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_a_rename_that_went_through_unnoticed_is_recognised(sink: MysqlHalves, mariadb: MariaDb, seq: int) -> None:
    mariadb.query("CREATE TABLE ddls.old (one INT)")
    new = table_of(*TABLE.columns, name="new", schema="ddls")
    rename = event("", ActionType.RENAME_TABLE, 10, new, seq=seq, pre_schema="ddls", pre_table="old")
    sink.ddl(rename)
    mariadb.query("UPDATE tidb_cdc.tidemill_ddl_v2 SET is_done = 0")  # as if we had died before noting it
    sink.ddl(rename)
    assert tables(mariadb) == ["new"]


def test_an_exchange_that_went_through_unnoticed_is_not_undone(sink: MysqlHalves, mariadb: MariaDb) -> None:
    mariadb.query(
        "CREATE TABLE ddls.t (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))",
        "CREATE TABLE ddls.n (id INT PRIMARY KEY)",
        "INSERT INTO ddls.n VALUES (5)",
    )
    exchange = event(
        "ALTER TABLE `ddls`.`t` EXCHANGE PARTITION `p` WITH TABLE `ddls`.`n`",
        ActionType.EXCHANGE_PARTITION, 10, pre_schema="ddls", pre_table="n",
    )  # fmt: skip
    sink.ddl(exchange)
    mariadb.query("UPDATE tidb_cdc.tidemill_ddl_v2 SET is_done = 0")
    sink.ddl(exchange)
    assert mariadb.query("SELECT id FROM ddls.t") == [(5,)]


def partitioned(count: int, *columns: str) -> TableInfo:
    made = tuple(column(each, ColumnType.LONG) for each in columns)
    partitions = tuple(PartitionInfo(100 + i, f"p{i}") for i in range(count))
    return replace(TABLE, columns=(*TABLE.columns, *made), partitions=partitions)


@pytest.mark.parametrize(
    ("query", "kind", "after"),
    [
        ("alter table t coalesce partition 1", ActionType.REORGANIZE_PARTITION, partitioned(3, "a", "b")),
        ("alter table t add partition partitions 2", ActionType.REORGANIZE_PARTITION, partitioned(6, "a", "b")),
        ("alter table t rename column a to b, rename column b to a", ActionType.MULTI_SCHEMA_CHANGE,
         partitioned(4, "b", "a")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_noted", [False, True])
def test_what_would_not_be_the_same_twice_goes_through_once(
    sink: MysqlHalves, mariadb: MariaDb, query: str, kind: ActionType, after: TableInfo, is_noted: bool
) -> None:
    mariadb.query("CREATE TABLE ddls.t (id INT PRIMARY KEY, a INT, b INT) PARTITION BY HASH (id) PARTITIONS 4")
    change = event(query, kind, 10, after, pre_table_info=partitioned(4, "a", "b"))
    sink.ddl(change)
    if not is_noted:
        mariadb.query("UPDATE tidb_cdc.tidemill_ddl_v2 SET is_done = 0")  # as if we, or the server, had died before
    sink.ddl(change)
    of_table = "WHERE table_schema = 'ddls' AND table_name = 't' ORDER BY ordinal_position"
    columns = mariadb.query(f"SELECT column_name FROM information_schema.columns {of_table}")
    partitions = mariadb.query("SELECT COUNT(*) FROM information_schema.partitions WHERE table_schema = 'ddls'")
    assert [name for (name,) in columns] == [c.name for c in after.columns]
    assert partitions == [(len(after.partitions),)]


def test_a_table_made_like_another_needs_no_other(mariadb: MariaDb) -> None:
    """The other may be filtered out, or have changed since: the table is made as it is upstream, its times in UTC."""
    mariadb.query("CREATE OR REPLACE DATABASE ddls", "DROP DATABASE IF EXISTS tidb_cdc")
    sink = mysql_sink(parse_mysql_uri(mariadb.uri("time-zone=%2B08:00")), None)
    sink.recover(START)
    creation = "CREATE TABLE `t` (`id` int NOT NULL, `at` timestamp NULL DEFAULT '2020-01-01 00:00:00', KEY `i` (`at`))"
    again(sink, event("create table t like nowhere", ActionType.CREATE_TABLE, 1, creation=creation))
    mariadb.query("INSERT INTO ddls.t (id) VALUES (1)")
    assert mariadb.query("SELECT UNIX_TIMESTAMP(at) FROM ddls.t USE INDEX (i)") == [(1577836800,)]
    sink.close()


def test_columns_and_indexes_that_are_there_already_are_taken_as_done(sink: MysqlHalves, mariadb: MariaDb) -> None:
    again(
        sink,
        event("create table t (id int primary key)", ActionType.CREATE_TABLE, 1),
        event("alter table t add column v int default 7", ActionType.ADD_COLUMN, 2),
        event("alter table t add index iv (v)", ActionType.ADD_INDEX, 3),
        event("alter table t drop index iv", ActionType.DROP_INDEX, 4),
        event("alter table t tiflash replica 1", ActionType.SET_TIFLASH_REPLICA, 5),
    )
    mariadb.query("INSERT INTO ddls.t (id) VALUES (1)")
    assert mariadb.query("SELECT id, v FROM ddls.t") == [(1, 7)]


def test_a_dropped_table_can_be_brought_back_and_is_forgotten_an_hour_later(
    sink: MysqlHalves, mariadb: MariaDb
) -> None:
    mariadb.query("CREATE TABLE ddls.t (id INT PRIMARY KEY)", "INSERT INTO ddls.t VALUES (1)")
    sink.ddl(event("drop table t", ActionType.DROP_TABLE, 1))
    assert tables(mariadb) == []
    back = table_of(*TABLE.columns, name="t2", schema="ddls")
    sink.ddl(event("flashback table t to t2", ActionType.RECOVER_TABLE, 2, back))
    assert mariadb.query("SELECT id FROM ddls.t2") == [(1,)]
    sink.ddl(event("drop table t2", ActionType.DROP_TABLE, 3, back))
    sink.publish(compose((COMMIT_TS >> 18) + 3_700_000))
    with pytest.raises(SinkError, match="Copy it as of"):
        sink.ddl(event("recover table t", ActionType.RECOVER_TABLE, 4))


@pytest.mark.parametrize("is_again", [False, True], ids=["at once", "after a crash"])
def test_a_table_that_comes_back_and_was_not_kept_gets_its_rows_from_the_upstream(
    mariadb: MariaDb, is_again: bool
) -> None:
    mariadb.query("CREATE OR REPLACE DATABASE ddls", "DROP DATABASE IF EXISTS tidb_cdc")
    back = table_of(*TABLE.columns, name="t_old", schema="ddls", table_id=7)
    asked: list[tuple[int, tuple[int, ...], int]] = []

    def rescan(table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[RowBatch]:
        asked.append((table.id, tuple(physical_ids), ts))
        yield rows_of(table, (None, {"id": 1}))
        if is_again and len(asked) == 1:
            raise SinkError("gone")
        yield rows_of(table, (None, {"id": 2}))

    sink = mysql_sink(parse_mysql_uri(mariadb.uri()), None, rescan=rescan)
    sink.recover(START)
    creation = "CREATE TABLE `t_old` (`id` int NOT NULL, PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */)"
    recovered = event("flashback table t to t_old", ActionType.RECOVER_TABLE, 2, back, creation=creation)
    if is_again:
        with pytest.raises(SinkError, match="gone"):
            sink.ddl(recovered)
    again(sink, recovered)
    assert mariadb.query("SELECT id FROM ddls.t_old") == [(1,), (2,)]
    assert asked == [(7, (7,), COMMIT_TS + 2)] * (2 if is_again else 1)
    sink.close()


def test_a_default_typed_in_another_time_zone_is_the_same_moment_downstream(
    sink: MysqlHalves, mariadb: MariaDb
) -> None:
    mariadb.query("CREATE TABLE ddls.t (id INT PRIMARY KEY)", "INSERT INTO ddls.t VALUES (1)")
    after = table_of(
        *TABLE.columns, column("at", ColumnType.TIMESTAMP, default="2026-01-01 00:00:00"), name="t", schema="ddls"
    )
    query = "alter table t add column at timestamp default '2026-01-01 08:00:00'"
    sink.ddl(event(query, ActionType.ADD_COLUMN, 1, after, pre_table_info=TABLE))
    sink.ddl(event("alter table t add column u datetime default '2026-01-01'", ActionType.ADD_COLUMN, 2, after))
    mariadb.query("INSERT INTO ddls.t (id) VALUES (2)")
    assert mariadb.query("SELECT id, UNIX_TIMESTAMP(at) FROM ddls.t") == [(1, 1767225600), (2, 1767225600)]


def test_a_ddl_that_the_downstream_refuses_is_shown(sink: MysqlHalves) -> None:
    with pytest.raises(
        SinkError, match=r"refused the DDL on ddls\.t .*1064.*The statement is: alter table t frobnicate"
    ):
        sink.ddl(event("alter table t frobnicate", ActionType.MODIFY_COLUMN, 1))


def test_sync_points_are_recorded_at_round_moments(sink: MysqlHalves, mariadb: MariaDb) -> None:
    due = sink.next_barrier(Ts(COMMIT_TS))
    assert due is not None
    assert (due >> 18) % 30_000 == 0
    sink.sync(Ts(COMMIT_TS + 5))
    sink.commit(due, [])  # others may still be behind
    assert mariadb.query("SHOW TABLES FROM tidb_cdc LIKE 'syncpoint_v1'") == []
    state = sink.sync(due)
    sink.sync(due)
    found = mariadb.query("SELECT changefeed, primary_ts, secondary_ts FROM tidb_cdc.syncpoint_v1")
    assert found == [("default", str(due), "0")]
    assert state["sync_point_ts"] == due
