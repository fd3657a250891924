"""What the owner of a changefeed may do next, one row per rule; and, for stories drawn at random, what always holds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.test_progress import at, barriers
from tests.rounds import examples
from tidemill.control.barriers import Barriers, Pending
from tidemill.control.ownership import (
    Ownership,
    accepted,
    can_run_ddl,
    can_sync,
    ddl_done,
    first_ddls,
    given_up,
    learned,
    left,
    reported,
    sync_done,
)
from tidemill.control.progress import Offer, Progress, began, decide, moved
from tidemill.errors import InvariantError
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

AT_20 = Ownership({"a": at(20)}, ddl_ts=Ts(20), schema_ts=Ts(25))
TWO = replace(AT_20, at={"a": at(20), "b": at(22)})


@pytest.mark.parametrize(
    ("owned", "can"),
    [
        pytest.param(AT_20, False, id="none waits"),
        pytest.param(replace(AT_20, barriers=barriers((20, {1}))), True, id="all are there"),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12)}, barriers=barriers((12, {1}))), True, id="its table is there"
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=11)}, barriers=barriers((12, {1}))), False, id="its table is behind"
        ),
        pytest.param(
            replace(TWO, at={"a": at(20), "b": at(22, t1=11)}, barriers=barriers((12, {1}))),
            False,
            id="its table is behind, with another processor",
        ),
        pytest.param(replace(TWO, barriers=barriers((21, {1}))), False, id="one processor is not there"),
        pytest.param(replace(TWO, barriers=barriers((20, {1}))), True, id="both are"),
        pytest.param(
            replace(AT_20, in_transit={1: Ts(11)}, barriers=barriers((12, {1}))), False, id="its table is on its way"
        ),
        pytest.param(replace(AT_20, in_transit={2: Ts(11)}, barriers=barriers((12, {1}))), True, id="another table is"),
        pytest.param(
            replace(AT_20, at={"a": at(20, t2=11)}, barriers=barriers((12, {1}))), True, id="another one is behind"
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12, t2=11)}, barriers=barriers((12, {1})), orders_ddls=True),
            False,
            id="another one is behind, and order counts",
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12, t2=12)}, barriers=barriers((12, {1}), (12, {2})), orders_ddls=True),
            True,
            id="another one waits at the same ts, and order counts",
        ),
        pytest.param(
            replace(AT_20, in_transit={2: Ts(11)}, barriers=barriers((12, {1})), orders_ddls=True),
            False,
            id="another one is on its way, and order counts",
        ),
        pytest.param(replace(AT_20, barriers=barriers((21, set()))), False, id="it touches none, but lies ahead"),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=11)}, barriers=barriers((12, {1}), (15, {2}))),
            False,
            id="DDLs run in order",
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12, t2=11)}, barriers=barriers((12, {1}))),
            True,
            id="another table that catches up is not waited for",
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12, t2=11)}, barriers=barriers((12, {1})), orders_ddls=True),
            False,
            id="but for a sink whose DDLs come behind the rows of all tables",
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12, t2=12)}, barriers=barriers((12, {1})), orders_ddls=True),
            True,
            id="it is there as well",
        ),
        pytest.param(
            replace(AT_20, in_transit={2: Ts(11)}, barriers=barriers((12, {1})), orders_ddls=True),
            False,
            id="or on its way",
        ),
        pytest.param(replace(AT_20, barriers=barriers((20, {1})), is_ddl_running=True), False, id="one at a time"),
        pytest.param(replace(AT_20, barriers=barriers((20, {1})), is_syncing=True), False, id="not at a sync point"),
        pytest.param(replace(AT_20, barriers=barriers((20, {1})), is_stopping=True), False, id="not while stopping"),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=12)}, ddl_ts=Ts(11), schema_ts=Ts(15), barriers=barriers((12, {1}))),
            False,
            id="after a restart, not before the others are known again",
        ),
    ],
)
def test_when_a_ddl_may_run(owned: Ownership, can: bool) -> None:
    assert can_run_ddl(owned) == can


@pytest.mark.parametrize(
    ("owned", "waiting", "count"),
    [
        pytest.param(AT_20, [(20, {1})], 1, id="one"),
        pytest.param(AT_20, [(18, {1}), (19, {2}), (20, {3})], 3, id="of different tables"),
        pytest.param(AT_20, [(18, {1}), (18, set()), (19, {2})], 3, id="one of a database between them"),
        pytest.param(AT_20, [(18, {1}), (19, {2}), (20, {1})], 2, id="until a table comes again"),
        pytest.param(AT_20, [(18, {1}), (19, {2, 3}), (20, {3})], 2, id="be it one of several"),
        pytest.param(AT_20, [(18, {1}), (21, {2}), (21, {3})], 1, id="until one lies ahead"),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=18, t2=17)}), [(18, {1}), (19, {2}), (20, {3})], 1, id="or has to wait"
        ),
        pytest.param(
            replace(AT_20, at={"a": at(20, t1=18, t4=18)}, orders_ddls=True),
            [(18, {1}), (19, {2})],
            1,
            id="rows of another table go between them, and order counts",
        ),
    ],
)
def test_how_many_ddls_may_run_at_once(owned: Ownership, waiting: list[tuple[int, set[int]]], count: int) -> None:
    assert first_ddls(owned, [Pending(Ts(ts), frozenset(touched)) for ts, touched in waiting]) == count


@pytest.mark.parametrize(
    ("owned", "can"),
    [
        pytest.param(AT_20, False, id="nobody wants one"),
        pytest.param(replace(AT_20, sync_ts=Ts(20)), True, id="all are there"),
        pytest.param(replace(TWO, at={"a": at(20), "b": at(20)}, sync_ts=Ts(20)), True, id="of both processors"),
        pytest.param(replace(AT_20, at={"a": at(20, t1=9)}, sync_ts=Ts(20)), False, id="one is behind"),
        pytest.param(replace(AT_20, in_transit={1: Ts(9)}, sync_ts=Ts(20)), False, id="one is on its way"),
        pytest.param(replace(AT_20, sync_ts=Ts(20), barriers=barriers((20, {1}))), False, id="a DDL has still to run"),
        pytest.param(replace(AT_20, sync_ts=Ts(20), is_ddl_running=True), False, id="a DDL runs"),
        pytest.param(replace(AT_20, sync_ts=Ts(20), is_syncing=True), False, id="it is being noted"),
        pytest.param(
            replace(AT_20, sync_ts=Ts(20), schema_ts=Ts(19)), False, id="after a restart, a DDL may be there unknown"
        ),
    ],
)
def test_when_a_sync_point_is_noted(owned: Ownership, can: bool) -> None:
    assert can_sync(owned) == can


def test_a_ddl_that_waits_is_remembered_as_not_yet_run() -> None:
    waits = replace(AT_20, at={"a": at(10)}, ddl_ts=Ts(10), barriers=barriers((20, {1}), (22, {2})))
    at_barriers = reported(waits, "a", at(25, t1=20, t2=22))
    assert (at_barriers.checkpoint_ts, at_barriers.ddl_ts) == (20, 19)
    after = ddl_done(at_barriers, barriers((22, {2})))
    assert (after.checkpoint_ts, after.ddl_ts) == (20, 21)
    assert ddl_done(after, barriers()).ddl_ts == 25


def test_after_a_restart_a_ddl_counts_as_not_run_until_it_is_known_again() -> None:
    """All tables but one have passed a DDL that has not run; that one is far below, and what is known begins there."""
    resumed = Ownership({"a": at(20, t1=10)}, ddl_ts=Ts(17), schema_ts=Ts(10))
    partly = learned(resumed, Ts(15), barriers())
    assert partly.ddl_ts == 17
    assert learned(partly, Ts(25), barriers((18, {2}))).ddl_ts == 17
    assert learned(partly, Ts(25), barriers()).ddl_ts == 20


def test_the_checkpoint_does_not_pass_a_ddl_that_is_not_yet_known_again() -> None:
    resumed = Ownership({"a": at(20)}, ddl_ts=Ts(17), schema_ts=Ts(17))
    assert resumed.checkpoint_ts == 18
    assert learned(resumed, Ts(25), barriers((18, set()))).checkpoint_ts == 18
    assert learned(resumed, Ts(25), barriers()).checkpoint_ts == 20


def test_a_ddl_that_touches_nothing_holds_the_checkpoint_alone() -> None:
    waits = learned(replace(AT_20, at={"a": at(25)}, ddl_ts=Ts(25)), Ts(50), barriers((26, set())))
    assert waits.checkpoint_ts == 25
    assert reported(waits, "a", at(40)).checkpoint_ts == 26


def test_the_checkpoint_is_that_of_the_slowest_and_waits_for_tables_on_their_way() -> None:
    assert TWO.checkpoint_ts == 20
    parted = given_up(replace(TWO, ddl_ts=Ts(25)), "a", at(20), {1: Ts(12)})
    moved_on = reported(reported(parted, "a", at(24)), "b", at(24))
    assert moved_on.checkpoint_ts == 12
    assert accepted(moved_on, "b", at(24, t1=12), [1]).checkpoint_ts == 12
    assert reported(accepted(moved_on, "b", at(24, t1=12), [1]), "b", at(24)).checkpoint_ts == 24


@pytest.mark.parametrize(
    ("processor", "to", "says"),
    [
        pytest.param("a", at(19), "would move back from 20 to 19", id="back"),
        pytest.param("b", at(22, t1=9), "table 1 of processor 'b' would move back", id="one table"),
        pytest.param("a", at(31), "has passed the sync point 30", id="beyond a sync point"),
        pytest.param("c", at(22), "no table is assigned", id="a stranger"),
    ],
)
def test_what_no_processor_may_report(processor: str, to: Checkpoints, says: str) -> None:
    owned = replace(TWO, at={"a": at(20), "b": at(22, t1=10)}, sync_ts=Ts(30))
    with pytest.raises(InvariantError, match=says):
        reported(owned, processor, to)


class Story:
    """Tables 1 to 4 with a row at each ts of their own, DDLs that touch some of them, a sink that remembers, and two
    processors between which the tables move."""

    def __init__(self, ddls: list[tuple[int, set[int]]], sync_every: int) -> None:
        self.ddls = sorted(ddls, key=lambda ddl: ddl[0])
        self.sync_every = sync_every
        self.written: dict[int, list[tuple[int, str]]] = {table: [] for table in range(1, 5)}
        self.ran: list[tuple[int, set[int]]] = []
        self.has = {1: "a", 2: "a", 3: "b", 4: "b"}
        self.frontier = {"a": Ts(0), "b": Ts(0)}
        self.owned = Ownership({"a": at(0), "b": at(0)}, Ts(0), Ts(0), sync_ts=self._next_sync(0))
        self.lowest_seen = 0

    def _next_sync(self, base: int) -> Ts | None:
        return Ts((base // self.sync_every + 1) * self.sync_every) if self.sync_every else None

    def _waiting(self) -> Barriers:
        return barriers(*[ddl for ddl in self.ddls[len(self.ran) :] if ddl[0] <= self.owned.schema_ts])

    def learn(self, ts: int) -> None:
        if ts > self.owned.schema_ts:
            self.owned = replace(self.owned, schema_ts=Ts(ts))
            self.owned = learned(self.owned, Ts(ts), self._waiting())

    def promise(self, ts: int) -> None:
        for name in self.frontier:
            self.frontier[name] = max(self.frontier[name], Ts(ts - (name == "b")))

    def move(self, table: int) -> None:
        """From the one to the other, as far as that has not passed it."""
        source = self.has[table]
        target = "b" if source == "a" else "a"
        ts = self.owned.at[source].of(table)
        if ts < self.owned.at[target].base_ts:
            return
        self.owned = given_up(self.owned, source, self.owned.at[source].without([table]), {table: ts})
        self.check()
        self.owned = accepted(self.owned, target, self.owned.at[target].having({table: ts}), [table])
        self.has[table] = target
        self.check()

    def run_ddl(self) -> None:
        if not can_run_ddl(self.owned):
            return
        ts, touched = self.ddls[len(self.ran)]
        for table in touched:
            rows = [row for row, what in self.written[table] if what == "row"]
            assert rows == list(range(table, ts + 1, 5)), "every row up to the DDL, and none behind it"
            self.written[table].append((ts, "ddl"))
        self.ran.append((ts, touched))
        self.owned = ddl_done(self.owned, self._waiting())

    def sync(self) -> None:
        if can_sync(self.owned):
            at_ts = self.owned.base_ts
            assert all(self.owned.at[name].of(table) == at_ts for table, name in self.has.items())
            assert self.ran == [ddl for ddl in self.ddls if ddl[0] <= at_ts]
            self.owned = sync_done(self.owned, self._next_sync(at_ts))

    def take(self, name: str, to: int, catch_up: int) -> None:
        owned = self.owned
        progress = Progress(
            owned.at[name], owned.ddl_ts, self.frontier[name], owned.schema_ts, owned.barriers, sync_ts=owned.sync_ts
        )
        match decide(progress, lambda _: True):
            case Offer(limit):
                batch = progress.extent(min(limit, max(progress.at.base_ts, Ts(to))), Ts(catch_up))
                self.run_ddl()  # beside it
                for table in (table for table, has in self.has.items() if has == name):
                    low, high = batch.of(table)
                    self.written[table] += [(ts, "row") for ts in range(low + 1, high + 1) if ts % 5 == table]
                self.owned = reported(self.owned, name, moved(began(progress, batch), batch).at)
        self.check()

    def check(self) -> None:
        now = self.owned
        where = {table: now.in_transit.get(table, now.at[name].of(table)) for table, name in self.has.items()}
        assert now.checkpoint_ts <= min(where.values())
        assert now.checkpoint_ts >= self.lowest_seen, "never back"
        self.lowest_seen = now.checkpoint_ts
        assert all(ddl in self.ran for ddl in self.ddls if ddl[0] <= now.ddl_ts)


@settings(max_examples=examples(300), deadline=None)
@given(
    ddls=st.lists(st.tuples(st.integers(1, 60), st.sets(st.integers(1, 4))), max_size=6, unique_by=lambda ddl: ddl[0]),
    sync_every=st.sampled_from([0, 7, 20]),
    steps=st.lists(st.tuples(st.sampled_from("LPABMDS"), st.integers(1, 60), st.integers(1, 60)), max_size=50),
)
def test_rows_and_ddls_of_each_table_go_out_in_order_and_all_of_them_wherever_the_tables_are(
    ddls: list[tuple[int, set[int]]], sync_every: int, steps: list[tuple[str, int, int]]
) -> None:
    story = Story(ddls, sync_every)
    for step, ts, catch_up in steps:
        match step:
            case "L":
                story.learn(ts)
            case "P":
                story.promise(ts)
            case "A" | "B":
                story.take(step.lower(), ts, catch_up)
            case "M":
                story.move(ts % 4 + 1)
            case "D":
                story.run_ddl()
            case "S":
                story.sync()
    story.learn(61)
    story.promise(61)
    for _ in range(200):
        if story.owned.checkpoint_ts == 60 and story.ran == story.ddls:
            break
        for name in ("a", "b"):
            story.take(name, 60, 60)
        story.run_ddl()
        story.sync()
    assert story.owned.checkpoint_ts == 60
    assert story.ran == story.ddls
    for table, written in story.written.items():
        rows = [(ts, "row") for ts in range(1, 61) if ts % 5 == table]
        touching = [(ts, "ddl") for ts, touched in story.ddls if table in touched]
        assert written == sorted(rows + touching, key=lambda each: (each[0], each[1] == "ddl"))


def test_a_processor_without_tables_is_forgotten() -> None:
    assert left(TWO, "a").checkpoint_ts == 21  # what is known of DDLs holds it now
    assert left(TWO, "a").at == {"b": at(22)}
