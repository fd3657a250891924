"""The stages of one micro-batch, fused: everything a unit of work needs, in one executor task.

    slices ─► sort ─► mount ─► split ─► encode ─► write ─► receipt

A ``Unit`` is the changes of one table or table partition in ``(from, to]`` under one schema; it is small and
picklable, and it names the segment slices to map rather than carrying rows. Only receipts go back.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import RowUndecodableError
from tidemill.flow.dispatcher import split_key_updates
from tidemill.flow.encoder import Encoded, make_encoder
from tidemill.flow.mounter import mount
from tidemill.flow.sink import Receipt, SinkConfig, Target, write
from tidemill.flow.sorter import SpanSlices, read_slices
from tidemill.model.change import RAW_CHANGE_SCHEMA
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.upstream.keys import table_prefix

Part = tuple[TableInfo, int, SpanSlices]  # of one physical id


@dataclass(frozen=True, slots=True)
class Unit:
    table: TableInfo
    physical_id: int
    slices: SpanSlices
    target: Target
    is_mixed: bool = False  # rows of other physical ids are among them, and count as rows of this one


def make_units(parts: Iterable[Part], target: Callable[[TableInfo, int], Target]) -> list[Unit]:
    """Units that share nothing downstream, so that each can be written by itself.

    A table that is just being partitioned has several physical ids while downstream it is still one: those
    become one unit, in one commit order.
    """
    found: dict[tuple[int, int], Part] = {}
    mixed = set()
    for table, physical_id, slices in parts:
        place = (table.id, physical_id if table.is_partitioned else table.id)
        if place in found:
            mixed.add(place)
            _, physical_id, first = found[place]
            slices = first.joined(slices)
        found[place] = table, physical_id, slices
    return [
        Unit(table, physical_id, slices, target(table, physical_id), place in mixed)
        for place, (table, physical_id, slices) in found.items()
    ]


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
            if unit.is_mixed:
                changes = as_rows_of(unit.physical_id, changes)
            rows = mount_in_order(unit.table, unit.physical_id, changes, self.zone)
            yield split_key_updates(rows) if self.sink.splits_updates else rows


def mount_in_order(table: TableInfo, physical_id: int, changes: pa.RecordBatch, zone: str) -> RowBatch:
    """As ``mount``, but a row that cannot be decoded is the first such one in commit order, named with its commit-ts.

    ``mount`` works column by column and stops at whichever bad row it meets first.
    """
    try:
        return mount(table, physical_id, changes, zone)
    except RowUndecodableError as error:
        found = error
    good, bad = 0, len(changes)  # so many rows from the start can be decoded, so many cannot
    while bad - good > 1:
        half = (good + bad) // 2
        try:
            mount(table, physical_id, changes.slice(0, half), zone)
            good = half
        except RowUndecodableError as error:
            found, bad = error, half
    commit_ts = changes.column("commit_ts")[bad - 1].as_py()
    raise RowUndecodableError(found.table, found.key, found.column, found.reason, commit_ts)


def as_rows_of(physical_id: int, changes: pa.RecordBatch) -> pa.RecordBatch:
    """The same changes with keys that name ``physical_id``, whichever table partition they are from.

    A row that moves from one table partition to another is a delete and an insert, and may keep its key. So
    within a transaction deletes come first, then updates, then inserts.
    """
    keys = changes.column("key")
    offsets = _offsets(keys)
    data = np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
    offsets = offsets - offsets[0]
    prefix = np.frombuffer(table_prefix(physical_id), np.uint8)
    data[offsets[:-1, None] + np.arange(len(prefix))] = prefix
    renamed = pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    columns = [renamed if name == "key" else changes.column(name) for name in RAW_CHANGE_SCHEMA.names]
    has_new, has_old = (np.diff(_offsets(changes.column(name))) > 0 for name in ("value", "old_value"))
    rank = np.where(has_new, np.where(has_old, 1, 2), 0)
    order = np.lexsort((rank, *(changes.column(name).to_numpy() for name in ("start_ts", "commit_ts"))))
    return pa.RecordBatch.from_arrays(columns, schema=RAW_CHANGE_SCHEMA).take(pa.array(order))


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
