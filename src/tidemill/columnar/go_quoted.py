"""Columns of bytes as text with Go's escapes, in bulk: what ``strconv.Quote`` gives, without its quotes.

    00 61 ff 22 c3 a9   ──►   \\x00a\\xff\\"é

Bytes that are printable UTF-8 stay what they are. Runs on executors.
"""

from functools import cache

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, helper, i64, kernel
from tidemill.errors import InvariantError

_LARGEST = (1 << 31) - 1  # of a column's bytes, in Arrow's 32-bit offsets
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
# By byte: the letter that stands for it behind a backslash, if there is one.
_LETTERS = np.zeros(128, np.uint8)
for _byte, _letter in zip(b'\a\b\f\n\r\t\v"\\', b'abfnrtv"\\', strict=True):
    _LETTERS[_byte] = _letter


def escaped(values: pa.Array) -> pa.Array:
    rows = len(values)
    if rows == 0:
        return pa.array([], pa.string())
    offsets = np.frombuffer(values.buffers()[1], np.int32, rows + 1, 4 * values.offset)
    body = values.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    size = _walk(data, offsets, _printable(), False, np.empty(0, np.uint8), np.empty(0, np.int32))
    if size > _LARGEST:
        raise InvariantError(f"a column of bytes becomes {size} bytes of text, more than a batch may hold. Report it.")
    output, ends = np.empty(size, np.uint8), np.zeros(rows + 1, np.int32)
    _walk(data, offsets, _printable(), True, output, ends)
    validity = None
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(output)])


@cache
def _printable() -> Bytes:
    """A bit for every character, where it stays as it is."""
    return np.packbits(np.fromiter((chr(code).isprintable() for code in range(0x110000)), np.bool_, 0x110000))


@kernel
def _walk(data: Bytes, offsets: Ints, printable: Bytes, fill: bool, output: Bytes, ends: Ints) -> int:
    """Count the bytes of all escaped values or, with ``fill``, write them down too."""
    to = i64(0)
    for row in range(len(offsets) - 1):
        at, end = i64(offsets[row]), i64(offsets[row + 1])
        while at < end:
            code, length = _character(data, at, end)
            if code >= 0 and _is_plain(printable, code):
                if fill:
                    for k in range(length):
                        output[to + k] = data[at + k]
                to += length
            elif 0 <= code < 128 and _LETTERS[code]:
                if fill:
                    output[to], output[to + 1] = 92, _LETTERS[code]
                to += 2
            elif code < 128:  # a control character, or a byte that is no UTF-8
                to = _put_hex(output, to, 120, i64(data[at]), 2, fill)
            elif code < 0x10000:
                to = _put_hex(output, to, 117, code, 4, fill)
            else:
                to = _put_hex(output, to, 85, code, 8, fill)
            at += length
        if fill:
            ends[row + 1] = to
    return to


@helper
def _is_plain(printable: Bytes, code: int) -> bool:
    if code == 34 or code == 92:
        return False
    return bool((printable[code >> 3] >> (7 - (code & 7))) & 1)


@helper
def _put_hex(output: Bytes, to: int, letter: int, code: int, digits: int, fill: bool) -> int:
    if fill:
        output[to], output[to + 1] = 92, letter
        for k in range(digits):
            output[to + 2 + k] = _HEX[(code >> (4 * (digits - 1 - k))) & 15]
    return to + 2 + digits


@helper
def _character(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The character at ``at`` and its bytes; -1 and one byte where there is no well-formed one."""
    lead = i64(data[at])
    if lead < 0x80:
        return lead, i64(1)
    need = i64(0)
    if 0xC2 <= lead < 0xE0:
        need, code = i64(1), lead & 0x1F
    elif 0xE0 <= lead < 0xF0:
        need, code = i64(2), lead & 0x0F
    elif 0xF0 <= lead < 0xF5:
        need, code = i64(3), lead & 0x07
    if need == 0 or at + need >= end:
        return i64(-1), i64(1)
    for k in range(1, need + 1):
        byte = i64(data[at + k])
        if byte & 0xC0 != 0x80:
            return i64(-1), i64(1)
        code = code << 6 | byte & 0x3F
    least = 0x80 if need == 1 else 0x800 if need == 2 else 0x10000
    if code < least or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return i64(-1), i64(1)
    return code, need + 1
