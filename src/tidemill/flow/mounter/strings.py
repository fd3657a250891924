"""Strings and bytes: one gather per column and block, and a check that text is UTF-8.

TiDB keeps text of every character set as UTF-8 (also gbk, gb18030 and latin1), so nothing is
converted. Arrow promises its readers valid UTF-8, so what is not is refused.
"""

from tidemill.flow.mounter.kernel import (
    MISSING,
    NULL,
    OK,
    Bytes,
    Ints,
    Longs,
    copy,
    failure,
    i64,
    kernel,
    load_u64,
    u64,
)

NOT_UTF8 = 32

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
def is_ascii(data: Bytes, at: int, end: int) -> bool:
    high = u64(0)
    while at + 32 <= end:
        high |= load_u64(data, at) | load_u64(data, at + 8) | load_u64(data, at + 16) | load_u64(data, at + 24)
        at += 32
    while at < end:
        high |= u64(data[at])
        at += 1
    return high & u64(0x8080808080808080) == 0


@kernel
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


@kernel
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


@kernel
def take_from_handle(length: Ints, count: int) -> int:
    """How many cells of a handle column the rows leave to the handle: it wins over null and missing."""
    taken = 0
    for i in range(count):
        taken += length[i] == NULL or length[i] == MISSING
    return taken
