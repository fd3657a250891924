"""Values of unique keys change places between rows in different partitions, on the whole way from SQL to a consumer by
rows, whoever is killed."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.e2e.bank import Bank, Rows, kill_part, selected
from tests.e2e.processes import Command, wait_until
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.mariadb import MariaDb, need_mariadb
from tests.mariadb import running as running_mariadb
from tests.open_topic import ADMIN, ROW, read_log
from tests.rounds import rounds, seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261122
VICTIMS = ("capture", "consumer", "worker")
_SEATS = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


class Seats(Bank):
    """A table with three unique keys. Each transaction has some rows exchange values, go, come back, or just change."""

    def open(self) -> int:
        with self._connect() as connection, connection.cursor() as cursor:
            ts = _ts(cursor)
            cursor.execute("create database bank")
            cursor.execute(
                "create table bank.seats (id int primary key, a int not null, b varchar(20) collate utf8mb4_bin not "
                "null, moves int, unique (a), unique (b))"
            )
            rows = ", ".join(f"({i}, {i}, 'b{i}', 0)" for i in range(_SEATS))
            cursor.execute(f"insert into bank.seats values {rows}")
        return ts

    def rows(self, ts: int | None = None) -> Rows:
        with self._connect() as connection, connection.cursor() as cursor:
            return {"seats": selected(cursor, "seats")}

    def _transfer(self, connection: Any) -> None:
        rng = self._rng
        with connection.cursor() as cursor:
            cursor.execute("begin")
            for _ in range(rng.randint(1, 4)):
                one, other = rng.sample(range(_SEATS), 2)
                cursor.execute(f"select id, a, b, moves from bank.seats where id in ({one}, {other})")
                there = {row[0]: row[1:] for row in cursor.fetchall()}
                if len(there) == 2 and rng.random() < 0.1:  # one goes, and the other takes what it had
                    a, b, _ = there[one]
                    cursor.execute(f"delete from bank.seats where id = {one}")
                    cursor.execute(f"update bank.seats set a = {a}, b = '{b}' where id = {other}")
                elif len(there) == 2:
                    name, place = rng.choice([("a", 0), ("b", 1)])
                    spare = "-1" if name == "a" else "'on its way'"
                    values = [f"'{there[each][place]}'" for each in (one, other)]
                    for value, each in ((spare, one), (values[0], other), (values[1], one)):
                        cursor.execute(f"update bank.seats set {name} = {value} where id = {each}")
                elif other in there:
                    number = 1000 + self.transfers * 4 + rng.randrange(4)
                    if not cursor.execute(f"select 1 from bank.seats where a = {number} or b = 'b{number}'"):
                        cursor.execute(f"insert into bank.seats values ({one}, {number}, 'b{number}', 0)")
            cursor.execute(f"update bank.seats set moves = moves + 1 where id = {rng.randrange(_SEATS)}")
            cursor.execute("commit")


def _ts(cursor: Any) -> int:
    cursor.execute("begin")
    cursor.execute("select @@tidb_current_ts")
    ((ts,),) = cursor.fetchall()
    cursor.execute("rollback")
    return int(ts)


def held(mariadb: MariaDb) -> Rows | None:
    try:
        with mariadb.connect(database="bank") as connection, connection.cursor() as cursor:
            return {"seats": selected(cursor, "seats")}
    except pymysql.err.MySQLError:
        return None


@pytest.mark.rounds
@pytest.mark.parametrize("consistency", ["row", pytest.param("transaction", marks=pytest.mark.soak)])
def test_a_table_whose_unique_values_are_swapped_is_equal_whoever_is_killed(
    broker: Broker, tmp_path: Path, consistency: str
) -> None:
    need_mariadb()
    rng, count = random.Random(chosen := seed(SEED)), rounds(2)
    victims = [victim for _ in range(count) for victim in rng.sample(VICTIMS, len(VICTIMS))]
    victims = [*VICTIMS[:2], *victims][:count]
    rules = tmp_path / "rules.toml"
    rules.write_text('[sink]\ndispatchers = [{matcher = ["bank.*"], partition = "conflict"}]\n')
    with ExitStack() as stack:
        mariadb = stack.enter_context(running_mariadb(tmp_path / "mariadb"))
        seats = stack.enter_context(Seats(tmp_path, chosen))
        uri = broker.uri(tmp_path.name, "protocol=open-protocol&partition-num=4")
        flags: dict[str, Any] = {
            "pd": seats.pd, "sink_uri": uri, "start_ts": seats.open(), "data_dir": tmp_path / "feed", "config": rules,
        }  # fmt: skip

        def feed() -> Command:
            return Command(tmp_path / "runs", "run", is_serving=True, **flags)

        def consumer() -> Command:
            folder, to = tmp_path / "consumer", mariadb.uri()
            return Command(
                tmp_path / "runs", "consume", uri, is_serving=True, to=to, data_dir=folder, consistency=consistency
            )

        capture = feed()
        stack.callback(lambda: capture.kill())
        capture.ready()
        reading = consumer()
        stack.callback(lambda: reading.kill())

        def is_equal() -> bool:
            assert capture.is_running(), capture.errors
            assert reading.is_running(), reading.errors
            return held(mariadb) == wanted

        for victim in victims:
            seats.go()
            seats.wait_for(rng.randint(5, 30))
            match victim:
                case "consumer":
                    reading.kill()
                    reading = consumer()
                case "capture":
                    capture.kill(alone=rng.random() < 0.5)
                    capture = feed()
                case "worker":
                    kill_part(capture, "worker", rng)
            seats.wait_for(rng.randint(5, 30))
            seats.hold()
            wanted = seats.rows()
            wait_until(is_equal, f"equality after {victim}", every_seconds=0.2)
        with Command(tmp_path / "runs", "check-topic", uri, output="json") as check:
            assert check.wait() == 0, check.output + check.errors
            report = json.loads(check.output)
        assert report["is_ok"], report
        told = json.loads((tmp_path / "consumer" / "consumer.json").read_bytes())["meeting"]
        assert told == [["bank", "seats"]]
    log = read_log(broker, tmp_path.name)
    log.check()
    met = [{event.ts for event in part if event.kind == ADMIN} for part in log.partitions]
    assert len(met[0]) > len(victims)
    assert all(each == met[0] for each in met)
    sizes = [sum(event.kind == ROW for event in part) for part in log.partitions]
    print(f"{seats.transfers} transactions, {len(met[0])} meetings, {sizes} rows by partition, {log.copies} copies")
    assert min(sizes) > 0
