"""One part of a range of keys, copied. Runs on executors.

    change stream from ts 0 ── the scan of each region, and on until its ts is resolved ─► changes up to it ─► rows

RawKV keeps no versions, so nothing can be read as of a ts. But a store that is asked for changes from the beginning
first tells the last change of each key: its value with its ts and its expiry, or its deletion. Of these a copy takes
what is not above its ts. The rest is brought by the changefeed's own stream, which begins at that ts: a key that is
written while it is copied, before the scan has come to it or behind it, is left to the stream. So each version comes
by one of the two, and all of the copy before all of the stream. Keys of transactions keep their versions, and are read
as of the ts.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.decoder import Decoder, Reading
from tidemill.flow.puller import Puller
from tidemill.flow.sorter import SpanSlices
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.security import PLAIN, Security
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.source.scan.feed import in_order, take_changes
from tidemill.source.scan.prefetch import Emit, read_ahead
from tidemill.source.scan.snapshot import changes_of
from tidemill.upstream.feed.registration import StreamMode
from tidemill.upstream.keyspace import Keyspace
from tidemill.upstream.pd import PdClient
from tidemill.upstream.raw import RawClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

_SUBSCRIPTION = 1
_BEGINNING = Ts(0)


PAIRS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
CHANGES = pa.schema([*PAIRS, ("expire_seconds", pa.int64()), ("_op", pa.string()), ("_commit_ts", pa.int64())])
_OPS = pa.array([None, "put", "put", "delete"])


@dataclass(frozen=True, slots=True)
class KeyScan:
    """The last changes, up to ``ts``, of the keys in ``[start, end)``. Small and picklable."""

    pd: str
    mode: StreamMode
    decoder: Decoder
    keyspace: Keyspace
    start: bytes  # logical keys, of which the end is never empty
    end: bytes
    ts: Ts
    security: Security = PLAIN

    @property
    def span(self) -> Span:
        return Span(self.keyspace.physical(self.start), self.keyspace.physical_end(self.end))

    def read(self, aside: list[Undecodable] | None = None) -> Iterator[RowBatch]:
        """In no order. Of a key that is changed meanwhile there may be nothing."""
        for changes in read_ahead(partial(_read_snapshot if self.mode.has_locks else _read, self)):
            yield self.decoder.decode(changes, Reading("UTC"), [])


async def _read(part: KeyScan, emit: Emit[pa.RecordBatch]) -> None:
    async with PdClient(part.pd, security=part.security) as pd:
        receiver = _UpTo(part.ts, emit)
        puller = Puller(pd, receiver, mode=part.mode)
        puller.subscribe(
            _SUBSCRIPTION, Span(part.keyspace.physical(part.start), part.keyspace.physical_end(part.end)), _BEGINNING
        )
        pulling = asyncio.create_task(puller.run())
        resolved = asyncio.create_task(receiver.is_resolved.wait())
        try:
            await asyncio.wait([pulling, resolved], return_when=asyncio.FIRST_COMPLETED)
            if pulling.done():
                await pulling
        finally:
            for task in (pulling, resolved):
                task.cancel()
            await asyncio.gather(pulling, resolved, return_exceptions=True)


async def _read_snapshot(part: KeyScan, emit: Emit[pa.RecordBatch]) -> None:
    async with PdClient(part.pd, security=part.security) as pd:
        reader = SnapshotReader(pd, RegionCache(pd), keyspace=part.keyspace)
        try:
            async for pairs in reader.scan(part.start, part.end, part.ts):
                await emit(changes_of(pairs, np.full(len(pairs), part.ts, np.uint64)))
        finally:
            await reader.close()


class _UpTo:
    """Hands on what is not above the ts, until all regions have resolved it, as only those that are scanned do."""

    def __init__(self, ts: Ts, emit: Emit[pa.RecordBatch]) -> None:
        self._ts, self._emit = ts, emit
        self.is_resolved = asyncio.Event()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        wanted = changes.filter(pc.less_equal(changes.column("commit_ts"), pa.scalar(self._ts, pa.uint64())))
        if len(wanted) and not self.is_resolved.is_set():
            await self._emit(wanted)

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        if resolved_ts >= self._ts:
            self.is_resolved.set()


@dataclass(frozen=True, slots=True)
class KeyPairs:
    """Keys and values of a part, for other systems: of RawKV as they are now, of transactions as of its ts."""

    scan: KeyScan

    def read(self) -> Iterator[pa.RecordBatch]:
        """Of ``PAIRS``."""
        if not self.scan.mode.has_locks:
            yield from read_ahead(partial(_read_pairs, self.scan))
            return
        for rows in self.scan.read():
            yield pa.RecordBatch.from_arrays([rows.new.column(name) for name in PAIRS.names], schema=PAIRS)


async def _read_pairs(part: KeyScan, emit: Emit[pa.RecordBatch]) -> None:
    space = part.keyspace
    end = space.user(part.end) if part.end.startswith(space.prefix) else b""
    async with PdClient(part.pd, security=part.security) as pd:
        client = RawClient(RegionCache(pd), keyspace=part.keyspace)
        try:
            async for pairs in client.scan(space.user(part.start), end):
                columns = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)]
                await emit(pa.RecordBatch.from_arrays(columns, schema=PAIRS))
        finally:
            await client.close()


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What was done to keys of a part above ``from_ts``, up to the part's ts, for other systems. Of RawKV the store
    tells the newest change of each key: one that was followed by another, also above the ts, is not among them."""

    scan: KeyScan
    from_ts: Ts

    def read(self) -> Iterator[pa.RecordBatch]:
        """Of ``CHANGES``, in commit order. Waits until the upstream has resolved the ts."""
        with TemporaryDirectory(prefix="tidemill-changes-") as folder:
            for slices in read_ahead(partial(_take, self, Path(folder))):
                for changes in in_order(slices):
                    yield _presented(self.scan.decoder.decode(changes, Reading("UTC"), []))


async def _take(part: KeyChanges, folder: Path, emit: Emit[SpanSlices | None]) -> None:
    scan = part.scan
    async with PdClient(scan.pd, security=scan.security) as pd:
        await emit(await take_changes(pd, scan.span, part.from_ts, scan.ts, folder, scan.mode))


def _presented(rows: RowBatch) -> pa.RecordBatch:
    is_delete = rows.op == RowOp.DELETE
    order = pa.array(np.where(is_delete, len(rows.new) + np.cumsum(is_delete) - 1, np.cumsum(~is_delete) - 1))
    columns = [pa.concat_arrays([rows.new.column(i), rows.old.column(i)]).take(order) for i in range(3)]
    columns[2] = columns[2].cast(pa.int64())
    stamps = pa.array(rows.commit_ts.astype(np.int64))
    return pa.RecordBatch.from_arrays([*columns, _OPS.take(pa.array(rows.op)), stamps], schema=CHANGES)
