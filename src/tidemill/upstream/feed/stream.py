"""One change stream to one store, from its opening to its end. ``client.py`` opens another when it is wanted.

    requests ──► send ──► store ──► receive ──► inbox (bounded) ──► deliver ──► listener

The listener may take its time: then the inbox fills, we stop reading, and the transport's flow
control makes the store wait. Messages that have come meanwhile are taken together, so the more
there is to do, the larger the batches.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tidemill._pb import cdcpb_pb2
from tidemill.errors import IncompatibleUpstreamError, ProtocolViolationError
from tidemill.log import get_logger
from tidemill.model.span import end_to_wire
from tidemill.model.ts import Ts
from tidemill.upstream.feed.bounds import plain_bound
from tidemill.upstream.feed.matcher import Matched, Matcher
from tidemill.upstream.feed.registration import TRANSACTIONS, FeedListener, Registration, StreamMode
from tidemill.upstream.feed.spill import Spill
from tidemill.upstream.feed.wire import RESOLVED_TS, ErrorEvent, parse
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.topology import peer_from

# The version that TiKV takes us for decides how resolved-ts are sent; a leading "v" would make it 0.0.0.
SPOKEN_VERSION = "9.0.0"
MAX_INBOX_BYTES = 8 << 20
MAX_SCANS = 128  # incremental scans asked of one store at a time; the rest wait here
_LONGEST_BUSY_SECONDS = 600.0

log = get_logger("feed")


class MalformedStreamError(Exception):
    """Bytes that are no message: this stream is worth nothing any more, the next one may be."""


@dataclass(slots=True)
class StreamStats:
    messages: int = 0
    bytes: int = 0
    changes: int = 0


class _Inbox:
    """Messages received and not yet delivered, up to ``MAX_INBOX_BYTES`` (one message may exceed it)."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self.size = 0
        self._end: BaseException | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    async def put(self, message: bytes) -> None:
        self._messages.append(message)
        self.size += len(message)
        self._filled.set()
        while self.size >= MAX_INBOX_BYTES:
            self._emptied.clear()
            await self._emptied.wait()

    def end(self, why: BaseException) -> None:
        self._end = why
        self._filled.set()

    async def take(self) -> list[bytes]:
        """All that is there, at least one message. At the end of the stream raises why it ended."""
        while not self._messages:
            if self._end is not None:
                raise self._end
            self._filled.clear()
            await self._filled.wait()
        messages, self._messages, self.size = self._messages, [], 0
        self._emptied.set()
        return messages


class StoreStream:
    """Registrations of one store that share a stream. A stream that ended is not used again."""

    def __init__(
        self,
        regions: RegionCache,
        listener: FeedListener,
        stats: StreamStats,
        cluster_id: int,
        only_request: int = 0,
        spill: Spill | None = None,
        mode: StreamMode = TRANSACTIONS,
    ) -> None:
        """``only_request`` is given where the server cannot multiplex: then the stream serves that request alone."""
        self._regions = regions
        self._listener = listener
        self._stats = stats
        self._mode = mode
        self._header = cdcpb_pb2.Header(cluster_id=cluster_id, ticdc_version=SPOKEN_VERSION)
        self._is_multiplexed = only_request == 0
        self._matcher = Matcher(only_request, spill)
        self._followed: dict[int, Registration] = {}  # by the matcher's slot
        self._scanning: set[Registration] = set()
        self._queued: deque[Registration] = deque()  # until a scan ends
        self._outgoing: deque[cdcpb_pb2.ChangeDataRequest] = deque()
        self._has_outgoing = asyncio.Event()
        self._inbox = _Inbox()
        self.has_received = False

    @property
    def inbox_bytes(self) -> int:
        return self._inbox.size

    @property
    def registrations(self) -> list[Registration]:
        return [*self._followed.values(), *self._queued]

    @property
    def waiting_changes(self) -> int:
        return self._matcher.waiting

    def register(self, registration: Registration) -> None:
        self._queued.append(registration)
        self._start_scans()

    def deregister(self, request_id: int) -> None:
        """Stop following all regions of a request. What still comes for it is ignored."""
        self._queued = deque(r for r in self._queued if r.request_id != request_id)
        gone = [slot for slot, r in self._followed.items() if r.request_id == request_id]
        for slot in gone:
            self._drop(slot)
        if gone:
            self._send(
                cdcpb_pb2.ChangeDataRequest(request_id=request_id, deregister=cdcpb_pb2.ChangeDataRequest.Deregister())
            )
        self._start_scans()

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Until the stream ends, which it does with an error: the transport's, or a fatal one."""
        call = self._open(channel)
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._send_all(call)), tasks.create_task(_receive(call, self._inbox))]
                try:
                    while True:
                        await self._deliver(await self._inbox.take())
                finally:
                    for helper in helpers:
                        helper.cancel()
        finally:
            call.cancel()

    def _open(self, channel: grpc.aio.Channel) -> Any:
        method = "EventFeedV2" if self._is_multiplexed else "EventFeed"
        feed = channel.stream_stream(
            f"/cdcpb.ChangeData/{method}",
            request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString,
            response_deserializer=None,  # the bytes as they are
        )
        return feed(metadata=(("features", "stream-multiplexing"),) if self._is_multiplexed else None)

    def _start_scans(self) -> None:
        while self._queued and len(self._scanning) < MAX_SCANS:
            registration = self._queued.popleft()
            region, part = registration.region, registration.part
            slot = self._matcher.register(
                registration.request_id,
                region.id,
                registration.checkpoint_ts,
                plain_bound(part.start) or b"",
                plain_bound(part.end),
            )
            self._followed[slot] = registration
            self._scanning.add(registration)
            self._send(
                cdcpb_pb2.ChangeDataRequest(
                    region_id=region.id,
                    region_epoch=region.epoch(),
                    checkpoint_ts=registration.checkpoint_ts,
                    start_key=part.start,
                    end_key=end_to_wire(part.end),
                    request_id=registration.request_id,
                    kv_api=self._mode.kv_api,
                    extra_op=self._mode.extra_op,
                )
            )

    def _send(self, request: cdcpb_pb2.ChangeDataRequest) -> None:
        request.header.CopyFrom(self._header)
        self._outgoing.append(request)
        self._has_outgoing.set()

    async def _send_all(self, call: Any) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            while self._outgoing:
                try:
                    await call.write(self._outgoing.popleft())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the stream has ended; the receiving side tells why

    async def _deliver(self, messages: list[bytes]) -> None:
        try:
            parsed = parse(messages)
            errors = parsed.error_events()
        except ProtocolViolationError as broken:
            raise MalformedStreamError(str(broken)) from broken
        self.has_received = True
        if self._mode.safe_interval_ms:
            parsed.resolved[:, RESOLVED_TS] = self._mode.taken_back(parsed.resolved[:, RESOLVED_TS])
        matched = self._matcher.process(parsed)
        # Slots are the matcher's and change hands; while the listener takes its time, too.
        initialized = [(slot, self._followed[slot]) for slot in matched.initialized]
        advanced = [(slot, self._followed[slot], ts) for slot, ts in matched.advanced]
        failed = [(slot, self._followed[slot]) for slot in matched.failed]
        self._count(messages, matched)
        for request_id, batch in matched.batches:
            await self._listener.changes(request_id, batch)
        for _, registration in filter(self._is_current, initialized):
            self._scanning.discard(registration)
            self._listener.initialized(registration)
        progress: list[tuple[Registration, Ts]] = [(r, ts) for s, r, ts in advanced if self._followed.get(s) is r]
        if progress:
            self._listener.resolved(progress)
        for _, registration in filter(self._is_current, failed):
            self._leave(registration)
        for error in errors:
            self._end_registration(error)
        self._start_scans()

    def _is_current(self, item: tuple[int, Registration]) -> bool:
        return self._followed.get(item[0]) is item[1]

    def _count(self, messages: list[bytes], matched: Matched) -> None:
        self._stats.messages += len(messages)
        self._stats.bytes += sum(map(len, messages))
        self._stats.changes += sum(batch.num_rows for _, batch in matched.batches)

    def _leave(self, registration: Registration) -> None:
        """A COMMIT came without its PREWRITE. Registered anew, the region's scan brings the change whole.

        The store confirms with an error event; only then may the pair be registered again.
        """
        log.warning("commit without prewrite; registering the region anew", region=registration.region.id)
        self._send(
            cdcpb_pb2.ChangeDataRequest(
                request_id=registration.request_id,
                region_id=registration.region.id,
                deregister=cdcpb_pb2.ChangeDataRequest.Deregister(),
            )
        )

    def _drop(self, slot: int) -> Registration:
        registration = self._followed.pop(slot)
        self._scanning.discard(registration)
        self._matcher.release(slot)
        return registration

    def _end_registration(self, event: ErrorEvent) -> None:
        slot = self._matcher.find(event.request_id, event.region_id)
        if slot is None:
            return  # already left: this only confirms it
        registration = self._drop(slot)
        reason, at_least_seconds = self._explain(registration, event.error)
        self._listener.lost(registration, reason, at_least_seconds)

    def _explain(self, registration: Registration, error: cdcpb_pb2.Error) -> tuple[str, float]:
        """Correct the region cache; say why the region is lost and how long it wants to be left alone."""
        region = registration.region
        if error.HasField("not_leader"):
            leader = peer_from(error.not_leader.leader)
            if leader is None or not self._regions.set_leader(region.id, leader):
                self._regions.drop(region)
            return "not leader", 0.0
        if error.HasField("epoch_not_match"):
            self._regions.react_to_epoch(region, list(error.epoch_not_match.current_regions))
            return "epoch not match", 0.0
        if error.HasField("region_not_found"):
            self._regions.drop(region)
            return "region not found", 0.0
        if error.HasField("server_is_busy"):
            return "server is busy", min(error.server_is_busy.backoff_ms / 1000, _LONGEST_BUSY_SECONDS)
        if error.HasField("congested"):
            return "congested", 0.0
        for name, fatal in _FATAL.items():
            if error.HasField(name):
                raise fatal(region.id, error)
        return "unknown error", 0.0


def _duplicate(region_id: int, error: cdcpb_pb2.Error) -> Exception:
    return ProtocolViolationError(
        f"the store says that region {region_id} was registered twice on one stream. "
        "Nothing is lost: resume from the checkpoint; if it repeats, report it with the store's version."
    )


def _incompatible(region_id: int, error: cdcpb_pb2.Error) -> Exception:
    return IncompatibleUpstreamError(
        f"the store of region {region_id} cannot be followed by this client: it requires version "
        f"{error.compatibility.required_version} or another API mode. Upgrade TiKV, or check its api-version."
    )


def _foreign(region_id: int, error: cdcpb_pb2.Error) -> Exception:
    mismatch = error.cluster_id_mismatch
    return IncompatibleUpstreamError(
        f"the store of region {region_id} belongs to cluster {mismatch.current}, but PD answered for cluster "
        f"{mismatch.request}. Check that no store's address is used by two clusters."
    )


_FATAL: dict[Any, Callable[[int, cdcpb_pb2.Error], Exception]] = {
    "duplicate_request": _duplicate,
    "compatibility": _incompatible,
    "cluster_id_mismatch": _foreign,
}


async def _receive(call: Any, inbox: _Inbox) -> None:
    try:
        while (message := await call.read()) is not grpc.aio.EOF:
            await inbox.put(message)
        inbox.end(ConnectionError("the store ended the stream"))
    except grpc.aio.AioRpcError as error:
        inbox.end(error)
