"""Row checksums: CRC-32 over the row's bytes and its key, where TiDB was told to write them.

Versions 1 and 2 cover the stored bytes, from the row's first through the checksum block's own header,
continued over the record key (1) or only its handle (2). Version 0 covers decoded values under the
schema of the writer, which a reader does not have, and is passed over.
"""

import zlib
from functools import cache

import numpy as np

from tidemill.columnar.jit import Bytes, Ints, Longs, Words, helper, i64, kernel, u64
from tidemill.flow.mounter.handles import PREFIX_SIZE
from tidemill.flow.mounter.outcomes import OK, failure

WRONG_CHECKSUM = 120

REASONS = {WRONG_CHECKSUM: "its checksum does not match its bytes: it was damaged after TiDB wrote it"}


@cache
def crc_table() -> Words:
    """What each byte does to the register, read off zlib: it starts from all ones and inverts the result."""
    return np.array([zlib.crc32(bytes([b ^ 0xFF])) ^ 0xFF000000 for b in range(256)], np.uint64)


@helper
def _continue(crc: int, data: Bytes, at: int, end: int, table: Words) -> int:
    for k in range(at, end):
        crc = table[(crc ^ u64(data[k])) & u64(0xFF)] ^ (crc >> u64(8))
    return crc


@kernel
def check_rows(
    data: Bytes, offsets: Ints, key_data: Bytes, key_offsets: Ints, rows: Longs, first: int, count: int, table: Words
) -> int:
    """Rows that ``split_rows`` has passed: their headers are in order."""
    for i in range(count):
        row = rows[first + i]
        at = i64(offsets[row])
        if data[at + 1] & 2 == 0:
            continue
        large = i64(data[at + 1] & 1)
        filled = i64(data[at + 2]) | i64(data[at + 3]) << 8
        null = i64(data[at + 4]) | i64(data[at + 5]) << 8
        block = at + 6 + ((filled + null) << (2 * large)) + (filled << (1 + large))
        if filled:
            width = 2 << large
            size = i64(0)
            for k in range(width):
                size |= i64(data[block - width + k]) << (8 * k)
            block += size
        version = data[block] & 7
        if version == 0:
            continue
        key_at = i64(key_offsets[row])
        if version == 2:
            key_at += PREFIX_SIZE
        crc = _continue(u64(0xFFFFFFFF), data, at, block + 1, table)
        crc = _continue(crc, key_data, key_at, i64(key_offsets[row + 1]), table) ^ u64(0xFFFFFFFF)
        stored = u64(0)
        for k in range(4):
            stored |= u64(data[block + 1 + k]) << u64(8 * k)
        if crc != stored:
            return failure(i, WRONG_CHECKSUM)
    return OK
