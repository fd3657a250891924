"""What a transactional request may ask at all, before any region is looked at.

A server of API V1 takes only requests of that version. One of V2 takes transactions of V2 on keys of
mode ``x``, and those of a V1 client only on TiDB's own keys (``m``, ``t``). Timestamps come from PD, so
one far above PD's present is a mistake, and to remember it as read would spoil every commit-ts settled
from then on.
"""

from collections.abc import Iterable

from tidebox.cluster import Cluster
from tidebox.guard import refuse
from tidebox.transactions import MAX_KEY_BYTES
from tidebox.txn.errors import AbortError
from tidemill._pb import kvrpcpb_pb2
from tidemill.model.ts import LOGICAL_BITS, MAX_TS

MAX_REQUEST_BYTES = 8 << 20  # TiKV's raft-entry-max-size
MAX_AHEAD_MS = 60_000  # of a ts, before PD's present

_TIDB_MODES = (b"m", b"t")
_TXN_MODES = (b"x",)


class RequestLimits:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check_keys(self, wanted: kvrpcpb_pb2.Context, keys: Iterable[bytes], *stamps: int) -> None:
        """Raises ``AbortError`` where keys or stamps cannot be."""
        modes = self._modes(wanted)
        for key in keys:
            if len(key) > MAX_KEY_BYTES:
                raise AbortError(f"KeyTooLarge: a key has {len(key)} bytes, at most {MAX_KEY_BYTES} are allowed")
            if modes and key[:1] not in modes:
                raise _wrong_mode(key, modes)
        self.check_stamps(stamps)

    def check_range(self, wanted: kvrpcpb_pb2.Context, start: bytes, end: bytes, *stamps: int) -> None:
        """The same for a range of keys; an empty bound is the region's."""
        modes = self._modes(wanted)
        if modes:
            if start and start[:1] not in modes:
                raise _wrong_mode(start, modes)
            # A range may end where the next mode begins.
            if end and end[:1] not in modes and not any(end <= bytes((mode[0] + 1, 0, 0, 0)) for mode in modes):
                raise _wrong_mode(end, modes)
        self.check_stamps(stamps)

    def check_size(self, request: kvrpcpb_pb2.PrewriteRequest) -> None:
        """What does not fit into one entry of the replicated log is refused, as by a store that has one."""
        size = request.ByteSize()
        if size > MAX_REQUEST_BYTES:
            region_id = request.context.region_id
            message = f"raft entry is too large: {size} bytes, at most {MAX_REQUEST_BYTES}. Send fewer keys at once."
            refuse(message, raft_entry_too_large={"region_id": region_id, "entry_size": size})

    def _modes(self, wanted: kvrpcpb_pb2.Context) -> tuple[bytes, ...]:
        """First bytes that keys of this client may have; empty: any."""
        served = kvrpcpb_pb2.V1 if self._cluster.api_version == 1 else kvrpcpb_pb2.V2
        asked = wanted.api_version
        if served == kvrpcpb_pb2.V1 and asked == kvrpcpb_pb2.V1:
            return ()
        if served == kvrpcpb_pb2.V2 and asked in (kvrpcpb_pb2.V1, kvrpcpb_pb2.V2):
            return _TIDB_MODES if asked == kvrpcpb_pb2.V1 else _TXN_MODES
        raise AbortError(
            f"ApiVersionNotMatched: this store serves API V{self._cluster.api_version} and the request is of version "
            f"number {asked}. Set the client's API version, or start the upstream with another."
        )

    def check_stamps(self, stamps: Iterable[int]) -> None:
        """The greatest number may be asked for: it means the newest."""
        limit = self._cluster.tso.last + (MAX_AHEAD_MS << LOGICAL_BITS)
        for ts in stamps:
            if limit < ts < MAX_TS:
                raise AbortError(
                    f"timestamp {ts} is more than {MAX_AHEAD_MS // 1000} s ahead of PD's clock, which gave out "
                    f"{self._cluster.tso.last} last. Take timestamps from PD."
                )


def _wrong_mode(key: bytes, modes: Iterable[bytes]) -> AbortError:
    allowed = ", ".join(mode.decode() for mode in modes)
    return AbortError(
        f"InvalidKeyMode: key {key[:16].hex()} does not begin with {allowed}, as transactional keys of this client's "
        "API version must"
    )
