"""Raw changes: what one committed transaction did to one key, not decoded.

They travel as Arrow record batches of ``RAW_CHANGE_SCHEMA``. Order is by
``(commit_ts, start_ts, key)``; ``(key, commit_ts)`` identifies a change, so a second
delivery of the same change is recognised and dropped.

Arrow's 32-bit offsets end at 2 GiB a column, and rows may be large, so batches are cut by bytes wherever they are
formed, far below that: ``BATCH_BYTES`` of keys and values, or one row if that is larger.
"""

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


RAW_CHANGE_SCHEMA = pa.schema(
    [
        pa.field("start_ts", pa.uint64(), nullable=False),
        pa.field("commit_ts", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),  # Op
        pa.field("key", pa.binary(), nullable=False),  # as a client sends it, not memcomparable
        pa.field("value", pa.binary(), nullable=False),  # empty for a delete
        pa.field("old_value", pa.binary(), nullable=False),  # empty where there was no row before
    ]
)
