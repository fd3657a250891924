"""PD over real gRPC: timestamps, regions, stores, and who is refused."""

import grpc
import pytest

from tests.tidebox.stub import DEADLINE_SECONDS, client_of
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import pdpb_pb2
from tidemill.errors import UsageError
from tidemill.tidb.keys import encode_bytes


def tso(client, *counts):
    requests = [pdpb_pb2.TsoRequest(header=client.header, count=count) for count in counts]
    return list(client.pd.Tso(iter(requests), timeout=DEADLINE_SECONDS))


def composed(response):
    return (response.timestamp.physical << 18) + response.timestamp.logical


def test_members_need_no_cluster_id_and_name_an_address_that_answers(upstream, client):
    answer = client.pd.GetMembers(pdpb_pb2.GetMembersRequest())
    assert answer.header.cluster_id == upstream.cluster_id
    assert list(answer.leader.client_urls) == [f"http://{upstream.pd_address}"]
    assert answer.members[0] == answer.leader


def test_cluster_info_says_that_pd_serves_timestamps_itself(client):
    answer = client.pd.GetClusterInfo(pdpb_pb2.GetClusterInfoRequest())
    assert list(answer.serviceModes) == [pdpb_pb2.PD_SVC_MODE]


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("GetRegion", pdpb_pb2.GetRegionRequest),
        ("ScanRegions", pdpb_pb2.ScanRegionsRequest),
        ("GetAllStores", pdpb_pb2.GetAllStoresRequest),
        ("UpdateServiceGCSafePoint", pdpb_pb2.UpdateServiceGCSafePointRequest),
        ("AllocID", pdpb_pb2.AllocIDRequest),
    ],
)
def test_another_clusters_client_is_refused(upstream, client, method, request_type):
    stranger = pdpb_pb2.RequestHeader(cluster_id=5)
    with pytest.raises(grpc.RpcError) as refused:
        getattr(client.pd, method)(request_type(header=stranger))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == f"mismatch cluster id, need {upstream.cluster_id} but got 5"


def test_a_tso_stream_of_another_cluster_is_refused(client):
    stranger = pdpb_pb2.TsoRequest(header=pdpb_pb2.RequestHeader(cluster_id=5), count=1)
    with pytest.raises(grpc.RpcError) as refused:
        list(client.pd.Tso(iter([stranger])))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_taken_port_is_told_and_nothing_stays_behind(upstream, tmp_path):
    port = int(upstream.pd_address.rsplit(":", 1)[1])
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: the port is taken"):
        EmbeddedUpstream.start(pd_port=port, data_dir=tmp_path / "d")
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as second:
        assert second.pd_address != upstream.pd_address


# Timestamps


def test_a_batch_is_answered_with_its_greatest_and_never_overlaps(client):
    answers = tso(client, 1, 10, 100, 1)
    assert [a.count for a in answers] == [1, 10, 100, 1]
    last = 0
    for answer in answers:
        assert composed(answer) - answer.count + 1 > last
        assert answer.timestamp.logical >= answer.count - 1
        last = composed(answer)


def test_batches_never_cross_a_millisecond(client):
    answers = tso(client, *[200_000] * 6)
    assert all(answer.timestamp.logical >= 199_999 for answer in answers)
    assert len({answer.timestamp.physical for answer in answers}) == 6


def test_no_timestamps_at_all_is_an_error(client):
    with pytest.raises(grpc.RpcError) as refused:
        tso(client, 0)
    assert "positive" in refused.value.details()


def test_timestamps_ascend_over_a_restart(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as first:
        first.cluster.tso.pass_by(first.tso() + (5_000 << 18))  # the clock then stands five seconds ahead
        last = first.tso()
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as second:
        assert second.tso() > last


# Regions


def test_one_region_covers_everything_at_first(client):
    [region] = client.regions()
    assert (region.region.start_key, region.region.end_key) == (b"", b"")
    assert (region.region.region_epoch.conf_ver, region.region.region_epoch.version) == (1, 1)
    assert len(region.region.peers) == 3
    assert region.leader in region.region.peers


def test_a_split_raises_every_version_and_the_right_part_keeps_the_id(upstream, client):
    [before] = client.regions()
    upstream.split(b"m")
    left, right = client.regions()
    assert left.region.end_key == right.region.start_key == encode_bytes(b"m")
    assert right.region.id == before.region.id
    assert left.region.id != before.region.id
    assert {r.region.region_epoch.version for r in (left, right)} == {2}
    assert {r.region.region_epoch.conf_ver for r in (left, right)} == {1}
    ids = [peer.id for r in (left, right) for peer in r.region.peers]
    assert len(set(ids)) == 6


def test_regions_are_found_by_key_id_and_range(upstream, client):
    for key in (b"b", b"d", b"f"):
        upstream.split(key)
    regions = client.regions()
    bounds = [encode_bytes(key) for key in (b"b", b"d", b"f")]
    assert [r.region.start_key for r in regions] == [b"", *bounds]
    assert client.region(encode_bytes(b"d")).region == regions[2].region  # a start key belongs to its region
    assert client.region(encode_bytes(b"c")).region == regions[1].region
    by_id = client.pd.GetRegionByID(pdpb_pb2.GetRegionByIDRequest(header=client.header, region_id=regions[1].region.id))
    assert by_id.region == regions[1].region
    previous = client.pd.GetPrevRegion(pdpb_pb2.GetRegionRequest(header=client.header, region_key=bounds[1]))
    assert previous.region == regions[1].region

    def scan(**fields):
        answer = client.pd.ScanRegions(pdpb_pb2.ScanRegionsRequest(header=client.header, **fields))
        assert [r.region for r in answer.regions] == list(answer.region_metas)
        assert [r.leader for r in answer.regions] == list(answer.leaders)
        return list(answer.regions)

    assert scan(start_key=encode_bytes(b"c"), end_key=bounds[2]) == regions[1:3]
    assert scan(start_key=encode_bytes(b"c"), limit=1) == regions[1:2]
    assert scan(start_key=encode_bytes(b"c"), limit=-1) == regions[1:]

    ranges = [
        pdpb_pb2.KeyRange(start_key=b"", end_key=encode_bytes(b"a")),
        pdpb_pb2.KeyRange(start_key=encode_bytes(b"a"), end_key=encode_bytes(b"c")),
    ]
    batch = client.pd.BatchScanRegions(pdpb_pb2.BatchScanRegionsRequest(header=client.header, ranges=ranges))
    assert list(batch.regions) == regions[:2]
    batch = client.pd.BatchScanRegions(pdpb_pb2.BatchScanRegionsRequest(header=client.header, ranges=ranges, limit=1))
    assert list(batch.regions) == regions[:1]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([(b"c", b"a")], "start key > end key"),
        ([(b"a", b"c"), (b"b", b"d")], "ranges overlapped"),
        ([(b"a", b""), (b"b", b"d")], "ranges overlapped"),
    ],
)
def test_ranges_that_cannot_be_asked_together_are_refused(client, ranges, reason):
    wanted = [pdpb_pb2.KeyRange(start_key=start, end_key=end) for start, end in ranges]
    answer = client.pd.BatchScanRegions(pdpb_pb2.BatchScanRegionsRequest(header=client.header, ranges=wanted))
    assert answer.header.error.type == pdpb_pb2.UNKNOWN
    assert reason in answer.header.error.message


def test_ranges_of_one_region_count_once_and_the_limit_goes_over_all_of_them(upstream, client):
    for key in (b"b", b"d", b"f"):
        upstream.split(key)
    regions = client.regions()
    keys = [encode_bytes(key) for key in (b"b1", b"b2", b"b3", b"b4", b"e")]
    ranges = [pdpb_pb2.KeyRange(start_key=a, end_key=b) for a, b in ((b"", keys[0]), keys[1:3], keys[3:5])]

    def scan(limit):
        request = pdpb_pb2.BatchScanRegionsRequest(
            header=client.header, ranges=ranges, limit=limit, contain_all_key_range=True
        )
        return list(client.pd.BatchScanRegions(request).regions)

    assert scan(0) == scan(-1) == scan(3) == regions[:3]
    assert scan(2) == regions[:2]


def test_scattering_is_done_at_once(client):
    scattered = client.pd.ScatterRegion(pdpb_pb2.ScatterRegionRequest(header=client.header, regions_id=[4]))
    assert scattered.finished_percentage == 100
    operator = client.pd.GetOperator(pdpb_pb2.GetOperatorRequest(header=client.header, region_id=4))
    assert (operator.region_id, operator.status) == (4, pdpb_pb2.SUCCESS)


def test_what_is_not_there_is_absent_and_no_error(client):
    missing = client.pd.GetRegionByID(pdpb_pb2.GetRegionByIDRequest(header=client.header, region_id=999))
    assert not missing.HasField("region")
    assert not missing.header.HasField("error")
    first = client.pd.GetPrevRegion(pdpb_pb2.GetRegionRequest(header=client.header, region_key=b"a"))
    assert not first.HasField("region")


def test_regions_and_cluster_survive_a_restart(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", stores=3) as first, client_of(first) as client:
        first.split(b"m")
        first.transfer_leader(first.regions()[0].id, 2)
        before, cluster_id = first.regions(), client.cluster_id
    with EmbeddedUpstream.start(data_dir=tmp_path / "d", stores=3) as second, client_of(second) as client:
        assert second.regions() == before
        assert client.cluster_id == cluster_id
        ids = {region.id for region in before} | {peer.id for region in before for peer in region.peers}
        assert second.cluster.allocate_id() not in ids


# Stores and ids


def test_stores_are_known_by_id_with_their_address(upstream, client):
    answer = client.pd.GetAllStores(pdpb_pb2.GetAllStoresRequest(header=client.header))
    assert [store.address for store in answer.stores] == upstream.store_addresses
    store = client.pd.GetStore(pdpb_pb2.GetStoreRequest(header=client.header, store_id=2))
    assert store.store == answer.stores[1]
    assert tuple(map(int, store.store.version.split("."))) >= (7, 1, 0)


def test_an_unknown_store_is_an_error_in_the_header(client):
    answer = client.pd.GetStore(pdpb_pb2.GetStoreRequest(header=client.header, store_id=77))
    assert answer.header.error.type == pdpb_pb2.UNKNOWN
    assert "invalid store ID 77" in answer.header.error.message


def test_ids_are_given_once(client):
    first = client.pd.AllocID(pdpb_pb2.AllocIDRequest(header=client.header, count=10))
    second = client.pd.AllocID(pdpb_pb2.AllocIDRequest(header=client.header, count=1))
    assert (first.count, second.count) == (10, 1)
    assert second.id == first.id + 1
