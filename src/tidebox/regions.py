"""Regions: which store answers for which keys, and how that changes. Pure; nothing here does I/O.

Epochs move as TiKV moves them, because clients judge by them which of two regions is stale:
a split into n + 1 regions raises every result's version by n, and the right-most keeps the id;
a merge goes through its two steps, so that the result is newer than both. A change of leader leaves
the epoch alone.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from google.protobuf.message import DecodeError

from tidemill._pb import metapb_pb2
from tidemill.errors import CorruptDataError, UsageError
from tidemill.tidb.keys import decode_bytes


@dataclass(frozen=True, slots=True)
class Peer:
    id: int
    store_id: int


@dataclass(frozen=True, slots=True)
class Region:
    """A range ``[start, end)`` of physical keys; an empty ``end`` means no end."""

    id: int
    start: bytes
    end: bytes
    conf_ver: int
    version: int
    peers: tuple[Peer, ...]
    leader_store: int

    @property
    def leader(self) -> Peer:
        return self.peer_on(self.leader_store)

    def peer_on(self, store_id: int) -> Peer:
        for peer in self.peers:
            if peer.store_id == store_id:
                return peer
        raise UsageError(f"region {self.id} has no peer on store {store_id}: choose one of {self.stores}")

    @property
    def stores(self) -> tuple[int, ...]:
        return tuple(peer.store_id for peer in self.peers)

    def contains(self, physical_key: bytes) -> bool:
        return self.start <= physical_key and (not self.end or physical_key < self.end)

    @property
    def raw_bounds(self) -> tuple[bytes, bytes]:
        """Its range in plain keys, an empty end again for no end."""
        return raw_bound(self.start), raw_bound(self.end)

    def to_wire(self) -> metapb_pb2.Region:
        return metapb_pb2.Region(
            id=self.id,
            start_key=self.start,
            end_key=self.end,
            region_epoch=metapb_pb2.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[metapb_pb2.Peer(id=p.id, store_id=p.store_id) for p in self.peers],
        )

    def leader_to_wire(self) -> metapb_pb2.Peer:
        return metapb_pb2.Peer(id=self.leader.id, store_id=self.leader.store_id)

    def encode(self) -> bytes:
        """For the engine: the region on the wire, with its leader in front of the peers."""
        wire = self.to_wire()
        ordered = [self.leader, *(p for p in self.peers if p != self.leader)]
        del wire.peers[:]
        wire.peers.extend(metapb_pb2.Peer(id=p.id, store_id=p.store_id) for p in ordered)
        return wire.SerializeToString()

    @staticmethod
    def decode(data: bytes) -> "Region":
        try:
            wire = metapb_pb2.Region.FromString(data)
        except DecodeError as error:
            raise CorruptDataError(f"the record of a region is not readable: {data[:16].hex()}") from error
        peers = tuple(Peer(p.id, p.store_id) for p in wire.peers)
        if not wire.id or not peers:
            raise CorruptDataError(f"the record of region {wire.id} names no peers")
        epoch = wire.region_epoch
        ordered = tuple(sorted(peers, key=lambda p: p.id))
        return Region(wire.id, wire.start_key, wire.end_key, epoch.conf_ver, epoch.version, ordered, peers[0].store_id)


def raw_bound(physical: bytes) -> bytes:
    """The plain key of a memcomparable bound. Empty stays empty."""
    return decode_bytes(physical)[0] if physical else b""


def split(region: Region, keys: Sequence[bytes], allocate: Callable[[], int]) -> tuple[Region, ...]:
    """The regions that ``region`` becomes when cut at ``keys`` (physical, ascending, strictly inside it)."""
    inside = all(region.start < key and (not region.end or key < region.end) for key in keys)
    if not keys or not inside or any(a >= b for a, b in pairwise(keys)):
        shown = ", ".join(key.hex() for key in keys)
        raise UsageError(f"cannot split region {region.id} at [{shown}]: keys must ascend strictly inside it")
    bounds = [region.start, *keys, region.end]
    version = region.version + len(keys)
    results = []
    for start, end in pairwise(bounds[:-1]):
        peers = tuple(Peer(allocate(), p.store_id) for p in region.peers)
        results.append(Region(allocate(), start, end, region.conf_ver, version, peers, region.leader_store))
    results.append(replace(region, start=bounds[-2], version=version))
    return tuple(results)


def merge(source: Region, target: Region) -> Region:
    """What ``target`` becomes when it takes in ``source``, its neighbour on either side."""
    if source.id == target.id or not (_touch(source, target) or _touch(target, source)):
        raise UsageError(f"cannot merge region {source.id} into {target.id}: they are not neighbours")
    if set(source.stores) != set(target.stores):
        raise UsageError(
            f"cannot merge region {source.id} into {target.id}: their peers are on stores {source.stores} and "
            f"{target.stores}. Only regions on the same stores merge."
        )
    # Preparing raises the source's version (and conf_ver, which goes with it), committing passes both.
    prepared = source.version + 1
    start, end = (source.start, target.end) if _touch(source, target) else (target.start, source.end)
    return replace(target, start=start, end=end, version=max(prepared, target.version) + 1)


def _touch(left: Region, right: Region) -> bool:
    return bool(left.end) and left.end == right.start


class RegionMap:
    """All regions; together they cover every key exactly once. The caller serialises changes."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self._by_id = {region.id: region for region in regions}
        self._starts = sorted((region.start, region.id) for region in regions)
        ordered = list(self)
        joints = pairwise(ordered)
        if not ordered or ordered[0].start or ordered[-1].end or any(a.end != b.start for a, b in joints):
            raise CorruptDataError("the regions do not cover all keys exactly once")

    def __iter__(self) -> Iterator[Region]:
        return (self._by_id[region_id] for _, region_id in self._starts)

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, region_id: int) -> Region | None:
        return self._by_id.get(region_id)

    def of_key(self, physical_key: bytes) -> Region:
        return self._by_id[self._starts[self._index(physical_key)][1]]

    def before(self, physical_key: bytes) -> Region | None:
        """The region left of the one that holds the key."""
        at = self._index(physical_key)
        return self._by_id[self._starts[at - 1][1]] if at else None

    def within(self, start: bytes, end: bytes, limit: int = 0) -> list[Region]:
        """Regions that touch ``[start, end)`` in key order; an empty ``end`` and a limit ≤ 0 mean none."""
        at = self._index(start)
        found: list[Region] = []
        while at < len(self._starts) and (limit <= 0 or len(found) < limit):
            region = self._by_id[self._starts[at][1]]
            if end and region.start >= end:
                break
            found.append(region)
            at += 1
        return found

    def replace(self, old: Sequence[Region], new: Sequence[Region]) -> None:
        """Put ``new``, which cover the same keys, in the place of ``old``."""
        for region in old:
            self._starts.remove((region.start, region.id))
            del self._by_id[region.id]
        for region in new:
            insort(self._starts, (region.start, region.id))
            self._by_id[region.id] = region

    def _index(self, physical_key: bytes) -> int:
        return bisect_right(self._starts, (physical_key, 1 << 64)) - 1
