"""Captures of one cluster in one process: real etcd, post, schedulers, owners and sinks. What Spark would run runs in
threads, which go on when their capture is gone: the sink has to see that nothing of that counts."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.capture.test_two_processors import Running, ThreadEngine, abandon
from tests.e2e import content, tree
from tests.e2e.sqlclient import Client
from tests.etcd import Etcd, running
from tests.rounds import rounds, seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Admission
from tidemill.capture.cluster.capture import Capture
from tidemill.capture.cluster.changes import Changes
from tidemill.capture.cluster.options import ServerOptions
from tidemill.capture.cluster.owning import OwnedFeed
from tidemill.capture.etcd.client import EtcdClient
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.etcd.session import Session
from tidemill.capture.peers.letters import Letter
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.pace import Amount, Bounds
from tidemill.errors import SessionLostError
from tidemill.flow.sorter import Shelf
from tidemill.model.cluster import CaptureInfo, NewChangefeed
from tidemill.model.schedule import CaptureId, ChangefeedKey
from tidemill.model.ts import Ts
from tidemill.upstream.pd import PdClient

PATIENCE_SECONDS = 240.0
KEY = ChangefeedKey("default", "cf")
SEED = 20261118
ROUNDS = 1


class ThreadEngines:
    """In place of Spark."""

    def __init__(self, at_work: Running, rng: random.Random, *_: Any) -> None:
        self._at_work, self._rng = at_work, rng
        self.shelf = Shelf()
        self._most = Amount(rng.choice([5, 20, 100]), 1 << 30)

    def start(self, should_stop: Callable[[], bool]) -> None:
        pass

    def open(self, lane: str) -> ThreadEngine:
        return ThreadEngine(f"{self._rng.random()}-{lane}", self._at_work)

    def admission(self, engine: object) -> Admission:
        return Admission(Bounds(self._most, self._most))

    def close(self) -> None:
        pass


class Deaf:
    """One letter in ten is lost, of those that may be: they are said again."""

    def __init__(self, hear: Callable[[Letter], None], rng: random.Random) -> None:
        self._hear, self._rng = hear, random.Random(rng.random())

    def hear(self, letter: Letter) -> None:
        if not letter.is_said_again or self._rng.random() >= 0.1:
            self._hear(letter)


class Story:
    """Some captures, of which one may go at any moment."""

    def __init__(self, upstream: EmbeddedUpstream, etcd: Etcd, folder: Path, keys: Keys, rng: random.Random) -> None:
        self._upstream, self.etcd, self._folder, self.keys, self._rng = upstream, etcd, folder, keys, rng
        self.client = EtcdClient(etcd.address)
        self.at_work = Running()
        self.captures: dict[CaptureId, Capture] = {}
        self._sessions: dict[CaptureId, Session] = {}
        self._runs: dict[CaptureId, asyncio.Task[None]] = {}
        self._born = 0
        self.stops: set[CaptureId] = set()
        self.checkpoints: list[Ts] = []

    async def start(self) -> CaptureId:
        self._born += 1
        name = CaptureId(f"c{self._born}")
        options = ServerOptions(
            self._upstream.pd_address, self._folder / name, self.etcd.address, cluster=self.keys.cluster,
            session_ttl_seconds=60,
        )  # fmt: skip
        session = await asyncio.to_thread(Session, self.client, 60)
        info = CaptureInfo(name, f"127.0.0.1:{self._born}", False, self.keys.cluster, "v1", datetime.now(UTC))
        engines: Any = partial(ThreadEngines, self.at_work, random.Random(self._rng.random()))
        capture = Capture(name, options, self.client, self.keys, session, info, make_engines=engines)
        capture.post._hear = Deaf(capture.post._hear, self._rng).hear
        await capture.open()
        self.captures[name], self._sessions[name] = capture, session
        self._runs[name] = asyncio.create_task(capture.run(lambda: name in self.stops))
        return name

    async def kill(self, name: CaptureId) -> None:
        """As kill -9 would end it: but for what its tasks are at."""
        capture = self.captures.pop(name)
        self._runs.pop(name).cancel()
        capture._closing.clear()
        if capture._looking is not None:
            capture._looking.cancel()
        await capture.post.close()
        for followed in capture.followed.values():
            work = followed._work
            if work is not None:
                work.link._is_closed = True
                if work.executor.processor is not None:
                    await abandon(work.executor.processor)
                for task in list(work.executor._tasks):
                    task.cancel()
        if capture.feeds is not None:
            for owned in capture.feeds.owned.values():
                for task in (owned._starting, owned._following, owned.opening.holding):
                    if task is not None:
                        task.cancel()
                if owned.owner is not None:
                    for each in list(owned.owner.beside.tasks):
                        each.cancel()
                await owned._asking.close()
        await asyncio.to_thread(self._sessions.pop(name).close)

    @property
    def owner(self) -> Capture | None:
        return next((each for each in self.captures.values() if each.is_owner), None)

    @property
    def feed(self) -> OwnedFeed | None:
        """Of whoever owns it."""
        owner = self.owner
        found = owner.feeds.owned.get(KEY) if owner is not None and owner.feeds is not None else None
        return found if found is not None and found.owner is not None else None

    def look(self) -> None:
        """Checkpoints do not move back, whoever owns."""
        feed = self.feed
        if feed is not None:
            assert not self.checkpoints or feed.checkpoint_ts >= self.checkpoints[-1]
            self.checkpoints.append(feed.checkpoint_ts)
        for name, run in self._runs.items():
            if run.done() and not run.cancelled() and run.exception() is not None:
                raise AssertionError(f"capture {name} has ended") from run.exception()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                self.look()
                await SYSTEM_CLOCK.sleep(0.02)

    async def end(self, name: CaptureId) -> None:
        self.stops.add(name)
        await asyncio.gather(self._runs.pop(name), return_exceptions=True)
        await self.captures.pop(name).close()
        await asyncio.to_thread(self._sessions.pop(name).close)

    async def close(self) -> None:
        for name in list(self.captures):
            await self.end(name)
        while not self.at_work.is_quiet:
            await SYSTEM_CLOCK.sleep(0.01)
        await asyncio.to_thread(self.client.close)

    # What of the changefeed is where.

    def holders(self) -> dict[CaptureId, int]:
        feed = self.feed
        if feed is None:
            return {}
        found: dict[CaptureId, int] = {}
        for table in feed.tables:
            holder = feed.coordinator.holder(table)
            if holder is not None:
                found[holder] = found.get(holder, 0) + 1
        return found


@asynccontextmanager
async def a_story(
    upstream: EmbeddedUpstream, etcd: Etcd, folder: Path, rng: random.Random, captures: int
) -> AsyncIterator[Story]:
    story = Story(upstream, etcd, folder, Keys(f"c{rng.randrange(1 << 40)}"), rng)
    try:
        for _ in range(captures):
            await story.start()
        yield story
    finally:
        await story.close()


def create(story: Story, uri: str, start_ts: int, config: dict[str, Any], cluster_id: int) -> None:
    changes = Changes(story.client, story.keys)
    changes.create(changes.draft(NewChangefeed(KEY, uri, config=config), Ts(start_ts), cluster_id))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(sql_port=0, resolved_interval_seconds=0.05) as upstream:
        yield upstream


class Load:
    """Of one database, in steps."""

    def __init__(self, address: str, schema: str, rng: random.Random, tables: int = 8) -> None:
        self._client, self._schema, self._rng = Client(address), schema, rng
        self.tables = [f"t{n}" for n in range(tables)]
        self._made, self._rows = tables, 0
        self.run(f"create database {schema}")
        for table in self.tables:
            self._create(table)

    def run(self, statement: str) -> None:
        self._client.run(statement)

    def _create(self, table: str) -> None:
        self.run(f"create table {self._schema}.{table} (id int primary key, v varchar(30))")

    def step(self, *, ddl: bool = False) -> None:
        for table in self.tables:
            self._rows += 1
            key, name = self._rng.randrange(20), f"{self._schema}.{table}"
            if self._rng.random() < 0.8:
                self.run(f"replace into {name} (id, v) values ({key}, 'v{self._rows}')")
            else:
                self.run(f"delete from {name} where id = {key}")
        if ddl:
            self._made += 1
            self.run(
                f"alter table {self._schema}.{self._rng.choice(self.tables)} add column c{self._made} int default 7"
            )
            self.run(f"drop table {self._schema}.{self.tables.pop(self._rng.randrange(len(self.tables)))}")
            self.tables.append(f"t{self._made}")
            self._create(self.tables[-1])

    def rows(self) -> dict[str, dict[str, str]]:
        """Of each table, what is under each key."""
        found = {}
        for table in self.tables:
            rows = self._client.run(f"select id, v from {self._schema}.{table}")
            found[table] = {str(row[0]): str(row[1]) for row in rows}
        return found

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def work(upstream: EmbeddedUpstream, request: pytest.FixtureRequest) -> Iterator[Load]:
    schema = f"s{abs(hash(request.node.name)) % 100_000}"
    load = Load(upstream.sql_addresses[0], schema, random.Random(seed(SEED)))
    yield load
    load.close()


async def now_ts(upstream: EmbeddedUpstream) -> Ts:
    async with PdClient(upstream.pd_address) as pd:
        return await pd.get_ts()


def uri_of(folder: Path) -> str:
    return f"file://{folder}?protocol=canal-json&enable-tidb-extension=true"


def check(out: Path, work: Load) -> None:
    """Each change once, in order, and together what upstream has."""
    tree.check_layout(out)
    for place, messages in content.read(out).rows.items():
        assert len(set(messages)) == len(messages), f"{place}: something is there twice"
    last: dict[tuple[str, int], int] = {}
    for file in tree.data_files(out):
        place = (file.table, file.version)
        for message in file.messages():
            ts = int(message["_tidb"]["commitTs"])
            assert ts >= last.get(place, 0), f"{place}: {ts} behind {last[place]}"
            last[place] = ts
    found, expected = final(out), work.rows()
    assert {table: found.get(table, {}) for table in expected} == expected


def final(out: Path) -> dict[str, dict[str, str]]:
    """What a consumer has at the end."""
    messages: dict[str, list[dict[str, Any]]] = {}
    for file in tree.data_files(out):
        messages.setdefault(file.table, []).extend(file.messages())
    found: dict[str, dict[str, str]] = {}
    for table, all_of_it in messages.items():
        rows: dict[str, str] = {}
        for message in sorted(all_of_it, key=lambda each: int(each["_tidb"]["commitTs"])):
            for row in message["data"]:
                if message["type"] == "DELETE":
                    rows.pop(row["id"], None)
                else:
                    rows[row["id"]] = row["v"]
        found[table] = rows
    return found


Act = Callable[["Story"], Awaitable[None]]


async def kill_owner(cluster: "Story") -> None:
    owner = cluster.owner
    if owner is not None:
        await cluster.kill(owner.id)
        await cluster.start()


async def kill_other(cluster: "Story") -> None:
    await cluster.kill(next(name for name, each in cluster.captures.items() if not each.is_owner))
    await cluster.start()


async def move(cluster: "Story") -> None:
    """A table from the one to the other."""
    feed = cluster.feed
    assert feed is not None
    source = max(cluster.holders(), key=lambda name: cluster.holders()[name])
    target = next(name for name in cluster.captures if name != source)
    table = next(table for table in feed.tables if feed.coordinator.holder(table) == source)
    feed.coordinator.move_table(table, target)
    await cluster.until(lambda: cluster.feed is None or cluster.feed.coordinator.holder(table) == target)


async def drain_other(cluster: "Story") -> None:
    await drain(cluster, next(name for name, each in cluster.captures.items() if not each.is_owner))


async def drain_owner(cluster: "Story") -> None:
    owner = cluster.owner
    if owner is not None:
        await drain(cluster, owner.id)


async def drain(cluster: "Story", name: CaptureId) -> None:
    """As SIGTERM would."""
    capture = cluster.captures[name]
    cluster.stops.add(name)
    await cluster._runs[name]
    await capture.drain()
    assert all(feed.holds_nothing for feed in capture.followed.values()), capture.debug_state()
    await cluster.end(name)
    await cluster.start()


async def restart_etcd(cluster: "Story") -> None:
    await asyncio.to_thread(cluster.etcd.restart)


async def play(
    upstream: EmbeddedUpstream, etcd: Etcd, folder: Path, work: Load, rng: random.Random, acts: list[Act]
) -> None:
    """All acts, one after the other, each while something is being written."""
    async with a_story(upstream, etcd, folder, rng, 2) as cluster:
        schema = work._schema
        config = {"filter": {"rules": [f"{schema}.*"]}}
        create(cluster, uri_of(folder / "out"), await now_ts(upstream), config, upstream.cluster_id)
        for act in [None, *acts]:
            await asyncio.to_thread(work.step)
            if act is not None:
                await act(cluster)
            await asyncio.to_thread(work.step, ddl=True)
            ts = await now_ts(upstream)
            await cluster.until(lambda: cluster.feed is not None and cluster.feed.checkpoint_ts >= ts)  # noqa: B023
            if cluster.feed is not None:
                cluster.feed.coordinator.rebalance()  # else it looks once a minute
            await cluster.until(lambda: len(cluster.holders()) == 2)
    check(folder / "out", work)


def test_two_captures_share_the_tables_and_take_over_from_each_other(
    upstream: EmbeddedUpstream, etcd: Etcd, work: Load, tmp_path: Path
) -> None:
    rng = random.Random(seed(SEED))
    asyncio.run(play(upstream, etcd, tmp_path, work, rng, [kill_other, kill_owner, move, restart_etcd]))


def test_what_a_capture_has_moves_before_it_ends(
    upstream: EmbeddedUpstream, etcd: Etcd, work: Load, tmp_path: Path
) -> None:
    rng = random.Random(f"{seed(SEED)}-drain")
    asyncio.run(play(upstream, etcd, tmp_path, work, rng, [drain_other, drain_owner]))


@pytest.mark.soak
@pytest.mark.rounds
def test_captures_come_and_go_in_any_order(upstream: EmbeddedUpstream, etcd: Etcd, tmp_path: Path) -> None:
    for number in range(rounds(ROUNDS)):
        rng = random.Random(f"{seed(SEED)}-{number}")
        work = Load(upstream.sql_addresses[0], f"any{number}", rng)
        acts: list[Act] = [
            rng.choice([move, kill_other, kill_owner, drain_other, drain_owner, restart_etcd]) for _ in range(6)
        ]
        asyncio.run(play(upstream, etcd, tmp_path / str(number), work, rng, acts))
        work.close()


def test_a_capture_that_lost_its_session_follows_nothing_any_more(
    upstream: EmbeddedUpstream, etcd: Etcd, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_story(upstream, etcd, tmp_path, random.Random(1), 1) as cluster:
            name, capture = next(iter(cluster.captures.items()))
            await asyncio.to_thread(cluster.client.revoke, cluster._sessions[name].lease)
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(SessionLostError):
                    await cluster._runs[name]
            cluster._runs[name] = asyncio.create_task(asyncio.sleep(0))
            await capture.close()
            assert not capture.followed
            assert not capture.is_owner

    asyncio.run(story())
