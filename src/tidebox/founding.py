"""What a cluster's folder says of it, and how it comes to say so."""

import random

from tidebox.engine import Engine, Family
from tidebox.regions import Peer, Region
from tidemill.clock import Clock
from tidemill.errors import CorruptDataError, DataDirError

MAX_REPLICAS = 3
NEXT_ID = b"next_id"
REGION = b"region/"

_CLUSTER_ID = b"cluster_id"
_STORE_COUNT = b"store_count"
_API_VERSION = b"api_version"


def found_cluster(engine: Engine, clock: Clock, store_count: int, api_version: int) -> tuple[int, int]:
    """Found the cluster in an empty folder, or find it there; return its id and the next free one."""
    stored = engine.get(Family.META, _CLUSTER_ID)
    if stored is not None:
        count = int.from_bytes(engine.get(Family.META, _STORE_COUNT) or b"", "big")
        if count != store_count:
            raise DataDirError(
                f"the data folder was made for {count} stores, not {store_count}. "
                f"Start with --stores {count}, or choose another --data-dir."
            )
        version = int.from_bytes(engine.get(Family.META, _API_VERSION) or b"\x01", "big")
        if version != api_version:
            raise DataDirError(
                f"the data folder was made for API version {version}, not {api_version}: keys and values "
                f"are laid out differently. Start with --api-version {version}, or choose another --data-dir."
            )
        next_id = int.from_bytes(engine.get(Family.META, NEXT_ID) or b"", "big")
        if not next_id:
            raise CorruptDataError("which ids have been given out is not known any more")
        return int.from_bytes(stored, "big"), next_id
    if engine.had_tables:
        raise CorruptDataError("it holds data and knows of no cluster")
    # As PD makes them: seconds in the upper half, chance in the lower.
    cluster_id = int(clock.now()) << 32 | random.getrandbits(32)
    first_id = store_count + 1
    peers = tuple(Peer(first_id + 1 + i, i + 1) for i in range(min(store_count, MAX_REPLICAS)))
    region = Region(first_id, b"", b"", 1, 1, peers, 1)
    next_id = first_id + 1 + len(peers)
    batch = engine.batch()
    batch.put(Family.META, region_key(region.id), region.encode())
    batch.put(Family.META, NEXT_ID, next_id.to_bytes(8, "big"))
    batch.put(Family.META, _STORE_COUNT, store_count.to_bytes(4, "big"))
    batch.put(Family.META, _API_VERSION, api_version.to_bytes(1, "big"))
    batch.put(Family.META, _CLUSTER_ID, cluster_id.to_bytes(8, "big"))
    engine.write(batch)
    return cluster_id, next_id


def region_key(region_id: int) -> bytes:
    return REGION + region_id.to_bytes(8, "big")
