"""A lane with all that it takes: its part of the change stream, its segments on disk, its batches on Spark."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.capture.batches import Admission, Totals
from tidemill.capture.driver import BatchDriver
from tidemill.capture.lane import Lane
from tidemill.capture.lane_tables import LaneTables
from tidemill.capture.link import OwnerLink
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.capture.writing import Writing
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import InvariantError
from tidemill.flow.filter import ColumnSelector, TableFilter
from tidemill.flow.pipeline import Pipeline
from tidemill.flow.puller import Puller
from tidemill.flow.sorter import Shelf, Sorter
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.orders import Assignment, Orders
from tidemill.model.progress import Checkpoints
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import SinkWriter, Traits
from tidemill.source.intake import FEW_READINGS
from tidemill.source.port import TABLES, Source
from tidemill.upstream.pd import PdClient

if TYPE_CHECKING:
    from tidemill.spark.engine import Engine


class RunningLane:
    """``close`` it in any case. What ends it before is its ``failure``."""

    def __init__(
        self, lane: Lane, puller: Puller, sorter: Sorter, driver: BatchDriver | None, engine: "Engine | None"
    ) -> None:
        self.lane, self.puller, self.sorter, self.driver = lane, puller, sorter, driver
        self._engine = engine
        self._driving: asyncio.Task[None] | None = None
        self._pulling: asyncio.Task[None] | None = None

    def pull(self) -> None:
        """Read what it is to write later."""
        if self._pulling is None:
            self._pulling = asyncio.create_task(_ends_only_by_cancelling(self.puller.run(), "the puller"))

    def start(self) -> None:
        self.pull()
        if self.driver is not None:
            self._driving = asyncio.create_task(self.driver.run())

    @property
    def is_waiting_for_sink(self) -> bool:
        return self.lane.writing.trouble is not None or (self.driver is not None and self.driver.is_waiting_for_sink)

    @property
    def failure(self) -> BaseException | None:
        for task in (self._pulling, self._driving):
            if task is not None and task.done() and not task.cancelled():
                return task.exception()
        return None

    async def stop(self) -> None:
        """Begin nothing any more. A batch that is being committed still is."""
        if self._driving is not None:
            self._driving.cancel()  # before its job is: that would count as Spark's failure
        if self._engine is not None:
            self._engine.close()
        tasks = [task for task in (self._driving, self._pulling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def retire(self) -> Ts | None:
        """End between two batches; nothing of it is written any more. Up to the ts changes may have been written, and
        not committed."""
        async with self.lane.between_batches():
            written_ts = self.lane.written_ts
            await self.close()
        return written_ts

    async def close(self, *, is_last: bool = False) -> None:
        """``is_last``: it has no tables any more, and the owner is to know."""
        await self.stop()
        try:
            await self.lane.close(is_last=is_last)
        finally:
            await asyncio.to_thread(self.sorter.close)


@dataclass(frozen=True, slots=True)
class LaneBuilder:
    """What all lanes of a processor have in common."""

    pd: PdClient
    feed: SchemaFeed
    link: OwnerLink
    open_writer: Callable[[str], SinkWriter]
    traits: Traits
    config: ChangefeedConfig
    data_dir: Path
    memory_bytes: int
    disk_bytes: int | None
    shelf: Shelf
    admission: Callable[["Engine | None"], Admission]
    pipeline: Pipeline
    totals: Totals
    open_engine: "Callable[[str], Engine] | None" = None  # blocks; None: somebody else drives the batches
    few_readings: int = FEW_READINGS
    source: Source = TABLES
    clock: Clock = SYSTEM_CLOCK

    async def open(
        self,
        name: str,
        assignment: Assignment,
        at: Checkpoints,
        *,
        written_ts: Ts | None,
        replaces: str | None = None,
        share: float = 1.0,
    ) -> RunningLane:
        """Begin with these tables where they are ``at``. Changes up to ``written_ts`` may have been written by somebody
        who did not come to commit them. ``share``: of the memory and the disk. A sink that is away is waited for."""
        running = await self.prepare(name, assignment, at, share=share)
        try:
            await self.commit(running, assignment, at, written_ts=written_ts, replaces=replaces)
        except BaseException:
            await running.close()
            raise
        return running

    async def prepare(self, name: str, assignment: Assignment, at: Checkpoints, *, share: float = 1.0) -> RunningLane:
        """A lane that can read these tables from where they are ``at``, and writes nothing until it is committed. The
        owner does not know of it. Whoever wants it to read before that lets it ``pull``."""
        engine = await asyncio.to_thread(self.open_engine, name) if self.open_engine is not None else None
        admission = self.admission(engine)
        try:
            writer = await asyncio.to_thread(self.open_writer, name)
        except BaseException:
            if engine is not None:
                engine.close()
            raise
        selector = ColumnSelector(self.config)
        writing = Writing(
            writer, self.data_dir / "undecodable", selector, self.traits, admission, self.clock, self.source
        )
        lane = Lane(
            name,
            self.feed,
            writing,
            self.link,
            TableFilter(self.config),
            assignment,
            at,
            totals=self.totals,
            admission=admission,
            keeps_partitions=self.traits.keeps_partitions,
            source=self.source,
            clock=self.clock,
        )
        folder = self.data_dir / "segments" / name.replace("/", "-")
        sorter = self._open_sorter(folder, share)
        puller = Puller(self.pd, lane, spill=self.data_dir / "scratch", mode=self.source.mode, clock=self.clock)
        early = folder.with_name(f"{folder.name}-early")
        lane.attach(puller, sorter, lambda: self._open_sorter(early, share), few_readings=self.few_readings)
        driver = BatchDriver(self.pipeline, lane, engine) if engine is not None else None
        return RunningLane(lane, puller, sorter, driver, engine)

    async def commit(
        self,
        running: RunningLane,
        assignment: Assignment,
        at: Checkpoints,
        *,
        written_ts: Ts | None,
        replaces: str | None = None,
    ) -> None:
        """Let a lane that was prepared have these tables where they are ``at``, which is not below where it reads them
        from. The owner hears of it first: whoever is known to it is fenced when it is gone."""
        lane, newer = running.lane, list[Orders]()
        orders = await self.link.admit(
            lane.name, assignment, at, lambda each: lane.obey(each) if lane.is_awake else newer.append(each),
            replaces=replaces,
        )  # fmt: skip
        tables = self.tables_of(assignment, at)
        ids = [i for table in tables or () for i in table.physical_ids]
        state = await self.link.sink_state()
        await lane.writing.wait_out(lambda: lane.writing.recover(at, ids, tables, state, written_ts, orders.term))
        lane.wake(assignment, at, newer[-1] if newer else orders, written_ts)

    def _open_sorter(self, folder: Path, share: float) -> Sorter:
        disk = None if self.disk_bytes is None else int(self.disk_bytes * share)
        return Sorter(folder, memory_bytes=int(self.memory_bytes * share), disk_bytes=disk, shelf=self.shelf)

    def tables_of(self, assignment: Assignment, at: Checkpoints) -> list[TableInfo] | None:
        """Those that are captured of it, as they are at their checkpoints; None: it is all there are."""
        if assignment.is_everything:
            return None
        store, wanted = self.feed.store, TableFilter(self.config)
        ids = {followed.physical_id for followed in store.followed()}
        return LaneTables(store, wanted, assignment).infos(ids, at, self.link.orders.ddl_ts)


async def _ends_only_by_cancelling(work: Coroutine[Any, Any, None], what: str) -> None:
    await work
    raise InvariantError(f"{what} ended by itself. Report it.")
