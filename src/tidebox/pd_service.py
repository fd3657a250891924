"""``pdpb.PD`` over the embedded cluster: members, timestamps, regions, stores, settings."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import grpc

from tidebox.cluster import VERSION, Cluster, StoreState
from tidebox.pd_settings import PdSettings
from tidebox.regions import Region
from tidebox.rpc import Context
from tidemill._pb import metapb_pb2, pdpb_pb2
from tidemill.errors import UpstreamUnavailableError, UsageError

MEMBER_ID = 1
MEMBER_NAME = "pd-1"


class PdService(PdSettings):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.url = ""  # set once the server listens

    # Who is there

    def GetMembers(self, request: pdpb_pb2.GetMembersRequest, context: Context) -> pdpb_pb2.GetMembersResponse:
        # No check of the cluster id: this is where clients learn it.
        url = self.url
        member = pdpb_pb2.Member(
            name=MEMBER_NAME, member_id=MEMBER_ID, peer_urls=[url], client_urls=[url], binary_version=f"v{VERSION}"
        )
        return pdpb_pb2.GetMembersResponse(header=self._header(), members=[member], leader=member, etcd_leader=member)

    def GetClusterInfo(
        self, request: pdpb_pb2.GetClusterInfoRequest, context: Context
    ) -> pdpb_pb2.GetClusterInfoResponse:
        return pdpb_pb2.GetClusterInfoResponse(header=self._header(), serviceModes=[pdpb_pb2.PD_SVC_MODE])

    def GetClusterConfig(
        self, request: pdpb_pb2.GetClusterConfigRequest, context: Context
    ) -> pdpb_pb2.GetClusterConfigResponse:
        self._check(request, context)
        replicas = min(len(self._cluster.stores), 3)
        cluster = metapb_pb2.Cluster(id=self._cluster.cluster_id, max_peer_count=replicas)
        return pdpb_pb2.GetClusterConfigResponse(header=self._header(), cluster=cluster)

    # Timestamps and ids

    def Tso(self, requests: Iterator[pdpb_pb2.TsoRequest], context: Context) -> Iterator[pdpb_pb2.TsoResponse]:
        for request in requests:
            self._check(request, context)
            try:
                ts = self._cluster.tso.next(request.count)
            except UsageError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"tso count should be positive: {error}")
            except UpstreamUnavailableError as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"server not started: {error}")
            timestamp = pdpb_pb2.Timestamp(physical=ts >> 18, logical=ts & 0x3FFFF)
            yield pdpb_pb2.TsoResponse(header=self._header(), count=request.count, timestamp=timestamp)

    def GetMinTS(self, request: pdpb_pb2.GetMinTSRequest, context: Context) -> pdpb_pb2.GetMinTSResponse:
        self._check(request, context)
        ts = self._cluster.tso.advance()
        timestamp = pdpb_pb2.Timestamp(physical=ts >> 18, logical=ts & 0x3FFFF)
        return pdpb_pb2.GetMinTSResponse(header=self._header(), timestamp=timestamp)

    def AllocID(self, request: pdpb_pb2.AllocIDRequest, context: Context) -> pdpb_pb2.AllocIDResponse:
        self._check(request, context)
        count = max(request.count, 1)
        last = self._cluster.allocate_id(count)
        return pdpb_pb2.AllocIDResponse(header=self._header(), id=last, count=count)

    # Regions

    def GetRegion(self, request: pdpb_pb2.GetRegionRequest, context: Context) -> pdpb_pb2.GetRegionResponse:
        self._check(request, context)
        with self._cluster.mutex:
            return self._region(self._cluster.regions.of_key(request.region_key))

    def GetPrevRegion(self, request: pdpb_pb2.GetRegionRequest, context: Context) -> pdpb_pb2.GetRegionResponse:
        self._check(request, context)
        with self._cluster.mutex:
            return self._region(self._cluster.regions.before(request.region_key))

    def GetRegionByID(self, request: pdpb_pb2.GetRegionByIDRequest, context: Context) -> pdpb_pb2.GetRegionResponse:
        self._check(request, context)
        with self._cluster.mutex:
            return self._region(self._cluster.regions.get(request.region_id))

    def ScanRegions(self, request: pdpb_pb2.ScanRegionsRequest, context: Context) -> pdpb_pb2.ScanRegionsResponse:
        self._check(request, context)
        with self._cluster.mutex:
            found = self._cluster.regions.within(request.start_key, request.end_key, request.limit)
        return pdpb_pb2.ScanRegionsResponse(
            header=self._header(),
            region_metas=[region.to_wire() for region in found],
            leaders=[self._leader(region) for region in found],
            regions=[self._with_leader(region) for region in found],
        )

    def BatchScanRegions(
        self, request: pdpb_pb2.BatchScanRegionsRequest, context: Context
    ) -> pdpb_pb2.BatchScanRegionsResponse:
        self._check(request, context)
        fault = _fault_of_ranges(request.ranges)
        if fault:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=fault)
            return pdpb_pb2.BatchScanRegionsResponse(header=self._header(error))
        # Regions leave no gap, so the answer always contains all of the ranges, up to the limit.
        found: dict[int, Region] = {}
        with self._cluster.mutex:
            for wanted in request.ranges:
                left = request.limit - len(found) if request.limit > 0 else 0
                if request.limit > 0 and left <= 0:
                    break
                # The first region may have been found by the range before.
                regions = self._cluster.regions.within(wanted.start_key, wanted.end_key, left and left + 1)
                found |= {region.id: region for region in regions}
        regions = list(found.values())[: request.limit if request.limit > 0 else None]
        return pdpb_pb2.BatchScanRegionsResponse(
            header=self._header(), regions=[self._with_leader(region) for region in regions]
        )

    def ScatterRegion(self, request: pdpb_pb2.ScatterRegionRequest, context: Context) -> pdpb_pb2.ScatterRegionResponse:
        """Done at once: regions lie where they lie."""
        self._check(request, context)
        return pdpb_pb2.ScatterRegionResponse(header=self._header(), finished_percentage=100)

    def GetOperator(self, request: pdpb_pb2.GetOperatorRequest, context: Context) -> pdpb_pb2.GetOperatorResponse:
        self._check(request, context)
        return pdpb_pb2.GetOperatorResponse(
            header=self._header(), region_id=request.region_id, desc=b"scatter-region", status=pdpb_pb2.SUCCESS
        )

    # Stores

    def GetStore(self, request: pdpb_pb2.GetStoreRequest, context: Context) -> pdpb_pb2.GetStoreResponse:
        self._check(request, context)
        store = self._cluster.stores.get(request.store_id)
        if store is None:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=f"invalid store ID {request.store_id}, not found")
            return pdpb_pb2.GetStoreResponse(header=self._header(error))
        return pdpb_pb2.GetStoreResponse(header=self._header(), store=_store(store))

    def GetAllStores(self, request: pdpb_pb2.GetAllStoresRequest, context: Context) -> pdpb_pb2.GetAllStoresResponse:
        self._check(request, context)
        stores = [_store(store) for store in self._cluster.stores.values()]
        return pdpb_pb2.GetAllStoresResponse(header=self._header(), stores=stores)

    def _region(self, region: Region | None) -> pdpb_pb2.GetRegionResponse:
        if region is None:
            return pdpb_pb2.GetRegionResponse(header=self._header())
        leader = self._leader(region)
        return pdpb_pb2.GetRegionResponse(header=self._header(), region=region.to_wire(), leader=leader)

    def _with_leader(self, region: Region) -> pdpb_pb2.Region:
        return pdpb_pb2.Region(region=region.to_wire(), leader=self._leader(region))

    def _leader(self, region: Region) -> metapb_pb2.Peer:
        """All zero while no peer of the region is there."""
        return region.leader_to_wire() if self._cluster.leader_of(region) is not None else metapb_pb2.Peer()


def _store(store: StoreState) -> metapb_pb2.Store:
    return metapb_pb2.Store(
        id=store.id,
        address=store.address,
        state=metapb_pb2.Up,
        version=VERSION,
        peer_address=store.address,
        node_state=metapb_pb2.Serving,
    )


def _fault_of_ranges(ranges: Sequence[pdpb_pb2.KeyRange]) -> str:
    """Why they cannot be asked for together; empty if they can."""
    if any(r.end_key and r.start_key > r.end_key for r in ranges):
        return "invalid key range, start key > end key"
    if any(not left.end_key or right.start_key < left.end_key for left, right in pairwise(ranges)):
        return "invalid key range, ranges overlapped"
    return ""
