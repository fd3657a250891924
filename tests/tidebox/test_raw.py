"""RawKV over real gRPC: every call against a model, the rules of the two API versions, and the layouts on disk."""

import threading

import grpc
import pytest

from tests.tidebox.rawclient import KEYSPACE, RawClient
from tests.tidebox.stub import client_of, put
from tidebox.engine import Family
from tidebox.raw import DELETED, RawValue
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2, metapb_pb2
from tidemill.errors import CorruptDataError
from tidemill.model.ts import MAX_TS
from tidemill.tidb.keys import mvcc_key


class TurnedClock:
    """Unix time as a test sets it."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


@pytest.fixture
def clock():
    return TurnedClock()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def api_version(request):
    return request.param


@pytest.fixture
def upstream(api_version, clock):
    with EmbeddedUpstream.start(
        stores=3, api_version=api_version, resolved_interval_seconds=3600, clock=clock
    ) as started:
        yield started


@pytest.fixture
def raw(upstream, api_version):
    with client_of(upstream) as client:
        yield RawClient(client, api_version)


only_v1 = pytest.mark.parametrize("api_version", [1], ids=["v1"], indirect=True)
only_v2 = pytest.mark.parametrize("api_version", [2], ids=["v2"], indirect=True)


# Layouts


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        pytest.param(RawValue(b"v"), "76 00", id="without ttl"),
        pytest.param(RawValue(b"v", 1_700_000_000), "76 00 00 00 00 65 53 f1 00 01", id="with an expiry"),
        pytest.param(RawValue(b""), "00", id="empty"),
        pytest.param(DELETED, "02", id="deleted"),
    ],
)
def test_values_of_v2_are_tikvs_byte_for_byte(value, stored):
    assert value.encode().hex(" ") == stored
    assert RawValue.decode(bytes.fromhex(stored)) == value


@pytest.mark.parametrize("data", ["", "04", "76 80", "01", "00 00 00 00 00 00 00 01"])
def test_values_that_are_not_of_v2_are_refused(data):
    with pytest.raises(CorruptDataError):
        RawValue.decode(bytes.fromhex(data))


@only_v2
def test_a_version_of_v2_is_stored_under_its_memcomparable_key_and_inverted_ts(upstream, raw):
    raw.put(b"k", b"v")
    [(stored, value)] = list(upstream.cluster.engine.items(Family.RAW))
    assert stored[:-8].hex(" ") == "72 00 00 00 6b 00 00 00 fc"
    assert int.from_bytes(stored[-8:], "big") ^ MAX_TS == upstream.cluster.raw.clocks.max_ts(raw.region(b"k").region.id)
    assert value.hex(" ") == "76 00"


@only_v1
def test_v1_keeps_keys_and_values_as_they_are(upstream, raw):
    raw.put(b"k", b"v")
    assert list(upstream.cluster.engine.items(Family.RAW_DEFAULT)) == [(b"k", b"v")]


# Single keys


def test_what_was_put_can_be_read_and_deleted(raw):
    assert raw.get(b"k") is None
    assert raw.put(b"k", b"v") == kvrpcpb_pb2.RawPutResponse()
    assert raw.get(b"k") == b"v"
    raw.put(b"k", b"")
    assert raw.get(b"k") == b""
    assert raw.delete(b"k") == kvrpcpb_pb2.RawDeleteResponse()
    assert raw.get(b"k") is None
    assert raw.delete(b"k") == kvrpcpb_pb2.RawDeleteResponse()  # also what is not there


def test_a_batch_get_leaves_out_what_is_not_there(raw):
    raw.put(b"a", b"1")
    raw.put(b"c", b"3")
    answer = raw.call("RawBatchGet", raw.region(b""), keys=[raw.key(k) for k in (b"c", b"b", b"a")])
    assert [(p.key, p.value) for p in answer.pairs] == [(raw.key(b"c"), b"3"), (raw.key(b"a"), b"1")]


def test_of_a_key_that_comes_twice_in_a_batch_the_last_counts(raw):
    pairs = [kvrpcpb_pb2.KvPair(key=raw.key(b"k"), value=v) for v in (b"1", b"2")]
    raw.call("RawBatchPut", raw.region(b""), pairs=pairs)
    assert raw.get(b"k") == b"2"


def test_a_batch_delete_removes_what_it_names(raw):
    for key in (b"a", b"b", b"c"):
        raw.put(key, b"v")
    raw.call("RawBatchDelete", raw.region(b""), keys=[raw.key(b"a"), raw.key(b"c"), raw.key(b"d")])
    assert raw.scan() == [(b"b", b"v")]


@pytest.mark.parametrize(
    ("stored", "request_fields", "swapped", "after"),
    [
        pytest.param(None, {"previous_not_exist": True}, True, b"new", id="from nothing"),
        pytest.param(b"old", {"previous_not_exist": True}, False, b"old", id="nothing was asked for"),
        pytest.param(b"old", {"previous_value": b"old"}, True, b"new", id="from the value"),
        pytest.param(b"old", {"previous_value": b"other"}, False, b"old", id="another value was asked for"),
        pytest.param(None, {"previous_value": b""}, False, None, id="an empty value is not nothing"),
        pytest.param(b"", {"previous_value": b""}, True, b"new", id="from an empty value"),
        pytest.param(b"old", {"previous_value": b"old", "delete": True}, True, None, id="to nothing"),
    ],
)
def test_compare_and_swap(raw, stored, request_fields, swapped, after):
    if stored is not None:
        raw.put(b"k", stored)
    answer = raw.call("RawCompareAndSwap", raw.region(b"k"), key=raw.key(b"k"), value=b"new", **request_fields)
    assert answer.succeed == swapped
    assert answer.previous_not_exist == (stored is None)
    assert answer.previous_value == (stored or b"")
    assert raw.get(b"k") == after


def test_of_many_who_compare_and_swap_at_once_each_gets_its_turn(upstream, raw):
    raw.put(b"k", b"0")
    region = raw.region(b"k")

    def count_up() -> None:
        for _ in range(20):
            while True:
                now = raw.get(b"k") or b""
                following = b"%d" % (int(now) + 1)
                answer = raw.call("RawCompareAndSwap", region, key=raw.key(b"k"), previous_value=now, value=following)
                if answer.succeed:
                    break

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raw.get(b"k") == b"80"


# Ranges


@pytest.mark.parametrize("backwards", [False, True])
def test_scans_stay_inside_their_range_region_and_limit(upstream, raw, backwards):
    for at in range(20):
        raw.put(b"k%02d" % at, b"%d" % at)
    upstream.split(raw.key(b"k10"))
    left, right = raw.region(b"k0"), raw.region(b"k19")

    def keys(*bounds, **options):
        found = raw.scan(*bounds, reverse=backwards, **options)
        return [int(key[1:]) for key, _ in (reversed(found) if backwards else found)]

    # Regions are cut between physical keys, and API V1 compares verbatim: its k10 is left of the cut.
    border = 10 if raw.is_v2 else 11
    assert keys(region=left) == list(range(border))
    assert keys(region=right) == list(range(border, 20))
    assert keys(b"k03", b"k06", region=left) == [3, 4, 5]
    assert keys(b"k03", b"k99", region=left, limit=2) == ([border - 2, border - 1] if backwards else [3, 4])
    assert keys(b"k06", b"k03", region=left) == []
    assert keys(region=left, limit=0) == []
    assert raw.scan(b"k03", b"k05", region=left, key_only=True) == [(b"k03", b""), (b"k04", b"")]


def test_a_batch_scan_reads_range_by_range(raw):
    for at in range(9):
        raw.put(b"k%d" % at, b"v")
    ranges = [
        kvrpcpb_pb2.KeyRange(start_key=raw.key(a), end_key=raw.key(b)) for a, b in ((b"k5", b"k8"), (b"k1", b"k3"))
    ]
    answer = raw.call("RawBatchScan", raw.region(b""), ranges=ranges, each_limit=2)
    assert [p.key[-2:] for p in answer.kvs] == [b"k5", b"k6", b"k1", b"k2"]


def test_a_deleted_range_is_gone_with_all_versions(upstream, raw):
    for at in range(9):
        for _ in range(2):
            raw.put(b"k%d" % at, b"v")
    fields = {"start_key": raw.key(b"k3"), "end_key": raw.key(b"k6")}
    assert raw.call("RawDeleteRange", raw.region(b"k3"), **fields) == kvrpcpb_pb2.RawDeleteRangeResponse()
    assert [key for key, _ in raw.scan()] == [b"k0", b"k1", b"k2", b"k6", b"k7", b"k8"]
    family = Family.RAW if raw.is_v2 else Family.RAW_DEFAULT
    assert len(list(upstream.cluster.engine.items(family))) == (12 if raw.is_v2 else 6)


@only_v1
def test_a_range_without_an_end_is_deleted_to_the_regions_end(upstream, raw):
    for key in (b"a", b"b", b"c", b"z"):
        raw.put(key, b"v")
    upstream.split(b"m")
    raw.call("RawDeleteRange", raw.region(b"b"), start_key=b"b")
    assert [raw.get(key) for key in (b"a", b"b", b"c", b"z")] == [b"v", None, None, b"v"]
    raw.call("RawDeleteRange", raw.region(b"z"), start_key=raw.region(b"z").region.start_key)
    assert raw.get(b"z") is None


def test_a_range_that_leaves_its_region_is_refused(upstream, raw):
    upstream.split(raw.key(b"m"))
    answer = raw.call("RawDeleteRange", raw.region(b"a"), start_key=raw.key(b"a"), end_key=raw.key(b"z"))
    assert answer.region_error.HasField("key_not_in_region")


@pytest.mark.parametrize(
    ("pairs", "checksum"),
    [
        pytest.param({}, 0, id="nothing"),
        pytest.param({b"12345": b"6789"}, 0x995DC9BBDF1939FA, id="the check value of CRC-64/XZ"),
        pytest.param({b"123456789": b""}, 0x995DC9BBDF1939FA, id="a long key"),
        pytest.param({b"1": b"23456789", b"12345678": b"9"}, 0, id="equal ones cancel out"),
    ],
)
@only_v1
def test_checksums_are_crc64_of_key_and_value_combined_by_xor(raw, pairs, checksum):
    for key, value in pairs.items():
        raw.put(key, value)
    answer = raw.call("RawChecksum", raw.region(b""), ranges=[kvrpcpb_pb2.KeyRange()])
    assert answer.checksum == checksum
    assert (answer.total_kvs, answer.total_bytes) == (len(pairs), 9 * len(pairs))


@only_v2
def test_checksums_of_v2_count_what_is_there_without_ts_and_flags(upstream, raw, clock):
    raw.put(b"gone", b"1", ttl=5)
    raw.put(b"deleted", b"2")
    raw.delete(b"deleted")
    raw.put(b"123", b"old")
    raw.put(b"123", b"456789", ttl=100)
    clock.seconds += 10
    whole = [kvrpcpb_pb2.KeyRange(start_key=b"r", end_key=b"s")]
    answer = raw.call("RawChecksum", raw.region(b""), ranges=whole)
    assert (answer.total_kvs, answer.total_bytes) == (1, 13)
    with EmbeddedUpstream.start() as other, client_of(other) as client:
        plain = RawClient(client, 1)
        plain.put(KEYSPACE + b"123", b"456789")
        assert plain.call("RawChecksum", plain.region(b""), ranges=[kvrpcpb_pb2.KeyRange()]) == answer


# Time to live


@only_v2
def test_an_expired_value_is_not_there_any_more(raw, clock):
    raw.put(b"k", b"v", ttl=10)
    raw.put(b"forever", b"v")

    def ttl(key: bytes):
        answer = raw.call("RawGetKeyTTL", raw.region(key), key=raw.key(key))
        return None if answer.not_found else answer.ttl

    assert (ttl(b"k"), ttl(b"forever"), ttl(b"absent")) == (10, 0, None)
    clock.seconds += 9
    assert (raw.get(b"k"), ttl(b"k")) == (b"v", 1)
    clock.seconds += 1
    assert (raw.get(b"k"), ttl(b"k")) == (None, None)
    assert [key for key, _ in raw.scan()] == [b"forever"]
    assert [key for key, _ in raw.scan(reverse=True)] == [b"forever"]
    answer = raw.call("RawCompareAndSwap", raw.region(b"k"), key=raw.key(b"k"), previous_not_exist=True, value=b"2")
    assert answer.succeed


@only_v2
@pytest.mark.parametrize(
    ("ttls", "left"),
    [
        pytest.param({}, [0, 0, 0], id="none"),
        pytest.param({"ttls": [7]}, [7, 7, 7], id="one for all"),
        pytest.param({"ttls": [1, 0, 3]}, [1, 0, 3], id="one each"),
        pytest.param({"ttl": 7}, [7, 7, 7], id="the old form"),
        pytest.param({"ttl": MAX_TS}, [MAX_TS - 1_700_000_000] * 3, id="an end of time"),
    ],
)
def test_a_batch_has_no_ttl_one_or_one_each(raw, ttls, left):
    pairs = [kvrpcpb_pb2.KvPair(key=raw.key(k), value=b"v") for k in (b"a", b"b", b"c")]
    raw.call("RawBatchPut", raw.region(b""), pairs=pairs, **ttls)
    found = [raw.call("RawGetKeyTTL", raw.region(k), key=raw.key(k)).ttl for k in (b"a", b"b", b"c")]
    assert found == left


@only_v2
def test_another_number_of_ttls_is_refused(raw):
    pairs = [kvrpcpb_pb2.KvPair(key=raw.key(k), value=b"v") for k in (b"a", b"b", b"c")]
    answer = raw.call("RawBatchPut", raw.region(b""), pairs=pairs, ttls=[1, 2])
    assert answer.error == "The length of ttls does not equal to the length of pairs"
    assert raw.scan() == []


# Which requests a server of which version takes


API = {1: kvrpcpb_pb2.V1, 2: kvrpcpb_pb2.V2}


@pytest.mark.parametrize(
    ("api_version", "fields", "text"),
    [
        pytest.param(1, {"version": 2, "key": KEYSPACE}, "cmd: raw_put, storage: V1, request: V2", id="v2 to v1"),
        pytest.param(1, {"version": 1}, "cmd: raw_put, storage: V1, request: V1ttl", id="v1ttl to v1"),
        pytest.param(2, {"version": 0}, "cmd: raw_put, storage: V2, request: V1", id="v1 to v2"),
        pytest.param(2, {"version": 1}, "cmd: raw_put, storage: V2, request: V1ttl", id="v1ttl to v2"),
        pytest.param(2, {"version": 3}, "cmd: raw_put, storage: V2, request: V3", id="v3 to v2"),
        pytest.param(1, {"cf": "raft"}, "invalid cf name: raft", id="an unknown family"),
        pytest.param(1, {"ttl": 1}, "ttl is not enabled, but get put request with ttl", id="ttl on v1"),
        pytest.param(2, {"cf": "default"}, "cf is deprecated in API V2, cf name: default", id="a family on v2"),
        pytest.param(2, {"key": b"x\0\0\0k"}, "storage: V2, key: 780000006B", id="a transaction's key"),
        pytest.param(2, {"key": b"t\x80"}, "storage: V2, key: 7480", id="a table's key"),
        pytest.param(2, {"key": b""}, "Key mode mismatched with the request mode", id="no key at all"),
        pytest.param(1, {"key": b"k" * 8193}, "max key size exceeded, size: 8193, limit: 8192", id="a long key"),
        pytest.param(2, {"key": b"r" * 8193}, "max key size exceeded, size: 8193, limit: 8192", id="a long key on v2"),
    ],
    indirect=["api_version"],
)
def test_a_put_that_does_not_fit_the_server_is_refused_in_its_own_words(raw, fields, text):
    region = raw.region(b"")
    version = fields.get("version", API[2 if raw.is_v2 else 1])
    request = kvrpcpb_pb2.RawPutRequest(
        context=raw.context(region, api_version=version),
        key=fields.get("key", raw.key(b"k")),
        value=b"v",
        cf=fields.get("cf", ""),
        ttl=fields.get("ttl", 0),
    )
    answer = raw.client.kv[region.leader.store_id].RawPut(request)
    assert text in answer.error
    assert raw.scan() == []


@only_v2
@pytest.mark.parametrize(
    ("method", "fields", "where"),
    [
        ("RawGet", {"key": b"k"}, "error"),
        ("RawBatchGet", {"keys": [KEYSPACE + b"k", b"k"]}, "pairs"),
        ("RawDelete", {"key": b"k"}, "error"),
        ("RawBatchDelete", {"keys": [b"k"]}, "error"),
        ("RawBatchPut", {"pairs": [kvrpcpb_pb2.KvPair(key=b"k")]}, "error"),
        ("RawScan", {"start_key": b"r", "end_key": b"t", "limit": 1}, "kvs"),
        ("RawScan", {"start_key": b"r", "end_key": b"", "limit": 1}, "kvs"),
        ("RawScan", {"start_key": b"", "end_key": b"s", "limit": 1}, "kvs"),
        ("RawBatchScan", {"ranges": [kvrpcpb_pb2.KeyRange(start_key=b"a", end_key=b"b")], "each_limit": 1}, "kvs"),
        ("RawDeleteRange", {"start_key": b"a", "end_key": b"b"}, "error"),
        ("RawGetKeyTTL", {"key": b"k"}, "error"),
        ("RawCompareAndSwap", {"key": b"k"}, "error"),
        ("RawChecksum", {"ranges": [kvrpcpb_pb2.KeyRange(start_key=b"a", end_key=b"b")]}, "error"),
    ],
)
def test_every_call_minds_the_mode_of_its_keys(raw, method, fields, where):
    answer = raw.call(method, raw.region(b""), **fields)
    told = answer.error if where == "error" else getattr(answer, where)[0].error.abort
    assert told.startswith("Key mode mismatched with the request mode, cmd: raw_")


@only_v1
@pytest.mark.parametrize(
    ("method", "fields", "text"),
    [
        ("RawGetKeyTTL", {"key": b"k"}, "ttl is not enabled"),
        ("RawCompareAndSwap", {"key": b"k", "ttl": 3}, "ttl is not enabled"),
        ("RawBatchPut", {"pairs": [kvrpcpb_pb2.KvPair(key=b"k")], "ttls": [3]}, "ttl is not enabled"),
        ("RawChecksum", {"algorithm": 7}, "unknown checksum algorithm 7"),
    ],
)
def test_what_v1_does_not_have_is_said(raw, method, fields, text):
    assert text in raw.call(method, raw.region(b""), **fields).error


@only_v1
def test_families_of_v1_are_apart_from_each_other_and_from_transactions(upstream, raw):
    upstream.commit([put(b"k", b"transactional")])
    for cf in ("default", "lock", "write"):
        assert raw.get(b"k", cf=cf) is None
        raw.put(b"k", cf.encode(), cf=cf)
    assert [raw.get(b"k", cf=cf) for cf in ("", "default", "lock", "write")] == [
        b"default",
        b"default",
        b"lock",
        b"write",
    ]
    raw.delete(b"k", cf="lock")
    assert [raw.get(b"k", cf=cf) for cf in ("default", "lock", "write")] == [b"default", None, b"write"]
    assert upstream.get(b"k") == b"transactional"


def test_a_write_too_large_for_the_log_is_refused_and_the_server_goes_on(raw):
    answer = raw.put(b"k", bytes((8 << 20) + 1))
    assert answer.region_error.raft_entry_too_large.region_id == raw.region(b"k").region.id
    assert answer.region_error.raft_entry_too_large.entry_size > 8 << 20
    assert raw.put(b"k", bytes(5 << 20)) == kvrpcpb_pb2.RawPutResponse()
    assert raw.get(b"k") == bytes(5 << 20)


# Regions


def variant(error):
    return [field.name for field, _ in error.ListFields() if field.name != "message"]


@pytest.mark.parametrize("method", ["RawGet", "RawPut", "RawDelete"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"region_id": 999}, "region_not_found"),
        pytest.param({"region_epoch": metapb_pb2.RegionEpoch(conf_ver=1, version=9)}, "epoch_not_match"),
        pytest.param({"peer": metapb_pb2.Peer(id=1, store_id=9)}, "store_not_match"),
    ],
)
def test_a_request_to_the_wrong_place_gets_a_region_error(raw, method, change, error):
    region = raw.region(b"k")
    context = raw.context(region)
    for name, value in change.items():
        if name == "region_id":
            context.region_id = value
        else:
            getattr(context, name).CopyFrom(value)
    request = getattr(kvrpcpb_pb2, method + "Request")(context=context, key=raw.key(b"k"))
    answer = getattr(raw.client.kv[region.leader.store_id], method)(request)
    assert variant(answer.region_error) == [error]


def test_a_key_of_another_region_is_refused(upstream, raw):
    upstream.split(raw.key(b"m"))
    answer = raw.call("RawPut", raw.region(b"a"), key=raw.key(b"z"), value=b"v")
    assert variant(answer.region_error) == ["key_not_in_region"]


@only_v1
@pytest.mark.parametrize("trouble", ["split", "merged", "moved"])
def test_a_scan_of_v1_finds_the_region_that_its_client_believes_in(upstream, raw, trouble):
    """The official client for Python takes a region error in a raw scan for an empty region."""
    for at in range(20):
        raw.put(b"k%02d" % at, b"v")
    upstream.split(b"k10")
    left, right = raw.region(b"k00"), raw.region(b"k19")
    if trouble == "split":
        upstream.split(b"k05")
    elif trouble == "merged":
        upstream.merge(left.region.id, right.region.id)
    else:
        upstream.transfer_leader(left.region.id, next(p.store_id for p in left.region.peers if p != left.leader))
    found = [key for region in (left, right) for key, _ in raw.scan(region=region)]
    assert found == [b"k%02d" % at for at in range(20)]


@only_v1
def test_a_scan_of_v1_in_a_region_that_never_was_is_refused(raw):
    region = raw.region(b"a")
    context = raw.context(region)
    context.region_epoch.version = 77
    answer = raw.client.kv[region.leader.store_id].RawScan(kvrpcpb_pb2.RawScanRequest(context=context, limit=1))
    assert variant(answer.region_error) == ["epoch_not_match"]


@only_v2
def test_a_scan_of_v2_with_an_old_epoch_is_told_so(upstream, raw):
    old = raw.region(b"a")
    upstream.split(raw.key(b"m"))
    answer = raw.call("RawScan", old, start_key=b"r", end_key=b"s", limit=1)
    assert variant(answer.region_error) == ["epoch_not_match"]


# Clocks


@only_v2
def test_a_store_refuses_writes_until_it_has_heard_from_the_tso(upstream, raw):
    region = raw.region(b"k")
    other = next(s for s in region.region.peers if s != region.leader).store_id
    upstream.stop_store(other)
    upstream.pd_away()
    upstream.start_store(other)
    upstream.transfer_leader(region.region.id, other)
    moved = upstream.region_of(raw.key(b"k"))
    region.leader.CopyFrom(moved.leader_to_wire())
    answer = raw.call("RawPut", region, key=raw.key(b"k"), value=b"v")
    assert variant(answer.region_error) == ["max_timestamp_not_synced"]
    assert raw.call("RawGet", region, key=raw.key(b"k")).not_found  # reads need no clock
    upstream.pd_back()
    with upstream.cluster.mutex:
        upstream.cluster.raw.refresh()
    assert raw.call("RawPut", region, key=raw.key(b"k"), value=b"v") == kvrpcpb_pb2.RawPutResponse()


@only_v2
def test_a_store_that_has_heard_from_the_tso_once_goes_on_without_pd(upstream, raw):
    region = raw.region(b"k")
    upstream.pd_away()
    for value in (b"1", b"2"):
        answer = raw.call("RawPut", region, key=raw.key(b"k"), value=value)
        assert answer == kvrpcpb_pb2.RawPutResponse()
    assert raw.call("RawGet", region, key=raw.key(b"k")).value == b"2"


def test_what_was_written_is_there_after_a_restart(tmp_path, api_version):
    def opened():
        return EmbeddedUpstream.start(data_dir=tmp_path / "d", api_version=api_version)

    with opened() as upstream, client_of(upstream) as client:
        raw = RawClient(client, api_version)
        raw.put(b"a", b"1")
        raw.put(b"b", b"1")
        raw.delete(b"b")
    with opened() as upstream, client_of(upstream) as client:
        raw = RawClient(client, api_version)
        assert raw.scan() == [(b"a", b"1")]
        raw.put(b"a", b"2")
        assert raw.get(b"a") == b"2"


# Dead versions, and broken ones


@only_v2
def test_collecting_counts_what_it_removes(upstream, raw):
    for value in (b"1", b"2"):
        raw.put(b"kept", value)
    raw.put(b"gone", b"1")
    raw.delete(b"gone")
    cut = upstream.cluster.raw.clocks.max_ts(raw.region(b"").region.id) + 1
    raw.put(b"later", b"1")
    raw.delete(b"later")
    assert upstream.cluster.raw.collect(cut) == 3
    assert upstream.cluster.raw.collect(cut) == 0
    assert raw.scan() == [(b"kept", b"2")]
    assert upstream.cluster.raw.collect(MAX_TS) == 2


@only_v2
def test_an_unreadable_version_is_named_and_the_server_goes_on(upstream, raw):
    raw.put(b"good", b"v")
    broken = mvcc_key(KEYSPACE + b"k", 5)
    upstream.cluster.engine.put(Family.RAW, broken, b"\x09")
    answer = raw.call("RawScan", raw.region(b""), start_key=b"r", end_key=b"s", limit=10)
    assert broken.hex() in answer.kvs[0].error.abort
    assert "not readable" in raw.call("RawGet", raw.region(b"k"), key=raw.key(b"k")).error
    assert raw.get(b"good") == b"v"


def test_another_clusters_request_is_refused(raw):
    region = raw.region(b"k")
    request = kvrpcpb_pb2.RawGetRequest(context=raw.context(region, cluster_id=3), key=raw.key(b"k"))
    with pytest.raises(grpc.RpcError) as refused:
        raw.client.kv[region.leader.store_id].RawGet(request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
