"""A changefeed from the upstream to where Spark would begin: an owner and one lane that has all tables."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.capture.batches import Admission, Batch, Totals
from tidemill.capture.lane import Lane
from tidemill.capture.lanes import LaneBuilder, RunningLane
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.flow.pipeline import Pipeline
from tidemill.flow.schema import SchemaStore
from tidemill.flow.schema.loader import load_schema
from tidemill.flow.sorter import Shelf, Sorter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.orders import EVERYTHING
from tidemill.model.ts import Ts
from tidemill.sinks import Traits
from tidemill.sinks.blackhole import BlackholeOwner, BlackholeWriter
from tidemill.source.intake import FEW_READINGS
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

PATIENCE_SECONDS = 120.0


class BothHalves(BlackholeOwner, BlackholeWriter):
    """Of a sink that keeps nothing, in one object: tests change what they are about."""

    def __init__(self) -> None:
        BlackholeOwner.__init__(self)
        BlackholeWriter.__init__(self, "main/0")


@dataclass
class Feed:
    pd: PdClient
    owner: ChangefeedOwner
    running: RunningLane
    schema: SchemaStore
    data_dir: DataDir
    following: "asyncio.Task[None]"

    @property
    def lane(self) -> Lane:
        return self.running.lane

    @property
    def sorter(self) -> Sorter:
        return self.running.sorter

    @property
    def checkpoint_ts(self) -> Ts:
        return self.owner.owned.checkpoint_ts

    @property
    def failure(self) -> BaseException | None:
        following = self.following.exception() if self.following.done() else None
        return self.running.failure or self.owner.beside.failure or following

    async def begin(self) -> Batch:
        """As the driver does, until a batch is at hand."""
        while True:
            assert self.failure is None, self.failure
            batch = await self.lane.batches.offer(0.2)
            if batch is not None:
                return batch

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await SYSTEM_CLOCK.sleep(0.01)


async def schema_at(pd: PdClient, ts: Ts) -> SchemaStore:
    reader = SnapshotReader(pd, RegionCache(pd))
    try:
        return await load_schema(reader, ts, ts, {})
    finally:
        await reader.close()


class _EarlyBuilder(LaneBuilder):
    """``early`` opens the sorter of early changes."""

    __slots__ = ("early",)

    def __init__(self, early: Callable[[Path], Sorter] | None, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        object.__setattr__(self, "early", early)

    def _open_sorter(self, folder: Path, share: float) -> Sorter:
        if self.early is not None and folder.name.endswith("-early"):
            return self.early(folder)
        return super()._open_sorter(folder, share)


@asynccontextmanager
async def feeding(
    pd: PdClient,
    schema: SchemaStore,
    state: ChangefeedState,
    folder: Path,
    *,
    sink: Any = None,
    target_ts: Ts | None = None,
    admission: Admission | None = None,
    config: ChangefeedConfig | None = None,
    disk_bytes: int | None = None,
    memory_bytes: int = 256 << 20,
    few_readings: int = FEW_READINGS,
    open_early: Callable[[Path], Sorter] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    is_closed: bool = True,
    traits: Traits | None = None,
) -> AsyncIterator[Feed]:
    """``sink``: both halves. ``clock``: the owner's. ``is_closed``: properly, at the end; else as if it were killed."""
    data_dir = DataDir(folder / "data")
    data_dir.acquire()
    sink, config = sink or BothHalves(), config or ChangefeedConfig()
    states = StateWriter(data_dir)
    if data_dir.saved is None:
        data_dir.save(state)
    feed = SchemaFeed(pd, schema, state.schema_ts)
    owner = ChangefeedOwner(feed, sink, state, states, target_ts=target_ts, config=config, clock=clock)
    builder = _EarlyBuilder(
        open_early, pd, feed, owner, lambda name: sink, traits or Traits(), config, data_dir.path, memory_bytes,
        disk_bytes, Shelf(), lambda engine: admission or Admission(), Pipeline("UTC"), Totals(),
        few_readings=few_readings,
    )  # fmt: skip
    running = await builder.open("main/0", EVERYTHING, state.at, written_ts=None, replaces=NOBODY)
    running.start()
    owner.start()
    following = asyncio.create_task(feed.run())
    try:
        yield Feed(pd, owner, running, schema, data_dir, following)
    finally:
        following.cancel()
        await running.stop()
        if is_closed:
            await running.close()
            await owner.close()
        else:
            await kill(owner)
            running.sorter.close()
        states.close()
        await asyncio.gather(following, return_exceptions=True)
        data_dir.release()


async def kill(owner: ChangefeedOwner) -> None:
    """What it was about to save or to tell is gone."""
    for task in list(owner.beside.tasks):
        task.cancel()
    await asyncio.gather(*owner.beside.tasks, return_exceptions=True)
    owner.beside._thread.shutdown()


def new_state(pd: PdClient, ts: Ts) -> ChangefeedState:
    return ChangefeedState(pd.cluster_id, "blackhole:", ts, ts, ts, 0, {}, None)
