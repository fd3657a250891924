"""The stages of one micro-batch, fused: everything a unit of work needs, in one executor task.

    slices ─► sort ─► mount ─► split ─► encode ─► write ─► receipt

A ``Unit`` is the changes of one physical table in ``(from, to]`` under one schema; it is small and
picklable, and it names the segment slices to map rather than carrying rows. Only receipts go back.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.clock import SYSTEM_CLOCK
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.encoder import Encoded, make_encoder
from tidemill.flow.mounter import mount
from tidemill.flow.sink import Receipt, SinkConfig, Target, write
from tidemill.flow.sorter import SpanSlices, read_slices
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo


@dataclass(frozen=True, slots=True)
class Unit:
    table: TableInfo
    physical_id: int
    slices: SpanSlices
    target: Target


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Runs on executors. Holds settings only; every file and connection is opened in the call."""

    sink: SinkConfig
    zone: str

    def process(self, unit: Unit) -> Receipt:
        """Make one unit durable downstream and say what was written. Running it again writes the same, but for
        the time of writing in messages that have one."""
        return write(unit.target, self._messages(unit))

    def _messages(self, unit: Unit) -> Iterator[Encoded]:
        encoder = make_encoder(self.sink, int(SYSTEM_CLOCK.now() * 1000))
        for rows in self._rows(unit):
            yield encoder.encode(rows)

    def _rows(self, unit: Unit) -> Iterator[RowBatch]:
        for changes in read_slices(unit.slices):
            rows = mount(unit.table, unit.physical_id, changes, self.zone)
            yield split_key_updates(rows) if self.sink.splits_updates else rows
