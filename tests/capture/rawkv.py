"""A changefeed of RawKV keys in one process, but for Spark: its units run in threads.

python -m tests.capture.rawkv PD SINK_URI FOLDER START_TS        until it is killed
python -m tests.capture.rawkv PD SINK_URI FOLDER copy            the same, with an initial copy
"""

import asyncio
import os
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.capture.test_two_processors import abandon
from tidemill.capture.batches import Admission, Totals
from tidemill.capture.copying import InitialCopy
from tidemill.capture.downstream import Downstream
from tidemill.capture.lanes import LaneBuilder
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.opening import Opened, Opening
from tidemill.capture.options import RunOptions
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.processor import SpanProcessor
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.pace import Amount, Bounds
from tidemill.flow.filter import ColumnSelector, TableFilter
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.sorter import Shelf
from tidemill.model.keys import KeyRange
from tidemill.model.orders import EVERYTHING
from tidemill.model.receipt import Receipt
from tidemill.model.security import PLAIN
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.upstream.pd import PdClient


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
    state = opened.state
    if state.copied is not None:
        state = await copied(pd, opened, data_dir, downstream)
    run.owner = ChangefeedOwner(opened.feed, opened.sink, state, states)
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


async def copied(pd: PdClient, opened: Opened, data_dir: DataDir, downstream: Downstream) -> ChangefeedState:
    """As ``Changefeed`` has it, with threads in the place of Spark."""
    writer = opened.sink_options.open_writer("main/copy")
    config = downstream.config
    copy = InitialCopy(
        pd, opened.source, opened.feed.store, TableFilter(config), opened.sink, writer, downstream.traits,
        ColumnSelector(config), opened.state, data_dir, downstream.zone, Totals(),
    )  # fmt: skip
    try:
        await copy.plan()
        await asyncio.to_thread(copy.prepare)
        with ThreadPoolExecutor(4) as threads:
            done = copy.parts_done
            while await asyncio.to_thread(
                copy.step, lambda units: list(threads.map(downstream.pipeline.process, units))
            ):
                if copy.parts_done > done:  # a batch may have been lost
                    print("copied some", flush=True)
                done = copy.parts_done
        return copy.state
    finally:
        await asyncio.to_thread(copy.close)


async def run_until_killed(pd: str, sink_uri: str, folder: Path, start: str) -> None:
    keys = KeyRange(safe_interval_seconds=0.2)
    options = RunOptions(pd=pd, sink_uri=sink_uri, data_dir=folder / "data", keys=keys)
    options = replace(options, initial_copy=True) if start == "copy" else replace(options, start_ts=Ts(int(start)))
    async with running(options, folder / f"run{os.getpid()}") as run:
        print("running", flush=True)
        while True:
            run.check()
            await SYSTEM_CLOCK.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(run_until_killed(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
