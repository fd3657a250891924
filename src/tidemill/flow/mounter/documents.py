"""JSON documents and vectors as text, a block of cells at a time.

JSON text is TiDB's: ``", "`` and ``": "`` between elements, keys in stored order, doubles as Go's
encoding/json prints them. TiDB 8.5 and TiCDC print ``1`` for the double 1 and ``1e+100``; later TiDB
prints ``1.0`` and ``1e100``. The recorded histories, and so this module, hold to the former.
"""

import numpy as np

from tidemill.columnar.floats import ES6, POSITIONAL, write_float
from tidemill.columnar.jit import Bytes, Ints, Longs, Words, copy, helper, i64, kernel, load_u64, u8, u64
from tidemill.flow.mounter.outcomes import MISSING, OK, failure
from tidemill.flow.mounter.strings import rune_size
from tidemill.flow.mounter.times import write_clock, write_date, write_duration

BAD_JSON = 64
BAD_VECTOR = 65

REASONS = {
    BAD_JSON: "the JSON document's types, offsets and lengths do not fit together",
    BAD_VECTOR: "the vector's length does not fit its elements, or one is not a number",
}

DEEPEST = 128  # TiDB refuses documents nested deeper than 100
JSON_GROWTH = 6  # a byte prints as six at most: \u0001
JSON_SPARE = 512
VECTOR_GROWTH = 15  # 1.1754944e-38, four bytes, prints as 0.000…11754944

_OBJECT = 0x01
_ARRAY = 0x03
_LITERAL = 0x04
_INT = 0x09
_UINT = 0x0A
_DOUBLE = 0x0B
_STRING = 0x0C
_OPAQUE = 0x0D
_DATE = 0x0E
_TIMESTAMP = 0x10
_DURATION = 0x11


@helper
def u32(data: Bytes, at: int) -> int:
    return i64(data[at]) | i64(data[at + 1]) << 8 | i64(data[at + 2]) << 16 | i64(data[at + 3]) << 24


@helper
def uvarint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The number at ``at`` and the position behind it; position -1 if it is cut off or has no end."""
    value = u64(0)
    for k in range(10):
        if at + k >= end:
            return value, i64(-1)
        byte = u64(data[at + k])
        if k == 9 and byte > 1:
            return value, i64(-1)
        value |= (byte & u64(0x7F)) << u64(7 * k)
        if byte < 0x80:
            return value, i64(at + k + 1)
    return value, i64(-1)


@helper
def _write_uint(out: Bytes, to: int, value: int) -> int:
    ten = u64(10)
    width = 1
    rest = value // ten
    while rest:
        width += 1
        rest //= ten
    for k in range(width - 1, -1, -1):
        rest = value // ten
        out[to + k] = 48 + u8(value - rest * ten)
        value = rest
    return to + width


@helper
def _hex(digit: int) -> int:
    return 48 + digit if digit < 10 else 87 + digit


@helper
def _write_string(data: Bytes, at: int, end: int, out: Bytes, to: int) -> int:
    out[to] = 34  # "
    to += 1
    while at < end:
        byte = data[at]
        if byte < 0x80:
            at += 1
            if byte >= 0x20 and byte != 34 and byte != 92:
                out[to] = byte
                to += 1
                continue
            out[to] = 92  # backslash
            if byte == 34 or byte == 92:
                out[to + 1] = byte
                to += 2
            elif byte == 10:
                out[to + 1] = 110
                to += 2
            elif byte == 13:
                out[to + 1] = 114
                to += 2
            elif byte == 9:
                out[to + 1] = 116
                to += 2
            else:
                to = _write_escape(out, to, i64(byte))
            continue
        size = rune_size(data, at, end)
        if size == 0:
            out[to] = 92
            to = _write_escape(out, to, 0xFFFD)
            at += 1
        elif byte == 0xE2 and data[at + 1] == 0x80 and data[at + 2] & 0xFE == 0xA8:  # U+2028 and U+2029
            out[to] = 92
            to = _write_escape(out, to, 0x2028 | i64(data[at + 2] & 1))
            at += size
        else:
            copy(out, to, data, at, size)
            to += size
            at += size
    out[to] = 34
    return to + 1


@helper
def _write_escape(out: Bytes, to: int, rune: int) -> int:
    """``uXXXX`` behind the backslash that is already there."""
    out[to + 1] = 117
    for k in range(4):
        out[to + 2 + k] = _hex(rune >> (12 - 4 * k) & 15)
    return to + 6


@helper
def _base64(six: int) -> int:
    if six < 26:
        return 65 + six
    if six < 52:
        return 71 + six
    if six < 62:
        return six - 4
    return 43 if six == 62 else 47


@helper
def _write_opaque(data: Bytes, at: int, end: int, kind: int, out: Bytes, to: int) -> int:
    """``"base64:typeN:…"``."""
    for byte in b'"base64:type':
        out[to] = byte
        to += 1
    to = _write_uint(out, to, u64(kind))
    out[to] = 58
    to += 1
    while at < end:
        left = end - at
        bits = i64(data[at]) << 16
        if left > 1:
            bits |= i64(data[at + 1]) << 8
        if left > 2:
            bits |= i64(data[at + 2])
        out[to] = _base64(bits >> 18)
        out[to + 1] = _base64(bits >> 12 & 63)
        out[to + 2] = _base64(bits >> 6 & 63) if left > 1 else 61
        out[to + 3] = _base64(bits & 63) if left > 2 else 61
        to += 4
        at += 3
    out[to] = 34
    return to + 1


@helper
def _write_core_time(word: int, is_date: bool, out: Bytes, to: int) -> int:
    """A date or time inside a document: its own bit fields, always six digits of fraction."""
    year = i64(word >> u64(50))
    month = i64(word >> u64(46)) & 15
    day = i64(word >> u64(41)) & 31
    hour = i64(word >> u64(36)) & 31
    minute = i64(word >> u64(30)) & 63
    second = i64(word >> u64(24)) & 63
    micro = i64(word >> u64(4)) & 0xFFFFF
    if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59 or micro > 999999:
        return -1
    out[to] = 34
    to = write_date(out, to + 1, year, month, day)
    if not is_date:
        out[to] = 32
        to = write_clock(out, to + 1, hour, minute, second, micro, 6)
    out[to] = 34
    return to + 1


@helper
def _write_word(text: bytes, out: Bytes, to: int) -> int:
    for byte in text:
        out[to] = byte
        to += 1
    return to


@helper
def _write_scalar(data: Bytes, code: int, at: int, end: int, out: Bytes, to: int, most: int, powers: Words) -> int:
    """One value that contains no others; -1 if it makes no sense or finds no room."""
    room = most - to
    if code in (_STRING, _OPAQUE):
        kind = i64(0)
        if code == _OPAQUE:
            if at >= end:
                return -1
            kind = i64(data[at])
            at += 1
        size, at = uvarint(data, at, end)
        if at < 0 or size > u64(end - at):
            return -1
        if room < JSON_GROWTH * i64(size) + 32:
            return -1
        if code == _OPAQUE:
            return _write_opaque(data, at, at + i64(size), kind, out, to)
        return _write_string(data, at, at + i64(size), out, to)
    if room < 32:
        return -1
    if code == _LITERAL:
        if at >= end:
            return -1
        literal = data[at]
        if literal == 0:
            return _write_word(b"null", out, to)
        if literal == 1:
            return _write_word(b"true", out, to)
        return _write_word(b"false", out, to) if literal == 2 else -1
    if end - at < 8 or code < _INT or code > _DURATION:
        return -1
    word = load_u64(data, at)
    if code == _INT:
        if i64(word) < 0:
            out[to] = 45
            return _write_uint(out, to + 1, u64(0) - word)
        return _write_uint(out, to, word)
    if code == _UINT:
        return _write_uint(out, to, word)
    if code == _DOUBLE:
        if (word >> u64(52)) & u64(0x7FF) == 0x7FF:
            return -1
        return write_float(out, to, word, False, ES6, powers)
    if code == _DURATION:
        nanoseconds = i64(word)
        if end - at < 12 or nanoseconds >= 3020400000000000 or nanoseconds <= -3020400000000000:
            return -1
        out[to] = 34
        to = write_duration(out, to + 1, nanoseconds, 6)
        out[to] = 34
        return to + 1
    return _write_core_time(word, code == _DATE, out, to)


@helper
def write_json(data: Bytes, at: int, end: int, out: Bytes, to: int, powers: Words, stack: Longs) -> int:
    """One document from ``data[at:end]`` at ``out[to:]``; -1 if it makes no sense.

    A document whose offsets lead back into itself would print without end; it runs out of room instead.
    """
    most = to + JSON_GROWTH * (end - at) + JSON_SPARE
    if at >= end:
        return -1
    depth = 0
    code = i64(data[at])
    p = i64(at + 1)
    limit = i64(end)
    while True:
        if most - to < 32:
            return -1
        if code in (_OBJECT, _ARRAY):
            if limit - p < 8 or depth == DEEPEST:
                return -1
            count = u32(data, p)
            size = u32(data, p + 4)
            if size < 8 + count * (11 if code == _OBJECT else 5) or size > limit - p:
                return -1
            out[to] = 123 if code == _OBJECT else 91
            to += 1
            stack[depth, 0] = p
            stack[depth, 1] = size
            stack[depth, 2] = count
            stack[depth, 3] = 0
            stack[depth, 4] = code
            depth += 1
        else:
            to = _write_scalar(data, code, p, limit, out, to, most, powers)
            if to < 0:
                return -1
        while depth and stack[depth - 1, 3] == stack[depth - 1, 2]:
            if most - to < 32:
                return -1
            depth -= 1
            out[to] = 125 if stack[depth, 4] == _OBJECT else 93
            to += 1
        if depth == 0:
            return to
        top = depth - 1
        base, size, count, index = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        stack[top, 3] = index + 1
        if most - to < 32:
            return -1
        if index:
            out[to] = 44
            out[to + 1] = 32
            to += 2
        entry = base + 8 + 5 * index
        if stack[top, 4] == _OBJECT:
            entry += 6 * count
            key = u32(data, base + 8 + 6 * index)
            key_size = i64(data[base + 12 + 6 * index]) | i64(data[base + 13 + 6 * index]) << 8
            if key + key_size > size or most - to < JSON_GROWTH * key_size + 32:
                return -1
            to = _write_string(data, base + key, base + key + key_size, out, to)
            out[to] = 58
            out[to + 1] = 32
            to += 2
        code = i64(data[entry])
        if code == _LITERAL:
            p = entry + 1
            limit = entry + 2
        else:
            offset = u32(data, entry + 1)
            if offset > size:
                return -1
            p = base + offset
            limit = base + size


@kernel
def write_documents(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    powers: Words,
    fill: Bytes,
    is_filled: bool,
    out: Bytes,
    ends: Ints,
    valid: Bytes,
    at: int,
    used: Longs,
) -> int:
    stack = np.empty((DEEPEST, 5), np.int64)
    to = used[0]
    for i in range(count):
        n = i64(length[i])
        if n >= 0:
            s = i64(start[i])
            to = write_json(data, s, s + n, out, to, powers, stack)
            if to < 0:
                return failure(i, BAD_JSON)
        elif n == MISSING and is_filled:
            copy(out, to, fill, 0, len(fill))
            to += len(fill)
        else:
            valid[at + i] = 0
        ends[at + i] = to
    used[0] = to
    return OK


@kernel
def write_vectors(
    data: Bytes,
    start: Ints,
    length: Ints,
    count: int,
    powers: Words,
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
            s = i64(start[i])
            if n < 4 or u32(data, s) * 4 + 4 != n:
                return failure(i, BAD_VECTOR)
            out[to] = 91
            to += 1
            for k in range(s + 4, s + n, 4):
                bits = u32(data, k)
                if bits >> 23 & 0xFF == 0xFF:
                    return failure(i, BAD_VECTOR)
                if k > s + 4:
                    out[to] = 44
                    to += 1
                to = write_float(out, to, u64(bits), True, POSITIONAL, powers)
            out[to] = 93
            to += 1
        elif n == MISSING and is_filled:
            copy(out, to, fill, 0, len(fill))
            to += len(fill)
        else:
            valid[at + i] = 0
        ends[at + i] = to
    used[0] = to
    return OK
