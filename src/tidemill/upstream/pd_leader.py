"""Which member of PD to ask, and asking it until it answers.

Only PD's leader answers. Any address given (or learnt from the members) tells who leads; when the leader changes or
falls silent the members are asked again. A call is retried with growing pauses until its deadline and then fails with
``UpstreamUnavailableError``, which names the addresses.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeVar

import grpc

from tidemill._pb import pdpb_pb2, pdpb_pb2_grpc
from tidemill.clock import Clock
from tidemill.errors import (
    IncompatibleUpstreamError,
    UntrustedUpstreamError,
    UpstreamError,
    UpstreamUnavailableError,
)
from tidemill.log import get_logger
from tidemill.model.security import Security
from tidemill.retry import Policy
from tidemill.upstream.channel import open_channel
from tidemill.upstream.tls import examine_all

CALL_SECONDS = 3.0  # one attempt of one call

_RETRY: Final = Policy(0.05, 2.0)
_HOPELESS = {
    grpc.StatusCode.FAILED_PRECONDITION: "it belongs to another cluster than the one we connected to first",
    grpc.StatusCode.UNIMPLEMENTED: "it does not know this call",
    grpc.StatusCode.UNAUTHENTICATED: "it does not accept our certificate",
    grpc.StatusCode.PERMISSION_DENIED: "it does not allow this call",
    grpc.StatusCode.INVALID_ARGUMENT: "it does not accept the request",
}


log = get_logger("pd")
Answer = TypeVar("Answer")


class PdLeader:
    """For one event loop."""

    def __init__(self, given: tuple[str, ...], security: Security, clock: Clock) -> None:
        self.given = given
        self.security = security
        self.cluster_id = 0
        self.address = ""  # of the leader
        self._addresses = list(given)
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._retired: list[tuple[float, grpc.aio.Channel]] = []
        self._stub: Any = None  # generated, without types; None: the leader is to be looked for
        self._finding_leader = asyncio.Lock()

    async def connect(self, deadline_seconds: float) -> None:
        """Find the leader. An unreachable PD gives ``UpstreamUnavailableError`` after the deadline."""
        await self.persist("connect", self._find_leader, deadline_seconds)

    async def close(self) -> None:
        self._drop_leader()
        channels = [channel for _, channel in self._retired] + ([self._channel] if self._channel else [])
        self._retired, self._channel, self.address = [], None, ""
        for channel in channels:
            await channel.close()

    async def call(self, method: str, request: Any, deadline_seconds: float) -> Any:
        async def attempt() -> Any:
            stub = await self.connected()
            request.header.cluster_id = self.cluster_id
            answer = await getattr(stub, method)(request, timeout=CALL_SECONDS)
            if answer.header.HasField("error"):
                raise refusal(method, answer.header.error)
            return answer

        return await self.persist(method, attempt, deadline_seconds)

    async def call_keyspaces(self, method: str, request: Any, answer_type: Any, deadline_seconds: float) -> Any:
        """The same of PD's other service; a refusal is the answer's own, for the caller to read."""

        async def attempt() -> Any:
            await self.connected()
            if self._channel is None:
                raise TryAgainError("the leader has just been lost")
            request.header.cluster_id = self.cluster_id
            call = self._channel.unary_unary(
                f"/keyspacepb.Keyspace/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer_type.FromString,
            )
            return await call(request, timeout=CALL_SECONDS)

        return await self.persist(method, attempt, deadline_seconds)

    async def connected(self) -> Any:
        """The stub of the leader."""
        if self._stub is None:
            await self._find_leader()
        return self._stub

    async def persist(self, what: str, attempt: Callable[[], Awaitable[Answer]], deadline_seconds: float) -> Answer:
        """Make ``attempt`` until it succeeds, with the leader of that moment."""
        policy, began = replace(_RETRY, deadline_seconds=deadline_seconds), self._clock.monotonic()
        for tries in count(1):
            pause = policy.pause_seconds(tries)
            try:
                return await attempt()
            except (grpc.aio.AioRpcError, TryAgainError, TimeoutError) as error:
                self._raise_if_hopeless(what, error)
                self._drop_leader()
                is_last = policy.gives_up(tries, self._clock.monotonic() - began + pause)
                await self._raise_if_untrusted(what, error, is_last)
                if is_last:
                    raise self._unreachable(what, error) from error
            await self._clock.sleep(pause)
        raise AssertionError  # it counts for ever

    def _raise_if_hopeless(self, what: str, error: Exception) -> None:
        reason = _HOPELESS.get(error.code()) if isinstance(error, grpc.aio.AioRpcError) else None
        if reason is not None:
            detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
            raise IncompatibleUpstreamError(
                f"PD at {self.address or ','.join(self.given)} refuses {what}: {reason} ({detail}). "
                "Check the PD address and that the cluster is of a supported version."
            ) from error

    async def _raise_if_untrusted(self, what: str, error: Exception, is_last: bool) -> None:
        """Where TLS is the reason, waiting does not help, unless another member may do."""
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        is_unconnected = code is grpc.StatusCode.UNAVAILABLE or (
            code is grpc.StatusCode.DEADLINE_EXCEEDED and self.security.is_tls and not self.cluster_id
        )
        if not is_unconnected or (not self.security.is_tls and self.cluster_id):
            return
        found = await examine_all(self._addresses, self.security)
        troubles = {address: trouble for address, trouble in found.items() if trouble}
        if not self.security.is_tls:
            troubles = {a: f"{t}: give --ca, --cert and --key (options in Spark)" for a, t in troubles.items()}
        if troubles and (is_last or "" not in found.values()):
            said = "; ".join(f"PD at {address} {trouble}" for address, trouble in troubles.items())
            raise UntrustedUpstreamError(f"cannot {_doing(what)} over TLS: {said}.") from error

    def _unreachable(self, what: str, error: Exception) -> UpstreamUnavailableError:
        detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "no answer in time"
        return UpstreamUnavailableError(
            f"cannot {_doing(what)}: no PD leader answers at "
            f"{', '.join(self.given)} (last: {detail}). "
            "Check the address, that PD is running and that this machine may reach it."
        )

    def _drop_leader(self) -> None:
        """Ask the members again before the next call. Calls under way go on."""
        self._stub = None

    async def _find_leader(self) -> None:
        async with self._finding_leader:
            if self._stub is not None:
                return
            last: Exception = TryAgainError("no PD member knows the leader")
            for address in list(self._addresses):
                try:
                    members = await self._ask_members(address)
                except grpc.aio.AioRpcError as error:
                    last = error
                    continue
                if await self._follow(members, address):
                    return
            raise last

    async def _ask_members(self, address: str) -> pdpb_pb2.GetMembersResponse:
        async with open_channel(address, self.security) as channel:
            stub = pdpb_pb2_grpc.PDStub(channel)  # type: ignore[no-untyped-call]  # generated
            members: pdpb_pb2.GetMembersResponse = await stub.GetMembers(
                pdpb_pb2.GetMembersRequest(), timeout=CALL_SECONDS
            )
        return members

    async def _follow(self, members: pdpb_pb2.GetMembersResponse, asked: str) -> bool:
        """Turn to the leader that a member named. False: it named none."""
        cluster_id = members.header.cluster_id
        if self.cluster_id and cluster_id != self.cluster_id:
            raise IncompatibleUpstreamError(
                f"PD at {asked} belongs to cluster {cluster_id}, but we follow cluster {self.cluster_id}. "
                "Give addresses of one cluster only."
            )
        urls = [bare(url) for url in members.leader.client_urls]
        if not urls:
            return False
        self.cluster_id = cluster_id
        learnt = [bare(url) for member in members.members for url in member.client_urls]
        self._addresses = list(dict.fromkeys([*self.given, *learnt]))
        leader = next((url for url in urls if url in self.given), urls[0])
        # Over TLS anew: the channel keeps the certificates that it was opened with, and they may have been renewed.
        if leader != self.address or self._channel is None or self.security.is_tls:
            log.info("following PD leader", leader=leader, cluster_id=cluster_id)
            await self._retire_channel()
            self.address = leader
            self._channel = open_channel(leader, self.security)
        self._stub = pdpb_pb2_grpc.PDStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        return True

    async def _retire_channel(self) -> None:
        """Keep the old leader's channel while calls may still be under way: closing it would cancel their tasks."""
        now = self._clock.monotonic()
        over = [channel for since, channel in self._retired if now - since > 2 * CALL_SECONDS]
        self._retired = [(since, channel) for since, channel in self._retired if channel not in over]
        if self._channel is not None:
            self._retired.append((now, self._channel))
        for channel in over:
            await channel.close()


class TryAgainError(Exception):
    """An answer that another attempt, perhaps with another leader, may better."""


def refusal(method: str, error: pdpb_pb2.Error) -> Exception:
    if error.type == pdpb_pb2.NOT_BOOTSTRAPPED:
        return TryAgainError("the cluster is not bootstrapped: no TiKV store has joined it yet")
    return UpstreamError(f"PD refuses {method}: {error.message or pdpb_pb2.ErrorType.Name(error.type)}")


def _doing(what: str) -> str:
    return what if " " in what or what == "connect" else f"call {what}"


def bare(url: str) -> str:
    address = url.strip()
    for scheme in ("http://", "https://"):
        address = address.removeprefix(scheme)
    return address.rstrip("/")
