"""A PD and one TiKV store that say what a test tells them to, over real gRPC.

For answers that no healthy cluster gives: every error event, bytes that are no message, a PD that
loses its leader. A cluster that behaves is ``tidebox``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc

from tidemill._pb import cdcpb_pb2, metapb_pb2, pdpb_pb2
from tidemill.model.span import Span, end_to_wire
from tidemill.model.ts import Ts, compose

CLUSTER_ID = 4711

Registered = Callable[["FeedStream", cdcpb_pb2.ChangeDataRequest], Awaitable[None]]


def region(
    region_id: int, span: Span, version: int = 1, stores: tuple[int, ...] = (1,), leader: int | None = 1
) -> pdpb_pb2.Region:
    """A region as PD lists it, with one peer per store; ``leader`` is a store's id."""
    peers = [metapb_pb2.Peer(id=100 * region_id + store, store_id=store) for store in stores]
    meta = metapb_pb2.Region(
        id=region_id,
        start_key=span.start,
        end_key=end_to_wire(span.end),
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=1, version=version),
        peers=peers,
    )
    leading = next((peer for peer in peers if peer.store_id == leader), metapb_pb2.Peer())
    return pdpb_pb2.Region(region=meta, leader=leading)


class FeedStream:
    """One change stream that a client has opened."""

    def __init__(self, method: str, metadata: dict[str, str]) -> None:
        self.method = method
        self.metadata = metadata
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1024)

    async def send(self, message: cdcpb_pb2.ChangeDataEvent | bytes) -> None:
        await self._outbox.put(message if isinstance(message, bytes) else message.SerializeToString())

    async def send_rows(self, request: cdcpb_pb2.ChangeDataRequest, *rows: cdcpb_pb2.Event.Row) -> None:
        entries = cdcpb_pb2.Event.Entries(entries=rows)
        event = cdcpb_pb2.Event(region_id=request.region_id, request_id=request.request_id, entries=entries)
        await self.send(cdcpb_pb2.ChangeDataEvent(events=[event]))

    async def send_error(self, request: cdcpb_pb2.ChangeDataRequest, error: cdcpb_pb2.Error) -> None:
        event = cdcpb_pb2.Event(region_id=request.region_id, request_id=request.request_id, error=error)
        await self.send(cdcpb_pb2.ChangeDataEvent(events=[event]))

    async def send_resolved(self, ts: int, *regions: int, request_id: int) -> None:
        resolved = cdcpb_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id)
        await self.send(cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved))

    async def end(self) -> None:
        await self._outbox.put(None)

    async def sent(self) -> AsyncIterator[bytes]:
        while (message := await self._outbox.get()) is not None:
            yield message


class ScriptedUpstream:
    """Serves while it is entered. Change its attributes at any time; the next answer follows them."""

    def __init__(
        self, registered: Registered | None = None, *, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        """With ``credentials`` it speaks TLS."""
        self.registered = registered  # called for every registration
        self._credentials = credentials
        self.regions: list[pdpb_pb2.Region] = []
        self.stores = {1: metapb_pb2.Store(id=1, version="8.5.0")}
        self.requests: list[cdcpb_pb2.ChangeDataRequest] = []
        self.streams: list[FeedStream] = []
        self.calls: list[str] = []  # names of PD's methods, in order
        self.tso_counts: list[int] = []
        self.feed_methods = {"EventFeed", "EventFeedV2"}
        self.kv: dict[str, Callable[[bytes], Any]] = {}  # the store's unary methods: request bytes to message
        self.pd: dict[str, Callable[[bytes], Any]] = {}  # PD's methods beyond the usual ones, likewise
        self.leader_urls: list[str] | None = None  # None: this PD leads
        self.pd_refusal: tuple[grpc.StatusCode, str] | None = None
        self.pd_error: pdpb_pb2.Error | None = None
        self.pd_address = ""
        self._physical_ms = 1_700_000_000_000
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Handlers(self),))
        if self._credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", self._credentials)
        self.pd_address = f"127.0.0.1:{port}"
        for store in self.stores.values():
            store.address = store.address or self.pd_address
        await server.start()
        self._server = server
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    def next_ts(self) -> Ts:
        self._physical_ms += 1
        return compose(self._physical_ms)

    def header(self) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID, error=self.pd_error)

    def answer(self, method: str, request: Any) -> Any:
        """PD's unary calls."""
        match method:
            case "GetMembers":
                urls = self.leader_urls if self.leader_urls is not None else [f"http://{self.pd_address}"]
                header = pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID)
                return pdpb_pb2.GetMembersResponse(header=header, leader=pdpb_pb2.Member(client_urls=urls))
            case "GetRegion":
                return self._described(_holder(self.regions, request.region_key))
            case "GetPrevRegion":
                held = _holder(self.regions, request.region_key)
                start = held.region.start_key if held else b""
                return self._described(next((r for r in self.regions if start and r.region.end_key == start), None))
            case "ScanRegions":
                return pdpb_pb2.ScanRegionsResponse(header=self.header(), regions=self.regions)
            case "GetStore":
                return pdpb_pb2.GetStoreResponse(header=self.header(), store=self.stores.get(request.store_id))
            case _:
                return pdpb_pb2.GetAllStoresResponse(header=self.header(), stores=self.stores.values())

    def _described(self, found: pdpb_pb2.Region | None) -> pdpb_pb2.GetRegionResponse:
        if found is None:
            return pdpb_pb2.GetRegionResponse(header=self.header())
        return pdpb_pb2.GetRegionResponse(header=self.header(), region=found.region, leader=found.leader)


_REQUESTS: dict[str, Any] = {  # generated classes
    "GetMembers": pdpb_pb2.GetMembersRequest,
    "GetRegion": pdpb_pb2.GetRegionRequest,
    "GetPrevRegion": pdpb_pb2.GetRegionRequest,
    "ScanRegions": pdpb_pb2.ScanRegionsRequest,
    "GetStore": pdpb_pb2.GetStoreRequest,
    "GetAllStores": pdpb_pb2.GetAllStoresRequest,
}


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, upstream: ScriptedUpstream) -> None:
        self._upstream = upstream

    def service(self, details: Any) -> Any:
        _, service, method = details.method.split("/")
        if service == "cdcpb.ChangeData" and method in self._upstream.feed_methods:
            return grpc.stream_stream_rpc_method_handler(
                partial(self._feed, method),
                request_deserializer=cdcpb_pb2.ChangeDataRequest.FromString,
                response_serializer=None,
            )
        if method == "Tso":
            return grpc.stream_stream_rpc_method_handler(
                self._tso,
                request_deserializer=pdpb_pb2.TsoRequest.FromString,
                response_serializer=pdpb_pb2.TsoResponse.SerializeToString,
            )
        if service == "tikvpb.Tikv" and method in self._upstream.kv:
            return grpc.unary_unary_rpc_method_handler(
                partial(self._kv, method), response_serializer=lambda answer: answer.SerializeToString()
            )
        if service == "pdpb.PD" and method in self._upstream.pd:
            return grpc.unary_unary_rpc_method_handler(
                partial(self._more, method), response_serializer=lambda answer: answer.SerializeToString()
            )
        if method in _REQUESTS:
            return grpc.unary_unary_rpc_method_handler(
                partial(self._unary, method),
                request_deserializer=_REQUESTS[method].FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
        return None

    async def _unary(self, method: str, request: Any, context: Any) -> Any:
        upstream = self._upstream
        upstream.calls.append(method)
        if upstream.pd_refusal is not None and method != "GetMembers":
            await context.abort(*upstream.pd_refusal)
        return upstream.answer(method, request)

    async def _more(self, method: str, request: bytes, context: Any) -> Any:
        self._upstream.calls.append(method)
        return self._upstream.pd[method](request)

    async def _kv(self, method: str, request: bytes, context: Any) -> Any:
        return self._upstream.kv[method](request)

    async def _tso(self, requests: AsyncIterator[pdpb_pb2.TsoRequest], context: Any) -> AsyncIterator[Any]:
        upstream = self._upstream
        async for request in requests:
            if upstream.pd_refusal is not None:
                await context.abort(*upstream.pd_refusal)
            upstream.tso_counts.append(request.count)
            physical = upstream.next_ts() >> 18
            yield pdpb_pb2.TsoResponse(
                header=upstream.header(),
                count=request.count,
                timestamp=pdpb_pb2.Timestamp(physical=physical, logical=request.count - 1),
            )

    async def _feed(self, method: str, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
        stream = FeedStream(method, dict(context.invocation_metadata() or ()))
        self._upstream.streams.append(stream)
        listening = asyncio.ensure_future(self._listen(stream, requests))
        try:
            async for message in stream.sent():
                yield message
        finally:
            listening.cancel()

    async def _listen(self, stream: FeedStream, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest]) -> None:
        async for request in requests:
            self._upstream.requests.append(request)
            if not request.HasField("deregister") and self._upstream.registered is not None:
                await self._upstream.registered(stream, request)
            elif request.HasField("deregister") and request.region_id:
                gone = cdcpb_pb2.Error()
                gone.region_not_found.region_id = request.region_id
                await stream.send_error(request, gone)


def _holder(regions: list[pdpb_pb2.Region], key: bytes) -> pdpb_pb2.Region | None:
    def holds(found: metapb_pb2.Region) -> bool:
        return found.start_key <= key and (not found.end_key or key < found.end_key)

    return next((r for r in regions if holds(r.region)), None)
