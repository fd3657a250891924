"""Keys of RawKV in a cluster of captures: parts on several of them, which come, go and are killed."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture import test_cluster
from tests.capture.test_cluster import KEY, PATIENCE_SECONDS, Story, ThreadEngines, a_story, create
from tests.e2e.rawkv import Loop, Watcher, Writer
from tests.etcd import Etcd, running
from tests.rounds import seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.cluster.changefeed_operations import ChangefeedOperations
from tidemill.capture.cluster.changes import Changes
from tidemill.capture.cluster.guarding import check_place
from tidemill.capture.downstream import check_overlaps
from tidemill.capture.etcd.client import Delete
from tidemill.capture.options import RunOptions
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import IncompatibleUpstreamError, SupersededError, UsageError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.model.cluster import AdminJob, ChangefeedInfo, FeedState, NewChangefeed, UpstreamAccess
from tidemill.model.keys import KeyRange
from tidemill.model.receipt import Receipt
from tidemill.model.schedule import CaptureId, ChangefeedKey, TableId
from tidemill.model.security import PLAIN
from tidemill.model.ts import Ts
from tidemill.upstream.pd import PdClient
from tidemill.verify.rawkv import Cluster, KeyReport, compare_keys

SEED = 20261120
STEPS = 20
PARTS = 4


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def compare(source: EmbeddedUpstream, target: EmbeddedUpstream) -> KeyReport:
    here, there = (Cluster(cluster.pd_address, PLAIN) for cluster in (source, target))
    return compare_keys(here, there, KeyRange(), "", PATIENCE_SECONDS)


def test_parts_are_spread_over_captures_and_go_on_when_one_is_killed(etcd: Etcd, tmp_path: Path) -> None:
    rng = random.Random(seed(SEED))
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(EmbeddedUpstream.start(stores=2, api_version=2, resolved_interval_seconds=0.05))
            for _ in range(2)
        )
        loop = stack.enter_context(Loop())
        writer, watcher = Writer(loop, source, seed(SEED)), Watcher(loop, target)
        for key in (b"cold/0100", b"cold/0200", b"cold/0300"):
            source.split(b"r\0\0\0" + key)
        uri = f"tikv://{target.pd_address}?deadline=1s"
        config = {"keys": {"safe-interval": "0.2s", "span-count": PARTS}}
        start_ts = KeyRange(safe_interval_seconds=0.2).before(source.tso())

        async def story() -> None:
            async with a_story(source, etcd, tmp_path, rng, captures=2) as told:
                await asyncio.to_thread(create, told, uri, start_ts, config, source.cluster_id)
                await told.until(lambda: sorted(told.holders().values()) == [2, 2])
                await asyncio.to_thread(writer.steps, STEPS)
                await moved(told)
                await asyncio.to_thread(writer.steps, STEPS)
                victim = next(name for name, each in told.captures.items() if not each.is_owner)
                guarded = told.captures[victim].snapshot.owner
                assert guarded is not None
                await told.kill(victim)
                epoch = told.feed.place.epoch if told.feed is not None else 0
                with pytest.raises(SupersededError, match="its session, or that owner, is gone"):
                    await asyncio.to_thread(
                        check_place, told.client, told.keys, victim, KEY, epoch, guarded.claim.revision
                    )
                await asyncio.to_thread(writer.steps, STEPS)
                await told.until(lambda: sorted(told.holders().values()) == [PARTS])
                await told.start()
                await told.until(lambda: sorted(told.holders().values()) == [2, 2])
                owner = next(name for name, each in told.captures.items() if each.is_owner)
                await told.kill(owner)
                await asyncio.to_thread(writer.steps, STEPS)
                report = await asyncio.to_thread(compare, source, target)
                assert report.is_equal, "\n".join(report.lines())
                assert sum(part.upstream.pairs for part in report.parts) > 100
                told.look()

        asyncio.run(story())
        assert watcher.seen > 100
        assert watcher.moved_back() == []
        watcher.close()
        writer.close()


class CopyEngines(ThreadEngines):
    """``began`` is called when the first copy is about to take its first batch."""

    def __init__(self, made: list["CopyEngines"], began: Callable[[], None], *args: Any) -> None:
        super().__init__(*args)
        self._made, self._began = made, began
        self.batches = 0
        made.append(self)

    def start(self, should_stop: Callable[[], bool]) -> None:
        if self._made == [self]:
            self._began()

    def of_copy(self) -> "CopyEngines":
        return self

    def run(self, pipeline: Pipeline, units: Sequence[Unit], *_: object) -> list[Receipt]:
        self.batches += 1
        return [pipeline.process(unit) for unit in units]


def test_who_is_the_owner_no_longer_copies_nothing_more(
    etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target of TiKV has no fence: rows of the copy that come late would take the place of newer ones."""
    made: list[CopyEngines] = []
    with ExitStack() as stack:
        source, target = (stack.enter_context(EmbeddedUpstream.start(api_version=2)) for _ in range(2))
        loop = stack.enter_context(Loop())
        writer = Writer(loop, source, seed(SEED))
        writer.steps(STEPS)
        start_ts = source.tso()

        async def story() -> None:
            async with a_story(source, etcd, tmp_path, random.Random(), captures=0) as told:

                def slept() -> None:
                    """Until the session has ended, and another one is the owner."""
                    owner = told.owner
                    assert owner is not None
                    assert owner.feeds is not None
                    told.client.commit([], [Delete(owner.feeds.claim.key)])

                monkeypatch.setattr(test_cluster, "ThreadEngines", partial(CopyEngines, made, slept))
                await told.start()
                changes = Changes(told.client, told.keys)
                new = NewChangefeed(
                    KEY, f"tikv://{target.pd_address}?deadline=1s", config={"keys": {"safe-interval": "0.2s"}},
                    initial_copy=True,
                )  # fmt: skip
                draft = changes.draft(new, Ts(start_ts), source.cluster_id)
                await asyncio.to_thread(changes.create, draft)
                await told.until(lambda: told.feed is not None)

        asyncio.run(story())
        writer.close()
    assert made[0].batches == 0
    assert made[1].batches > 0


class SlowEngines(ThreadEngines):
    """Spark takes its time to start."""

    def __init__(self, told: list[str], *args: Any) -> None:
        super().__init__(*args)
        self._told = told

    def start(self, should_stop: Callable[[], bool]) -> None:
        self._told.append("starting")
        ends = SYSTEM_CLOCK.monotonic() + 20
        while not should_stop() and SYSTEM_CLOCK.monotonic() < ends:
            threading.Event().wait(0.01)
        self._told.append("started")

    def close(self) -> None:
        self._told.append("closed")


def test_a_copy_that_is_given_up_leaves_no_spark_that_is_just_starting(
    etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(test_cluster, "ThreadEngines", partial(SlowEngines, said))
    with EmbeddedUpstream.start(api_version=2) as source:

        async def story() -> None:
            async with a_story(source, etcd, tmp_path, random.Random(), captures=1) as told:
                changes = Changes(told.client, told.keys)
                new = NewChangefeed(KEY, "blackhole://", config={"keys": {"api": "raw"}}, initial_copy=True)
                draft = changes.draft(new, Ts(source.tso()), source.cluster_id)
                await asyncio.to_thread(changes.create, draft)
                await told.until(lambda: bool(said))
                stopped = {FeedState.NORMAL}, FeedState.STOPPED, AdminJob.STOP
                await asyncio.to_thread(changes.set_state, KEY, *stopped)
                await told.until(lambda: "closed" in said)

        asyncio.run(story())
    assert said == ["starting", "started", "closed"]


def test_of_an_earlier_epoch_nothing_is_given_out(etcd: Etcd, tmp_path: Path) -> None:
    """A capture that slept while the changefeed was resumed, or removed: its session and the owner are still there."""
    with EmbeddedUpstream.start(api_version=2) as source:

        async def story() -> None:
            async with a_story(source, etcd, tmp_path, random.Random(), captures=1) as told:
                changes = Changes(told.client, told.keys)
                new = NewChangefeed(KEY, "blackhole://", config={"keys": {"api": "raw"}})
                draft = changes.draft(new, Ts(source.tso()), source.cluster_id)
                info = await asyncio.to_thread(changes.create, draft)
                await told.until(lambda: told.feed is not None)
                owner = told.owner
                assert owner is not None
                assert owner.feeds is not None
                place = told.client, told.keys, owner.id, KEY, info.epoch, owner.feeds.claim.revision
                await asyncio.to_thread(check_place, *place)
                stopped = {FeedState.NORMAL}, FeedState.STOPPED, AdminJob.STOP
                await asyncio.to_thread(changes.set_state, KEY, *stopped)
                resumed = {FeedState.STOPPED}, FeedState.NORMAL, AdminJob.NONE
                await asyncio.to_thread(changes.set_state, KEY, *resumed)
                with pytest.raises(SupersededError, match="it was begun anew, or removed, since"):
                    await asyncio.to_thread(check_place, *place)
                await asyncio.to_thread(changes.remove, KEY)
                with pytest.raises(SupersededError, match="it was begun anew, or removed, since"):
                    await asyncio.to_thread(check_place, *place)

        asyncio.run(story())


async def moved(told: Story) -> None:
    """A part goes where it is told to, by name."""
    feed = told.feed
    assert feed is not None
    tables = {name: told.captures[name].followed[KEY].tables() for name in told.captures}
    giver, taker = sorted(tables, key=lambda name: len(tables[name]))
    part = next(iter(t for t in feed.tables if feed.coordinator.holder(t) == giver))
    feed.coordinator.move_table(TableId(part), CaptureId(taker))
    await told.until(lambda: told.feed is not None and told.feed.coordinator.holder(part) == taker)


@pytest.mark.parametrize(
    ("keys", "uri", "is_refused"),
    [
        pytest.param(KeyRange(b"b", b"d"), "tikv://h:1", True, id="the same keys"),
        pytest.param(KeyRange(b"c"), "tikv://i:2,h:1", True, id="the same cluster, by another PD too"),
        pytest.param(KeyRange(b"a", b"b", more=((b"bb", b""),)), "tikv://h:1", True, id="the second range"),
        pytest.param(KeyRange(b"a", b"b"), "tikv://h:1", False, id="up to where the other one begins"),
        pytest.param(KeyRange(b"d", b""), "tikv://h:1", False, id="from where it ends"),
        pytest.param(KeyRange(), "tikv://h:2", False, id="another cluster"),
        pytest.param(KeyRange(), "tikv://h:1?keyspace=other", False, id="another keyspace there"),
        pytest.param(KeyRange(), "blackhole://", False, id="another sink"),
    ],
)
def test_keys_that_another_changefeed_writes_there_are_refused(keys: KeyRange, uri: str, is_refused: bool) -> None:
    others = [
        RunOptions("pd", "tikv://h:1?of-a-later-version=1", Path(), keys=KeyRange(), name="unread"),
        RunOptions("pd", "tikv://h:1", Path(), keys=KeyRange(b"b", b"d"), name="first"),
        RunOptions("pd", "blackhole://", Path(), name="tables"),
    ]
    wanted = RunOptions("pd", uri, Path(), keys=keys)
    if not is_refused:
        check_overlaps(wanted, others)
        return
    with pytest.raises(UsageError, match=r"changefeed 'first' writes keys of .* into tikv://h:1 already"):
        check_overlaps(wanted, others)


class Owner:
    """As an API asks the owner's capture."""

    def __init__(self, told: Story) -> None:
        owner = told.owner
        assert owner is not None
        assert owner.feeds is not None
        self.feeds, self._pd = owner.feeds, owner.options.pd
        self.serving: Any = SimpleNamespace(client=told.client, keys=told.keys, options=owner.options)

    async def beside(self, call: Any, *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    def pd(self, upstream: UpstreamAccess | None = None) -> AbstractAsyncContextManager[PdClient]:
        return PdClient(self._pd)


def created(upstream: EmbeddedUpstream, etcd: Etcd, folder: Path, *wanted: NewChangefeed) -> list[ChangefeedInfo]:
    async def story() -> list[ChangefeedInfo]:
        async with a_story(upstream, etcd, folder, random.Random(), captures=1) as told:
            operations = ChangefeedOperations(Owner(told))
            return [await operations.create(each) for each in wanted]

    return asyncio.run(story())


def keys_feed(name: str, **keys: str) -> NewChangefeed:
    return NewChangefeed(ChangefeedKey("default", name), "tikv://127.0.0.1:1", config={"keys": {"api": "raw", **keys}})


def test_a_changefeed_of_keys_begins_where_no_store_can_have_been_behind(etcd: Etcd, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(api_version=2) as source:
        before_ts = source.tso()
        (info,) = created(source, etcd, tmp_path, keys_feed("first"))
        after_ts = source.tso()
    assert KeyRange().before(before_ts) <= info.start_ts <= KeyRange().before(after_ts)


def test_an_owner_refuses_keys_that_cannot_be_captured(etcd: Etcd, tmp_path: Path) -> None:
    with EmbeddedUpstream.start(api_version=2) as source:
        with pytest.raises(UsageError, match=r"changefeed 'first' writes keys of \[62,\)"):
            created(source, etcd, tmp_path / "a", keys_feed("first"), keys_feed("second", **{"start-key": "62"}))
        with pytest.raises(UsageError, match="there is no keyspace 'nowhere'"):
            created(source, etcd, tmp_path / "b", keys_feed("first", keyspace="nowhere"))
    with (
        EmbeddedUpstream.start() as old,
        pytest.raises(IncompatibleUpstreamError, match="does not serve RawKV"),
    ):
        created(old, etcd, tmp_path / "c", keys_feed("first"))
