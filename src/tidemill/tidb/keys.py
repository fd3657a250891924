"""Keys of TiDB and TiKV, one at a time: memcomparable bytes, comparable integers, record keys and table spans.

Bulk decoding of record keys is the mounter's; this is for spans, metadata and the embedded upstream.
"""

from tidemill.errors import CorruptDataError
from tidemill.model.span import Span

_GROUP = 8
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def encode_bytes(raw: bytes) -> bytes:
    """Memcomparable form: groups of eight bytes, each followed by 0xFF minus its padding."""
    out = bytearray()
    for at in range(0, len(raw) + 1, _GROUP):
        group = raw[at : at + _GROUP]
        out += group.ljust(_GROUP, b"\0")
        out.append(0xFF - (_GROUP - len(group)))
    return bytes(out)


def decode_bytes(encoded: bytes, at: int = 0) -> tuple[bytes, int]:
    """Undo ``encode_bytes`` from position ``at``; return the bytes and the position behind them."""
    out = bytearray()
    while True:
        group = encoded[at : at + _GROUP + 1]
        if len(group) < _GROUP + 1:
            raise CorruptDataError(f"memcomparable key {encoded.hex()} ends inside a group at byte {at}")
        pad = 0xFF - group[_GROUP]
        if pad > _GROUP or any(group[_GROUP - pad : _GROUP]):
            raise CorruptDataError(f"memcomparable key {encoded.hex()} has a bad group at byte {at}")
        out += group[: _GROUP - pad]
        at += _GROUP + 1
        if pad:
            return bytes(out), at


def encode_int(value: int) -> bytes:
    """Comparable signed integer: big endian with the sign bit turned."""
    return ((value & _MASK) ^ _SIGN).to_bytes(8, "big")


def decode_int(encoded: bytes) -> int:
    value = int.from_bytes(encoded, "big") ^ _SIGN
    return value - (1 << 64) if value & _SIGN else value


def table_prefix(physical_id: int) -> bytes:
    return b"t" + encode_int(physical_id)


def record_prefix(physical_id: int) -> bytes:
    return table_prefix(physical_id) + b"_r"


def record_key(physical_id: int, handle: int) -> bytes:
    """The key of a row with an integer handle."""
    return record_prefix(physical_id) + encode_int(handle)


def record_range(physical_id: int) -> tuple[bytes, bytes]:
    """All rows of a physical table as a range ``[start, end)`` of plain keys."""
    return table_prefix(physical_id) + b"_r", table_prefix(physical_id) + b"_s"


def record_span(physical_id: int) -> Span:
    """All rows of a physical table as a span of physical (memcomparable) keys."""
    start, end = record_range(physical_id)
    return Span(encode_bytes(start), encode_bytes(end))


def is_record_key(key: bytes) -> bool:
    return len(key) > 11 and key[:1] == b"t" and key[9:11] == b"_r"


def physical_id_of(key: bytes) -> int:
    """The physical table id of a record or index key."""
    if len(key) < 9 or key[:1] != b"t":
        raise CorruptDataError(f"key {key.hex()} is not a table key: expected 't' and an eight-byte table id")
    return decode_int(key[1:9])


def mvcc_key(key: bytes, ts: int) -> bytes:
    """A stored version's key: memcomparable key, then the ts inverted so that the newest sorts first."""
    return encode_bytes(key) + (ts ^ _MASK).to_bytes(8, "big")


def split_mvcc_key(stored: bytes) -> tuple[bytes, int]:
    key, at = decode_bytes(stored)
    if len(stored) != at + 8:
        raise CorruptDataError(f"stored key {stored.hex()} has no eight-byte ts behind its memcomparable part")
    return key, int.from_bytes(stored[at:], "big") ^ _MASK
