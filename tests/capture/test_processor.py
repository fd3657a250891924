"""What a processor does for a Spark that comes and goes, and for a sink that does."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.flow.schema.builders import store_with, table
from tests.source.test_intake import PATIENCE_SECONDS, Feed, feeding
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Batch
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.processor import Processor
from tidemill.clock import SYSTEM_CLOCK, SystemClock
from tidemill.errors import DataDirError, SinkUnavailableError, SupersededError
from tidemill.flow.deadletter import read_quarantine
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Undecodable
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt
from tidemill.sinks.blackhole import BlackholeSink, BlackholeTarget

ROW = Receipt("", 0, 0, 1, 0)
_ids = count(1)


def insert(session: SqlSession) -> None:
    session.execute(f"insert into shop.t values ({next(_ids)})")


class Gate:
    """A call passes it, or waits there until somebody opens it."""

    def __init__(self) -> None:
        self.is_shut = False
        self.reached, self._opened = threading.Event(), threading.Event()

    def shut(self) -> None:
        self.is_shut = True

    def open(self) -> None:
        self._opened.set()

    def __call__(self) -> None:
        if self.is_shut:
            self.reached.set()
            assert self._opened.wait(PATIENCE_SECONDS)


class GatedSink(BlackholeSink):
    """Notes what is done to it. ``refusals``: so many calls of each kind still fail for a reason that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.recovering, self.committing, self.altering = Gate(), Gate(), Gate()
        self.did: list[str] = []
        self.refusals: dict[str, int] = {}

    def recover(self, at: Checkpoints) -> None:
        self.recovering()
        self._do("recover")

    def target(self, table: TableInfo, physical_id: int, window: Window) -> BlackholeTarget:
        self._do("target")
        return super().target(table, physical_id, window)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self.committing()
        self._do("commit")
        return super().commit(to_ts, receipts)

    def ddl(self, event: DdlEvent) -> dict[str, Any] | None:
        self.altering()
        self._do("ddl")
        return super().ddl(event)

    def publish(self, checkpoint_ts: Ts) -> None:
        self._do("publish")

    def _do(self, name: str) -> None:
        if self.refusals.get(name, 0):
            self.refusals[name] -= 1
            raise SinkUnavailableError("the sink sleeps. Wake it.")
        self.did.append(name)


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.fixture(scope="module")
def session(upstream: EmbeddedUpstream) -> SqlSession:
    session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
    session.execute("create database shop")
    session.execute("create table shop.t (id int primary key)")
    return session


@pytest.fixture
def play(upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path) -> Callable[..., None]:
    """Run a story with a changefeed into a sink with gates, and a row that waits to be taken."""

    def run(story: Callable[[Feed, GatedSink], Awaitable[None]]) -> None:
        async def scenario() -> None:
            sink = GatedSink()
            async with feeding(upstream, tmp_path, sink=sink) as feed, asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.to_thread(insert, session)
                await story(feed, sink)

        asyncio.run(scenario())

    return run


async def begin(feed: Feed) -> Batch:
    """As the driver does, until a batch is at hand."""
    while True:
        batch = await feed.processor.offer(0.2)
        if batch is not None:
            await feed.processor.units(batch)
            return batch


def test_who_waits_for_an_offer_can_be_stopped_at_the_very_moment_that_something_changes(
    play: Callable[..., None],
) -> None:
    """Otherwise a changefeed that is closed then would wait for its driver for ever."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        await begin(feed)  # so that there is nothing to offer
        waiting = asyncio.create_task(feed.processor.offer(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        feed.processor._changed.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    play(story)


def test_a_commit_that_comes_while_its_batch_is_taken_back_is_refused(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        batch = await begin(feed)
        before = processor.progress.checkpoint_ts
        sink.recovering.shut()
        taking_back = asyncio.create_task(processor.begin_again())
        await asyncio.to_thread(sink.recovering.reached.wait, PATIENCE_SECONDS)
        with pytest.raises(SupersededError, match=r"generation 0 is too late"):
            await processor.commit(batch, [ROW])
        sink.recovering.open()
        await taking_back
        with pytest.raises(SupersededError):
            await processor.commit(batch, [ROW])
        assert processor.progress.checkpoint_ts == before
        assert "commit" not in sink.did

    play(story)


def test_a_batch_that_is_being_committed_is_not_taken_back(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        batch = await begin(feed)
        sink.committing.shut()
        committing = asyncio.create_task(processor.commit(batch, [ROW]))
        await asyncio.to_thread(sink.committing.reached.wait, PATIENCE_SECONDS)
        taking_back = asyncio.create_task(processor.begin_again())
        sink.committing.open()
        await committing
        await taking_back
        assert processor.progress.checkpoint_ts >= batch.to_ts
        assert [step for step in sink.did if step != "publish"][-2:] == ["commit", "recover"]
        assert processor.totals.rows == 1

    play(story)


def test_of_two_attempts_that_wrote_the_same_batch_the_older_commits_nothing(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        batch = await begin(feed)
        await processor.begin_again()
        again = await begin(feed)
        with pytest.raises(SupersededError):
            await processor.commit(batch, [ROW])
        assert processor.progress.in_flight == again.extent
        await processor.commit(again, [ROW])
        assert processor.progress.checkpoint_ts >= again.to_ts

    play(story)


def test_who_is_late_takes_no_batch_back_and_gets_none(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        late = await begin(feed)
        await processor.begin_again()
        batch = await begin(feed)
        recoveries = sink.did.count("recover")
        for act in (lambda: processor.shorten(late, Ts(late.to_ts - 1)), lambda: processor.units(late)):
            with pytest.raises(SupersededError):
                await act()
        assert sink.did.count("recover") == recoveries
        assert processor.progress.in_flight == batch.extent

    play(story)


def test_a_batch_that_was_cut_short_is_committed_in_its_own_generation(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        batch = await begin(feed)
        shorter, units = await processor.shorten(batch, batch.to_ts)
        assert shorter is not None
        assert (shorter.generation, len(units)) == (1, 1)
        with pytest.raises(SupersededError):
            await processor.commit(batch, [ROW])
        await processor.commit(shorter, [ROW])
        assert processor.progress.checkpoint_ts >= batch.to_ts

    play(story)


def test_a_sink_that_is_away_when_a_batch_is_taken_back_is_waited_for(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        await begin(feed)
        sink.refusals = {"recover": 1}
        taking_back = asyncio.create_task(processor.begin_again())
        while processor.sink_trouble is None:
            await SYSTEM_CLOCK.sleep(0.01)
        assert processor.sink_trouble == "the sink sleeps. Wake it."
        await taking_back
        batch = await begin(feed)
        await processor.commit(batch, [ROW])
        assert processor.sink_trouble is None
        assert processor.failure is None

    play(story)


@pytest.mark.parametrize("call", ["target", "commit"])
def test_what_a_sink_that_is_away_did_not_take_comes_again(play: Callable[..., None], call: str) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        sink.refusals = {call: 1}
        with pytest.raises(SinkUnavailableError) as raised:
            await processor.commit(await begin(feed), [ROW])
        await processor.begin_again(raised.value)
        assert processor.sink_trouble is not None  # until it has taken something
        batch = await begin(feed)
        await processor.commit(batch, [ROW])
        assert processor.progress.checkpoint_ts >= batch.to_ts
        assert processor.sink_trouble is None
        assert processor.totals.rows == 1

    play(story)


class SleepyClock(SystemClock):
    """Who sleeps is woken by hand."""

    def __init__(self) -> None:
        self.is_asleep, self.woken = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.is_asleep.set()
        await self.woken.wait()


@pytest.mark.parametrize("is_full", [False, True])
def test_readers_are_not_told_of_a_batch_whose_state_is_not_saved(
    play: Callable[..., None], session: SqlSession, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """A file sink tells them of all that it has taken: after a crash it would be taken twice. ``is_full``: the state
    cannot be saved; then nothing is told or saved any more."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        data_dir = processor._data_dir
        processor._clock = clock = SleepyClock()
        sink.refusals = {"publish": 1}
        await processor.commit(await begin(feed), [ROW])
        await clock.is_asleep.wait()  # before readers are told once more
        await asyncio.to_thread(insert, session)
        batch = await begin(feed)
        save, saved = data_dir.save, data_dir.saved

        def saving(state: ChangefeedState) -> None:
            processor._sink_thread.submit(int).result()  # whatever waits there has been done now
            sink.did.append("save")
            if is_full:
                raise DataDirError("the disk is full. Free some space.")
            save(state)

        monkeypatch.setattr(data_dir, "save", saving)
        del sink.did[:]
        sink.committing.shut()
        committing = asyncio.create_task(processor.commit(batch, [ROW]))
        await asyncio.to_thread(sink.committing.reached.wait, PATIENCE_SECONDS)
        clock.woken.set()
        for _ in range(10):  # who was asleep asks the sink now, if at all
            await asyncio.sleep(0)
        sink.committing.open()
        if is_full:
            with pytest.raises(DataDirError):
                await committing
            monkeypatch.setattr(data_dir, "save", save)  # there is space again
            await processor.close()
            assert data_dir.saved == saved
            assert sink.did == ["commit", "save"]
        else:
            await committing
            await processor.close()
            assert sink.did[:3] == ["commit", "save", "publish"]

    play(story)


def test_readers_are_not_told_of_a_ddls_rows_whose_state_is_not_saved(
    play: Callable[..., None], session: SqlSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that gets its key brings rows, which count once the state is saved, as those of a batch do."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        processor._clock = clock = SleepyClock()
        sink.refusals = {"publish": 1}
        await processor.commit(await begin(feed), [ROW])
        await clock.is_asleep.wait()
        save, saved = processor._data_dir.save, asyncio.Event()

        def saving(state: ChangefeedState) -> None:
            processor._sink_thread.submit(int).result()  # whatever waits there has been done now
            sink.did.append("save")
            save(state)
            saved.set()

        sink.altering.shut()
        await asyncio.to_thread(session.execute, f"create table shop.t{next(_ids)} (id int primary key)")
        await asyncio.to_thread(sink.altering.reached.wait, PATIENCE_SECONDS)
        monkeypatch.setattr(processor._data_dir, "save", saving)
        del sink.did[:]
        clock.woken.set()
        for _ in range(10):  # who was asleep asks the sink now, if at all
            await asyncio.sleep(0)
        sink.altering.open()
        await saved.wait()
        assert sink.did[:2] == ["ddl", "save"]

    play(story)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_batch_is_not_taken_back_before_the_state_that_tells_of_a_ddls_rows_is_saved(
    play: Callable[..., None], session: SqlSession, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """A file sink that recovers tells readers of all that it has taken. ``is_full``: the state cannot be saved."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        await processor.commit(await begin(feed), [ROW])
        save, saved = processor._data_dir.save, asyncio.Event()

        def saving(state: ChangefeedState) -> None:
            processor._sink_thread.submit(int).result()  # whatever waits there has been done now
            sink.did.append("save")
            saved.set()
            if is_full:
                raise DataDirError("the disk is full. Free some space.")
            save(state)

        sink.altering.shut()
        await asyncio.to_thread(session.execute, f"create table shop.t{next(_ids)} (id int primary key)")
        await asyncio.to_thread(sink.altering.reached.wait, PATIENCE_SECONDS)
        monkeypatch.setattr(processor._data_dir, "save", saving)
        del sink.did[:]
        taking_back = asyncio.create_task(processor.begin_again())  # Spark has died meanwhile
        for _ in range(10):  # who takes it back asks the sink now, if at all
            await asyncio.sleep(0)
        sink.altering.open()
        await saved.wait()
        if is_full:
            with pytest.raises(DataDirError):
                await taking_back
            assert sink.did == ["ddl", "save"]
        else:
            await taking_back
            assert sink.did[:2] == ["ddl", "save"]
            assert "recover" in sink.did

    play(story)


def test_a_row_that_was_put_aside_stands_there_once_when_its_batch_comes_again_cut_elsewhere(
    play: Callable[..., None], session: SqlSession
) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        processor = feed.processor
        bad = Undecodable("shop.t", 1, b"k", 1, 2, b"", b"", None, "it makes no sense")
        receipt = replace(ROW, aside=(bad,))
        sink.refusals = {"commit": 1}
        first = await begin(feed)
        with pytest.raises(SinkUnavailableError):
            await processor.commit(first, [receipt])
        await processor.begin_again()
        await asyncio.to_thread(insert, session)
        batch = await begin(feed)
        while batch.to_ts == first.to_ts:
            await processor.begin_again()
            batch = await begin(feed)
        await processor.commit(batch, [receipt])
        assert list(read_quarantine(processor._data_dir.undecodable)) == [bad]

    play(story)


class PunctualSink(BlackholeSink):
    """Wants to note every tenth ts."""

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        return Ts((checkpoint_ts // 10 + 1) * 10)


@pytest.mark.parametrize(
    ("base_ts", "behind", "sync_ts"),
    [
        pytest.param(23, {}, 30, id="between two"),
        pytest.param(20, {}, 20, id="at one, which may have been noted"),
        pytest.param(20, {"7": Ts(12)}, 20, id="one table is not there yet"),
        pytest.param(23, {"7": Ts(12)}, 30, id="most tables have passed it: nobody had asked for it then"),
    ],
)
def test_at_which_sync_point_a_changefeed_goes_on(
    base_ts: int, behind: dict[str, Ts], sync_ts: int, tmp_path: Path
) -> None:
    checkpoint_ts = min([Ts(base_ts), *behind.values()])
    state = ChangefeedState(1, "", Ts(5), checkpoint_ts, checkpoint_ts, 0, {}, None, base_ts=Ts(base_ts), behind=behind)

    async def now() -> Ts:
        return Ts(99)

    processor = Processor(store_with(table(7, "t")), PunctualSink(), state, DataDir(tmp_path), now)
    assert processor.progress.sync_ts == sync_ts
