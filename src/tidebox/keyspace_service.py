"""``keyspacepb.Keyspace``: there is one keyspace, ``DEFAULT``, in which clients of API V2 work."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from tidebox.cluster import Cluster
from tidebox.rpc import Context
from tidemill._pb import keyspacepb_pb2, pdpb_pb2

DEFAULT_ID = 0
DEFAULT_NAME = "DEFAULT"


class KeyspaceService:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def LoadKeyspace(
        self, request: keyspacepb_pb2.LoadKeyspaceRequest, context: Context
    ) -> keyspacepb_pb2.LoadKeyspaceResponse:
        self._check(request, context)
        return self._found(request.name == DEFAULT_NAME)

    def LoadKeyspaceByID(
        self, request: keyspacepb_pb2.LoadKeyspaceByIDRequest, context: Context
    ) -> keyspacepb_pb2.LoadKeyspaceResponse:
        self._check(request, context)
        return self._found(request.id == DEFAULT_ID)

    def GetAllKeyspaces(
        self, request: keyspacepb_pb2.GetAllKeyspacesRequest, context: Context
    ) -> keyspacepb_pb2.GetAllKeyspacesResponse:
        self._check(request, context)
        keyspaces = [self._default()] if request.start_id <= DEFAULT_ID else []
        return keyspacepb_pb2.GetAllKeyspacesResponse(header=self._header(), keyspaces=keyspaces)

    def WatchKeyspaces(
        self, request: keyspacepb_pb2.WatchKeyspacesRequest, context: Context
    ) -> Iterator[keyspacepb_pb2.WatchKeyspacesResponse]:
        """All keyspaces at once, and then nothing: they never change. Open until the client leaves."""
        self._check(request, context)
        yield keyspacepb_pb2.WatchKeyspacesResponse(header=self._header(), keyspaces=[self._default()])
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait()

    def _found(self, is_default: bool) -> keyspacepb_pb2.LoadKeyspaceResponse:
        if not is_default:
            error = pdpb_pb2.Error(type=pdpb_pb2.ENTRY_NOT_FOUND, message="keyspace does not exist")
            return keyspacepb_pb2.LoadKeyspaceResponse(header=self._header(error))
        return keyspacepb_pb2.LoadKeyspaceResponse(header=self._header(), keyspace=self._default())

    def _default(self) -> keyspacepb_pb2.KeyspaceMeta:
        return keyspacepb_pb2.KeyspaceMeta(id=DEFAULT_ID, name=DEFAULT_NAME, state=keyspacepb_pb2.ENABLED)

    def _header(self, error: pdpb_pb2.Error | None = None) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster.cluster_id, error=error)

    def _check(self, request: Any, context: Context) -> None:
        need, got = self._cluster.cluster_id, request.header.cluster_id
        if need != got:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {need} but got {got}")
