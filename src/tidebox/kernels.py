"""The loops over many versions at once, compiled: parsing commit records, choosing, writing wire bytes.

Everything comes in and goes out as flat arrays. A *block* is a run of pairs of the ``write``
family in key order, all in one buffer ``data``: key i is ``data[po[2 * i]:po[2 * i + 1]]``, its record
follows up to ``po[2 * i + 2]``. Value slots tell where a value lies: in the records (short), in a
second buffer (long), or nowhere.
"""

# Compiled functions take their types from their first call.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Stamps = npt.NDArray[np.uint64]

NO_VALUE = -1
LONG_VALUE = -2

_PUT, _DELETE, _LOCK, _ROLLBACK = 80, 68, 76, 82  # 'P', 'D', 'L', 'R'


@njit(cache=True, nogil=True)
def is_memcomparable(data, k0, k1):
    """Whether a key has the length and the end of one: groups of nine bytes, the last of them filled up."""
    return k1 - k0 >= 9 and (k1 - k0) % 9 == 0 and 247 <= data[k1 - 1] < 255


@njit(cache=True, nogil=True)
def inverted_ts(data, at):
    """The ts that a version's key ends with, its bits turned over so that the newest comes first."""
    inverted = np.uint64(0)
    for j in range(8):
        inverted = (inverted << np.uint64(8)) | np.uint64(data[at + j])
    return ~inverted


@njit(cache=True, nogil=True)
def is_same_key(data, po, i):
    """Whether pair i is an older version of the key of pair i - 1."""
    k0, k1 = po[2 * i], po[2 * i + 1] - 8
    if i == 0 or po[2 * i - 1] - 8 - po[2 * i - 2] != k1 - k0:
        return 0
    p0 = po[2 * i - 2]
    # Neighbours share their beginning, so differences show up at the end.
    for j in range(k1 - k0 - 1, -1, -1):
        if data[k0 + j] != data[p0 + j]:
            return 0
    return 1


@njit(cache=True, nogil=True)
def parse(data, po, same, kind, commit, start, source, val_at, val_len):
    """Fill one entry per pair; return the index of the first unreadable one, or -1.

    ``same[i]``: pair i is an older version of the key of pair i - 1. ``val_len`` is NO_VALUE
    for a delete or a record without data, LONG_VALUE where the value is in ``default``.
    """
    n = len(po) // 2
    for i in range(n):
        k0, k1 = po[2 * i], po[2 * i + 1] - 8
        if not is_memcomparable(data, k0, k1):
            return i
        commit[i] = inverted_ts(data, k1)
        same[i] = is_same_key(data, po, i)
        at, end = po[2 * i + 1], po[2 * i + 2]
        if at >= end:
            return i
        kind[i] = data[at]
        at += 1
        value, shift, done = np.uint64(0), np.uint64(0), False
        while at < end and not done:
            b = data[at]
            at += 1
            value |= np.uint64(b & 0x7F) << shift
            shift += np.uint64(7)
            done = b < 0x80
        if not done:
            return i
        start[i] = value
        source[i] = 0
        val_at[i] = 0
        val_len[i] = LONG_VALUE if kind[i] == _PUT else NO_VALUE
        while at < end:
            flag = data[at]
            if flag == 118:  # 'v'
                if at + 1 >= end or at + 2 + data[at + 1] > end:
                    return i
                val_at[i] = at + 2
                val_len[i] = data[at + 1]
                at += 2 + np.int64(data[at + 1])
            elif flag == 83:  # 'S'
                value, shift, done = np.uint64(0), np.uint64(0), False
                at += 1
                while at < end and not done:
                    b = data[at]
                    at += 1
                    value |= np.uint64(b & 0x7F) << shift
                    shift += np.uint64(7)
                    done = b < 0x80
                source[i] = value
            elif flag == 82:  # 'R'
                at += 1
            elif flag == 70:  # 'F'
                at += 9
            else:
                break
    return -1


@njit(cache=True, nogil=True)
def choose_changes(same, kind, commit, source, begin, count, checkpoint, drop_looped, chosen, old):
    """Changes with commit-ts > ``checkpoint`` among the records ``[begin, count)``; return how many.

    ``old[i]`` is the record that holds the value before change i, or -1. Records behind
    ``count`` serve as old versions only.
    """
    n = len(kind)
    newer = -1  # the previous data record of the same key, still without its old version
    m = 0
    for i in range(begin, n):
        if same[i] == 0:
            if i >= count:
                break
            newer = -1
        if kind[i] != _PUT and kind[i] != _DELETE:
            continue
        if newer >= 0:
            old[newer] = i if kind[i] == _PUT else -1
            newer = -1
        if i >= count:
            break
        if commit[i] > checkpoint:
            looped = (source[i] >> np.uint64(8)) != 0 or (drop_looped and (source[i] & np.uint64(0xFF)) != 0)
            if not looped:
                chosen[m] = i
                old[m] = -1
                newer = m
                m += 1
    return m


@njit(cache=True, nogil=True)
def choose_visible(same, kind, commit, version, chosen):
    """The newest put of each key with commit-ts ≤ ``version``, unless a delete is newer; return how many."""
    m, settled = 0, False
    for i in range(len(kind)):
        if same[i] == 0:
            settled = False
        if settled or commit[i] > version:
            continue
        if kind[i] == _PUT:
            chosen[m] = i
            m += 1
            settled = True
        elif kind[i] == _DELETE:
            settled = True
    return m


@njit(cache=True, nogil=True)
def choose_garbage(same, kind, commit, start, safepoint, held, state, doomed):
    """Mark in ``doomed`` what no read at or above ``safepoint`` needs; return how much was kept for ``held`` alone.

    Of each key that is all up to the safepoint but its newest put; a delete goes as well, once
    nothing older is left that it hides. Records of a transaction whose start-ts is in ``held``
    (ascending) stay: they tell how it ended. ``state`` carries a key over into the next block:
    whether its newest put or delete up to the safepoint was met, where the delete is that goes
    when the key ends (-1: nowhere, -2: in an earlier block), and whether that earlier one goes.
    """
    settled, marker, kept = state[0] != 0, state[1], 0
    for i in range(len(kind)):
        if same[i] == 0:
            if marker >= 0:
                doomed[marker] = 1
            elif marker == -2:
                state[2] = 1
            settled, marker = False, -1
        is_data = kind[i] == _PUT or kind[i] == _DELETE
        if commit[i] > safepoint or not (is_data or kind[i] == _LOCK or kind[i] == _ROLLBACK):
            continue
        is_newest = is_data and not settled
        settled = settled or is_data
        if len(held) > 0 and (_is_among(held, start[i]) or _is_among(held, commit[i])):
            kept += 0 if is_newest and kind[i] == _PUT else 1
            if kind[i] == _PUT:
                marker = -1
        elif not is_newest:
            doomed[i] = 1
        elif kind[i] == _DELETE:
            marker = i
    state[0] = 1 if settled else 0
    state[1] = marker
    return kept


@njit(cache=True, nogil=True)
def _is_among(ascending, ts):
    at = np.searchsorted(ascending, ts)
    return at < len(ascending) and ascending[at] == ts


@njit(cache=True, nogil=True)
def match_long(data, po, start, wanted, longs, lo, val_at, val_len):
    """Find the long values of the ``wanted`` records among pairs of ``default``; both in key order.

    Sets ``val_at`` to a position in the long buffer and ``val_len`` to LONG_VALUE - 1 - length.
    Records whose pair is not there keep LONG_VALUE.
    """
    d, nd = 0, len(lo) // 2
    for w in range(len(wanted)):
        i = wanted[w]
        if val_len[i] != LONG_VALUE:
            continue
        k0, size = po[2 * i], po[2 * i + 1] - 8 - po[2 * i]
        ts = ~start[i]
        while d < nd:  # skip keys below ours
            dsize = lo[2 * d + 1] - 8 - lo[2 * d]
            order = 0
            for j in range(min(size, dsize)):
                if longs[lo[2 * d] + j] != data[k0 + j]:
                    order = -1 if longs[lo[2 * d] + j] < data[k0 + j] else 1
                    break
            if order >= 0:
                break
            d += 1
        e = d
        while e < nd:
            if lo[2 * e + 1] - 8 - lo[2 * e] != size:
                break
            equal = True
            for j in range(size - 1, -1, -1):
                if longs[lo[2 * e] + j] != data[k0 + j]:
                    equal = False
                    break
            if not equal:
                break
            found = np.uint64(0)
            for j in range(8):
                found = (found << np.uint64(8)) | np.uint64(longs[lo[2 * e] + size + j])
            if found == ts:
                val_at[i] = lo[2 * e + 1]
                val_len[i] = LONG_VALUE - 1 - (lo[2 * e + 2] - lo[2 * e + 1])
                if e == d:
                    d += 1  # taken; versions mostly come in the same order on both sides
                break
            e += 1


@njit(cache=True, nogil=True)
def _varint_size(value):
    size = 1
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _put_varint(out, at, value):
    while value >= np.uint64(0x80):
        out[at] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@njit(cache=True, nogil=True)
def _field_size(length):
    """Of a bytes field with a one-byte tag; an empty one is not on the wire."""
    return 0 if length <= 0 else 1 + _varint_size(np.uint64(length)) + length


@njit(cache=True, nogil=True)
def _real_length(length):
    if length >= 0:
        return length
    return LONG_VALUE - 1 - length if length < LONG_VALUE else 0


@njit(cache=True, nogil=True)
def _put_value(out, at, tag, i, vb, longs, val_at, val_len):
    length = _real_length(val_len[i])
    if length == 0:
        return at
    out[at] = tag
    at = _put_varint(out, at + 1, np.uint64(length))
    source = vb if val_len[i] >= 0 else longs
    out[at : at + length] = source[val_at[i] : val_at[i] + length]
    return at + length


@njit(cache=True, nogil=True)
def _put_key(out, at, tag, kb, k0, k1, length):
    """Write a memcomparable key decoded; an empty one is not on the wire."""
    if length == 0:
        return at
    out[at] = tag
    at = _put_varint(out, at + 1, np.uint64(length))
    left = length
    while k0 < k1:
        take = min(left, 8)
        for j in range(take):
            out[at + j] = kb[k0 + j]
        at += take
        left -= take
        k0 += 9
    return at


@njit(cache=True, nogil=True)
def sizes(data, po, chosen, old, kind, commit, start, source, val_len, as_changes, body, ends):
    """Size of each chosen row's message into ``body``, end of each with its tag and length into ``ends``."""
    total = 0
    for r in range(len(chosen)):
        i = chosen[r]
        k1 = po[2 * i + 1] - 8
        key = (k1 - po[2 * i]) // 9 * 8 - (255 - np.int64(data[k1 - 1]))
        size = _field_size(key) + _field_size(_real_length(val_len[i]))
        if as_changes:
            size += 6 + _varint_size(start[i]) + _varint_size(commit[i])
            if old[r] >= 0:
                size += _field_size(_real_length(val_len[old[r]]))
            if source[i] != 0:
                size += 1 + _varint_size(source[i])
        body[r] = size
        total += 1 + _varint_size(np.uint64(size)) + size
        ends[r] = total
    return total


@njit(cache=True, nogil=True)
def encode(data, po, longs, chosen, old, kind, commit, start, source, val_at, val_len, as_changes, body, out):
    """Write the chosen rows as repeated wire fields.

    As changes: field 1 of ``cdcpb.Event.Entries``, COMMITTED rows. Otherwise: field 2 of
    ``kvrpcpb.ScanResponse``, pairs of key and value.
    """
    at = 0
    for r in range(len(chosen)):
        i = chosen[r]
        k0, k1 = po[2 * i], po[2 * i + 1] - 8
        key = (k1 - k0) // 9 * 8 - (255 - np.int64(data[k1 - 1]))
        if not as_changes:
            out[at] = 0x12
            at = _put_varint(out, at + 1, np.uint64(body[r]))
            at = _put_key(out, at, 0x12, data, k0, k1, key)
            at = _put_value(out, at, 0x1A, i, data, longs, val_at, val_len)
            continue
        out[at] = 0x0A
        at = _put_varint(out, at + 1, np.uint64(body[r]))
        out[at] = 0x08
        at = _put_varint(out, at + 1, start[i])
        out[at] = 0x10
        at = _put_varint(out, at + 1, commit[i])
        out[at] = 0x18
        out[at + 1] = 4  # COMMITTED
        out[at + 2] = 0x20
        out[at + 3] = 1 if kind[i] == _PUT else 2
        at = _put_key(out, at + 4, 0x2A, data, k0, k1, key)
        at = _put_value(out, at, 0x32, i, data, longs, val_at, val_len)
        if old[r] >= 0:
            at = _put_value(out, at, 0x3A, old[r], data, longs, val_at, val_len)
        if source[i] != 0:
            out[at] = 0x48
            at = _put_varint(out, at + 1, source[i])
    return at


@njit(cache=True, nogil=True)
def scan(
    data,
    po,
    count,
    checkpoint,
    drop_looped,
    same,
    kind,
    commit,
    start,
    source,
    val_at,
    val_len,
    chosen,
    old,
    ends,
    out,
):
    """All of an incremental scan's work on one block in one call: each takes the interpreter, which others need.

    Returns the first unreadable record or -1, how many changes were chosen among the first ``count`` records,
    and the length of their rows: -1 if long values are needed first. ``out`` holds at least twice ``data``
    and 64 bytes per record.
    """
    bad = parse(data, po, same, kind, commit, start, source, val_at, val_len)
    if bad >= 0:
        return bad, 0, -1
    m = choose_changes(same, kind, commit, source, 0, count, checkpoint, drop_looped, chosen, old)
    for r in range(m):
        if val_len[chosen[r]] == LONG_VALUE or (old[r] >= 0 and val_len[old[r]] == LONG_VALUE):
            return -1, m, -1
    body = np.empty(m, np.int64)
    total = sizes(data, po, chosen[:m], old[:m], kind, commit, start, source, val_len, True, body, ends)
    columns = (kind, commit, start, source, val_at, val_len)
    encode(data, po, data[:0], chosen[:m], old[:m], *columns, True, body, out)
    return -1, m, total


@njit(cache=True, nogil=True)
def stored_keys(keys, ko, stamps, order, out, ends):
    """Memcomparable keys with inverted ts, in the given order, into one buffer."""
    at = 0
    for r in range(len(order)):
        i = order[r]
        k0, left = ko[i], ko[i + 1] - ko[i]
        while True:
            take = min(left, 8)
            for j in range(take):
                out[at + j] = keys[k0 + j]
            for j in range(take, 8):
                out[at + j] = 0
            out[at + 8] = 255 - (8 - take)
            at += 9
            k0 += take
            left -= take
            if take < 8:
                break
        ts = ~stamps[i]
        for j in range(8):
            out[at + j] = np.uint8((ts >> np.uint64(56 - 8 * j)) & np.uint64(0xFF))
        at += 8
        ends[r] = at


@njit(cache=True, nogil=True)
def write_records(start, is_put, vo, values, order, short_max, out, ends):
    """Commit records in the given order, short values embedded, into one buffer."""
    at = 0
    for r in range(len(order)):
        i = order[r]
        length = vo[i + 1] - vo[i]
        out[at] = _PUT if is_put[i] else _DELETE
        at = _put_varint(out, at + 1, start[i])
        if is_put[i] and length <= short_max:
            out[at] = 118  # 'v'
            out[at + 1] = length
            at += 2
            out[at : at + length] = values[vo[i] : vo[i + 1]]
            at += length
        ends[r] = at
