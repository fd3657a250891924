"""The value of a record: row format v2, its checksum block, and the older format v1.

    80, flags, N, M, N + M column ids, N ends of cells, cells, checksum block
         1: large ids and ends    2: a checksum block follows

The N columns that are not NULL come first, then the M that are, each in order of their ids.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from tidebox.sql.codec.flagged import NULL, cut_cell
from tidebox.sql.codec.numbers import read_int_cell, varint
from tidemill.errors import CorruptDataError

VERSION = 0x80
_LARGE = 1
_CHECKSUMMED = 2
_MOST_SMALL = 0xFFFF  # bytes of cells in the small form
_HEAD = struct.Struct("<BBHH")
_CRC = struct.Struct("<I")


class RowFormat(IntEnum):
    V1 = 1  # what TiDB's own sessions still write, the job table among it
    V2 = 2


class ChecksumVersion(IntEnum):
    """What a row's checksum covers."""

    COLUMNS = 0  # TiDB 7.1: the values of the columns
    RAW_KEY = 1  # TiDB 8.3: the row's bytes and the record key
    RAW_HANDLE = 2  # TiDB 8.4 and later: the row's bytes and the handle


@dataclass(frozen=True, slots=True)
class ChecksumBlock:
    version: ChecksumVersion
    crc: int
    extra_crc: int | None = None  # of the columns under the schema before, while a DDL is running


@dataclass(frozen=True, slots=True)
class RowParts:
    """A row taken apart: the cell of each column in it, None for NULL."""

    cells: dict[int, bytes | None]
    checksum: ChecksumBlock | None = None


@cache
def _layout(filled: int, null: int, is_large: bool) -> struct.Struct:
    ids, ends = ("I", "I") if is_large else ("B", "H")
    return struct.Struct(f"<BBHH{filled + null}{ids}{filled}{ends}")


def pack_row(ids: Sequence[int], cells: Sequence[bytes], nulls: Sequence[int], flags: int = 0) -> bytes:
    """A row of format v2. ``ids`` (of ``cells``) and ``nulls`` ascend."""
    ends, at = [], 0
    for cell in cells:
        at += len(cell)
        ends.append(at)
    is_large = at > _MOST_SMALL or (len(ids) > 0 and ids[-1] > 255) or (len(nulls) > 0 and nulls[-1] > 255)
    head = _layout(len(ids), len(nulls), is_large)
    if is_large:
        flags |= _LARGE
    return head.pack(VERSION, flags, len(ids), len(nulls), *ids, *nulls, *ends) + b"".join(cells)


def pack_raw_checksummed(
    ids: Sequence[int], cells: Sequence[bytes], nulls: Sequence[int], version: ChecksumVersion, continued: bytes
) -> bytes:
    """A row with a checksum over its bytes, then over ``continued``: the record key or the handle."""
    covered = pack_row(ids, cells, nulls, _CHECKSUMMED) + bytes((version,))
    return covered + _CRC.pack(zlib.crc32(continued, zlib.crc32(covered)))


def pack_column_checksummed(
    ids: Sequence[int], cells: Sequence[bytes], nulls: Sequence[int], crc: int, extra_crc: int | None = None
) -> bytes:
    """A row with the checksum of its columns' values (``checksums.column_checksum``)."""
    row = pack_row(ids, cells, nulls, _CHECKSUMMED)
    if extra_crc is None:
        return row + b"\x00" + _CRC.pack(crc)
    return row + b"\x08" + _CRC.pack(crc) + _CRC.pack(extra_crc)


def split_row(value: bytes) -> RowParts:
    """A row of either format. Cells of format v1 are given as v2 has them."""
    if not value:
        raise CorruptDataError("the row has no bytes")
    if value[0] == VERSION:
        return _split_current(value)
    if value == NULL or value[0] == 0x08:
        return RowParts(_split_legacy(value))
    raise CorruptDataError(f"row version {value[0]} is unknown; expected 128 (format v2) or 8 (format v1)")


def _split_current(value: bytes) -> RowParts:
    if len(value) < _HEAD.size:
        raise CorruptDataError("the row is cut off in its head")
    _, flags, filled, null = _HEAD.unpack_from(value)
    if flags & ~(_LARGE | _CHECKSUMMED):
        raise CorruptDataError(f"the row has the unknown flags {flags:#x}")
    layout = _layout(filled, null, bool(flags & _LARGE))
    if len(value) < layout.size:
        raise CorruptDataError("the row is cut off in its ids and ends")
    numbers = layout.unpack_from(value)[4:]
    ids, nulls, ends = numbers[:filled], numbers[filled : filled + null], numbers[filled + null :]
    cells: dict[int, bytes | None] = {}
    at = layout.size
    for column_id, end in zip(ids, ends, strict=True):
        if layout.size + end < at or layout.size + end > len(value):
            raise CorruptDataError(f"the cell of column id {column_id} ends outside the row")
        cells[column_id] = value[at : layout.size + end]
        at = layout.size + end
    cells.update(dict.fromkeys(nulls))
    if len(cells) != filled + null:
        raise CorruptDataError("the row names a column id twice")
    return RowParts(cells, _read_checksum(value[at:], bool(flags & _CHECKSUMMED)))


def _read_checksum(block: bytes, is_checksummed: bool) -> ChecksumBlock | None:
    if not is_checksummed:
        if block:
            raise CorruptDataError(f"the row has {len(block)} bytes behind its last cell")
        return None
    header = block[0] if block else 0
    if header & 7 > ChecksumVersion.RAW_HANDLE:
        raise CorruptDataError(f"checksum version {header & 7} is unknown")
    if len(block) != (9 if header & 8 else 5):
        raise CorruptDataError(f"the row's checksum block has {len(block)} bytes")
    extra = _CRC.unpack_from(block, 5)[0] if header & 8 else None
    return ChecksumBlock(ChecksumVersion(header & 7), _CRC.unpack_from(block, 1)[0], extra)


def is_raw_checksum_right(value: bytes, key: bytes, handle: bytes) -> bool:
    """Whether the checksum of a row that has one of version 1 or 2 fits its bytes."""
    checksum = split_row(value).checksum
    if checksum is None or checksum.version is ChecksumVersion.COLUMNS:
        raise CorruptDataError("the row has no checksum over its bytes")
    covered = value[: -4 if checksum.extra_crc is None else -8]
    continued = key if checksum.version is ChecksumVersion.RAW_KEY else handle
    return zlib.crc32(continued, zlib.crc32(covered)) == checksum.crc


# Format v1: pairs of a column id and a flagged value.


def pack_legacy_row(pairs: Iterable[tuple[int, bytes]]) -> bytes:
    """A row of format v1 from column ids and flagged values (``flagged.value_writer``), in the order given."""
    return b"".join(b"\x08" + varint(column_id) + value for column_id, value in pairs) or NULL


def _split_legacy(value: bytes) -> dict[int, bytes | None]:
    cells: dict[int, bytes | None] = {}
    at = 0
    while at < len(value) and value != NULL:
        column_id, at = cut_cell(value, at)
        if column_id is None:
            raise CorruptDataError("a row of format v1 has NULL for a column id")
        cells[read_int_cell(column_id)], at = cut_cell(value, at)
    return cells
