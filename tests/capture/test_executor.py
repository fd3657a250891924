"""What a capture's executor does with a real processor, and says of it meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, BothHalves, new_state, schema_at
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Admission, Totals
from tidemill.capture.cluster.executor import TableExecutor
from tidemill.capture.lanes import LaneBuilder
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.processor import SpanProcessor
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.scheduler.agent import Prepare, Release, Run, Stop
from tidemill.flow.pipeline import Pipeline
from tidemill.flow.sorter import Shelf
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.orders import EVERYTHING
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import REST, AddTable, TableId, TableState, TableStatus, Takeover
from tidemill.model.ts import Ts
from tidemill.sinks import Traits
from tidemill.upstream.pd import PdClient

_names = count(1)


class Gate:
    """Who comes to it while it is shut waits there."""

    def __init__(self) -> None:
        self.is_open, self.reached = threading.Event(), threading.Event()
        self.is_open.set()

    def __call__(self) -> None:
        if not self.is_open.is_set():
            self.reached.set()
            assert self.is_open.wait(PATIENCE_SECONDS)


class GatedSink(BothHalves):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def recover(self, at: Checkpoints, *more: Any) -> None:
        self.gate()


class GatedHome(DataDir):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = Gate()

    def save(self, state: ChangefeedState) -> None:
        self.gate()
        super().save(state)


@dataclass
class Scene:
    """An owner, and an executor that has the rest, which is everything: tables ``one`` and ``two``."""

    session: SqlSession
    start_ts: Ts
    feed: SchemaFeed
    following: "asyncio.Task[None]"
    sink: "GatedSink"
    home: "GatedHome"
    owner: ChangefeedOwner
    executor: TableExecutor
    one: TableId
    two: TableId

    def of(self, table: TableId) -> TableStatus:
        return self.executor.holdings.of(table)

    @property
    def processor(self) -> SpanProcessor:
        processor = self.executor.processor
        assert processor is not None
        return processor

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                assert self.executor.failure is None, self.executor.failure
                await SYSTEM_CLOCK.sleep(0.01)

    def add(self, table: TableId) -> AddTable:
        return AddTable(table, True, self.owner.owned.checkpoint_ts)

    def rest_has(self, table: TableId) -> bool:
        return any(r.lane.assignment.is_rest and table in r.lane.assignment for r in self.processor.lanes)


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.fixture(scope="module")
def session(upstream: EmbeddedUpstream) -> SqlSession:
    session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
    session.execute("create database shop")
    for name in ("one", "two"):
        session.execute(f"create table shop.{name} (id int primary key)")
    return session


@asynccontextmanager
async def opened(upstream: EmbeddedUpstream, session: SqlSession, folder: Path) -> AsyncIterator[Scene]:
    async with PdClient(upstream.pd_address) as pd:
        ts, sink = await pd.get_ts(), GatedSink()
        schema, state = await schema_at(pd, ts), new_state(pd, ts)
        data_dir = GatedHome(folder / "data")
        data_dir.acquire()
        data_dir.save(state)
        states, feed = StateWriter(data_dir), SchemaFeed(pd, schema, state.schema_ts)
        owner = ChangefeedOwner(feed, sink, state, states)
        builder = LaneBuilder(
            pd, feed, owner, lambda name: sink, Traits(), ChangefeedConfig(), data_dir.path, 64 << 20, None, Shelf(),
            lambda engine: Admission(), Pipeline("UTC"), Totals(),
        )  # fmt: skip

        async def make() -> SpanProcessor:
            return SpanProcessor(f"p{next(_names)}", builder)

        executor = TableExecutor(make)
        owner.start()
        following = asyncio.create_task(feed.run())
        one, two, *_ = (TableId(table.id) for table in sorted(schema.tables(), key=lambda table: table.id))
        scene = Scene(session, ts, feed, following, sink, data_dir, owner, executor, one, two)
        try:
            executor.obey(Run((AddTable(REST, False, ts, takeover=Takeover(NOBODY, EVERYTHING, state.at)),)))
            await scene.until(lambda: scene.of(one).state is TableState.REPLICATING)
            yield scene
        finally:
            for gate in (sink.gate, data_dir.gate):
                gate.is_open.set()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await executor.close()
            await owner.close()
            states.close()
            data_dir.release()


@pytest.fixture
def play(
    upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path
) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    def run(story: Callable[[Scene], Awaitable[None]]) -> None:
        async def scenario() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS), opened(upstream, session, tmp_path) as scene:
                await story(scene)

        asyncio.run(scenario())

    return run


Play = Callable[[Callable[[Scene], Awaitable[None]]], None]


def test_a_table_on_its_way_between_two_lanes_is_written_all_the_time(play: Play) -> None:
    """Or its owner would give it to somebody else."""

    async def story(scene: Scene) -> None:
        one, executor = scene.one, scene.executor
        executor.obey(Stop((one,)))
        await scene.until(lambda: scene.of(one).state is TableState.STOPPED)
        passed_ts = Ts(scene.owner.owned.base_ts + 1)
        await scene.until(lambda: scene.owner.owned.base_ts > passed_ts)  # the others go on
        handover = scene.owner.hand_over([one], None)[int(one)]
        executor.obey(Run((AddTable(one, False, scene.owner.owned.checkpoint_ts, handover=handover),)))
        await scene.until(lambda: scene.of(one).state is TableState.REPLICATING)
        assert len(list(scene.processor.lanes)) == 2  # it has a lane of its own, until it has caught up
        seen = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not scene.of(one).is_of_rest:
                seen.add(scene.of(one).state)
                await asyncio.sleep(0)
        assert seen == {TableState.REPLICATING}

    play(story)


def test_a_table_that_is_only_prepared_stays_in_the_rest_when_that_is_dropped(play: Play) -> None:
    async def story(scene: Scene) -> None:
        one, executor = scene.one, scene.executor
        executor.obey(Prepare((scene.add(one),)))
        await scene.until(lambda: scene.of(one).state is TableState.PREPARED)
        executor.obey(Stop((one,)))
        await scene.until(lambda: scene.of(one).state is TableState.STOPPED)
        assert scene.rest_has(one)
        executor.obey(Release((one,)))
        assert scene.of(one).is_of_rest

    play(story)


def test_what_is_told_to_stop_while_it_is_being_prepared_is_not_prepared_any_more(play: Play) -> None:
    async def story(scene: Scene) -> None:
        executor = scene.executor
        executor.obey(Prepare((scene.add(scene.one),)))
        executor.obey(Stop((scene.one,)))
        await scene.until(lambda: scene.of(scene.one).state is TableState.STOPPED)
        assert scene.processor.preparing == []
        assert scene.rest_has(scene.one)

    play(story)


def test_tables_that_were_prepared_together_with_one_that_is_dropped_have_to_be_prepared_again(play: Play) -> None:
    async def story(scene: Scene) -> None:
        executor = scene.executor
        executor.obey(Stop((scene.one, scene.two)))
        await scene.until(lambda: scene.of(scene.two).state is TableState.STOPPED)
        executor.obey(Prepare((scene.add(scene.one), scene.add(scene.two))))
        await scene.until(lambda: scene.of(scene.two).state is TableState.PREPARED)
        executor.obey(Stop((scene.one,)))
        await scene.until(lambda: scene.of(scene.one).state is TableState.STOPPED)
        assert scene.of(scene.two).state is TableState.ABSENT  # which has its owner say so again

    play(story)


def test_a_table_is_prepared_from_where_the_schema_is_known(play: Play) -> None:
    """The owner has saved more since it asked, and this capture has read the schema only then."""

    async def story(scene: Scene) -> None:
        await scene.until(lambda: scene.feed.store.floor_ts > scene.start_ts)
        scene.executor.obey(Prepare((AddTable(scene.one, True, scene.start_ts),)))
        await scene.until(lambda: scene.of(scene.one).state is TableState.PREPARED)
        assert scene.executor.lowest_ts > scene.start_ts

    play(story)


def test_the_schema_is_kept_for_a_table_that_is_prepared_until_it_is_written(play: Play) -> None:
    async def story(scene: Scene) -> None:
        one, executor = scene.one, scene.executor
        executor.obey(Stop((one,)))
        await scene.until(lambda: scene.of(one).state is TableState.STOPPED)
        executor.obey(Prepare((scene.add(one),)))
        await scene.until(lambda: scene.of(one).state is TableState.PREPARED)
        (lane,) = scene.processor.preparing
        prepared_ts = lane.lane.progress.at.lowest_ts
        handover = scene.owner.hand_over([one], None)[int(one)]
        later = replace(handover, at=dict.fromkeys(handover.at, Ts(scene.feed.resolved_ts)))
        scene.sink.gate.is_open.clear()
        executor.obey(Run((AddTable(one, False, scene.owner.owned.checkpoint_ts, handover=later),)))
        await asyncio.to_thread(scene.sink.gate.reached.wait, PATIENCE_SECONDS)
        assert executor.lowest_ts <= prepared_ts

    play(story)


def test_the_schema_is_forgotten_up_to_what_is_saved_and_no_further(play: Play) -> None:
    """Whoever owns next begins there, and with it every processor."""

    async def story(scene: Scene) -> None:
        scene.home.gate.is_open.clear()
        await asyncio.to_thread(scene.home.gate.reached.wait, PATIENCE_SECONDS)
        saved = scene.home.saved
        assert saved is not None
        await scene.until(
            lambda: min(scene.owner.state.checkpoint_ts, scene.owner.owned.lowest_ts) > saved.checkpoint_ts
        )
        assert scene.owner._states.passed_ts <= saved.checkpoint_ts
        assert scene.feed.store.floor_ts <= saved.checkpoint_ts

    play(story)


def test_lanes_of_an_owner_before_hear_of_no_ddl_any_more(play: Play) -> None:
    """They may need a schema that the next one has let go of."""

    async def story(scene: Scene) -> None:
        scene.executor.obey(Prepare((scene.add(scene.one),)))
        await scene.until(lambda: scene.of(scene.one).state is TableState.PREPARED)
        scene.executor.leave()
        scene.feed.forget(scene.feed.resolved_ts)
        learned = scene.feed.learned
        name = f"n{next(_names)}"
        await asyncio.to_thread(scene.session.execute, f"create table shop.{name} (id int primary key)")
        await scene.until(lambda: scene.feed.learned > learned or scene.following.done())
        assert not scene.following.done()

    play(story)
