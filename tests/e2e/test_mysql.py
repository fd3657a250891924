"""SQL on the embedded TiDB into a real MariaDB, by way of Spark: rows and DDLs, copied first or followed throughout."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.e2e.processes import Command
from tests.e2e.shop import AFTER, BEFORE, LEFT, TABLES
from tests.e2e.sqlclient import Client
from tests.mariadb import MariaDb, need_mariadb, running
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions, Status
from tidemill.capture.running import run_changefeed
from tidemill.model.changefeed import ChangefeedConfig, ColumnSelection, EventFilter
from tidemill.model.ts import Ts

pytestmark = pytest.mark.spark

Run = Callable[..., Status]


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
    def run(start_ts: int, target_ts: int, **more: Any) -> Status:
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
    """All tables of both sides as text, each read by a plain client; nothing of ours has a part in it."""
    host, port = upstream.sql_addresses[0].split(":")
    theirs = pymysql.connect(host=host, port=int(port), user="root", autocommit=True, conv={})
    with theirs, mariadb.connect(conv={}) as ours:
        return dump(theirs), dump(ours)


def dump(connection: Any) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("set time_zone = '+00:00'")
        cursor.execute(
            "select table_name, column_name, data_type from information_schema.columns where table_schema = 'shop'"
        )
        columns: dict[str, dict[str, str]] = {}
        for table, column, kind in map(_texts, cursor.fetchall()):
            columns.setdefault(str(table), {})[str(column)] = str(kind).lower()
        found = {}
        for table, kinds in columns.items():
            names = sorted(kinds)
            cursor.execute(f"select {', '.join(_exact(name, kinds[name]) for name in names)} from shop.`{table}`")
            rows = [dict(zip(names, _texts(row), strict=True)) for row in cursor.fetchall()]
            found[table] = sorted(repr([(n, _plain(v, kinds[n])) for n, v in row.items()]) for row in rows)
    return found


def _texts(row: Any) -> list[str | None]:
    return [value.decode("latin-1") if isinstance(value, bytes) else value for value in row]


def _exact(name: str, kind: str) -> str:
    """So that the server's text says all: both print FLOAT in digits of their own."""
    if kind in ("float", "double"):
        return f"`{name}` + 0e0"
    return f"hex(`{name}`)" if kind.endswith(("blob", "binary", "text", "char")) or kind == "bit" else f"`{name}`"


def _plain(value: str | None, kind: str) -> object:
    if value is None:
        return None
    if kind == "json" or (kind == "longtext" and _is_document(value)):
        return json.dumps(json.loads(bytes.fromhex(value) if kind == "longtext" else value), sort_keys=True)
    return float(value) if kind in ("float", "double") else value


def _is_document(value: str) -> bool:
    """MariaDB keeps JSON as LONGTEXT."""
    try:
        return isinstance(json.loads(bytes.fromhex(value)), dict | list)
    except ValueError:
        return False


@pytest.mark.parametrize("copies", [True, False], ids=["copied first", "followed from the start"])
def test_mariadb_holds_what_select_shows(
    run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream, tmp_path: Path, copies: bool
) -> None:
    """By the commands as a user gives them, and by a dump of both sides."""
    start_ts = upstream.tso()
    execute(upstream, ["create database shop", *TABLES, *BEFORE])
    if copies:
        start_ts = upstream.tso()
    execute(upstream, AFTER)
    target_ts = upstream.tso()
    places: dict[str, Any] = {"pd": upstream.pd_address, "sink_uri": mariadb.uri("worker-count=4")}
    places |= {"data_dir": tmp_path / "data"}
    if copies:
        with Command(tmp_path, "run", "--initial-scan", start_ts=start_ts, target_ts=target_ts, **places) as command:
            assert command.wait() == 0, command.errors
    else:
        run(start_ts, target_ts)
    execute(upstream, ["update shop.people set n = -1"])  # behind the checkpoint, at which both are compared
    with Command(tmp_path, "verify", output="json", **places) as command:
        assert command.wait() == 0, command.output + command.errors
    document = json.loads(command.output)
    assert (document["equal"], document["ts"]) == (True, target_ts)
    assert {t["table"] for t in document["tables"]} == {f"shop.{table}" for table in LEFT}
    run(start_ts, upstream.tso())
    theirs, ours = dumps(upstream, mariadb)
    assert set(theirs) == LEFT
    assert ours == theirs


def test_a_copy_alone_ends_where_it_began(
    run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    execute(upstream, ["create database shop", *TABLES, *BEFORE])
    start_ts = upstream.tso()
    execute(upstream, ["update shop.people set n = -1"])  # behind the copy
    places: dict[str, Any] = {"pd": upstream.pd_address, "sink_uri": mariadb.uri(""), "data_dir": tmp_path / "data"}
    with Command(tmp_path, "run", "--once", start_ts=start_ts, output="json", **places) as command:
        assert command.wait() == 0, command.errors
    document = json.loads(command.output)
    assert (document["finished"], document["checkpoint_ts"]) == (True, start_ts)
    with Command(tmp_path, "verify", output="json", **places) as command:
        assert command.wait() == 0, command.output + command.errors
    document = json.loads(command.output)
    assert (document["equal"], document["ts"]) == (True, start_ts)


def test_a_copy_that_was_stopped_goes_on_where_it_was(
    run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.capture.copying._PARTS_A_BATCH", 2)
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
    shown: list[str] = []
    try:
        feed.start()
        for _ in range(2):
            assert not feed.poll(on_wait=lambda: shown.append(feed.status().stage))
        now = feed.status()
        assert (now.stage, now.totals.rows, now.totals.batches) == ("copying 0/1 table, 4/10 parts", 399, 2)
        assert set(shown) == {"copying 0/1 table, 0/10 parts", "copying 0/1 table, 2/10 parts"}
    finally:
        feed.close()
    (copied,) = mariadb.query("select count(*) from shop.people")
    assert copied == (399,)
    last = run(start_ts, target_ts, initial_copy=True)
    assert last.checkpoint_ts == target_ts
    theirs, ours = dumps(upstream, mariadb)
    assert len(ours["people"]) == 900
    assert ours == theirs


def test_a_copy_makes_what_has_no_rows_to_copy(run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream) -> None:
    """Tables without a key and databases without a table: later DDLs ask for them."""
    execute(upstream, ["create database shop", "create database bare", "create table shop.log (v int not null)"])
    execute(upstream, ["insert into shop.log values (1), (2)"])
    start_ts = upstream.tso()
    execute(upstream, ["alter table shop.log add primary key (v)", "create table bare.late (id int primary key)"])
    execute(upstream, ["insert into bare.late values (3)"])
    try:
        run(start_ts, upstream.tso(), initial_copy=True)
        assert mariadb.query("select v from shop.log order by v") == [(1,), (2,)]
        assert mariadb.query("select id from bare.late") == [(3,)]
    finally:
        mariadb.query("drop database if exists bare")


def test_filters_and_columns_are_those_of_the_file(run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream) -> None:
    config = ChangefeedConfig(
        rules=("shop.*", "!shop.pairs"),
        event_filters=(EventFilter(("shop.people",), ignore_event=("delete",), ignore_insert_value_expr="n > 2"),),
        column_selectors=(ColumnSelection(("shop.people",), ("*", "!name")),),
    )
    start_ts = upstream.tso()
    execute(upstream, ["create database shop", *TABLES, *BEFORE, "delete from shop.people where id = 1"])
    run(start_ts, upstream.tso(), config=config)
    assert {row[0] for row in mariadb.query("show tables from shop")} == LEFT - {"pairs", "later"}
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
    from tidemill.tidb.keys import record_prefix

    return record_prefix(table_id) + (handle ^ (1 << 63)).to_bytes(8, "big")


# What MariaDB has otherwise: each statement is one that TiDB takes as it stands.
OTHERWISE = [
    "create database shop",
    "create table shop.e (id int primary key, e enum('x','y','') not null default 'y', s set('','a','b'), n char(5))",
    "insert into shop.e values (1, 'x', ',a,b', 'ok'), (2, 'y', '', 'LAST'), (3, 'x', 'a', null)",
    "set sql_mode = ''",
    "insert into shop.e values (4, 0, 1, 'zero'), (5, 'nope', 7, 'zero'), (6, 'y', 2, 'last')",
    "update shop.e set e = 0 where id = 2",
    "create table shop.ek (e enum('x','y'), s set('','a'), v int, primary key (e, s))",
    "insert into shop.ek values ('x', 0, 1), (0, 1, 2), (0, 3, 3), ('y', 3, 4)",
    "update shop.ek set v = 20 where e = 0 and s = 1",
    "delete from shop.ek where e = 0 and s = 3",
    "set time_zone = '+14:00'",
    "alter table shop.e add column at timestamp(3) default current_timestamp(3)",
    "alter table shop.e add column seen datetime(6) default current_timestamp(6)",
    "alter table shop.e add column born timestamp default '2020-01-01 00:00:00'",
    "alter table shop.e add column t set('','q','r') default ',r'",
    "create table shop.zoned (id int primary key, at timestamp default '2020-01-01 00:00:00', "
    "d datetime default '2020-01-01 00:00:00')",
    "insert into shop.zoned (id) values (1)",
    "create table shop.g (a int, b int generated always as (a + 1) stored, v varchar(9), primary key (b))",
    "insert into shop.g (a, v) values (1, 'one'), (2, 'two')",
    "update shop.g set a = 10 where b = 3",
    "delete from shop.g where b = 2",
    "create table shop.late (a int not null, b varchar(9))",
    "insert into shop.late values (1, 'early'), (2, 'early')",
    "alter table shop.late add unique key u (a)",
    "insert into shop.late values (3, 'later')",
    "update shop.late set b = 'seen' where a = 1",
    "create table shop.l (id int primary key, v varchar(20), w char(5) character set latin1) charset latin1",
    "insert into shop.l values (1, '猫', 'é'), (2, 'plain', '☂')",
    "alter table shop.l add column x varchar(9) character set latin1 default '雨'",
    "alter table shop.e modify column n enum('ok','zero','last','LAST')",
]  # fmt: skip


def test_what_mariadb_has_otherwise_is_held_all_the_same(
    run: Run, mariadb: MariaDb, upstream: EmbeddedUpstream
) -> None:
    start_ts = upstream.tso()
    with Client(upstream.sql_addresses[0]) as client:
        for statement in OTHERWISE:
            client.run(statement)
    run(start_ts, upstream.tso())
    host, port = upstream.sql_addresses[0].split(":")
    theirs = pymysql.connect(host=host, port=int(port), user="root", autocommit=True, conv={})
    with theirs, mariadb.connect(conv={}) as ours:
        for connection in (theirs, ours):
            connection.query("set time_zone = '+00:00'")
        for table, columns in {
            "e": "id, e+0, s+0, n, at, seen, born, t+0", "ek": "e+0, s+0, v", "zoned": "id, at, d", "g": "a, b, v",
            "late": "a, b", "l": "id, v, w, x",
        }.items():  # fmt: skip
            found = [_rows(connection, f"select {columns} from shop.{table}") for connection in (theirs, ours)]
            assert found[1] == found[0], table
            assert found[0]


def _rows(connection: Any, query: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return sorted(repr(_texts(row)) for row in cursor.fetchall())
