"""A bank on the embedded TiDB, kept equal in a MariaDB while all around is killed. A seed tells what and when."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.e2e.bank import TABLES, TOTAL, Bank, Row, Rows, kill_part, selected, total
from tests.e2e.processes import Command, wait_until
from tests.mariadb import MariaDb, need_mariadb, running
from tests.rounds import rounds, seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261116
VICTIMS = ("capture", "worker", "mariadb", "jvm", "store", "daemon", "upstream")
ROUNDS = len(VICTIMS)  # in make test, each once; make soak takes as many as it is told

# MariaDB has no past that one could read. So it looks by itself at the very moment at which a sync point is noted.
SHOWN = "(select group_concat(concat_ws(' ', id, tag, balance, moves) order by id separator ',') from bank.{})"
WITNESS = (
    "create database witness",
    "create table witness.sync_points (ts bigint unsigned, {} longtext, {} longtext)".format(*TABLES),
    "create database tidb_cdc",
    "create table tidb_cdc.syncpoint_v1 (ticdc_cluster_id varchar(255), changefeed varchar(255), "
    "primary_ts varchar(18), secondary_ts varchar(18), created_at timestamp not null default current_timestamp, "
    "index (created_at), primary key (changefeed, primary_ts))",
    "create trigger tidb_cdc.witness before insert on tidb_cdc.syncpoint_v1 for each row begin "
    "declare continue handler for 1146 begin end; "  # before there is a bank
    "insert into witness.sync_points values (new.primary_ts, {}, {}); end".format(*map(SHOWN.format, TABLES)),
)


class Scene:
    """The changefeed's process, and what may happen to it and around it."""

    def __init__(self, bank: Bank, mariadb: MariaDb, folder: Path) -> None:
        self.bank, self.mariadb = bank, mariadb
        self._folder = folder
        self._flags = {
            "pd": bank.pd,
            "sink_uri": mariadb.uri("worker-count=2&enable-sync-point=true&sync-point-interval=30s"),
            "start_ts": bank.open(),
            "data_dir": folder / "data",
        }
        self.runs: list[Command] = []
        self.start()

    @property
    def run(self) -> Command:
        return self.runs[-1]

    def start(self) -> None:
        """Every other one leaves all batches to Spark, whose processes are among the victims."""
        small = None if len(self.runs) % 2 else "spark.tidemill.small.rows=0"
        self.runs.append(Command(self._folder / "runs", "run", is_serving=True, **self._flags, spark_conf=small))

    def kill(self, victim: str, rng: random.Random) -> None:
        match victim:
            case "capture":
                self.run.kill(alone=rng.random() < 0.5)
                self.start()
            case "mariadb":
                self.mariadb.kill()
                self.mariadb.start()
            case "store":
                self.bank.kill_store(rng.randint(1, 3))
            case "upstream":
                self.bank.kill_upstream()
            case part:
                kill_part(self.run, part, rng)

    def wait_until_equal(self) -> None:
        """The bank holds still; whatever is left of its work arrives."""
        wanted = self.bank.rows()
        assert total(wanted) == TOTAL
        wait_until(lambda: self._downstream() == wanted or not self.run.is_running(), "equality", every_seconds=0.1)
        assert self.run.is_running(), self.run.errors

    def checkpoint_ts(self) -> int:
        return int(json.loads((self._folder / "data" / "changefeed.json").read_bytes())["checkpoint_ts"])

    def _downstream(self) -> Rows | None:
        try:
            with self.mariadb.connect() as connection, connection.cursor() as cursor:
                return {table: selected(cursor, table) for table in TABLES}
        except pymysql.err.ProgrammingError:
            return None  # no such table yet


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[MariaDb]:
    need_mariadb()
    with running(tmp_path / "mariadb") as server:
        server.query(*WITNESS)
        yield server


@pytest.mark.rounds
def test_a_bank_is_equal_after_every_kill_and_at_every_sync_point(mariadb: MariaDb, tmp_path: Path) -> None:
    rng, count = random.Random(chosen := seed(SEED)), rounds(ROUNDS)
    victims = [victim for _ in range(count) for victim in rng.sample(VICTIMS, len(VICTIMS))][:count]
    with Bank(tmp_path, chosen) as bank:
        scene = Scene(bank, mariadb, tmp_path)
        try:
            scene.wait_until_equal()
            reached, began = scene.checkpoint_ts(), time.monotonic()
            for number, victim in enumerate(victims):
                bank.go()
                bank.wait_for(rng.randint(1, 12))
                scene.kill(victim, rng)
                bank.wait_for(rng.randint(1, 5))
                bank.hold()
                scene.wait_until_equal()
                print(f"round {number}: {victim}, {bank.transfers} transfers, {time.monotonic() - began:.1f} s")
                assert scene.checkpoint_ts() >= reached
                reached = scene.checkpoint_ts()
            assert scene.run.terminate() == 0, scene.run.errors
            assert "Traceback" not in scene.run.errors
        finally:
            for run in scene.runs:
                run.kill()
        for run in scene.runs:
            run.wait_until_gone()
        points = mariadb.query("select * from witness.sync_points")
        assert points
        for ts, *sides in points:
            then = bank.rows(ts)
            assert sides == [shown(then[table]) for table in TABLES]
            assert total(then) == TOTAL


def shown(rows: list[Row]) -> str:
    return ",".join(" ".join(str(row[name]) for name in ("id", "tag", "balance", "moves")) for row in rows)
