"""The loops over many raw versions at once, compiled. As in ``kernels``, all goes in and out as flat arrays.

A *block* is a run of pairs of the ``raw`` family in key order, all in one buffer as there.
"""

# Compiled functions take their types from their first call.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np
from numba import njit

from tidebox.kernels import _field_size, _put_key, _put_varint, _varint_size, inverted_ts, is_memcomparable, is_same_key

_HAS_EXPIRY, _IS_DELETE = 1, 2


def _crc64_table():
    """Of CRC-64/XZ, the polynomial of ECMA-182 reflected."""
    table = np.empty(256, np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xC96C5795D7870F42 if value & 1 else 0)
        table[byte] = value
    return table


CRC64_TABLE = _crc64_table()


@njit(cache=True, nogil=True)
def parse(data, po, same, ts, flags, expire, val_len):
    """Fill one entry per pair; return the index of the first unreadable one, or -1.

    ``same[i]``: pair i is an older version of the key of pair i - 1. A value begins with its record.
    """
    for i in range(len(po) // 2):
        k0, k1 = po[2 * i], po[2 * i + 1] - 8
        size = po[2 * i + 2] - po[2 * i + 1]
        if not is_memcomparable(data, k0, k1) or size < 1:
            return i
        ts[i] = inverted_ts(data, k1)
        same[i] = is_same_key(data, po, i)
        flags[i] = data[po[2 * i + 2] - 1]
        if flags[i] > (_HAS_EXPIRY | _IS_DELETE) or (flags[i] & _HAS_EXPIRY and size < 9):
            return i
        expire[i] = 0
        val_len[i] = size - 1
        if flags[i] & _HAS_EXPIRY:
            val_len[i] = size - 9
            for j in range(8):
                expire[i] = (expire[i] << np.uint64(8)) | np.uint64(data[po[2 * i + 2] - 9 + j])
    return -1


@njit(cache=True, nogil=True)
def choose_changes(same, ts, begin, checkpoint, chosen):
    """The newest version of each key with ts > ``checkpoint``, deleted and expired ones too; return how many."""
    m = 0
    for i in range(begin, len(same)):
        if same[i] == 0 and ts[i] > checkpoint:
            chosen[m] = i
            m += 1
    return m


@njit(cache=True, nogil=True)
def choose_live(same, flags, expire, begin, now, chosen):
    """The newest version of each key, unless it is deleted or has expired; return how many."""
    m = 0
    for i in range(begin, len(same)):
        if same[i] == 0 and not flags[i] & _IS_DELETE and (expire[i] == 0 or expire[i] > now):
            chosen[m] = i
            m += 1
    return m


@njit(cache=True, nogil=True)
def choose_dead(same, ts, flags, expire, count, before, now, chosen):
    """Versions below ``before`` among the first ``count`` that no reader can see; return how many."""
    m = 0
    for i in range(count):
        is_dead = same[i] == 1 or flags[i] & _IS_DELETE or (expire[i] != 0 and expire[i] <= now)
        if is_dead and ts[i] < before:
            chosen[m] = i
            m += 1
    return m


@njit(cache=True, nogil=True)
def sizes(data, po, chosen, ts, expire, val_len, as_changes, body, ends):
    """Size of each chosen row's message into ``body``, end of each with its tag and length into ``ends``."""
    total = 0
    for r in range(len(chosen)):
        i = chosen[r]
        k1 = po[2 * i + 1] - 8
        key = (k1 - po[2 * i]) // 9 * 8 - (255 - np.int64(data[k1 - 1]))
        size = _field_size(key) + _field_size(val_len[i])
        if as_changes:
            size += 6 + 2 * _varint_size(ts[i])
            if expire[i] != 0:
                size += 1 + _varint_size(expire[i])
        body[r] = size
        total += 1 + _varint_size(np.uint64(size)) + size
        ends[r] = total
    return total


@njit(cache=True, nogil=True)
def encode(data, po, chosen, ts, flags, expire, val_len, as_changes, body, out):
    """Write the chosen versions as repeated wire fields.

    As changes: field 1 of ``cdcpb.Event.Entries``, COMMITTED rows. Otherwise: field 2 of
    ``kvrpcpb.RawScanResponse``, pairs of key and value.
    """
    at = 0
    for r in range(len(chosen)):
        i = chosen[r]
        k0, k1 = po[2 * i], po[2 * i + 1] - 8
        key = (k1 - k0) // 9 * 8 - (255 - np.int64(data[k1 - 1]))
        out[at] = 0x0A if as_changes else 0x12
        at = _put_varint(out, at + 1, np.uint64(body[r]))
        if as_changes:
            out[at] = 0x08
            at = _put_varint(out, at + 1, ts[i])
            out[at] = 0x10
            at = _put_varint(out, at + 1, ts[i])
            out[at] = 0x18
            out[at + 1] = 4  # COMMITTED
            out[at + 2] = 0x20
            out[at + 3] = 2 if flags[i] & _IS_DELETE else 1
            at += 4
        if key > 0:
            at = _put_key(out, at, 0x2A if as_changes else 0x12, data, k0, k1, key)
        length = val_len[i]
        if length > 0:
            out[at] = 0x32 if as_changes else 0x1A
            at = _put_varint(out, at + 1, np.uint64(length))
            out[at : at + length] = data[po[2 * i + 1] : po[2 * i + 1] + length]
            at += length
        if as_changes and expire[i] != 0:
            out[at] = 0x40
            at = _put_varint(out, at + 1, expire[i])
    return at


@njit(cache=True, nogil=True)
def _crc64(table, crc, data, begin, end):
    for at in range(begin, end):
        crc = table[(crc ^ np.uint64(data[at])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
    return crc


@njit(cache=True, nogil=True)
def checksum_versions(table, data, po, chosen, val_len):
    """The checksums of each chosen key, decoded, with its value, all combined by xor; and how many bytes they are."""
    total, size = np.uint64(0), 0
    for r in range(len(chosen)):
        i = chosen[r]
        crc = ~np.uint64(0)
        k0, k1 = po[2 * i], po[2 * i + 1] - 8
        left = (k1 - k0) // 9 * 8 - (255 - np.int64(data[k1 - 1]))
        size += left + val_len[i]
        while k0 < k1:
            crc = _crc64(table, crc, data, k0, k0 + min(left, 8))
            left -= min(left, 8)
            k0 += 9
        crc = _crc64(table, crc, data, po[2 * i + 1], po[2 * i + 1] + val_len[i])
        total ^= ~crc
    return total, size


@njit(cache=True, nogil=True)
def checksum_pairs(table, data, po):
    """The same for pairs that are kept as they are."""
    total = np.uint64(0)
    for i in range(len(po) // 2):
        total ^= ~_crc64(table, ~np.uint64(0), data, po[2 * i], po[2 * i + 2])
    return total, po[-1]
