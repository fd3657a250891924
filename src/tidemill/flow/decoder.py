"""What a unit's raw changes mean: the source that makes a unit sends a decoder along.

    slices ── raw changes ──► Decoder ── rows ──► filter, dispatcher, sink

Whatever stands behind the decoder knows rows, and whatever stands before it keys and values. For tables it is the
mounter with a schema.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import RowUndecodableError
from tidemill.flow.deadletter import mount_or_set_aside
from tidemill.flow.mounter import fitting, mount
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.tidb.keys import table_prefix


@dataclass(frozen=True, slots=True)
class Reading:
    """How a changefeed wants its changes decoded."""

    zone: str
    verifies_checksums: bool = False
    sets_aside: bool = False  # what cannot be decoded; otherwise it is raised


class Decoder(Protocol):
    """Small and picklable, since it travels to the executor."""

    @property
    def is_mixed(self) -> bool:
        """Whether several keys may stand for one row, so that deletes have to come before inserts."""

    def may_share(self, allows: Callable[[TableInfo], bool]) -> bool:
        """Whether ranges of keys may be written apart; ``allows`` answers for the sink, if there is a table."""

    def pieces(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The changes in pieces that may be decoded at once."""

    def decode(self, changes: pa.RecordBatch, reading: Reading, aside: list[Undecodable]) -> RowBatch:
        """Rows, in the order of ``changes`` unless these are mixed. What is set aside goes into ``aside``."""


@dataclass(frozen=True, slots=True)
class TableDecoder:
    """Rows of a table or table partition."""

    table: TableInfo
    physical_id: int
    is_mixed: bool = False  # rows of other physical ids are among them, and count as rows of this one

    def may_share(self, allows: Callable[[TableInfo], bool]) -> bool:
        return not self.is_mixed and allows(self.table)

    def pieces(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return fitting(self.table, changes)

    def decode(self, changes: pa.RecordBatch, reading: Reading, aside: list[Undecodable]) -> RowBatch:
        if self.is_mixed:
            changes = as_rows_of(self.physical_id, changes)
        verify = reading.verifies_checksums
        if not reading.sets_aside:
            return mount_in_order(self.table, self.physical_id, changes, reading.zone, verify=verify)
        rows, bad = mount_or_set_aside(self.table, self.physical_id, changes, reading.zone, verify=verify)
        aside.extend(bad)
        return rows


def mount_in_order(
    table: TableInfo, physical_id: int, changes: pa.RecordBatch, zone: str, *, verify: bool = False
) -> RowBatch:
    """As ``mount``, but a row that cannot be decoded is the first such one in commit order, named with its commit-ts.

    ``mount`` works column by column and stops at whichever bad row it meets first.
    """
    try:
        return mount(table, physical_id, changes, zone, verify=verify)
    except RowUndecodableError as error:
        found = error
    good, bad = 0, len(changes)  # so many rows from the start can be decoded, so many cannot
    while bad - good > 1:
        half = (good + bad) // 2
        try:
            mount(table, physical_id, changes.slice(0, half), zone, verify=verify)
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
    columns = [renamed if name == "key" else changes.column(name) for name in changes.schema.names]
    has_new, has_old = has_images(changes)
    rank = np.where(has_new, np.where(has_old, 1, 2), 0)
    order = np.lexsort((rank, *(changes.column(name).to_numpy() for name in ("start_ts", "commit_ts"))))
    return pa.RecordBatch.from_arrays(columns, schema=changes.schema).take(pa.array(order))


def has_images(changes: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For each change, whether it has a new value, and whether it has an old one."""
    has_new, has_old = (np.diff(_offsets(changes.column(name))) > 0 for name in ("value", "old_value"))
    return has_new, has_old


def _offsets(values: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
