"""Keys of RawKV on the whole way into another cluster; what Spark would run runs in threads.

Whoever is killed leaves a task behind that is held up and wakes later. Owner, lanes, sorter, sink and both clusters are
real.
"""

import asyncio
import base64
import json
import pickle
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.capture.test_two_processors import abandon
from tests.e2e.rawkv import HOT, Loop, Watcher, Writer
from tests.rounds import rounds, seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Admission, Totals
from tidemill.capture.downstream import Downstream
from tidemill.capture.lanes import LaneBuilder
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import DataDir, StateWriter
from tidemill.capture.opening import Opening
from tidemill.capture.options import RunOptions
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.processor import SpanProcessor
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.pace import Amount, Bounds
from tidemill.errors import SinkUnavailableError, UsageError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.sorter import Shelf
from tidemill.model.orders import EVERYTHING
from tidemill.model.receipt import Receipt
from tidemill.model.security import PLAIN
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.keyrange import KeyRange
from tidemill.upstream.pd import PdClient
from tidemill.verify.rawkv import Cluster, KeyReport, compare_keys

SEED = 20261119
STEPS = 30
PATIENCE_SECONDS = 120.0


class ThreadEngine:
    """Runs units in a thread, while the gate is open. Closing it ends nothing that has begun."""

    tasks = 2

    def __init__(self, run: "Run") -> None:
        self._run, self._thread = run, ThreadPoolExecutor(1)

    def submit(self, pipeline: Pipeline, units: Sequence[Unit], what: str) -> "Future[list[Receipt]]":
        self._run.batches += 1
        pipeline, units = pickle.loads(pickle.dumps((pipeline, units)))  # as they travel to executors
        work = self._thread.submit(lambda: [self._process(pipeline, unit) for unit in units])
        self._run.works.append(work)
        return work

    def _process(self, pipeline: Pipeline, unit: Unit) -> Receipt:
        if not self._run.gate.is_set():
            self._run.held.set()
            self._run.gate.wait()
        return pipeline.process(unit)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


class Run:
    """One process of a changefeed."""

    def __init__(self) -> None:
        self.gate, self.held = threading.Event(), threading.Event()
        self.gate.set()
        self.works: list[Future[list[Receipt]]] = []
        self.batches = 0
        self.owner: ChangefeedOwner
        self.processor: SpanProcessor

    def check(self) -> None:
        failures = (self.owner.beside.failure, self.processor.failure)
        failure = next((each for each in failures if each is not None), None)
        if failure is not None:
            raise failure


def no_rows(table: TableInfo, physical_ids: Sequence[int], ts: Ts) -> Iterator[Any]:
    raise AssertionError("keys have no DDL that would ask for this")


@asynccontextmanager
async def running(options: RunOptions, scratch: Path) -> AsyncIterator[Run]:
    """Left without ``close``, as a process that is killed: its task that is held up stays."""
    data_dir = DataDir(options.data_dir)
    data_dir.acquire()
    states = StateWriter(data_dir)
    try:
        async with PdClient(options.pd) as pd, started(options, pd, data_dir, states, scratch) as run:
            yield run
    finally:
        states.close()
        data_dir.release()


@asynccontextmanager
async def started(
    options: RunOptions, pd: PdClient, data_dir: DataDir, states: StateWriter, scratch: Path
) -> AsyncIterator[Run]:
    downstream, run = Downstream.of(options), Run()
    opening = Opening(
        options, data_dir, downstream.sink, downstream.place, downstream.zone, PLAIN, no_rows, opened=lambda sink: None
    )
    opened = await opening.run(pd)
    run.owner = ChangefeedOwner(opened.feed, opened.sink, opened.state, states)
    most = Amount(200, 1 << 30)  # several batches, and some that end in the middle of what one write did

    def engine(name: str) -> Any:
        return ThreadEngine(run)

    builder = LaneBuilder(
        pd, opened.feed, run.owner, opened.sink_options.open_writer, downstream.traits, options.config, scratch,
        64 << 20, None, Shelf(), lambda engine: Admission(Bounds(most, most)), downstream.pipeline, Totals(),
        engine, source=opened.source,
    )  # fmt: skip
    run.processor = SpanProcessor("main", builder)
    await run.processor.start(EVERYTHING, run.owner.state.at, written_ts=opened.written_ts, replaces=NOBODY)
    run.owner.start()
    tasks = [asyncio.create_task(opened.feed.run()), opening.holding]
    try:
        yield run
        if run.gate.is_set():
            await run.processor.close()
            await run.owner.close()
    finally:
        if not run.gate.is_set():
            await abandon(run.processor)
        for task in tasks:
            assert task is not None
            task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


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
        return compare_keys(here, there, KeyRange(), "", 30.0)


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


def test_a_data_dir_belongs_to_one_range_of_keys(scene: Scene) -> None:
    async def opened(**more: Any) -> None:
        async with running(scene.options(**more), scene.folder / "run"):
            pass

    asyncio.run(opened())
    with pytest.raises(UsageError, match=r"data-dir belongs to a changefeed of DEFAULT\[,\), not of DEFAULT\[61,\)"):
        asyncio.run(opened(keys=KeyRange(b"a")))
    with pytest.raises(UsageError, match="data-dir belongs to a changefeed into tikv"):
        asyncio.run(opened(keys=None, sink_uri="blackhole://"))
