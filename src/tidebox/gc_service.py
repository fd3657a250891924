"""The part of ``pdpb.PD`` that garbage collection needs: safepoints in the older form, barriers in the newer.

One state serves both (``safepoints``). Keyspaces have none of their own: the null keyspace and the
default one share it, as in a PD where no keyspace collects for itself; others do not exist.
"""

from typing import Any

import grpc

from tidebox.cluster import Cluster
from tidebox.rpc import Context
from tidebox.safepoints import Barrier, GcState, SafepointRefusedError
from tidemill._pb import pdpb_pb2

NULL_KEYSPACE = 0xFFFFFFFF
DEFAULT_KEYSPACE = 0

_LARGEST_KEYSPACE = 0xFFFFFF  # PD takes whatever is above for the null keyspace


class GcService:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._safepoints = cluster.safepoints

    # The older form: refusals of the service's own are seen in the answer, others end the call

    def GetGCSafePoint(
        self, request: pdpb_pb2.GetGCSafePointRequest, context: Context
    ) -> pdpb_pb2.GetGCSafePointResponse:
        self._check(request, context)
        with self._cluster.mutex:
            safepoint = self._safepoints.gc_safepoint
        return pdpb_pb2.GetGCSafePointResponse(header=self._header(), safe_point=safepoint)

    def UpdateGCSafePoint(
        self, request: pdpb_pb2.UpdateGCSafePointRequest, context: Context
    ) -> pdpb_pb2.UpdateGCSafePointResponse:
        self._check(request, context)
        with self._cluster.mutex:
            safepoint = self._safepoints.announce_gc(request.safe_point)
        return pdpb_pb2.UpdateGCSafePointResponse(header=self._header(), new_safe_point=safepoint)

    def UpdateServiceGCSafePoint(
        self, request: pdpb_pb2.UpdateServiceGCSafePointRequest, context: Context
    ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        self._check(request, context)
        lowest, left = self._update(context, request.service_id, request.safe_point, request.TTL)
        return pdpb_pb2.UpdateServiceGCSafePointResponse(
            header=self._header(), service_id=lowest.service, TTL=left, min_safe_point=lowest.ts
        )

    # The older form by keyspace

    def GetGCSafePointV2(
        self, request: pdpb_pb2.GetGCSafePointV2Request, context: Context
    ) -> pdpb_pb2.GetGCSafePointV2Response:
        self._check(request, context)
        self._check_exists(request.keyspace_id, context)
        with self._cluster.mutex:
            safepoint = self._safepoints.gc_safepoint
        return pdpb_pb2.GetGCSafePointV2Response(header=self._header(), safe_point=safepoint)

    def UpdateGCSafePointV2(
        self, request: pdpb_pb2.UpdateGCSafePointV2Request, context: Context
    ) -> pdpb_pb2.UpdateGCSafePointV2Response:
        self._check(request, context)
        self._check_exists(request.keyspace_id, context)
        with self._cluster.mutex:
            safepoint = self._safepoints.announce_gc(request.safe_point)
        return pdpb_pb2.UpdateGCSafePointV2Response(header=self._header(), new_safe_point=safepoint)

    def UpdateServiceSafePointV2(
        self, request: pdpb_pb2.UpdateServiceSafePointV2Request, context: Context
    ) -> pdpb_pb2.UpdateServiceSafePointV2Response:
        self._check(request, context)
        self._check_exists(request.keyspace_id, context)
        lowest, left = self._update(context, request.service_id, request.safe_point, request.ttl)
        return pdpb_pb2.UpdateServiceSafePointV2Response(
            header=self._header(), service_id=lowest.service, ttl=left, min_safe_point=lowest.ts
        )

    def GetAllGCSafePointV2(
        self, request: pdpb_pb2.GetAllGCSafePointV2Request, context: Context
    ) -> pdpb_pb2.GetAllGCSafePointV2Response:
        """Of keyspaces that collect for themselves: there are none."""
        self._check(request, context)
        return pdpb_pb2.GetAllGCSafePointV2Response(header=self._header())

    # The newer form: refusals are errors in the header

    def SetGCBarrier(self, request: pdpb_pb2.SetGCBarrierRequest, context: Context) -> pdpb_pb2.SetGCBarrierResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                _redirect(request)
                barrier = self._safepoints.set_barrier(
                    request.barrier_id.encode(), request.barrier_ts, request.ttl_seconds
                )
        except SafepointRefusedError as refused:
            return pdpb_pb2.SetGCBarrierResponse(header=self._refusal(refused))
        return pdpb_pb2.SetGCBarrierResponse(header=self._header(), new_barrier_info=self._barrier(barrier))

    def DeleteGCBarrier(
        self, request: pdpb_pb2.DeleteGCBarrierRequest, context: Context
    ) -> pdpb_pb2.DeleteGCBarrierResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                _redirect(request)
                barrier = self._safepoints.delete_barrier(request.barrier_id.encode())
        except SafepointRefusedError as refused:
            return pdpb_pb2.DeleteGCBarrierResponse(header=self._refusal(refused))
        deleted = self._barrier(barrier) if barrier is not None else None
        return pdpb_pb2.DeleteGCBarrierResponse(header=self._header(), deleted_barrier_info=deleted)

    def SetGlobalGCBarrier(
        self, request: pdpb_pb2.SetGlobalGCBarrierRequest, context: Context
    ) -> pdpb_pb2.SetGlobalGCBarrierResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                barrier = self._safepoints.set_barrier(
                    request.barrier_id.encode(), request.barrier_ts, request.ttl_seconds, is_global=True
                )
        except SafepointRefusedError as refused:
            return pdpb_pb2.SetGlobalGCBarrierResponse(header=self._refusal(refused))
        info = self._global_barrier(barrier)
        return pdpb_pb2.SetGlobalGCBarrierResponse(header=self._header(), new_barrier_info=info)

    def DeleteGlobalGCBarrier(
        self, request: pdpb_pb2.DeleteGlobalGCBarrierRequest, context: Context
    ) -> pdpb_pb2.DeleteGlobalGCBarrierResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                barrier = self._safepoints.delete_barrier(request.barrier_id.encode(), is_global=True)
        except SafepointRefusedError as refused:
            return pdpb_pb2.DeleteGlobalGCBarrierResponse(header=self._refusal(refused))
        deleted = self._global_barrier(barrier) if barrier is not None else None
        return pdpb_pb2.DeleteGlobalGCBarrierResponse(header=self._header(), deleted_barrier_info=deleted)

    def GetGCState(self, request: pdpb_pb2.GetGCStateRequest, context: Context) -> pdpb_pb2.GetGCStateResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                _redirect(request)
                state = self._safepoints.state()
        except SafepointRefusedError as refused:
            return pdpb_pb2.GetGCStateResponse(header=self._refusal(refused))
        response = pdpb_pb2.GetGCStateResponse(
            header=self._header(), gc_state=self._state(state, with_barriers=not request.exclude_gc_barriers)
        )
        if request.include_global_gc_barriers:
            # Present though empty: that tells the client that it was asked and there are none.
            response.global_gc_barriers.SetInParent()
            response.global_gc_barriers.barriers.extend(map(self._global_barrier, state.global_barriers))
        return response

    def GetAllKeyspacesGCStates(
        self, request: pdpb_pb2.GetAllKeyspacesGCStatesRequest, context: Context
    ) -> pdpb_pb2.GetAllKeyspacesGCStatesResponse:
        self._check(request, context)
        with self._cluster.mutex:
            state = self._safepoints.state()
        shown = () if request.exclude_global_gc_barriers else state.global_barriers
        return pdpb_pb2.GetAllKeyspacesGCStatesResponse(
            header=self._header(),
            gc_states=[self._state(state, with_barriers=not request.exclude_gc_barriers)],
            global_gc_barriers=map(self._global_barrier, shown),
        )

    def AdvanceTxnSafePoint(
        self, request: pdpb_pb2.AdvanceTxnSafePointRequest, context: Context
    ) -> pdpb_pb2.AdvanceTxnSafePointResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                _redirect(request, collects=True)
                advance = self._safepoints.advance_txn(request.target)
        except SafepointRefusedError as refused:
            return pdpb_pb2.AdvanceTxnSafePointResponse(header=self._refusal(refused))
        return pdpb_pb2.AdvanceTxnSafePointResponse(
            header=self._header(),
            old_txn_safe_point=advance.old,
            new_txn_safe_point=advance.new,
            blocker_description=str(advance.blocker) if advance.blocker is not None else "",
        )

    def AdvanceGCSafePoint(
        self, request: pdpb_pb2.AdvanceGCSafePointRequest, context: Context
    ) -> pdpb_pb2.AdvanceGCSafePointResponse:
        self._check(request, context)
        try:
            with self._cluster.mutex:
                _redirect(request, collects=True)
                old, new = self._safepoints.advance_gc(request.target)
        except SafepointRefusedError as refused:
            return pdpb_pb2.AdvanceGCSafePointResponse(header=self._refusal(refused))
        return pdpb_pb2.AdvanceGCSafePointResponse(header=self._header(), old_gc_safe_point=old, new_gc_safe_point=new)

    def _update(self, context: Context, service: bytes, ts: int, ttl_seconds: int) -> tuple[Barrier, int]:
        """The minimum after a service safepoint was updated, and how long that will live."""
        with self._cluster.mutex:
            try:
                lowest = self._safepoints.update(service, ts, ttl_seconds)
            except SafepointRefusedError as refused:
                context.abort(grpc.StatusCode.UNKNOWN, str(refused))
            return lowest, lowest.seconds_left(self._safepoints.now)

    def _check(self, request: Any, context: Context) -> None:
        """Every request must name this cluster."""
        need, got = self._cluster.cluster_id, request.header.cluster_id
        if need != got:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {need} but got {got}")

    def _check_exists(self, keyspace_id: int, context: Context) -> None:
        try:
            _check_keyspace(keyspace_id)
        except SafepointRefusedError as refused:
            context.abort(grpc.StatusCode.UNKNOWN, str(refused))

    def _header(self) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster.cluster_id)

    def _refusal(self, refused: SafepointRefusedError) -> pdpb_pb2.ResponseHeader:
        error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=str(refused))
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster.cluster_id, error=error)

    def _state(self, state: GcState, *, with_barriers: bool) -> pdpb_pb2.GCState:
        return pdpb_pb2.GCState(
            keyspace_scope=pdpb_pb2.KeyspaceScope(keyspace_id=NULL_KEYSPACE),
            txn_safe_point=state.txn_safepoint,
            gc_safe_point=state.gc_safepoint,
            gc_barriers=map(self._barrier, state.barriers) if with_barriers else (),
        )

    def _barrier(self, barrier: Barrier) -> pdpb_pb2.GCBarrierInfo:
        return pdpb_pb2.GCBarrierInfo(**self._fields(barrier))

    def _global_barrier(self, barrier: Barrier) -> pdpb_pb2.GlobalGCBarrierInfo:
        return pdpb_pb2.GlobalGCBarrierInfo(**self._fields(barrier))

    def _fields(self, barrier: Barrier) -> dict[str, Any]:
        # A service safepoint's id may be any bytes, a barrier's is text.
        return {
            "barrier_id": barrier.service.decode(errors="replace"),
            "barrier_ts": barrier.ts,
            "ttl_seconds": barrier.seconds_left(self._safepoints.now),
        }


def _redirect(request: Any, *, collects: bool = False) -> None:
    """Refuse a request for a keyspace that is not there, or that does not collect for itself."""
    if request.HasField("keyspace_scope"):
        _check_keyspace(request.keyspace_scope.keyspace_id, collects=collects)


def _check_keyspace(keyspace_id: int, *, collects: bool = False) -> None:
    if keyspace_id > _LARGEST_KEYSPACE:
        return
    if keyspace_id != DEFAULT_KEYSPACE:
        raise SafepointRefusedError("[PD:keyspace:ErrKeyspaceNotFound]keyspace does not exist")
    if collects:
        raise SafepointRefusedError(
            "[PD:gc:ErrGCOnInvalidKeyspace]trying to manage GC in keyspace DEFAULT (id: 0) where keyspace level GC "
            "is not enabled"
        )
