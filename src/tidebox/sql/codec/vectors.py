"""Vectors of four-byte floats: a count and the elements, little endian."""

import struct

from tidebox.sql.codec.datum import Vector
from tidemill.errors import CorruptDataError

MOST_DIMENSIONS = 16383


def write_vector(vector: Vector) -> bytes:
    if len(vector) > MOST_DIMENSIONS:
        raise OverflowError(f"a vector has at most {MOST_DIMENSIONS} dimensions")
    if any(v != v or v in (float("inf"), float("-inf")) for v in vector):
        raise OverflowError("a vector holds no infinite number and no NaN")
    return struct.pack(f"<I{len(vector)}f", len(vector), *vector)


def read_vector(cell: bytes) -> Vector:
    count = int.from_bytes(cell[:4], "little")
    if len(cell) != 4 + 4 * count or count > MOST_DIMENSIONS:
        raise CorruptDataError(f"a vector of {count} dimensions in {len(cell)} bytes")
    return struct.unpack_from(f"<{count}f", cell, 4)
