"""``tidemill upstream --sql-port`` as a user has it: clients as they come, leases, and ``kill -9`` among writers."""

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest
import sqlalchemy as sa

from tests.e2e.processes import Command, wait_until
from tests.e2e.sqlclient import Client

PROGRAM = shutil.which("mariadb") or shutil.which("mysql")
ROUNDS = 2
WRITERS = 4
ROWS = 5  # of a writer, always with one value
LEASE_SECONDS = 2


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """The ready-file of one with two SQL nodes."""
    folder = tmp_path_factory.mktemp("sql")
    flags = {"pd_port": 0, "stores": 3, "sql_port": 0, "sql_nodes": 2, "sql_lease": f"{LEASE_SECONDS}s"}
    with Command(folder, "upstream", is_serving=True, **flags) as command:
        yield command.ready()
        assert command.terminate() == 0
        assert "Traceback" not in command.errors


@pytest.mark.skipif(PROGRAM is None, reason="needs MariaDB's client: apt-get install mariadb-client")
def test_mariadbs_client_creates_alters_fills_and_reads(upstream: dict) -> None:
    script = """
    create database cli; use cli;
    create table t (id int primary key, v varchar(10));
    insert into t values (1, 'one'), (2, 'two');
    alter table t add column w int not null default 5 after id, add unique key uv (v);
    update t set v = 'zwei', w = 6 where id = 2;
    delete from t where id = 1;
    """
    assert mariadb(upstream["sql"][0], script) == ""
    assert mariadb(upstream["sql"][1], "select * from cli.t; show tables from cli") == (
        "id\tw\tv\n2\t6\tzwei\nTables_in_cli\nt\n"
    )


def mariadb(address: str, script: str) -> str:
    host, port = address.split(":")
    command = [str(PROGRAM), "--no-defaults", "-h", host, "-P", port, "-u", "root", "--batch"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_pymysql_sees_on_one_node_what_it_did_on_the_other(upstream: dict) -> None:
    with Client(upstream["sql"][0]) as one, Client(upstream["sql"][1]) as other:
        one.run("create database py")
        one.run("create table py.t (id bigint primary key auto_increment, v decimal(8, 2))")
        other.run("insert into py.t (v) values (%s), (%s)", "1.5", "2.25")
        one.run("alter table py.t add column at datetime default '2024-01-01 00:00:00', modify column v varchar(20)")
        assert other.run("select v, at from py.t order by v") == [
            ("1.50", "2024-01-01 00:00:00"),
            ("2.25", "2024-01-01 00:00:00"),
        ]


def test_sqlalchemy_makes_fills_reads_and_drops_tables(upstream: dict) -> None:
    engine = sa.create_engine(f"mysql+pymysql://root@{upstream['sql'][0]}/test")
    metadata = sa.MetaData()
    things = sa.Table(
        "things",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(40), nullable=False, index=True),
        sa.Column("data", sa.JSON),
    )
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(things.insert(), [{"name": "a", "data": {"k": [1]}}, {"name": "b", "data": None}])
        connection.execute(sa.text("alter table things add column extra int default 3"))
    other = sa.create_engine(f"mysql+pymysql://root@{upstream['sql'][1]}/test")
    with other.connect() as connection:
        reflected = sa.Table("things", sa.MetaData(), autoload_with=connection)
        rows = connection.execute(sa.select(reflected).order_by(reflected.c.name)).all()
    assert [(row.name, row.data, row.extra) for row in rows] == [("a", {"k": [1]}, 3), ("b", None, 3)]
    metadata.drop_all(engine)
    assert sa.inspect(other).get_table_names() == []
    engine.dispose()
    other.dispose()


def test_a_node_that_cannot_renew_its_schema_stops_serving_until_it_can(upstream: dict, tmp_path: Path) -> None:
    def fault(*words: object) -> None:
        with Command(tmp_path, "fault", *words, pd=upstream["pd"]) as command:
            assert command.wait() == 0, command.errors

    def number(client: Client) -> int:
        try:
            client.run("select * from mysql.tidb")
        except pymysql.MySQLError as error:
            return int(error.args[0])
        return 0

    with Client(upstream["sql"][0]) as one, Client(upstream["sql"][1]) as other:
        fault("hold-schema", "--node", 2)
        wait_until(lambda: number(other) == 8027, "the end of the lease")
        one.run("create table test.after_the_lease (id int)")  # waits for nobody who serves no more
        fault("release-schema", "--node", 2)
        assert number(other) == 0
        assert other.run("select * from test.after_the_lease") == []
        assert number(one) == 0


@dataclass
class Written:
    """What each writer was told, and what it cannot know: the last value that it tried."""

    known: list[int] = field(default_factory=lambda: [0] * WRITERS)
    tried: list[int] = field(default_factory=lambda: [0] * WRITERS)


def test_kill_9_among_writers_loses_nothing_that_was_committed_and_leaves_nothing_half(tmp_path: Path) -> None:
    flags = {"pd_port": 0, "stores": 3, "data_dir": tmp_path / "d", "sql_port": 0, "sql_nodes": 2, "chaos": 11}
    written = Written()
    for round_number in range(ROUNDS + 1):
        with Command(tmp_path, "upstream", is_serving=True, **flags) as command:
            addresses = command.ready()["sql"]
            if round_number == 0:
                prepare(addresses[0])
            else:
                compare(addresses[1], written, round_number)
            if round_number == ROUNDS:
                assert command.terminate() == 0
            else:
                write_until_killed(command, addresses, written, round_number)
    assert all(value > 0 for value in written.known)


def prepare(address: str) -> None:
    with Client(address) as client:
        client.run("create database w")
        client.run("create table w.t (writer int, n int, v int not null, primary key (writer, n), key kv (v, n))")
        rows = ", ".join(f"({writer}, {n}, 0)" for writer in range(WRITERS) for n in range(ROWS))
        client.run(f"insert into w.t values {rows}")


def write_until_killed(command: Command, addresses: list[str], written: Written, round_number: int) -> None:
    """All writers write, and an index is being added, when the process goes."""
    goal = sum(written.known) + random.Random(round_number).randrange(20, 60)
    threads = [
        threading.Thread(target=write, args=(addresses[writer % 2], writer, written)) for writer in range(WRITERS)
    ]
    threads.append(threading.Thread(target=add_index, args=(addresses[0], f"k{round_number}")))
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(written.known) >= goal, "writes")
    command.kill(alone=True)
    for thread in threads:
        thread.join()


def write(address: str, writer: int, written: Written) -> None:
    """Until the server is gone: one value after the other, in all rows of the writer together."""
    with suppress(pymysql.MySQLError, OSError), Client(address, "w") as client:
        while True:
            value = written.tried[writer] = written.tried[writer] + 1
            try:
                client.run("begin")
                client.run(f"update t set v = {value} where writer = {writer}")
                client.run("commit")
            except pymysql.MySQLError as error:
                if error.args[0] not in (8028, 9007):  # the index came in between: not committed
                    raise
                client.run("rollback")
                continue
            written.known[writer] = value


def add_index(address: str, name: str) -> None:
    with suppress(pymysql.MySQLError, OSError), Client(address, "w") as client:
        client.run(f"alter table t add index {name} (n, v)")


def compare(address: str, written: Written, round_number: int) -> None:
    with Client(address, "w") as client:
        for writer in range(WRITERS):
            values = {int(v) for (v,) in client.run(f"select v from t where writer = {writer}")}
            assert len(values) == 1, f"half a transaction: {values}"
            assert values <= {written.known[writer], written.tried[writer]}
            written.known[writer] = written.tried[writer] = values.pop()
        wait_until(lambda: not unfinished(client), "the jobs that were not done")
        client.run("admin check table t")
        names = {row[2] for row in client.run("show index from t")}
        assert names <= {"PRIMARY", "kv", *(f"k{number}" for number in range(round_number))}


def unfinished(client: Client) -> list[tuple[str, ...]]:
    return [row for row in client.run("admin show ddl jobs") if row[-1] not in ("synced", "cancelled", "rollback done")]
