"""TiDB's encodings the other way, one value at a time: cells, rows of both formats, handles, JSON.

Written for tests: they build rows whose decoded form they know.
"""

import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def row_v2(cells: Mapping[int, bytes | None], *, large: bool = False, checksum: bytes = b"") -> bytes:
    """``None`` is NULL. ``checksum`` is the whole block, header byte included."""
    filled = sorted(id_ for id_, cell in cells.items() if cell is not None)
    null = sorted(id_ for id_, cell in cells.items() if cell is None)
    bodies = [cells[id_] or b"" for id_ in filled]
    ends, end = [], 0
    for body in bodies:
        end += len(body)
        ends.append(end)
    large = large or end > 65535 or any(id_ > 255 for id_ in cells)
    ids = struct.pack(f"<{len(cells)}{'I' if large else 'B'}", *filled, *null)
    offsets = struct.pack(f"<{len(filled)}{'I' if large else 'H'}", *ends)
    flags = (1 if large else 0) | (2 if checksum else 0)
    header = struct.pack("<BBHH", 0x80, flags, len(filled), len(null))
    return header + ids + offsets + b"".join(bodies) + checksum


def row_v1(values: Mapping[int, bytes]) -> bytes:
    """``values`` are flagged already: see the ``v1_…`` functions."""
    return b"".join(b"\x08" + varint(id_) + value for id_, value in values.items()) or b"\0"


def uvarint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def varint(value: int) -> bytes:
    return uvarint((value << 1 ^ value >> 63) & (1 << 64) - 1)


V1_NULL = b"\0"


def v1_int(value: int) -> bytes:
    return b"\x08" + varint(value)


def v1_uint(value: int) -> bytes:
    return b"\x09" + uvarint(value)


def v1_bytes(value: bytes) -> bytes:
    return b"\x02" + varint(len(value)) + value


def v1_raw(flag: int, cell: bytes) -> bytes:
    """Float 5, decimal 6, JSON 10, vector 20: the same bytes as a v2 cell."""
    return bytes([flag]) + cell


def int_cell(value: int) -> bytes:
    size = next(n for n in (1, 2, 4, 8) if -(1 << 8 * n - 1) <= value < 1 << 8 * n - 1)
    return value.to_bytes(size, "little", signed=True)


def uint_cell(value: int) -> bytes:
    size = next(n for n in (1, 2, 4, 8) if value < 1 << 8 * n)
    return value.to_bytes(size, "little")


def float_cell(value: float) -> bytes:
    word = struct.unpack(">Q", struct.pack(">d", value))[0]
    word = word | 1 << 63 if value >= 0 else word ^ (1 << 64) - 1
    return struct.pack(">Q", word)


def decimal_cell(value: Decimal, precision: int, scale: int) -> bytes:
    digits = f"{abs(value) * 10**scale:.0f}".zfill(precision)
    whole = precision - scale
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    raw, at = bytearray(), 0
    for group in groups:
        part = digits[at : at + group]
        raw += int(part or "0").to_bytes(BYTES_OF_DIGITS[group], "big")
        at += group
    if value < 0:
        raw = bytearray(b ^ 0xFF for b in raw)
    raw[0] ^= 0x80
    return bytes([precision, scale]) + bytes(raw)


def packed_time(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micro: int = 0
) -> int:
    date = (year * 13 + month) << 5 | day
    return (date << 17 | hour << 12 | minute << 6 | second) << 24 | micro


def time_cell(*fields: int) -> bytes:
    return uint_cell(packed_time(*fields))


def vector_cell(elements: Sequence[float]) -> bytes:
    return struct.pack(f"<I{len(elements)}f", len(elements), *elements)


def json_cell(value: Any) -> bytes:
    """A document; besides what JSON knows, ``bytes`` are put in as they are: type code and body."""
    code, body = _json(value)
    return bytes([code]) + body


def _json(value: Any) -> tuple[int, bytes]:
    match value:
        case bytes():
            return value[0], value[1:]
        case None | bool():
            return 4, bytes([0 if value is None else 1 if value else 2])
        case int():
            return (9, struct.pack("<q", value)) if value < 1 << 63 else (10, struct.pack("<Q", value))
        case float():
            return 11, struct.pack("<d", value)
        case str():
            raw = value.encode()
            return 12, uvarint(len(raw)) + raw
        case dict():
            keys = sorted(k.encode() for k in value)
            return 1, _container([value[k.decode()] for k in keys], keys)
        case _:
            return 3, _container(list(value), None)


def _container(values: list[Any], keys: list[bytes] | None) -> bytes:
    count = len(values)
    at = 8 + (11 if keys is not None else 5) * count
    key_entries, entries, tail = b"", b"", b""
    for key in keys or ():
        key_entries += struct.pack("<IH", at + len(tail), len(key))
        tail += key
    for value in values:
        code, body = _json(value)
        if code == 4:
            entries += bytes([4]) + body + b"\0\0\0"
        else:
            entries += struct.pack("<BI", code, at + len(tail))
            tail += body
    size = at + len(tail)
    return struct.pack("<II", count, size) + key_entries + entries + tail


def core_time(year: int, month: int, day: int, hour: int, minute: int, second: int, micro: int, low: int) -> bytes:
    """The body of a date or time inside a JSON document."""
    word = year << 50 | month << 46 | day << 41 | hour << 36 | minute << 30 | second << 24 | micro << 4 | low
    return struct.pack("<Q", word)


def comparable_int(value: int) -> bytes:
    return struct.pack(">Q", (value & (1 << 64) - 1) ^ 1 << 63)


def comparable_bytes(raw: bytes) -> bytes:
    out = b""
    for at in range(0, len(raw) + 1, 8):
        group = raw[at : at + 8]
        out += group.ljust(8, b"\0") + bytes([0xFF - (8 - len(group))])
    return out


def record_key(physical_id: int, handle: int | bytes) -> bytes:
    suffix = comparable_int(handle) if isinstance(handle, int) else handle.ljust(9, b"\0")
    return b"t" + comparable_int(physical_id) + b"_r" + suffix
