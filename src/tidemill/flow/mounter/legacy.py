"""Rows of format v1, rewritten as v2 before anything else looks at them.

A v1 row is a sequence of ``column id, value``, each behind a byte that tells its kind; an empty row
is a single zero byte. Old rows stay until someone updates them, so one batch may mix both formats.
"""

import numpy as np

from tidemill.columnar.jit import Bytes, Ints, Longs, copy, count_up_to, helper, i64, kernel, u8, u64
from tidemill.flow.mounter.documents import u32, uvarint
from tidemill.flow.mounter.handles import decimal_size
from tidemill.flow.mounter.outcomes import OK, failure

BAD_OLD_ROW = 96
WRONG_KIND = 97

REASONS = {
    BAD_OLD_ROW: "the row is in format v1 and a value in it is cut off, of an unknown kind, or there twice",
    WRONG_KIND: "the row is in format v1 and a value's kind does not suit its column's type",
}

MOST_PAIRS = 0xFFFF  # what v2 can count

FLAG_NULL = 0
FLAG_BYTES = 2
FLAG_FLOAT = 5
FLAG_DECIMAL = 6
FLAG_INT = 8
FLAG_UINT = 9
FLAG_JSON = 10
FLAG_VECTOR = 20


@kernel
def count_old(data: Bytes, offsets: Ints, rows: Longs) -> tuple[int, int]:
    """How many rows are in format v1, and how many bytes they have."""
    count = i64(0)
    size = i64(0)
    for i in range(len(rows)):
        at = offsets[rows[i]]
        if offsets[rows[i] + 1] > at and data[at] != 0x80:
            count += 1
            size += offsets[rows[i] + 1] - at
    return count, size


@helper
def _json_size(data: Bytes, at: int, end: int) -> int:
    """Bytes of the JSON value at ``at``, its type code included; -1 if it is cut off."""
    if at >= end:
        return -1
    code = data[at]
    if code == 0x01 or code == 0x03:
        size = 1 + u32(data, at + 5) if at + 9 <= end else i64(-1)
    elif code == 0x0C or code == 0x0D:
        begin = at + (1 if code == 0x0C else 2)
        length, after = uvarint(data, begin, end)
        size = after - at + i64(length) if after > 0 and length <= u64(end - after) else i64(-1)
    elif code == 0x04:
        size = i64(2)
    elif code == 0x11:
        size = i64(13)
    elif 0x09 <= code <= 0x10:
        size = i64(9)
    else:
        size = i64(-1)
    return size if size > 0 and at + size <= end else i64(-1)


@helper
def _zigzag(data: Bytes, at: int, end: int) -> tuple[int, int]:
    raw, after = uvarint(data, at, end)
    value = i64(raw >> u64(1))
    if raw & u64(1):
        value = ~value
    return value, after


@helper
def _value_size(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Where the bytes of the flagged value at ``at`` begin and how many they are; -1 if it is cut off."""
    flag = data[at]
    at += 1
    if flag == FLAG_NULL:
        return i64(at), i64(0)
    if flag == FLAG_BYTES:
        length, after = _zigzag(data, at, end)
        if after < 0 or length < 0 or length > end - after:
            return i64(at), i64(-1)
        return after, length
    if flag == FLAG_FLOAT:
        return i64(at), i64(8 if at + 8 <= end else -1)
    if flag == FLAG_DECIMAL:
        return i64(at), i64(decimal_size(data, at, end))
    if flag in (FLAG_INT, FLAG_UINT):
        _, after = uvarint(data, at, end)
        return i64(at), after - at if after > 0 else i64(-1)
    if flag == FLAG_JSON:
        return i64(at), i64(_json_size(data, at, end))
    if flag == FLAG_VECTOR:
        if at + 4 > end:
            return i64(at), i64(-1)
        size = 4 + 4 * u32(data, at)
        return i64(at), size if at + size <= end else i64(-1)
    return i64(at), i64(-1)


@helper
def _put32(out: Bytes, at: int, value: int) -> None:
    for k in range(4):
        out[at + k] = u8(value >> (8 * k) & 0xFF)


@helper
def _suits(flag: int, column: int, kinds: Longs) -> bool:
    return column < 0 or flag == FLAG_NULL or (kinds[column] >> flag) & 1 == 1


@helper
def _upgrade(
    data: Bytes,
    at: int,
    end: int,
    column_of: Ints,
    big_ids: Longs,
    big_columns: Ints,
    kinds: Longs,
    pairs: Longs,
    out: Bytes,
    to: int,
) -> int:
    """Rewrite one row at ``out[to:]``; the position behind it, or minus a reason."""
    count = 0
    if not (end - at == 1 and data[at] == 0):
        while at < end:
            if data[at] != FLAG_INT:
                return -BAD_OLD_ROW
            found, at = _zigzag(data, at + 1, end)
            if at < 0 or at >= end or found < 0 or found > 0xFFFFFFFF or count == MOST_PAIRS:
                return -BAD_OLD_ROW
            flag = i64(data[at])
            begin, size = _value_size(data, at, end)
            if size < 0:
                return -BAD_OLD_ROW
            if found < 256:
                column = i64(column_of[found])
            else:
                j = count_up_to(big_ids, found) - 1
                column = i64(big_columns[j] if j >= 0 and big_ids[j] == found else -1)
            if not _suits(flag, column, kinds):
                return -WRONG_KIND
            place = count  # columns added in front come late in the row: sort as we go
            while place > 0 and pairs[place - 1, 0] > found:
                pairs[place] = pairs[place - 1]
                place -= 1
            if place > 0 and pairs[place - 1, 0] == found:
                return -BAD_OLD_ROW
            pairs[place, 0] = found
            pairs[place, 1] = flag
            pairs[place, 2] = begin
            pairs[place, 3] = size
            count += 1
            at = begin + size
    filled = 0
    for k in range(count):
        filled += pairs[k, 1] != FLAG_NULL
    out[to] = 0x80
    out[to + 1] = 1
    out[to + 2] = filled & 0xFF
    out[to + 3] = filled >> 8
    out[to + 4] = (count - filled) & 0xFF
    out[to + 5] = (count - filled) >> 8
    ids = to + 6
    nulls = ids + 4 * filled
    ends = ids + 4 * count
    body = ends + 4 * filled
    put = body
    for k in range(count):
        if pairs[k, 1] == FLAG_NULL:
            _put32(out, nulls, pairs[k, 0])
            nulls += 4
            continue
        _put32(out, ids, pairs[k, 0])
        ids += 4
        begin, size = pairs[k, 2], pairs[k, 3]
        if pairs[k, 1] == FLAG_INT or pairs[k, 1] == FLAG_UINT:
            raw, _ = uvarint(data, begin, begin + size)
            if pairs[k, 1] == FLAG_INT:
                raw = (raw >> u64(1)) ^ (u64(0) - (raw & u64(1)))
            for byte in range(8):
                out[put + byte] = u8(raw >> u64(8 * byte))
            put += 8
        else:
            copy(out, put, data, begin, size)
            put += size
        _put32(out, ends, put - body)
        ends += 4
    return put


@kernel
def upgrade_rows(
    data: Bytes,
    offsets: Ints,
    rows: Longs,
    column_of: Ints,
    big_ids: Longs,
    big_columns: Ints,
    kinds: Longs,  # per column: bit f set if a value with flag f suits it
    out: Bytes,
    new_offsets: Ints,
) -> int:
    """Copy all ``rows`` to ``out``, those in v1 as v2. Values outside ``rows`` become empty."""
    pairs = np.empty((MOST_PAIRS, 4), np.int64)
    to = i64(0)
    row = i64(0)
    for i in range(len(rows)):
        while row <= rows[i]:
            new_offsets[row] = to
            row += 1
        at = i64(offsets[rows[i]])
        end = i64(offsets[rows[i] + 1])
        if data[at] == 0x80:
            copy(out, to, data, at, end - at)
            to += end - at
            continue
        after = _upgrade(data, at, end, column_of, big_ids, big_columns, kinds, pairs, out, to)
        if after < 0:
            return failure(i, -after)
        to = after
    while row < len(new_offsets):
        new_offsets[row] = to
        row += 1
    return OK
