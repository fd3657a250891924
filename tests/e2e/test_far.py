"""Spark beyond one machine: three hosts, a capture and two workers that see neither its data-dir nor its loopback.

The upstream is on the capture's own loopback. A bucket, a MariaDB and Spark's master are on a network that all share.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests import rounds
from tests.e2e.hosts import Host, Network, need_namespaces
from tests.e2e.processes import PATIENCE_SECONDS, wait_until
from tests.e2e.sqlclient import Client
from tests.e2e.standalone import Daemon
from tests.mariadb import MariaDb, need_mariadb, running
from tests.sinks.files.storage.buckets import Bucket, bucket
from tidemill.sinks.lake.reader import open_lake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = {"one": 8000, "two": 1000, "three": 1000}  # rows: most of a batch is one table, which two tasks share
# A lost host is noticed when it has been silent for so long; Spark itself would wait for two minutes.
CONF = {
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.executor.cores": "1",
}

# The capture: changefeeds at the same time on one session, as each line that it reads says, up to a ts. What it writes
# is how many batches each took, or what is wrong with it.
CAPTURE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tidemill import log
from tidemill.capture.options import RunOptions
from tidemill.capture.running import run_changefeed
from tidemill.errors import TidemillError
from tidemill.model.ts import Ts
from tidemill.spark.session import borrow_session

log.configure("info")
pd, master, conf, folder, start_ts = json.loads(sys.argv[1])
lease = borrow_session(master, conf=conf, log=Path(folder) / "spark.log")

def run(name, uri, to_ts):
    is_copied = name == "copied"
    options = RunOptions(pd, uri, Path(folder) / name, Ts(to_ts if is_copied else start_ts), Ts(to_ts), master, conf,
                         least_shared_bytes=1, initial_copy=is_copied)
    try:
        finished, status = run_changefeed(options, lambda: False, lambda feed: None, lambda now: None)
    except TidemillError as error:
        return f"{type(error).__name__}: {error}"
    assert finished
    return status.totals.batches

with ThreadPoolExecutor(8) as pool:
    for line in sys.stdin:
        to_ts, sinks = json.loads(line)
        done = {name: pool.submit(run, name, uri, to_ts) for name, uri in sinks.items()}
        print(json.dumps({name: each.result() for name, each in done.items()}), flush=True)
lease.release()
"""


class Process:
    """A command on a host, with its stdin and stdout as lines; what it says on stderr is shown if it fails."""

    def __init__(self, folder: Path, host: Host, *words: str) -> None:
        self._errors = folder / f"{len(list(folder.iterdir()))}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*host.command(), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def write(self, *line: object) -> None:
        """As one line of JSON."""
        assert self._process.stdin is not None
        print(json.dumps(line), file=self._process.stdin, flush=True)

    def read(self) -> Any:
        """The next line, as JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended; it said:\n{self.errors}"
        return json.loads(line)

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)
        self._process.stdout.close()


@dataclass(frozen=True)
class Site:
    """All hosts, with an upstream at the first, and what all of them reach."""

    capture: Host
    workers: dict[str, Host]  # by address
    daemons: list[Daemon]
    master: str
    sql: str  # at the capture's loopback
    pd: str
    bucket: Bucket
    mariadb: MariaDb
    folder: Path  # of the capture: workers do not see it

    def execute(self, *statements: str) -> list[Any]:
        """SQL on the upstream; the rows of the last."""
        with self.capture.entered(), Client(self.sql) as client, client.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def now(self) -> int:
        return int(self.execute("begin", "select @@tidb_current_ts")[0][0])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_namespaces()
    need_mariadb()
    folder, logs = tmp_path_factory.mktemp("capture"), tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        capture, *workers = (network.host() for _ in range(3))
        store = stack.enter_context(bucket("lake", network.address))
        server = stack.enter_context(running(tmp_path_factory.mktemp("mariadb"), host=network.address))
        daemons = [Daemon(logs, "master.Master", "--port", "0", address=network.address)]
        stack.callback(lambda: [each.stop() for each in reversed(daemons)])
        ready = logs / "ready"
        words = ["upstream", "--sql-port", "0", "--pd-port", "0", "--resolved-interval", "200ms", "--ready-file", ready]
        upstream = Process(logs, capture, sys.executable, "-m", "tidemill", *map(str, words))
        stack.callback(upstream.stop)
        master = daemons[0].wait_for(r"Starting Spark master at (spark://\S+)")
        for host in workers:
            size = ["--cores", "1", "--memory", "700m", "--work-dir", str(logs / f"work-{host.name}")]
            prefix = host.command(hidden=[folder])
            daemons.append(Daemon(logs, "worker.Worker", *size, master, address=host.address, prefix=prefix))
        wait_until(lambda: ready.exists() or not upstream.is_running, "the upstream")
        assert ready.exists(), upstream.errors
        found = orjson.loads(ready.read_bytes())
        for worker in daemons[1:]:
            worker.wait_for(r"(Successfully registered with master)")
        yield Site(
            capture, {host.address: host for host in workers}, daemons, master, found["sql"][0], found["pd"], store,
            server, folder,
        )  # fmt: skip


def write_rows(site: Site, first: int) -> None:
    """Into each table new rows; of those before some change, some move to another key, some go."""
    for table, rows in TABLES.items():
        for low in range(first, first + rows, 1000):
            values = ", ".join(f"({i}, '{table} {i}', {i % 97})" for i in range(low, low + 1000))
            site.execute(f"insert into shop.{table} values {values}")
        site.execute(
            f"update shop.{table} set n = n + 1000 where id % 3 = 0",
            f"delete from shop.{table} where id % 11 = 0",
            f"update shop.{table} set id = id + 1000000 where id % 500 = 1 and id < 1000000",
        )


def upstream_rows(site: Site) -> dict[str, list[tuple[str, ...]]]:
    return {
        table: sorted(tuple(map(_text, row)) for row in site.execute(f"select id, v, n from shop.{table}"))
        for table in TABLES
    }


def mariadb_rows(site: Site) -> dict[str, list[tuple[str, ...]]]:
    return {
        table: sorted(tuple(map(_text, row)) for row in site.mariadb.query(f"select id, v, n from shop.{table}"))
        for table in TABLES
    }


def lake_rows(uri: str) -> dict[str, list[tuple[str, ...]]]:
    lake = open_lake(uri)
    found = {}
    for table in TABLES:
        rows = lake.rows_at("shop", table, lake.checkpoint_ts).select(["id", "v", "n"]).to_pylist()
        found[table] = sorted(tuple(str(value) for value in row.values()) for row in rows)
    return found


def bucket_rows(site: Site, prefix: str) -> dict[str, list[tuple[str, ...]]]:
    """What a consumer of the files ends with; no change may be there twice."""
    rows: dict[str, dict[str, tuple[str, ...]]] = {table: {} for table in TABLES}
    seen: Counter[tuple[str, ...]] = Counter()
    for path, content in site.bucket.content(prefix).items():
        if not path.endswith(".json") or "/meta/" in path or path.startswith((".", "metadata")):
            continue
        for message in map(orjson.loads, content.splitlines()):
            of_table, commit_ts = rows[message["table"]], str(message["_tidb"]["commitTs"])
            for row in message["data"]:
                seen[message["table"], row["id"], commit_ts, message["type"]] += 1
                if message["type"] == "DELETE":
                    del of_table[row["id"]]
                else:
                    of_table[row["id"]] = (row["id"], row["v"], row["n"])
    assert max(seen.values()) == 1
    return {table: sorted(found.values()) for table, found in rows.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass
class Feeds:
    """A changefeed into each kind of sink, in one process on the capture's host."""

    site: Site
    sinks: dict[str, str]
    process: Process

    def go(self) -> None:
        """Capture everything up to now."""
        self.process.write(self.site.now(), self.sinks)

    def check_done(self) -> None:
        done = self.process.read()
        assert all(isinstance(batches, int) for batches in done.values()), f"{done}\n{self.process.errors}"

    def check_equal(self) -> None:
        expected = upstream_rows(self.site)
        assert mariadb_rows(self.site) == expected
        assert bucket_rows(self.site, "files") == expected
        assert lake_rows(self.sinks["iceberg"]) == expected


@pytest.fixture(scope="module")
def feeds(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feeds]:
    folder = tmp_path_factory.mktemp("feeds")
    sinks = {
        "bucket": f"s3://lake/files?protocol=canal-json&enable-tidb-extension=true&{site.bucket.parameters}",
        "mariadb": site.mariadb.uri("worker-count=4"),
        "iceberg": f"iceberg+s3://lake/warehouse?flush-interval=0s&catalog=sqlite:///{folder}/catalog.db"
        f"&{site.bucket.parameters}",
    }
    given = [site.pd, site.master, CONF, str(site.folder), site.now()]
    site.execute(
        "create database shop",
        *(f"create table shop.{table} (id bigint primary key, v varchar(40), n int)" for table in TABLES),
    )
    process = Process(folder, site.capture, sys.executable, "-c", CAPTURE, json.dumps(given))
    yield Feeds(site, sinks, process)
    for host in site.workers.values():
        host.connect()
    process.stop()


def test_every_sink_comes_out_equal_and_a_worker_that_is_cut_off_loses_nothing(site: Site, feeds: Feeds) -> None:
    write_rows(site, 1)
    feeds.go()
    feeds.check_done()
    assert mariadb_rows(site) == upstream_rows(site)
    for pid in (daemon.pid for daemon in site.daemons[1:]):  # the workers see nothing of what the capture has
        assert os.listdir(f"/proc/{pid}/root{site.folder}") == []
    assert {"bucket", "mariadb", "iceberg"} <= set(os.listdir(site.folder))

    write_rows(site, 10_000)
    with site.mariadb.connect() as holder, holder.cursor() as cursor:
        cursor.execute("lock tables " + ", ".join(f"shop.{table} write" for table in TABLES))
        feeds.go()
        stuck: set[str] = set()

        def is_stuck() -> bool:
            assert feeds.process.is_running, feeds.process.errors
            cursor.execute("select host from information_schema.processlist where state like '%metadata lock%'")
            stuck.update(host.rpartition(":")[0] for (host,) in cursor.fetchall())
            return bool(stuck)

        wait_until(is_stuck, "a worker in the midst of a batch")
        site.workers[min(stuck)].cut_off()
    feeds.check_done()
    assert "beginning the batch again" in feeds.process.errors
    feeds.check_equal()
    files = site.bucket.content("warehouse/shop/one/data")
    assert any(re.search(r"-01000-\w+\.parquet$", name) for name in files), "no table was shared by ranges of keys"


def test_what_only_the_host_of_the_capture_has_is_refused(site: Site, feeds: Feeds) -> None:
    folder = f"file://{site.folder}/files?protocol=canal-json"
    feeds.process.write(site.now(), {"folder": folder, "copied": "blackhole://"})
    refused = feeds.process.read()
    assert refused["folder"].startswith("SinkError: cannot create folder")
    assert "has to see it under this path" in refused["folder"]
    assert refused["copied"].startswith(f"UsageError: {site.pd} leads each machine to itself")


@pytest.mark.soak
def test_workers_that_come_and_go_at_random_lose_nothing(site: Site, feeds: Feeds) -> None:
    """One at a time: for less than it takes to count as lost, or for more."""
    random = Random(rounds.seed(1))
    write_rows(site, 1)
    for number in range(1, rounds.rounds(5) + 1):
        write_rows(site, number * 10_000)
        feeds.go()
        time.sleep(random.uniform(0.0, 6.0))
        host = random.choice(list(site.workers.values()))
        host.cut_off()
        time.sleep(random.choice((0.5, 5.0, 15.0, 25.0)))
        host.connect()
        feeds.check_done()
        feeds.check_equal()
