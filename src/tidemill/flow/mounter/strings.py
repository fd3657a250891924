"""Strings and bytes: one gather per column and block, and a check that text is UTF-8.

TiDB keeps text of every character set as UTF-8, also gbk and gb18030, so nothing is converted. Arrow
promises its readers valid UTF-8, so what is not is refused. The exception is latin1, where TiDB stores
whatever the client sent: mostly UTF-8, but bytes of latin1 from clients that speak it.
"""

import numpy as np

from tidemill.columnar.jit import Bytes, Ints, Longs, copy, helper, i64, kernel, load_u64, u64
from tidemill.flow.mounter.outcomes import MISSING, OK, failure

NOT_UTF8 = 32

# MySQL's latin1 is cp1252, and the five bytes that cp1252 leaves open stand for themselves.
LATIN1_UPPER = np.array([ord(bytes([b]).decode("cp1252", "ignore") or chr(b)) for b in range(0x80, 0xA0)], np.int64)

REASONS = {NOT_UTF8: "the text is not valid UTF-8"}


@kernel
def gather(
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
        n = i64(length[i])
        if n >= 0:
            copy(out, to, data, i64(start[i]), n)
            to += n
        elif n == MISSING and is_filled:
            copy(out, to, fill, 0, len(fill))
            to += len(fill)
        else:
            valid[at + i] = 0
        ends[at + i] = to
    used[0] = to
    return OK


@kernel
def check_text(out: Bytes, begin: int, ends: Ints, at: int, count: int) -> int:
    """Whether each of the strings just gathered, from ``out[begin]`` on, is valid UTF-8."""
    end = i64(ends[at + count - 1]) if count else begin
    if is_ascii(out, begin, end):
        return OK
    position = begin
    for i in range(count):
        after = i64(ends[at + i])
        if not is_utf8(out, position, after):
            return failure(i, NOT_UTF8)
        position = after
    return OK


@kernel
def latin1_to_utf8(out: Bytes, begin: int, ends: Ints, at: int, count: int, upper: Longs, target: Bytes) -> int:
    """Copy the strings just gathered to ``target``, those that are not UTF-8 read as latin1; return the bytes used.

    ``ends`` is changed to match, as if ``target`` were put back at ``out[begin]``. ``upper`` holds the
    characters 0x80 to 0x9F; ``target`` has room for three bytes per byte.
    """
    to = 0
    position = begin
    for i in range(count):
        after = i64(ends[at + i])
        if is_utf8(out, position, after):
            copy(target, to, out, position, after - position)
            to += after - position
        else:
            for k in range(position, after):
                rune = i64(out[k])
                if rune < 0x80:
                    target[to] = rune
                    to += 1
                    continue
                if rune < 0xA0:
                    rune = upper[rune - 0x80]
                if rune < 0x800:
                    target[to] = 0xC0 | rune >> 6
                    to += 1
                else:
                    target[to] = 0xE0 | rune >> 12
                    target[to + 1] = 0x80 | (rune >> 6 & 0x3F)
                    to += 2
                target[to] = 0x80 | (rune & 0x3F)
                to += 1
        position = after
        ends[at + i] = begin + to
    return to


@helper
def is_ascii(data: Bytes, at: int, end: int) -> bool:
    high = u64(0)
    while at + 32 <= end:
        high |= load_u64(data, at) | load_u64(data, at + 8) | load_u64(data, at + 16) | load_u64(data, at + 24)
        at += 32
    while at < end:
        high |= u64(data[at])
        at += 1
    return high & u64(0x8080808080808080) == 0


@helper
def is_utf8(data: Bytes, at: int, end: int) -> bool:
    while at < end:
        if at + 8 <= end and load_u64(data, at) & u64(0x8080808080808080) == 0:
            at += 8
            continue
        size = rune_size(data, at, end)
        if size == 0:
            return False
        at += size
    return True


@helper
def rune_size(data: Bytes, at: int, end: int) -> int:
    """Bytes of the character at ``at``; 0 if there is none: too long a form, a surrogate, cut off, out of range."""
    lead = data[at]
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return 0
    size = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    if at + size > end:
        return 0
    second = data[at + 1]
    low, high = 0x80, 0xBF
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return 0
    for k in range(2, size):
        if data[at + k] & 0xC0 != 0x80:
            return 0
    return size
