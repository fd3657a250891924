"""Captures of one cluster, of which any may die: real processes, etcd, Spark and sinks."""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.e2e.captures import SESSION_SECONDS, Captures, cluster
from tests.e2e.processes import Command
from tests.e2e.sqlclient import Client
from tests.e2e.targets import Rows, target, text_of
from tests.etcd import Etcd, running
from tests.mariadb import need_mariadb
from tests.rounds import rounds, seed
from tidemill.model.ts import Ts, lag_seconds

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

    def rows(self) -> Rows:
        """Of each table, by key, as texts."""
        found = {}
        for table in sorted(self.tables):
            names = [row[0] for row in self._client.run(f"show columns from {SCHEMA}.{table}")]
            rows = self._client.run(f"select * from {SCHEMA}.{table} order by id")
            found[table] = [{n: text_of(v) for n, v in zip(names, row, strict=True)} for row in rows]
        return found

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._client.close()
        self._clock.close()


class Watch:
    """Looks at checkpoints all the time: they never move back, and how far they are behind."""

    def __init__(self, captures: Captures, names: Sequence[str]) -> None:
        self._captures, self._names = captures, names
        self._stop = threading.Event()
        self.seen: dict[str, int] = dict.fromkeys(names, 0)
        self.went_back: list[str] = []
        self._worst = 0.0
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
            if all(self.seen.values()):
                self._worst = max(self._worst, lag_seconds(Ts(min(self.seen.values())), time.time()))

    def worst_lag(self) -> float:
        """In seconds, since it was asked last."""
        worst, self._worst = self._worst, 0.0
        return worst

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
    captures.until(
        lambda: all(was not in captures.placement(name) for name in captures.names), "others that have its tables"
    )
    for process in processes:
        process.resume()
    captures.running.append(victim)
    assert captures.id_of(victim) != was


def _restart_etcd(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    etcd.restart()


def _move(captures: Captures, etcd: Etcd, rng: random.Random) -> None:
    """One table, of each changefeed."""
    for name in captures.names:
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


ACTS: tuple[Act, ...] = (_kill_owner, _stop_and_continue, _move, _kill_other, _restart_etcd, _drain)
LEASE, FEW = float(SESSION_SECONDS), 5.0
# The checkpoint may be so many seconds further behind while it happens. Nothing that is planned is waited for.
MOST_LAG: dict[Act, float] = {
    _move: FEW, _drain: FEW, _kill_other: LEASE + FEW, _kill_owner: LEASE + FEW, _stop_and_continue: LEASE + FEW,
}  # fmt: skip


def play(folder: Path, kinds: Sequence[str], acts: Sequence[Act], rng: random.Random, *, tables: int = 6) -> None:
    """Each of them while rows and DDLs are written. At the end all sinks are equal to the upstream."""
    began = time.monotonic()

    def told(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    with ExitStack() as stack:
        targets = {kind: stack.enter_context(target(kind, folder)) for kind in kinds}
        etcd = stack.enter_context(running(folder / "etcd"))
        upstream = stack.enter_context(served(folder / "upstream"))
        load = stack.enter_context(loaded(upstream, tables, rng))
        captures = stack.enter_context(cluster(folder, upstream.pd, etcd=etcd.address))
        captures.start(3)
        told("three captures are there")
        start_ts = load.now_ts()
        for name in kinds:
            captures.create(name, targets[name].uri, start_ts)
        watch = stack.enter_context(watching(captures, kinds))
        load.start(lambda: min(watch.seen.values()))
        captures.until_past(kinds, load.now_ts())
        told("the changefeeds run")
        for name in kinds:
            captures.until_all_have_some(name, 3)
        captures.until_past(kinds, load.now_ts())
        told("all captures have tables")
        watch.worst_lag()
        captures.until_past(kinds, load.now_ts())
        usual = watch.worst_lag()
        for act in acts:
            name = act.__name__[1:]
            act(captures, etcd, rng)
            told(f"{name} is done")
            captures.until_past(kinds, load.now_ts())
            lag = watch.worst_lag()
            said = f"{name}: the checkpoint was {lag:.1f} s behind at most; before {usual:.1f} s"
            told(said)
            assert lag <= MOST_LAG.get(act, inf) + 3 * usual, said
            if len(captures.running) < 3:
                captures.start(1)
                told("another capture is there")
                for kind in kinds:
                    captures.until_all_have_some(kind, 3)
                captures.until_past(kinds, load.now_ts())
                told("it has tables")
                watch.worst_lag()
        captures.until_past(kinds, load.end())
        told("all is written")
        watch.end()
        rows = load.rows()
        for each in targets.values():
            each.check(SCHEMA, rows)


@pytest.mark.spark
def test_three_captures_go_on_when_one_is_killed_and_its_tables_move(tmp_path: Path) -> None:
    """The owner is among them."""
    need_mariadb()
    play(tmp_path, ["server"], [_move, _kill_owner], random.Random(seed(15)), tables=12)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.rounds
@pytest.mark.parametrize("kinds", [["server", "files"], ["iceberg"], ["kafka"]], ids="+".join)
def test_three_captures_survive_whatever_happens_to_them(tmp_path: Path, kinds: list[str]) -> None:
    """An owner and another capture are killed, one stands still past its lease and goes on, etcd is restarted, tables
    are moved, and a capture is drained."""
    need_mariadb()
    for number in range(rounds(1)):
        rng = random.Random(f"{seed(15)}-{number}")
        acts = [rng.choice(ACTS) for _ in range(2 * len(ACTS))] if number else list(ACTS)
        play(tmp_path / str(number), kinds, acts, rng, tables=50)
