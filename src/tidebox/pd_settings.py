"""The part of ``pdpb.PD`` that keeps settings of the whole cluster; and what every answer of PD's has."""

import posixpath
from typing import Any

import grpc

from tidebox.cluster import Cluster
from tidebox.engine import Family
from tidebox.rpc import Context
from tidemill._pb import pdpb_pb2

_CONFIG_FOLDER = "/global/config/"  # where PD keeps what comes without a path
_CONFIG = b"config"
_EXTERNAL_TS = b"external_ts"


class PdSettings:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def LoadGlobalConfig(
        self, request: pdpb_pb2.LoadGlobalConfigRequest, context: Context
    ) -> pdpb_pb2.LoadGlobalConfigResponse:
        """The named items, each with its value or an error; without names all below the path, by their full name."""
        folder = request.config_path or _CONFIG_FOLDER
        items = [self._item(folder, name) for name in request.names]
        if not request.names:
            start, end = _CONFIG + folder.encode(), _CONFIG + folder.encode() + b"\xff"  # no text has this byte
            for key, value in self._cluster.engine.items(Family.META, start, end):
                items.append(pdpb_pb2.GlobalConfigItem(name=key[len(_CONFIG) :].decode(), payload=value))
        return pdpb_pb2.LoadGlobalConfigResponse(items=items)

    def StoreGlobalConfig(
        self, request: pdpb_pb2.StoreGlobalConfigRequest, context: Context
    ) -> pdpb_pb2.StoreGlobalConfigResponse:
        """All of the changes or none."""
        batch = self._cluster.engine.batch()
        for item in request.changes:
            key = _config_key(request.config_path or _CONFIG_FOLDER, item.name)
            if item.kind == pdpb_pb2.DELETE:
                batch.delete(Family.META, key)
            else:
                batch.put(Family.META, key, item.value.encode() or item.payload)
        with self._cluster.mutex:
            self._cluster.engine.write(batch)
        return pdpb_pb2.StoreGlobalConfigResponse()

    def GetExternalTimestamp(
        self, request: pdpb_pb2.GetExternalTimestampRequest, context: Context
    ) -> pdpb_pb2.GetExternalTimestampResponse:
        self._check(request, context)
        return pdpb_pb2.GetExternalTimestampResponse(header=self._header(), timestamp=self._external_ts())

    def SetExternalTimestamp(
        self, request: pdpb_pb2.SetExternalTimestampRequest, context: Context
    ) -> pdpb_pb2.SetExternalTimestampResponse:
        """It only moves forward, and never into the future."""
        self._check(request, context)
        with self._cluster.mutex:
            fault = ""
            if request.timestamp > self._cluster.tso.advance():
                fault = "the external timestamp should not be larger than global ts"
            elif request.timestamp <= self._external_ts():
                fault = "the external timestamp should be larger than current external timestamp"
            else:
                self._cluster.engine.put(Family.META, _EXTERNAL_TS, request.timestamp.to_bytes(8, "big"))
        error = pdpb_pb2.Error(type=pdpb_pb2.INVALID_VALUE, message=fault) if fault else None
        return pdpb_pb2.SetExternalTimestampResponse(header=self._header(error))

    def _item(self, folder: str, name: str) -> pdpb_pb2.GlobalConfigItem:
        value = self._cluster.engine.get(Family.META, _config_key(folder, name))
        if value is None:
            error = pdpb_pb2.Error(type=pdpb_pb2.GLOBAL_CONFIG_NOT_FOUND, message=f"key {name} not found")
            return pdpb_pb2.GlobalConfigItem(name=name, error=error)
        return pdpb_pb2.GlobalConfigItem(name=name, payload=value)

    def _external_ts(self) -> int:
        return int.from_bytes(self._cluster.engine.get(Family.META, _EXTERNAL_TS) or b"", "big")

    def _check(self, request: Any, context: Context) -> None:
        """Every request but the first greeting must name this cluster."""
        need, got = self._cluster.cluster_id, request.header.cluster_id
        if need != got:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {need} but got {got}")

    def _header(self, error: pdpb_pb2.Error | None = None) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster.cluster_id, error=error)


def _config_key(folder: str, name: str) -> bytes:
    return _CONFIG + posixpath.normpath(posixpath.join(folder, name)).encode()
