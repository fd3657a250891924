"""DDLs that a sink takes several at a time: those that may run, and no sooner than one by one."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, BothHalves, kill
from tests.flow.schema.stores import fed_store
from tests.histories import load
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.model.ddl import DdlEvent
from tidemill.model.orders import EVERYTHING, Committed, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts


class GroupingSink(BothHalves):
    """Notes how many DDLs came at once, and how many rows were saved by then."""

    def __init__(self, data_dir: DataDir) -> None:
        super().__init__()
        self._data_dir = data_dir
        self.calls: list[tuple[int, int]] = []

    def ddl(self, event: DdlEvent) -> None:
        self.ddls([event], lambda count: None)

    def ddls(self, events: Sequence[DdlEvent], passed: Callable[[int], None]) -> None:
        assert self._data_dir.saved is not None
        self.calls.append((len(events), self._data_dir.saved.rows))


def test_ddls_go_together_once_the_rows_before_all_of_them_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the second one are reported while the state is being saved for the first one. After a crash they would
    come again, behind the DDL."""
    store, changes = deepcopy(fed_store("ddl"))
    start_ts, data_dir = Ts(load("ddl").bootstrap_ts), DataDir(tmp_path / "data")
    reached, opened, told = threading.Semaphore(0), threading.Semaphore(0), asyncio.Event()
    first = next(n for n, (a, b) in enumerate(pairwise(changes)) if _are_apart(a.touched, b.touched))
    one, other = changes[first], changes[first + 1]
    assert one.events
    assert other.events

    async def story() -> list[tuple[int, int]]:
        nobody: Any = None  # no upstream is asked
        feed = SchemaFeed(nobody, store, Ts(one.finished_ts - 1))
        state = ChangefeedState(1, "blackhole:", start_ts, feed.resolved_ts, feed.resolved_ts, 0, {}, None)
        data_dir.acquire()
        data_dir.save(state)
        save = data_dir.save

        def slow(state: ChangefeedState) -> None:
            reached.release()
            assert opened.acquire(timeout=PATIENCE_SECONDS)
            save(state)

        sink, states = GroupingSink(data_dir), StateWriter(data_dir)
        owner = ChangefeedOwner(feed, sink, state, states)
        feed.changes.extend([one, other])
        feed.resolved_ts = Ts(other.finished_ts + 1)

        def tell(orders: Orders) -> None:
            if orders.ddl_ts >= other.finished_ts - 1 and sink.calls:
                told.set()

        owner.enter("p", EVERYTHING, state.at, tell, replaces=NOBODY)
        owner.start()
        monkeypatch.setattr(data_dir, "save", slow)
        at_first = Checkpoints(one.finished_ts)
        at_both = Checkpoints(other.finished_ts, dict.fromkeys(one.touched, one.finished_ts))
        for number, at in enumerate((at_first, at_first, at_both), 1):  # each while the one before is being saved
            committed = Committed(1, sink.commit(at.base_ts, []))
            owner.report(Report("p", number, EVERYTHING, at, committed=committed))
            if number > 1:
                opened.release()
            await asyncio.to_thread(reached.acquire, timeout=PATIENCE_SECONDS)
        opened.release(9)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await told.wait()
        await kill(owner)
        states.close()
        data_dir.release()
        return sink.calls

    events = len(one.events) + len(other.events)
    assert asyncio.run(story()) == [(events, 3)]


class SlowSink(GroupingSink):
    """The second of two DDLs takes until the test has seen the first one passed."""

    def __init__(self, data_dir: DataDir) -> None:
        super().__init__(data_dir)
        self.may_end = threading.Event()

    def ddls(self, events: Sequence[DdlEvent], passed: Callable[[int], None]) -> None:
        super().ddls(events, passed)
        passed(1)
        assert self.may_end.wait(PATIENCE_SECONDS)


def test_the_tables_of_a_ddl_do_not_wait_for_one_behind_it(tmp_path: Path) -> None:
    store, changes = deepcopy(fed_store("ddl"))
    start_ts, data_dir = Ts(load("ddl").bootstrap_ts), DataDir(tmp_path / "data")
    one, other = next(
        pair
        for pair in pairwise(changes)
        if _are_apart(pair[0].touched, pair[1].touched) and len(pair[0].events) == len(pair[1].events) == 1
    )

    async def story() -> tuple[list[int], int]:
        nobody: Any = None  # no upstream is asked
        feed = SchemaFeed(nobody, store, Ts(one.finished_ts - 1))
        state = ChangefeedState(1, "blackhole:", start_ts, feed.resolved_ts, feed.resolved_ts, 0, {}, None)
        data_dir.acquire()
        data_dir.save(state)
        sink, states, ended = SlowSink(data_dir), StateWriter(data_dir), asyncio.Event()
        owner = ChangefeedOwner(feed, sink, state, states)
        feed.changes.extend([one, other])
        feed.resolved_ts = Ts(other.finished_ts + 1)

        def tell(orders: Orders) -> None:
            if one.finished_ts <= orders.ddl_ts:
                sink.may_end.set()
            if owner.ddls.count:
                ended.set()

        owner.enter("p", EVERYTHING, state.at, tell, replaces=NOBODY)
        owner.start()
        owner.report(
            Report("p", 1, EVERYTHING, Checkpoints(other.finished_ts, dict.fromkeys(one.touched, one.finished_ts)))
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()
        await kill(owner)
        states.close()
        data_dir.release()
        return [size for size, _ in sink.calls], owner.ddls.count

    assert asyncio.run(story()) == ([2], 2)


def test_a_ddl_waits_for_no_reports_but_those_of_the_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else is reported each time that the state is being saved, as where many processors are busy."""
    store, changes = deepcopy(fed_store("ddl"))
    start_ts, data_dir = Ts(load("ddl").bootstrap_ts), DataDir(tmp_path / "data")
    change = next(change for change in changes if change.events)

    async def story() -> list[tuple[int, int]]:
        nobody: Any = None  # no upstream is asked
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        feed = SchemaFeed(nobody, store, Ts(change.finished_ts - 1))
        state = ChangefeedState(1, "blackhole:", start_ts, feed.resolved_ts, feed.resolved_ts, 0, {}, None)
        data_dir.acquire()
        data_dir.save(state)
        sink, states = GroupingSink(data_dir), StateWriter(data_dir)
        owner = ChangefeedOwner(feed, sink, state, states)
        feed.changes.append(change)
        feed.resolved_ts = Ts(change.finished_ts + 1)
        numbers, save = count(1), data_dir.save

        def report() -> None:
            at = Checkpoints(change.finished_ts)
            owner.report(
                Report("p", next(numbers), EVERYTHING, at, committed=Committed(1, sink.commit(at.base_ts, [])))
            )

        def disturbed(state: ChangefeedState) -> None:
            save(state)
            loop.call_soon_threadsafe(report)

        owner.enter("p", EVERYTHING, state.at, lambda orders: told.set() if sink.calls else None, replaces=NOBODY)
        owner.start()
        monkeypatch.setattr(data_dir, "save", disturbed)
        report()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await told.wait()
        monkeypatch.undo()
        await kill(owner)
        states.close()
        data_dir.release()
        return sink.calls

    assert [events for events, _ in asyncio.run(story())] == [len(change.events)]


def _are_apart(one: frozenset[int], other: frozenset[int]) -> bool:
    return bool(one) and bool(other) and one.isdisjoint(other)
