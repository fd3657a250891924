"""The messages that matter, held against the numbers of the real protocol."""

import pytest
from google.protobuf import descriptor_pool

from tidemill._pb import (  # noqa: F401  (importing registers the descriptors)
    cdcpb_pb2,
    cdcpb_pb2_grpc,
    errorpb_pb2,
    keyspacepb_pb2,
    kvrpcpb_pb2,
    metapb_pb2,
    pdpb_pb2,
    pdpb_pb2_grpc,
    tikvpb_pb2,
    tikvpb_pb2_grpc,
)

POOL = descriptor_pool.Default()

FIELDS = {
    "metapb.Region": {"id": 1, "start_key": 2, "end_key": 3, "region_epoch": 4, "peers": 5},
    "metapb.RegionEpoch": {"conf_ver": 1, "version": 2},
    "metapb.Peer": {"id": 1, "store_id": 2, "role": 3},
    "metapb.Store": {"id": 1, "address": 2, "state": 3, "labels": 4, "version": 5, "status_address": 7},
    "pdpb.RequestHeader": {"cluster_id": 1, "sender_id": 2},
    "pdpb.ResponseHeader": {"cluster_id": 1, "error": 2},
    "pdpb.Member": {"name": 1, "member_id": 2, "peer_urls": 3, "client_urls": 4},
    "pdpb.GetMembersResponse": {"members": 2, "leader": 3, "etcd_leader": 4},
    "pdpb.GetClusterInfoResponse": {"serviceModes": 2, "tso_urls": 3},
    "pdpb.TsoRequest": {"count": 2, "dc_location": 3},
    "pdpb.TsoResponse": {"count": 2, "timestamp": 3},
    "pdpb.Timestamp": {"physical": 1, "logical": 2, "suffix_bits": 3},
    "pdpb.GetRegionResponse": {"region": 2, "leader": 3, "down_peers": 5, "pending_peers": 6, "buckets": 7},
    "pdpb.ScanRegionsRequest": {"start_key": 2, "limit": 3, "end_key": 4},
    "pdpb.ScanRegionsResponse": {"region_metas": 2, "leaders": 3, "regions": 4},
    "pdpb.BatchScanRegionsRequest": {"need_buckets": 2, "ranges": 3, "limit": 4, "contain_all_key_range": 5},
    "pdpb.UpdateServiceGCSafePointRequest": {"service_id": 2, "TTL": 3, "safe_point": 4},
    "pdpb.UpdateServiceGCSafePointResponse": {"service_id": 2, "TTL": 3, "min_safe_point": 4},
    # Here the ts comes before the time to live, unlike in the message above.
    "pdpb.UpdateServiceSafePointV2Request": {"keyspace_id": 2, "service_id": 3, "safe_point": 4, "ttl": 5},
    "errorpb.Error": {
        "message": 1,
        "not_leader": 2,
        "region_not_found": 3,
        "key_not_in_region": 4,
        "epoch_not_match": 5,
        "server_is_busy": 6,
        "stale_command": 7,
        "store_not_match": 8,
        "mismatch_peer_id": 20,
    },
    "kvrpcpb.Context": {
        "region_id": 1,
        "region_epoch": 2,
        "peer": 3,
        "term": 5,
        "isolation_level": 7,
        "replica_read": 12,
        "resolved_locks": 13,
        "stale_read": 17,
        "committed_locks": 22,
        "txn_source": 25,
        "cluster_id": 35,
    },
    "kvrpcpb.GetRequest": {"context": 1, "key": 2, "version": 3},
    "kvrpcpb.GetResponse": {"region_error": 1, "error": 2, "value": 3, "not_found": 4, "commit_ts": 7},
    "kvrpcpb.ScanRequest": {"start_key": 2, "limit": 3, "version": 4, "key_only": 5, "reverse": 6, "end_key": 7},
    "kvrpcpb.BatchGetResponse": {"region_error": 1, "pairs": 2, "error": 5},
    "kvrpcpb.KvPair": {"error": 1, "key": 2, "value": 3, "commit_ts": 4},
    "kvrpcpb.LockInfo": {"primary_lock": 1, "lock_version": 2, "key": 3, "lock_ttl": 4, "lock_type": 6},
    "kvrpcpb.SplitRegionRequest": {"split_key": 2, "split_keys": 3, "is_raw_kv": 4},
    "kvrpcpb.SplitRegionResponse": {"left": 2, "right": 3, "regions": 4},
    "cdcpb.ChangeDataRequest": {
        "header": 1,
        "region_id": 2,
        "region_epoch": 3,
        "checkpoint_ts": 4,
        "start_key": 5,
        "end_key": 6,
        "request_id": 7,
        "extra_op": 8,
        "register": 9,
        "kv_api": 11,
        "filter_loop": 12,
        "deregister": 13,
    },
    "cdcpb.ChangeDataEvent": {"events": 1, "resolved_ts": 2},
    "cdcpb.ResolvedTs": {"regions": 1, "ts": 2, "request_id": 3},
    "cdcpb.Event": {"region_id": 1, "index": 2, "entries": 3, "error": 5, "resolved_ts": 6, "request_id": 7},
    "cdcpb.Event.Entries": {"entries": 1},
    "cdcpb.Event.Row": {
        "start_ts": 1,
        "commit_ts": 2,
        "type": 3,
        "op_type": 4,
        "key": 5,
        "value": 6,
        "old_value": 7,
        "expire_ts_unix_secs": 8,
        "txn_source": 9,
        "generation": 10,
    },
    "cdcpb.Error": {
        "not_leader": 1,
        "region_not_found": 2,
        "epoch_not_match": 3,
        "duplicate_request": 4,
        "compatibility": 5,
        "cluster_id_mismatch": 6,
        "server_is_busy": 7,
        "congested": 8,
    },
    "keyspacepb.KeyspaceMeta": {"id": 1, "name": 2, "state": 3, "created_at": 4, "state_changed_at": 5, "config": 7},
    "tikvpb.BatchCommandsRequest": {"requests": 1, "request_ids": 2},
    "tikvpb.BatchCommandsResponse": {"responses": 1, "request_ids": 2},
}

ENUMS = {
    "cdcpb.Event.LogType": ["UNKNOWN", "PREWRITE", "COMMIT", "ROLLBACK", "COMMITTED", "INITIALIZED"],
    "cdcpb.Event.Row.OpType": ["UNKNOWN", "PUT", "DELETE"],
    "cdcpb.ChangeDataRequest.KvAPI": ["TiDB", "RawKV", "TxnKV"],
    "kvrpcpb.ExtraOp": ["Noop", "ReadOldValue"],
    "kvrpcpb.IsolationLevel": ["SI", "RC", "RCCheckTS"],
    "pdpb.ServiceMode": ["UNKNOWN_SVC_MODE", "PD_SVC_MODE", "API_SVC_MODE"],
}


@pytest.mark.parametrize(("message", "fields"), FIELDS.items(), ids=FIELDS)
def test_fields_have_the_numbers_of_the_real_protocol(message, fields):
    declared = {f.name: f.number for f in POOL.FindMessageTypeByName(message).fields}
    assert fields.items() <= declared.items()


@pytest.mark.parametrize(("enum", "names"), ENUMS.items(), ids=ENUMS)
def test_enum_values_are_numbered_from_zero_in_order(enum, names):
    declared = POOL.FindEnumTypeByName(enum).values_by_name
    assert {n: declared[n].number for n in names} == {n: i for i, n in enumerate(names)}


def test_a_batched_command_has_one_number_in_request_and_response():
    def cases(kind):
        return {f.name: f.number for f in POOL.FindMessageTypeByName(f"tikvpb.BatchCommands{kind}.{kind}").fields}

    assert cases("Request") == cases("Response")
    assert cases("Request")["CheckSecondaryLocks"] == 33
    assert cases("Request")["Empty"] == 255


@pytest.mark.parametrize(
    ("service", "method", "request_streams", "response_streams"),
    [
        ("pdpb.PD", "GetMembers", False, False),
        ("pdpb.PD", "Tso", True, True),
        ("pdpb.PD", "ScanRegions", False, False),
        ("cdcpb.ChangeData", "EventFeed", True, True),
        ("cdcpb.ChangeData", "EventFeedV2", True, True),
        ("tikvpb.Tikv", "KvGet", False, False),
        ("tikvpb.Tikv", "KVPessimisticRollback", False, False),
        ("tikvpb.Tikv", "BatchCommands", True, True),
        ("keyspacepb.Keyspace", "WatchKeyspaces", False, True),
    ],
)
def test_methods_are_where_clients_call_them(service, method, request_streams, response_streams):
    found = POOL.FindServiceByName(service).FindMethodByName(method)
    assert (found.client_streaming, found.server_streaming) == (request_streams, response_streams)


def test_the_header_of_get_cluster_info_request_has_the_response_header_type():
    field = pdpb_pb2.GetClusterInfoRequest.DESCRIPTOR.fields_by_name["header"]
    assert field.message_type.full_name == "pdpb.ResponseHeader"


def test_golden_bytes_of_a_row():
    row = cdcpb_pb2.Event.Row(start_ts=300, commit_ts=301, type=4, op_type=1, key=b"k", value=b"v", old_value=b"o")
    assert row.SerializeToString().hex(" ") == "08 ac 02 10 ad 02 18 04 20 01 2a 01 6b 32 01 76 3a 01 6f"
