"""A processor whose sink is slow or away, or whose disk is full: what stops, what goes on, and what is said."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, BothHalves, Feed, feeding, new_state, schema_at
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Admission, Batch
from tidemill.capture.metadata import DataDir
from tidemill.control.pace import Amount, Bounds
from tidemill.errors import DataDirError, SinkError, SupersededError
from tidemill.flow.sorter import read_slices
from tidemill.model.ddl import DdlEvent
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt
from tidemill.upstream.pd import PdClient

MIB = 1 << 20
ROW_BYTES = 10_000


class SinkAwayError(SinkError):
    retryable = True


class MoodySink(BothHalves):
    """Refuses as many calls as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        self.ddls: list[str] = []

    def ddl(self, event: DdlEvent) -> None:
        self._refuse()
        self.ddls.append(event.query)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._refuse()
        return super().commit(to_ts, receipts)

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise SinkAwayError("the sink sleeps. Wake it.")


@dataclass
class Pressed:
    """Takes batches as Spark does, and counts them."""

    feed: Feed
    sink: MoodySink
    batches: list[int] = field(default_factory=list)  # rows of each
    batch: Batch | None = None  # at hand

    async def begin(self) -> Batch:
        """Until a batch is at hand."""
        self.batch = await self.feed.begin()
        return self.batch

    async def take(self) -> None:
        """What Spark does with the batch at hand."""
        assert self.batch is not None
        units = await self.feed.lane.batches.units(self.batch)
        self.batches.append(sum(len(each) for unit in units if unit.slices for each in read_slices(unit.slices)))
        await self.feed.lane.batches.commit(self.batch, [Receipt("", 0, 0, self.batches[-1], 0)])

    async def until_now(self) -> None:
        ts = await self.feed.pd.get_ts()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.feed.checkpoint_ts < ts and self.feed.failure is None:
                self.batch = await self.feed.lane.batches.offer(0.1)
                if self.batch is not None:
                    await self.take()

    async def until_it_fails(self) -> None:
        while self.feed.failure is None:
            with suppress(SupersededError):  # of a batch at hand
                await self.until_now()
        raise self.feed.failure


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.fixture(scope="module")
def session(upstream: EmbeddedUpstream) -> SqlSession:
    session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
    session.execute("create database shop")
    session.execute("create table shop.t (id bigint auto_increment primary key, v longblob)")
    return session


@asynccontextmanager
async def pressed(
    upstream: EmbeddedUpstream, folder: Path, disk_bytes: int | None = None, admission: Admission | None = None
) -> AsyncIterator[Pressed]:
    async with PdClient(upstream.pd_address) as pd:
        ts, sink = await pd.get_ts(), MoodySink()
        at = feeding(
            pd, await schema_at(pd, ts), new_state(pd, ts), folder, sink=sink, admission=admission,
            disk_bytes=disk_bytes, memory_bytes=2 * MIB,
        )  # fmt: skip
        async with at as feed:
            yield Pressed(feed, sink)


def insert(session: SqlSession, rows: int) -> None:
    values = ", ".join([f"(repeat('x', {ROW_BYTES}))"] * 50)
    for _ in range(rows // 50):
        session.execute(f"insert into shop.t (v) values {values}")


def test_a_sink_that_hangs_stops_the_intake_at_its_bounds_and_goes_on_when_it_is_back(
    upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path
) -> None:
    quota = 4 * MIB

    async def scenario() -> None:
        async with pressed(upstream, tmp_path, disk_bytes=quota) as under:
            await asyncio.to_thread(insert, session, 300)  # 3 MB: within the quota whenever they are resolved
            await under.begin()  # and now the sink hangs
            await asyncio.to_thread(insert, session, 2_700)  # 27 MB
            await under.feed.until(lambda: under.feed.sorter.stats().is_full)
            held = under.feed.sorter.stats()
            assert held.disk_bytes + held.memory_bytes <= quota
            assert held.most_disk_bytes <= quota
            assert held.memory_bytes <= 2 * MIB
            assert under.feed.lane.batches.seconds is not None
            await under.take()
            await under.until_now()
            assert sum(under.batches) == 3_000
            assert under.feed.sorter.stats().most_disk_bytes >= held.disk_bytes
            assert under.feed.lane.batches.seconds is None

    asyncio.run(scenario())


def test_a_ddl_waits_for_a_sink_that_is_away(upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pressed(upstream, tmp_path) as under:
            under.sink.refusals = 1
            await asyncio.to_thread(session.execute, "create table shop.later (id int primary key)")
            await under.feed.until(lambda: under.feed.owner.beside.trouble is not None)
            assert under.feed.failure is None
            await under.until_now()
            assert under.sink.ddls == ["create table shop.later (id int primary key)"]
            assert under.feed.owner.beside.trouble is None

    asyncio.run(scenario())


def test_rows_before_a_ddl_and_rows_that_catch_up_come_in_batches_as_any_others(
    upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path
) -> None:
    """Nor does a table that is catching up wait between them, however seldom batches are to be."""
    most = Amount(100, 64 * MIB)
    admission = Admission(Bounds(most, most), flush_interval_seconds=3600.0)

    def write() -> None:
        insert(session, 500)
        session.execute("alter table shop.t add column w int")
        insert(session, 500)

    async def scenario() -> None:
        async with pressed(upstream, tmp_path, admission=admission) as under:
            await asyncio.to_thread(write)
            now_ts, lane = await under.feed.pd.get_ts(), under.feed.lane
            await under.feed.until(lambda: lane.progress.limit_ts > now_ts)
            async with asyncio.timeout(20):
                while sum(under.batches) < 800:
                    await under.begin()
                    await under.take()
            # How much a batch takes is estimated, by segments: what came in slowly, on a busy machine, is told worse.
            assert max(under.batches) < 500  # not all that lies on one side of the DDL

    asyncio.run(scenario())


def test_batches_of_a_slow_sink_become_smaller(upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path) -> None:
    bounds = Bounds(least=Amount(50, 1), most=Amount(800, 64 * MIB), goal_seconds=0.0)  # which no sink can meet

    async def scenario() -> None:
        async with pressed(upstream, tmp_path, admission=Admission(bounds)) as under:
            await asyncio.to_thread(insert, session, 2_000)
            end_ts = await under.feed.pd.get_ts()
            await under.feed.until(lambda: under.feed.sorter.resolved_ts >= end_ts)
            await under.until_now()
            assert sum(under.batches) == 2_000
            assert under.batches[0] >= 600
            assert max(under.batches[4:]) <= 100  # cut between transactions of 50

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["segments/main-0/segment-00000001.tmp", ".changefeed.json.tmp"])
def test_a_full_disk_is_named_and_nothing_of_what_was_saved_is_lost(
    upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path, place: str
) -> None:
    async def scenario() -> None:
        async with pressed(upstream, tmp_path) as under:
            (under.feed.data_dir.path / place).symlink_to("/dev/full")
            await asyncio.to_thread(insert, session, 100)
            with pytest.raises(DataDirError, match=r"No space left on device.*Nothing is lost.*free space") as raised:
                await under.until_it_fails()
            assert str(under.feed.data_dir.path) in str(raised.value)
            (under.feed.data_dir.path / place).unlink(missing_ok=True)

    asyncio.run(scenario())
    state = DataDir(tmp_path / "data").load()
    assert state is None or state.rows == 0


def test_a_flush_interval_holds_back_only_what_may_grow(
    upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path
) -> None:
    def run(*statements: str) -> None:
        for statement in statements:
            session.execute(statement)

    async def scenario() -> None:
        async with pressed(upstream, tmp_path, admission=Admission(flush_interval_seconds=3600.0)) as under:
            await asyncio.to_thread(run, "insert into shop.t (v) values ('first')")
            await under.begin()  # no batch was before it
            await under.take()
            ddl = "create table shop.barrier (id int primary key)"
            await asyncio.to_thread(run, "insert into shop.t (v) values ('before the DDL')", ddl)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await under.begin()
            await under.take()
            await asyncio.to_thread(run, "insert into shop.t (v) values ('behind the DDL')")
            ts = await under.feed.pd.get_ts()
            await under.feed.until(lambda: under.feed.lane.progress.limit_ts > ts and bool(under.sink.ddls))
            assert await under.feed.lane.batches.offer(0.2) is None

    asyncio.run(scenario())
