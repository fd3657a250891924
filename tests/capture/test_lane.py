"""What a lane does for a Spark that comes and goes, and for a sink that does."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, BothHalves, Feed, feeding, new_state, schema_at
from tests.flow.schema.builders import store_with, table
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Batch
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.clock import SYSTEM_CLOCK, Clock, SystemClock
from tidemill.errors import DataDirError, SinkUnavailableError, SupersededError
from tidemill.flow.deadletter import read_quarantine
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Undecodable
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt
from tidemill.sinks.blackhole import BlackholeTarget
from tidemill.upstream.pd import PdClient

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


class GatedSink(BothHalves):
    """Notes what is done to it. ``refusals``: so many calls of each kind still fail for a reason that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.recovering, self.committing, self.altering = Gate(), Gate(), Gate()
        self.did: list[str] = []
        self.refusals: dict[str, int] = {}

    def recover(self, at: Checkpoints, *more: Any) -> None:
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
        return {} if event.gives_key else None

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        self._do("take")
        return super().take(commit)

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

    def run(
        story: Callable[[Feed, GatedSink], Awaitable[None]], make_clock: Callable[[], Clock] = lambda: SYSTEM_CLOCK
    ) -> None:
        async def scenario() -> None:
            async with PdClient(upstream.pd_address) as pd:
                ts, sink = await pd.get_ts(), GatedSink()
                schema, state = await schema_at(pd, ts), new_state(pd, ts)
                at = feeding(pd, schema, state, tmp_path, sink=sink, clock=make_clock())
                async with at as feed, asyncio.timeout(PATIENCE_SECONDS):
                    await asyncio.to_thread(insert, session)
                    await story(feed, sink)

        asyncio.run(scenario())

    return run


async def begin(feed: Feed) -> Batch:
    """As the driver does, until a batch is at hand."""
    batch = await feed.begin()
    await feed.lane.batches.units(batch)
    return batch


def test_who_waits_for_an_offer_can_be_stopped_at_the_very_moment_that_something_changes(
    play: Callable[..., None],
) -> None:
    """Otherwise a changefeed that is closed then would wait for its driver for ever."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        await begin(feed)  # so that there is nothing to offer
        waiting = asyncio.create_task(feed.lane.batches.offer(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        feed.lane.changed.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    play(story)


def test_a_commit_that_comes_while_its_batch_is_taken_back_is_refused(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        batch = await begin(feed)
        before = feed.checkpoint_ts
        sink.recovering.shut()
        taking_back = asyncio.create_task(lane.batches.begin_again())
        await asyncio.to_thread(sink.recovering.reached.wait, PATIENCE_SECONDS)
        with pytest.raises(SupersededError, match=r"generation 0 is too late"):
            await lane.batches.commit(batch, [ROW])
        sink.recovering.open()
        await taking_back
        with pytest.raises(SupersededError):
            await lane.batches.commit(batch, [ROW])
        assert feed.checkpoint_ts == before
        assert "commit" not in sink.did

    play(story)


def test_a_batch_that_is_being_committed_is_not_taken_back(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        batch = await begin(feed)
        sink.committing.shut()
        committing = asyncio.create_task(lane.batches.commit(batch, [ROW]))
        await asyncio.to_thread(sink.committing.reached.wait, PATIENCE_SECONDS)
        taking_back = asyncio.create_task(lane.batches.begin_again())
        sink.committing.open()
        await committing
        await taking_back
        assert feed.checkpoint_ts >= batch.to_ts
        assert [step for step in sink.did if step in ("commit", "recover")][-2:] == ["commit", "recover"]
        assert lane.totals.rows == 1

    play(story)


def test_rows_are_counted_before_the_checkpoint_that_covers_them_is_seen(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        batch = await begin(feed)
        committing = asyncio.create_task(feed.lane.batches.commit(batch, [ROW]))
        while feed.checkpoint_ts < batch.to_ts:  # noqa: ASYNC110 - every step of the loop is looked at
            await asyncio.sleep(0)
        assert feed.lane.totals.rows == 1
        await committing

    play(story)


def test_a_table_behind_that_a_restart_hears_of_late_is_read_from_where_it_was(
    upstream: EmbeddedUpstream, session: SqlSession, tmp_path: Path
) -> None:
    """Most tables have passed its creation; that DDL is known again only after where the tables are has been saved."""

    async def scenario() -> None:
        async with PdClient(upstream.pd_address) as pd:
            before_ts = await pd.get_ts()
            await asyncio.to_thread(session.execute, "create table shop.late (id int primary key)")
            created_ts = await pd.get_ts()
            tables = {table.name: table.id for table in (await schema_at(pd, created_ts)).tables()}
            await asyncio.to_thread(session.execute, "insert into shop.late values (7)")
            behind = {str(tables["t"]): before_ts, str(tables["late"]): created_ts}
            base_ts = await pd.get_ts()
            state = replace(new_state(pd, before_ts), base_ts=base_ts, behind=behind, ddl_ts=created_ts)
            schema = await schema_at(pd, before_ts)
            async with feeding(pd, schema, state, tmp_path) as feed, asyncio.timeout(PATIENCE_SECONDS):
                saved = {feed.lane.name: 1 << 30}  # nothing has been heard from the upstream by now
                feed.lane.obey(replace(feed.owner.orders, saved=saved))
                batch = await feed.begin()
                (unit,) = await feed.lane.batches.units(batch)
                assert unit.slices is not None
                assert (unit.slices.rows, batch.extent.of(tables["late"])[0]) == (1, created_ts)

    asyncio.run(scenario())


def test_of_two_attempts_that_wrote_the_same_batch_the_older_commits_nothing(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        batch = await begin(feed)
        await lane.batches.begin_again()
        again = await begin(feed)
        with pytest.raises(SupersededError):
            await lane.batches.commit(batch, [ROW])
        assert lane.progress.in_flight == again.extent
        await lane.batches.commit(again, [ROW])
        assert feed.checkpoint_ts >= again.to_ts

    play(story)


def test_who_is_late_takes_no_batch_back_and_gets_none(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        late = await begin(feed)
        await lane.batches.begin_again()
        batch = await begin(feed)
        recoveries = sink.did.count("recover")
        for act in (lambda: lane.batches.shorten(late, Ts(late.to_ts - 1)), lambda: lane.batches.units(late)):
            with pytest.raises(SupersededError):
                await act()
        assert sink.did.count("recover") == recoveries
        assert lane.progress.in_flight == batch.extent

    play(story)


def test_a_batch_that_was_cut_short_is_committed_in_its_own_generation(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        batch = await begin(feed)
        shorter, units = await lane.batches.shorten(batch, batch.to_ts)
        assert shorter is not None
        assert (shorter.generation, len(units)) == (1, 1)
        with pytest.raises(SupersededError):
            await lane.batches.commit(batch, [ROW])
        await lane.batches.commit(shorter, [ROW])
        assert feed.checkpoint_ts >= batch.to_ts

    play(story)


def test_a_sink_that_is_away_when_a_batch_is_taken_back_is_waited_for(play: Callable[..., None]) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        await begin(feed)
        sink.refusals = {"recover": 1}
        taking_back = asyncio.create_task(lane.batches.begin_again())
        while lane.writing.trouble is None:
            await SYSTEM_CLOCK.sleep(0.01)
        assert lane.writing.trouble == "the sink sleeps. Wake it."
        await taking_back
        batch = await begin(feed)
        await lane.batches.commit(batch, [ROW])
        assert lane.writing.trouble is None
        assert feed.failure is None

    play(story)


@pytest.mark.parametrize("call", ["target", "commit"])
def test_what_a_sink_that_is_away_did_not_take_comes_again(play: Callable[..., None], call: str) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        sink.refusals = {call: 1}
        with pytest.raises(SinkUnavailableError) as raised:
            await lane.batches.commit(await begin(feed), [ROW])
        await lane.batches.begin_again(raised.value)
        assert lane.writing.trouble is not None  # until it has taken something
        batch = await begin(feed)
        await lane.batches.commit(batch, [ROW])
        assert feed.checkpoint_ts >= batch.to_ts
        assert lane.writing.trouble is None
        assert lane.totals.rows == 1

    play(story)


class SleepyClock(SystemClock):
    """Who sleeps is woken by hand."""

    def __init__(self) -> None:
        self.is_asleep, self.woken = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.is_asleep.set()
        await self.woken.wait()


def noting(feed: Feed, sink: GatedSink, monkeypatch: pytest.MonkeyPatch, *, is_full: bool = False) -> None:
    """Note when a state is saved. ``is_full``: it cannot be."""
    save = feed.data_dir.save

    def saving(state: ChangefeedState) -> None:
        feed.owner.beside._thread.submit(int).result()  # whatever waits there has been done now
        sink.did.append("save")
        if is_full:
            raise DataDirError("the disk is full. Free some space.")
        save(state)

    monkeypatch.setattr(feed.data_dir, "save", saving)
    del sink.did[:]


@pytest.mark.parametrize("is_full", [False, True])
def test_readers_are_not_told_of_a_batch_whose_state_is_not_saved(
    play: Callable[..., None], session: SqlSession, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """A file sink tells them of all that it has taken: after a crash it would be taken twice. ``is_full``: the state
    cannot be saved; then nothing is told or saved any more."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        clock = feed.owner._clock
        assert isinstance(clock, SleepyClock)
        sink.refusals = {"publish": 1}
        await feed.lane.batches.commit(await begin(feed), [ROW])
        await clock.is_asleep.wait()  # before readers are told once more
        await asyncio.to_thread(insert, session)
        batch = await begin(feed)
        saved = feed.data_dir.saved
        noting(feed, sink, monkeypatch, is_full=is_full)
        sink.committing.shut()
        committing = asyncio.create_task(feed.lane.batches.commit(batch, [ROW]))
        await asyncio.to_thread(sink.committing.reached.wait, PATIENCE_SECONDS)
        clock.woken.set()
        await asyncio.sleep(0)
        sink.committing.open()
        if is_full:
            with pytest.raises(SupersededError, match="the owner has stopped"):
                await committing
            assert isinstance(feed.failure, DataDirError)
            assert feed.data_dir.saved == saved
        else:
            await committing
        taken = sink.did.index("take")
        assert sink.did[taken : taken + 2] == ["take", "save"]

    play(story, SleepyClock)


def test_readers_are_not_told_of_a_ddls_rows_whose_state_is_not_saved(
    play: Callable[..., None], session: SqlSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that gets its key brings rows, which count once the state is saved, as those of a batch do."""
    name = f"shop.t{next(_ids)}"

    async def story(feed: Feed, sink: GatedSink) -> None:
        await feed.lane.batches.commit(await begin(feed), [ROW])
        await asyncio.to_thread(session.execute, f"create table {name} (id int not null)")
        await feed.until(lambda: "ddl" in sink.did)
        sink.altering.shut()
        await asyncio.to_thread(session.execute, f"alter table {name} add unique key (id)")
        await asyncio.to_thread(sink.altering.reached.wait, PATIENCE_SECONDS)
        noting(feed, sink, monkeypatch)
        sink.altering.open()
        await feed.until(lambda: "publish" in sink.did)
        assert sink.did[:3] == ["ddl", "save", "publish"]

    play(story)


def test_a_ddl_does_not_run_before_the_rows_in_front_of_it_are_saved(
    play: Callable[..., None], session: SqlSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash they would come again, to a table that the DDL has changed."""

    async def story(feed: Feed, sink: GatedSink) -> None:
        batch, saving, save = await begin(feed), Gate(), feed.data_dir.save
        saving.shut()

        def hang(state: ChangefeedState) -> None:
            saving()
            sink.did.append("save")
            save(state)

        monkeypatch.setattr(feed.data_dir, "save", hang)
        ddl = f"alter table shop.t add column c{next(_ids)} int"
        await asyncio.to_thread(session.execute, ddl)
        now_ts = await feed.pd.get_ts()
        await feed.until(lambda: feed.owner.owned.schema_ts > now_ts)
        committing = asyncio.create_task(feed.lane.batches.commit(batch, [ROW]))
        await asyncio.to_thread(saving.reached.wait, PATIENCE_SECONDS)
        await SYSTEM_CLOCK.sleep(0.2)  # time enough to run it
        assert "ddl" not in sink.did
        saving.open()
        await committing
        await feed.until(lambda: "ddl" in sink.did)
        assert sink.did.index("save") < sink.did.index("ddl")

    play(story)
    session.execute("drop table shop.t")
    session.execute("create table shop.t (id int primary key)")


def test_what_is_committed_beside_a_ddl_that_brings_rows_is_saved_with_the_sinks_state_of_it(
    play: Callable[..., None], session: SqlSession
) -> None:
    name = f"shop.t{next(_ids)}"

    async def story(feed: Feed, sink: GatedSink) -> None:
        batch = await begin(feed)
        await asyncio.to_thread(session.execute, f"create table {name} (id int not null)")
        await feed.lane.batches.commit(batch, [ROW])
        await feed.until(lambda: "ddl" in sink.did)
        sink.altering.shut()
        await asyncio.to_thread(session.execute, f"alter table {name} add unique key (id)")
        await asyncio.to_thread(sink.altering.reached.wait, PATIENCE_SECONDS)
        await asyncio.to_thread(insert, session)
        batch = await begin(feed)
        committing = asyncio.create_task(feed.lane.batches.commit(batch, [ROW]))
        await feed.until(lambda: bool(feed.owner._reports))
        sink.altering.open()
        await committing
        saved = feed.data_dir.saved
        assert saved is not None
        assert saved.sink_state is not None
        assert saved.rows == saved.sink_state["rows"] == 2

    play(story)


def test_a_changefeed_is_not_done_before_readers_were_told_though_the_sink_was_away(
    play: Callable[..., None],
) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        clock = feed.owner._clock
        assert isinstance(clock, SleepyClock)
        batch = await begin(feed)
        sink.refusals = {"publish": 1}
        feed.owner.end_at(batch.to_ts)
        await feed.lane.batches.commit(batch, [ROW])
        await clock.is_asleep.wait()  # before readers are told once more
        assert feed.owner.owned.is_finished
        assert not feed.owner.is_done
        clock.woken.set()
        await feed.until(lambda: feed.owner.is_done)
        assert sink.did[-1] == "publish"

    play(story, SleepyClock)


def test_a_ddl_that_takes_long_holds_back_no_batch_of_other_tables(
    play: Callable[..., None], session: SqlSession
) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        sink.altering.shut()
        await feed.lane.batches.commit(await begin(feed), [ROW])
        await asyncio.to_thread(session.execute, f"create table shop.t{next(_ids)} (id int primary key)")
        await asyncio.to_thread(sink.altering.reached.wait, PATIENCE_SECONDS)
        before = feed.lane.progress.at.base_ts
        for _ in range(2):
            await asyncio.to_thread(insert, session)
            batch = await begin(feed)
            await feed.lane.batches.commit(batch, [ROW])
            assert feed.data_dir.saved is not None
            assert feed.data_dir.saved.base_ts == batch.to_ts > before
        assert feed.checkpoint_ts < batch.to_ts
        sink.altering.open()
        await feed.until(lambda: feed.checkpoint_ts >= batch.to_ts)

    play(story)


def test_a_row_that_was_put_aside_stands_there_once_when_its_batch_comes_again_cut_elsewhere(
    play: Callable[..., None], session: SqlSession
) -> None:
    async def story(feed: Feed, sink: GatedSink) -> None:
        lane = feed.lane
        bad = Undecodable("shop.t", 1, b"k", 1, 2, b"", b"", None, "it makes no sense")
        receipt = replace(ROW, aside=(bad,))
        sink.refusals = {"commit": 1}
        first = await begin(feed)
        with pytest.raises(SinkUnavailableError):
            await lane.batches.commit(first, [receipt])
        await lane.batches.begin_again()
        await asyncio.to_thread(insert, session)
        batch = await begin(feed)
        while batch.to_ts == first.to_ts:
            await lane.batches.begin_again()
            batch = await begin(feed)
        await lane.batches.commit(batch, [receipt])
        assert list(read_quarantine(feed.data_dir.undecodable)) == [bad]

    play(story)


class PunctualSink(BothHalves):
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

    async def scenario() -> Ts | None:
        feed = SchemaFeed(PdClient("127.0.0.1:1"), store_with(table(7, "t")), checkpoint_ts)
        owner = ChangefeedOwner(feed, PunctualSink(), state, StateWriter(DataDir(tmp_path)))
        return owner.owned.sync_ts

    assert asyncio.run(scenario()) == sync_ts
