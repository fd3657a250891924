"""Keys of RawKV on the whole way into another cluster; what Spark would run runs in threads.

Whoever is killed leaves a task behind that is held up and wakes later, or is a process of its own and gone. Owner,
lanes, sorter, sink and both clusters are real.
"""

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.capture.rawkv import Run, running
from tests.e2e.processes import wait_until
from tests.e2e.rawkv import HOT, Loop, Watcher, Writer
from tests.rounds import rounds, seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.options import RunOptions
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkUnavailableError, UsageError
from tidemill.model.keys import KeyApi, KeyFilter, KeyRange
from tidemill.model.security import PLAIN
from tidemill.model.ts import Ts
from tidemill.upstream.keyspace import TXN_V1, txn_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.txn import TxnClient
from tidemill.verify.rawkv import Cluster, KeyReport, compare_keys

SEED = 20261119
STEPS = 30
PATIENCE_SECONDS = 120.0


class Scene:
    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        options: dict[str, Any] = {"api_version": 2, "resolved_interval_seconds": 0.05}
        self.rng, self.folder = random.Random(seed), folder
        self.source = stack.enter_context(EmbeddedUpstream.start(stores=3, **options))
        self.target = stack.enter_context(EmbeddedUpstream.start(stores=2, **options))
        self.loop = stack.enter_context(Loop())
        self.writer = Writer(self.loop, self.source, seed)
        stack.callback(self.writer.close)
        self.watcher = Watcher(self.loop, self.target)
        stack.callback(self.watcher.close)
        for key in (b"cold/0100", b"cold/0250", b"hot/2"):
            self.source.split(b"r\0\0\0" + key)
        self.start_ts = KeyRange().before(self.source.tso())

    def options(self, **more: Any) -> RunOptions:
        uri = f"tikv://{self.target.pd_address}?deadline=2s&batch-size=50"
        keys = KeyRange(safe_interval_seconds=0.2)
        return RunOptions(**{
            "pd": self.source.pd_address, "sink_uri": uri, "data_dir": self.folder / "data",
            "start_ts": self.start_ts, "keys": keys, **more,
        })  # fmt: skip

    def shake(self) -> None:
        for cluster in (self.source, self.target):
            cluster.split(b"r\0\0\0cold/%04d" % self.rng.randrange(400))
            cluster.transfer_leader(self.rng.choice(cluster.regions()).id, self.rng.choice([1, 2]))
        victim = self.rng.choice([self.source, self.target])
        victim.stop_store(1)
        self.writer.steps(STEPS // 3)
        victim.start_store(1)

    def compare(self) -> KeyReport:
        here, there = (Cluster(cluster.pd_address, PLAIN) for cluster in (self.source, self.target))
        return compare_keys(here, there, KeyRange(), "", 120.0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, tmp_path, seed(SEED))


async def until(run: Run, holds: Callable[[], bool], what: str) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert SYSTEM_CLOCK.monotonic() < deadline, f"waited in vain for {what}"
        run.check()
        await SYSTEM_CLOCK.sleep(0.01)


@pytest.mark.rounds
def test_the_other_cluster_is_equal_and_no_key_moves_back_whoever_is_killed(scene: Scene) -> None:
    late: list[Run] = []

    async def story() -> None:
        await asyncio.to_thread(scene.writer.steps, STEPS)
        for number in range(rounds(2)):
            async with running(scene.options(), scene.folder / f"run{number}") as run:
                await until(run, lambda run=run: run.batches > 1, "batches")
                await asyncio.to_thread(scene.shake)
                run.gate.clear()
                await asyncio.to_thread(scene.writer.steps, STEPS)
                await until(run, run.held.is_set, "a task that is held up")
                late.append(run)
            await asyncio.to_thread(scene.writer.steps, scene.rng.randrange(STEPS))
        async with running(scene.options(), scene.folder / "last") as run:
            report = await asyncio.to_thread(scene.compare)
            run.check()
            assert report.is_equal, "\n".join(report.lines())
            assert sum(part.upstream.pairs for part in report.parts) > len(HOT)
            for each in late:
                each.gate.set()
                await asyncio.to_thread(assert_it_came_too_late, each)
            again = await asyncio.to_thread(scene.compare)
            assert again.is_equal, "\n".join(again.lines())

    asyncio.run(story())
    assert scene.watcher.seen > 100
    assert scene.watcher.moved_back() == []


def assert_it_came_too_late(run: Run) -> None:
    with pytest.raises(SinkUnavailableError, match="not written within its deadline"):
        run.works[-1].result(PATIENCE_SECONDS)


@contextmanager
def process(scene: Scene, start: str = "", says: str = "running\n") -> Iterator[subprocess.Popen[str]]:
    """Given when it ``says`` so."""
    uri = str(scene.options().sink_uri)
    words = ["-m", "tests.capture.rawkv", scene.source.pd_address, uri, str(scene.folder), start or str(scene.start_ts)]
    with (
        (scene.folder / "said").open("a") as said,
        subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=said, text=True) as started,
    ):
        try:
            assert started.stdout is not None
            while (line := started.stdout.readline()) != says:
                assert line, (scene.folder / "said").read_text()
            yield started
        finally:
            started.kill()


@pytest.mark.rounds
def test_a_process_that_is_killed_is_followed_by_one_that_makes_both_clusters_equal(scene: Scene) -> None:
    scene.writer.steps(STEPS)
    for _ in range(rounds(1)):
        with process(scene) as killed:
            before = scene.watcher.seen
            wait_until(lambda before=before: scene.watcher.seen > before, "a write there")
            scene.shake()
            scene.writer.steps(scene.rng.randrange(STEPS))
            assert killed.poll() is None
            os.kill(killed.pid, signal.SIGKILL)
        scene.writer.steps(STEPS)
    with process(scene) as heir:
        report = scene.compare()
        assert report.is_equal, "\n".join(report.lines())
        assert heir.poll() is None
    assert sum(part.upstream.pairs for part in report.parts) > len(HOT)
    assert scene.watcher.moved_back() == []


def test_files_hold_each_change_of_a_range_as_a_line(scene: Scene) -> None:
    scene.source.split(b"r\0\0\0cold/0200")
    scene.writer.steps(STEPS)
    keys, end_ts = KeyRange(b"cold/0100", b"cold/0300", safe_interval_seconds=0.2), scene.source.tso()
    uri = f"file://{scene.folder}/files?protocol=rawkv-json&date-separator=none"

    async def story() -> None:
        async with running(scene.options(sink_uri=uri, keys=keys), scene.folder / "run") as run:
            await until(run, lambda: run.owner.owned.checkpoint_ts >= end_ts, "the end")

    asyncio.run(story())
    lines = [
        json.loads(line) for path in scene.folder.rglob("files/**/CDC*.json") for line in path.read_text().splitlines()
    ]
    assert {line["op"] for line in lines} == {"put", "delete"}
    assert all(line["ts"] > scene.start_ts for line in lines)
    held: dict[bytes, bytes] = {}
    for line in sorted(lines, key=lambda line: int(line["ts"])):
        key = base64.b64decode(line["key"])
        held.pop(key, None)
        if line["op"] == "put" and line.get("expiry", time.time() + 60) > time.time():
            held[key] = base64.b64decode(line["value"])
    assert held == scene.writer.pairs(keys.start, keys.end)


def test_parquet_files_hold_each_change_of_two_ranges_that_passes_the_filter(scene: Scene) -> None:
    scene.writer.steps(STEPS)
    chosen = KeyFilter((b"cold/",), "[02468]$")
    keys = KeyRange(
        b"cold/0100",
        b"cold/0200",
        safe_interval_seconds=0.2,
        more=((b"cold/0300", b"hot/3"),),
        filter=chosen,
        span_count=3,
    )
    end_ts, uri = scene.source.tso(), f"file://{scene.folder}/files?protocol=parquet"

    async def story() -> None:
        async with running(scene.options(sink_uri=uri, keys=keys), scene.folder / "run") as run:
            await until(run, lambda: run.owner.owned.checkpoint_ts >= end_ts, "the end")

    asyncio.run(story())
    paths = list(scene.folder.rglob("files/rawkv/DEFAULT-*/**/*.parquet"))
    found = {path.relative_to(scene.folder / "files/rawkv").parts[0] for path in paths}
    assert found == {"DEFAULT-1", "DEFAULT-2"}  # the third part has keys of another prefix alone
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert len({(row["key"], row["_commit_ts"]) for row in rows}) == len(rows)
    held: dict[bytes, bytes] = {}
    for row in sorted(rows, key=lambda row: int(row["_commit_ts"])):
        held.pop(row["key"], None)
        if row["_op"] != "D" and (row["expire_seconds"] or time.time() + 60) > time.time():
            held[row["key"]] = row["value"]
    there = {**scene.writer.pairs(b"cold/0100", b"cold/0200"), **scene.writer.pairs(b"cold/0300", b"hot/3")}
    assert held == {key: value for key, value in there.items() if key[:5] == b"cold/" and key[-1:] in b"02468"}


def test_a_data_dir_belongs_to_one_range_of_keys(scene: Scene) -> None:
    async def opened(**more: Any) -> None:
        async with running(scene.options(**more), scene.folder / "run"):
            pass

    asyncio.run(opened())
    with pytest.raises(UsageError, match=r"data-dir belongs to a changefeed of DEFAULT\[,\), not of DEFAULT\[61,\)"):
        asyncio.run(opened(keys=KeyRange(b"a")))
    with pytest.raises(UsageError, match="data-dir belongs to a changefeed into tikv"):
        asyncio.run(opened(keys=None, sink_uri="blackhole://"))


@pytest.mark.rounds
def test_a_copy_that_is_killed_twice_continues_and_then_follows_what_was_written_meanwhile(scene: Scene) -> None:
    for number in range(2, 400, 5):
        scene.source.split(b"r\0\0\0cold/%04d" % number)
    scene.writer.steps(STEPS)
    copied: list[dict[str, str]] = []
    for _ in range(2):
        with process(scene, "copy", says="copied some\n") as killed:
            os.kill(killed.pid, signal.SIGKILL)
        copied.append(json.loads((scene.folder / "data" / "changefeed.json").read_text())["copied"])
        scene.writer.steps(STEPS // 3)  # deletes, and values that end, of keys that were copied and of others
    first, second = copied
    assert all(first[part] <= second[part] for part in first)
    assert first != second  # it has not begun anew
    with process(scene, "copy"):
        scene.writer.steps(STEPS // 3)
        report = scene.compare()
    assert report.is_equal, "\n".join(report.lines())
    assert sum(part.upstream.pairs for part in report.parts) > len(HOT)
    assert scene.watcher.moved_back() == []


@pytest.mark.parametrize("api_version", [1, 2])
def test_keys_of_transactions_are_captured_without_sql_behind_a_copy(tmp_path: Path, api_version: int) -> None:
    keyspace = {1: TXN_V1, 2: txn_v2()}[api_version]
    keys = KeyRange(b"a", b"q", api=KeyApi.txn)

    async def commit(pd: PdClient, puts: dict[bytes, bytes], deletes: Sequence[bytes] = ()) -> Ts:
        client = TxnClient(pd, RegionCache(pd), keyspace=keyspace)
        try:
            transaction = await client.begin()
            for key, value in puts.items():
                transaction.put(key, value)
            for key in deletes:
                transaction.delete(key)
            return await transaction.commit()
        finally:
            await client.close()

    async def story(source: EmbeddedUpstream) -> tuple[Ts, Ts, Ts]:
        async with PdClient(source.pd_address) as pd:
            await commit(pd, {b"a": b"0", b"b": b"0", b"z": b"0"})
            await commit(pd, {b"a": b"1"}, [b"b"])
            uri = f"file://{tmp_path}/files?protocol=rawkv-json&date-separator=none"
            options = RunOptions(
                pd=source.pd_address, sink_uri=uri, data_dir=tmp_path / "data", keys=keys, initial_copy=True
            )
            async with running(options, tmp_path / "run") as run:
                start_ts = run.owner.state.start_ts
                first_ts = await commit(pd, {b"c": b"2", b"a": b"2", b"zz": b"2"})
                end_ts = await commit(pd, {b"d": b"x" * 1000}, [b"a"])
                await until(run, lambda: run.owner.owned.checkpoint_ts >= end_ts, "the end")
        return start_ts, first_ts, end_ts

    with EmbeddedUpstream.start(api_version=api_version, resolved_interval_seconds=0.05) as source:
        moments = asyncio.run(story(source))
    paths = tmp_path.rglob("files/txnkv/DEFAULT/**/CDC*.json")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert {line["ts"] for line in lines} == set(moments)
    copied, first, second = ([line for line in lines if line["ts"] == ts] for ts in moments)
    assert [said(line) for line in copied] == [(b"a", b"1")]
    assert sorted(map(said, first)) == [(b"a", b"2"), (b"c", b"2")]
    assert sorted(map(said, second)) == [(b"a", b""), (b"d", b"x" * 1000)]


def said(line: dict[str, Any]) -> tuple[bytes, bytes]:
    assert line["op"] == ("put" if "value" in line else "delete")
    return base64.b64decode(line["key"]), base64.b64decode(line.get("value", ""))
