"""Floating-point columns as text, in bulk. Runs on executors."""

import numpy as np
import pyarrow as pa

from tidemill.columnar.floats import ES6, GENERAL, PADDED, POSITIONAL, powers_of_ten, write_float
from tidemill.columnar.jit import Bytes, Ints, Words, helper, i64, kernel, u64

_LONGEST = 26  # where exponents are written: sign, 17 digits, point, e-308; or up to 0.00000 before the digits
_MORE_THAN_DIGITS = 48  # what a number has in positional form, beside one digit for each power of ten


def positional(values: pa.Array) -> pa.Array:
    """Without exponent, whatever the size: ``0.0000001``, ``100000000000000000000``."""
    return _printed(values, POSITIONAL)


def general(values: pa.Array) -> pa.Array:
    """Positional where the first digit's decimal exponent is within -4..5, else like ``1.5e-05`` and ``1e+06``."""
    return _printed(values, GENERAL)


def json(values: pa.Array) -> pa.Array:
    """As Go and JavaScript write numbers in JSON: positional from 1e-6 to below 1e21, else ``1e-7`` and ``1e+21``."""
    return _printed(values, ES6)


def json_padded(values: pa.Array) -> pa.Array:
    """As ``json``, with two digits of exponent or more: ``1e-07``."""
    return _printed(values, PADDED)


def _printed(values: pa.Array, layout: int) -> pa.Array:
    rows = len(values)
    if rows == 0:
        return pa.array([], pa.string())
    is_single = pa.types.is_float32(values.type)
    word = np.dtype(np.uint32 if is_single else np.uint64)
    bits = np.frombuffer(values.buffers()[1], word, rows, word.itemsize * values.offset)
    valid = values.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    output = np.empty(_size(bits, valid, is_single, layout), np.uint8)
    ends = np.zeros(rows + 1, np.int32)
    output.resize(_write_all(bits, valid, is_single, layout, powers_of_ten(), output, ends), refcheck=False)
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if values.null_count else None
    return pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(output)])


@kernel
def _size(bits: Words, valid: Bytes, is_single: bool, layout: int) -> int:
    """Enough for all of them."""
    if layout != POSITIONAL:
        return _LONGEST * len(bits)
    size = 0
    for row in range(len(bits)):
        if valid[row]:
            size += _MORE_THAN_DIGITS + abs(_exponent(bits[row], is_single)) * 78913 // (1 << 18)  # times log10(2)
    return size


@helper
def _exponent(bits: int, is_single: bool) -> int:
    if is_single:
        return i64((bits >> u64(23)) & u64(0xFF)) - 127
    return i64((bits >> u64(52)) & u64(0x7FF)) - 1023


@kernel
def _write_all(
    bits: Words, valid: Bytes, is_single: bool, layout: int, powers: Words, output: Bytes, ends: Ints
) -> int:
    to = 0
    for row in range(len(bits)):
        if valid[row]:
            if _exponent(bits[row], is_single) == (128 if is_single else 1024):
                output[to] = 48  # infinity or no number: MySQL has none; TiDB's own arithmetic may have let one in
                to += 1
            else:
                to = write_float(output, to, u64(bits[row]), is_single, layout, powers)
        ends[row + 1] = to
    return to
