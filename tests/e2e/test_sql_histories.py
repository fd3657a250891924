"""The recorded histories through a MySQL client: their statements run again, and their tables read at every mark."""

import random
import threading
from collections.abc import Iterator

import pymysql
import pytest

from tests.e2e.sqlclient import Client
from tests.histories import FOLDER, load
from tests.tidebox.sql import test_types_history as types_history
from tests.tidebox.sql.test_ddl_history import OUTSIDE, is_outside, steps
from tests.tidebox.sql.test_online_history import ALLOWED, WRITERS, filled
from tidebox.sql.transaction import Transaction
from tidebox.upstream import EmbeddedUpstream

NOT_SUPPORTED = 1235
REPEATED = 40  # at most, of what the recording repeated some hundred times


@pytest.fixture(scope="module")
def fresh() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=3, sql_port=0, sql_nodes=2, resolved_interval_seconds=3600) as upstream:
        yield upstream


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_table_at_every_mark_of_a_loaded_history(name: str) -> None:
    history = load(name)
    options = {"load": history.folder / "history.parquet", "resolved_interval_seconds": 3600}
    with (
        EmbeddedUpstream.start(stores=3, sql_port=0, **options) as upstream,
        Client(upstream.sql_addresses[0]) as client,
    ):
        assert history.marks()
        for mark in history.marks():
            client.run(f"set @@tidb_snapshot = '{mark['ts']}'")
            client.assert_mark(mark)


def test_the_statements_of_types_leave_tidbs_rows_and_bytes(fresh: EmbeddedUpstream) -> None:
    with Client(fresh.sql_addresses[0]) as client:
        client.run("set sql_mode='NO_ENGINE_SUBSTITUTION,STRICT_TRANS_TABLES'")
        for statement in types_history.statements():
            client.run(statement)
        for mark in types_history.marks():
            if mark["table"] not in types_history.BY_CLOCK:
                client.assert_mark(mark)
                assert stored(fresh, mark) == recorded(mark), mark["table"]
            else:
                assert stored(fresh, mark).keys() == recorded(mark).keys()


def stored(upstream: EmbeddedUpstream, mark: dict) -> dict[bytes, bytes]:
    """Record and index entries of a table, without the table's id."""
    table = upstream.sql.nodes[0].cache.current().table(mark["schema"], mark["table"])
    prefix = b"t" + (table.id ^ (1 << 63)).to_bytes(8, "big")
    return {key[9:]: value for key, value in Transaction(upstream.cluster).scan(prefix, prefix + b"\xff")}


def recorded(mark: dict) -> dict[bytes, bytes]:
    prefix = types_history.PREFIXES[mark["table"]]
    return {key[9:]: value for key, value in types_history.PAIRS.items() if key.startswith(prefix)}


def test_the_statements_of_ddl_leave_tidbs_rows_at_every_mark(fresh: EmbeddedUpstream) -> None:
    wanted = load("ddl").marks()
    checked = 0
    with Client(fresh.sql_addresses[0]) as client, Client(fresh.sql_addresses[1]) as other:
        for kind, text, fails in steps():
            if kind == "mark":
                for mark in wanted:
                    if mark["mark"] == text and mark["table"] not in OUTSIDE:
                        other.assert_mark(mark)
                        other.run(f"admin check table `{mark['schema']}`.`{mark['table']}`")
                        checked += 1
            else:
                run_or_refuse(client, text, fails)
    assert checked == 45


def run_or_refuse(client: Client, text: str, fails: bool) -> None:
    number = 0
    try:
        client.run(text)
    except pymysql.MySQLError as error:
        number = error.args[0]
    if not is_outside(text) and number != NOT_SUPPORTED:
        assert bool(number) == fails, text


def test_writers_on_two_nodes_while_the_statements_of_online_change_the_schema(fresh: EmbeddedUpstream) -> None:
    chance = random.Random(5)
    writers: list[threading.Thread] = []
    waiting: list[str] = []
    failures: list[BaseException] = []
    stop = threading.Event()
    repeat, collects, number = 1, False, 1
    with Client(fresh.sql_addresses[0]) as client:
        for line in (FOLDER / "online" / "scenario.sql").read_text().splitlines():
            match line.split()[:2]:
                case ["--", "@repeat"]:
                    repeat = min(int(line.split()[2]), REPEATED)
                case ["--", "@writers"]:
                    waiting, collects = [], True
                case ["--", "@start"]:
                    collects = False
                    stop.clear()
                    writers = [
                        threading.Thread(
                            target=write, args=(fresh.sql_addresses[at % 2], list(waiting), at, stop, failures)
                        )
                        for at in range(WRITERS)
                    ]
                    for writer in writers:
                        writer.start()
                case ["--", "@stop"]:
                    stop.set()
                    for writer in writers:
                        writer.join()
                    assert not failures, failures[0]
                    client.run("admin check table t")
                    client.run("admin check table acc")
                case ["--", *_] | []:
                    pass
                case _ if collects:
                    waiting.append(line.rstrip(";"))
                case _ if "partition" not in line:
                    for _ in range(repeat):
                        client.run(filled(line.rstrip(";"), chance, number))
                        number += 1
                    repeat = 1
        assert client.run("select sum(bal) from acc") == [(str(20 * 1000),)]


def write(address: str, statements: list[str], seed: int, stop: threading.Event, failures: list[BaseException]) -> None:
    chance = random.Random(seed)
    numbers = iter(range(10_000 + seed, 10**9, WRITERS))
    try:
        with Client(address, "live") as client:
            while not stop.is_set():
                try:
                    client.run(filled(chance.choice(statements), chance, next(numbers)))
                except pymysql.MySQLError as error:
                    if error.args[0] not in ALLOWED:
                        raise
    except BaseException as error:
        failures.append(error)
