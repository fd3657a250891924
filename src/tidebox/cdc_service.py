"""``cdcpb.ChangeData`` of one store: what a client may register, and the two forms of the stream.

``EventFeed`` infers a client's features from the version in its first request. ``EventFeedV2``
also reads them from the call's metadata; many subscriptions of one region can then share a
stream, told apart by their request id.
"""

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from tidebox.cluster import Cluster
from tidebox.engine import Family
from tidebox.feed import Features, FeedStream, Subscription, error_event
from tidebox.rpc import Context
from tidebox.subscriptions import wanted_bounds
from tidemill._pb import cdcpb_pb2, errorpb_pb2

_MULTIPLEXING = "stream-multiplexing"
_MAX_PENDING_SCANS = 10_000
_RAW_KV_SINCE = "6.2.0"


class CdcService:
    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._store_id = store_id

    def EventFeed(self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: Context) -> Iterator[bytes]:
        return self._serve(requests, context, multiplexed=False)

    def EventFeedV2(self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: Context) -> Iterator[bytes]:
        metadata = dict(context.invocation_metadata())
        announced = {name.strip() for name in str(metadata.get("features", "")).split(",") if name.strip()}
        unknown = sorted(announced - {_MULTIPLEXING})
        if unknown:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown features: {', '.join(unknown)}")
        return self._serve(requests, context, multiplexed=_MULTIPLEXING in announced)

    def _serve(
        self, requests: Iterator[cdcpb_pb2.ChangeDataRequest], context: Context, *, multiplexed: bool
    ) -> Iterator[bytes]:
        stream = FeedStream(self._store_id, multiplexed, self._cluster.scan_throttle)
        self._cluster.attach(stream)
        if not context.add_callback(lambda: stream.close("connection cancelled")):
            stream.close("connection cancelled")
        reader = threading.Thread(target=self._read, args=(stream, requests), name="event-feed-requests", daemon=True)
        reader.start()
        try:
            while (message := stream.take()) is not None:
                yield message
            if stream.failure is not None and context.is_active():
                context.abort(grpc.StatusCode.UNKNOWN, stream.failure)
        finally:
            stream.close()
            self._cluster.detach(stream)
            stream.join()

    def _read(self, stream: FeedStream, requests: Iterator[cdcpb_pb2.ChangeDataRequest]) -> None:
        try:
            for request in requests:
                self._handle(stream, request)
        except grpc.RpcError:
            stream.close("connection cancelled")  # the call ended while we waited for a request
        except Exception as error:
            stream.close(f"cannot handle a request: {error!r}")
            raise
        else:
            with self._cluster.mutex:  # half-closed: nothing more is wanted
                self._cluster.subscriptions.forget(stream)
            stream.close()

    def _handle(self, stream: FeedStream, request: cdcpb_pb2.ChangeDataRequest) -> None:
        if stream.features is None:
            stream.features = Features.of(request.header.ticdc_version, stream.multiplexed)
        kind = request.WhichOneof("request")
        if kind == "notify_txn_status":
            stream.close("notify_txn_status is not served")
            return
        with self._cluster.mutex:
            if kind == "deregister":
                self._cluster.subscriptions.deregister(stream, request.request_id, request.region_id)
                return
            error = self._refusal(stream, request)
            if error is not None:
                stream.push_message(error_event(request.region_id, request.request_id, error), mergeable=True)
                return
            region = self._cluster.regions.get(request.region_id)
            assert region is not None  # else it was refused
            start, end = wanted_bounds(region, request.start_key, request.end_key)
            is_raw = request.kv_api == cdcpb_pb2.ChangeDataRequest.RawKV
            wanted = (start, end, request.checkpoint_ts, request.filter_loop, is_raw)
            subscription = Subscription(stream, request.request_id, region.id, *wanted)
            engine = self._cluster.engine
            snapshot = engine.snapshot([Family.RAW]) if is_raw else engine.snapshot()
            self._cluster.subscriptions.register(subscription, snapshot)

    def _refusal(self, stream: FeedStream, request: cdcpb_pb2.ChangeDataRequest) -> cdcpb_pb2.Error | None:
        """Why the region cannot be registered, in TiKV's order of checks."""
        cluster_id = self._cluster.cluster_id
        if stream.features is not None and stream.features.checks_cluster_id:
            asked = request.header.cluster_id
            if asked != cluster_id:
                return _error(cluster_id_mismatch=cdcpb_pb2.ClusterIDMismatch(current=cluster_id, request=asked))
        is_raw = request.kv_api == cdcpb_pb2.ChangeDataRequest.RawKV
        if request.kv_api != cdcpb_pb2.ChangeDataRequest.TiDB and not (is_raw and self._cluster.api_version == 2):
            return _error(compatibility=cdcpb_pb2.Compatibility(required_version=_RAW_KV_SINCE))
        if stream.pending_scans >= _MAX_PENDING_SCANS:
            return _error(server_is_busy=errorpb_pb2.ServerIsBusy(reason="too many pending incremental scans"))
        region = self._cluster.regions.get(request.region_id)
        if region is None or self._store_id not in region.stores:
            return _error(region_not_found=errorpb_pb2.RegionNotFound(region_id=request.region_id))
        if self._cluster.subscriptions.find(stream, request.request_id, region.id) is not None:
            return _error(duplicate_request=cdcpb_pb2.DuplicateRequest(region_id=region.id))
        stale = request.region_epoch.version != region.version
        current = errorpb_pb2.EpochNotMatch(current_regions=[region.to_wire()])
        if stale and self._cluster.subscriptions.is_observed(region.id):
            return _error(epoch_not_match=current)
        if region.leader_store != self._store_id:
            return _error(not_leader=self._cluster.not_leader(region))
        return _error(epoch_not_match=current) if stale else None


def _error(**variant: Any) -> cdcpb_pb2.Error:
    return cdcpb_pb2.Error(**variant)
