"""The part of TiDB's metadata key space that a schema store needs, both ways.

    m ‖ bytes(hash) ‖ u64('h') ‖ bytes(field)     hash "DBs",     field "DB:<schema id>"    → a database
                                                  hash "DB:<id>", field "Table:<table id>"  → a table
    record keys of mysql.tidb_ddl_job             → the jobs that are running or just done

Keys are plain, as a transactional client sends them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.errors import CorruptDataError, SchemaError
from tidemill.tidb.keys import decode_bytes, encode_bytes, record_range

JOB_TABLE_ID = 281474976710654  # mysql.tidb_ddl_job; fixed since TiDB 6.2

_META = b"m"
_HASH_FIELD = b"\0" * 7 + b"h"
_DATABASES = b"DBs"


@dataclass(slots=True)
class MetaSnapshot:
    """The documents of one moment, not yet parsed."""

    databases: dict[int, bytes] = field(default_factory=dict)
    tables: dict[tuple[int, int], bytes] = field(default_factory=dict)  # by (schema id, table id)
    job_rows: list[tuple[bytes, bytes]] = field(default_factory=list)


def scan_ranges() -> tuple[tuple[bytes, bytes], ...]:
    """The ranges ``[start, end)`` of plain keys to scan, at one ts, for ``SchemaStore.from_snapshot``.

    The databases and all that belongs to them, then the running jobs. The history of finished jobs
    lies outside, which on an old cluster is most of the metadata.
    """
    prefix = _META + encode_bytes(_DATABASES)[:2]  # "mDB": the hash of databases and each database's own
    return (prefix, prefix[:-1] + bytes([prefix[-1] + 1])), record_range(JOB_TABLE_ID)


def hash_key(name: bytes, field_name: bytes) -> bytes:
    return _META + encode_bytes(name) + _HASH_FIELD + encode_bytes(field_name)


def hash_range(name: bytes) -> tuple[bytes, bytes]:
    """All fields of one hash as a range ``[start, end)`` of plain keys."""
    prefix = _META + encode_bytes(name)
    return prefix + _HASH_FIELD, prefix + _HASH_FIELD[:-1] + bytes([_HASH_FIELD[-1] + 1])


def database_key(schema_id: int) -> bytes:
    return hash_key(_DATABASES, b"DB:%d" % schema_id)


def table_key(schema_id: int, table_id: int) -> bytes:
    return hash_key(b"DB:%d" % schema_id, b"Table:%d" % table_id)


def split_hash_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Hash name and field of a metadata key; None for keys of other structures."""
    if key[:1] != _META:
        return None
    name, at = decode_bytes(key, 1)
    if key[at : at + 8] != _HASH_FIELD:
        return None
    field_name, end = decode_bytes(key, at + 8)
    if end != len(key):
        raise CorruptDataError(f"metadata key {key.hex()} has {len(key) - end} bytes behind its field")
    return name, field_name


def read_snapshot(pairs: Iterable[tuple[bytes, bytes]], into: MetaSnapshot | None = None) -> MetaSnapshot:
    """Sort the pairs of ``scan_ranges`` (or of all of ``m``) into documents; what is not needed is passed over.
    ``into``: a snapshot that has some already."""
    start, end = record_range(JOB_TABLE_ID)
    snapshot = MetaSnapshot() if into is None else into
    for key, value in pairs:
        if start <= key < end:
            snapshot.job_rows.append((key, value))
            continue
        parts = split_hash_key(key)
        if parts is None:
            continue
        name, field_name = parts
        if name == _DATABASES:
            snapshot.databases[_id_in(field_name, b"DB:", key)] = value
        elif name.startswith(b"DB:") and field_name.startswith(b"Table:"):
            # Counters (TID:, IID:, SID:, …) share the hash with the tables.
            snapshot.tables[_id_in(name, b"DB:", key), _id_in(field_name, b"Table:", key)] = value
    return snapshot


def _id_in(text: bytes, prefix: bytes, key: bytes) -> int:
    digits = text[len(prefix) :]
    if not text.startswith(prefix) or not digits.isdigit():
        raise SchemaError(
            f"metadata key {key.hex()} names {text!r} where {prefix.decode()}<id> was expected. "
            "The upstream's metadata has a form that this version does not know."
        )
    return int(digits)
