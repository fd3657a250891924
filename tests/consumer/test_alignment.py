"""What may be written and run, as partitions say more and more; and, for stories drawn at random, what always holds."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.consumer.alignment import Alignment, Consistency, Position, Repartition, RunDdl, Write
from tidemill.model.event import AdminSeen, DdlSeen, ResolvedSeen
from tidemill.model.ts import Ts

TRANSACTION, ROW = Consistency.TRANSACTION, Consistency.ROW


def ddl(ts: int, query: str = "ALTER", schema: str = "shop", table: str = "item") -> DdlSeen:
    return DdlSeen(Ts(ts), schema, table, query)


def told(
    consistency: Consistency,
    *said: tuple[int, object],
    partitions: int = 2,
    position: Position | None = None,
    ddls_in_first_only: bool = False,
) -> Alignment:
    """Each partition says what is listed, in this order. A number is a resolved-ts."""
    alignment = Alignment(range(partitions), position or Position(), consistency, ddls_in_first_only=ddls_in_first_only)
    for partition, what in said:
        tell(alignment, partition, what)
    return alignment


def tell(alignment: Alignment, partition: int, what: object) -> None:
    match what:
        case int():
            alignment.resolve(partition, ResolvedSeen(Ts(what)))
        case DdlSeen():
            alignment.learn(partition, what, 0)
        case AdminSeen():
            alignment.admit(partition, what)


def at(*applied: int, ddl_ts: int = 0, done: tuple[str, ...] = (), epoch: int = 0) -> Position:
    return Position({p: Ts(ts) for p, ts in enumerate(applied)}, Ts(ddl_ts), done, epoch)


@pytest.mark.parametrize(
    ("consistency", "said", "to"),
    [
        pytest.param(TRANSACTION, [(0, 15)], None, id="one partition has said nothing"),
        pytest.param(TRANSACTION, [(0, 15), (1, 11)], {0: 11, 1: 11}, id="transactions: up to the lowest of all"),
        pytest.param(ROW, [(0, 15)], {0: 15}, id="rows: each partition by itself"),
        pytest.param(ROW, [(0, 15), (1, 11)], {0: 15, 1: 11}, id="rows: each up to its own"),
        pytest.param(ROW, [(0, 15), (0, 12)], {0: 15}, id="one that goes back is an old one"),
        pytest.param(TRANSACTION, [(0, ddl(20)), (1, 30)], {0: 20, 1: 20}, id="a DDL promises as a Resolved does"),
        pytest.param(ROW, [(0, ddl(20)), (0, 25), (1, 30)], {0: 20, 1: 20}, id="nothing passes a DDL that waits"),
    ],
)
def test_which_rows_may_be_written(
    consistency: Consistency, said: list[tuple[int, object]], to: Mapping[int, int] | None
) -> None:
    assert told(consistency, *said).step() == (None if to is None else Write({p: Ts(ts) for p, ts in to.items()}))


def test_where_only_the_first_partition_tells_of_ddls_no_other_passes_it() -> None:
    alignment = told(ROW, (0, 10), (1, 30), ddls_in_first_only=True)
    assert alignment.step() == Write({0: Ts(10), 1: Ts(10)})


@pytest.mark.parametrize(
    ("resolved", "meetings", "to"),
    [
        pytest.param((30, 5), [10], {0: 10, 1: 5}, id="nobody passes one that some have not reached"),
        pytest.param((30, 5), [10, 20], {0: 10, 1: 5}, id="the first of them holds"),
        pytest.param((30, 10), [10], {0: 10, 1: 10}, id="or where they stand"),
        pytest.param((30, 20), [10], {0: 30, 1: 20}, id="what all have passed is written in order, whatever was in it"),
        pytest.param((40, 20), [10, 15, 35], {0: 35, 1: 20}, id="and the next one holds"),
    ],
)
def test_rows_meet(resolved: tuple[int, int], meetings: list[int], to: Mapping[int, int]) -> None:
    alignment = told(ROW, (0, resolved[0]), (1, resolved[1]))
    for ts in meetings:
        alignment.meet(Ts(ts))
    assert alignment.step() == Write({p: Ts(ts) for p, ts in to.items()})


def test_who_goes_together_needs_no_meetings() -> None:
    alignment = told(ROW, (0, 30), (1, 20))
    alignment.meet(Ts(25))
    alignment.hold_together()
    assert alignment.is_met(Ts(25))
    assert alignment.step() == Write({0: Ts(20), 1: Ts(20)})


def test_a_ddl_runs_once_when_all_rows_before_it_are_written() -> None:
    alignment = told(TRANSACTION, (0, ddl(20)), (1, ddl(20)), (0, 25), (1, 25))
    step = alignment.step()
    assert step == Write({0: Ts(20), 1: Ts(20)})
    alignment.written(step.to)
    due = alignment.step()
    assert isinstance(due, RunDdl)
    assert due.due.ddl == ddl(20)
    alignment.ran(due.due)
    assert alignment.step() == Write({0: Ts(25), 1: Ts(25)})
    tell(alignment, 0, ddl(20))  # told again after a restart of whoever writes
    assert alignment.pending == ()


def test_ddls_of_one_ts_run_in_their_order_and_a_restart_in_their_midst_runs_the_rest() -> None:
    alignment = told(TRANSACTION, position=at(20, 20))
    first, second = ddl(20, "RENAME a"), ddl(20, "RENAME b")
    for partition in (1, 0):
        alignment.learn(partition, first, 0)
        alignment.learn(partition, second, 1)
    assert [each.ddl.query for each in alignment.pending] == ["RENAME a", "RENAME b"]
    alignment.ran(alignment.pending[0])
    again = told(TRANSACTION, position=alignment.position)
    again.learn(0, first, 0)
    again.learn(0, second, 1)
    assert [each.ddl.query for each in again.pending] == ["RENAME b"]


def test_a_schema_by_itself_is_not_run() -> None:
    assert told(TRANSACTION, (0, ddl(20, query=""))).pending == ()


def test_partitions_change_once_all_have_seen_it_and_what_goes_before_is_written() -> None:
    grows = AdminSeen(3, 1, Ts(20))
    alignment = told(TRANSACTION, (0, grows))
    assert alignment.step() is None
    tell(alignment, 1, grows)
    step = alignment.step()
    assert step == Write({0: Ts(20), 1: Ts(20)})
    alignment.written(step.to)
    assert alignment.step() == Repartition(grows)
    alignment.repartitioned(grows)
    assert alignment.position == at(20, 20, 20, epoch=1)
    tell(alignment, 0, grows)  # a copy
    for partition in range(3):
        tell(alignment, partition, 30)
    assert alignment.step() == Write(dict.fromkeys(range(3), Ts(30)))


def test_a_partition_that_is_left_is_not_waited_for() -> None:
    shrinks = AdminSeen(1, 4, Ts(20))
    alignment = told(TRANSACTION, (0, shrinks), (1, shrinks), position=at(20, 20))
    alignment.repartitioned(shrinks)
    tell(alignment, 0, 30)
    assert alignment.step() == Write({0: Ts(30)})


def test_no_partition_passes_the_cut_before_all_have_seen_it() -> None:
    """A row may have moved to this partition from one that is behind."""
    grows = AdminSeen(3, 1, Ts(20))
    alignment = told(ROW, (0, grows), (0, 40), (1, 12))
    assert alignment.step() == Write({0: Ts(20), 1: Ts(12)})
    alignment.written({0: Ts(20), 1: Ts(12)})
    assert alignment.step() is None


def test_what_a_partition_said_before_it_was_in_use_counts_once_it_is() -> None:
    grows = AdminSeen(2, 1, Ts(20))
    alignment = told(TRANSACTION, (1, grows), (1, 30), (0, grows), (0, 30), partitions=1)
    alignment.written({0: Ts(20)})
    alignment.repartitioned(grows)
    assert alignment.step() == Write({0: Ts(30), 1: Ts(30)})


def test_who_begins_late_with_all_partitions_goes_through_each_epoch() -> None:
    """From two to one and then to three: the third partition has seen the last change only, and holds no one up."""
    shrinks, grows = AdminSeen(1, 1, Ts(20)), AdminSeen(3, 2, Ts(40))
    said = [(0, shrinks), (0, grows), (0, 50), (1, shrinks), (1, grows), (1, 50), (2, grows), (2, 50)]
    alignment, done = told(ROW, *said, partitions=3), list[object]()
    while (step := alignment.step()) is not None:
        done.append(step)
        if isinstance(step, Write):
            alignment.written(step.to)
        else:
            assert isinstance(step, Repartition)
            alignment.repartitioned(step.admin)
    assert done == [
        Write(dict.fromkeys(range(3), Ts(20))),
        Repartition(shrinks),
        Write({0: Ts(40)}),
        Repartition(grows),
        Write(dict.fromkeys(range(3), Ts(50))),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.booleans()), max_size=40),
    st.sampled_from(Consistency),
)
def test_nothing_is_written_above_its_frontier_or_behind_a_ddl_and_nothing_moves_back(
    said: list[tuple[int, int, bool]], consistency: Consistency
) -> None:
    """Partitions say things that keep the protocol's promise: each DDL is in every partition before a later ts."""
    ddls = sorted({ts for _, ts, is_ddl in said if is_ddl})
    alignment = told(consistency, partitions=3)
    ran: list[int] = []
    frontier = [0, 0, 0]
    for partition, ts, _ in said:
        for each in ddls:
            if frontier[partition] < each <= ts:
                tell(alignment, partition, ddl(each))
        tell(alignment, partition, ts)
        frontier[partition] = max(frontier[partition], ts)
        while (step := alignment.step()) is not None:
            before = alignment.position
            if isinstance(step, Write):
                assert all(ts <= frontier[p] for p, ts in step.to.items())
                if consistency is TRANSACTION:
                    assert len(set(step.to.values())) == 1
                alignment.written(step.to)
            else:
                assert isinstance(step, RunDdl)
                assert set(alignment.position.applied.values()) == {step.due.ddl.ts} or consistency is ROW
                ran.append(step.due.ddl.ts)
                alignment.ran(step.due)
            assert all(alignment.position.applied[p] >= before.applied[p] for p in before.applied)
    lowest = min(frontier)
    assert ran == [each for each in ddls if each <= lowest]


def test_a_ddl_has_the_same_number_in_its_ts_after_a_restart_that_does_not_hear_the_first_again() -> None:
    """The sink notes by ts and number what has run: with the first one's number, the second would be skipped."""
    first, second = ddl(20, "ALTER 1"), ddl(20, "ALTER 2")
    before = told(TRANSACTION, (0, first), (1, first))
    before.written({0: Ts(20), 1: Ts(20)})
    step = before.step()
    assert isinstance(step, RunDdl)
    assert step.nth == 0
    before.ran(step.due)
    after = told(TRANSACTION, (0, second), (1, second), position=before.position).step()
    assert isinstance(after, RunDdl)
    assert (after.due.ddl.query, after.nth) == ("ALTER 2", 1)


def test_rows_that_may_meet_hold_all_partitions_together() -> None:
    alignment = told(ROW, (0, 15), (1, 11))
    alignment.hold_together()
    assert alignment.step() == Write({0: 11, 1: 11})
