"""What a changefeed may do next, one row per rule; and, for stories drawn at random, what must always hold."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.control.barriers import BarrierQueue, Barriers, Pending
from tidemill.control.progress import Advance, Finish, Offer, Progress, Wait, decide, moved, stage
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
        pytest.param(replace(AT_10, sync_ts=Ts(10)), True, Wait(), id="and the owner notes it when all are there"),
        pytest.param(
            replace(AT_10, sync_ts=Ts(10), at=at(10, t1=9)),
            True,
            Offer(Ts(10)),
            id="those behind go on to it",
        ),
        pytest.param(replace(AT_10, hold_ts=Ts(15)), True, Offer(Ts(15)), id="others that are to join are waited for"),
        pytest.param(
            replace(AT_10, together_ts=Ts(15)), True, Offer(Ts(15)), id="so is what others have to resolve first"
        ),
        pytest.param(replace(AT_10, is_paused=True), True, Wait(), id="tables come and go between batches"),
        pytest.param(
            replace(AT_10, at=at(10, t1=40)),
            False,
            Advance(extent(10, 25, t1=(40, 40))),
            id="a table that came from further ahead waits for the others",
        ),
        pytest.param(replace(AT_10, in_flight=extent(10, 20)), True, Wait(), id="one batch at a time"),
        pytest.param(replace(AT_10, frontier_ts=Ts(10)), False, Wait(), id="nothing new was promised"),
        pytest.param(replace(AT_20, frontier_ts=Ts(15)), False, Wait(), id="what is known lies below, after a restart"),
        pytest.param(replace(AT_10, is_stopping=True), True, Wait(), id="a stopping changefeed begins no batch"),
    ],
)
def test_decide(progress: Progress, has_changes: bool, decision: object) -> None:
    assert decide(progress, lambda _: has_changes) == decision


@pytest.mark.parametrize(
    "busy", [{"in_flight": extent(10, 20)}, {"is_paused": True}, {"frontier_ts": Ts(10)}, {"at": at(25)}]
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
        pytest.param({"barriers": barriers((10, {1}))}, False, id="a DDL that can run"),
        pytest.param({"barriers": barriers((21, {1}))}, False, id="a DDL beyond the frontier"),
        pytest.param({"sync_ts": Ts(15)}, True, id="a sync point below the frontier"),
        pytest.param({"target_ts": Ts(15)}, True, id="the end"),
        pytest.param({"schema_ts": Ts(15)}, False, id="what is known of DDL"),
        pytest.param({"together_ts": Ts(15)}, False, id="what others have resolved"),
    ],
)
def test_a_batch_does_not_grow_by_waiting_before_a_barrier(ends: dict[str, Any], is_barred: bool) -> None:
    known = {"at": at(10), "ddl_ts": Ts(10), "frontier_ts": Ts(20), "schema_ts": Ts(20)}
    assert Progress(**{**known, **ends}).is_barred == is_barred


def test_what_is_behind_may_be_taken_in_parts() -> None:
    behind = replace(AT_20, at=at(20, t1=12, t2=16))
    assert behind.extent(Ts(25), Ts(14)) == extent(20, 25, t1=(12, 14), t2=(16, 16))


def test_nothing_is_in_reach_before_a_restart_has_come_to_where_most_tables_are() -> None:
    """Whoever is told otherwise would hold back, for a reader that waits, what the reader waits for."""
    behind = replace(AT_20, at=at(20, t1=10, t2=12))
    assert replace(behind, frontier_ts=Ts(12)).reach.is_empty
    assert replace(behind, frontier_ts=Ts(20)).reach == extent(20, 20, t1=(10, 20), t2=(12, 20))


def test_a_table_that_was_ahead_moves_with_the_others_once_they_are_there() -> None:
    ahead = replace(AT_10, at=at(10, t1=20))
    partly = moved(ahead, ahead.extent(Ts(15)))
    assert partly.at == at(15, t1=20)
    assert partly.extent(Ts(25)) == extent(15, 25, t1=(20, 25))
    assert moved(partly, partly.extent(Ts(25))).at == at(25)


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


@given(
    st.lists(st.tuples(st.integers(1, 9), st.frozensets(st.integers(1, 4), max_size=3)), max_size=8),
    st.lists(st.booleans(), max_size=16),
)
def test_barriers_of_a_queue_are_those_of_what_is_left_in_it(
    ddls: list[tuple[int, frozenset[int]]], steps: list[bool]
) -> None:
    coming = [Pending(Ts(ts), touched) for ts, touched in sorted(ddls, key=lambda ddl: ddl[0])]
    queue, waiting = BarrierQueue(), list[Pending]()
    for comes in steps:
        if comes and coming:
            waiting.append(coming.pop(0))
            queue.extend(waiting[-1:])
        elif not comes and waiting:
            assert queue.pop() == waiting.pop(0)
        first: dict[int, Ts] = {}
        for each in waiting:
            for physical_id in each.touched:
                first.setdefault(physical_id, each.ts)
        assert queue.barriers == Barriers(waiting[0] if waiting else None, first)
        assert len(queue) == len(waiting)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param({"lag_seconds": 1.2}, "caught up", id="nothing to do"),
        pytest.param({"lag_seconds": 60.0}, "idle", id="changes that wait for a batch"),
        pytest.param({"batch_seconds": 1.0}, "writing", id="a batch under way"),
        pytest.param({"batch_seconds": 61.2}, "writing for 1 min 1 s, the sink is slow", id="for long"),
        pytest.param(
            {"batch_seconds": 61.2, "is_held": True},
            "writing for 1 min 1 s, the sink is slow; the upstream waits",
            id="and nothing more is read",
        ),
        pytest.param(
            {"batch_seconds": 1.0, "is_held": True}, "writing; the upstream waits", id="a full disk while batches move"
        ),
        pytest.param(
            {"trouble": "cannot reach db:3306. See that it runs.", "trouble_seconds": 200.0, "batch_seconds": 3.0},
            "waiting for the sink since 3 min 20 s (cannot reach db:3306)",
            id="a sink that is away",
        ),
        pytest.param({"scanned": 1, "regions": 3}, "scanning 1/3 regions", id="the start"),
    ],
)
def test_what_people_are_told(known: dict[str, Any], said: str) -> None:
    assert stage(AT_10, **known) == said


def test_people_are_told_that_the_upstream_is_waited_for() -> None:
    assert stage(replace(AT_10, frontier_ts=Ts(10)), lag_seconds=60.0) == "waiting for resolved-ts"
    assert stage(replace(AT_10, frontier_ts=Ts(10)), lag_seconds=1.0) == "caught up"
