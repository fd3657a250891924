"""What a source is to those who pull, sort and write: where its units' changes are, and how they are read.

    Source ── span_of, mode ──► puller ── raw changes ──► sorter ──► units, each with the source's decoder

A changefeed has one source. What it captures goes by tables all the same, each with a physical id: those of a TiDB, or
one that stands for a range of keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.flow.decoder import Decoder, TableDecoder
from tidemill.model.span import Span
from tidemill.model.table import TableInfo
from tidemill.source.portions import span_of
from tidemill.upstream.feed.registration import TRANSACTIONS, StreamMode


class Source(Protocol):
    @property
    def mode(self) -> StreamMode:
        """Which API's changes are wanted of the stream."""

    def span_of(self, ids: Sequence[int]) -> Span:
        """What to subscribe to for these physical ids, which ascend."""

    def decoder(self, table: TableInfo, physical_id: int, is_mixed: bool) -> Decoder:
        """For the changes of a unit; ``is_mixed``: those of several physical ids are among them."""


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


TABLES = TableSource()
