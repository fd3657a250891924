"""A plain client of the embedded upstream: generated stubs, no cleverness. Waits have deadlines."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import cdcpb_pb2, cdcpb_pb2_grpc, kvrpcpb_pb2, metapb_pb2, pdpb_pb2, pdpb_pb2_grpc, tikvpb_pb2_grpc
from tidemill.model.change import Op

DEADLINE_SECONDS = 30
Row = cdcpb_pb2.Event.Row
PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5


def put(key: bytes, value: bytes = b"v") -> Mutation:
    return Mutation(Op.PUT, key, value)


def delete(key: bytes) -> Mutation:
    return Mutation(Op.DELETE, key)


class Client:
    """PD and every store of one upstream."""

    def __init__(self, upstream: EmbeddedUpstream) -> None:
        self._channels: list[grpc.Channel] = []
        self._feeds: list[Feed] = []
        self.pd = pdpb_pb2_grpc.PDStub(self.channel(upstream.pd_address))
        members = self.pd.GetMembers(pdpb_pb2.GetMembersRequest(), timeout=DEADLINE_SECONDS)
        self.cluster_id = members.header.cluster_id
        self.header = pdpb_pb2.RequestHeader(cluster_id=self.cluster_id)
        answer = self.pd.GetAllStores(pdpb_pb2.GetAllStoresRequest(header=self.header))
        self._addresses = {store.id: store.address for store in answer.stores}
        self.kv = {i: tikvpb_pb2_grpc.TikvStub(self.channel(address)) for i, address in self._addresses.items()}

    def channel(self, address: str) -> grpc.Channel:
        channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._channels.append(channel)
        return channel

    def regions(self) -> list[pdpb_pb2.Region]:
        return list(self.pd.ScanRegions(pdpb_pb2.ScanRegionsRequest(header=self.header)).regions)

    def region(self, physical_key: bytes = b"") -> pdpb_pb2.GetRegionResponse:
        return self.pd.GetRegion(pdpb_pb2.GetRegionRequest(header=self.header, region_key=physical_key))

    def context(self, region, **other) -> kvrpcpb_pb2.Context:
        """``region`` is any PD answer with a region and its leader."""
        epoch = region.region.region_epoch
        return kvrpcpb_pb2.Context(region_id=region.region.id, region_epoch=epoch, peer=region.leader, **other)

    def feed(self, store_id: int = 1, **options) -> "Feed":
        stub = cdcpb_pb2_grpc.ChangeDataStub(self.channel(self._addresses[store_id]))
        feed = Feed(stub, self.cluster_id, **options)
        self._feeds.append(feed)
        return feed

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()
        for channel in self._channels:
            channel.close()


class Feed:
    """One change stream. ``rows``, ``errors`` and ``resolved`` grow as messages come in; ``log`` keeps their order."""

    def __init__(
        self, stub, cluster_id: int, *, version: str = "8.5.0", v2: bool = True, features=None, inbox=None, paused=False
    ) -> None:
        self._cluster_id = cluster_id
        self._version = version
        self._requests: queue.Queue = queue.Queue()
        self._inbox: queue.Queue | None = inbox  # told of every entry, if given
        self.may_read = threading.Event()
        if not paused:
            self.may_read.set()
        self._arrived = threading.Condition()
        self.log: list[tuple] = []
        self.end: grpc.RpcError | None = None
        self.ended = False
        self.largest_message = 0
        self.indexes: list[int] = []  # of every event with rows
        features = "stream-multiplexing" if features is None else features
        call = stub.EventFeedV2 if v2 else stub.EventFeed
        self._call = call(iter(self._requests.get, None), metadata=[("features", features)] if v2 else None)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def register(self, region, request_id: int = 1, *, checkpoint_ts: int = 0, version=None, **other) -> None:
        meta: metapb_pb2.Region = region.region
        epoch = metapb_pb2.RegionEpoch(
            conf_ver=meta.region_epoch.conf_ver, version=meta.region_epoch.version if version is None else version
        )
        bounds = {"start_key": meta.start_key, "end_key": meta.end_key}
        header = {"cluster_id": self._cluster_id, "ticdc_version": self._version}
        self.send(
            **{
                "header": cdcpb_pb2.Header(**header),
                "region_id": meta.id,
                "region_epoch": epoch,
                "checkpoint_ts": checkpoint_ts,
                "request_id": request_id,
                "extra_op": kvrpcpb_pb2.ReadOldValue,
                **bounds,
                **other,
            }
        )

    def deregister(self, region_id: int, request_id: int = 1) -> None:
        self.send(region_id=region_id, request_id=request_id, deregister=cdcpb_pb2.ChangeDataRequest.Deregister())

    def send(self, **fields) -> None:
        self._requests.put(cdcpb_pb2.ChangeDataRequest(**fields))

    def half_close(self) -> None:
        self._requests.put(None)

    def close(self) -> None:
        self._call.cancel()
        self._requests.put(None)
        self.may_read.set()
        self._reader.join(DEADLINE_SECONDS)

    def wait(self, predicate: Callable[[], object]) -> None:
        """Until it holds; fails with what arrived if it does not in time."""
        with self._arrived:
            if not self._arrived.wait_for(predicate, DEADLINE_SECONDS):
                last = [(*entry[:3], str(entry[3])[:200]) for entry in self.log[-10:]]
                raise AssertionError(f"waited in vain; arrived last: {last}, ended: {self.end}")

    def wait_initialized(self, *region_ids: int, request_id: int = 1) -> None:
        self.wait(lambda: set(region_ids) <= self.initialized(request_id))

    def wait_resolved(self, region_id: int, ts: int, request_id: int = 1) -> None:
        """Until the region is resolved up to ``ts`` or beyond."""
        self.wait(lambda: any(entry[3] >= ts for entry in self.resolved(region_id, request_id)))

    def initialized(self, request_id: int = 1) -> set[int]:
        return {e[2] for e in self.log if e[0] == "row" and e[1] == request_id and e[3].type == INITIALIZED}

    def rows(self, region_id: int | None = None, request_id: int = 1, *, kind: int | None = None) -> list[Row]:
        return [
            row
            for what, request, region, row in self.log
            if what == "row"
            and request == request_id
            and region_id in (None, region)
            and (row.type == kind if kind is not None else row.type != INITIALIZED)
        ]

    def errors(self) -> list[tuple[int, int, cdcpb_pb2.Error]]:
        return [(request, region, error) for what, request, region, error in self.log if what == "error"]

    def error(self) -> cdcpb_pb2.Error:
        """Wait for the first error event."""
        self.wait(self.errors)
        return self.errors()[0][2]

    def resolved(self, region_id: int, request_id: int = 1) -> list[tuple]:
        return [e for e in self.log if e[0] == "resolved" and e[1] == request_id and e[2] == region_id]

    def _read(self) -> None:
        self.may_read.wait()
        try:
            for message in self._call:
                self.largest_message = max(self.largest_message, message.ByteSize())
                entries = list(_entries(message))
                self.indexes += [event.index for event in message.events if event.HasField("entries")]
                if self._inbox is not None:
                    self._inbox.put((self, entries))
                    continue
                with self._arrived:
                    self.log.extend(entries)
                    self._arrived.notify_all()
        except grpc.RpcError as error:
            self.end = error
        if self._inbox is not None:
            self._inbox.put((self, [("ended", 0, 0, None)]))
        with self._arrived:
            self.ended = True
            self._arrived.notify_all()


def _entries(message: cdcpb_pb2.ChangeDataEvent) -> Iterator[tuple]:
    for event in message.events:
        kind = event.WhichOneof("event")
        if kind == "entries":
            for row in event.entries.entries:
                yield "row", event.request_id, event.region_id, row
        elif kind == "error":
            yield "error", event.request_id, event.region_id, event.error
        elif kind == "resolved_ts":
            yield "resolved", event.request_id, event.region_id, event.resolved_ts
    for region_id in message.resolved_ts.regions:
        yield "resolved", message.resolved_ts.request_id, region_id, message.resolved_ts.ts


@contextmanager
def client_of(upstream: EmbeddedUpstream) -> Iterator[Client]:
    client = Client(upstream)
    try:
        yield client
    finally:
        client.close()
