"""The change stream over real gRPC, as §3 and §4 of the protocol describe it, with a plain client."""

import grpc
import pytest

from tests.tidebox.stub import COMMIT, COMMITTED, PREWRITE, ROLLBACK, delete, put
from tidemill._pb import cdcpb_pb2
from tidemill.errors import UsageError
from tidemill.tidb.keys import encode_bytes


def feed_of(client, region, **options):
    return client.feed(region.leader.store_id, **options)


def shape(row):
    return row.type, row.op_type, row.key, row.value, row.old_value


# Phases


def test_a_scan_gives_versions_above_the_checkpoint_newest_first_with_old_values(upstream, client):
    _, first = upstream.commit([put(b"a", b"1"), put(b"b", b"1")])
    upstream.commit([put(b"a", b"2")])
    upstream.commit([delete(b"a")])
    upstream.commit([put(b"a", b"4")])
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, checkpoint_ts=first)
    feed.wait_initialized(region.region.id)
    assert [shape(row) for row in feed.rows()] == [
        (COMMITTED, 1, b"a", b"4", b""),
        (COMMITTED, 2, b"a", b"", b"2"),
        (COMMITTED, 1, b"a", b"2", b"1"),
    ]


def test_an_empty_region_is_initialized_at_once(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    assert feed.rows() == []


def test_live_changes_come_as_prewrite_and_commit(upstream, client):
    upstream.commit([put(b"a", b"old")])
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, checkpoint_ts=upstream.tso())
    feed.wait_initialized(region.region.id)
    start, commit = upstream.commit([put(b"a", b"new"), delete(b"b")])
    feed.wait(lambda: len(feed.rows(kind=COMMIT)) == 2)
    assert {shape(row) for row in feed.rows(kind=PREWRITE)} == {
        (PREWRITE, 1, b"a", b"new", b"old"),
        (PREWRITE, 2, b"b", b"", b""),
    }
    assert {shape(row) for row in feed.rows(kind=COMMIT)} == {
        (COMMIT, 1, b"a", b"new", b""),
        (COMMIT, 2, b"b", b"", b""),
    }
    assert {(row.start_ts, row.commit_ts) for row in feed.rows(kind=PREWRITE)} == {(start, 0)}
    assert {(row.start_ts, row.commit_ts) for row in feed.rows(kind=COMMIT)} == {(start, commit)}


@pytest.mark.parametrize("length", [255, 256])
def test_a_commit_repeats_only_short_values(upstream, client, length):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    value = b"x" * length
    upstream.commit([put(b"a", value)])
    upstream.commit([put(b"a", b"y" * length)])
    feed.wait(lambda: len(feed.rows(kind=COMMIT)) == 2)
    assert feed.rows(kind=PREWRITE)[0].value == value
    assert feed.rows(kind=PREWRITE)[1].old_value == value
    assert feed.rows(kind=COMMIT)[0].value == (value if length <= 255 else b"")


def test_a_lock_found_by_the_scan_is_a_prewrite_before_its_keys_versions(upstream, client):
    upstream.commit([put(b"a", b"0"), put(b"b", b"0"), put(b"c", b"0")])
    checkpoint = upstream.tso()
    upstream.commit([put(b"b", b"1")])
    start = upstream.prewrite([put(b"b", b"x" * 300)])
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, checkpoint_ts=checkpoint)
    feed.wait_initialized(region.region.id)
    assert [shape(row) for row in feed.rows()] == [
        (PREWRITE, 1, b"b", b"x" * 300, b"1"),
        (COMMITTED, 1, b"b", b"1", b"0"),
    ]
    assert feed.rows()[0].start_ts == start


def test_a_rollback_tells_the_start_ts_and_the_key(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    start = upstream.prewrite([put(b"a")])
    upstream.rollback([b"a"], start)
    feed.wait(lambda: feed.rows(kind=ROLLBACK))
    row = feed.rows(kind=ROLLBACK)[0]
    assert (row.start_ts, row.commit_ts, row.key, row.value) == (start, 0, b"a", b"")
    assert upstream.get(b"a") is None


def test_rollbacks_are_no_rows_of_a_scan(upstream, client):
    upstream.commit([put(b"a", b"1")])
    start = upstream.prewrite([put(b"a", b"2")])
    upstream.rollback([b"a"], start)
    upstream.commit([put(b"a", b"3")])
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    assert [(row.value, row.old_value) for row in feed.rows()] == [(b"3", b"1"), (b"1", b"")]


def test_only_the_asked_range_is_sent(upstream, client):
    upstream.commit([put(b"a"), put(b"b"), put(b"c")])
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, start_key=encode_bytes(b"b"), end_key=encode_bytes(b"c"))
    feed.wait_initialized(region.region.id)
    upstream.commit([put(b"a"), put(b"b"), put(b"c")])
    feed.wait(lambda: feed.rows(kind=COMMIT))
    assert {row.key for row in feed.rows()} == {b"b"}


def test_bounds_that_are_not_memcomparable_mean_the_whole_region(upstream, client):
    upstream.commit([put(b"a"), put(b"z")])
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, start_key=encode_bytes(b"m"), end_key=b"\xff" * 5)
    feed.wait_initialized(region.region.id)
    assert {row.key for row in feed.rows()} == {b"a", b"z"}


# Resolved-ts


def test_resolved_ts_follows_the_tso_once_initialized(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    ts = upstream.publish_resolved()
    feed.wait_resolved(region.region.id, ts)
    assert upstream.tso() > ts


def test_a_lock_holds_the_resolved_ts_just_below_its_start_ts(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    start = upstream.prewrite([put(b"a")])
    upstream.publish_resolved()
    upstream.publish_resolved()
    commit = upstream.commit_prewritten([b"a"], start)
    after = upstream.publish_resolved()
    feed.wait_resolved(region.region.id, after)
    stamps = [entry[3] for entry in feed.resolved(region.region.id)]
    assert stamps == [start - 1, start - 1, after]
    assert after >= commit


def test_a_lock_outside_the_range_holds_nothing_back(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, end_key=encode_bytes(b"m"))
    feed.wait_initialized(region.region.id)
    upstream.prewrite([put(b"z")])
    feed.wait_resolved(region.region.id, upstream.publish_resolved())


def test_nothing_can_be_committed_below_a_promise(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    early = upstream.tso()
    upstream.publish_resolved()
    with pytest.raises(UsageError, match="promised"):
        upstream.commit([put(b"a")], start_ts=early - 1, commit_ts=early)


def test_a_held_region_is_left_out_until_released(upstream, client):
    upstream.split(b"m")
    left, right = client.regions()
    feed = client.feed(left.leader.store_id)
    feed.register(left)
    feed.register(right)
    feed.wait_initialized(left.region.id, right.region.id)
    upstream.hold_resolved(left.region.id)
    held = upstream.publish_resolved()
    feed.wait_resolved(right.region.id, held)
    assert feed.resolved(left.region.id) == []
    upstream.release_resolved(left.region.id)
    feed.wait_resolved(left.region.id, upstream.publish_resolved())


def test_resolved_ts_is_grouped_by_request_on_a_multiplexed_stream(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, request_id=5)
    feed.register(region, request_id=6)
    feed.wait_initialized(region.region.id, request_id=5)
    feed.wait_initialized(region.region.id, request_id=6)
    ts = upstream.publish_resolved()
    feed.wait_resolved(region.region.id, ts, request_id=5)
    feed.wait_resolved(region.region.id, ts, request_id=6)
    assert feed.resolved(region.region.id, request_id=0) == []


@pytest.mark.parametrize(
    ("version", "v2", "request_id"),
    [
        pytest.param("4.0.8", False, 0, id="without multiplexing the request id is left out"),
        pytest.param("4.0.7", False, 1, id="an old client gets one event a region"),
        pytest.param("v8.5.0", False, 1, id="a leading v makes a client old"),
        pytest.param("", False, 1, id="no version makes a client old"),
    ],
)
def test_the_form_of_a_resolved_ts_depends_on_the_clients_version(upstream, client, version, v2, request_id):
    region = client.region()
    feed = feed_of(client, region, version=version, v2=v2)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    feed.wait_resolved(region.region.id, upstream.publish_resolved(), request_id=request_id)


def test_a_multiplexed_stream_of_an_old_version_gets_no_resolved_ts(upstream, client):
    region = client.region()
    feed = feed_of(client, region, version="4.0.7")
    feed.register(region)
    feed.wait_initialized(region.region.id)
    upstream.publish_resolved()
    upstream.commit([put(b"a")])  # arrives after the resolved-ts would have
    feed.wait(lambda: feed.rows(kind=COMMIT))
    assert not [entry for entry in feed.log if entry[0] == "resolved"]


def test_slow_regions_are_sent_in_small_groups(upstream, client):
    for at in range(60):
        upstream.split(b"k%02d" % at)
    regions = client.regions()
    feed = client.feed(1)
    for region in regions:
        upstream.transfer_leader(region.region.id, 1)
        feed.register(region)
    feed.wait_initialized(*[r.region.id for r in regions])
    start = upstream.prewrite([put(b"k30")])
    ts = upstream.publish_resolved()
    feed.wait(lambda: len({e[2] for e in feed.log if e[0] == "resolved"}) == len(regions))
    stamps = sorted(entry[3] for entry in feed.log if entry[0] == "resolved")
    assert stamps == [start - 1] * 8 + [ts] * 53


# Refusals, in the order in which the server checks


@pytest.mark.parametrize(
    ("request_fields", "variant"),
    [
        pytest.param({"header": cdcpb_pb2.Header(cluster_id=1, ticdc_version="8.5.0")}, "cluster_id_mismatch"),
        pytest.param({"kv_api": cdcpb_pb2.ChangeDataRequest.RawKV}, "compatibility"),
        pytest.param({"kv_api": cdcpb_pb2.ChangeDataRequest.TxnKV}, "compatibility"),
        pytest.param({"region_id": 999}, "region_not_found"),
        pytest.param({"version": 7}, "epoch_not_match"),
    ],
)
def test_a_registration_that_does_not_fit_is_refused(upstream, client, request_fields, variant):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, **request_fields)
    error = feed.error()
    assert [field.name for field, _ in error.ListFields()] == [variant]
    request_id, region_id, _ = feed.errors()[0]
    assert (request_id, region_id) == (1, request_fields.get("region_id", region.region.id))
    feed.register(region)  # the same pair may try again
    feed.wait_initialized(region.region.id)


def test_an_old_client_is_not_asked_for_its_cluster(upstream, client):
    region = client.region()
    feed = feed_of(client, region, version="5.2.9")
    feed.register(region, header=cdcpb_pb2.Header(cluster_id=1, ticdc_version="5.2.9"))
    feed.wait_initialized(region.region.id)


def test_a_follower_refuses_and_names_the_leader(upstream, client):
    region = client.region()
    other = next(p for p in region.region.peers if p.store_id != region.leader.store_id)
    feed = client.feed(other.store_id)
    feed.register(region)
    assert feed.error().not_leader.leader == region.leader


def test_a_second_registration_is_refused_and_leaves_the_first_alone(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    feed.register(region)
    assert feed.error().HasField("duplicate_request")
    upstream.commit([put(b"a")])
    feed.wait(lambda: feed.rows(kind=COMMIT))


def test_deregistering_is_acknowledged_and_silences(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region, request_id=1)
    feed.register(region, request_id=2)
    feed.wait_initialized(region.region.id, request_id=1)
    feed.wait_initialized(region.region.id, request_id=2)
    feed.deregister(region.region.id, request_id=1)
    assert feed.error().region_not_found.region_id == region.region.id
    upstream.commit([put(b"a")])
    feed.wait(lambda: feed.rows(kind=COMMIT, request_id=2))
    assert feed.rows(request_id=1) == []


def test_deregistering_region_0_removes_all_of_the_request(upstream, client):
    upstream.split(b"m")
    regions = client.regions()
    feed = client.feed(regions[0].leader.store_id)
    for region in regions:
        feed.register(region)
    feed.wait_initialized(*[r.region.id for r in regions])
    feed.deregister(0)
    feed.wait(lambda: len(feed.errors()) == 2)
    assert {region for _, region, _ in feed.errors()} == {r.region.id for r in regions}


# The stream as a whole


def test_half_closing_ends_the_stream_without_an_error(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    feed.half_close()
    feed.wait(lambda: feed.ended)
    assert feed.end is None


def test_a_probe_that_half_closes_at_once_ends_cleanly(upstream, client):
    feed = client.feed(1)
    feed.half_close()
    feed.wait(lambda: feed.ended)
    assert feed.end is None


def test_unknown_features_are_named_in_the_refusal(upstream, client):
    feed = client.feed(1, features="stream-multiplexing,time-travel,warp")
    feed.wait(lambda: feed.ended)
    assert feed.end.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "time-travel" in feed.end.details()
    assert "warp" in feed.end.details()


def test_a_dropped_stream_fails_and_its_regions_can_be_registered_anew(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    upstream.drop_streams()
    feed.wait(lambda: feed.ended)
    assert feed.end.code() is grpc.StatusCode.UNKNOWN
    again = feed_of(client, region)
    again.register(region)
    again.wait_initialized(region.region.id)


# Regions that change under a subscription


def test_a_split_ends_the_subscription_with_the_children(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    upstream.split(b"m")
    children = feed.error().epoch_not_match.current_regions
    assert [r.region for r in client.regions()] == list(children)
    upstream.commit([put(b"a")])
    upstream.publish_resolved()
    for child in client.regions():
        feed.register(child)
    feed.wait_initialized(*[r.id for r in children])
    assert [row.type for row in feed.rows()] == [COMMITTED]


def test_a_new_leader_ends_the_subscription_and_is_named(upstream, client):
    region = client.region()
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    heir = next(p for p in region.region.peers if p.store_id != region.leader.store_id)
    upstream.transfer_leader(region.region.id, heir.store_id)
    assert feed.error().not_leader.leader == heir
    assert client.region().leader == heir
    assert client.region().region.region_epoch == region.region.region_epoch


def test_a_stopped_store_breaks_its_streams_and_hands_its_regions_over(upstream, client):
    region = client.region()
    store = region.leader.store_id
    feed = feed_of(client, region)
    feed.register(region)
    feed.wait_initialized(region.region.id)
    upstream.stop_store(store)
    feed.wait(lambda: feed.ended)
    moved = client.region()
    assert moved.leader.store_id != store
    other = client.feed(moved.leader.store_id)
    other.register(moved)
    other.wait_initialized(region.region.id)
    upstream.start_store(store)
    upstream.transfer_leader(region.region.id, store)
    back = client.feed(store)
    back.register(client.region())
    back.wait_initialized(region.region.id)
