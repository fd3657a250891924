"""What a changefeed may do next, one row per rule; and, for stories drawn at random, what must always hold."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.control.progress import (
    Advance,
    Barriers,
    Finish,
    Offer,
    Pending,
    Progress,
    Sync,
    Wait,
    began,
    can_run_ddl,
    ddl_done,
    decide,
    learned,
    moved,
    stage,
    sync_done,
)
from tidemill.errors import InvariantError
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import Ts


def at(base_ts: int, **behind: int) -> Checkpoints:
    """``at(20, t1=10)``: table 1 is at 10, all others are at 20."""
    return Checkpoints(Ts(base_ts), {int(name[1:]): Ts(ts) for name, ts in behind.items()})


def extent(from_ts: int, to_ts: int, **own: tuple[int, int]) -> Extent:
    return Extent(Ts(from_ts), Ts(to_ts), {int(name[1:]): (Ts(a), Ts(b)) for name, (a, b) in own.items()})


def barriers(*pending: tuple[int, set[int]]) -> Barriers:
    return Barriers.of(Pending(Ts(ts), frozenset(touched)) for ts, touched in pending)


AT_10 = Progress(at=at(10), ddl_ts=Ts(10), frontier_ts=Ts(30), schema_ts=Ts(25))
AT_20 = replace(AT_10, at=at(20), ddl_ts=Ts(20))


@pytest.mark.parametrize(
    ("progress", "has_changes", "decision"),
    [
        pytest.param(AT_10, True, Offer(Ts(25)), id="the schema's resolved-ts holds rows back"),
        pytest.param(replace(AT_10, schema_ts=Ts(99)), True, Offer(Ts(30)), id="the frontier holds rows back"),
        pytest.param(AT_10, False, Advance(extent(10, 25)), id="without changes the checkpoint moves by itself"),
        pytest.param(
            replace(AT_10, barriers=barriers((20, {1}))),
            False,
            Advance(extent(10, 25, t1=(10, 20))),
            id="a table stops at its DDL, the others pass",
        ),
        pytest.param(
            replace(AT_20, at=at(20, t1=12, t2=15), barriers=barriers((12, {1}))),
            False,
            Advance(extent(20, 25, t1=(12, 12), t2=(15, 25))),
            id="one that is behind catches up unless a DDL holds it",
        ),
        pytest.param(
            replace(AT_20, at=at(20, t1=12), waiting=frozenset({1})),
            False,
            Advance(extent(20, 25, t1=(12, 12))),
            id="nor if rows of it are waited for that go first",
        ),
        pytest.param(replace(AT_10, target_ts=Ts(15)), True, Offer(Ts(15)), id="a batch ends at the target"),
        pytest.param(replace(AT_10, target_ts=Ts(10)), True, Finish(), id="at the target it ends"),
        pytest.param(
            replace(AT_10, target_ts=Ts(10), at=at(10, t1=9)),
            False,
            Advance(extent(10, 10, t1=(9, 10))),
            id="at the target it waits for those behind",
        ),
        pytest.param(
            replace(AT_10, target_ts=Ts(10), barriers=barriers((10, {1}))),
            False,
            Wait(),
            id="and for a DDL exactly there",
        ),
        pytest.param(
            replace(AT_10, target_ts=Ts(10), ddl_ts=Ts(9), schema_ts=Ts(9)),
            False,
            Wait(),
            id="at the target it waits until it knows whether a DDL is there",
        ),
        pytest.param(replace(AT_10, sync_ts=Ts(15)), True, Offer(Ts(15)), id="a sync point is for all tables"),
        pytest.param(replace(AT_10, sync_ts=Ts(10)), True, Sync(Ts(10)), id="it is noted when all are there"),
        pytest.param(
            replace(AT_10, sync_ts=Ts(10), at=at(10, t1=9)),
            True,
            Offer(Ts(10)),
            id="not before those behind are",
        ),
        pytest.param(
            replace(AT_10, sync_ts=Ts(10), barriers=barriers((10, {1}))), True, Wait(), id="nor before a DDL has run"
        ),
        pytest.param(
            replace(AT_10, sync_ts=Ts(10), schema_ts=Ts(9), ddl_ts=Ts(9)),
            True,
            Wait(),
            id="nor, after a restart, before it is known whether there is one",
        ),
        pytest.param(replace(AT_10, in_flight=extent(10, 20)), True, Wait(), id="one batch at a time"),
        pytest.param(replace(AT_10, is_ddl_running=True), True, Offer(Ts(25)), id="a DDL keeps no batch back"),
        pytest.param(replace(AT_10, frontier_ts=Ts(10)), False, Wait(), id="nothing new was promised"),
        pytest.param(replace(AT_20, frontier_ts=Ts(15)), False, Wait(), id="what is known lies below, after a restart"),
        pytest.param(replace(AT_10, is_stopping=True), True, Wait(), id="a stopping changefeed begins no batch"),
    ],
)
def test_decide(progress: Progress, has_changes: bool, decision: object) -> None:
    assert decide(progress, lambda _: has_changes) == decision


@pytest.mark.parametrize(
    ("progress", "can"),
    [
        pytest.param(AT_20, False, id="none waits"),
        pytest.param(replace(AT_20, barriers=barriers((20, {1}))), True, id="all are there"),
        pytest.param(replace(AT_20, at=at(20, t1=12), barriers=barriers((12, {1}))), True, id="its table is there"),
        pytest.param(replace(AT_20, at=at(20, t1=11), barriers=barriers((12, {1}))), False, id="its table is behind"),
        pytest.param(replace(AT_20, barriers=barriers((21, set()))), False, id="it touches none, but lies ahead"),
        pytest.param(
            replace(AT_20, at=at(20, t1=11), barriers=barriers((12, {1}), (15, {2}))), False, id="DDLs run in order"
        ),
        pytest.param(replace(AT_20, barriers=barriers((20, {1})), is_ddl_running=True), False, id="one at a time"),
        pytest.param(replace(AT_20, barriers=barriers((20, {1})), is_syncing=True), False, id="not at a sync point"),
        pytest.param(
            replace(AT_20, barriers=barriers((20, {1})), in_flight=extent(20, 25, t1=(20, 20))),
            True,
            id="beside a batch of other tables",
        ),
        pytest.param(replace(AT_20, barriers=barriers((20, {1})), is_stopping=True), False, id="not while stopping"),
        pytest.param(
            replace(AT_20, at=at(20, t1=12), ddl_ts=Ts(11), schema_ts=Ts(15), barriers=barriers((12, {1}))),
            False,
            id="after a restart, not before the others are known again",
        ),
    ],
)
def test_when_a_ddl_may_run(progress: Progress, can: bool) -> None:
    assert can_run_ddl(progress) == can


@pytest.mark.parametrize(
    "busy", [{"in_flight": extent(10, 20)}, {"is_syncing": True}, {"frontier_ts": Ts(10)}, {"at": at(25)}]
)
def test_nobody_looks_for_changes_that_cannot_be_taken_yet(busy: dict[str, Any]) -> None:
    """Each resolved-ts that comes asks, and with much in store looking costs more than all the rest."""

    def look(extent: Extent) -> bool:
        raise AssertionError("somebody looked")

    assert decide(replace(AT_10, **busy), look) == Wait()


@pytest.mark.parametrize(
    ("ends", "is_barred"),
    [
        pytest.param({}, False, id="the frontier"),
        pytest.param({"barriers": barriers((15, {1}))}, True, id="a DDL waits for rows"),
        pytest.param({"barriers": barriers((15, {1})), "is_ddl_running": True}, False, id="a DDL runs"),
        pytest.param({"barriers": barriers((10, {1}))}, False, id="a DDL that can run"),
        pytest.param({"barriers": barriers((21, {1}))}, False, id="a DDL beyond the frontier"),
        pytest.param({"sync_ts": Ts(15)}, True, id="a sync point below the frontier"),
        pytest.param({"target_ts": Ts(15)}, True, id="the end"),
        pytest.param({"schema_ts": Ts(15)}, False, id="what is known of DDL"),
    ],
)
def test_a_batch_does_not_grow_by_waiting_before_a_barrier(ends: dict[str, Any], is_barred: bool) -> None:
    known = {"at": at(10), "ddl_ts": Ts(10), "frontier_ts": Ts(20), "schema_ts": Ts(20)}
    assert Progress(**{**known, **ends}).is_barred == is_barred


def test_a_ddl_that_waits_is_remembered_as_not_yet_run() -> None:
    waits = replace(AT_10, barriers=barriers((20, {1}), (22, {2})))
    at_barriers = moved(began(waits, waits.extent(Ts(25))), waits.extent(Ts(25)))
    assert at_barriers.at == at(25, t1=20, t2=22)
    assert (at_barriers.checkpoint_ts, at_barriers.ddl_ts, at_barriers.in_flight) == (20, 19, None)
    after = ddl_done(at_barriers, barriers((22, {2})))
    assert (after.checkpoint_ts, after.ddl_ts) == (20, 21)
    assert after.extent(Ts(25)) == extent(25, 25, t1=(20, 25), t2=(22, 22))
    assert ddl_done(after, barriers()).ddl_ts == 25


def test_what_is_behind_may_be_taken_in_parts() -> None:
    behind = replace(AT_20, at=at(20, t1=12, t2=16))
    assert behind.extent(Ts(25), Ts(14)) == extent(20, 25, t1=(12, 14), t2=(16, 16))


def test_after_a_restart_a_ddl_counts_as_not_run_until_it_is_known_again() -> None:
    """All tables but one have passed a DDL that has not run; that one is far below, and what is known begins there."""
    resumed = Progress(at=at(20, t1=10), ddl_ts=Ts(17), frontier_ts=Ts(10), schema_ts=Ts(10))
    partly = learned(resumed, Ts(15), barriers())
    assert partly.ddl_ts == 17
    assert learned(partly, Ts(25), barriers((18, {2}))).ddl_ts == 17
    assert learned(partly, Ts(25), barriers()).ddl_ts == 20


def test_the_checkpoint_does_not_pass_a_ddl_that_is_not_yet_known_again() -> None:
    resumed = Progress(at=at(20), ddl_ts=Ts(17), frontier_ts=Ts(20), schema_ts=Ts(17))
    assert resumed.checkpoint_ts == 18
    assert learned(resumed, Ts(25), barriers((18, set()))).checkpoint_ts == 18
    assert learned(resumed, Ts(25), barriers()).checkpoint_ts == 20


def test_nothing_is_in_reach_before_a_restart_has_come_to_where_most_tables_are() -> None:
    """Whoever is told otherwise would hold back, for a reader that waits, what the reader waits for."""
    behind = replace(AT_20, at=at(20, t1=10, t2=12))
    assert replace(behind, frontier_ts=Ts(12)).reach.is_empty
    assert replace(behind, frontier_ts=Ts(20)).reach == extent(20, 20, t1=(10, 20), t2=(12, 20))


def test_a_ddl_that_touches_nothing_holds_the_checkpoint_alone() -> None:
    progress = moved(AT_10, extent(10, 25))
    waits = learned(progress, Ts(50), barriers((26, set())))
    assert waits.checkpoint_ts == 25
    assert moved(replace(waits, frontier_ts=Ts(40)), extent(25, 40)).checkpoint_ts == 26


@pytest.mark.parametrize(
    ("progress", "extent", "says"),
    [
        pytest.param(AT_10, extent(10, 9), "would move from 10 to 9", id="back"),
        pytest.param(replace(AT_10, at=at(10, t1=5)), extent(10, 20, t1=(5, 4)), "table 1 would move back", id="one"),
        pytest.param(AT_10, extent(10, 26), "26 would pass the limit 25", id="beyond the limit"),
        pytest.param(
            replace(AT_10, barriers=barriers((20, {1}))), extent(10, 21), "table 1 would pass the DDL at 20", id="a DDL"
        ),
    ],
)
def test_a_checkpoint_never_moves_back_and_passes_nothing_that_holds_it(
    progress: Progress, extent: Extent, says: str
) -> None:
    with pytest.raises(InvariantError, match=says):
        moved(progress, extent)


class Story:
    """Tables 1 to 4 with a row at each ts of their own, DDLs that touch some of them, and a sink that remembers."""

    def __init__(self, ddls: list[tuple[int, set[int]]], sync_every: int) -> None:
        self.ddls = sorted(ddls, key=lambda ddl: ddl[0])
        self.sync_every = sync_every
        self.written: dict[int, list[tuple[int, str]]] = {table: [] for table in range(1, 5)}
        self.ran: list[tuple[int, set[int]]] = []
        self.progress = Progress(at(0), Ts(0), Ts(0), Ts(0), sync_ts=self._next_sync())

    def _next_sync(self) -> Ts | None:
        base = self.progress.at.base_ts if hasattr(self, "progress") else 0
        return Ts((base // self.sync_every + 1) * self.sync_every) if self.sync_every else None

    def _waiting(self) -> Barriers:
        return barriers(*[ddl for ddl in self.ddls[len(self.ran) :] if ddl[0] <= self.progress.schema_ts])

    def learn(self, ts: int) -> None:
        if ts > self.progress.schema_ts:
            self.progress = replace(self.progress, schema_ts=Ts(ts))
            self.progress = learned(self.progress, Ts(ts), self._waiting())

    def promise(self, ts: int) -> None:
        self.progress = replace(self.progress, frontier_ts=max(self.progress.frontier_ts, Ts(ts)))

    def run_ddl(self) -> None:
        if not can_run_ddl(self.progress):
            return
        ts, touched = self.ddls[len(self.ran)]
        for table in touched:
            rows = [row for row, what in self.written[table] if what == "row"]
            assert rows == list(range(table, ts + 1, 5)), "every row up to the DDL, and none behind it"
            self.written[table].append((ts, "ddl"))
        self.ran.append((ts, touched))
        self.progress = ddl_done(self.progress, self._waiting())

    def take(self, to: int, catch_up: int) -> None:
        match decide(self.progress, lambda _: True):
            case Offer(limit):
                to_ts = min(limit, max(self.progress.at.base_ts, Ts(to)))
                batch = self.progress.extent(to_ts, Ts(catch_up))
                self.progress = began(self.progress, batch)
                self.run_ddl()  # beside it
                for table in self.written:
                    low, high = batch.of(table)
                    self.written[table] += [(ts, "row") for ts in range(low + 1, high + 1) if ts % 5 == table]
                self.progress = moved(self.progress, batch)
            case Sync(at_ts):
                assert all(self.progress.at.of(table) == at_ts for table in self.written)
                assert self.ran == [ddl for ddl in self.ddls if ddl[0] <= at_ts]
                self.progress = sync_done(self.progress, self._next_sync())
        self.check()

    def check(self) -> None:
        now = self.progress
        assert now.checkpoint_ts <= min(now.at.of(table) for table in self.written)
        assert all(ddl in self.ran for ddl in self.ddls if ddl[0] <= now.ddl_ts)


@settings(max_examples=300, deadline=None)
@given(
    ddls=st.lists(st.tuples(st.integers(1, 60), st.sets(st.integers(1, 4))), max_size=6, unique_by=lambda ddl: ddl[0]),
    sync_every=st.sampled_from([0, 7, 20]),
    steps=st.lists(st.tuples(st.sampled_from("LPTD"), st.integers(1, 60), st.integers(1, 60)), max_size=40),
)
def test_rows_and_ddls_of_each_table_go_out_in_order_and_all_of_them(
    ddls: list[tuple[int, set[int]]], sync_every: int, steps: list[tuple[str, int, int]]
) -> None:
    story = Story(ddls, sync_every)
    for step, ts, catch_up in steps:
        match step:
            case "L":
                story.learn(ts)
            case "P":
                story.promise(ts)
            case "T":
                story.take(ts, catch_up)
            case "D":
                story.run_ddl()
    story.learn(60)
    story.promise(60)
    for _ in range(200):
        story.take(60, 60)
        story.run_ddl()
    assert story.progress.checkpoint_ts == 60
    assert story.ran == story.ddls
    for table, written in story.written.items():
        rows = [(ts, "row") for ts in range(1, 61) if ts % 5 == table]
        touching = [(ts, "ddl") for ts, touched in story.ddls if table in touched]
        assert written == sorted(rows + touching, key=lambda each: (each[0], each[1] == "ddl"))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param({}, "idle", id="nothing to do"),
        pytest.param({"batch_seconds": 1.0}, "writing", id="a batch under way"),
        pytest.param({"batch_seconds": 61.2}, "writing for 61 s, the sink is slow", id="for long"),
        pytest.param(
            {"batch_seconds": 61.2, "is_held": True},
            "writing for 61 s, the sink is slow; the upstream waits",
            id="and nothing more is read",
        ),
        pytest.param(
            {"batch_seconds": 1.0, "is_held": True}, "writing; the upstream waits", id="a full disk while batches move"
        ),
        pytest.param(
            {"trouble": "cannot reach db:3306. See that it runs.", "batch_seconds": 3.0},
            "waiting for the sink (cannot reach db:3306)",
            id="a sink that is away",
        ),
        pytest.param({"scanned": 1, "regions": 3}, "scanning 1/3 regions", id="the start"),
    ],
)
def test_what_people_are_told(known: dict[str, Any], said: str) -> None:
    assert stage(AT_10, **known) == said


def test_people_are_told_that_the_upstream_is_waited_for() -> None:
    assert stage(replace(AT_10, frontier_ts=Ts(10))) == "waiting for resolved-ts"
