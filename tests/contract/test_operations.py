"""What every server keeps that stands behind the faces of a cluster: the one in memory, and captures themselves."""

from collections.abc import Callable, Iterator

import pytest

from tests.contract import clusters
from tests.contract.clusters import Cluster
from tidemill.errors import (
    CaptureNotFoundError,
    ChangefeedExistsError,
    ChangefeedNotFoundError,
    OwnerNotFoundError,
    SchedulerRefusedError,
    StartTsCollectedError,
    TableIneligibleError,
    TargetTsError,
    UpdateRefusedError,
    UsageError,
)
from tidemill.model.cluster import (
    ChangefeedInfo,
    ChangefeedUpdate,
    FeedState,
    NewChangefeed,
    UpstreamAccess,
    VerifyTables,
)
from tidemill.model.schedule import CaptureId, ChangefeedKey, TableId
from tidemill.model.ts import Ts, compose, physical_ms

HOUR = compose(3_600_000)
KINDS: dict[str, Callable[[], Cluster]] = {"fake": clusters.fake}


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return KINDS[request.param]()


@pytest.fixture
def key(cluster: Cluster) -> Iterator[ChangefeedKey]:
    """Of a changefeed that is running."""
    found = named("orders")
    create(cluster, found)
    yield found
    for each in cluster.run(cluster.owner.changefeeds.all()):
        cluster.run(cluster.owner.changefeeds.remove(each.key))


def named(name: str, namespace: str = "default") -> ChangefeedKey:
    return ChangefeedKey(namespace, name)


def create(cluster: Cluster, key: ChangefeedKey, **fields: object) -> ChangefeedInfo:
    new = NewChangefeed(key, "blackhole://", **fields)  # type: ignore[arg-type]
    found: ChangefeedInfo = cluster.run(cluster.owner.changefeeds.create(new))
    return found


def get(cluster: Cluster, key: ChangefeedKey) -> ChangefeedInfo:
    found: ChangefeedInfo = cluster.run(cluster.owner.changefeeds.get(key))
    return found


def wait_for_state(cluster: Cluster, key: ChangefeedKey, state: FeedState) -> ChangefeedInfo:
    return cluster.wait_for(lambda: cluster.owner.changefeeds.get(key), lambda info: info.state is state)


def wait_for_tables(cluster: Cluster, key: ChangefeedKey) -> dict[TableId, CaptureId]:
    def placement(info: ChangefeedInfo) -> dict[TableId, CaptureId]:
        return {table: task.capture_id for task in info.tasks for table in task.tables}

    found = cluster.wait_for(lambda: cluster.owner.changefeeds.get(key), lambda info: len(placement(info)) >= 2)
    return placement(found)


def pause(cluster: Cluster, key: ChangefeedKey) -> ChangefeedInfo:
    cluster.run(cluster.owner.changefeeds.pause(key))
    return wait_for_state(cluster, key, FeedState.STOPPED)


def now(cluster: Cluster) -> Ts:
    found: Ts = cluster.run(cluster.owner.server.tso(UpstreamAccess()))
    return found


def test_a_new_changefeed_runs_and_its_checkpoint_moves(cluster: Cluster, key: ChangefeedKey) -> None:
    born = get(cluster, key)
    info = cluster.wait_for(lambda: cluster.owner.changefeeds.get(key), lambda info: info.checkpoint_ts > born.start_ts)
    assert info.state is FeedState.NORMAL
    assert info.key == key
    assert info.checkpoint_ts <= info.resolved_ts
    assert info.sink_uri == "blackhole://"
    assert (info.error, info.warning) == (None, None)


def test_without_a_start_ts_it_starts_now(cluster: Cluster, key: ChangefeedKey) -> None:
    assert 0 <= physical_ms(now(cluster)) - physical_ms(get(cluster, key).start_ts) < 60_000


def test_changefeeds_are_listed_by_name_and_namespace(cluster: Cluster, key: ChangefeedKey) -> None:
    create(cluster, named("zeta"))
    create(cluster, named("alpha"))
    create(cluster, named("alpha", "other"))
    in_default = cluster.run(cluster.owner.changefeeds.all("default"))
    assert [info.key.id for info in in_default] == ["alpha", "orders", "zeta"]
    everywhere = cluster.run(cluster.owner.changefeeds.all())
    assert [str(info.key) for info in everywhere] == [
        "default/alpha",
        "default/orders",
        "default/zeta",
        "other/alpha",
    ]


def test_a_name_is_given_once(cluster: Cluster, key: ChangefeedKey) -> None:
    with pytest.raises(ChangefeedExistsError, match="there is one of that name"):
        create(cluster, key)


def test_a_name_that_is_not_there_is_refused_with_one_that_is_like_it(cluster: Cluster, key: ChangefeedKey) -> None:
    feeds = cluster.owner.changefeeds
    for asked in (
        feeds.get(named("order")),
        feeds.update(named("order"), ChangefeedUpdate(target_ts=Ts(0))),
        feeds.pause(named("order")),
        feeds.resume(named("order")),
        feeds.remove(named("order")),
        feeds.rebalance(named("order")),
        feeds.tables(named("order"), cluster.id_of(cluster.owner)),
        feeds.move_table(named("order"), TableId(1), cluster.id_of(cluster.owner)),
    ):
        with pytest.raises(ChangefeedNotFoundError, match="Did you mean 'orders'"):
            cluster.run(asked)


def test_a_start_in_the_future_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="lies in the future"):
        create(cluster, named("late"), start_ts=Ts(now(cluster) + HOUR))


def test_a_start_that_the_upstream_has_collected_is_refused(cluster: Cluster) -> None:
    old = Ts(now(cluster) - 2 * HOUR)
    cluster.collect(Ts(old + HOUR // 2))
    with pytest.raises(StartTsCollectedError, match="garbage-collected"):
        create(cluster, named("old"), start_ts=old)


def test_a_target_that_is_not_above_the_start_is_refused(cluster: Cluster) -> None:
    start = Ts(now(cluster) - compose(1000))
    with pytest.raises(TargetTsError, match="is not above"):
        create(cluster, named("short"), start_ts=start, target_ts=start)


def test_it_finishes_at_its_target(cluster: Cluster, key: ChangefeedKey) -> None:
    target = Ts(now(cluster) + compose(500))
    create(cluster, named("short"), target_ts=target)
    info = wait_for_state(cluster, named("short"), FeedState.FINISHED)
    assert info.checkpoint_ts == target


def test_keyless_tables_are_refused_where_they_may_not_be_left_out(cluster: Cluster) -> None:
    with pytest.raises(TableIneligibleError, match=r"shop\.log"):
        create(cluster, named("strict"), config={"ignore-ineligible-table": False})


def test_which_tables_have_a_key_can_be_asked_before(cluster: Cluster) -> None:
    found = cluster.run(cluster.owner.server.verify_tables(VerifyTables({})))
    assert {(t.schema, t.table) for t in found.eligible} == {("shop", "orders"), ("shop", "items")}
    assert [(t.schema, t.table) for t in found.ineligible] == [("shop", "log")]


def test_a_paused_changefeed_stays_and_a_resumed_one_goes_on_from_there(cluster: Cluster, key: ChangefeedKey) -> None:
    paused = pause(cluster, key)
    assert not paused.tasks
    assert get(cluster, key).checkpoint_ts == paused.checkpoint_ts
    cluster.run(cluster.owner.changefeeds.resume(key))
    running = wait_for_state(cluster, key, FeedState.NORMAL)
    assert running.start_ts == paused.start_ts
    cluster.wait_for(lambda: cluster.owner.changefeeds.get(key), lambda info: info.checkpoint_ts > paused.checkpoint_ts)


def test_pause_of_a_paused_and_resume_of_a_running_one_do_nothing(cluster: Cluster, key: ChangefeedKey) -> None:
    cluster.run(cluster.owner.changefeeds.resume(key))
    assert get(cluster, key).state is FeedState.NORMAL
    pause(cluster, key)
    pause(cluster, key)


def test_resume_can_go_back(cluster: Cluster, key: ChangefeedKey) -> None:
    paused = pause(cluster, key)
    back = Ts(paused.checkpoint_ts - compose(10))
    cluster.run(cluster.owner.changefeeds.resume(key, back))
    assert wait_for_state(cluster, key, FeedState.NORMAL).start_ts == back


def test_resume_into_the_future_or_what_is_collected_is_refused(cluster: Cluster, key: ChangefeedKey) -> None:
    pause(cluster, key)
    with pytest.raises(UsageError, match="lies in the future"):
        cluster.run(cluster.owner.changefeeds.resume(key, Ts(now(cluster) + HOUR)))
    old = Ts(now(cluster) - 2 * HOUR)
    cluster.collect(Ts(old + HOUR // 2))
    with pytest.raises(StartTsCollectedError, match="garbage-collected"):
        cluster.run(cluster.owner.changefeeds.resume(key, old))
    assert get(cluster, key).state is FeedState.STOPPED


def test_a_paused_changefeed_is_updated(cluster: Cluster, key: ChangefeedKey) -> None:
    target = Ts(now(cluster) + HOUR)
    pause(cluster, key)
    update = ChangefeedUpdate(target_ts=target, config={"filter": {"rules": ["shop.orders"]}})
    info = cluster.run(cluster.owner.changefeeds.update(key, update))
    assert (info.target_ts, info.config) == (target, {"filter": {"rules": ["shop.orders"]}})
    assert info.sink_uri == "blackhole://"
    assert get(cluster, key).target_ts == target


def test_a_running_one_is_not_updated_and_neither_is_one_where_nothing_changes(
    cluster: Cluster, key: ChangefeedKey
) -> None:
    with pytest.raises(UpdateRefusedError, match="Pause it first"):
        cluster.run(cluster.owner.changefeeds.update(key, ChangefeedUpdate(target_ts=Ts(now(cluster) + HOUR))))
    pause(cluster, key)
    with pytest.raises(UpdateRefusedError, match="nothing would change"):
        cluster.run(cluster.owner.changefeeds.update(key, ChangefeedUpdate(sink_uri="blackhole://")))
    with pytest.raises(TargetTsError):
        cluster.run(cluster.owner.changefeeds.update(key, ChangefeedUpdate(target_ts=Ts(1))))


def test_a_removed_changefeed_is_gone_and_its_name_is_free(cluster: Cluster, key: ChangefeedKey) -> None:
    cluster.run(cluster.owner.changefeeds.remove(key))
    with pytest.raises(ChangefeedNotFoundError):
        get(cluster, key)
    create(cluster, key)


def test_its_tables_are_on_the_captures_and_can_be_moved(cluster: Cluster, key: ChangefeedKey) -> None:
    placement = wait_for_tables(cluster, key)
    table, source = next(iter(placement.items()))
    target = next(cluster.id_of(each) for each in cluster.operations if cluster.id_of(each) != source)
    cluster.run(cluster.owner.changefeeds.move_table(key, table, target))
    cluster.wait_for(lambda: cluster.owner.changefeeds.tables(key, target), lambda tables: table in tables)
    cluster.wait_for(lambda: cluster.owner.changefeeds.tables(key, source), lambda tables: table not in tables)


def test_a_table_or_capture_that_is_not_there_cannot_be_moved(cluster: Cluster, key: ChangefeedKey) -> None:
    table = next(iter(wait_for_tables(cluster, key)))
    with pytest.raises(CaptureNotFoundError):
        cluster.run(cluster.owner.changefeeds.move_table(key, table, CaptureId("nobody")))
    target = cluster.id_of(cluster.other)
    with pytest.raises(SchedulerRefusedError, match="99999"):
        cluster.run(cluster.owner.changefeeds.move_table(key, TableId(99_999), target))


def test_rebalance_spreads_tables(cluster: Cluster, key: ChangefeedKey) -> None:
    target = cluster.id_of(cluster.owner)
    for table, at in wait_for_tables(cluster, key).items():
        if at != target:
            cluster.run(cluster.owner.changefeeds.move_table(key, table, target))
    cluster.wait_for(lambda: cluster.owner.changefeeds.tables(key, target), lambda tables: len(tables) == 2)
    cluster.run(cluster.owner.changefeeds.rebalance(key))
    cluster.wait_for(lambda: cluster.owner.changefeeds.tables(key, target), lambda tables: len(tables) == 1)


def test_the_captures_are_listed_with_one_owner(cluster: Cluster) -> None:
    captures = cluster.run(cluster.owner.cluster.captures())
    assert [each.id for each in captures] == sorted(cluster.id_of(each) for each in cluster.operations)
    assert [each.id for each in captures if each.is_owner] == [cluster.id_of(cluster.owner)]
    assert cluster.run(cluster.other.server.owner()).id == cluster.id_of(cluster.owner)


def test_processors_are_where_tables_are(cluster: Cluster, key: ChangefeedKey) -> None:
    holders = set(wait_for_tables(cluster, key).values())
    found = cluster.run(cluster.owner.cluster.processors("default"))
    assert holders <= {each.capture_id for each in found if each.changefeed == key}
    assert cluster.run(cluster.owner.cluster.processors("elsewhere")) == ()


def test_the_owner_alone_answers_for_the_cluster(cluster: Cluster) -> None:
    with pytest.raises(OwnerNotFoundError):
        cluster.run(cluster.other.changefeeds.all())
    with pytest.raises(OwnerNotFoundError):
        cluster.run(cluster.other.cluster.captures())


def test_a_healthy_cluster_says_so(cluster: Cluster, key: ChangefeedKey) -> None:
    wait_for_tables(cluster, key)
    cluster.run(cluster.owner.cluster.check_health())


def test_the_owner_cannot_be_drained_nor_what_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(SchedulerRefusedError, match="owner"):
        cluster.run(cluster.owner.cluster.drain(cluster.id_of(cluster.owner)))
    with pytest.raises(CaptureNotFoundError):
        cluster.run(cluster.owner.cluster.drain(CaptureId("nobody")))


def test_metadata_tells_of_captures_and_changefeeds(cluster: Cluster, key: ChangefeedKey) -> None:
    entries = cluster.run(cluster.owner.cluster.metadata())
    keys = [entry.key for entry in entries]
    assert keys == sorted(keys)
    assert any(each.endswith("/default/changefeed/info/orders") for each in keys)
    assert any(each.endswith(f"/__cdc_meta__/capture/{cluster.id_of(cluster.owner)}") for each in keys)


def test_the_log_level_and_the_state_of_a_server_can_be_asked_for(cluster: Cluster) -> None:
    cluster.run(cluster.owner.server.check_ready())
    cluster.run(cluster.owner.server.set_log_level("debug"))
    cluster.run(cluster.owner.server.set_log_level("info"))
    assert cluster.run(cluster.owner.server.debug_state())
    assert cluster.run(cluster.owner.server.config())


def test_a_drained_capture_has_no_tables(cluster: Cluster, key: ChangefeedKey) -> None:
    wait_for_tables(cluster, key)
    target = cluster.id_of(cluster.other)
    cluster.wait_for(lambda: cluster.owner.cluster.drain(target), lambda left: left == 0)
    assert cluster.run(cluster.owner.changefeeds.tables(key, target)) == ()
