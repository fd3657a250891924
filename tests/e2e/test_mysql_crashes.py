"""A bank on the embedded TiDB, kept equal in a MariaDB while all around is killed. A seed tells what and when."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pymysql
import pytest

from tests.e2e.processes import Command, wait_until
from tests.mariadb import MariaDb, need_mariadb, running
from tidemill.store.upstream import EmbeddedUpstream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261116
ROUNDS = 30
ACCOUNTS, BALANCE = 12, 1000
VICTIMS = ("worker", "worker", "source", "mariadb", "mariadb", "store", "store", "capture", "capture")


class Bank:
    """Transfers between accounts of two tables, each in one transaction, and a DDL now and then, until stopped."""

    def __init__(self, address: str, seed: int) -> None:
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.transfers = 0
        self.failure: BaseException | None = None

    def open(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("create database bank")
            for table in ("left_side", "right_side"):
                cursor.execute(
                    f"create table bank.{table} (id int primary key, tag varchar(20) unique, balance bigint, moves int)"
                )
                rows = ", ".join(f"({i}, '{table}-{i}', {BALANCE}, 0)" for i in range(ACCOUNTS))
                cursor.execute(f"insert into bank.{table} values {rows}")

    def connect(self) -> Any:
        return pymysql.connect(host=self._host, port=self._port, user="root", autocommit=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _work(self) -> None:
        try:
            connection = self.connect()
            while not self._stopped.wait(0.05):
                try:
                    self._transfer(connection)
                except pymysql.err.MySQLError:  # a store is away: the transfer is whole or not at all
                    connection.close()
                    connection = self.connect()
            connection.close()
        except BaseException as error:
            self.failure = error

    def _transfer(self, connection: Any) -> None:
        rng, amount = self._rng, self._rng.randint(1, 50)
        one, other = rng.sample(["left_side", "right_side"], 2)
        source, target = rng.randrange(ACCOUNTS), rng.randrange(ACCOUNTS)
        with connection.cursor() as cursor:
            if rng.random() < 0.005:
                cursor.execute(f"alter table bank.{one} add column c{self.transfers} int default {amount}")
            cursor.execute("begin")
            cursor.execute(f"update bank.{one} set balance = balance - {amount}, moves = moves + 1 where id = {source}")
            cursor.execute(
                f"update bank.{other} set balance = balance + {amount}, moves = moves + 1 where id = {target}"
            )
            if rng.random() < 0.2 and source != target:  # two unique keys change places
                first, second = f"{one}-{source}", f"{one}-{target}"
                cursor.execute(f"select id, tag from bank.{one} where id in ({source}, {target})")
                tags = dict(cursor.fetchall())
                first, second = tags[source], tags[target]
                cursor.execute(f"update bank.{one} set tag = 'moving' where id = {source}")
                cursor.execute(f"update bank.{one} set tag = '{first}' where id = {target}")
                cursor.execute(f"update bank.{one} set tag = '{second}' where id = {source}")
            cursor.execute("commit")
        self.transfers += 1


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[MariaDb]:
    need_mariadb()
    with running(tmp_path / "mariadb") as server:
        yield server


def test_a_bank_stays_equal_while_parts_of_everything_are_killed(mariadb: MariaDb, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    with EmbeddedUpstream.start(
        stores=3, sql_port=0, resolved_interval_seconds=0.2, data_dir=tmp_path / "cluster"
    ) as upstream:
        bank = Bank(upstream.sql_addresses[0], SEED)
        start_ts = upstream.tso()
        bank.open()
        bank.start()
        flags = {"pd": upstream.pd_address, "sink_uri": mariadb.uri("worker-count=2"), "start_ts": start_ts,
                 "data_dir": tmp_path / "data"}  # fmt: skip
        run = Command(tmp_path / "runs", "run", is_serving=True, **flags)
        runs = [run]
        try:
            for number in range(ROUNDS):
                victim = rng.choice(VICTIMS)
                seen = moves(mariadb)
                wait_until(
                    lambda seen=seen, run=run: moves(mariadb) > seen or not run.is_running(), "a transfer downstream"
                )
                assert run.is_running(), run.errors
                print(f"round {number}: {victim}, {bank.transfers} transfers")
                match victim:
                    case "mariadb":
                        mariadb.kill()
                        mariadb.start()
                    case "store":
                        store = rng.randint(1, 3)
                        upstream.kill_store(store)
                        upstream.start_store(store)
                    case "worker":
                        kill_part(run, "-m tidemill.spark.daemon")
                    case "source":
                        kill_part(run, "python_streaming_source_runner")
                    case "capture":
                        run.kill(alone=rng.random() < 0.5)
                        run = Command(tmp_path / "runs", "run", is_serving=True, **flags)
                        runs.append(run)
            bank.stop()
            target_ts = upstream.tso()
            run.kill()
            with Command(tmp_path / "runs", "run", target_ts=target_ts, **flags) as last:
                assert last.wait() == 0, last.errors
        finally:
            bank._stopped.set()
            for each in runs:
                each.kill()
        with bank.connect() as connection, connection.cursor() as cursor:
            theirs = {table: selected(cursor, table) for table in ("left_side", "right_side")}
    with mariadb.connect() as connection, connection.cursor() as cursor:
        ours = {table: selected(cursor, table) for table in theirs}
    assert ours == theirs
    assert sum(row["balance"] for rows in ours.values() for row in rows) == 2 * ACCOUNTS * BALANCE
    assert sum(row["moves"] for rows in ours.values() for row in rows) >= 2 * ROUNDS


def moves(mariadb: MariaDb) -> int:
    """How many halves of transfers are there; none before the tables are."""
    try:
        return sum(
            int(mariadb.query(f"select coalesce(sum(moves), 0) from bank.{t}")[0][0])
            for t in ("left_side", "right_side")
        )
    except pymysql.err.ProgrammingError:
        return -1


def kill_part(run: Command, words: str) -> None:
    for process in run.survivors():
        try:
            if words in " ".join(process.cmdline()):
                process.kill()
                return
        except psutil.Error:
            continue


def selected(cursor: Any, table: str) -> list[dict[str, Any]]:
    cursor.execute(f"select * from bank.{table} order by id")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
