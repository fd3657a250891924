"""Where a region may be cut: at keys that exist, so that both parts hold something.

A boundary is always a memcomparable key, because transactional clients decode the bounds of regions.
Keys that are kept verbatim (raw, API V1) are cut at the memcomparable key that follows them.
"""

import heapq
from collections.abc import Iterator
from itertools import islice

from tidebox.engine import Engine, Family
from tidebox.regions import Region
from tidemill.errors import CorruptDataError
from tidemill.tidb.keys import decode_bytes, encode_bytes

_NOT_KEYS = {Family.META, Family.LOCK, Family.DEFAULT}  # long values stand under keys that have a commit record


def boundary_within(engine: Engine, region: Region, fraction: float = 0.5, limit: int | None = None) -> bytes | None:
    """A key strictly inside the region with about ``fraction`` of what it holds to the left; None if there is none.

    Counts versions, so it takes its time for a large region; ``limit`` looks at so many from the left and no more.
    """
    count = sum(1 for _ in islice(_stored_keys(engine, region), limit))
    wanted = int(count * fraction)
    found = None
    for at, stored in enumerate(islice(_stored_keys(engine, region), count)):
        boundary = _boundary_of(stored)
        if region.start < boundary and (not region.end or boundary < region.end):
            found = boundary
            if at >= wanted:
                break
    return found


def _stored_keys(engine: Engine, region: Region) -> Iterator[bytes]:
    families = [family for family in Family if family not in _NOT_KEYS]
    return heapq.merge(*(_keys(engine, family, region) for family in families))


def _keys(engine: Engine, family: Family, region: Region) -> Iterator[bytes]:
    return (key for key, _ in engine.items(family, region.start, region.end))


def _boundary_of(stored: bytes) -> bytes:
    try:
        return stored[: decode_bytes(stored)[1]]
    except CorruptDataError:
        return encode_bytes(stored)
