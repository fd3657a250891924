"""What a coordinator does with captures and tables, without faults."""

import random
from dataclasses import replace

import pytest

from tests.control.scheduler.cluster import EPOCH, FEED, NOW_TS, OWNER, Cluster
from tidemill.control.scheduler.agent import Prepare, Run, Stop
from tidemill.control.scheduler.handovers import UNKNOWN_TS
from tidemill.model.schedule import REST, CaptureId, Dispatch, Header, HeartbeatResponse, Message, TableId

A, B, C = CaptureId("a"), CaptureId("b"), CaptureId("c")


def started(captures: str = "abc", tables: int = 9) -> Cluster:
    cluster = Cluster(captures, range(1, tables + 1))
    cluster.settle()
    return cluster


def sizes(cluster: Cluster) -> list[int]:
    return sorted(len(tables) for tables in cluster.placement().values())


def check_tiles(cluster: Cluster) -> None:
    """Each table has one writer."""
    assert sorted(t for tables in cluster.placement().values() for t in tables) == list(cluster.tables)


def test_at_the_start_tables_are_spread_and_neighbours_stay_together() -> None:
    cluster = started()
    check_tiles(cluster)
    assert sizes(cluster) == [3, 3, 3]
    assert all(tables == list(range(tables[0], tables[0] + 3)) for tables in cluster.placement().values())
    assert [t for e in cluster.executors.values() for t in e.tables if t == REST] == [REST]


def test_one_capture_has_everything_without_a_name() -> None:
    cluster = started("a")
    assert cluster.placement() == {"a": list(range(1, 10))}
    assert set(cluster.executors[A].tables) == {REST}


def test_a_new_table_is_one_of_the_rest_at_once() -> None:
    cluster = started()
    before = cluster.placement()
    cluster.tables = [*cluster.tables, TableId(10)]
    cluster.tick(3)
    keeper = cluster.coordinator.holder(REST)
    assert keeper is not None
    assert cluster.placement() == {**before, keeper: [*before[keeper], 10]}


def test_a_move_prepares_first_and_stops_the_source_then() -> None:
    cluster = started("ab")
    source = next(c for c in (A, B) if 1 in cluster.placement()[c])
    target = B if source == A else A
    cluster.coordinator.move_table(TableId(1), target)
    cluster.executors[source].did.clear()
    cluster.executors[target].did.clear()
    cluster.until(lambda: 1 in cluster.placement()[target])
    assert [type(c) for c in cluster.executors[source].did][:1] == [Stop]
    assert [type(c) for c in cluster.executors[target].did][:2] == [Prepare, Run]
    cluster.settle()
    check_tiles(cluster)


def test_tables_of_a_capture_that_is_gone_are_fenced_before_they_are_given_away() -> None:
    cluster = started()
    keeper = cluster.coordinator.holder(REST)
    gone = next(c for c in (A, B, C) if c != keeper)
    lost = cluster.placement()[gone]
    cluster.leave(gone)
    cluster.asks.clear()
    cluster.tick()
    assert [(fence.capture, cluster.asks) for fence in cluster.fences] == [(gone, [])]
    cluster.settle()
    check_tiles(cluster)
    assert dict(cluster.asks[0].tables) == {TableId(t): NOW_TS for t in lost}


def test_the_rest_of_a_capture_that_is_gone_is_taken_over() -> None:
    cluster = started()
    keeper = cluster.coordinator.holder(REST)
    assert keeper is not None
    cluster.leave(keeper)
    cluster.settle()
    check_tiles(cluster)
    assert dict(cluster.asks[-1].tables) == {REST: NOW_TS}
    assert sizes(cluster) == [4, 5]


def test_a_capture_that_joins_gets_its_share() -> None:
    cluster = started("ab", 10)
    cluster.join("c")
    cluster.coordinator.rebalance()
    cluster.until(lambda: sizes(cluster) == [3, 3, 4] or sizes(cluster) == [2, 4, 4])
    check_tiles(cluster)


def test_a_processor_that_is_new_on_the_same_capture_has_the_one_before_fenced() -> None:
    cluster = started("ab")
    before = cluster.agents[B].epoch
    cluster.leave(B)
    cluster.join("b")
    cluster.agents[B]._birth = "born-b-again"
    cluster.settle()
    assert [(fence.capture, fence.epoch) for fence in cluster.fences] == [(B, before)]
    check_tiles(cluster)


def test_a_late_word_of_an_earlier_processor_does_not_have_the_present_one_fenced() -> None:
    cluster = started("ab")
    response = Message(
        Header(1, EPOCH, "born-a-0", number=1), FEED, B, OWNER, HeartbeatResponse(())
    )  # of an agent before, of which nothing was ever heard
    cluster.coordinator.receive(response)
    cluster.tick(4)
    assert cluster.fences == []


def test_tables_that_a_capture_had_which_is_gone_are_given_to_somebody_also_where_it_had_not_said_so() -> None:
    """They were between two of its lanes, or it had given them a lane of their own just now."""
    cluster = started("ab")
    keeper = cluster.coordinator.holder(REST)
    assert keeper is not None
    unnamed = next(TableId(t) for t in cluster.placement()[keeper] if TableId(t) not in cluster.coordinator.replicas)
    cluster.orphans = {unnamed}
    cluster.named.add(unnamed)
    cluster.leave(keeper)
    cluster.settle()
    check_tiles(cluster)
    assert any(ask.tables.get(unnamed) == UNKNOWN_TS for ask in cluster.asks)


def test_a_table_that_is_dropped_has_no_name_any_more() -> None:
    cluster = started("ab")
    keeper = cluster.coordinator.holder(REST)
    named = next(t for c in (A, B) if c != keeper for t in cluster.placement()[c])
    cluster.tables = [t for t in cluster.tables if t != named]
    cluster.until(lambda: TableId(named) not in cluster.coordinator.replicas)
    check_tiles(cluster)


def test_a_last_word_that_was_lost_counts_as_written_up_to_now() -> None:
    cluster = started("ab")
    source = next(c for c in (A, B) if 1 in cluster.placement()[c])
    cluster.coordinator.move_table(TableId(1), B if source == A else A)
    cluster.until(lambda: Stop((TableId(1),)) in cluster.executors[source].did)
    cluster.executors[source].tables.pop(TableId(1), None)  # and it forgets before it can say so
    cluster.asks.clear()
    cluster.settle()
    assert dict(cluster.asks[0].tables) in ({TableId(1): UNKNOWN_TS}, {TableId(1): 50})
    check_tiles(cluster)


def test_draining_empties_a_capture_the_rest_last() -> None:
    cluster = started()
    keeper = cluster.coordinator.holder(REST)
    assert keeper is not None
    assert cluster.coordinator.drain(keeper) == 4
    cluster.until(lambda: cluster.coordinator.drain(keeper) == 0)
    assert cluster.placement()[keeper] == []
    check_tiles(cluster)
    assert cluster.coordinator.holder(REST) != keeper


def test_a_capture_that_is_stopping_is_drained_by_itself() -> None:
    cluster = started()
    cluster.agents[A].is_stopping = True
    cluster.until(lambda: cluster.placement()["a"] == [] and cluster.coordinator.holder(REST) != A)
    cluster.settle()
    check_tiles(cluster)


@pytest.mark.parametrize("seed", range(8))
def test_lost_messages_are_said_again(seed: int) -> None:
    cluster, rng = Cluster("abc", range(1, 10)), random.Random(seed)
    cluster.drop = lambda message: rng.random() < 0.3
    cluster.settle()
    check_tiles(cluster)
    for table in (1, 5, 9):
        cluster.coordinator.move_table(TableId(table), A)
        cluster.until(lambda table=table: table in cluster.placement()["a"])
    cluster.settle()
    check_tiles(cluster)


def test_words_of_another_owner_or_epoch_have_no_effect() -> None:
    cluster = started("ab")
    dispatch = next(m for m in reversed(cluster.sent) if isinstance(m.body, Dispatch))
    agent = cluster.agents[dispatch.receiver]
    for header in (
        replace(dispatch.header, owner_revision=0, number=10_000),
        replace(dispatch.header, changefeed_epoch=EPOCH + 1, number=10_000),
        replace(dispatch.header, processor_epoch="another", number=10_000),
        dispatch.header,  # once more
    ):
        assert agent.receive(replace(dispatch, header=header)) == ()
        assert agent.poll(cluster.executors[dispatch.receiver].holdings) == ((), ())
    assert (dispatch.changefeed, dispatch.sender) == (FEED, OWNER)


def test_a_capture_that_comes_back_gets_tables_at_once() -> None:
    """A rolling restart: the balance that was found a moment ago does not count for one that was not there."""
    cluster = Cluster(["a", "b"], range(1, 9))
    cluster.settle()
    assert sorted(map(len, cluster.placement().values())) == [4, 4]
    cluster.leave("b")
    cluster.settle()
    cluster.join("c")
    cluster.settle()
    assert {name: len(tables) for name, tables in cluster.placement().items()} == {"a": 4, "c": 4}
    assert cluster.seconds < cluster.coordinator.settings.check_balance_seconds
