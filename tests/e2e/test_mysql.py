"""SQL on the embedded TiDB into a real MariaDB, by way of Spark: rows and DDLs, copied first or followed throughout."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sqlclient import Client
from tests.mariadb import MariaDb, need_mariadb, running
from tidemill.model.changefeed import ChangefeedConfig, ColumnSelection, EventFilter
from tidemill.model.ts import Ts
from tidemill.server import Changefeed, RunOptions, Snapshot, run_changefeed
from tidemill.store.upstream import EmbeddedUpstream

pytestmark = pytest.mark.spark

TABLES = [
    "create table shop.people (id bigint primary key auto_increment, mail varchar(40) unique, name varchar(40), n int)",
    "create table shop.kinds (code varchar(8) primary key, b bit(9), d decimal(12, 3), e enum('x', 'y'), f double,"
    " j json, s set('a', 'b'), t datetime(3), u timestamp(6) null, y year, v varbinary(8), w text, unique key (d))",
    "create table shop.pairs (a int, b varchar(10), v int, primary key (a, b), key by_v (v))",
]
BEFORE = [
    "insert into shop.people (mail, name, n) values ('ada@x', 'ada', 1), ('bob@x', 'bob', 2), ('eve@x', 'eve', 3)",
    "insert into shop.kinds values ('one', b'101', 1.5, 'x', 0.1, '{\"k\": [1, 2.5, null]}', 'a,b',"
    " '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901', 2026, x'00ff41', 'line\\nbreak \\\\ quote\\'')",
    "insert into shop.kinds (code) values ('two')",
    "insert into shop.pairs values (1, 'p', 10), (1, 'q', 11), (2, 'p', 20)",
]
AFTER = [
    "update shop.people set n = n * 10 where id <= 2",
    "BEGIN; update shop.people set mail = 'tmp' where id = 1; update shop.people set mail = 'ada@x' where id = 2;"
    " update shop.people set mail = 'bob@x' where id = 1; COMMIT",  # two unique keys swapped in one transaction
    "update shop.pairs set a = 3 where a = 2",  # the key itself
    "alter table shop.people add column state varchar(8) not null default 'new'",
    "insert into shop.people (mail, name, n, state) values ('dan@x', 'dan', 4, 'old')",
    "delete from shop.kinds where code = 'two'",
    "insert into shop.kinds (code, f, w) values ('three', 1e300, ''), ('four', -0.0, null)",
    "alter table shop.pairs add index by_b (b), modify column v bigint",
    "create table shop.late (id int primary key, v varchar(10))",
    "insert into shop.late values (1, 'a'), (2, 'b'), (3, 'c')",
    "rename table shop.late to shop.later",
    "delete from shop.later where id = 2",
    "truncate table shop.pairs",
    "insert into shop.pairs values (9, 'z', 99)",
]
Run = Callable[..., Snapshot]


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=3, sql_port=0, sql_nodes=2, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.fixture
def run(spark: Any, mariadb: MariaDb, upstream: EmbeddedUpstream, tmp_path: Path) -> Iterator[Run]:
    def run(start_ts: int, target_ts: int, **more: Any) -> Snapshot:
        options = RunOptions(
            pd=upstream.pd_address,
            sink_uri=mariadb.uri("worker-count=4"),
            data_dir=tmp_path / "data",
            start_ts=Ts(start_ts),
            target_ts=Ts(target_ts),
            **more,
        )
        finished, last = run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)
        assert finished
        return last

    yield run
    mariadb.query("drop database if exists shop")


def execute(upstream: EmbeddedUpstream, statements: list[str]) -> None:
    with Client(upstream.sql_addresses[0]) as client:
        for statement in statements:
            for part in statement.split("; "):
                client.run(part)


def dumps(upstream: EmbeddedUpstream, mariadb: MariaDb) -> tuple[dict[str, Any], dict[str, Any]]:
    """All tables of both sides, each read by a plain client."""

    def dump(connection: Any) -> dict[str, Any]:
        found = {}
        with connection.cursor() as cursor:
            cursor.execute("set time_zone = '+00:00'")
            cursor.execute("show full tables from shop where table_type = 'BASE TABLE'")
            for table, *_ in cursor.fetchall():
                cursor.execute(f"select * from shop.`{table}`")
                names = [column[0] for column in cursor.description]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
                found[table] = sorted(map(_plain, rows))
        return found

    import pymysql

    host, port = upstream.sql_addresses[0].split(":")
    theirs, ours = pymysql.connect(host=host, port=int(port), user="root"), mariadb.connect()
    with theirs, ours:
        return dump(theirs), dump(ours)


def _plain(row: dict[str, Any]) -> str:
    import json

    if row.get("j") is not None:
        row["j"] = json.dumps(json.loads(row["j"]), sort_keys=True)
    return repr(sorted(row.items()))


@pytest.mark.parametrize("copies", [True, False], ids=["copied first", "followed from the start"])
def test_mariadb_holds_what_select_shows(run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream, copies: bool) -> None:
    start_ts = upstream.tso()
    execute(upstream, ["create database shop", *TABLES, *BEFORE])
    if copies:
        start_ts = upstream.tso()
    execute(upstream, AFTER)
    last = run(start_ts, upstream.tso(), initial_copy=copies)
    assert last.totals.ddls == (5 if copies else 9)
    theirs, ours = dumps(upstream, mariadb)
    assert set(theirs) == {"people", "kinds", "pairs", "later"}
    assert ours == theirs


def test_a_copy_that_was_stopped_goes_on_where_it_was(
    run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.copying._PARTS_A_BATCH", 2)
    execute(upstream, ["create database shop", TABLES[0]])
    values = ", ".join(f"({i}, 'm{i}', 'n{i}', {i})" for i in range(1, 1001))
    execute(upstream, [f"insert into shop.people values {values}"])
    table_id = _table_id(upstream, "people")
    for handle in range(100, 1000, 100):
        upstream.split(_record_key(table_id, handle))
    start_ts = upstream.tso()
    execute(upstream, ["update shop.people set n = -n where id % 3 = 0", "delete from shop.people where id % 10 = 0"])
    target_ts = upstream.tso()
    options = RunOptions(
        pd=upstream.pd_address, sink_uri=mariadb.uri("worker-count=4"), data_dir=tmp_path / "data",
        start_ts=start_ts, target_ts=target_ts, initial_copy=True,
    )  # fmt: skip
    feed = Changefeed(options)
    try:
        feed.start()
        for _ in range(2):
            assert not feed.poll()
        assert feed.look().stage == "copying 4/10 parts of tables"
    finally:
        feed.close()
    (copied,) = mariadb.query("select count(*) from shop.people")
    assert copied == (399,)
    last = run(start_ts, target_ts, initial_copy=True)
    assert last.checkpoint_ts == target_ts
    theirs, ours = dumps(upstream, mariadb)
    assert len(ours["people"]) == 900
    assert ours == theirs


def test_filters_and_columns_are_those_of_the_file(run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream) -> None:
    config = ChangefeedConfig(
        rules=("shop.*", "!shop.pairs"),
        event_filters=(EventFilter(("shop.people",), ignore_event=("delete",), ignore_insert_value_expr="n > 2"),),
        column_selectors=(ColumnSelection(("shop.people",), ("*", "!name")),),
        ignore_ineligible_table=True,
    )
    start_ts = upstream.tso()
    execute(upstream, ["create database shop", *TABLES, *BEFORE, "delete from shop.people where id = 1"])
    run(start_ts, upstream.tso(), config=config)
    assert {row[0] for row in mariadb.query("show tables from shop")} == {"people", "kinds"}
    assert mariadb.query("select id, mail, name, n from shop.people order by id") == [
        (1, "ada@x", None, 1),
        (2, "bob@x", None, 2),
    ]


def _table_id(upstream: EmbeddedUpstream, name: str) -> int:
    with Client(upstream.sql_addresses[0]) as client:
        ((found,),) = client.run(
            f"select tidb_table_id from information_schema.tables where table_schema = 'shop' and table_name = '{name}'"
        )
    return int(found)


def _record_key(table_id: int, handle: int) -> bytes:
    from tidemill.upstream.keys import record_prefix

    return record_prefix(table_id) + (handle ^ (1 << 63)).to_bytes(8, "big")
