"""Decimals in text as whole numbers in bytes, in bulk: Avro's logical type ``decimal``.

    '-12.50' of scale 2   ──►   -1250   ──►   fb 1e        two's complement, the highest byte first, as few as possible

Runs on executors.
"""

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, helper, i64, kernel, u64
from tidemill.errors import CorruptDataError

_LIMBS = 8  # of 32 bits: MySQL's 65 digits need 216
_MOST_DIGITS = 72  # that fit surely, with a sign


def unscaled(values: pa.Array, scale: int) -> pa.Array:
    """Binaries. Raises CorruptDataError for a text that is no decimal, or has more fractional digits than ``scale``."""
    rows = len(values)
    if rows == 0:
        return pa.array([], pa.binary())
    offsets = np.frombuffer(values.buffers()[1], np.int32, rows + 1, 4 * values.offset)
    body = values.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    output, ends = np.empty(rows * 4 * _LIMBS, np.uint8), np.zeros(rows + 1, np.int32)
    size = _convert(data, offsets, valid.view(np.uint8), max(scale, 0), output, ends)
    if size < 0:
        raise CorruptDataError(
            f"a column of scale {scale} holds what is no decimal of this scale. Nothing was skipped; the changefeed "
            "stops before this row. Check the column upstream, then start again."
        )
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if values.null_count else None
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(output[:size])])


@kernel
def _convert(data: Bytes, offsets: Ints, valid: Bytes, scale: int, output: Bytes, ends: Ints) -> int:
    limbs = np.zeros(_LIMBS, np.uint64)
    to = i64(0)
    for row in range(len(valid)):
        if valid[row]:
            at, end = i64(offsets[row]), i64(offsets[row + 1])
            is_negative = at < end and data[at] == 45
            if not _read(data, at + 1 if is_negative else at, end, scale, limbs):
                return i64(-1)
            if is_negative:
                _negate(limbs)
            to = _put(limbs, output, to)
        ends[row + 1] = to
    return to


@helper
def _read(data: Bytes, at: int, end: int, scale: int, limbs: Bytes) -> bool:
    """The digits up to ``end``, with zeros behind them up to the scale, as one number."""
    for k in range(_LIMBS):
        limbs[k] = 0
    digits, behind = i64(0), i64(-1)  # behind: digits since the point; -1: it has not come yet
    part, power = u64(0), u64(1)
    while at < end:
        digit = i64(data[at]) - 48
        at += 1
        if digit == -2 and behind < 0 and digits > 0:
            behind = i64(0)
            continue
        if digit < 0 or digit > 9 or behind >= scale or digits == _MOST_DIGITS:
            return False
        digits += 1
        behind += 1 if behind >= 0 else 0
        part, power = part * u64(10) + u64(digit), power * u64(10)
        if power == u64(1_000_000_000):
            _add(limbs, power, part)
            part, power = u64(0), u64(1)
    _add(limbs, power, part)
    lacking = scale - max(behind, i64(0))
    if digits + lacking > _MOST_DIGITS:
        return False
    for _ in range(lacking):
        _add(limbs, u64(10), u64(0))
    return digits > 0


@helper
def _add(limbs: Bytes, factor: int, summand: int) -> None:
    carry = summand
    for k in range(_LIMBS):
        word = limbs[k] * factor + carry
        limbs[k] = word & u64(0xFFFFFFFF)
        carry = word >> u64(32)


@helper
def _negate(limbs: Bytes) -> None:
    carry = u64(1)
    for k in range(_LIMBS):
        word = (limbs[k] ^ u64(0xFFFFFFFF)) + carry
        limbs[k] = word & u64(0xFFFFFFFF)
        carry = word >> u64(32)


@helper
def _byte(limbs: Bytes, number: int) -> int:
    return i64((limbs[number >> 2] >> u64(8 * (number & 3))) & u64(255))


@helper
def _put(limbs: Bytes, output: Bytes, to: int) -> int:
    """Without bytes in front that only repeat the sign."""
    last = i64(4 * _LIMBS - 1)
    sign = i64(255) if _byte(limbs, last) >= 128 else i64(0)
    while last > 0 and _byte(limbs, last) == sign and (_byte(limbs, last - 1) >= 128) == (sign == 255):
        last -= 1
    while last >= 0:
        output[to] = _byte(limbs, last)
        to += 1
        last -= 1
    return to
