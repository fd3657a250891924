"""PD's client: timestamps, regions, stores and the GC safepoint.

Only PD's leader answers. Any address given (or learnt from the members) tells who leads; when the
leader changes or falls silent the members are asked again. A call is retried with growing pauses
until its deadline and then fails with ``UpstreamUnavailableError``, which names the addresses.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from tidemill._pb import pdpb_pb2, pdpb_pb2_grpc
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import (
    IncompatibleUpstreamError,
    UntrustedUpstreamError,
    UpstreamError,
    UpstreamUnavailableError,
    UsageError,
)
from tidemill.log import get_logger
from tidemill.model.address import read_address
from tidemill.model.security import PLAIN, Security
from tidemill.model.span import Span, end_to_wire
from tidemill.model.ts import LOGICAL_BITS, Ts
from tidemill.upstream.channel import open_channel
from tidemill.upstream.tls import examine_all
from tidemill.upstream.topology import Region, Store, region_from, store_from

CALL_SECONDS = 3.0  # one attempt of one call
DEADLINE_SECONDS = 20.0  # a call with all its attempts
MAX_TS_PER_CALL = 1 << 14

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_HOPELESS = {
    grpc.StatusCode.FAILED_PRECONDITION: "it belongs to another cluster than the one we connected to first",
    grpc.StatusCode.UNIMPLEMENTED: "it does not know this call",
    grpc.StatusCode.UNAUTHENTICATED: "it does not accept our certificate",
    grpc.StatusCode.PERMISSION_DENIED: "it does not allow this call",
    grpc.StatusCode.INVALID_ARGUMENT: "it does not accept the request",
}

_BARRIER_TOO_LATE = "ErrGCBarrierTSBehindTxnSafePoint"  # PD has no error type for it, only this word

log = get_logger("pd")
Answer = TypeVar("Answer")


def parse_addresses(addresses: str | Sequence[str], security: Security = PLAIN) -> tuple[str, ...]:
    """``host:port`` of each address of a comma list. One may begin with http:// or https://, which has to go with
    ``security``."""
    listed = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    given = [address.strip() for address in listed if address.strip()]
    if not given:
        raise UsageError("no PD address given; PD listens on port 2379 by default, for example 127.0.0.1:2379")
    for address in given:
        try:
            read_address(_bare(address))
        except ValueError as error:
            raise UsageError(f"PD address {address!r} {error}, for example 127.0.0.1:2379") from None
        if address.startswith("https://") and not security.is_tls:
            raise UsageError(
                f"PD address {address!r} asks for TLS, which needs the certificate of the cluster's authority: give "
                "--ca, and --cert and --key where the cluster wants a client certificate (the options ca, cert and key "
                "in Spark)."
            )
        if address.startswith("http://") and security.is_tls:
            raise UsageError(
                f"PD address {address!r} is without TLS, but a certificate authority is given. Write https://, or "
                "leave --ca, --cert and --key out."
            )
    return tuple(map(_bare, given))


@dataclass(frozen=True, slots=True)
class GcState:
    """Reads at or above ``txn_safepoint`` are safe; below ``gc_safepoint`` old versions may be gone."""

    txn_safepoint: Ts
    gc_safepoint: Ts
    barriers: Mapping[str, Ts]


class PdClient:
    """For one event loop. ``connect`` before use and ``close`` after, or use it as a context manager."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        security: Security = PLAIN,
        clock: Clock = SYSTEM_CLOCK,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._given = parse_addresses(addresses, security)
        self._addresses = list(self._given)
        self._security = security
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._cluster_id = 0
        self._leader = ""
        self._channel: grpc.aio.Channel | None = None
        self._retired: list[tuple[float, grpc.aio.Channel]] = []
        self._stub: Any = None  # generated, without types; None: the leader is to be looked for
        self._finding_leader = asyncio.Lock()
        self._tso: grpc.aio.StreamStreamCall | None = None
        self._tso_leader = ""
        self._tso_turn = asyncio.Lock()
        self._tso_waiting: list[asyncio.Future[Ts]] = []

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def addresses(self) -> str:
        """As they were given, for a client elsewhere to begin with."""
        return ",".join(self._given)

    @property
    def cluster_id(self) -> int:
        return self._cluster_id

    @property
    def leader(self) -> str:
        return self._leader

    @property
    def security(self) -> Security:
        return self._security

    async def connect(self, deadline_seconds: float = 5.0) -> None:
        """Find the leader. An unreachable PD gives ``UpstreamUnavailableError`` after the deadline."""
        await self._persist("connect", self._find_leader, deadline_seconds)

    async def close(self) -> None:
        self._drop_leader()
        self._drop_tso()
        channels = [channel for _, channel in self._retired] + ([self._channel] if self._channel else [])
        self._retired, self._channel, self._leader = [], None, ""
        for channel in channels:
            await channel.close()

    async def get_ts(self) -> Ts:
        """A fresh timestamp, above every one handed out before. Callers at the same time share one request."""
        mine: asyncio.Future[Ts] = asyncio.get_running_loop().create_future()
        self._tso_waiting.append(mine)
        async with self._tso_turn:
            if not mine.done():
                await self._persist("get a timestamp", self._serve_waiting, self._deadline_seconds)
        return mine.result()

    async def get_region(self, key: bytes) -> Region | None:
        """The region that holds a physical key; None while PD knows of none."""
        answer = await self._call("GetRegion", pdpb_pb2.GetRegionRequest(region_key=key))
        return region_from(answer.region, answer.leader) if answer.HasField("region") else None

    async def get_previous_region(self, key: bytes) -> Region | None:
        """The region to the left of the one that holds a physical key."""
        answer = await self._call("GetPrevRegion", pdpb_pb2.GetRegionRequest(region_key=key))
        return region_from(answer.region, answer.leader) if answer.HasField("region") else None

    async def get_region_by_id(self, region_id: int) -> Region | None:
        answer = await self._call("GetRegionByID", pdpb_pb2.GetRegionByIDRequest(region_id=region_id))
        return region_from(answer.region, answer.leader) if answer.HasField("region") else None

    async def scan_regions(self, span: Span, limit: int) -> list[Region]:
        """Up to ``limit`` regions that touch ``span``, as PD lists them: there may be gaps."""
        answer = await self._call(
            "ScanRegions",
            pdpb_pb2.ScanRegionsRequest(start_key=span.start, end_key=end_to_wire(span.end), limit=limit),
        )
        if answer.regions:
            return [region_from(r.region, r.leader) for r in answer.regions]
        leaders = list(answer.leaders) + [None] * (len(answer.region_metas) - len(answer.leaders))
        return [region_from(r, leader) for r, leader in zip(answer.region_metas, leaders, strict=True)]

    async def get_store(self, store_id: int) -> Store:
        answer = await self._call("GetStore", pdpb_pb2.GetStoreRequest(store_id=store_id))
        return store_from(answer.store)

    async def get_all_stores(self) -> list[Store]:
        answer = await self._call("GetAllStores", pdpb_pb2.GetAllStoresRequest(exclude_tombstone_stores=True))
        return [store_from(s) for s in answer.stores]

    async def get_gc_safe_point(self) -> Ts:
        answer = await self._call("GetGCSafePoint", pdpb_pb2.GetGCSafePointRequest())
        return Ts(answer.safe_point)

    async def update_service_gc_safe_point(self, service_id: str, ttl_seconds: int, safe_point: Ts) -> Ts:
        """Hold the GC safepoint back; return the lowest one in force.

        An answer above ``safe_point`` means that the request was refused: what was asked for may be
        collected already. A ``ttl_seconds`` of zero or below lets go.
        """
        request = pdpb_pb2.UpdateServiceGCSafePointRequest(
            service_id=service_id.encode(), TTL=ttl_seconds, safe_point=safe_point
        )
        answer = await self._call("UpdateServiceGCSafePoint", request)
        return Ts(answer.min_safe_point)

    async def get_gc_state(self) -> GcState:
        """Where garbage collection stands. Older PDs do not know this call: ``IncompatibleUpstreamError``."""
        answer = await self._call("GetGCState", pdpb_pb2.GetGCStateRequest())
        state = answer.gc_state
        barriers = {barrier.barrier_id: Ts(barrier.barrier_ts) for barrier in state.gc_barriers}
        return GcState(Ts(state.txn_safe_point), Ts(state.gc_safe_point), barriers)

    async def set_gc_barrier(self, barrier_id: str, ttl_seconds: int, ts: Ts) -> bool:
        """Keep everything at or above ``ts`` readable until the time is up, set anew or deleted.

        False: it is too late for that, the txn safepoint has passed ``ts``.
        """
        request = pdpb_pb2.SetGCBarrierRequest(barrier_id=barrier_id, barrier_ts=ts, ttl_seconds=ttl_seconds)
        try:
            await self._call("SetGCBarrier", request)
        except UpstreamError as error:
            if _BARRIER_TOO_LATE in str(error):
                return False
            raise
        return True

    async def delete_gc_barrier(self, barrier_id: str) -> None:
        """Let go of what the barrier keeps; nothing happens if there is none."""
        await self._call("DeleteGCBarrier", pdpb_pb2.DeleteGCBarrierRequest(barrier_id=barrier_id))

    async def _call(self, method: str, request: Any) -> Any:
        async def attempt() -> Any:
            stub = await self._connected()
            request.header.cluster_id = self._cluster_id
            answer = await getattr(stub, method)(request, timeout=CALL_SECONDS)
            if answer.header.HasField("error"):
                raise _refusal(method, answer.header.error)
            return answer

        return await self._persist(method, attempt, self._deadline_seconds)

    async def _connected(self) -> Any:
        if self._stub is None:
            await self._find_leader()
        return self._stub

    async def _persist(self, what: str, attempt: Callable[[], Awaitable[Answer]], deadline_seconds: float) -> Answer:
        give_up = self._clock.monotonic() + deadline_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await attempt()
            except (grpc.aio.AioRpcError, _TryAgainError, TimeoutError) as error:
                self._raise_if_hopeless(what, error)
                self._drop_leader()
                is_last = self._clock.monotonic() + pause >= give_up
                await self._raise_if_untrusted(what, error, is_last)
                if is_last:
                    raise self._unreachable(what, error) from error
            await self._clock.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _raise_if_hopeless(self, what: str, error: Exception) -> None:
        reason = _HOPELESS.get(error.code()) if isinstance(error, grpc.aio.AioRpcError) else None
        if reason is not None:
            detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
            raise IncompatibleUpstreamError(
                f"PD at {self._leader or ','.join(self._given)} refuses {what}: {reason} ({detail}). "
                "Check the PD address and that the cluster is of a supported version."
            ) from error

    async def _raise_if_untrusted(self, what: str, error: Exception, is_last: bool) -> None:
        """Where TLS is the reason, waiting does not help, unless another member may do."""
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        is_unconnected = code is grpc.StatusCode.UNAVAILABLE or (
            code is grpc.StatusCode.DEADLINE_EXCEEDED and self._security.is_tls and not self._cluster_id
        )
        if not is_unconnected or (not self._security.is_tls and self._cluster_id):
            return
        found = await examine_all(self._addresses, self._security)
        troubles = {address: trouble for address, trouble in found.items() if trouble}
        if not self._security.is_tls:
            troubles = {a: f"{t}: give --ca, --cert and --key (options in Spark)" for a, t in troubles.items()}
        if troubles and (is_last or "" not in found.values()):
            said = "; ".join(f"PD at {address} {trouble}" for address, trouble in troubles.items())
            raise UntrustedUpstreamError(f"cannot {_doing(what)} over TLS: {said}.") from error

    def _unreachable(self, what: str, error: Exception) -> UpstreamUnavailableError:
        detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "no answer in time"
        return UpstreamUnavailableError(
            f"cannot {_doing(what)}: no PD leader answers at "
            f"{', '.join(self._given)} (last: {detail}). "
            "Check the address, that PD is running and that this machine may reach it."
        )

    def _drop_leader(self) -> None:
        """Ask the members again before the next call. Calls under way go on."""
        self._stub = None

    def _drop_tso(self) -> None:
        if self._tso is not None:
            self._tso.cancel()
            self._tso = None

    async def _find_leader(self) -> None:
        async with self._finding_leader:
            if self._stub is not None:
                return
            last: Exception = _TryAgainError("no PD member knows the leader")
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
        async with open_channel(address, self._security) as channel:
            stub = pdpb_pb2_grpc.PDStub(channel)  # type: ignore[no-untyped-call]  # generated
            members: pdpb_pb2.GetMembersResponse = await stub.GetMembers(
                pdpb_pb2.GetMembersRequest(), timeout=CALL_SECONDS
            )
        return members

    async def _follow(self, members: pdpb_pb2.GetMembersResponse, asked: str) -> bool:
        """Turn to the leader that a member named. False: it named none."""
        cluster_id = members.header.cluster_id
        if self._cluster_id and cluster_id != self._cluster_id:
            raise IncompatibleUpstreamError(
                f"PD at {asked} belongs to cluster {cluster_id}, but we follow cluster {self._cluster_id}. "
                "Give addresses of one cluster only."
            )
        urls = [_bare(url) for url in members.leader.client_urls]
        if not urls:
            return False
        self._cluster_id = cluster_id
        learnt = [_bare(url) for member in members.members for url in member.client_urls]
        self._addresses = list(dict.fromkeys([*self._given, *learnt]))
        leader = next((url for url in urls if url in self._given), urls[0])
        # Over TLS anew: the channel keeps the certificates that it was opened with, and they may have been renewed.
        if leader != self._leader or self._channel is None or self._security.is_tls:
            log.info("following PD leader", leader=leader, cluster_id=cluster_id)
            await self._retire_channel()
            self._leader = leader
            self._channel = open_channel(leader, self._security)
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

    async def _serve_waiting(self) -> None:
        """One request for everyone who waits for a timestamp right now."""
        stub = await self._connected()
        if self._tso is None or self._tso_leader != self._leader:
            self._drop_tso()
            self._tso, self._tso_leader = stub.Tso(), self._leader
        stream = self._tso
        served, self._tso_waiting = self._tso_waiting[:MAX_TS_PER_CALL], self._tso_waiting[MAX_TS_PER_CALL:]
        try:
            request = pdpb_pb2.TsoRequest(count=len(served))
            request.header.cluster_id = self._cluster_id
            async with asyncio.timeout(CALL_SECONDS):
                try:
                    await stream.write(request)
                    answer = await stream.read()
                except asyncio.InvalidStateError as error:  # how gRPC says that the call is over already
                    raise _TryAgainError("the timestamp stream has ended") from error
            if answer is grpc.aio.EOF:
                raise _TryAgainError("PD closed the timestamp stream")
            if answer.header.HasField("error"):
                raise _refusal("Tso", answer.header.error)
            if answer.count != len(served):
                raise _TryAgainError(f"PD gave {answer.count} timestamps for {len(served)}")
        except BaseException:
            # Whoever waits takes the next turn itself, on a new stream: a late answer is nobody's.
            self._tso_waiting = served + self._tso_waiting
            self._drop_tso()
            raise
        last = (answer.timestamp.physical << LOGICAL_BITS) + answer.timestamp.logical  # the largest of the batch
        for n, waiter in enumerate(served, start=last - len(served) + 1):
            if not waiter.done():
                waiter.set_result(Ts(n))


class _TryAgainError(Exception):
    """An answer that another attempt, perhaps with another leader, may better."""


def _refusal(method: str, error: pdpb_pb2.Error) -> Exception:
    if error.type == pdpb_pb2.NOT_BOOTSTRAPPED:
        return _TryAgainError("the cluster is not bootstrapped: no TiKV store has joined it yet")
    return UpstreamError(f"PD refuses {method}: {error.message or pdpb_pb2.ErrorType.Name(error.type)}")


def _doing(what: str) -> str:
    return what if " " in what or what == "connect" else f"call {what}"


def _bare(url: str) -> str:
    address = url.strip()
    for scheme in ("http://", "https://"):
        address = address.removeprefix(scheme)
    return address.rstrip("/")
