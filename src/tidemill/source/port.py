"""What a source is to those who pull, sort and write: where its units' changes are, and how they are read.

    Source ── span_of, mode ──► puller ── raw changes ──► sorter ──► units, each with the source's decoder

A changefeed has one source. What it captures goes by tables all the same, each with a physical id: those of a TiDB, or
one that stands for a range of keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.flow.decoder import Decoder, TableDecoder
from tidemill.flow.pipeline import Rows
from tidemill.model.span import Span
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.portions import span_of
from tidemill.source.scan import plan_scan
from tidemill.upstream.feed.registration import TRANSACTIONS, StreamMode
from tidemill.upstream.pd import PdClient


class CopyPart(Rows, Protocol):
    """A part of an initial copy, between two keys; the end belongs to the next part. A dataclass."""

    @property
    def start(self) -> bytes: ...

    @property
    def end(self) -> bytes: ...


class Source(Protocol):
    @property
    def mode(self) -> StreamMode:
        """Which API's changes are wanted of the stream."""

    def span_of(self, ids: Sequence[int]) -> Span:
        """What to subscribe to for these physical ids, which ascend."""

    def decoder(self, table: TableInfo, physical_id: int, is_mixed: bool) -> Decoder:
        """For the changes of a unit; ``is_mixed``: those of several physical ids are among them."""

    async def copy_parts(
        self, pd: PdClient, table: TableInfo, physical_id: int, ts: Ts, zone: str
    ) -> Sequence[CopyPart]:
        """What a copy as of ``ts`` reads, in the order of keys. With the changes above ``ts`` it is everything."""


@dataclass(frozen=True, slots=True)
class TableSource:
    """The tables of a TiDB."""

    @property
    def mode(self) -> StreamMode:
        return TRANSACTIONS

    def span_of(self, ids: Sequence[int]) -> Span:
        return span_of(ids)

    def decoder(self, table: TableInfo, physical_id: int, is_mixed: bool) -> Decoder:
        return TableDecoder(table, physical_id, is_mixed)

    async def copy_parts(
        self, pd: PdClient, table: TableInfo, physical_id: int, ts: Ts, zone: str
    ) -> Sequence[CopyPart]:
        return await plan_scan(pd, table, ts, physical_ids=[physical_id], zone=zone)


TABLES = TableSource()
