"""TiCDC's hash of a row, in bulk: CRC-32s of names and values, each of one column, combined by XOR.

    crc32("shop" + "item") ^ crc32("id" + "7") ^ …

So the order of columns does not matter, and nothing separates a name from a value. A value is hashed as its text; NULL
as the word ``null``, as classic TiCDC does. Runs on executors.
"""

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.columnar.jit import Bytes, Ints, Words, helper, i64, kernel, u64

Hashes = npt.NDArray[np.uint32]
_POLYNOMIAL = 0xEDB88320
_LONGEST_NUMBER = 20


def _table() -> Hashes:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    table.flags.writeable = False
    return table


_TABLE = _table()


def hash_names(schema: str, table: str) -> int:
    return zlib.crc32((schema + table).encode("utf-8", "surrogateescape"))


def add_column(found: Hashes, name: str, values: pa.Array) -> None:
    """Add one column of all rows to what has been ``found`` of them."""
    prefix = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    null = zlib.crc32(b"null", prefix)
    rows = len(values)
    if not rows:
        return
    if pa.types.is_floating(values.type):
        values = float_text.positional(values)
    buffers = values.buffers()
    valid = values.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    if values.type in (pa.int64(), pa.uint64()):
        numbers = np.frombuffer(buffers[1], np.uint64, rows, 8 * values.offset)
        _add_numbers(found, prefix, null, numbers, values.type == pa.int64(), valid, _TABLE)
        return
    offsets = np.frombuffer(buffers[1], np.int32, rows + 1, 4 * values.offset)
    data = np.frombuffer(buffers[2] if buffers[2] is not None else b"", np.uint8)
    _add_bytes(found, prefix, null, data, offsets, valid, _TABLE)


@kernel
def _add_bytes(found: Ints, prefix: int, null: int, data: Bytes, offsets: Ints, valid: Bytes, table: Ints) -> None:
    for row in range(len(found)):
        if not valid[row]:
            found[row] ^= np.uint32(null)
            continue
        crc = u64(prefix) ^ u64(0xFFFFFFFF)
        for at in range(offsets[row], offsets[row + 1]):
            crc = u64(table[(crc ^ u64(data[at])) & u64(0xFF)]) ^ (crc >> u64(8))
        found[row] ^= np.uint32(crc ^ u64(0xFFFFFFFF))


@kernel
def _add_numbers(
    found: Ints, prefix: int, null: int, numbers: Words, is_signed: bool, valid: Bytes, table: Ints
) -> None:
    digits = np.empty(_LONGEST_NUMBER + 1, np.uint8)
    for row in range(len(found)):
        if not valid[row]:
            found[row] ^= np.uint32(null)
            continue
        crc = u64(prefix) ^ u64(0xFFFFFFFF)
        for at in range(_put_digits(digits, u64(numbers[row]), is_signed), len(digits)):
            crc = u64(table[(crc ^ u64(digits[at])) & u64(0xFF)]) ^ (crc >> u64(8))
        found[row] ^= np.uint32(crc ^ u64(0xFFFFFFFF))


@helper
def _put_digits(digits: Bytes, number: int, is_signed: bool) -> int:
    """The decimal digits of a number at the end of ``digits``; returns where they begin."""
    is_negative = is_signed and i64(number) < 0
    left = u64(0) - number if is_negative else number
    at = len(digits)
    while True:
        at -= 1
        digits[at] = 48 + left % u64(10)
        left //= u64(10)
        if left == u64(0):
            break
    if is_negative:
        at -= 1
        digits[at] = 45
    return at


def modulo(found: Hashes, partitions: int) -> npt.NDArray[np.int32]:
    return (found % np.uint32(partitions)).astype(np.int32)


def modulo_ts(commit_ts: npt.NDArray[np.uint64], partitions: int) -> npt.NDArray[np.int32]:
    return (commit_ts % np.uint64(partitions)).astype(np.int32)
