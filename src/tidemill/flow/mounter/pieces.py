"""How many rows are decoded at once.

Batches are cut by the bytes of their rows. What a row does not hold may be far more: the default of a column that was
added after it, and the names of the elements of an ENUM or SET, which it holds as a number. Arrow's 32-bit offsets end
at 2 GiB a column, so batches whose rows would become that long are cut once more.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidemill.model.table import ColumnInfo, ColumnType, TableInfo

_MOST_ADDED_BYTES = 1 << 30  # in all columns together


def rows_at_once(table: TableInfo) -> int:
    """So many rows of the table become no more than that, besides what they hold."""
    added = sum(map(_most_added, table.stored_columns))
    return max(1, _MOST_ADDED_BYTES // max(added, 1))


def fitting(table: TableInfo, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The changes in pieces that may be decoded at once: between two transactions where that is possible."""
    most = rows_at_once(table)
    if len(changes) <= most:
        yield changes
        return
    commit = changes.column("commit_ts").to_numpy()
    low = 0
    while low < len(changes):
        high = min(low + most, len(changes))
        if high < len(changes):
            begin = low + int(np.searchsorted(commit[low:high], commit[high]))
            high = begin if begin > low else high
        yield changes.slice(low, high - low)
        low = high


def _most_added(column: ColumnInfo) -> int:
    """Bytes of one row."""
    names = [_size(name) + 1 for name in column.elems]
    if column.type is ColumnType.SET:
        return sum(names)
    if column.type is ColumnType.ENUM:
        return max(names, default=0)
    return _size(column.origin_default or "")


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
