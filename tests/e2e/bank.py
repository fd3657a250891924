"""A bank on an embedded TiDB of its own process: money moves between two tables and is never made or lost.

    bank = Bank(folder, seed)
    bank.go(); bank.wait_for(5)                # five more transfers
    bank.hold(); bank.rows()                   # and now nothing changes any more

Each transfer is one transaction over both tables; accounts are closed and opened again, unique tags change
places, and columns are added meanwhile. A store, or all of the upstream, may be killed: a transfer is whole, or it
has not happened.
"""

import json
import random
import threading
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pymysql

from tests.e2e.processes import Command, wait_until

TABLES = ("left_side", "right_side")
TOTAL = 24_000
_ACCOUNTS = 12
_PACE_SECONDS = 0.05
_DDL_EVERY = 60  # transfers
_COLUMNS = "id int primary key, tag varchar(40) unique, balance bigint, moves int"

Row = dict[str, Any]
Rows = dict[str, list[Row]]  # by table, in the order of their ids


class Bank:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._command = self._start(pd_port=0, sql_port=0)
        ready = self._command.ready()
        self.pd: str = ready["pd"]
        self._host, _, port = ready["sql"][0].rpartition(":")
        self._port = int(port)
        self.transfers = 0
        self._may_work, self._is_closed = threading.Event(), threading.Event()
        self._at_work = threading.Lock()
        self._failure: BaseException | None = None
        self._teller = threading.Thread(target=self._work, name="teller")

    def __enter__(self) -> "Bank":
        self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._teller.join()
        self._command.kill()

    def open(self) -> int:
        """Make the tables and fill them; returns a ts from before."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("begin")
            cursor.execute("select @@tidb_current_ts")
            ((ts,),) = cursor.fetchall()
            cursor.execute("rollback")
            cursor.execute("create database bank")
            for table in TABLES:
                cursor.execute(f"create table bank.{table} ({_COLUMNS})")
            cursor.execute("begin")  # all the money is there at once
            for table in TABLES:
                rows = ", ".join(f"({i}, '{table}-{i}', {TOTAL // 2 // _ACCOUNTS}, 0)" for i in range(_ACCOUNTS))
                cursor.execute(f"insert into bank.{table} values {rows}")
            cursor.execute("commit")
        return int(ts)

    # Who works when.

    def go(self) -> None:
        self._may_work.set()

    def hold(self) -> None:
        """Returns when the transfer at hand is over."""
        self._may_work.clear()
        with self._at_work:
            pass
        self._check()

    def wait_for(self, transfers: int) -> None:
        wanted = self.transfers + transfers
        wait_until(lambda: self.transfers >= wanted or self._failure is not None, "a transfer")
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # What it holds.

    def rows(self, ts: int | None = None) -> Rows:
        """Now, or as of a ts."""
        as_of = f" as of timestamp {ts}" if ts is not None else ""
        found: Rows = {}

        def is_read() -> bool:
            try:
                with self._connect() as connection, connection.cursor() as cursor:
                    found.update({table: selected(cursor, f"{table}{as_of}") for table in TABLES})
            except pymysql.err.MySQLError:  # something is away
                return False
            return True

        wait_until(is_read, "the rows of the bank", every_seconds=0.1)
        return found

    # What happens to the upstream.

    def kill_store(self, store: int) -> None:
        """Its connections are cut; it is back half a second later."""
        request = urllib.request.Request(
            f"http://{self.pd}/tidemill/v1/faults/kill-store",
            json.dumps({"store": store, "seconds": 0.5}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()

    def kill_upstream(self) -> None:
        """``kill -9`` of PD, all stores and SQL; returns when they serve again, from what was on the disk."""
        self._command.kill()
        self._command.wait_until_gone()
        self._command = self._start(int(self.pd.rpartition(":")[2]), self._port)
        self._command.ready()

    def _start(self, pd_port: int, sql_port: int) -> Command:
        return Command(
            self._folder / "upstream",
            "upstream",
            is_serving=True,
            stores=3,
            pd_port=pd_port,
            sql_port=sql_port,
            data_dir=self._folder / "cluster",
            resolved_interval="200ms",
        )

    # The teller's thread.

    def _work(self) -> None:
        connection = None
        try:
            while not self._is_closed.wait(_PACE_SECONDS):
                with self._at_work:
                    if not self._may_work.is_set():
                        continue
                    try:
                        connection = connection or self._connect()
                        self._transfer(connection)
                        self.transfers += 1
                    except pymysql.err.MySQLError:  # something is away
                        connection = None
        except BaseException as error:
            self._failure = error

    def _connect(self) -> Any:
        return pymysql.connect(host=self._host, port=self._port, user="root", autocommit=True)

    def _transfer(self, connection: Any) -> None:
        rng = self._rng
        one, other = rng.sample(TABLES, 2)
        source, target = rng.randrange(_ACCOUNTS), rng.randrange(_ACCOUNTS)
        with connection.cursor() as cursor:
            if self.transfers % _DDL_EVERY == _DDL_EVERY - 1:
                cursor.execute(f"alter table bank.{one} add column c{self.transfers} int default {source}")
            cursor.execute("begin")
            if rng.random() < 0.1:
                amount = self._close(cursor, one, source)
            else:
                amount = rng.randint(1, 50)
                self._pay(cursor, one, source, -amount)
            self._pay(cursor, other, target, amount)
            if rng.random() < 0.2:
                self._swap_tags(cursor, other, target, rng.randrange(_ACCOUNTS))
            cursor.execute("commit")

    def _pay(self, cursor: Any, table: str, account: int, amount: int) -> None:
        """An account that was closed is opened again."""
        change = f"balance = balance + {amount}, moves = moves + 1"
        if not cursor.execute(f"update bank.{table} set {change} where id = {account}"):
            tag = f"{table}-{account}-{self.transfers}"
            cursor.execute(
                f"insert into bank.{table} (id, tag, balance, moves) values ({account}, '{tag}', {amount}, 1)"
            )

    def _close(self, cursor: Any, table: str, account: int) -> int:
        """What was on it; nothing if it was closed before."""
        cursor.execute(f"select balance from bank.{table} where id = {account}")
        amount = sum(balance for (balance,) in cursor.fetchall())
        cursor.execute(f"delete from bank.{table} where id = {account}")
        return int(amount)

    def _swap_tags(self, cursor: Any, table: str, one: int, other: int) -> None:
        """Two values of a unique key change places within the transaction."""
        cursor.execute(f"select id, tag from bank.{table} where id in ({one}, {other})")
        tags = dict(cursor.fetchall())
        if len(tags) == 2:
            for account, tag in ((one, "on its way"), (other, tags[one]), (one, tags[other])):
                cursor.execute(f"update bank.{table} set tag = '{tag}' where id = {account}")


def selected(cursor: Any, relation: str) -> list[Row]:
    cursor.execute(f"select * from bank.{relation} order by id")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def total(rows: Rows) -> int:
    return sum(row["balance"] for table in rows.values() for row in table)


def kill_part(run: Command, part: str, rng: random.Random) -> None:
    """``kill -9`` of one process that Spark has started for ``run``: its JVM, the daemon of its Python workers, or one
    of those."""
    wanted = {
        "jvm": lambda words, parent: "spark.deploy.SparkSubmit" in words,
        "daemon": lambda words, parent: "-m tidemill.spark.daemon" in words and "SparkSubmit" in parent,
        "worker": lambda words, parent: "-m tidemill.spark.daemon" in words and "SparkSubmit" not in parent,
    }[part]
    found: list[psutil.Process] = []

    def is_there() -> bool:
        """Spark may just be replacing it."""
        found[:] = [process for process in run.survivors() if wanted(*_words(process))]
        return bool(found) or not run.is_running()

    wait_until(is_there, f"a {part}", every_seconds=0.1)
    assert found, run.errors
    rng.choice(sorted(found, key=lambda process: process.pid)).kill()


def _words(process: psutil.Process) -> tuple[str, str]:
    """The command lines of a process and of its parent. A daemon is started by the JVM. A worker, which has the same
    line, is forked from a daemon, and outlives it."""
    try:
        parent = process.parent()
        return " ".join(process.cmdline()), " ".join(parent.cmdline()) if parent is not None else ""
    except psutil.Error:
        return "", ""
