"""Floating-point columns as text, in bulk: the shortest digits that read back as the same number.

Arrow finds the digits. How they are laid out is ours: canal-json writes all of them positionally,
csv uses an exponent outside a small range. Runs on executors.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar.assembler import Array, load_u8, store_u8
from tidemill.columnar.jit import kernel

_ALWAYS_POSITIONAL = 1 << 30


def positional(values: pa.Array) -> pa.Array:
    """Without exponent, whatever the size: ``0.0000001``, ``100000000000000000000``."""
    return _lay_out(values, -_ALWAYS_POSITIONAL, _ALWAYS_POSITIONAL)


def general(values: pa.Array) -> pa.Array:
    """Positional where the first digit's decimal exponent is within -4..5, else like ``1.5e-05`` and ``1e+06``."""
    return _lay_out(values, -4, 5)


def _lay_out(values: pa.Array, lowest: int, highest: int) -> pa.Array:
    finite = pc.is_finite(values)
    if pc.min(finite).as_py() is False:  # MySQL has none; TiDB's own arithmetic may have let one in
        values = pc.if_else(pc.fill_null(finite, pa.scalar(True)), values, pa.scalar(0, values.type))
    text = values.cast(pa.string())
    rows = len(text)
    if rows == 0:
        return text
    buffers = text.buffers()
    data = buffers[2].address if buffers[2] is not None else 0
    offsets = np.frombuffer(buffers[1], dtype=np.int32, count=rows + 1, offset=4 * text.offset).astype(np.int64)
    if not _needs_layout(data, offsets, lowest, highest):
        return text
    ends = np.zeros(rows + 1, dtype=np.int64)
    _write_all(data, offsets, lowest, highest, 0, ends)
    output = np.empty(int(ends[-1]), dtype=np.uint8)
    _write_all(data, offsets, lowest, highest, output.ctypes.data, ends)
    ends = ends.astype(np.int32)
    validity = buffers[0] if text.null_count else None
    if validity is not None and text.offset:
        return pc.if_else(
            pc.is_valid(text),
            pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(output)]),
            pa.scalar(None, pa.string()),
        )
    return pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(output)])


@kernel
def _needs_layout(data: int, offsets: Array, lowest: int, highest: int) -> bool:
    for row in range(len(offsets) - 1):
        first, last = offsets[row], offsets[row + 1]
        if first == last:
            continue
        _, exponent, has_exponent = _parse(data + first, data + last)
        if has_exponent or exponent < lowest or exponent > highest:
            return True
    return False


@kernel
def _parse(at: int, end: int) -> tuple[int, int, bool]:
    """(significant digits, decimal exponent of the first of them, whether an exponent is written)."""
    digits, zeros, exponent, point = 0, 0, 0, -1
    position = 0  # digits seen, leading zeros included
    first = -1
    written = False
    while at < end:
        byte = load_u8(at)
        at += 1
        if byte == 46:
            point = position
        elif byte == 101:
            written = True
            break
        elif byte != 45:
            if byte != 48 and first < 0:
                first = position
            if first >= 0:
                zeros = zeros + 1 if byte == 48 else 0
                digits += 1
            position += 1
    if first < 0:
        return 0, 0, False
    if written:
        sign = 1
        while at < end:
            byte = load_u8(at)
            if byte == 45:
                sign = -1
            elif byte != 43:
                exponent = exponent * 10 + byte - 48
            at += 1
        exponent *= sign
    whole = point if point >= 0 else position
    return digits - zeros, exponent + whole - 1 - first, written


@kernel
def _put(to: int, byte: int, is_dry: bool) -> int:
    if not is_dry:
        store_u8(to, byte)
    return to + 1


@kernel
def _write_one(to: int, at: int, end: int, lowest: int, highest: int, is_dry: bool) -> int:
    digits, exponent, _ = _parse(at, end)
    if load_u8(at) == 45:
        to = _put(to, 45, is_dry)
    if digits == 0:
        return _put(to, 48, is_dry)
    while load_u8(at) < 49:  # sign, point and leading zeros
        at += 1
    is_positional = lowest <= exponent <= highest
    point = exponent if is_positional else 0  # written after the digit of this number
    if point < 0:
        to = _put(_put(to, 48, is_dry), 46, is_dry)
        for _ in range(-point - 1):
            to = _put(to, 48, is_dry)
    done = 0
    while done < digits:
        byte = load_u8(at)
        at += 1
        if byte == 46:
            continue
        if done == point + 1 and point >= 0:
            to = _put(to, 46, is_dry)
        to = _put(to, byte, is_dry)
        done += 1
    for _ in range(point + 1 - digits):
        to = _put(to, 48, is_dry)
    if not is_positional:
        to = _put(_put(to, 101, is_dry), 45 if exponent < 0 else 43, is_dry)
        size = abs(exponent)
        if size >= 100:
            to = _put(to, 48 + size // 100, is_dry)
        to = _put(_put(to, 48 + size // 10 % 10, is_dry), 48 + size % 10, is_dry)
    return to


@kernel
def _write_all(data: int, offsets: Array, lowest: int, highest: int, output: int, ends: Array) -> None:
    """Fill in ``ends``; with an ``output`` also write. Called twice: first for the size."""
    to = 0
    for row in range(len(offsets) - 1):
        first, last = offsets[row], offsets[row + 1]
        if first < last:
            to = _write_one(output + to, data + first, data + last, lowest, highest, output == 0) - output
        ends[row + 1] = to
