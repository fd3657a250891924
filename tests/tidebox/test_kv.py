"""Reads at a ts over real gRPC, and the region errors that send a client elsewhere."""

import itertools

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.tidebox.stub import client_of, delete, put
from tidebox.transactions import KeyLockedError, LockNotFoundError, WriteConflictError
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2, metapb_pb2
from tidemill.errors import UpstreamError
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import encode_bytes


def scan(client, region=None, *, limit=1000, version=MAX_TS, **fields):
    region = region or client.region()
    request = kvrpcpb_pb2.ScanRequest(context=client.context(region), limit=limit, version=version, **fields)
    return client.kv[region.leader.store_id].KvScan(request)


def get(client, key, version=MAX_TS, **context):
    region = client.region(encode_bytes(key))
    request = kvrpcpb_pb2.GetRequest(context=client.context(region, **context), key=key, version=version)
    return client.kv[region.leader.store_id].KvGet(request)


def test_a_read_sees_the_newest_version_at_or_below_its_ts(upstream, client):
    _, first = upstream.commit([put(b"k", b"1")])
    _, second = upstream.commit([put(b"k", b"x" * 1000)])
    _, third = upstream.commit([delete(b"k")])
    assert get(client, b"k", first - 1).not_found
    assert get(client, b"k", first).value == b"1"
    assert get(client, b"k", second - 1).value == b"1"
    assert get(client, b"k", second).value == b"x" * 1000
    assert get(client, b"k", third).not_found


def test_an_empty_value_is_a_value(upstream, client):
    upstream.commit([put(b"k", b"")])
    answer = get(client, b"k")
    assert (answer.not_found, answer.value) == (False, b"")


def test_a_batch_get_leaves_out_what_is_not_there(upstream, client):
    upstream.commit([put(b"a", b"1"), put(b"c", b"3")])
    region = client.region()
    request = kvrpcpb_pb2.BatchGetRequest(context=client.context(region), keys=[b"a", b"b", b"c"], version=MAX_TS)
    answer = client.kv[region.leader.store_id].KvBatchGet(request)
    assert [(p.key, p.value) for p in answer.pairs] == [(b"a", b"1"), (b"c", b"3")]


def test_a_lock_stops_readers_above_it_and_nobody_below(upstream, client):
    _, commit = upstream.commit([put(b"a", b"1"), put(b"p", b"1")])
    start = upstream.prewrite([put(b"p", b"2"), put(b"a", b"2")])
    later = upstream.tso()
    locked = get(client, b"a", later).error.locked
    assert (locked.lock_version, locked.key, locked.primary_lock) == (start, b"a", b"p")
    assert get(client, b"a", commit).value == b"1"
    assert get(client, b"a", later, resolved_locks=[start]).value == b"1"
    assert get(client, b"a", later, isolation_level=kvrpcpb_pb2.RC).value == b"1"
    assert get(client, b"p", MAX_TS).value == b"1"  # the latest read may pass the primary's lock
    with pytest.raises(KeyLockedError):
        upstream.get(b"a", later)


def test_a_scan_shows_locked_keys_as_errors_in_their_place(upstream, client):
    upstream.commit([put(b"a"), put(b"c")])
    upstream.prewrite([put(b"b"), put(b"c")])
    answer = scan(client, version=upstream.tso())
    assert [(p.key, p.HasField("error")) for p in answer.pairs] == [(b"a", False), (b"b", True), (b"c", True)]


def test_a_scan_stays_inside_its_region_and_limit(upstream, client):
    upstream.commit([put(b"k%02d" % i) for i in range(20)])
    upstream.split(b"k10")
    left, right = client.regions()
    assert [p.key for p in scan(client, left).pairs] == [b"k%02d" % i for i in range(10)]
    assert [p.key for p in scan(client, right, limit=3).pairs] == [b"k10", b"k11", b"k12"]
    assert [p.key for p in scan(client, left, reverse=True, limit=2).pairs] == [b"k09", b"k08"]
    assert list(scan(client, left, limit=0).pairs) == []
    only = scan(client, left, start_key=b"k03", end_key=b"k05", key_only=True)
    assert [(p.key, p.value) for p in only.pairs] == [(b"k03", b""), (b"k04", b"")]


keys = st.sampled_from([b"a", b"ab", b"abcdefgh", b"abcdefghi", b"b", b"b\x00", b"c"])
writes = st.lists(
    st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=3), st.just(b"L" * 300)), min_size=1),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def shared():
    """One upstream for all examples; each writes under a prefix of its own."""
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as upstream, client_of(upstream) as client:
        yield upstream, client, itertools.count()


@settings(max_examples=examples(25), deadline=None)
@given(writes, st.integers(1, 10), st.booleans())
def test_scans_equal_a_model_at_every_ts(shared, transactions, limit, backwards):
    upstream, client, counter = shared
    prefix = b"%06d/" % next(counter)
    bounds = {
        "start_key": prefix + b"\xff" if backwards else prefix,
        "end_key": prefix if backwards else prefix + b"\xff",
    }
    state: dict[bytes, bytes] = {}
    states = {upstream.tso(): {}}
    for changes in transactions:
        named = {prefix + key: value for key, value in changes.items()}
        _, commit = upstream.commit([delete(k) if v is None else put(k, v) for k, v in named.items()])
        state = {k: v for k, v in {**state, **named}.items() if v is not None}
        states[commit] = state
    for ts, wanted in states.items():
        answer = scan(client, version=ts, limit=limit, reverse=backwards, **bounds)
        assert [(p.key, p.value) for p in answer.pairs] == sorted(wanted.items(), reverse=backwards)[:limit]
        for key in (prefix + b"a", prefix + b"b"):
            assert upstream.get(key, ts) == wanted.get(key)


# Region errors, in the order of the checks


def variant(error):
    return [field.name for field, _ in error.ListFields() if field.name != "message"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"peer": metapb_pb2.Peer(id=1, store_id=9), "region_id": 999}, "store_not_match"),
        pytest.param({"region_id": 999, "region_epoch": metapb_pb2.RegionEpoch(version=9)}, "region_not_found"),
        pytest.param({"peer": "wrong id", "region_epoch": metapb_pb2.RegionEpoch(version=9)}, "mismatch_peer_id"),
        pytest.param({"region_epoch": metapb_pb2.RegionEpoch(conf_ver=1, version=1)}, "epoch_not_match"),
        pytest.param({"region_epoch": metapb_pb2.RegionEpoch(conf_ver=1, version=9)}, "epoch_not_match"),
    ],
)
def test_a_request_to_the_wrong_place_gets_the_first_error_that_applies(upstream, client, change, error):
    upstream.split(b"m")
    region = client.regions()[0]
    context = client.context(region)
    for name, value in change.items():
        if value == "wrong id":
            context.peer.id += 100
        elif name == "region_id":
            context.region_id = value
        else:
            getattr(context, name).CopyFrom(value)
    request = kvrpcpb_pb2.GetRequest(context=context, key=b"z", version=1)
    answer = client.kv[region.leader.store_id].KvGet(request)
    assert variant(answer.region_error) == [error]


def test_a_key_of_another_region_is_refused_last(upstream, client):
    upstream.split(b"m")
    region = client.regions()[0]
    request = kvrpcpb_pb2.GetRequest(context=client.context(region), key=b"z", version=1)
    error = client.kv[region.leader.store_id].KvGet(request).region_error
    assert variant(error) == ["key_not_in_region"]
    assert error.key_not_in_region.end_key == region.region.end_key


def test_a_follower_names_the_leader(upstream, client):
    region = client.region()
    follower = next(p for p in region.region.peers if p != region.leader)
    context = client.context(region)
    context.peer.CopyFrom(follower)
    request = kvrpcpb_pb2.GetRequest(context=context, key=b"a", version=1)
    error = client.kv[follower.store_id].KvGet(request).region_error
    assert error.not_leader.leader == region.leader
    context.replica_read = True
    assert client.kv[follower.store_id].KvGet(kvrpcpb_pb2.GetRequest(context=context, key=b"a", version=1)).not_found


def test_a_stale_epoch_is_told_the_current_regions(upstream, client):
    old = client.region()
    upstream.split(b"m")
    request = kvrpcpb_pb2.GetRequest(context=client.context(old), key=b"a", version=1)
    error = client.kv[old.leader.store_id].KvGet(request).region_error
    assert {r.id for r in error.epoch_not_match.current_regions} == {r.region.id for r in client.regions()}


def test_another_clusters_request_is_refused(upstream, client):
    with pytest.raises(grpc.RpcError) as refused:
        get(client, b"a", cluster_id=3)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_splitting_over_the_wire_answers_with_all_parts(upstream, client):
    region = client.region()
    request = kvrpcpb_pb2.SplitRegionRequest(context=client.context(region), split_keys=[b"f", b"c"])
    answer = client.kv[region.leader.store_id].SplitRegion(request)
    assert list(answer.regions) == [r.region for r in client.regions()]
    assert [r.region_epoch.version for r in answer.regions] == [3, 3, 3]
    assert answer.regions[-1].id == region.region.id


# The rules of writing


def test_a_transaction_that_began_earlier_conflicts(upstream):
    start = upstream.tso()
    upstream.commit([put(b"a", b"1")])
    with pytest.raises(WriteConflictError):
        upstream.prewrite([put(b"b"), put(b"a")], start)
    assert len(upstream.cluster.locks) == 0  # nothing of a refused prewrite stays


def test_a_locked_key_cannot_be_locked_by_another(upstream):
    upstream.prewrite([put(b"a")])
    with pytest.raises(KeyLockedError):
        upstream.prewrite([put(b"a")])


def test_steps_may_be_repeated(upstream):
    start = upstream.prewrite([put(b"a", b"1")])
    upstream.prewrite([put(b"a", b"1")], start)
    commit = upstream.commit_prewritten([b"a"], start)
    upstream.commit_prewritten([b"a"], start, commit)
    upstream.prewrite([put(b"a", b"1")], start)  # late: it is committed already
    assert len(upstream.cluster.locks) == 0
    assert upstream.get(b"a") == b"1"


def test_what_was_rolled_back_stays_so(upstream):
    start = upstream.prewrite([put(b"a", b"x" * 999)])
    upstream.rollback([b"a"], start)
    upstream.rollback([b"a"], start)
    with pytest.raises(LockNotFoundError):
        upstream.commit_prewritten([b"a"], start)
    with pytest.raises(WriteConflictError):
        upstream.prewrite([put(b"a")], start)
    start, _ = upstream.commit([put(b"a", b"2")])
    with pytest.raises(UpstreamError, match="committed"):
        upstream.rollback([b"a"], start)


def test_locks_survive_a_restart(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as first:
        start = first.prewrite([put(b"a", b"x" * 999)])
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as second:
        second.commit_prewritten([b"a"], start)
        assert second.get(b"a") == b"x" * 999
