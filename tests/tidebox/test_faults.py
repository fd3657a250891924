"""Clusters that change and fail: what clients see of merges, of stores that go and die, of a PD that is away."""

import json
from contextlib import closing
from http.client import HTTPConnection

import grpc
import pytest

from tests.tidebox.stub import COMMITTED, DEADLINE_SECONDS, client_of, put
from tidebox.boundaries import boundary_within
from tidebox.faults import FAULTS, Faults
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2, pdpb_pb2
from tidemill.errors import UsageError
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import encode_bytes


def get(client, region, key, version=MAX_TS):
    request = kvrpcpb_pb2.GetRequest(context=client.context(region), key=key, version=version)
    return client.kv[region.leader.store_id].KvGet(request, timeout=DEADLINE_SECONDS)


def subscribed(client, region, **other):
    feed = client.feed(region.leader.store_id)
    feed.register(region, **other)
    feed.wait_initialized(region.region.id)
    return feed


@pytest.fixture
def pair(upstream, client):
    """Two neighbours with a key each."""
    upstream.commit([put(b"a", b"left"), put(b"z", b"right")])
    upstream.split(b"m")
    return client.regions()


# Merges


@pytest.mark.parametrize("goes", [0, 1], ids=["into the right", "into the left"])
def test_a_merge_covers_both_and_is_newer_than_both(upstream, client, pair, goes):
    source, target = pair[goes], pair[1 - goes]
    upstream.merge(source.region.id, target.region.id)
    [merged] = client.regions()
    assert merged.region.id == target.region.id
    assert (merged.region.start_key, merged.region.end_key) == (b"", b"")
    assert merged.region.region_epoch.version == 4  # both had 2; prepared 3; committed 4
    assert merged.leader == target.leader
    assert [get(client, merged, key).value for key in (b"a", b"z")] == [b"left", b"right"]


def test_requests_that_know_of_no_merge_get_the_real_region_errors(upstream, client, pair):
    left, right = pair
    upstream.merge(left.region.id, right.region.id)
    assert get(client, left, b"a").region_error.region_not_found.region_id == left.region.id
    stale = get(client, right, b"z").region_error.epoch_not_match
    assert [r.region_epoch.version for r in stale.current_regions] == [4]


def test_an_epoch_from_the_future_is_refused_with_the_present(upstream, client, pair):
    left, _ = pair
    left.region.region_epoch.version += 10
    current = get(client, left, b"a").region_error.epoch_not_match.current_regions
    assert [(r.id, r.region_epoch.version) for r in current] == [(left.region.id, 2)]


def test_a_merge_ends_the_subscriptions_of_both_without_naming_regions(upstream, client, pair):
    feeds = [subscribed(client, region) for region in pair]
    upstream.merge(pair[0].region.id, pair[1].region.id)
    for feed in feeds:
        error = feed.error()
        assert error.HasField("epoch_not_match")
        assert list(error.epoch_not_match.current_regions) == []
    [merged] = client.regions()
    again = subscribed(client, merged)
    assert sorted(row.key for row in again.rows(kind=COMMITTED)) == [b"a", b"z"]


def test_merges_survive_a_restart(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", stores=3) as first:
        left, _ = first.split(b"m")
        right = first.region_of(b"z")
        first.merge(left.id, right.id)
        before = first.regions()
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", stores=3) as second:
        assert second.regions() == before


# Stores


def test_a_stopped_store_hands_its_leaders_over_before_it_goes(upstream, client):
    region = client.region()
    store = region.leader.store_id
    feed = subscribed(client, region)
    upstream.stop_store(store)
    feed.wait(lambda: feed.ended)
    moved = client.region()
    assert moved.leader.store_id != store
    assert not get(client, moved, b"a").HasField("region_error")


def test_a_killed_store_is_cut_off_and_leads_on_dead_until_the_others_notice(upstream, client):
    region = client.region()
    store = region.leader.store_id
    feed = subscribed(client, region)
    upstream.kill_store(store, election_seconds=3600)
    feed.wait(lambda: feed.ended)
    assert feed.end.code() is grpc.StatusCode.UNAVAILABLE  # not a word from the store itself
    assert feed.errors() == []
    with pytest.raises(grpc.RpcError):
        get(client, region, b"a")
    assert client.region().leader == region.leader
    follower = next(p for p in region.region.peers if p.store_id != store)
    region.leader.CopyFrom(follower)
    not_leader = get(client, region, b"a").region_error.not_leader
    assert not not_leader.HasField("leader")
    upstream.cluster.elect()
    assert client.region().leader.store_id != store
    assert not get(client, client.region(), b"a").HasField("region_error")


def test_an_election_follows_a_death_by_itself(upstream, client):
    region = client.region()
    upstream.kill_store(region.leader.store_id, election_seconds=0.01)
    for _ in range(10_000):
        if (moved := client.region()).leader != region.leader:
            break
    assert moved.leader != region.leader


def test_a_region_without_a_live_peer_has_no_leader_until_one_is_back(upstream, client):
    upstream.commit([put(b"a", b"kept")])
    for store in (1, 2, 3):
        upstream.kill_store(store, election_seconds=0)
    assert client.region().leader.store_id == 0
    assert [region.leader.id for region in client.regions()] == [0]
    upstream.start_store(2)
    region = client.region()
    assert region.leader.store_id == 2
    assert get(client, region, b"a").value == b"kept"


def test_a_store_comes_back_at_its_address_or_at_another_that_pd_tells(upstream, client):
    before = upstream.store_addresses
    upstream.kill_store(2)
    assert upstream.start_store(2) == before[1]
    upstream.stop_store(2)
    address = upstream.start_store(2, elsewhere=True)
    assert address != before[1]
    told = client.pd.GetStore(pdpb_pb2.GetStoreRequest(header=client.header, store_id=2)).store
    assert told.address == address
    with client_of(upstream) as newcomer:
        upstream.transfer_leader(newcomer.region().region.id, 2)
        assert not get(newcomer, newcomer.region(), b"a").HasField("region_error")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda u: u.stop_store(9), "there is no store 9"),
        (lambda u: (u.kill_store(2), u.stop_store(2)), "store 2 is down already"),
        (lambda u: u.start_store(2, elsewhere=True), "store 2 is up"),
        (lambda u: (u.stop_store(3), u.transfer_leader(u.regions()[0].id, 3)), "store 3 is down"),
        (lambda u: u.merge(4, 99), "there is no region 99"),
    ],
)
def test_what_cannot_be_done_is_said(upstream, change, said):
    with pytest.raises(UsageError, match=said):
        change(upstream)


# PD


def test_while_pd_is_away_nobody_hears_from_it_and_resolved_ts_stands_still(upstream, client):
    region = client.region()
    feed = subscribed(client, region)
    feed.wait_resolved(region.region.id, upstream.publish_resolved())
    upstream.pd_away()
    with pytest.raises(grpc.RpcError):
        client.region()
    upstream.publish_resolved()
    upstream.pd_back()
    later = upstream.publish_resolved()
    feed.wait_resolved(region.region.id, later)
    assert len(feed.resolved(region.region.id)) == 2
    asked = pdpb_pb2.GetRegionRequest(header=client.header)
    assert client.pd.GetRegion(asked, wait_for_ready=True, timeout=DEADLINE_SECONDS).region == region.region


def test_data_can_be_read_while_pd_is_away(upstream, client):
    upstream.commit([put(b"a", b"1")])
    region = client.region()
    upstream.pd_away()
    assert get(client, region, b"a").value == b"1"


# Faults by name


def run(upstream, name, **arguments):
    return Faults(upstream).run(name, arguments)


def test_a_split_finds_the_middle_of_what_a_region_holds(upstream):
    upstream.commit([put(b"k%02d" % at) for at in range(40)])
    [region] = upstream.regions()
    parts = run(upstream, "split", region=region.id)["regions"]
    assert [part["end"] for part in parts] == [b"k20".hex(), ""]
    assert boundary_within(upstream.cluster.engine, upstream.regions()[0], 0.25) == encode_bytes(b"k05")
    assert boundary_within(upstream.cluster.engine, upstream.regions()[1], 1.0) == encode_bytes(b"k39")


def test_a_region_of_one_key_has_no_middle(upstream):
    upstream.commit([put(b"only")])
    run(upstream, "split", key="only")
    with pytest.raises(UsageError, match="give one"):
        run(upstream, "split", region=upstream.region_of(b"only").id)


def test_a_merge_takes_the_right_neighbour_or_else_the_left(upstream):
    run(upstream, "split", key="f")
    run(upstream, "split", hex_key="72")
    first, second, third = (region.id for region in upstream.regions())
    assert run(upstream, "merge", region=first)["regions"][0]["id"] == second
    assert run(upstream, "merge", region=third)["regions"][0]["id"] == second
    with pytest.raises(UsageError, match="the only one"):
        run(upstream, "merge", region=second)


def test_an_orphan_lock_holds_the_resolved_ts_and_blocks_readers(upstream, client):
    region = client.region()
    feed = subscribed(client, region)
    start_ts = run(upstream, "orphan-lock", key="a", ttl_seconds=2)["start_ts"]
    upstream.publish_resolved()
    feed.wait(lambda: feed.resolved(region.region.id))
    assert feed.resolved(region.region.id)[-1][3] <= start_ts
    locked = get(client, region, b"a", upstream.tso()).error.locked
    assert (locked.lock_version, locked.lock_ttl) == (start_ts, 2000)
    upstream.rollback([b"a"], start_ts)
    feed.wait_resolved(region.region.id, upstream.publish_resolved())
    assert feed.resolved(region.region.id)[-1][3] > start_ts


def test_a_held_region_is_listed_as_held(upstream):
    [region] = upstream.regions()
    assert run(upstream, "hold-resolved", region=region.id)["regions"][0]["is_held"] is True
    assert run(upstream, "release-resolved", region=region.id)["regions"][0]["is_held"] is False


def test_streams_are_dropped_of_all_stores_or_of_one(upstream, client):
    region = client.region()
    feed = subscribed(client, region)
    other = next(s for s in (1, 2, 3) if s != region.leader.store_id)
    assert run(upstream, "drop-streams", store=other) == {"streams": 0}
    assert run(upstream, "drop-streams") == {"streams": 1}
    feed.wait(lambda: feed.ended)


def test_a_store_and_pd_come_back_after_their_time(upstream, client):
    run(upstream, "kill-store", store=1, seconds=0.01)
    run(upstream, "pd-away", seconds=0.01)
    for _ in range(100_000):
        if run(upstream, "stores")["stores"][0]["is_up"] and not upstream.cluster.is_pd_away:
            break
    assert run(upstream, "stores")["stores"][0]["is_up"]
    assert not upstream.cluster.is_pd_away


def test_every_fault_answers_with_one_known_document():
    with EmbeddedUpstream.start(stores=3, sql_port=0) as upstream:
        check_answers(upstream)


def check_answers(upstream):
    first = upstream.regions()[0].id
    arguments = {
        "split": {"key": "m"},
        "merge": {"region": None},
        "transfer-leader": {"region": first, "store": 2},
        "stop-store": {"store": 1},
        "kill-store": {"store": 2},
        "start-store": {"store": 1},
        "delay-apply": {"seconds": 0},
        "orphan-lock": {"key": "m"},
        "hold-resolved": {"region": first},
        "release-resolved": {"region": first},
        "hold-schema": {"node": 1},
        "release-schema": {"node": 1},
    }
    known = {"regions", "stores", "pd", "streams", "delay_seconds", "start_ts", "sql_nodes"}
    for name in FAULTS:
        given = arguments.get(name, {})
        if name == "merge":
            given = {"region": upstream.regions()[0].id}
        document = run(upstream, name, **given)
        assert set(document) & known, name


# Faults over HTTP


def ask(upstream, method, path, body=b""):
    with closing(HTTPConnection(upstream.pd_address, timeout=DEADLINE_SECONDS)) as connection:
        connection.request(method, f"/tidemill/v1/faults{path}", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_faults_are_listed_and_asked_for_at_pds_port(upstream):
    assert ask(upstream, "GET", "") == (200, {"faults": list(FAULTS)})
    status, document = ask(upstream, "POST", "/split", b'{"key": "m"}')
    assert (status, len(document["regions"])) == (200, 2)
    assert ask(upstream, "GET", "/regions") == (200, document)


def test_they_are_served_while_pd_is_away(upstream):
    upstream.pd_away()
    assert ask(upstream, "GET", "/stores")[0] == 200
    assert ask(upstream, "POST", "/pd-back")[0] == 200
    assert not upstream.cluster.is_pd_away


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/meteor", b"", 404, "no fault named 'meteor'"),
        ("POST", "/split", b"{", 400, "not readable as JSON"),
        ("POST", "/split", b"[]", 400, "must be a JSON object"),
        ("POST", "/merge", b'{"region": 99}', 400, "there is no region 99"),
        ("GET", "/split", b"", 405, "ask for a fault with POST"),
    ],
)
def test_a_refusal_over_http_has_a_code_and_a_message(upstream, method, path, body, status, said):
    answered, document = ask(upstream, method, path, body)
    assert answered == status
    assert document["error"]["code"] == "usage"
    assert said in document["error"]["message"]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("spilt", {}, "Did you mean 'split'"),
        ("meteor", {}, "There are regions, stores, split"),
        ("split", {}, "needs a key, or a region"),
        ("split", {"key": "a", "hex_key": "61"}, "two ways to say one thing"),
        ("split", {"hex_key": "6"}, "not a key in hex"),
        ("split", {"key": ""}, "is not a key"),
        ("split", {"key": "a", "region": 99}, "lies in region 4, not in 99"),
        ("split", {"region": "four"}, "'four' is not the id"),
        ("split", {"region": True}, "is not the id"),
        ("split", {"at": "a"}, "takes no argument 'at'; it takes key, hex_key, region"),
        ("merge", {}, "merge needs region"),
        ("merge", {"region": 4, "into": 4}, "not neighbours"),
        ("transfer-leader", {"region": 4}, "transfer-leader needs store"),
        ("transfer-leader", {"region": 4, "store": 7}, "choose one of"),
        ("kill-store", {"store": 1, "seconds": -1}, "not a number of seconds"),
        ("kill-store", {"store": 1, "seconds": "1s"}, "not a number of seconds"),
        ("start-store", {"store": 1, "new_address": "yes"}, "neither true nor false"),
        ("drop-streams", {"store": 7}, "there is no store 7"),
        ("orphan-lock", {}, "needs a key"),
        ("hold-resolved", {"region": 99}, "there is no region 99"),
        ("pd-back", {"seconds": 1}, "takes no argument 'seconds'; it takes none"),
    ],
)
def test_a_fault_that_does_not_fit_is_refused_and_changes_nothing(upstream, name, arguments, said):
    before = upstream.regions()
    with pytest.raises(UsageError, match=said):
        run(upstream, name, **arguments)
    assert upstream.regions() == before
