"""All changes of some keys between two ts, taken from the change stream and sorted on local disk.

    EventFeed from ``from_ts`` ─► puller ─► sorter, until the resolved-ts has passed ``to_ts`` ─► slices

Memory is bounded by the sorter's; what does not fit lies in segments in a folder of the caller's.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tidemill.flow.puller import Puller
from tidemill.flow.sorter import Sorter, SpanSlices, read_slices
from tidemill.model.progress import Extent
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.upstream.feed.registration import TRANSACTIONS, StreamMode
from tidemill.upstream.pd import PdClient

MEMORY_BYTES = 128 << 20
_SPAN = 1


class _Taker:
    """Keeps what the puller brings (its ``ChangeReceiver``), and notices when it is all there."""

    def __init__(self, sorter: Sorter, to_ts: Ts) -> None:
        self._sorter = sorter
        self._to_ts = to_ts
        self.is_complete = asyncio.Event()

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        await self._sorter.add(subscription, changes)

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        self._sorter.advance(subscription, resolved_ts)
        if resolved_ts >= self._to_ts:
            self.is_complete.set()


async def take_changes(
    pd: PdClient, span: Span, from_ts: Ts, to_ts: Ts, folder: Path, mode: StreamMode = TRANSACTIONS
) -> SpanSlices | None:
    """Changes with ``from_ts < commit_ts ≤ to_ts`` of keys in ``span``, in files in ``folder``; None: not one.

    Waits until the upstream vouches that there are no more.
    """
    sorter = Sorter(folder, memory_bytes=MEMORY_BYTES)
    sorter.open_span(_SPAN, from_ts)
    sorter.close_span(_SPAN, to_ts)
    taker = _Taker(sorter, to_ts)
    puller = Puller(pd, taker, mode=mode)
    async with asyncio.TaskGroup() as tasks:
        pulling = tasks.create_task(puller.run())
        puller.subscribe(_SPAN, span, from_ts)
        await taker.is_complete.wait()
        pulling.cancel()
    found = sorter.plan(Extent(from_ts, to_ts))
    return found[0] if found else None


def in_order(slices: SpanSlices | None) -> Iterator[pa.RecordBatch]:
    """The changes by ``(commit_ts, start_ts, key)``, each once, cut between two commit-ts."""
    if slices is not None:
        yield from read_slices(slices)
