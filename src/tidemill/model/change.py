"""Raw changes: what one committed transaction did to one key, not decoded.

They travel as Arrow record batches of ``RAW_CHANGE_SCHEMA`` or, where a change among them has what few have, an
expiry or a source, of ``FULL_CHANGE_SCHEMA``. So nobody pays for what nearly all changes lack. The API they were
written by (TiDB's, RawKV, TxnKV) is one for a whole subscription: whoever makes a decoder knows it. Order is by
``(commit_ts, start_ts, key)``; ``(key, commit_ts)`` identifies a change, so a second
delivery of the same change is recognised and dropped.

Arrow's 32-bit offsets end at 2 GiB a column, and rows may be large, so batches are cut by bytes wherever they are
formed, far below that: ``BATCH_BYTES`` of keys and values, or one row if that is larger.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BATCH_BYTES = 8 << 20  # half of the smallest memory-quota, of which one half is filled while the other is written


class Op(IntEnum):
    PUT = 1
    DELETE = 2


def cut_by_bytes(sizes: npt.NDArray[np.int64], most_bytes: int) -> list[int]:
    """Where to cut rows of these sizes: at 0, at the end, and so that at most ``most_bytes``, or one row, lie between
    two cuts."""
    ends = np.cumsum(sizes, dtype=np.int64)
    cuts = [0]
    while (low := cuts[-1]) < len(ends):
        before = int(ends[low - 1]) if low else 0
        cuts.append(max(low + 1, int(np.searchsorted(ends, before + most_bytes, side="right"))))
    return cuts


_FIXED = (
    pa.field("start_ts", pa.uint64(), nullable=False),
    pa.field("commit_ts", pa.uint64(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),  # Op
)
_RARE = (
    pa.field("expire_seconds", pa.uint64(), nullable=False),  # Unix time at which a RawKV value ends; 0: never
    pa.field("txn_source", pa.uint64(), nullable=False),  # which change capture wrote it; 0: an application
)
_BINARY = (
    pa.field("key", pa.binary(), nullable=False),  # as a client sends it, not memcomparable
    pa.field("value", pa.binary(), nullable=False),  # empty for a delete
    pa.field("old_value", pa.binary(), nullable=False),  # empty where there was no row before
)
RAW_CHANGE_SCHEMA = pa.schema([*_FIXED, *_BINARY])
FULL_CHANGE_SCHEMA = pa.schema([*_FIXED, *_RARE, *_BINARY])


def are_changes(schema: pa.Schema) -> bool:
    return any(schema.equals(known) for known in (RAW_CHANGE_SCHEMA, FULL_CHANGE_SCHEMA))


def alike(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """The same changes in one schema: in the full one, if any of them is."""
    if len({len(batch.schema) for batch in batches}) < 2:
        return batches
    return [filled(batch) for batch in batches]


def without_rare(changes: pa.RecordBatch) -> pa.RecordBatch:
    """In ``RAW_CHANGE_SCHEMA``, for readers whom neither expiry nor source concerns."""
    return changes.select(RAW_CHANGE_SCHEMA.names) if len(changes.schema) > len(RAW_CHANGE_SCHEMA) else changes


def filled(changes: pa.RecordBatch) -> pa.RecordBatch:
    """In ``FULL_CHANGE_SCHEMA``, for readers whom expiry or source concerns."""
    if len(changes.schema) == len(FULL_CHANGE_SCHEMA):
        return changes
    zeros = pa.array(np.zeros(len(changes), np.uint64))
    columns = [zeros if field in _RARE else changes.column(field.name) for field in FULL_CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=FULL_CHANGE_SCHEMA)
