"""PD over HTTP: the paths that clients ask, as JSON."""

import http.client
from urllib.parse import quote_from_bytes

import orjson
import pytest

from tests.tidebox.stub import DEADLINE_SECONDS, put
from tidemill._pb import pdpb_pb2
from tidemill.tidb.keys import encode_bytes

API = "/pd/api/v1"


@pytest.fixture
def ask(upstream):
    connection = http.client.HTTPConnection(upstream.pd_address, timeout=DEADLINE_SECONDS)

    def send(path, method="GET", body=None):
        connection.request(method, path, body=body)
        response = connection.getresponse()
        assert response.getheader("Content-Type") == "application/json"
        return response.status, orjson.loads(response.read())

    yield send
    connection.close()


def ok(answer):
    status, document = answer
    assert status == 200
    return document


def test_the_version_is_one_that_clients_accept(ask):
    version = ok(ask(f"{API}/version"))["version"]
    assert version.startswith("v")
    assert (7, 1, 0) <= tuple(map(int, version[1:].split("."))) < (10, 0, 0)


@pytest.mark.parametrize("path", [f"{API}/health", f"{API}/health/"])
def test_the_one_member_is_healthy(upstream, ask, path):
    [member] = ok(ask(path))
    assert member["health"]
    assert member["client_urls"] == [f"http://{upstream.pd_address}"]


def test_members_are_those_of_the_grpc_call(upstream, client, ask):
    over_grpc = client.pd.GetMembers(pdpb_pb2.GetMembersRequest())
    document = ok(ask(f"{API}/members"))
    assert document["header"]["cluster_id"] == over_grpc.header.cluster_id
    assert [m["name"] for m in document["members"]] == [m.name for m in over_grpc.members]
    assert document["leader"]["member_id"] == over_grpc.leader.member_id
    assert document["leader"]["client_urls"] == list(over_grpc.leader.client_urls)


def test_stores_are_listed_with_their_state(upstream, ask):
    upstream.stop_store(3)
    document = ok(ask(f"{API}/stores"))
    assert document["count"] == 3
    shown = [(s["store"]["id"], s["store"]["address"], s["store"]["state_name"]) for s in document["stores"]]
    states = ["Up", "Up", "Disconnected"]
    assert shown == list(zip((1, 2, 3), upstream.store_addresses, states, strict=True))


def test_safepoints_are_listed_with_the_lowest_of_them(upstream, client, ask):
    upstream.set_gc_safepoint(50)
    request = pdpb_pb2.UpdateServiceGCSafePointRequest(header=client.header, service_id=b"cdc", safe_point=70, TTL=600)
    client.pd.UpdateServiceGCSafePoint(request)
    document = ok(ask(f"{API}/gc/safepoint"))
    assert document["gc_safe_point"] == 50
    assert document["min_service_gc_safe_point"] == 50
    services = {s["service_id"]: s["safe_point"] for s in document["service_gc_safe_points"]}
    assert services == {"cdc": 70, "gc_worker": 50}
    assert all(s["expired_at"] > 0 for s in document["service_gc_safe_points"])


def test_everything_is_resolved_up_to_the_present_or_to_the_oldest_lock(upstream, ask):
    before = upstream.tso()
    assert ok(ask(f"{API}/min-resolved-ts"))["min_resolved_ts"] > before
    start = upstream.prewrite([put(b"a")])
    document = ok(ask(f"{API}/min-resolved-ts?scope=1,3,9"))
    assert document["is_real_time"]
    assert document["min_resolved_ts"] <= start
    assert document["stores_min_resolved_ts"] == dict.fromkeys(("1", "3"), document["min_resolved_ts"])
    assert set(ok(ask(f"{API}/min-resolved-ts?scope=cluster"))["stores_min_resolved_ts"]) == {"1", "2", "3"}
    upstream.commit_prewritten([b"a"], start)
    assert ok(ask(f"{API}/min-resolved-ts"))["min_resolved_ts"] > start


def test_regions_are_found_by_their_raw_keys_and_shown_in_hex(upstream, ask):
    for key in (b"b", b"d", b"f"):
        upstream.split(key)
    regions = upstream.regions()
    start, end = quote_from_bytes(encode_bytes(b"c")), quote_from_bytes(encode_bytes(b"f"))
    document = ok(ask(f"{API}/regions/key?key={start}&end_key={end}&limit=1024"))
    assert [r["id"] for r in document["regions"]] == [r.id for r in regions[1:3]]
    assert document["count"] == 2
    assert document["regions"][0]["start_key"] == encode_bytes(b"b").hex().upper()
    assert [r["id"] for r in ok(ask(f"{API}/regions/key?limit=1"))["regions"]] == [regions[0].id]
    in_hex = encode_bytes(b"e").hex()
    assert ok(ask(f"{API}/regions/key?format=hex&key={in_hex}"))["count"] == 2


@pytest.mark.parametrize("query", ["limit=many", "format=hex&key=xyz"])
def test_bounds_that_cannot_be_read_are_refused(ask, query):
    status, document = ask(f"{API}/regions/key?{query}")
    assert status == 400
    assert "cannot be read" in document["error"]


def test_label_rules_are_kept_and_deleted(ask):
    rules = f"{API}/config/region-label/rules"
    patch = {"sets": [{"id": "ticdc/meta", "labels": []}, {"id": "other"}]}
    ok(ask(rules, "PATCH", orjson.dumps(patch)))
    ok(ask(rules, "PATCH", orjson.dumps({"deletes": [{"id": "other"}]})))
    assert ok(ask(rules)) == [{"id": "ticdc/meta", "labels": []}]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"sets": [{}]}', b'{"sets": 1}', b'{"sets": [{"id": []}]}'])
def test_a_patch_that_is_none_is_refused(ask, body):
    status, document = ask(f"{API}/config/region-label/rules", "PATCH", body)
    assert status == 400
    assert "no patch of label rules" in document["error"]


def test_what_is_not_there_is_a_404_and_a_wrong_method_a_405(ask):
    for path in ("/", "/pd", "/pd/api/v1", "/pd/api/v2/version", "/x/y"):
        status, document = ask(path)
        assert status == 404
        assert "there is nothing at" in document["error"]
    status, document = ask(f"{API}/version", "DELETE")
    assert status == 405
    assert document["error"] == f"{API}/version takes GET"
