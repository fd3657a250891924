"""A table's rows at a ts, cut into parts by region. Runs wherever a read is planned; parts travel to executors."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch
from tidemill.model.security import PLAIN, Security
from tidemill.model.span import KEY_END, Span
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.scan.handles import HandleBounds, KeyRange, key_ranges
from tidemill.source.scan.hold import ReadHold
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.feed.bounds import plain_bound
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache

EVERYTHING = HandleBounds()


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The rows of one physical table with keys in ``[start, end)``, as of ``ts``; mostly those of one region."""

    pd: str
    table: TableInfo
    physical_id: int
    start: bytes  # plain keys
    end: bytes
    ts: Ts
    zone: str = "UTC"
    hold: ReadHold | None = None  # None: the caller keeps the upstream from collecting what is read
    security: Security = PLAIN  # paths of files on whichever machine reads

    def read(self, aside: list[Undecodable] | None = None) -> Iterator[RowBatch]:
        """Runs on executors; see ``snapshot.read_part``."""
        from tidemill.source.scan.snapshot import read_part  # here, since it brings what only reading needs

        return read_part(self, aside)


async def plan_scan(
    pd: PdClient,
    table: TableInfo,
    ts: Ts,
    *,
    physical_ids: Sequence[int] | None = None,
    bounds: HandleBounds = EVERYTHING,
    zone: str = "UTC",
    hold: ReadHold | None = None,
) -> list[ScanPart]:
    """Parts that together are all rows of the table at ``ts``, table partitions included, each row once.

    ``physical_ids``: those that hold the rows at ``ts``, where that is not what the table says: in the middle of a
    DDL that copies them. ``bounds`` leaves out what lies outside of them, where keys tell.
    """
    regions = RegionCache(pd)
    parts = []
    for physical_id in table.physical_ids if physical_ids is None else physical_ids:
        for wanted in key_ranges(table, physical_id, bounds):
            async for start, end in cut_by_region(regions, wanted):
                parts.append(ScanPart(pd.addresses, table, physical_id, start, end, ts, zone, hold, pd.security))
    return parts


async def cut_by_region(regions: RegionCache, wanted: KeyRange) -> AsyncIterator[KeyRange]:
    """The range cut where regions meet, in key order: without gap, without overlap."""
    start, end = wanted
    span = Span(encode_bytes(start), encode_bytes(end))
    at = start
    while at < end:
        for region in await regions.load(Span(encode_bytes(at), span.end)):
            stop = end if region.span.end == KEY_END else min(end, plain_bound(region.span.end) or end)
            if at < stop:
                yield at, stop
                at = stop


def joined(ranges: Sequence[KeyRange], most: int) -> Iterator[KeyRange]:
    """Neighbouring ranges put together, so that there are at most ``most``, each of about as many."""
    if not ranges:
        return
    per_part = -(-len(ranges) // most)
    for first in range(0, len(ranges), per_part):
        some = ranges[first : first + per_part]
        yield some[0][0], some[-1][1]
