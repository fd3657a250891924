"""Requests to the store that leads a key's region, tried again until the region answers.

    snapshot reader, raw and transactional clients, lock resolver ──► KvClient ── region cache ──► TiKV

A request is made anew for each attempt, by the region as it is then known: after a split it may
cover fewer keys. Region errors and silent stores are dealt with here and seen nowhere else.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeVar

import grpc

from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import (
    IncompatibleUpstreamError,
    ProtocolViolationError,
    RegionUnavailableError,
    UntrustedUpstreamError,
    UpstreamError,
)
from tidemill.model.security import Security
from tidemill.model.span import Span
from tidemill.retry import Policy
from tidemill.upstream.channel import open_channel
from tidemill.upstream.keyspace import TXN_V1, Keyspace, earlier
from tidemill.upstream.regions import Reaction, RegionCache, Retry
from tidemill.upstream.tasks import raise_first
from tidemill.upstream.tls import examine
from tidemill.upstream.topology import Region, Store

CALL_SECONDS = 20.0
DEADLINE_SECONDS = 60.0
MAX_CALLS = 16  # of one spread request at the same time
_SILENT_STORE = Reaction(Retry.LATER, Policy(0.1, 2.0))
_HOPELESS = {
    grpc.StatusCode.UNIMPLEMENTED: "does not know {method}. Check that it is a TiKV",
    grpc.StatusCode.INVALID_ARGUMENT: "does not accept {method}. Check that PD and TiKV are of one cluster",
    grpc.StatusCode.UNAUTHENTICATED: "does not accept our certificate. Check the client certificate",
    grpc.StatusCode.PERMISSION_DENIED: "does not allow {method}. Check the client certificate",
}
_NEVER_SENT = "failed to connect"  # gRPC's words for a call that found no connection


class UnansweredError(RegionUnavailableError):
    """The request was sent and no answer came: it may or may not have been carried out."""


@dataclass(slots=True)
class _Sent:
    """What is known of the attempts of one request."""

    is_unanswered: bool = False  # one of them may have been carried out


class Response(Protocol):
    @property
    def region_error(self) -> errorpb_pb2.Error: ...
    def HasField(self, name: Any) -> bool: ...


Answer = TypeVar("Answer", bound=Response)


class KvClient:
    """For one event loop; ``close`` when done. Keys are logical ones of ``keyspace``."""

    def __init__(
        self,
        regions: RegionCache,
        *,
        keyspace: Keyspace = TXN_V1,
        clock: Clock = SYSTEM_CLOCK,
        deadline_seconds: float = DEADLINE_SECONDS,
        longest_pause_seconds: float = inf,
    ) -> None:
        self._longest_pause_seconds = longest_pause_seconds
        self._regions = regions
        self._keyspace = keyspace
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._channels: dict[int, tuple[str, grpc.aio.Channel]] = {}  # by store, with the address dialled
        self._retired: list[tuple[float, grpc.aio.Channel]] = []

    @property
    def keyspace(self) -> Keyspace:
        return self._keyspace

    async def close(self) -> None:
        channels = [channel for _, channel in [*self._channels.values(), *self._retired]]
        self._channels, self._retired = {}, []
        for channel in channels:
            await channel.close()

    async def send(
        self,
        method: str,
        key: bytes,
        make: Callable[[Region], Any],
        decode: Callable[[bytes], Answer],
        *,
        is_below: bool = False,
        is_once: bool = False,
    ) -> tuple[Region, Answer]:
        """Ask the leader of the region that holds ``key``; return that region and its answer.

        ``make`` builds the request for the region asked, ``decode`` reads the answer. With
        ``is_below`` the region of the keys just below ``key`` is asked, where an empty one lies
        behind all keys. A request that must not be carried out twice is sent again only when it
        was certainly not carried out (``is_once``). In the end raises ``RegionUnavailableError``, or
        ``UnansweredError`` if any attempt may have been carried out, whatever became of later ones.
        """
        sent = _Sent()
        try:
            return await self._persist(method, key, make, decode, is_below, is_once, sent)
        except UpstreamError as error:
            if not sent.is_unanswered or isinstance(error, UnansweredError):
                raise
            raise UnansweredError(f"{method} had no answer, and then: {error}") from error

    async def _persist(
        self,
        method: str,
        key: bytes,
        make: Callable[[Region], Any],
        decode: Callable[[bytes], Answer],
        is_below: bool,
        is_once: bool,
        sent: "_Sent",
    ) -> tuple[Region, Answer]:
        give_up = self._clock.monotonic() + self._deadline_seconds
        attempt = 0
        while True:
            region = await self._locate(key, is_below)
            reaction, why = _SILENT_STORE, ""
            try:
                answer = decode(await self._ask(region, method, make(region)))
                if not answer.HasField("region_error"):
                    return region, answer
                sent.is_unanswered |= answer.region_error.HasField("undetermined_result")
                reaction, why = self._regions.react(region, answer.region_error), _name_of(answer.region_error)
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {error.details()}"
                if error.code() in _HOPELESS:
                    verdict = _HOPELESS[error.code()].format(method=method)
                    raise IncompatibleUpstreamError(f"the store of region {region.id} {verdict} ({why}).") from error
                await self._raise_if_untrusted(region, error)
                sent.is_unanswered |= _NEVER_SENT not in (error.details() or "")
                self._store_is_silent(region)
            except ProtocolViolationError:
                sent.is_unanswered |= is_once  # it did something, and we cannot read what
                raise
            except RegionUnavailableError as error:
                why = str(error)
                self._regions.drop(region)
            if reaction.retry is Retry.NEVER:
                raise UpstreamError(f"region {region.id} refuses {method}: {why}. Trying again would not help.")
            if self._clock.monotonic() >= give_up or (is_once and sent.is_unanswered):
                kind = UnansweredError if sent.is_unanswered else RegionUnavailableError
                raise kind(
                    f"region {region.id} did not answer {method} within {self._deadline_seconds:.0f} s (last: {why}). "
                    "Check that the TiKV stores are up and that this machine may reach them."
                )
            if reaction.retry is not Retry.AT_ONCE or attempt > 0:
                pause = reaction.pauses.pause_seconds(attempt + 1)
                await self._clock.sleep(min(pause, self._longest_pause_seconds))
            attempt += 1

    async def send_some(
        self,
        method: str,
        keys: Sequence[bytes],
        make: Callable[[Sequence[bytes]], Any],
        decode: Callable[[bytes], Answer],
        *,
        is_once: bool = False,
    ) -> tuple[int, Answer]:
        """Ask for those of the sorted ``keys`` that share the first one's region; return how many, and the answer."""
        asked = 0

        def request(region: Region) -> Any:
            nonlocal asked
            end = self._keyspace.bounds(region)[1]
            asked = bisect_left(keys, end) if end else len(keys)
            return make(keys[:asked])

        _, answer = await self.send(method, keys[0], request, decode, is_once=is_once)
        return asked, answer

    async def spread(
        self,
        keys: Sequence[bytes],
        ask: Callable[[Sequence[bytes]], Awaitable[int]],
        *,
        max_keys: int,
        max_bytes: int = 1 << 62,
        size_of: Callable[[bytes], int] = len,
        max_calls: int = MAX_CALLS,
    ) -> None:
        """Deal with sorted keys region by region, several at a time.

        ``ask`` is given keys of one region, as far as is known, never more than the limits allow but
        at least one. It says how many of them, from the first on, are done, and gets the rest again.
        When one fails, the others are cancelled.
        """
        turns = asyncio.Semaphore(max_calls)

        async def deal_with(some: Sequence[bytes]) -> None:
            async with turns:
                while some:
                    some = some[await ask(some) :]

        try:
            async with asyncio.TaskGroup() as tasks:
                for group in await self._by_region(keys):
                    for some in _cut(group, max_keys, max_bytes, size_of):
                        tasks.create_task(deal_with(some))
        except BaseExceptionGroup as group_of_errors:
            raise_first(group_of_errors)

    async def spread_range(
        self,
        start: bytes,
        end: bytes,
        ask: Callable[[bytes, bytes], Awaitable[bytes]],
        *,
        max_calls: int = MAX_CALLS,
    ) -> None:
        """Deal with the keys ``[start, end)`` region by region, several at a time; an empty ``end`` means to the last.

        ``ask`` is given a range that begins in one region. It says up to where it is done, at the
        latest the range's end, and gets the rest again. When one fails, the others are cancelled.
        """
        turns = asyncio.Semaphore(max_calls)

        async def deal_with(at: bytes, border: bytes) -> None:
            async with turns:
                while (at := await ask(at, border)) != border:
                    pass

        try:
            async with asyncio.TaskGroup() as tasks:
                for part in await self._ranges(start, end):
                    tasks.create_task(deal_with(*part))
        except BaseExceptionGroup as group_of_errors:
            raise_first(group_of_errors)

    async def _ranges(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """A range cut where regions end, as the cache knows them now."""
        parts: list[tuple[bytes, bytes]] = []
        at = start
        while not end or at < end:
            span = Span(self._keyspace.physical(at), self._keyspace.physical_end(end))
            for region in await self._regions.load(span):
                border = earlier(end, self._keyspace.bounds(region)[1])
                parts.append((at, border))
                at = border
            if at == end:
                break
        return parts

    async def _by_region(self, keys: Sequence[bytes]) -> list[Sequence[bytes]]:
        groups: list[Sequence[bytes]] = []
        while keys:
            start, last = self._keyspace.physical(keys[0]), self._keyspace.physical(keys[-1])
            for region in await self._regions.load(Span(start, last + b"\0")):
                end = self._keyspace.bounds(region)[1]
                count = bisect_left(keys, end) if end else len(keys)
                if count:
                    groups.append(keys[:count])
                    keys = keys[count:]
        return groups

    async def _locate(self, key: bytes, is_below: bool) -> Region:
        if is_below:
            return await self._regions.locate_below(self._keyspace.physical_end(key))
        return await self._regions.locate(self._keyspace.physical(key))

    async def _ask(self, region: Region, method: str, request: Any) -> bytes:
        if region.leader is None:
            raise RegionUnavailableError(f"region {region.id} has no leader")
        channel = await self._channel(await self._regions.store(region.leader.store_id))
        context: kvrpcpb_pb2.Context = request.context
        context.region_id = region.id
        context.region_epoch.CopyFrom(region.epoch())
        context.peer.CopyFrom(region.leader.to_wire())
        context.api_version = self._keyspace.api_version
        context.keyspace_id = self._keyspace.id
        call = channel.unary_unary(
            f"/tikvpb.Tikv/{method}", request_serializer=type(request).SerializeToString, response_deserializer=None
        )
        answer: bytes = await call(request, timeout=CALL_SECONDS)
        return answer

    async def _channel(self, store: Store) -> grpc.aio.Channel:
        known = self._channels.get(store.id)
        if known is not None and known[0] == store.address:
            return known[1]
        channel = open_channel(store.address, self._regions.pd.security)
        self._channels[store.id] = (store.address, channel)
        # Calls may still be under way to where the store was; closing their channel would cancel their tasks.
        now = self._clock.monotonic()
        over = [old for since, old in self._retired if now - since > 2 * CALL_SECONDS]
        self._retired = [(since, old) for since, old in self._retired if old not in over]
        if known is not None:
            self._retired.append((now, known[1]))
        for old in over:
            await old.close()
        return channel

    async def _raise_if_untrusted(self, region: Region, error: grpc.aio.AioRpcError) -> None:
        security = self._regions.pd.security
        if security.is_tls and error.code() is grpc.StatusCode.UNAVAILABLE and region.leader is not None:
            await check_trust(await self._regions.store(region.leader.store_id), security, error)

    def _store_is_silent(self, region: Region) -> None:
        """Another peer may lead by now and PD not know it yet; a store may also have moved to another address, or
        have another certificate, which an open channel does not notice."""
        if region.leader is not None:
            self._regions.forget_store(region.leader.store_id)
            if self._regions.pd.security.is_tls and region.leader.store_id in self._channels:
                self._retired.append((self._clock.monotonic(), self._channels.pop(region.leader.store_id)[1]))
        self._regions.rotate_leader(region)


async def check_trust(store: Store, security: Security, error: grpc.aio.AioRpcError) -> None:
    """``UntrustedUpstreamError`` if TLS is why the store could not be reached: trying again would not help."""
    trouble = await examine(store.address, security) if security.is_tls else ""
    if trouble:
        raise UntrustedUpstreamError(
            f"cannot ask TiKV store {store.id} over TLS: it, at {store.address}, {trouble}."
        ) from error


def decoder(message: Any) -> Callable[[bytes], Any]:
    """Read answers of a generated message class."""

    def decode(body: bytes) -> Any:
        try:
            return message.FromString(body)
        except Exception as broken:  # the protobuf library's DecodeError, under either of its backends
            raise ProtocolViolationError(
                f"TiKV answered with bytes that are no {message.__name__}: {broken}"
            ) from broken

    return decode


def _cut(
    keys: Sequence[bytes], max_keys: int, max_bytes: int, size_of: Callable[[bytes], int]
) -> list[Sequence[bytes]]:
    """The keys in order, in pieces that keep to the limits; a key that exceeds them goes alone."""
    pieces: list[Sequence[bytes]] = []
    first, total = 0, 0
    for at, key in enumerate(keys):
        size = size_of(key)
        if at > first and (at - first >= max_keys or total + size > max_bytes):
            pieces.append(keys[first:at])
            first, total = at, 0
        total += size
    return [*pieces, keys[first:]] if first < len(keys) else pieces


def _name_of(error: errorpb_pb2.Error) -> str:
    set_fields = [field.name for field, _ in error.ListFields() if field.name != "message"]
    return ", ".join(set_fields) or error.message or "an unknown region error"
