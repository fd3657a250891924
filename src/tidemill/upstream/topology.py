"""Regions and stores, as PD describes them, in our own words."""

from dataclasses import dataclass, replace

from tidemill._pb import metapb_pb2
from tidemill.errors import ProtocolViolationError
from tidemill.model.span import Span, from_wire


@dataclass(frozen=True, slots=True)
class Peer:
    id: int
    store_id: int

    def to_wire(self) -> metapb_pb2.Peer:
        return metapb_pb2.Peer(id=self.id, store_id=self.store_id)


@dataclass(frozen=True, slots=True)
class Region:
    """One picture of a region: its range and peers at one epoch, and who led it when we looked."""

    id: int
    span: Span  # physical keys
    version: int  # grows with every split and merge
    conf_ver: int  # grows with every change of peers
    peers: tuple[Peer, ...]
    leader: Peer | None  # None: there is none at the moment

    def led_by(self, leader: Peer | None) -> "Region":
        return replace(self, leader=leader)

    def epoch(self) -> metapb_pb2.RegionEpoch:
        return metapb_pb2.RegionEpoch(conf_ver=self.conf_ver, version=self.version)


@dataclass(frozen=True, slots=True)
class Store:
    id: int
    address: str
    version: str
    is_tombstone: bool
    is_tikv: bool  # neither TiFlash nor a node that only computes


def peer_from(peer: metapb_pb2.Peer) -> Peer | None:
    """PD writes an all-zero peer where there is no leader."""
    return Peer(peer.id, peer.store_id) if peer.id and peer.store_id else None


def region_from(region: metapb_pb2.Region, leader: metapb_pb2.Peer | None) -> Region:
    end = region.end_key
    if not region.id or (end and region.start_key >= end):
        raise ProtocolViolationError(
            f"PD described region {region.id} with the range [{region.start_key.hex()}, {end.hex()}), which is none. "
            "Check that the address given is PD's."
        )
    return Region(
        id=region.id,
        span=from_wire(region.start_key, end),
        version=region.region_epoch.version,
        conf_ver=region.region_epoch.conf_ver,
        peers=tuple(Peer(p.id, p.store_id) for p in region.peers),
        leader=peer_from(leader) if leader is not None else None,
    )


def store_from(store: metapb_pb2.Store) -> Store:
    engines = {label.value for label in store.labels if label.key == "engine"}
    return Store(
        id=store.id,
        address=store.address,
        version=store.version.removeprefix("v"),
        is_tombstone=store.state == metapb_pb2.Tombstone,
        is_tikv=not engines & {"tiflash", "tiflash_compute"},
    )
