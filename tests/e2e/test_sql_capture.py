"""SQL on the embedded TiDB, captured into files: applied, they are what SELECT shows, at the end and in the middle."""

import json
import threading
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.e2e import tree
from tests.e2e.conftest import Capture
from tests.e2e.processes import wait_until
from tests.e2e.sqlclient import Client
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.ddl import ActionType

pytestmark = pytest.mark.spark

Row = dict[str, str | None]
Tables = dict[str, dict[tuple[str | None, ...], Row]]

STATEMENTS = [
    "create table shop.orders (id bigint primary key auto_increment, customer varchar(20), amount decimal(10, 2))",
    "insert into shop.orders (customer, amount) values ('ada', 10.5), ('bob', 20), ('eve', 30.25), ('dan', 7)",
    "update shop.orders set amount = amount * 2 where customer = 'ada'",
    "alter table shop.orders add column state varchar(8) not null default 'new' after customer",
    "insert into shop.orders (customer, state, amount) values ('fay', 'paid', 1), ('gus', 'new', 2)",
    "alter table shop.orders add index by_customer (customer)",
    "delete from shop.orders where customer = 'bob'",
    "create table shop.notes (k varchar(10) primary key, t text, n int)",
    "insert into shop.notes values ('a', 'first', 1), ('b', null, 2), ('c', 'x', 3)",
    "MIDDLE",
    "alter table shop.orders modify column amount int",  # lossy: the rows are written again, in another type
    "update shop.orders set amount = 99 where customer = 'eve'",
    "replace into shop.notes values ('a', 'again', 4)",
    "insert into shop.notes values ('b', 'y', 5) on duplicate key update n = n + values(n)",
    "rename table shop.notes to shop.remarks",
    "insert into shop.remarks values ('d', 'after the name', 6)",
    "create table shop.scratch (id int primary key, v int)",
    "insert into shop.scratch values (1, 1), (2, 2)",
    "truncate table shop.scratch",
    "insert into shop.scratch values (3, 3)",
    "create table shop.gone (id int primary key)",
    "insert into shop.gone values (1)",
    "drop table shop.gone",
    "alter table shop.orders drop column customer, add column note varchar(10) default 'none'",
    "update shop.orders set note = 'seen' where id in (1, 3)",
    "begin",
    "delete from shop.orders where id = 4",
    "insert into shop.orders (id, state, amount) values (4, 'paid', 44)",
    "update shop.remarks set n = 100 where k = 'c'",
    "commit",
]

ALTERATIONS = [
    "add column x int default 7",
    "add index kw (w)",
    "modify column w varchar(4)",  # lossy
    "drop column x, modify column w varchar(30)",
]


def test_the_files_applied_are_what_select_shows_at_the_end_and_in_the_middle(capture: Capture, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(stores=3, sql_port=0, sql_nodes=2, resolved_interval_seconds=0.05) as upstream:
        with Client(upstream.sql_addresses[0]) as client, Client(upstream.sql_addresses[1]) as other:
            client.run("create database shop")
            start_ts = upstream.tso()
            middle_ts = 0
            for number, statement in enumerate(STATEMENTS):
                if statement == "MIDDLE":
                    middle_ts = upstream.tso()
                    continue
                is_open = "begin" in STATEMENTS[: number + 1]
                (client if is_open or number % 2 else other).run(statement)
            end_ts = upstream.tso()
            shown = {ts: selected(client, ts) for ts in (middle_ts, end_ts)}
        last = capture(upstream.pd_address, tmp_path / "files", start_ts, end_ts)
    assert last.totals.rows > 20
    for ts, tables in shown.items():
        assert_same(applied(tmp_path / "files", ts), tables)
    assert set(shown[middle_ts]) == {"shop.orders", "shop.notes"}
    assert set(shown[end_ts]) == {"shop.orders", "shop.remarks", "shop.scratch"}


@pytest.mark.slow
def test_rows_written_while_ddl_runs_are_captured_by_a_changefeed_that_runs_along(
    capture: Capture, tmp_path: Path
) -> None:
    """Writers on two nodes, DDL on one of them; the changefeed reads the stream of a cluster that changes by itself."""
    with EmbeddedUpstream.start(stores=3, sql_port=0, sql_nodes=2, resolved_interval_seconds=0.05, chaos=4) as upstream:
        with Client(upstream.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run("create table shop.t (id int primary key, v int not null, w varchar(20), unique key uv (v))")
            start_ts = upstream.tso()
            stop = threading.Event()
            failures: list[BaseException] = []
            written = [0, 0]
            writers = [
                threading.Thread(target=write, args=(upstream.sql_addresses[at], at, stop, written, failures))
                for at in (0, 1)
            ]
            for writer in writers:
                writer.start()
            middles = []
            try:
                for number, change in enumerate(ALTERATIONS, 1):
                    wait_until(lambda least=10 * number: failures or min(written) >= least, "both writers")
                    client.run(f"alter table shop.t {change}")
                    middles.append(upstream.tso())
            finally:
                stop.set()
                for writer in writers:
                    writer.join()
            assert not failures, failures[0]
            end_ts = upstream.tso()
            moments = [*middles[1::2], end_ts]
            shown = {ts: selected(client, ts) for ts in moments}
            client.run("admin check table shop.t")
        capture(upstream.pd_address, tmp_path / "files", start_ts, end_ts)
    assert shown[end_ts]["shop.t"]
    for ts, tables in shown.items():
        assert_same(applied(tmp_path / "files", ts), tables)


def write(address: str, writer: int, stop: threading.Event, written: list[int], failures: list[BaseException]) -> None:
    """``written`` counts the rows that each writer has put in."""
    at = writer
    try:
        with Client(address, "shop") as client:
            while not stop.is_set():
                at += 2
                for statement in (
                    f"insert into t (id, v, w) values ({at}, {at}, 'w{at % 10}')",
                    f"update t set v = v + 1000000 where id = {at - 6}",
                    f"delete from t where id = {at - 20}",
                ):
                    try:
                        client.run(statement)
                        written[writer] += statement.startswith("insert")
                    except pymysql.MySQLError as error:
                        if error.args[0] not in (8028, 9007, 1062):
                            raise
    except BaseException as error:
        failures.append(error)


def selected(client: Client, ts: int) -> Tables:
    """All of ``shop`` at a ts, by SELECT."""
    client.run(f"set @@tidb_snapshot = '{ts}'")
    found: Tables = {}
    for (name,) in client.run("show tables from shop"):
        columns = [row[0] for row in client.run(f"show columns from shop.{name}")]
        keys = [row[0] for row in client.run(f"show columns from shop.{name}") if row[3] == "PRI"]
        rows = [dict(zip(columns, row, strict=True)) for row in client.run(f"select * from shop.{name}")]
        texts = [{c: v.decode() if isinstance(v, bytes) else v for c, v in row.items()} for row in rows]
        found[f"shop.{name}"] = {tuple(row[key] for key in keys): row for row in texts}
    client.run("set @@tidb_snapshot = ''")
    return found


def applied(root: Path, ts: int) -> Tables:
    """What a consumer has that applies rows and DDLs in order up to ``ts``."""
    tables: Tables = {}
    for at, _, event in sorted(events(root), key=lambda found: found[:2]):
        if at <= ts:
            apply_ddl(tables, event) if "Query" in event else apply_row(tables, event)
    return tables


def events(root: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """With when, and DDLs after rows of their own moment."""
    rows = [(message["_tidb"]["commitTs"], 0, message) for message in tree.messages(root)]
    ddls = [(document["TableVersion"], 1, document) for document in tree.schema_files(root) if document["Query"]]
    return [*rows, *ddls]


def apply_ddl(tables: Tables, ddl: dict[str, Any]) -> None:
    name = f"{ddl['Schema']}.{ddl['Table']}"
    match ActionType(ddl["Type"]):
        case ActionType.CREATE_TABLE | ActionType.TRUNCATE_TABLE:
            tables[name] = {}
        case ActionType.DROP_TABLE:
            del tables[name]
        case ActionType.RENAME_TABLE:
            tables[name] = tables.pop("shop.notes")


def apply_row(tables: Tables, message: dict[str, Any]) -> None:
    rows = tables.setdefault(f"{message['database']}.{message['table']}", {})
    (image,) = message["data"]
    key = tuple(image[name] for name in message["pkNames"])
    if message["type"] == "DELETE":
        del rows[key]
    else:
        rows[key] = image


def assert_same(ours: Tables, theirs: Tables) -> None:
    """By the columns that a row's newest message has and the table still has: DDL alone writes no row."""
    assert set(ours) >= {name for name, rows in theirs.items() if rows}
    assert not any(ours[name] for name in set(ours) - set(theirs))
    for name, rows in theirs.items():
        assert ours.get(name, {}).keys() == rows.keys(), name
        for key, row in rows.items():
            image = ours[name][key]
            for column in row.keys() & image.keys():
                assert same(image[column], row[column]), (name, key, column, json.dumps(image), json.dumps(row))


def same(one: str | None, other: str | None) -> bool:
    if one == other or one is None or other is None:
        return one == other
    try:
        return float(one) == float(other) or round(float(one)) == float(other)  # before a lossy change, and after
    except ValueError:
        return False
