"""Captures of one cluster, of which any may die: real processes, etcd, Spark and sinks."""

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pymysql
import pytest

from tests.e2e import tree
from tests.e2e.captures import Captures, cluster
from tests.e2e.processes import Command, sink_uri, wait_until
from tests.e2e.sqlclient import Client
from tests.etcd import Etcd, running
from tests.mariadb import MariaDb, need_mariadb
from tests.mariadb import running as mariadb_running
from tests.rounds import seed

SCHEMA = "shop"


class Load:
    """Writes to some tables all the time, changes their columns now and then, and makes and drops tables."""

    def __init__(self, address: str, tables: int, rng: random.Random) -> None:
        self._client, self._rng, self._clock = Client(address), rng, Client(address)
        self._client.run(f"create database {SCHEMA}")
        self.tables = [f"t{n}" for n in range(tables)]
        for table in self.tables:
            self._create(table)
        self._made = tables
        self._rows = 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _create(self, table: str) -> None:
        self._client.run(f"create table {SCHEMA}.{table} (id int primary key, v varchar(30), n int)")

    def now_ts(self) -> int:
        """Of the upstream, from any thread but the load's."""
        self._clock.run("begin")
        ts = int(self._clock.run("select @@tidb_current_ts")[0][0])
        self._clock.run("rollback")
        return ts

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.03):
                self._step()
        except BaseException as error:
            self._failure = error

    def _step(self) -> None:
        table, chance = self._rng.choice(self.tables), self._rng.random()
        self._rows += 1
        key = self._rng.randrange(60)
        if chance < 0.6:
            self._client.run(f"replace into {SCHEMA}.{table} (id, v, n) values ({key}, 'v{self._rows}', {self._rows})")
        elif chance < 0.8:
            self._client.run(f"update {SCHEMA}.{table} set n = {self._rows} where id < {key}")
        elif chance < 0.985:
            self._client.run(f"delete from {SCHEMA}.{table} where id = {key}")
        elif chance < 0.99:
            self._client.run(f"alter table {SCHEMA}.{table} add column c{self._rows} int default {key}")
        elif chance < 0.995:
            self._made += 1
            self.tables.append(f"t{self._made}")
            self._create(self.tables[-1])
        elif len(self.tables) > 3:
            self.tables.remove(table)
            self._client.run(f"drop table {SCHEMA}.{table}")

    def end(self) -> int:
        """No more is written after the ts that it returns."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.now_ts()

    def rows(self) -> dict[str, list[dict[str, str | None]]]:
        """Of each table, by key, as texts."""
        found = {}
        for table in sorted(self.tables):
            names = [row[0] for row in self._client.run(f"show columns from {SCHEMA}.{table}")]
            rows = self._client.run(f"select * from {SCHEMA}.{table} order by id")
            found[table] = [{n: _text(v) for n, v in zip(names, row, strict=True)} for row in rows]
        return found

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._client.close()
        self._clock.close()


def _text(value: object) -> str | None:
    return None if value is None else value.decode() if isinstance(value, bytes) else str(value)


class Watch:
    """Looks at checkpoints all the time: they never move back."""

    def __init__(self, captures: Captures, names: list[str]) -> None:
        self._captures, self._names = captures, names
        self._stop = threading.Event()
        self.seen: dict[str, int] = dict.fromkeys(names, 0)
        self.went_back: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            for name in self._names:
                with suppress(AssertionError, StopIteration, KeyError):
                    ts = self._captures.checkpoint_ts(name)
                    if ts < self.seen[name]:
                        self.went_back.append(f"{name}: {self.seen[name]} → {ts}")
                    self.seen[name] = max(ts, self.seen[name])

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.went_back == []


def check_files(out: Path, expected: dict[str, list[dict[str, str | None]]]) -> None:
    """Every change once and in order, and together what upstream has."""
    tables: dict[str, dict[str, dict[str, str | None]]] = {}
    last: dict[str, int] = {}
    seen: dict[str, set[str]] = {}
    tree.check_layout(out)
    files = sorted(tree.data_files(out), key=lambda file: (file.schema, file.table, file.version, str(file.path)))
    for file in files:
        table, place = file.table, f"{file.table}/{file.version}"
        if file.version not in (versions := _versions.setdefault((out, table), [])):
            versions.append(file.version)
        for message in file.messages():
            ts = int(message["_tidb"]["commitTs"])
            assert ts >= last.get(place, 0), f"{place}: {ts} behind {last[place]}"
            last[place] = ts
            identity = tree.identity(message)
            assert identity not in seen.setdefault(f"{place}/{ts}", set()), f"{place}: twice: {identity}"
            seen[f"{place}/{ts}"].add(identity)
            rows = tables.setdefault(table, {})
            for row in message["data"]:
                if message["type"] == "DELETE":
                    rows.pop(row["id"], None)
                else:
                    rows[row["id"]] = row
    for table, wanted in expected.items():
        found = sorted(tables.get(table, {}).values(), key=lambda row: int(str(row["id"])))
        assert [row["id"] for row in found] == [row["id"] for row in wanted], table
        for ours, theirs in zip(found, wanted, strict=True):
            # A column that came after the row was written last has its default upstream, and is not in its message.
            assert ours.items() <= theirs.items(), table


_versions: dict[tuple[Path, str], list[int]] = {}


def check_server(server: MariaDb, expected: dict[str, list[dict[str, str | None]]]) -> None:
    with pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True) as connection:
        cursor = connection.cursor(pymysql.cursors.DictCursor)
        cursor.execute(f"show tables from {SCHEMA}")
        names = {next(iter(row.values())) for row in cursor.fetchall()}
        assert names == set(expected)
        for table, wanted in expected.items():
            cursor.execute(f"select * from {SCHEMA}.{table} order by id")
            found = [{name: _text(value) for name, value in row.items()} for row in cursor.fetchall()]
            assert found == wanted, table


class Upstream(NamedTuple):
    pd: str
    sql: str


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    """A process of its own: what runs here would hold it up."""
    with Command(
        tmp_path / "upstream", "upstream", is_serving=True, pd_port=0, sql_port=0, resolved_interval="100ms"
    ) as command:
        said = command.ready()
        yield Upstream(said["pd"], said["sql"][0])
        command.kill()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running(tmp_path / "etcd") as server:
        yield server


@contextmanager
def loaded(upstream: Upstream, tables: int, rng: random.Random) -> Iterator[Load]:
    load = Load(upstream.sql, tables, rng)
    try:
        yield load
    finally:
        load.close()


@pytest.mark.spark
def test_captures_that_die_or_stand_still_lose_nothing_and_repeat_nothing(
    upstream: Upstream, etcd: Etcd, tmp_path: Path
) -> None:
    """Of three captures one is killed, one stands still past its lease and goes on, and then the owner is killed. The
    one that had stood still has all tables at the end."""
    rng = random.Random(seed(15))
    out = tmp_path / "out"
    with (
        loaded(upstream, 6, rng) as load,
        cluster(tmp_path, upstream.pd, etcd=etcd.address) as captures,
    ):
        captures.start(3)
        captures.create("files", sink_uri(out), load.now_ts())
        load.start()
        watch = Watch(captures, ["files"])
        captures.until_past("files", load.now_ts())
        captures.until_all_have_some("files", 3)
        for act in (_kill_other, _stop_and_continue, _kill_owner):
            act(captures, etcd, rng)
            captures.until_past("files", load.now_ts())
            captures.until_all_have_some("files", len(captures.running))
        captures.until_past("files", load.end())
        watch.end()
        check_files(out, load.rows())
        (last,) = captures.running
        assert last.terminate() == 0
        captures.gone(last)


@pytest.mark.soak
@pytest.mark.spark
def test_three_captures_survive_whatever_happens_to_them(upstream: Upstream, etcd: Etcd, tmp_path: Path) -> None:
    need_mariadb()
    rng = random.Random(seed(15))
    out = tmp_path / "out"
    with (
        mariadb_running(tmp_path / "mariadb") as server,
        loaded(upstream, 20, rng) as load,
        cluster(tmp_path, upstream.pd, etcd=etcd.address) as captures,
    ):
        captures.start(3)
        start_ts = load.now_ts()
        server.query(f"create database {SCHEMA}")
        captures.create("files", sink_uri(out), start_ts)
        names = ["files"]
        load.start()
        watch = Watch(captures, names)

        def until_current() -> None:
            for name in names:
                captures.until_past(name, load.now_ts())

        until_current()
        for act in (_kill_owner, _kill_other, _stop_and_continue, _restart_etcd, _move, _drain):
            print(f"{time.strftime('%H:%M:%S')} {act.__name__}", flush=True)
            act(captures, etcd, rng)
            if len(captures.running) < 3:
                captures.start(1)
            until_current()
        end_ts = load.end()
        for name in names:
            captures.until_past(name, end_ts)
        watch.end()
        check_files(out, load.rows())


def _kill_owner(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    owner = captures.owner()
    captures.gone(owner)
    owner.kill()


def _kill_other(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    owner = captures.owner()
    victim = next(each for each in captures.running if each is not owner)
    captures.gone(victim)
    victim.kill()


def _stop_and_continue(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    """A capture with all of its workers stands still past its lease, and goes on."""
    owner = captures.owner()
    victim = next(each for each in captures.running if each is not owner)
    captures.gone(victim)
    processes = victim.survivors()
    for process in processes:
        process.suspend()
    was = captures.id_of(victim)
    wait_until(
        lambda: was not in {each["id"] for each in captures.captures()}, "the end of its session", every_seconds=0.2
    )
    for process in processes:
        process.resume()
    captures.running.append(victim)
    wait_until(lambda: len(captures.captures()) == len(captures.running), "its return", every_seconds=0.2)
    captures.learn(victim)


def _restart_etcd(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    etcd.restart()


def _move(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    placed = captures.placement("files")
    source = max(placed, key=lambda capture: len(placed[capture]))
    target = next(each["id"] for each in captures.captures() if each["id"] != source)
    table = rng.choice(sorted(placed[source]))
    captures.ask("POST", "/api/v1/changefeeds/files/tables/move_table", {"capture_id": target, "table_id": table})
    wait_until(lambda: table in captures.placement("files").get(target, set()), "a move", every_seconds=0.2)


def _drain(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    owner = captures.owner()
    victim = captures.id_of(next(each for each in captures.running if each is not owner))
    wait_until(
        lambda: captures.ask("POST", f"/api/v2/captures/{victim}/drain")["current_table_count"] == 0,
        "a drain",
        every_seconds=0.3,
    )
    assert captures.named(victim).terminate() == 0
    captures.gone(captures.named(victim))


@pytest.mark.parametrize("signals", [[signal.SIGTERM]])
def test_a_capture_without_work_ends_at_once(upstream: Upstream, tmp_path: Path, signals: list[int]) -> None:
    with cluster(tmp_path, upstream.pd) as captures:
        (capture,) = captures.start(1)
        assert json.loads(json.dumps(captures.captures()))[0]["is_owner"]
        began = time.monotonic()
        assert capture.terminate() == 0
        assert time.monotonic() - began < 60
        captures.gone(capture)
