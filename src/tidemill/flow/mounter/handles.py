"""Record keys: that they belong to the table, and the cells of the columns that they hold.

Integer handles are the eight bytes behind ``_r``. Common handles are the primary key's columns, each
behind a byte that tells its kind. Both are turned into cells of row format v2, so that the same
kernels read a column wherever it comes from.
"""

import numpy as np
import numpy.typing as npt

from tidemill.columnar.jit import Bytes, Ints, Longs, Words, helper, i64, kernel, load_u64, u8, u64
from tidemill.flow.mounter.outcomes import OK, failure

NOT_A_ROW_OF_TABLE = 80
NOT_AN_INTEGER_HANDLE = 81
NOT_A_COMMON_HANDLE = 82
BAD_HANDLE = 83

REASONS = {
    NOT_A_ROW_OF_TABLE: "the key is not a record key of this physical table",
    NOT_AN_INTEGER_HANDLE: "the key should end in an eight-byte integer handle",
    NOT_A_COMMON_HANDLE: "the key should hold the columns of the clustered primary key",
    BAD_HANDLE: "a column in the key's handle is cut off, of another type, or badly encoded",
}

PREFIX_SIZE = 11

FLAG_BYTES = 1
FLAG_INT = 3
FLAG_UINT = 4
FLAG_FLOAT = 5
FLAG_DECIMAL = 6
FLAG_DURATION = 7


@kernel
def check_keys(data: Bytes, offsets: Ints, rows: Longs, first: int, count: int, prefix: Bytes, is_common: bool) -> int:
    for i in range(count):
        row = rows[first + i]
        at = i64(offsets[row])
        size = i64(offsets[row + 1]) - at
        if size <= PREFIX_SIZE or load_u64(data, at) != load_u64(prefix, 0):
            return failure(i, NOT_A_ROW_OF_TABLE)
        if data[at + 8] != prefix[8] or data[at + 9] != prefix[9] or data[at + 10] != prefix[10]:
            return failure(i, NOT_A_ROW_OF_TABLE)
        if is_common:
            if size < PREFIX_SIZE + 9:
                return failure(i, NOT_A_COMMON_HANDLE)
        elif size != PREFIX_SIZE + 8:
            return failure(i, NOT_AN_INTEGER_HANDLE)
    return OK


@helper
def swap(word: int) -> int:
    """The same eight bytes in the opposite order."""
    low = u64(0x00FF00FF00FF00FF)
    word = (word & low) << u64(8) | (word >> u64(8)) & low
    low = u64(0x0000FFFF0000FFFF)
    word = (word & low) << u64(16) | (word >> u64(16)) & low
    return word << u64(32) | word >> u64(32)


@kernel
def integer_handles(data: Bytes, offsets: Ints, rows: Longs, first: int, count: int, out: Words) -> None:
    """The handles of keys that ``check_keys`` has passed, as the bits of a signed integer."""
    for i in range(count):
        at = i64(offsets[rows[first + i]]) + PREFIX_SIZE
        out[i] = swap(load_u64(data, at)) ^ u64(0x8000000000000000)


@helper
def _bytes_cell(data: Bytes, at: int, end: int, out: Bytes, to: int) -> tuple[int, int]:
    """Undo the groups of nine bytes; positions behind what was read and written, or -1."""
    while True:
        if at + 9 > end:
            return i64(-1), i64(to)
        padding = 0xFF - i64(data[at + 8])
        if padding > 8:
            return i64(-1), i64(to)
        for k in range(8):
            if k < 8 - padding:
                out[to + k] = data[at + k]
            elif data[at + k]:
                return i64(-1), i64(to)
        to += 8 - padding
        at += 9
        if padding:
            return i64(at), i64(to)


@helper
def decimal_size(data: Bytes, at: int, end: int) -> int:
    """Bytes of the decimal that begins at ``at`` with precision and scale; -1 if it is cut off."""
    if at + 2 > end:
        return -1
    precision = i64(data[at])
    scale = i64(data[at + 1])
    if scale > precision:
        return -1
    whole = precision - scale
    size = 2 + 4 * (whole // 9 + scale // 9) + min((whole % 9 + 1) // 2, 4) + min((scale % 9 + 1) // 2, 4)
    return size if at + size <= end else -1


@kernel
def common_handles(
    data: Bytes,
    offsets: Ints,
    rows: Longs,
    first: int,
    count: int,
    flags: Ints,  # expected per column of the key
    out: Bytes,
    starts: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int32],
) -> int:
    """``out`` has at least as many bytes as the keys; the cells of column k of the key go to ``starts[k]``."""
    to = i64(0)
    for i in range(count):
        row = rows[first + i]
        end = i64(offsets[row + 1])
        at = i64(offsets[row]) + PREFIX_SIZE
        handle = at
        for k in range(len(flags)):
            if at >= end:
                return failure(i, BAD_HANDLE)
            flag = i64(data[at])
            at += 1
            is_integer = flag in (FLAG_INT, FLAG_UINT)
            if flag != flags[k] and not (is_integer and (flags[k] == FLAG_INT or flags[k] == FLAG_UINT)):
                return failure(i, BAD_HANDLE)
            begin = to
            if flag == FLAG_BYTES:
                at, to = _bytes_cell(data, at, end, out, to)
                if at < 0:
                    return failure(i, BAD_HANDLE)
            elif flag == FLAG_DECIMAL:
                size = decimal_size(data, at, end)
                if size < 0:
                    return failure(i, BAD_HANDLE)
                for j in range(size):
                    out[to + j] = data[at + j]
                at += size
                to += size
            else:
                if at + 8 > end:
                    return failure(i, BAD_HANDLE)
                word = load_u64(data, at)
                if flag != FLAG_FLOAT:  # a float's cell is big endian too
                    word = swap(word)
                    if flag != FLAG_UINT:
                        word ^= u64(0x8000000000000000)
                for j in range(8):
                    out[to + j] = u8(word >> u64(8 * j))
                at += 8
                to += 8
            starts[k, i] = begin
            lengths[k, i] = to - begin
        if at != end:
            # A handle shorter than nine bytes is filled up with zeros, so that it is never taken for an integer.
            if end - handle != 9:
                return failure(i, BAD_HANDLE)
            while at < end:
                if data[at]:
                    return failure(i, BAD_HANDLE)
                at += 1
    return OK
