"""Whether a store may serve a request: the region as the client believes it against the region as it is.

Checked in TiKV's order before any data is looked at; where the client is behind it gets the region
error that tells it so.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

import grpc

from tidebox.cluster import Cluster
from tidebox.regions import Region
from tidebox.rpc import Context
from tidemill._pb import errorpb_pb2, kvrpcpb_pb2


class RegionRefused(Exception):
    """The request does not fit the region as it is now."""

    def __init__(self, error: errorpb_pb2.Error) -> None:
        self.error = error
        super().__init__(error.message)


class RegionGuard:
    """The checks of one store, from one start of it to its end."""

    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._store_id = store_id
        self._deaths = cluster.stores[store_id].deaths

    def check(self, wanted: kvrpcpb_pb2.Context, context: Context, physical_keys: Iterable[bytes] = ()) -> Region:
        """The region that the request names, if it may be served here; raises ``RegionRefused`` otherwise."""
        need = self._cluster.cluster_id
        if wanted.cluster_id not in (0, need):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"mismatch cluster id, need {need} but got {wanted.cluster_id}"
            )
        if wanted.peer.store_id != self._store_id:
            refuse(
                "store not match",
                store_not_match=errorpb_pb2.StoreNotMatch(
                    request_store_id=wanted.peer.store_id, actual_store_id=self._store_id
                ),
            )
        state = self._cluster.stores[self._store_id]
        state.asked_at = self._cluster.clock.monotonic()
        with self._cluster.mutex:
            region = self._cluster.regions.get(wanted.region_id)
            if region is None or self._store_id not in region.stores:
                refuse(
                    f"region {wanted.region_id} not found",
                    region_not_found=errorpb_pb2.RegionNotFound(region_id=wanted.region_id),
                )
            if region.leader_store != self._store_id and not (wanted.replica_read or wanted.stale_read):
                refuse(
                    "peer is not leader",
                    not_leader=self._cluster.not_leader(region),
                )
            if state.deaths != self._deaths:
                # A request that outlived its store: the client may have asked another one since.
                refuse("store is gone", not_leader=errorpb_pb2.NotLeader(region_id=region.id))
            peer = region.peer_on(self._store_id)
            if wanted.peer.id != peer.id:
                mismatch = errorpb_pb2.MismatchPeerId(request_peer_id=wanted.peer.id, store_peer_id=peer.id)
                refuse("mismatch peer id", mismatch_peer_id=mismatch)
            if wanted.region_epoch.version != region.version:
                current = errorpb_pb2.EpochNotMatch(current_regions=self._relatives(region))
                refuse(f"epoch not match for region {region.id}", epoch_not_match=current)
        for key in physical_keys:
            if not region.contains(key):
                outside = errorpb_pb2.KeyNotInRegion(
                    key=key, region_id=region.id, start_key=region.start, end_key=region.end
                )
                refuse("key not in region", key_not_in_region=outside)
        return region

    def _relatives(self, region: Region) -> list[Any]:
        """The region and its left neighbour, which most often was split from it."""
        left = self._cluster.regions.before(region.start)
        return [r.to_wire() for r in (region, left) if r is not None]


def refuse(message: str, **variant: Any) -> NoReturn:
    raise RegionRefused(errorpb_pb2.Error(message=message, **variant))
