"""How a client's own keys become the keys of requests, and those the keys that regions are cut by.

    user key ── prefix ──► logical key (in requests) ── encoding ──► physical key (of regions, at PD)

With API V1 a logical key is the user's own. With API V2 it begins with a mode byte and the number
of a keyspace, so that raw, transactional and TiDB's data live side by side. Transactional keys and
all keys of API V2 are memcomparable in their physical form; raw keys of API V1 are as they are.
"""

from dataclasses import dataclass

from tidemill._pb import kvrpcpb_pb2
from tidemill.errors import ProtocolViolationError, UsageError
from tidemill.model.span import KEY_END
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.feed.bounds import plain_bound
from tidemill.upstream.topology import Region

MAX_KEYSPACE_ID = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Use ``TXN_V1``, ``RAW_V1``, ``txn_v2`` or ``raw_v2``."""

    prefix: bytes
    is_memcomparable: bool
    api_version: kvrpcpb_pb2.APIVersion
    id: int = 0

    def logical(self, key: bytes) -> bytes:
        return self.prefix + key

    def user(self, logical: bytes) -> bytes:
        """Undo ``logical``. A store that answers with a key of somebody else's has lost its way."""
        if not logical.startswith(self.prefix):
            raise ProtocolViolationError(
                f"TiKV answered with key {logical.hex()}, which is not of the keyspace {self.prefix.hex()} asked for"
            )
        return logical[len(self.prefix) :]

    def range(self, start: bytes, end: bytes) -> tuple[bytes, bytes]:
        """A range of user keys as logical ones. An empty ``end`` means to the last key, before and after."""
        if end or not self.prefix:
            return self.logical(start), self.logical(end)
        behind = (int.from_bytes(self.prefix, "big") + 1).to_bytes(4, "big")
        # Behind the last keyspace stores know the next mode's byte alone.
        return self.logical(start), behind if behind[:1] == self.prefix[:1] else behind[:1]

    def physical(self, logical: bytes) -> bytes:
        if self.is_memcomparable:
            return encode_bytes(logical)
        if logical >= KEY_END:
            raise UsageError(
                f"raw key {logical[:40].hex()} lies beyond the keys that are supported: "
                f"those of API V1 must be below {len(KEY_END)} bytes of ff"
            )
        return logical

    def physical_end(self, logical_end: bytes) -> bytes:
        """Of the end of a range; empty: ``KEY_END``."""
        return self.physical(logical_end) if logical_end else KEY_END

    def bounds(self, region: Region) -> tuple[bytes, bytes]:
        """The region's range in logical keys; an empty end means to the last key."""
        start, end = region.span.start, region.span.end
        if self.is_memcomparable:
            return plain_bound(start) or b"", plain_bound(end) or b""
        return start, b"" if end == KEY_END else end


TXN_V1 = Keyspace(b"", True, kvrpcpb_pb2.V1)
RAW_V1 = Keyspace(b"", False, kvrpcpb_pb2.V1)


def txn_v2(keyspace_id: int = 0) -> Keyspace:
    return Keyspace(b"x" + _three_bytes(keyspace_id), True, kvrpcpb_pb2.V2, keyspace_id)


def raw_v2(keyspace_id: int = 0) -> Keyspace:
    return Keyspace(b"r" + _three_bytes(keyspace_id), True, kvrpcpb_pb2.V2, keyspace_id)


def earlier(end: bytes, other: bytes) -> bytes:
    """Of two ends of ranges, where an empty one lies behind every key."""
    return min(end, other) if end and other else end or other


def _three_bytes(keyspace_id: int) -> bytes:
    if not 0 <= keyspace_id <= MAX_KEYSPACE_ID:
        raise UsageError(f"there is no keyspace {keyspace_id}: choose 0 to {MAX_KEYSPACE_ID}")
    return keyspace_id.to_bytes(3, "big")
