"""PD's client: timestamps, regions, stores and the GC safepoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tidemill._pb import keyspacepb_pb2, pdpb_pb2
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import UpstreamError, UsageError
from tidemill.model.address import read_address
from tidemill.model.security import PLAIN, Security
from tidemill.model.span import Span, end_to_wire
from tidemill.model.ts import Ts
from tidemill.upstream.pd_leader import PdLeader, bare, refusal
from tidemill.upstream.topology import Region, Store, region_from, store_from
from tidemill.upstream.tso import Timestamps

DEADLINE_SECONDS = 20.0  # a call with all its attempts

_BARRIER_TOO_LATE = "ErrGCBarrierTSBehindTxnSafePoint"  # PD has no error type for it, only this word


def parse_addresses(addresses: str | Sequence[str], security: Security = PLAIN) -> tuple[str, ...]:
    """``host:port`` of each address of a comma list. One may begin with http:// or https://, which has to go with
    ``security``."""
    listed = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    given = [address.strip() for address in listed if address.strip()]
    if not given:
        raise UsageError("no PD address given; PD listens on port 2379 by default, for example 127.0.0.1:2379")
    for address in given:
        try:
            read_address(bare(address))
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
    return tuple(map(bare, given))


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
        self._pd = PdLeader(parse_addresses(addresses, security), security, clock)
        self._timestamps = Timestamps(self._pd)
        self._deadline_seconds = deadline_seconds

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
        return ",".join(self._pd.given)

    @property
    def cluster_id(self) -> int:
        return self._pd.cluster_id

    @property
    def leader(self) -> str:
        return self._pd.address

    @property
    def security(self) -> Security:
        return self._pd.security

    async def connect(self, deadline_seconds: float = 5.0) -> None:
        """Find the leader. An unreachable PD gives ``UpstreamUnavailableError`` after the deadline."""
        await self._pd.connect(deadline_seconds)

    async def close(self) -> None:
        self._timestamps.close()
        await self._pd.close()

    async def get_ts(self) -> Ts:
        """A fresh timestamp, above every one handed out before. Callers at the same time share one request."""
        return await self._timestamps.next(self._deadline_seconds)

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

    async def find_keyspace(self, name: str) -> int | None:
        """The number of a keyspace; None where there is none of this name."""
        request, kind = keyspacepb_pb2.LoadKeyspaceRequest(name=name), keyspacepb_pb2.LoadKeyspaceResponse
        answer = await self._pd.call_keyspaces("LoadKeyspace", request, kind, self._deadline_seconds)
        if not answer.header.HasField("error"):
            return int(answer.keyspace.id)
        if answer.header.error.type == pdpb_pb2.ENTRY_NOT_FOUND:
            return None
        raise refusal("LoadKeyspace", answer.header.error)

    async def _call(self, method: str, request: Any) -> Any:
        return await self._pd.call(method, request, self._deadline_seconds)
