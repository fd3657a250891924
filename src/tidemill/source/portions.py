"""Which tables are read from the upstream together, and how their changes are told apart again.

    followed tables ──► portions ── one wide span each ──► puller ── changes ──► by_table ──► sorter, per table

A subscription costs, on both sides, a message per region and second whether anything changes or not. So there are
never many: tables are read one by one only while they are few. A hundred thousand small tables share
a few hundred regions; neighbours among them are then read as one span. It also brings their index
entries, which are dropped here; that is the price.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.model.span import Span
from tidemill.tidb.keys import record_span

Int64s = npt.NDArray[np.int64]

_HEAD = 11  # bytes of a record key before its handle: t, the table's id, _r
_ID = slice(1, 9)
_SIGN = np.uint64(1 << 63)


def portions(ids: Sequence[int], strangers: Sequence[int], most: int) -> list[Sequence[int]]:
    """Cut ascending ``ids`` into what is read together: about ``most`` portions, twice that at most.

    ``strangers``, ascending, are tables that nobody wants to read. Wherever that many cuts suffice, no portion reaches
    across one: it would bring the stranger's changes.
    """
    size = -(-len(ids) // most)
    runs = list(_runs(ids, strangers))
    if len(runs) > most:
        runs = [ids]
    return [run[at : at + size] for run in runs for at in range(0, len(run), size)]


def _runs(ids: Sequence[int], strangers: Sequence[int]) -> Iterator[Sequence[int]]:
    begin = 0
    while begin < len(ids):
        next_stranger = bisect_left(strangers, ids[begin])
        end = bisect_left(ids, strangers[next_stranger], begin) if next_stranger < len(strangers) else len(ids)
        yield ids[begin:end]
        begin = end


def span_of(ids: Sequence[int]) -> Span:
    """From the first row of the first table to the last one of the last."""
    return Span(record_span(ids[0]).start, record_span(ids[-1]).end)


def by_table(changes: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of each physical table, in the order in which they came. What is no row, say an index entry, is dropped."""
    if not len(changes):
        return
    rows, ids = _table_ids(changes)
    if not len(rows):
        return
    if len(rows) == len(changes) and (ids == ids[0]).all():
        yield int(ids[0]), changes
        return
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    sorted_changes = changes.take(pa.array(rows[order]))
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    for begin, end in pairwise(bounds):
        yield int(ids[begin]), sorted_changes.slice(begin, end - begin)


def _table_ids(changes: pa.RecordBatch) -> tuple[Int64s, Int64s]:
    """The places of changes whose key is a record key, and their physical ids."""
    keys = changes.column("key")
    _, ends, body = keys.buffers()
    offsets = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    rows = np.flatnonzero(np.diff(offsets) > _HEAD)
    heads = np.frombuffer(body, np.uint8)[offsets[rows][:, None] + np.arange(_HEAD)]
    is_record = (heads[:, 0] == ord("t")) & (heads[:, 9] == ord("_")) & (heads[:, 10] == ord("r"))
    ids = np.ascontiguousarray(heads[is_record, _ID]).view(">u8").ravel().astype(np.uint64) ^ _SIGN
    return rows[is_record], ids.view(np.int64)
