"""Text columns as the inside of JSON strings, in bulk, with no more escapes than JSON wants.

    say "hi" <b>   ──►   say \\"hi\\" <b>

``assembler`` escapes what could end a script in a web page too, as Go's own encoder does; others do not. A byte that is
no UTF-8 becomes U+FFFD, so that the message stays JSON. Runs on executors.
"""

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, helper, i64, kernel, load_u64, u64
from tidemill.errors import InvariantError

_LARGEST = (1 << 31) - 1  # of a column's bytes, in Arrow's 32-bit offsets
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
# How a byte of ASCII stands in a JSON string: 0 as it is, 1 as \u00hh, otherwise the letter behind a backslash.
_ESCAPES = np.zeros(128, np.uint8)
_ESCAPES[:0x20] = 1
for _byte, _letter in zip(b'\t\n\r"\\', b'tnr"\\', strict=True):
    _ESCAPES[_byte] = _letter
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)


def escaped(values: pa.Array) -> pa.Array:
    """The column itself where nothing is to be escaped."""
    rows = len(values)
    if rows == 0:
        return values
    offsets = np.frombuffer(values.buffers()[1], np.int32, rows + 1, 4 * values.offset)
    body = values.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    if _is_plain(data, i64(offsets[0]), i64(offsets[-1])):
        return values
    size = _walk(data, offsets, False, np.empty(0, np.uint8), np.empty(0, np.int32))
    if size == int(offsets[-1]) - int(offsets[0]):
        return values
    if size > _LARGEST:
        raise InvariantError(f"a text column becomes {size} bytes of JSON, more than a batch may hold. Report it.")
    output, ends = np.empty(size, np.uint8), np.zeros(rows + 1, np.int32)
    _walk(data, offsets, True, output, ends)
    validity = None
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(output)])


@kernel
def _is_plain(data: Bytes, at: int, end: int) -> bool:
    """Whether all is ASCII that stays as it is."""
    while at + 8 <= end:
        word = load_u64(data, at)
        control = (word - u64(0x20) * _ONES) & ~word
        quote = word ^ (u64(0x22) * _ONES)
        backslash = word ^ (u64(0x5C) * _ONES)
        found = control | ((quote - _ONES) & ~quote) | ((backslash - _ONES) & ~backslash) | word
        if found & _TOPS:
            return False
        at += 8
    while at < end:
        if data[at] >= 128 or _ESCAPES[data[at]]:
            return False
        at += 1
    return True


@kernel
def _walk(data: Bytes, offsets: Ints, fill: bool, output: Bytes, ends: Ints) -> int:
    """Count the bytes of all escaped values or, with ``fill``, write them down too."""
    to = i64(0)
    for row in range(len(offsets) - 1):
        at, end = i64(offsets[row]), i64(offsets[row + 1])
        while at < end:
            byte = i64(data[at])
            if byte >= 128:
                length = _character(data, at, end)
                if length == 0:
                    to, at = _put_code(output, to, 0xFFFD, fill), at + 1
                    continue
                if fill:
                    for k in range(length):
                        output[to + k] = data[at + k]
                to, at = to + length, at + length
                continue
            how = _ESCAPES[byte]
            if how == 0:
                if fill:
                    output[to] = byte
                to += 1
            elif how == 1:
                to = _put_code(output, to, byte, fill)
            else:
                if fill:
                    output[to], output[to + 1] = 92, how
                to += 2
            at += 1
        if fill:
            ends[row + 1] = to
    return to


@helper
def _put_code(output: Bytes, to: int, code: int, fill: bool) -> int:
    if fill:
        output[to], output[to + 1] = 92, 117
        for k in range(4):
            output[to + 2 + k] = _HEX[(code >> (12 - 4 * k)) & 15]
    return to + 6


@helper
def _character(data: Bytes, at: int, end: int) -> int:
    """Bytes of the well-formed character at ``at``, which is not ASCII; 0: there is none."""
    lead = i64(data[at])
    if lead < 0xC2 or lead > 0xF4:
        return i64(0)
    need = i64(2) if lead < 0xE0 else i64(3) if lead < 0xF0 else i64(4)
    if at + need > end:
        return i64(0)
    low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
    high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
    second = i64(data[at + 1])
    if second < low or second > high:
        return i64(0)
    for k in range(2, need):
        if data[at + k] & 0xC0 != 0x80:
            return i64(0)
    return need
