"""Captures of one cluster, of which any may die: real processes, etcd, Spark and sinks."""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pymysql
import pytest

from tests.e2e import tree
from tests.e2e.captures import Captures, cluster
from tests.e2e.processes import Command, sink_uri
from tests.e2e.sqlclient import Client
from tests.etcd import Etcd, running
from tests.mariadb import MariaDb, need_mariadb
from tests.mariadb import running as mariadb_running
from tests.rounds import rounds, seed

SCHEMA = "shop"
_STEPS_A_MARK, _MOST_MARKS = 20, 4


class Load:
    """Writes to some tables all the time, changes their columns now and then, and makes and drops tables."""

    def __init__(self, address: str, tables: int, rng: random.Random) -> None:
        self._client, self._rng, self._clock = Client(address), rng, Client(address)
        self.tables = [f"t{n}" for n in range(tables)]
        self._made = tables
        self._rows = 0
        self._seen: Callable[[], int] = lambda: 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _create(self, table: str) -> None:
        self._client.run(f"create table {SCHEMA}.{table} (id int primary key, v varchar(30), n int)")

    def now_ts(self) -> int:
        """Of the upstream, from any thread but the load's."""
        return self._ts(self._clock)

    @staticmethod
    def _ts(client: Client) -> int:
        client.run("begin")
        ts = int(client.run("select @@tidb_current_ts")[0][0])
        client.run("rollback")
        return ts

    def start(self, seen: Callable[[], int]) -> None:
        """``seen``: how far readers are. They are left behind by so many steps, and no more: what is tested is not how
        much a machine can take."""
        self._seen = seen
        self._client.run(f"create database {SCHEMA}")
        for table in self.tables:
            self._create(table)
        self._thread.start()

    def _run(self) -> None:
        try:
            marks = deque([self._ts(self._client)])
            while not self._stop.wait(0.03):
                self._step()
                if self._rows % _STEPS_A_MARK == 0:
                    marks.append(self._ts(self._client))
                while len(marks) > _MOST_MARKS and not self._stop.wait(0.1):
                    while marks and marks[0] <= self._seen():
                        marks.popleft()
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

    def __init__(self, captures: Captures, names: Sequence[str]) -> None:
        self._captures, self._names = captures, names
        self._stop = threading.Event()
        self.seen: dict[str, int] = dict.fromkeys(names, 0)
        self.went_back: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            for name in self._names:
                with suppress(httpx.HTTPError, IndexError):
                    ts = self._captures.look(name)
                    if ts < self.seen[name]:
                        self.went_back.append(f"{name}: {self.seen[name]} → {ts}")
                    self.seen[name] = max(ts, self.seen[name])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def end(self) -> None:
        self.stop()
        assert self.went_back == []


@contextmanager
def watching(captures: Captures, names: Sequence[str]) -> Iterator[Watch]:
    watch = Watch(captures, names)
    try:
        yield watch
    finally:
        watch.stop()


def check_files(out: Path, expected: dict[str, list[dict[str, str | None]]]) -> None:
    """Every change once and in order, and together what upstream has."""
    tables: dict[str, dict[str, dict[str, str | None]]] = {}
    last: dict[str, int] = {}
    seen: dict[str, set[str]] = {}
    tree.check_layout(out)
    files = sorted(tree.data_files(out), key=lambda file: (file.schema, file.table, file.version, str(file.path)))
    for file in files:
        table, place = file.table, f"{file.table}/{file.version}"
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


@contextmanager
def served(folder: Path) -> Iterator[Upstream]:
    """A process of its own: what runs here would hold it up."""
    with Command(folder, "upstream", is_serving=True, pd_port=0, sql_port=0, resolved_interval="100ms") as command:
        said = command.ready()
        yield Upstream(said["pd"], said["sql"][0])
        command.kill()


@contextmanager
def loaded(upstream: Upstream, tables: int, rng: random.Random) -> Iterator[Load]:
    load = Load(upstream.sql, tables, rng)
    try:
        yield load
    finally:
        load.close()


Act = Callable[[Captures, Etcd, random.Random], None]


def _kill_owner(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    owner = captures.owner()
    captures.gone(owner)
    owner.kill()


def _kill_other(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    victim = _other(captures)
    captures.gone(victim)
    victim.kill()


def _stop_and_continue(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    """A capture with all of its workers stands still past its lease, and goes on."""
    victim = _other(captures)
    captures.gone(victim)
    processes = victim.survivors()
    for process in processes:
        process.suspend()
    was = captures.id_of(victim)
    captures.until(lambda: was not in {each["id"] for each in captures.captures()}, "the end of its session")
    captures.until(lambda: all(was not in captures.placement(name) for name in NAMES), "others that have its tables")
    for process in processes:
        process.resume()
    captures.running.append(victim)
    assert captures.id_of(victim) != was


def _restart_etcd(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    etcd.restart()


def _move(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    """One table, of each changefeed."""
    for name in NAMES:
        captures.until(partial(captures.placement, name), "tables that somebody has")
        placed = captures.placement(name)
        source = max(placed, key=lambda capture: len(placed[capture]))
        target = next(each["id"] for each in captures.captures() if each["id"] != source)
        captures.move(name, rng.choice(sorted(placed[source])), target)


def _drain(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    """Before it is stopped, a capture is emptied."""
    victim = _other(captures)
    captures.until(lambda: captures.drained(victim), "a capture without tables")
    assert victim.terminate() == 0, victim.errors
    captures.gone(victim)


def _other(captures: Captures) -> Command:
    owner = captures.owner()
    return next(each for each in captures.running if each is not owner)


NAMES = ("files", "server")
ACTS: tuple[Act, ...] = (_kill_owner, _stop_and_continue, _move, _kill_other, _restart_etcd, _drain)


def play(folder: Path, acts: list[Act], rng: random.Random) -> None:
    """Each of them while rows and DDLs are written. At the end both sinks are equal to the upstream."""
    out = folder / "out"
    with ExitStack() as stack:
        server = stack.enter_context(mariadb_running(folder / "mariadb"))
        etcd = stack.enter_context(running(folder / "etcd"))
        upstream = stack.enter_context(served(folder / "upstream"))
        load = stack.enter_context(loaded(upstream, 6, rng))
        captures = stack.enter_context(cluster(folder, upstream.pd, etcd=etcd.address))
        captures.start(3)
        start_ts = load.now_ts()
        for name, uri in zip(NAMES, (sink_uri(out), server.uri("worker-count=2")), strict=True):
            captures.create(name, uri, start_ts)
        watch = stack.enter_context(watching(captures, NAMES))
        load.start(lambda: min(watch.seen.values()))
        captures.until_past(NAMES, load.now_ts())
        for name in NAMES:
            captures.until_all_have_some(name, 3)
        for act in acts:
            act(captures, etcd, rng)
            if len(captures.running) < 3:
                captures.start(1)
            captures.until_past(NAMES, load.now_ts())
        captures.until_past(NAMES, load.end())
        watch.end()
        check_files(out, load.rows())
        check_server(server, load.rows())


@pytest.mark.soak  # it takes three JVMs: on a machine that has other work to do, longer than a test may
@pytest.mark.spark
@pytest.mark.rounds
def test_three_captures_survive_whatever_happens_to_them(tmp_path: Path) -> None:
    """An owner and another capture are killed, one stands still past its lease and goes on, etcd is restarted, tables
    are moved, and a capture is drained."""
    need_mariadb()
    for number in range(rounds(1)):
        rng = random.Random(f"{seed(15)}-{number}")
        acts = [rng.choice(ACTS) for _ in range(2 * len(ACTS))] if number else list(ACTS)
        play(tmp_path / str(number), acts, rng)
