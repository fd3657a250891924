"""What else PD and the stores answer over gRPC: keyspaces, settings, health."""

import grpc
import pytest

from tests.tidebox.stub import DEADLINE_SECONDS, client_of
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import keyspacepb_pb2, keyspacepb_pb2_grpc, pdpb_pb2


@pytest.fixture
def keyspaces(upstream, client):
    return keyspacepb_pb2_grpc.KeyspaceStub(client.channel(upstream.pd_address))


# Keyspaces


def test_the_default_keyspace_is_found_by_name_and_by_id(client, keyspaces):
    by_name = keyspaces.LoadKeyspace(keyspacepb_pb2.LoadKeyspaceRequest(header=client.header, name="DEFAULT"))
    by_id = keyspaces.LoadKeyspaceByID(keyspacepb_pb2.LoadKeyspaceByIDRequest(header=client.header, id=0))
    assert by_name == by_id
    assert (by_name.keyspace.id, by_name.keyspace.name) == (0, "DEFAULT")
    assert by_name.keyspace.state == keyspacepb_pb2.ENABLED
    assert not by_name.header.HasField("error")


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("LoadKeyspace", lambda header: keyspacepb_pb2.LoadKeyspaceRequest(header=header, name="other")),
        ("LoadKeyspaceByID", lambda header: keyspacepb_pb2.LoadKeyspaceByIDRequest(header=header, id=7)),
    ],
)
def test_another_keyspace_is_not_found(client, keyspaces, method, request_of):
    answer = getattr(keyspaces, method)(request_of(client.header))
    assert answer.header.error.type == pdpb_pb2.ENTRY_NOT_FOUND
    assert not answer.HasField("keyspace")


def test_all_keyspaces_are_one(client, keyspaces):
    ask = keyspacepb_pb2.GetAllKeyspacesRequest
    assert [k.name for k in keyspaces.GetAllKeyspaces(ask(header=client.header)).keyspaces] == ["DEFAULT"]
    assert not keyspaces.GetAllKeyspaces(ask(header=client.header, start_id=1)).keyspaces


def test_a_watch_of_keyspaces_begins_with_all_and_ends_with_its_client(client, keyspaces):
    watch = keyspaces.WatchKeyspaces(keyspacepb_pb2.WatchKeyspacesRequest(header=client.header))
    assert [k.name for k in next(watch).keyspaces] == ["DEFAULT"]
    watch.cancel()


def test_another_clusters_client_learns_of_no_keyspace(keyspaces):
    stranger = pdpb_pb2.RequestHeader(cluster_id=5)
    with pytest.raises(grpc.RpcError) as refused:
        keyspaces.LoadKeyspace(keyspacepb_pb2.LoadKeyspaceRequest(header=stranger, name="DEFAULT"))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


# Settings


def store(client, *changes, path=""):
    items = [pdpb_pb2.GlobalConfigItem(**change) for change in changes]
    answer = client.pd.StoreGlobalConfig(pdpb_pb2.StoreGlobalConfigRequest(changes=items, config_path=path))
    assert not answer.HasField("error")


def load(client, *names, path=""):
    return list(client.pd.LoadGlobalConfig(pdpb_pb2.LoadGlobalConfigRequest(names=names, config_path=path)).items)


def test_a_setting_that_nobody_made_is_an_item_with_an_error(client):
    [item] = load(client, "source_id")
    assert item.name == "source_id"
    assert item.error.type == pdpb_pb2.GLOBAL_CONFIG_NOT_FOUND
    assert item.value == ""
    assert item.payload == b""


def test_settings_are_stored_changed_and_deleted(client):
    store(client, {"name": "source_id", "value": "7"}, {"name": "other", "payload": b"\xff\x00"})
    assert [item.payload for item in load(client, "source_id", "other")] == [b"7", b"\xff\x00"]
    store(client, {"name": "other", "kind": pdpb_pb2.DELETE}, {"name": "source_id", "value": "8"})
    first, second = load(client, "source_id", "other")
    assert first.payload == b"8"
    assert second.error.type == pdpb_pb2.GLOBAL_CONFIG_NOT_FOUND


def test_without_names_all_below_the_path_are_loaded(client):
    store(client, {"name": "a", "value": "1"}, {"name": "b", "value": "2"}, path="/team/x")
    store(client, {"name": "c", "value": "3"}, path="/team/y/")
    assert [(i.name, i.payload) for i in load(client, path="/team/x")] == [("/team/x/a", b"1"), ("/team/x/b", b"2")]
    assert [i.name for i in load(client, path="/team")] == ["/team/x/a", "/team/x/b", "/team/y/c"]
    assert load(client) == []


def test_settings_survive_a_restart(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as first, client_of(first) as client:
        store(client, {"name": "source_id", "value": "7"})
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as second, client_of(second) as client:
        assert [item.payload for item in load(client, "source_id")] == [b"7"]


def test_the_external_timestamp_moves_forward_up_to_the_present(upstream, client):
    def move(ts):
        request = pdpb_pb2.SetExternalTimestampRequest(header=client.header, timestamp=ts)
        return client.pd.SetExternalTimestamp(request).header.error

    def current():
        return client.pd.GetExternalTimestamp(pdpb_pb2.GetExternalTimestampRequest(header=client.header)).timestamp

    now = upstream.tso()
    assert current() == 0
    assert move(now).type == pdpb_pb2.OK
    assert "larger than current" in move(now).message
    assert move(now - 1).type == pdpb_pb2.INVALID_VALUE
    assert "larger than global ts" in move(now + (1 << 40)).message
    assert current() == now


# Health


def test_pd_and_stores_are_healthy(upstream, client):
    for address in (upstream.pd_address, *upstream.store_addresses):
        check = client.channel(address).unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=DEADLINE_SECONDS) == b"\x08\x01"  # SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            check(b"\x0a\x01x", timeout=DEADLINE_SECONDS)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_what_pd_does_not_serve_is_unimplemented(upstream, client):
    channel = client.channel(upstream.pd_address)
    for method in ("/pdpb.PD/SyncRegions", "/resource_manager.ResourceManager/AcquireTokenBuckets", "/tsopb.TSO/Tso"):
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(method)(b"", timeout=DEADLINE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
