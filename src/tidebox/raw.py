"""RawKV: keys without transactions, in the layouts of API V1 and V2.

    RawPut ──► latch ──► stamp (t1 < t2) ──► in flight (t1) ──► applied (t2) ──► change stream

V1 keeps keys verbatim, in three column families of its own. V2 keeps every version: the memcomparable
key with the inverted ts behind it, the value with its expiry and a flag for deletes; so a delete is a
version like any other, and the change stream of API V2 can tell of it.

The greatest ts of a region and the clocks are ``hlc``'s. Keys here are as the RPC carries them (API V2
with ``r`` and keyspace in front); ranges are of physical keys, as regions are.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tidebox import raw_blocks
from tidebox.engine import Engine, Family, Item
from tidebox.feed import Subscription
from tidebox.hlc import RegionClocks
from tidebox.inflight import InFlight, Latch
from tidebox.mvcc import encode_varint, physical_key, version_key
from tidebox.regions import Region, RegionMap
from tidebox.subscriptions import Subscriptions
from tidemill.clock import Clock
from tidemill.errors import CorruptDataError, UpstreamError
from tidemill.tidb.keys import decode_bytes

_HAS_EXPIRY = 0x01
_IS_DELETE = 0x02
_NEVER = (1 << 64) - 1
_PAST_REGIONS = 1 << 16

V1_FAMILIES = {
    "": Family.RAW_DEFAULT,
    "default": Family.RAW_DEFAULT,
    "lock": Family.RAW_LOCK,
    "write": Family.RAW_WRITE,
}


class RawError(UpstreamError):
    """A raw request that cannot be served as it is; the message goes to the client."""

    code = "raw"


class ClockNotSyncedError(UpstreamError):
    """The store's clock has not heard from the TSO since it started."""

    code = "clock-not-synced"
    retryable = True


@dataclass(frozen=True, slots=True)
class RawValue:
    """A version of API V2. ``expire_ts`` is in Unix seconds, 0 for never."""

    value: bytes
    expire_ts: int = 0
    is_delete: bool = False

    def encode(self) -> bytes:
        if self.is_delete:
            return b"\x02"
        if self.expire_ts:
            return self.value + self.expire_ts.to_bytes(8, "big") + b"\x01"
        return self.value + b"\x00"

    @staticmethod
    def decode(data: bytes) -> "RawValue":
        flags = data[-1] if data else 0xFF
        if flags & ~(_HAS_EXPIRY | _IS_DELETE) or (flags & _HAS_EXPIRY and len(data) < 9):
            raise CorruptDataError(f"the end of a raw value is not readable: {data[-9:].hex()}")
        if flags & _HAS_EXPIRY:
            return RawValue(data[:-9], int.from_bytes(data[-9:-1], "big"), bool(flags & _IS_DELETE))
        return RawValue(data[:-1], 0, bool(flags & _IS_DELETE))

    def is_live(self, now: int) -> bool:
        return not self.is_delete and (self.expire_ts == 0 or self.expire_ts > now)


DELETED = RawValue(b"", is_delete=True)


class RawStore:
    """All raw data of the cluster. Writes and hooks are called under the cluster's mutex."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        ask_tso: Callable[[], int | None],
        regions: RegionMap,
        subscriptions: Subscriptions,
        store_ids: Iterable[int],
        in_flight: InFlight,
        api_version: int,
    ) -> None:
        """``ask_tso`` gives PD's present, or None while PD is away."""
        self._engine = engine
        self._clock = clock
        self._ask_tso = ask_tso
        self._regions = regions
        self._subscriptions = subscriptions
        self._in_flight = in_flight
        self.is_v2 = api_version == 2
        self.clocks = RegionClocks(engine, store_ids)
        self._past: OrderedDict[tuple[int, int], Region] = OrderedDict()
        self._index = 0

    # Keys, families, time

    def physical(self, key: bytes) -> bytes:
        """By what regions and the engine order the key."""
        return physical_key(key) if self.is_v2 else key

    def expiry(self, ttl_seconds: int) -> int:
        return min(self._now() + ttl_seconds, _NEVER) if ttl_seconds else 0

    def _now(self) -> int:
        return int(self._clock.now())

    # Reading

    def get(self, family: Family, key: bytes) -> bytes | None:
        if not self.is_v2:
            return self._engine.get(family, key)
        found = self._live(key)
        return found.value if found is not None else None

    def ttl(self, key: bytes) -> int | None:
        """Seconds left, 0 for a key that does not expire; None if there is no such key. API V2."""
        found = self._live(key)
        if found is None:
            return None
        return found.expire_ts - self._now() if found.expire_ts else 0

    def scan(self, family: Family, start: bytes, end: bytes, *, backwards: bool = False) -> Iterator[Item]:
        """Live keys and values of the physical range in order; an empty ``end`` means no end."""
        if end and start >= end:
            return iter(())
        read = self._engine.items_backwards if backwards else self._engine.items
        if not self.is_v2:
            return read(family, start, end)
        versions = read(Family.RAW, start, end)
        return self._visible(_last_of_each(versions) if backwards else _first_of_each(versions))

    def scan_wire(self, start: bytes, end: bytes, limit: int, *, key_only: bool) -> bytes:
        """What ``scan`` gives forwards, at most ``limit`` pairs, as a ``kvrpcpb.RawScanResponse``. API V2."""
        if end and start >= end:
            return b""
        rows = raw_blocks.live(self._engine.items(Family.RAW, start, end), self._now(), limit, key_only=key_only)
        return b"".join(part.data.tobytes() for part in rows)

    def checksum(self, family: Family, start: bytes, end: bytes) -> raw_blocks.Checksum:
        if end and start >= end:
            return raw_blocks.Checksum()
        pairs = self._engine.items(family, start, end)
        return raw_blocks.checksum_versions(pairs, self._now()) if self.is_v2 else raw_blocks.checksum_pairs(pairs)

    def _visible(self, newest: Iterator[Item]) -> Iterator[Item]:
        now = self._now()
        for stored, data in newest:
            version = RawValue.decode(data)
            if version.is_live(now):
                yield decode_bytes(stored)[0], version.value

    def _live(self, key: bytes) -> RawValue | None:
        prefix = physical_key(key)
        for _, data in islice(self._engine.items(Family.RAW, prefix, prefix + b"\xff" * 9), 1):
            version = RawValue.decode(data)
            return version if version.is_live(self._now()) else None
        return None

    # Writing

    def write(
        self,
        region: Region,
        family: Family,
        changes: Mapping[bytes, RawValue],
        latch: Latch,
        recheck: Callable[[], object],
    ) -> None:
        """Apply the changes of one request to keys of the region, all or none; the caller holds their latch.

        ``recheck`` raises if the region is no longer served here after a delay: then nothing is applied.
        """
        batch = self._engine.batch()
        if not self.is_v2:
            latch.delay(recheck=recheck)
            for key, change in changes.items():
                if change.is_delete:
                    batch.delete(family, key)
                else:
                    batch.put(family, key, change.value)
            self._engine.write(batch)
            return
        if not self.clocks.clock(region.leader_store).is_synced:
            raise ClockNotSyncedError(f"store {region.leader_store} has not heard from the TSO since it started")
        in_flight, ts = self.clocks.stamp(region)
        latch.delay(raw=dict.fromkeys(changes, in_flight), recheck=recheck)
        for key, change in changes.items():
            batch.put(Family.RAW, version_key(key, ts), change.encode())
        self._engine.write(batch)
        self.clocks.applied(region, ts)
        self._index += 1
        if self._subscriptions.is_observed(region.id):
            stamp = encode_varint(ts)
            rows = [(key, _row(key, change, stamp)) for key, change in changes.items()]
            self._subscriptions.on_raw(region.id, self._index, rows)

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Remove every version of a physical range, at once and without a word to the change stream."""
        family = Family.RAW if self.is_v2 else family
        batch = self._engine.batch()
        if end:
            batch.delete_range(family, start, end)
        else:
            for key, _ in self._engine.items(family, start):
                batch.delete(family, key)
        self._engine.write(batch)

    def collect(self, before_ts: int) -> int:
        """Remove versions below ``before_ts`` that no reader can see; return how many. Any thread may call it.

        The newest version of a key stays as long as it is neither deleted nor expired.
        """
        removed = 0
        if self.is_v2:
            snapshot = self._engine.snapshot([Family.RAW])
            for stored in raw_blocks.dead(snapshot, before_ts, self._now()):
                batch = self._engine.batch()
                for key in stored:
                    batch.delete(Family.RAW, key)
                self._engine.write(batch)
                removed += len(stored)
        return removed

    # Resolved-ts

    def promise(self, subscription: Subscription) -> int:
        """How far the subscription's range is resolved. No raw write there will be stamped at or below it."""
        region = self._regions.get(subscription.region_id)
        assert region is not None
        pending = [ts for key, ts in self._in_flight.raw_writes() if subscription.wants(key)]
        resolved = min([self.clocks.clock(region.leader_store).last, *pending])
        self.clocks.observe(region.id, resolved)
        return resolved

    # What happens to regions and stores

    def refresh(self) -> bool:
        """Set the clocks forward to the TSO; False while PD is away."""
        present = self._ask_tso()
        if present is None:
            return False
        self.clocks.refresh(present)
        return True

    def on_leader(self, region: Region) -> None:
        self.clocks.on_leader(region)

    def on_split(self, parent_id: int, child_ids: Iterable[int]) -> None:
        self.clocks.on_split(parent_id, child_ids)

    def on_merge(self, source_id: int, target_id: int) -> None:
        """``source_id`` is gone, ``target_id`` has its keys."""
        target = self._regions.get(target_id)
        assert target is not None
        self.clocks.on_merge(source_id, target)

    def on_restart(self, store_id: int) -> None:
        self.clocks.on_restart(store_id, [r for r in self._regions if r.leader_store == store_id])
        self.refresh()

    def on_replaced(self, old: Sequence[Region]) -> None:
        """Remember what regions were, for clients that have not noticed."""
        for region in old:
            self._past[region.id, region.version] = region
        while len(self._past) > _PAST_REGIONS:
            self._past.popitem(last=False)

    def region_as_of(self, region_id: int, version: int) -> Region | None:
        """The region as it is, or was at that version of its epoch."""
        current = self._regions.get(region_id)
        if current is not None and current.version == version:
            return current
        return self._past.get((region_id, version))

    def close(self) -> None:
        self.clocks.close()


def _first_of_each(versions: Iterable[Item]) -> Iterator[Item]:
    last = b""
    for stored, data in versions:
        if stored[:-8] != last:
            last = stored[:-8]
            yield stored, data


def _last_of_each(versions: Iterable[Item]) -> Iterator[Item]:
    pending: Item | None = None
    for item in versions:
        if pending is not None and pending[0][:-8] != item[0][:-8]:
            yield pending
        pending = item
    if pending is not None:
        yield pending


def _row(key: bytes, change: RawValue, stamp: bytes) -> bytes:
    """A COMMITTED row as an element of ``Entries``; framed by hand, since every write pays for it."""
    parts = [b"\x08", stamp, b"\x10", stamp, b"\x18\x04\x20\x02" if change.is_delete else b"\x18\x04\x20\x01"]
    parts += (b"\x2a", encode_varint(len(key)), key)
    if change.value:
        parts += (b"\x32", encode_varint(len(change.value)), change.value)
    if change.expire_ts:
        parts += (b"\x40", encode_varint(change.expire_ts))
    body = b"".join(parts)
    return b"\x0a" + encode_varint(len(body)) + body
