"""Rows: raw changes decoded with their table's schema, as Arrow batches.

A ``RowBatch`` holds changes of one physical table under one schema version, in order. To decode
nothing twice and nothing in vain, the two images are kept compact: ``new`` has a row for each
insert and update, ``old`` for each update and delete, both in the order of the changes.

How a column's value is held (the text forms are TiDB's own):

    integers, YEAR       int64, or uint64 when unsigned        DECIMAL      string, with its scale
    FLOAT, DOUBLE        float32, float64                      date, time   string; TIMESTAMP in the chosen zone
    BIT, ENUM, SET       uint64 (number, index, bitmap)        JSON         string
    text                 string                                VECTOR       string
    binary               binary
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnInfo, ColumnType, TableInfo


class RowOp(IntEnum):
    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclass(frozen=True, slots=True)
class RowBatch:
    table: TableInfo
    physical_id: int
    op: npt.NDArray[np.uint8]  # RowOp, one per change
    start_ts: npt.NDArray[np.uint64]
    commit_ts: npt.NDArray[np.uint64]
    new: pa.RecordBatch  # columns of table.stored_columns; a row per insert and update
    old: pa.RecordBatch  # likewise; a row per update and delete

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class LargeRows:
    """The rows of one transaction, too many to be held. ``read`` gives them in batches, in order, each time anew."""

    read: Callable[[], Iterator[RowBatch]]


def flat(rows: Iterator[RowBatch | LargeRows]) -> Iterator[RowBatch]:
    """For who does not mind where transactions end: large ones are read as their turn comes."""
    for each in rows:
        if isinstance(each, LargeRows):
            yield from each.read()
        else:
            yield each


def sliced(rows: RowBatch, first: int, end: int) -> RowBatch:
    """The changes from ``first`` to ``end``, which is not included. Copies nothing."""
    new = np.concatenate(([0], np.cumsum(rows.op != RowOp.DELETE)))
    old = np.concatenate(([0], np.cumsum(rows.op != RowOp.INSERT)))
    return RowBatch(
        rows.table,
        rows.physical_id,
        rows.op[first:end],
        rows.start_ts[first:end],
        rows.commit_ts[first:end],
        rows.new.slice(int(new[first]), int(new[end] - new[first])),
        rows.old.slice(int(old[first]), int(old[end] - old[first])),
    )


def arrow_type(column: ColumnInfo) -> pa.DataType:
    """The Arrow type in which a column's values are held."""
    kind = column.type
    if kind in INTEGER_TYPES:
        return pa.uint64() if column.is_unsigned else pa.int64()
    if kind is ColumnType.YEAR:
        return pa.int64()
    if kind is ColumnType.FLOAT:
        return pa.float32()
    if kind is ColumnType.DOUBLE:
        return pa.float64()
    if kind in (ColumnType.BIT, ColumnType.ENUM, ColumnType.SET):
        return pa.uint64()
    if kind in STRING_TYPES and column.is_binary:
        return pa.binary()
    return pa.string()


def arrow_schema(table: TableInfo) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c)) for c in table.stored_columns])
