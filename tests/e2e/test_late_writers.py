"""A Python worker, its daemon or the JVM is killed while a sibling of the same batch is held by SIGSTOP.

It is continued when later batches have been committed: whatever the sink, nothing of it lands, and every change is
there once.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e import tree
from tests.e2e.holding import HeldChangefeed, Round
from tests.e2e.processes import PATIENCE_SECONDS, sink_uri
from tests.e2e.sqlclient import Client
from tests.mariadb import MariaDb, need_mariadb
from tests.rounds import is_soak
from tests.sinks.files.storage.buckets import bucket
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.options import RunOptions
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.ts import Ts
from tidemill.sinks.lake.reader import open_lake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

VICTIMS = ("worker", "daemon", "jvm")
GONE = "gone"  # what becomes of tasks beside a JVM that is replaced: everything that it had started is ended with it
Changes = list[tuple[int, int]]  # (id, v) of a table, in commit order


@pytest.fixture(scope="module")
def upstream(spark: Any) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, sql_nodes=1, resolved_interval_seconds=0.05) as started:
        execute(started, "create database shop")
        for table in ("late", "victim"):
            execute(started, f"create table shop.{table} (id int primary key, v int)")
        yield started


def execute(upstream: EmbeddedUpstream, *statements: str) -> int:
    """Run them in one transaction; a ts behind it."""
    with Client(upstream.sql_addresses[0]) as client:
        for statement in ("begin", *statements, "commit") if len(statements) > 1 else statements:
            client.run(statement)
    return int(upstream.tso())


def both(statement: str) -> tuple[str, str]:
    late, victim = (statement.replace("TABLE", f"shop.{table}") for table in ("late", "victim"))
    return late, victim


@dataclass(frozen=True)
class Downstream:
    """Where it goes, and what of a table is there."""

    uri: str
    read: Callable[[str], Changes]
    by_rename: bool = False  # its files get their names by a rename
    is_state: bool = False  # it shows the newest value of a row, no history
    is_fenced: bool = False  # a late task hears of it


def files(folder: Path) -> Downstream:
    root = folder / "files"

    def read(table: str) -> Changes:
        found = [m for m in tree.messages(root) if m["table"] == table]
        return [(int(m["data"][0]["id"]), int(m["data"][0]["v"])) for m in found]

    return Downstream(sink_uri(root), read, by_rename=True, is_fenced=True)


def lake(kind: str) -> Callable[[Path], Downstream]:
    def make(folder: Path) -> Downstream:
        root = folder / kind
        uri = f"file://{root}?protocol=parquet&" if kind == "parquet" else f"{kind}://{root}?"

        def read(table: str) -> Changes:
            found = open_lake(f"{uri}flush-interval=0s")
            changes = found.changes(found.table("shop", table)).sort_by("_commit_ts")
            return list(zip(changes["id"].to_pylist(), changes["v"].to_pylist(), strict=True))

        return Downstream(f"{uri}flush-interval=0s", read, by_rename=True, is_fenced=kind == "parquet")

    return make


def blackhole(folder: Path) -> Downstream:
    def read(table: str) -> Changes:
        """It counts; half of what it counted is either table's."""
        state = json.loads((folder / "data" / "changefeed.json").read_bytes())
        assert state["sink_state"]["rows"] == state["rows"]
        return [(0, 0)] * (state["rows"] // 2)

    return Downstream("blackhole://", read)


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with MariaDb(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def downstream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Downstream]:
    match request.param:
        case "mysql":
            server: MariaDb = request.getfixturevalue("mariadb")
            server.query("create database shop")
            for table in ("late", "victim"):
                server.query(f"create table shop.{table} (id int primary key, v int)")
            rows = "select id, v from shop.{} order by id"
            yield Downstream(server.uri(), lambda table: list(server.query(rows.format(table))), is_state=True)  # type: ignore[arg-type]
        case "bucket":
            with bucket() as made:
                uri = f"s3://{made.name}/files?protocol=canal-json&{made.parameters}"

                def read(table: str) -> Changes:
                    objects = made.content(f"files/shop/{table}")
                    lines = [line for name in sorted(objects) if "CDC0" in name for line in objects[name].splitlines()]
                    found = [json.loads(line)["data"][0] for line in lines if line]
                    return [(int(row["id"]), int(row["v"])) for row in found]

                yield Downstream(uri, read, is_fenced=True)
        case kind:
            yield {"files": files, "blackhole": blackhole}.get(kind, lake(kind))(tmp_path)


class Run:
    """A changefeed in this process, driven by hand."""

    def __init__(self, feed: HeldChangefeed) -> None:
        self.feed = feed

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
        while not holds():
            self.feed.poll()
            assert SYSTEM_CLOCK.monotonic() < deadline, f"waited in vain for {what}"

    def until_durable(self, ts: int) -> None:
        self.until(lambda: self.feed.owner.owned.checkpoint_ts >= ts, f"the checkpoint {ts}")

    def lose_a_batch(self, upstream: EmbeddedUpstream, round: Round, number: int, victim: str) -> str:
        """Returns what became of the late task."""
        self._keep_siblings_alive()
        round.begin()
        execute(upstream, *both(f"insert into TABLE values ({number}, 1)"))
        self.until(lambda: is_stopped(round.read("late.held")), "a task that stands still")
        self.until(lambda: is_stopped(round.read("victim.held")), "another one")
        late = int(round.read("late.held") or 0)
        try:
            kill(victim, int(round.read("victim.held") or 0))
            # Batches are cut elsewhere than the one that was lost, and go on behind it.
            execute(upstream, *both(f"update TABLE set v = 2 where id = {number}"))
            self.until_durable(execute(upstream, *both(f"insert into TABLE values ({number * 10}, 1)")))
            if victim == "jvm" and not is_alive(late):
                return GONE
            assert is_stopped(str(late))
            os.kill(late, signal.SIGCONT)
            self.until(lambda: round.read("late.ended") is not None, "the end of the late task")
        finally:
            if is_alive(late):
                os.kill(late, signal.SIGKILL)
        return round.read("late.ended") or ""

    def _keep_siblings_alive(self) -> None:
        """Spark kills what is left of a job after two seconds, if it can. It must not be what makes this pass."""
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        assert session is not None
        session.sparkContext._jsc.sc().conf().set("spark.python.task.killTimeout", "1h")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: str | None) -> bool:
    return pid is not None and psutil.Process(int(pid)).status() == psutil.STATUS_STOPPED


def kill(victim: str, worker: int) -> None:
    """The worker in any case: what else is killed does not end it."""
    daemon = psutil.Process(worker).parent()
    assert daemon is not None
    doomed = [daemon] if victim != "worker" else []
    if victim == "jvm":
        found = [p for p in psutil.Process().children() if "SparkSubmit" in " ".join(p.cmdline())]
        assert len(found) == 1
        doomed += found
    for process in [*doomed, psutil.Process(worker)]:
        process.kill()


@pytest.mark.rounds
@pytest.mark.parametrize(
    "downstream",
    [
        *("files", "mysql", "iceberg", "bucket"),
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("parquet", "blackhole", "delta")),
    ],
    indirect=True,
)
def test_a_sibling_that_goes_on_late_changes_nothing(
    upstream: EmbeddedUpstream, downstream: Downstream, tmp_path: Path
) -> None:
    rounds = tmp_path / "rounds"
    rounds.mkdir()
    for table in ("late", "victim"):
        execute(upstream, f"delete from shop.{table}")
    options = RunOptions(upstream.pd_address, downstream.uri, tmp_path / "data", Ts(upstream.tso()))
    feed = HeldChangefeed(options, rounds, by_rename=downstream.by_rename)
    run = Run(feed)
    history: Changes = [(0, 1)]
    try:
        feed.start()
        run.until_durable(execute(upstream, *both("insert into TABLE values (0, 1)")))
        # A JVM takes longest to come back. That it does is the same for all; a soak tries it with each.
        victims = VICTIMS if is_soak() or downstream.uri.startswith("file:") else VICTIMS[:2]
        for number, victim in enumerate(victims, 1):
            outcome = run.lose_a_batch(upstream, Round(rounds, number), number, victim)
            assert outcome in ("SupersededError", GONE) or not downstream.is_fenced
            history += [(number, 1), (number, 2), (number * 10, 1)]
        run.until_durable(execute(upstream, *both("insert into TABLE values (99, 1)")))
        history.append((99, 1))
    finally:
        feed.close()
    expected = sorted(dict(history).items()) if downstream.is_state else history
    for table in ("late", "victim"):
        found = downstream.read(table)
        assert len(found) == len(expected)
        assert found == expected or downstream.uri == "blackhole://"
