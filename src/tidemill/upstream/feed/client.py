"""The change stream's client: one stream per store, shared by all requests, reopened when it breaks.

    puller ── registrations ──► FeedClient ──► a StoreStream per store ──► TiKV

What heals by trying again is reported to the listener as a loss, which finds the keys' region anew
and registers it. What does not heal (another cluster, an old version, a broken promise) ends ``run``.
"""

import asyncio
import re

import grpc

from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import (
    IncompatibleUpstreamError,
    InvariantError,
    ProtocolViolationError,
    RegionUnavailableError,
    UpstreamUnavailableError,
)
from tidemill.log import get_logger
from tidemill.upstream.channel import open_channel
from tidemill.upstream.feed.registration import TRANSACTIONS, FeedListener, Registration, StreamMode
from tidemill.upstream.feed.spill import Spill
from tidemill.upstream.feed.stream import MalformedStreamError, StoreStream, StreamStats
from tidemill.upstream.kv import check_trust
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.tasks import first_of, raise_first, spawn
from tidemill.upstream.topology import Store

RECONNECT_SECONDS = 1.0
MAX_MALFORMED_STREAMS = 5  # in a row, of one store, before we give it up
_OLDEST, _TOO_NEW = (7, 1, 0), (10, 0, 0)

log = get_logger("feed")


class FeedClient:
    """For one event loop. ``register`` and ``deregister`` are for the time while ``run`` runs."""

    def __init__(
        self,
        regions: RegionCache,
        listener: FeedListener,
        *,
        spill: Spill | None = None,
        mode: StreamMode = TRANSACTIONS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``spill``: where large transactions wait for their end."""
        self._mode = mode
        self._regions = regions
        self._spill = spill
        self._listener = listener
        self._clock = clock
        self._tasks: asyncio.TaskGroup | None = None
        self._streams: dict[tuple[int, int], StoreStream] = {}  # by store and, where it cannot multiplex, request
        self._cannot_multiplex: set[int] = set()
        self._not_before: dict[int, float] = {}
        self._malformed: dict[int, int] = {}
        self.stats = StreamStats()

    @property
    def waiting_changes(self) -> int:
        """Changes of which only the PREWRITE or only the COMMIT has come."""
        return sum(stream.waiting_changes for stream in self._streams.values())

    @property
    def inbox_bytes(self) -> int:
        """Received and not yet taken by the listener; at most ``MAX_INBOX_BYTES`` per store, and one message."""
        return sum(stream.inbox_bytes for stream in self._streams.values())

    async def run(self) -> None:
        """Until cancelled. Fails with a typed error on what waiting cannot heal."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.get_running_loop().create_future()  # until cancelled, or a stream fails for good
        except BaseExceptionGroup as group:
            raise_first(group)
        finally:
            self._tasks = None
            self._streams.clear()

    def register(self, registration: Registration) -> None:
        leader = registration.region.leader
        if self._tasks is None or leader is None:
            raise InvariantError(f"region {registration.region.id} is registered without a leader or a running client")
        only_request = registration.request_id if leader.store_id in self._cannot_multiplex else 0
        key = (leader.store_id, only_request)
        stream = self._streams.get(key)
        if stream is None:
            cluster_id = self._regions.pd.cluster_id
            stream = StoreStream(
                self._regions, self._listener, self.stats, cluster_id, only_request, self._spill, self._mode
            )
            self._streams[key] = stream
            spawn(self._tasks, self._follow(key, stream))
        stream.register(registration)

    def deregister(self, request_id: int) -> None:
        for stream in self._streams.values():
            stream.deregister(request_id)

    async def _follow(self, key: tuple[int, int], stream: StoreStream) -> None:
        """One stream from the first attempt to dial to its end."""
        store_id = key[0]
        try:
            reason = await self._converse(store_id, stream)
        finally:
            self._streams.pop(key, None)
        self._not_before[store_id] = self._clock.monotonic() + RECONNECT_SECONDS
        lost = stream.registrations
        log.warning("change stream lost", store=store_id, reason=reason, regions=len(lost))
        self._regions.forget_store(store_id)
        for registration in lost:
            if stream.has_received:
                self._regions.drop(registration.region)
            else:
                # The store does not even answer, and PD may not know yet: another peer knows who leads.
                self._regions.rotate_leader(registration.region)
            self._listener.lost(registration, reason, 0.0)

    async def _converse(self, store_id: int, stream: StoreStream) -> str:
        """Why the stream ended."""
        store: Store | None = None
        try:
            wait_seconds = self._not_before.get(store_id, 0.0) - self._clock.monotonic()
            if wait_seconds > 0:
                await self._clock.sleep(wait_seconds)
            await self._check_versions()
            store = await self._regions.store(store_id)
            async with open_channel(store.address, self._regions.pd.security) as channel:
                await stream.run(channel)
        except (BaseExceptionGroup, Exception) as error:
            first = first_of(error)
            if isinstance(first, grpc.aio.AioRpcError) and store is not None and not stream.has_received:
                await check_trust(store, self._regions.pd.security, first)
            return self._excuse(store_id, stream, first)
        raise InvariantError("a change stream ended without a reason")

    def _excuse(self, store_id: int, stream: StoreStream, error: BaseException) -> str:
        """Turn what ended a stream into a reason, or raise it if no new stream can help."""
        if isinstance(error, MalformedStreamError):
            self._malformed[store_id] = self._malformed.get(store_id, 0) + 1
            if self._malformed[store_id] >= MAX_MALFORMED_STREAMS:
                raise ProtocolViolationError(f"store {store_id}, {MAX_MALFORMED_STREAMS} times in a row: {error}")
            return str(error)
        if stream.has_received:
            self._malformed.pop(store_id, None)
        if isinstance(error, grpc.aio.AioRpcError):
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and store_id not in self._cannot_multiplex:
                self._cannot_multiplex.add(store_id)
                return "the store does not multiplex"
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise IncompatibleUpstreamError(
                    f"store {store_id} has no change stream ({error.details()}). "
                    "Check that its address is a TiKV of version 7.1 or later."
                )
            return f"{error.code().name}: {error.details()}"
        if isinstance(error, (ConnectionError, RegionUnavailableError, UpstreamUnavailableError)):
            return str(error)
        raise error

    async def _check_versions(self) -> None:
        """TiKV outside these versions speaks the change stream differently; asked before each stream, as TiCDC does."""
        for store in await self._regions.pd.get_all_stores():
            version = _version_of(store)
            if store.is_tikv and version is not None and not _OLDEST <= version < _TOO_NEW:
                raise IncompatibleUpstreamError(
                    f"TiKV store {store.id} at {store.address} is of version {store.version}; "
                    "from 7.1.0 to below 10.0.0 is supported. Upgrade it, or take a release made for it."
                )


def _version_of(store: Store) -> tuple[int, ...] | None:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", store.version)
    return tuple(int(n) for n in found.groups()) if found else None
