"""Numbers: integer cells, floats, and decimals as text, a block of cells at a time.

A decimal cell is ``precision, scale`` and then its digits in groups of nine, each group as a
big-endian integer of just enough bytes; a negative number has all bytes inverted, and the first
bit turned so that bytes compare like numbers.
"""

import numpy as np
import numpy.typing as npt

from tidemill.columnar.jit import Bytes, Ints, Longs, Words, f64, helper, i64, kernel, load_u64, u64
from tidemill.flow.mounter.outcomes import MISSING, OK, failure

BAD_INTEGER_LENGTH = 16
BAD_FLOAT_LENGTH = 17
BAD_DECIMAL = 18

REASONS = {
    BAD_INTEGER_LENGTH: "an integer's cell must have 1, 2, 4 or 8 bytes",
    BAD_FLOAT_LENGTH: "a floating-point cell must have 8 bytes",
    BAD_DECIMAL: "a decimal's precision, scale, length or digits do not fit together",
}

LONGEST_DECIMAL = 84  # 81 digits, sign, point and a leading zero


@kernel
def read_integers(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    is_signed: bool,
    fill: int,
    is_filled: bool,
    out: Words,
    valid: Bytes,
    at: int,
) -> int:
    last = len(data) - 8
    for i in range(count):
        n = length[i]
        if n == 8 or n == 1 or n == 4 or n == 2:
            s = i64(start[i])
            if s <= last:
                word = load_u64(data, s)
            else:
                word = u64(0)
                for k in range(n):
                    word |= u64(data[s + k]) << u64(8 * k)
            shift = u64(64 - 8 * n)
            if is_signed:
                out[at + i] = u64(i64(word << shift) >> i64(shift))
            else:
                out[at + i] = (word << shift) >> shift
        elif n < 0:
            if n == MISSING and is_filled:
                out[at + i] = fill
            else:
                out[at + i] = u64(0)
                valid[at + i] = 0
        else:
            return failure(i, BAD_INTEGER_LENGTH)
    return OK


@kernel
def read_floats(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    is_single: bool,
    fill: float,
    is_filled: bool,
    out: npt.NDArray[np.float64],
    valid: Bytes,
    at: int,
) -> int:
    """What is not a number, or too large for the column's type, reads as 0, as it does for TiCDC."""
    words = out.view(np.uint64)
    for i in range(count):
        n = length[i]
        if n == 8:
            word = load_u64(data, i64(start[i]))
            word = ((word & u64(0x00FF00FF00FF00FF)) << u64(8)) | ((word >> u64(8)) & u64(0x00FF00FF00FF00FF))
            word = ((word & u64(0x0000FFFF0000FFFF)) << u64(16)) | ((word >> u64(16)) & u64(0x0000FFFF0000FFFF))
            word = (word << u64(32)) | (word >> u64(32))
            if word & u64(0x8000000000000000):
                words[at + i] = word & u64(0x7FFFFFFFFFFFFFFF)
            else:
                words[at + i] = ~word
            value = out[at + i]
            if is_single:
                value = f64(np.float32(value))
                out[at + i] = value
            if not np.isfinite(value):
                out[at + i] = 0.0
        elif n < 0:
            if n == MISSING and is_filled:
                out[at + i] = fill
            else:
                out[at + i] = 0.0
                valid[at + i] = 0
        else:
            return failure(i, BAD_FLOAT_LENGTH)
    return OK


@helper
def _group(data: Bytes, at: int, size: int, mask: int, first: int) -> int:
    """A group of digits: ``size`` bytes, big endian, inverted by ``mask``, its first byte also by ``first``."""
    value = i64(0)
    for k in range(size):
        byte = i64(data[at + k]) ^ mask
        if k == 0:
            byte ^= first
        value = value << 8 | byte
    return value


@helper
def _digits(out: Bytes, at: int, value: int, width: int) -> None:
    for k in range(width - 1, -1, -1):
        rest = value // 10
        out[at + k] = 48 + (value - rest * 10)
        value = rest


@helper
def _width(value: int) -> int:
    width = 1
    bound = i64(10)
    while value >= bound:
        bound *= 10
        width += 1
    return width


@helper
def _bytes_of_digits(digits: int) -> int:
    """0, 1, 1, 2, 2, 3, 3, 4, 4, 4 for 0 to 9 digits."""
    return min((digits + 1) // 2, 4)


@helper
def _power_of_ten(digits: int) -> int:
    power = i64(1)
    for _ in range(digits):
        power *= 10
    return power


@helper
def write_decimal(data: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """Write one decimal cell as text at ``out[to:]``; return the position behind it, or -1 if it makes no sense."""
    if size < 3:
        return -1
    precision = i64(data[at])
    scale = i64(data[at + 1])
    whole = precision - scale
    if precision > 81 or scale > 30 or whole < 0:
        return -1
    lead, groups = whole % 9, whole // 9
    tail, tail_groups = scale % 9, scale // 9
    lead_size, tail_size = _bytes_of_digits(lead), _bytes_of_digits(tail)
    if groups + tail_groups + (lead > 0) + (tail > 0) > 9:
        return -1
    if size != 2 + 4 * (groups + tail_groups) + lead_size + tail_size:
        return -1
    p = at + 2
    mask = i64(0 if data[p] & 0x80 else 0xFF)
    first = i64(0x80)  # for the very first byte only
    if mask:
        out[to] = 45  # -
        to += 1
    started = False
    if lead:
        value = _group(data, p, lead_size, mask, first)
        if value >= _power_of_ten(lead):
            return -1
        p += lead_size
        first = i64(0)
        if value:
            width = _width(value)
            _digits(out, to, value, width)
            to += width
            started = True
    for _ in range(groups):
        value = _group(data, p, 4, mask, first)
        if value > 999999999:
            return -1
        p += 4
        first = i64(0)
        if started:
            _digits(out, to, value, 9)
            to += 9
        elif value:
            width = _width(value)
            _digits(out, to, value, width)
            to += width
            started = True
    if not started:
        out[to] = 48
        to += 1
    if scale:
        out[to] = 46  # .
        to += 1
        for _ in range(tail_groups):
            value = _group(data, p, 4, mask, first)
            if value > 999999999:
                return -1
            p += 4
            first = i64(0)
            _digits(out, to, value, 9)
            to += 9
        if tail:
            value = _group(data, p, tail_size, mask, first)
            if value >= _power_of_ten(tail):
                return -1
            _digits(out, to, value, tail)
            to += tail
    return to


@kernel
def write_decimals(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    fill: Bytes,
    is_filled: bool,
    out: Bytes,
    ends: Ints,
    valid: Bytes,
    at: int,
    used: Longs,
) -> int:
    to = used[0]
    for i in range(count):
        n = length[i]
        if n >= 0:
            to = write_decimal(data, i64(start[i]), i64(n), out, to)
            if to < 0:
                return failure(i, BAD_DECIMAL)
        elif n == MISSING and is_filled:
            for k in range(len(fill)):
                out[to + k] = fill[k]
            to += len(fill)
        else:
            valid[at + i] = 0
        ends[at + i] = to
    used[0] = to
    return OK
