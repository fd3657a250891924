"""A range of keys as a source, from what the user wrote to what the change stream is asked for.

    KeyRange ── keyspace, API checked ─► KeySource ── parts, by number ─► spans, decoder

A part is what is assigned, pulled and written by itself; to those who do it is a table, of the part's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.errors import IncompatibleUpstreamError, InvariantError, ProtocolViolationError, UsageError
from tidemill.flow.decoder import Decoder
from tidemill.flow.rawkv import KeyDecoder, key_tables
from tidemill.model.keys import DEFAULT_KEYSPACE, Bounds, KeyApi, KeyRange, cut, split
from tidemill.model.span import KEY_END, Span
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.scan.keys import KeyScan
from tidemill.source.scan.parts import joined
from tidemill.upstream.feed.registration import TRANSACTIONS, StreamMode, raw_mode
from tidemill.upstream.keyspace import TXN_V1, Keyspace, raw_v2, txn_v2
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

_MOST_PARTS = 256  # of a copy of each part, since each takes a second however small it is


@dataclass(frozen=True, slots=True)
class KeySource:
    """Changes of keys, in parts that together are the ranges. Without ``parts`` each range is one."""

    keyspace: Keyspace
    keys: KeyRange
    parts: tuple[Bounds, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", tuple(self.keys.ranges))

    @property
    def mode(self) -> StreamMode:
        if self.keys.api is KeyApi.txn:
            return TRANSACTIONS
        return raw_mode(round(self.keys.safe_interval_seconds * 1000))

    @property
    def span(self) -> Span:
        """From the first key to the last; between several ranges there are others."""
        return self.span_between(self.parts[0][0], self.parts[-1][1])

    def span_of(self, ids: Sequence[int]) -> Span:
        """Parts are read one by one: a change tells not of which it is."""
        if len(ids) != 1:
            raise InvariantError(f"parts {list(ids)} of a range of keys would be read together. Report it.")
        return self.span_between(*self.parts[ids[0] - 1])

    def span_between(self, first: bytes, behind: bytes) -> Span:
        start, end = self.keyspace.range(first, behind)
        return Span(self.keyspace.physical(start), self.keyspace.physical_end(end))

    def decoder(self, table: TableInfo, physical_id: int, is_mixed: bool) -> Decoder:
        return KeyDecoder(table, len(self.keyspace.prefix), self.keys.filter)

    async def copy_parts(
        self, pd: PdClient, table: TableInfo, physical_id: int, ts: Ts, zone: str
    ) -> Sequence[KeyScan]:
        pieces = [self.keyspace.range(*each) for each in cut(*self.parts[physical_id - 1], await self.borders(pd))]
        decoder = self.decoder(table, physical_id, False)
        return [
            KeyScan(pd.addresses, self.mode, decoder, self.keyspace, start, end or KEY_END, ts, pd.security)
            for start, end in joined(pieces, _MOST_PARTS)
        ]

    def tables(self, since_ts: Ts) -> list[TableInfo]:
        return key_tables(self.keys.api, self.keys.keyspace or DEFAULT_KEYSPACE, since_ts, len(self.parts))

    async def divided(self, pd: PdClient) -> "KeySource":
        """In as many parts as are wanted, along the regions as they are now."""
        return replace(self, parts=tuple(split(self.keys.ranges, await self.borders(pd), self.keys.span_count)))

    async def by_region(self, pd: PdClient) -> list[Bounds]:
        """All parts, cut where regions end."""
        borders = await self.borders(pd)
        return [piece for start, end in self.parts for piece in cut(start, end, borders)]

    async def borders(self, pd: PdClient) -> list[bytes]:
        """Where regions end within the ranges."""
        regions = await RegionCache(pd).load(self.span)
        ends = (self.keyspace.bounds(region)[1] for region in regions)
        return [self.keyspace.user(end) for end in ends if end and end.startswith(self.keyspace.prefix)]


async def find_keyspace(pd: PdClient, name: str) -> Keyspace:
    """Raises UsageError where PD has none of this name."""
    if name in ("", DEFAULT_KEYSPACE):
        return raw_v2()
    number = await pd.find_keyspace(name)
    if number is None:
        raise UsageError(
            f"there is no keyspace {name!r} in the cluster at {pd.addresses}. Give its name as pd-ctl shows it, or "
            f"leave --keyspace out for {DEFAULT_KEYSPACE}."
        )
    return raw_v2(number)


async def open_keys(pd: PdClient, keys: KeyRange) -> KeySource:
    """Raises UsageError for a keyspace that is not there, and IncompatibleUpstreamError for a cluster whose RawKV has
    no change stream."""
    keyspace = await find_keyspace(pd, keys.keyspace)
    if keys.api is KeyApi.txn:
        return KeySource(await _txn_keyspace(pd, keyspace.id, is_named=bool(keys.keyspace)), keys)
    await check_api(pd, keyspace, keys.ranges[0][0])
    return KeySource(keyspace, keys)


async def plan_keys(pd: PdClient, keys: KeyRange, ts: Ts) -> list[KeyScan]:
    """Parts that together are the ranges, for those who read them by themselves."""
    source = await open_keys(pd, keys)
    parts = [await source.copy_parts(pd, table, table.id, ts, "UTC") for table in source.tables(ts)]
    return [scan for scans in parts for scan in scans]


async def _txn_keyspace(pd: PdClient, number: int, *, is_named: bool) -> Keyspace:
    """Keys of transactions are in a keyspace with API V2 alone; a store of V1 refuses who asks for one."""
    found = txn_v2(number)
    reader = SnapshotReader(pd, RegionCache(pd), keyspace=found)
    try:
        await reader.get(found.logical(b"k"), await pd.get_ts())
    except (ProtocolViolationError, IncompatibleUpstreamError):
        if is_named:
            raise
        return TXN_V1
    finally:
        await reader.close()
    return found


async def check_api(pd: PdClient, keyspace: Keyspace, key: bytes) -> None:
    """That the store of ``key`` is one of API V2."""
    client = RawClient(RegionCache(pd), keyspace=keyspace)
    try:
        await client.get(key)
    except IncompatibleUpstreamError as error:
        raise IncompatibleUpstreamError(
            f"the TiKV of the cluster at {pd.addresses} does not serve RawKV of API V2 ({error}). Keys of API V1 have "
            "no timestamps, so their changes cannot be captured: set storage.api-version = 2 in an empty cluster, and "
            "move the data there with TiKV-BR."
        ) from error
    finally:
        await client.close()
