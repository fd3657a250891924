"""Requests to the store that leads a key's region, tried again until the region answers.

    snapshot reader, lock resolver ──► KvClient ── region cache ──► TiKV

A request is made anew for each attempt, by the region as it is then known: after a split it may
cover fewer keys. Region errors and silent stores are dealt with here and seen nowhere else.
"""

import random
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc

from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import IncompatibleUpstreamError, ProtocolViolationError, RegionUnavailableError, UpstreamError
from tidemill.log import get_logger
from tidemill.upstream.channel import open_channel
from tidemill.upstream.keys import encode_bytes
from tidemill.upstream.regions import Reaction, RegionCache, Retry
from tidemill.upstream.topology import Region

CALL_SECONDS = 20.0
DEADLINE_SECONDS = 60.0
_SILENT_STORE = Reaction(Retry.LATER, (0.1, 2.0))

log = get_logger("kv")


class Response(Protocol):
    @property
    def region_error(self) -> errorpb_pb2.Error: ...
    def HasField(self, name: Any) -> bool: ...


Answer = TypeVar("Answer", bound=Response)


class KvClient:
    """For one event loop; ``close`` when done."""

    def __init__(self, regions: RegionCache, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._regions = regions
        self._clock = clock
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def send(
        self, method: str, key: bytes, make: Callable[[Region], Any], decode: Callable[[bytes], Answer]
    ) -> tuple[Region, Answer]:
        """Ask the leader of the region that holds the plain ``key``; return that region and its answer.

        ``make`` builds the request, without context, for the region asked; ``decode`` reads the answer.
        """
        give_up = self._clock.monotonic() + DEADLINE_SECONDS
        attempt = 0
        while True:
            region = await self._regions.locate(encode_bytes(key))
            reaction, why = _SILENT_STORE, ""
            try:
                answer = await self._ask(region, method, make(region), decode)
                if not answer.HasField("region_error"):
                    return region, answer
                reaction, why = self._regions.react(region, answer.region_error), _name_of(answer.region_error)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise IncompatibleUpstreamError(
                        f"the store of region {region.id} does not know {method}. Check that it is a TiKV."
                    ) from error
                why = f"{error.code().name}: {error.details()}"
                self._store_is_silent(region)
            except RegionUnavailableError as error:
                why = str(error)
                self._regions.invalidate(region.id)
            if reaction.retry is Retry.NEVER:
                raise UpstreamError(f"region {region.id} refuses {method}: {why}. Trying again would not help.")
            if self._clock.monotonic() >= give_up:
                raise RegionUnavailableError(
                    f"region {region.id} did not answer {method} within {DEADLINE_SECONDS:.0f} s (last: {why}). "
                    "Check that the TiKV stores are up and that this machine may reach them."
                )
            if reaction.retry is not Retry.AT_ONCE or attempt > 0:
                first, longest = reaction.pause_seconds
                whole = min(first * (1 << min(attempt, 16)), longest)
                await self._clock.sleep(whole * random.uniform(0.5, 1.0))
            attempt += 1

    async def _ask(self, region: Region, method: str, request: Any, decode: Callable[[bytes], Answer]) -> Answer:
        if region.leader is None:
            raise RegionUnavailableError(f"region {region.id} has no leader")
        store = await self._regions.store(region.leader.store_id)
        channel = self._channels.get(store.address)
        if channel is None:
            channel = self._channels[store.address] = open_channel(store.address, self._regions.pd.security)
        context: kvrpcpb_pb2.Context = request.context
        context.region_id = region.id
        context.region_epoch.CopyFrom(region.epoch())
        context.peer.CopyFrom(region.leader.to_wire())
        call = channel.unary_unary(
            f"/tikvpb.Tikv/{method}", request_serializer=type(request).SerializeToString, response_deserializer=None
        )
        return decode(await call(request, timeout=CALL_SECONDS))

    def _store_is_silent(self, region: Region) -> None:
        """Another peer may lead by now and PD not know it yet; a store may also have moved to another address."""
        if region.leader is not None:
            self._regions.forget_store(region.leader.store_id)
        self._regions.rotate_leader(region)


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


def _name_of(error: errorpb_pb2.Error) -> str:
    set_fields = [field.name for field, _ in error.ListFields() if field.name != "message"]
    return ", ".join(set_fields) or error.message or "an unknown region error"
