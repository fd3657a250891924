"""Rows of format v2 taken apart: where each column's cell lies, for a block of rows at once.

``starts[c, i]`` and ``lengths[c, i]`` give the cell of column ``c`` in row ``i``; a negative length
says that it is null or missing. Every row may have its own set of columns, but most rows of a table
have the same as the row before, so the ids are looked up only when they differ.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tidemill.columnar.jit import Bytes, Ints, Longs, count_up_to, helper, i64, kernel, load_u64
from tidemill.flow.mounter.outcomes import MISSING, NULL, OK, failure

MOST_IDS: Final = 1 << 17  # two counts of 16 bits each

TRUNCATED = 1
UNKNOWN_FLAGS = 2
IDS_NOT_ASCENDING = 3
OFFSETS_OUT_OF_ORDER = 4
TRAILING_BYTES = 5
BAD_CHECKSUM_BLOCK = 6

REASONS = {
    TRUNCATED: "the row ends inside its header",
    UNKNOWN_FLAGS: "the row's flags are none that we know",
    IDS_NOT_ASCENDING: "the column ids in the row's header are not in ascending order",
    OFFSETS_OUT_OF_ORDER: "the cell offsets in the row's header do not fit the row",
    TRAILING_BYTES: "bytes follow the row's last cell",
    BAD_CHECKSUM_BLOCK: "the row's checksum block has an unknown version or a wrong length",
}


@kernel
def split_rows(
    data: Bytes,
    offsets: Ints,
    rows: Longs,
    first: int,
    count: int,
    column_of: Ints,  # by id below 256
    big_ids: Longs,  # the others, sorted
    big_columns: Ints,
    slots: Ints,  # scratch: the column of each id in the header, -1 if the schema does not have it
    starts: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
) -> int:
    lengths[:, :count] = MISSING
    known_at = -1  # where the header lies whose ids ``slots`` holds
    known_large = known_filled = known_null = 0
    for i in range(count):
        row = rows[first + i]
        at = i64(offsets[row])
        end = i64(offsets[row + 1])
        if end - at < 6:
            return failure(i, TRUNCATED)
        flags = data[at + 1]
        if flags & 0xFC:
            return failure(i, UNKNOWN_FLAGS)
        large = i64(flags & 1)
        filled = i64(data[at + 2]) | i64(data[at + 3]) << 8
        null = i64(data[at + 4]) | i64(data[at + 5]) << 8
        ids_at = at + 6
        ids_size = (filled + null) << (2 * large)
        ends_at = ids_at + ids_size
        body = ends_at + (filled << (1 + large))
        if body > end:
            return failure(i, TRUNCATED)

        same = known_at >= 0 and known_large == large and known_filled == filled and known_null == null
        if same:
            k = i64(0)
            while k + 8 <= ids_size:
                if load_u64(data, ids_at + k) != load_u64(data, known_at + k):
                    same = False
                    break
                k += 8
            while same and k < ids_size:
                same = data[ids_at + k] == data[known_at + k]
                k += 1
        if not same:
            if not _look_up(data, ids_at, large, filled, null, column_of, big_ids, big_columns, slots):
                return failure(i, IDS_NOT_ASCENDING)
            known_at, known_large, known_filled, known_null = ids_at, large, filled, null

        for k in range(filled, filled + null):
            if slots[k] >= 0:
                lengths[slots[k], i] = NULL
        room = end - body
        before = i64(0)
        for k in range(filled):
            if large:
                p = ends_at + 4 * k
                after = i64(data[p]) | i64(data[p + 1]) << 8 | i64(data[p + 2]) << 16 | i64(data[p + 3]) << 24
            else:
                p = ends_at + 2 * k
                after = i64(data[p]) | i64(data[p + 1]) << 8
            if after < before or after > room:
                return failure(i, OFFSETS_OUT_OF_ORDER)
            column = slots[k]
            if column >= 0:
                starts[column, i] = body + before
                lengths[column, i] = after - before
            before = after

        left = room - before
        if flags & 2:
            if left < 5:
                return failure(i, BAD_CHECKSUM_BLOCK)
            header = data[body + before]
            if (header & 7) > 2 or left != (9 if header & 8 else 5):
                return failure(i, BAD_CHECKSUM_BLOCK)
        elif left:
            return failure(i, TRAILING_BYTES)
    return OK


@helper
def _look_up(
    data: Bytes,
    ids_at: int,
    large: int,
    filled: int,
    null: int,
    column_of: Ints,
    big_ids: Longs,
    big_columns: Ints,
    slots: Ints,
) -> bool:
    """Fill ``slots``; False if the ids of either part do not ascend."""
    before = i64(-1)
    for k in range(filled + null):
        if k == filled:
            before = i64(-1)
        if large:
            p = ids_at + 4 * k
            found = i64(data[p]) | i64(data[p + 1]) << 8 | i64(data[p + 2]) << 16 | i64(data[p + 3]) << 24
        else:
            found = i64(data[ids_at + k])
        if found <= before:
            return False
        before = found
        if found < 256:
            slots[k] = column_of[found]
        else:
            j = count_up_to(big_ids, found) - 1
            slots[k] = big_columns[j] if j >= 0 and big_ids[j] == found else -1
    return True


@kernel
def measure(lengths: npt.NDArray[np.int32], count: int, sums: npt.NDArray[np.int64]) -> None:
    """Per column of a block: bytes in its cells, how many are null, how many are missing."""
    for c in range(lengths.shape[0]):
        size = i64(0)
        null = i64(0)
        missing = i64(0)
        for i in range(count):
            n = lengths[c, i]
            size += max(n, 0)
            null += n == NULL
            missing += n == MISSING
        sums[c, 0] = size
        sums[c, 1] = null
        sums[c, 2] = missing
