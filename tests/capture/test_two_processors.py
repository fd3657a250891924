"""Two processors of one changefeed: tables move between them all the time, and either one is killed at random.

The owner and both processors are real, and so are the sinks; what Spark would run runs in threads. A processor that is
killed leaves its tasks behind, which go on writing: the sink has to see that nothing of that counts.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.capture.feeds import new_state
from tests.e2e import content
from tests.histories import History, load
from tests.mariadb import MariaDb, need_mariadb, running
from tests.rounds import rounds, seed
from tests.sinks.lake.marks import check_marks
from tests.sinks.lake.replay import uri_of
from tests.sinks.mysql import marks as mysql_marks
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Admission, Totals
from tidemill.capture.lanes import LaneBuilder
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.processor import SpanProcessor
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.pace import Amount, Bounds
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.schema.loader import load_schema, recovered_reader
from tidemill.flow.sorter import Shelf
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.orders import EVERYTHING, Assignment, Handover, joined
from tidemill.model.receipt import Receipt
from tidemill.model.ts import Ts
from tidemill.sinks import read_sink_uri
from tidemill.sinks.lake.reader import open_lake
from tidemill.source.scan import plan_scan, read_part
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

PATIENCE_SECONDS = 300.0
SEED = 20261119
ROUNDS = 1  # in make test; make soak takes as many as it is told
MOVES = 100


class ThreadEngine:
    """Runs the units of a batch in a thread, as Spark would in its workers. Closing it ends nothing that has begun."""

    tasks = 2

    def __init__(self, seed: str, running: "Running") -> None:
        self._thread = ThreadPoolExecutor(1)
        self._rng, self._running = random.Random(seed), running

    def submit(self, pipeline: Pipeline, units: Sequence[Unit], what: str) -> "Future[list[Receipt]]":
        return self._thread.submit(lambda: [self._process(pipeline, unit) for unit in units])

    def _process(self, pipeline: Pipeline, unit: Unit) -> Receipt:
        if self._rng.random() < 0.2:
            threading.Event().wait(self._rng.random() * 0.05)
        with self._running.writing():
            return pipeline.process(unit)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class Running:
    """How many tasks are at work: a test ends when none is."""

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0

    def writing(self) -> "Running":
        return self

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1

    @property
    def is_quiet(self) -> bool:
        return self._count == 0


class Cluster:
    """One owner, and two processors of it under names that are never used again."""

    def __init__(self, owner: ChangefeedOwner, builder: LaneBuilder, pd: PdClient, rng: random.Random) -> None:
        self.owner, self._builder, self._pd, self._rng = owner, builder, pd, rng
        self._born = 0
        self.processors: list[SpanProcessor] = []
        self.moves = self.kills = 0
        self._acting: SpanProcessor | None = None  # in a move
        self._victim: SpanProcessor | None = None  # is gone, or about to be
        self._under_way: list[Handover] = []  # given up by one, and not accepted by the other

    def _new(self) -> SpanProcessor:
        self._born += 1
        return SpanProcessor(f"p{self._born}", self._builder)

    async def start(self, tables: frozenset[int], written_ts: Ts | None) -> None:
        """The one has these tables, the other the rest."""
        one, other = self._new(), self._new()
        await one.start(EVERYTHING, self.owner.state.at, written_ts=written_ts, replaces=NOBODY)
        self.owner.start()
        handover = await one.main.lane.give_up(tables)
        await other.start(Assignment(tables), self.owner.state.at, written_ts=None)
        await other.main.lane.announce(handover.at)
        assert set(handover.at) <= other.main.lane.intake.physical_ids
        self.processors = [one, other]

    async def move(self) -> None:
        """Some tables from the one to the other."""
        source, target = self._rng.sample(self.processors, 2)
        tables = self._builder.feed.store.tables()
        mine = sorted({t.id for t in tables if any(t.id in r.lane.assignment for r in source.lanes)})
        chosen = frozenset(self._rng.sample(mine, min(len(mine), self._rng.randint(1, 3))))
        self._acting = source
        self._under_way = await source.give_up(chosen)
        while self._under_way and target is not self._victim:  # else its heir gets them
            self._acting = target
            await target.accept(self._under_way[0])
            self._under_way.pop(0)
        self.moves += 1

    async def kill(self, moving: "asyncio.Task[None] | None") -> None:
        """One of them is gone in the middle of whatever it does; another takes its place."""
        victim = self._victim = self._rng.choice(self.processors)
        if moving is not None:
            if self._acting is victim:
                moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        names = [running.lane.name for running in victim.lanes]
        await abandon(victim)
        lost = await self.owner.dismiss(names)
        heir = self._new()
        written_ts = await self._pd.get_ts()
        await heir.take_over(lost, written_ts=written_ts)
        # Nothing moves now: what is adrift was given up by one that is gone, perhaps by a lane that had become empty.
        adrift = self.owner.members.adrift
        if adrift:
            await heir.accept(joined(self.owner.hand_over(adrift, written_ts).values()))
        self._under_way = []
        self.processors[self.processors.index(victim)] = heir
        self.kills += 1

    async def close(self) -> None:
        for processor in self.processors:
            await processor.close()
        await self.owner.close()


async def abandon(processor: SpanProcessor) -> None:
    """As if its process were gone, but for tasks that it had begun."""
    tasks = [processor._looking, *(t for r in processor.lanes for t in (r._driving, r._pulling))]
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
    for each in processor.lanes:
        each.lane._is_closed = True
        each.lane.feed.leave(each.lane.learn)
        each.sorter._thread.shutdown(wait=False)


@asynccontextmanager
async def clustered(
    upstream: EmbeddedUpstream,
    history: History,
    folder: Path,
    uri: str,
    rng: random.Random,
    at_work: Running,
    target_ts: int | None = None,
) -> AsyncIterator[tuple[ChangefeedOwner, LaneBuilder, PdClient]]:
    start_ts, end_ts = Ts(history.bootstrap_ts), Ts(target_ts or history.end_ts)
    data_dir = DataDir(folder / "data")
    data_dir.acquire()
    async with PdClient(upstream.pd_address) as pd:
        reader = SnapshotReader(pd, RegionCache(pd))
        schema = await load_schema(reader, start_ts, start_ts, {})
        await reader.close()
        schema.read_recovered_with(recovered_reader(lambda: PdClient(upstream.pd_address)))
        loop = asyncio.get_running_loop()

        def rescan(table: Any, physical_ids: Sequence[int], ts: Ts) -> Iterator[Any]:
            plan = plan_scan(pd, table, ts, physical_ids=physical_ids, zone="UTC")
            for part in asyncio.run_coroutine_threadsafe(plan, loop).result(PATIENCE_SECONDS):
                yield from read_part(part)

        options = read_sink_uri(uri).named(f"tidemill-{folder.name}", pd.cluster_id)
        zone = ZoneInfo("UTC")
        sink = options.open_owner(None, start_ts=start_ts, zone=zone, rescan=rescan, is_resumed=False)
        await asyncio.to_thread(sink.begin)
        await asyncio.to_thread(sink.fence)
        states, state = StateWriter(data_dir), new_state(pd, start_ts)
        data_dir.save(state)
        feed = SchemaFeed(pd, schema, state.schema_ts)
        traits = options.traits
        owner = ChangefeedOwner(
            feed, sink, state, states, target_ts=end_ts, orders_ddls=traits.orders_ddls, is_together=traits.is_together
        )
        most = Amount(rng.choice([5, 20, 100]), 1 << 30)
        builder = LaneBuilder(
            pd, feed, owner, partial(options.open_writer, zone=zone), traits, ChangefeedConfig(), data_dir.path,
            64 << 20, None, Shelf(), lambda engine: Admission(Bounds(most, most)),
            Pipeline("UTC", ChangefeedConfig(), traits.splits_updates, traits.splits_large), Totals(),
            lambda name: ThreadEngine(f"{rng.random()}-{name}", at_work),  # type: ignore[arg-type,return-value]
        )  # fmt: skip
        following = asyncio.create_task(feed.run())
        try:
            yield owner, builder, pd
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            states.close()
            data_dir.release()


async def until_done(owner: ChangefeedOwner, processors: Callable[[], Sequence[SpanProcessor]]) -> None:
    while not owner.is_done:
        failures = [owner.beside.failure, *(processor.failure for processor in processors())]
        failure = next((each for each in failures if each is not None), None)
        if failure is not None:
            raise failure
        await SYSTEM_CLOCK.sleep(0.01)


def play(
    upstream: EmbeddedUpstream,
    history: History,
    folder: Path,
    uri: str,
    rng: random.Random,
    target_ts: int | None = None,
) -> Cluster:
    """The whole history with two processors, tables on the move, and kills."""
    at_work = Running()

    async def story() -> Cluster:
        async with clustered(upstream, history, folder, uri, rng, at_work, target_ts) as (owner, builder, pd):
            cluster = Cluster(owner, builder, pd, rng)
            ids = sorted(table.id for table in builder.feed.store.tables())
            await cluster.start(frozenset(ids[: len(ids) // 2]), None)

            async def disturb() -> None:
                moving: asyncio.Task[None] | None = None
                while cluster.moves < MOVES and not owner.is_done:
                    moving = asyncio.create_task(cluster.move())
                    if rng.random() < 0.15:
                        await SYSTEM_CLOCK.sleep(rng.random() * 0.2)
                        await cluster.kill(moving)
                    else:
                        await moving

            async with asyncio.timeout(PATIENCE_SECONDS):
                disturbing = asyncio.create_task(disturb())
                done = asyncio.create_task(until_done(owner, lambda: cluster.processors))
                await asyncio.wait([disturbing, done], return_when=asyncio.FIRST_EXCEPTION)
                disturbing.cancel()
                await asyncio.gather(disturbing, return_exceptions=False) if disturbing.done() else None
                await done
            while not at_work.is_quiet:  # tasks of those that were killed
                await SYSTEM_CLOCK.sleep(0.01)
            await cluster.close()
            return cluster

    return asyncio.run(story())


def play_alone(upstream: EmbeddedUpstream, history: History, folder: Path, uri: str) -> None:
    """The same without any of that."""

    async def story() -> None:
        async with clustered(upstream, history, folder, uri, random.Random(1), Running()) as (owner, builder, _):
            processor = SpanProcessor("alone", builder)
            await processor.start(EVERYTHING, owner.state.at, written_ts=None, replaces=NOBODY)
            owner.start()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await until_done(owner, lambda: [processor])
            await processor.close()
            await owner.close()

    asyncio.run(story())


@pytest.fixture(scope="module", params=["ddl", "online"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, EmbeddedUpstream]]:
    path = load(request.param).folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.05) as upstream:
        yield request.param, upstream


@pytest.mark.soak
@pytest.mark.rounds
def test_files_hold_each_change_once_and_in_order(served: tuple[str, EmbeddedUpstream], tmp_path: Path) -> None:
    name, upstream = served
    history = load(name)
    uri = "file://{}?protocol=canal-json&enable-tidb-extension=true"
    play_alone(upstream, history, tmp_path / "alone", uri.format(tmp_path / "alone" / "out"))
    expected = content.read(tmp_path / "alone" / "out")
    for number in range(rounds(ROUNDS)):
        rng = random.Random(f"{seed(SEED)}-{name}-{number}")
        folder = tmp_path / str(number)
        cluster = play(upstream, history, folder, uri.format(folder / "out"), rng)
        print(f"round {number}: {cluster.moves} moves, {cluster.kills} kills")
        content.assert_same(content.read(folder / "out"), expected)


@pytest.mark.soak
@pytest.mark.rounds
@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_a_lake_is_equal_at_every_mark(served: tuple[str, EmbeddedUpstream], kind: str, tmp_path: Path) -> None:
    name, upstream = served
    history = load(name)
    for number in range(rounds(ROUNDS)):
        rng = random.Random(f"{seed(SEED)}-{name}-{kind}-{number}")
        uri = uri_of(kind, tmp_path / str(number) / "lake")
        cluster = play(upstream, history, tmp_path / str(number), uri, rng)
        print(f"round {number}: {cluster.moves} moves, {cluster.kills} kills")
        lake = open_lake(uri)
        assert lake.checkpoint_ts == history.end_ts
        check_marks(history, lake)


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    need_mariadb()
    with running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.mark.soak
@pytest.mark.rounds
def test_mariadb_is_equal_at_the_end(served: tuple[str, EmbeddedUpstream], mariadb: MariaDb, tmp_path: Path) -> None:
    name, upstream = served
    history = load(name)
    for number in range(rounds(ROUNDS)):
        rng = random.Random(f"{seed(SEED)}-{name}-mysql-{number}")
        mysql_marks.clear(mariadb, history)
        last_ts = max(mark["ts"] for mark in history.marks())
        cluster = play(upstream, history, tmp_path / str(number), mariadb.uri("worker-count=2"), rng, last_ts)
        print(f"round {number}: {cluster.moves} moves, {cluster.kills} kills")
        assert mysql_marks.check_mark(mariadb, history, last_ts) > 0
