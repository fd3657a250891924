"""Rows of ``mysql.tidb_ddl_job``: where DDL jobs live while they run.

    raw change of the job table ──► JobRow (a transition of a job) or JobGone (its row is removed)

A job's row is rewritten at every step of an online DDL, each time in the transaction that also
changes the metadata, so its commit-ts is exactly when the step took effect. Only the ``job_meta``
cell is read, from either row format.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from tidemill.errors import CorruptDataError, SchemaError
from tidemill.model.change import Op
from tidemill.model.ts import Ts
from tidemill.tidb.documents import Job, parse_job
from tidemill.tidb.keys import decode_bytes, decode_int

JOB_META_COLUMN_ID = 5

# A batch of RAW_CHANGE_SCHEMA, or (commit_ts, start_ts, key, value).
JobChanges: TypeAlias = "pa.RecordBatch | Iterable[tuple[int, int, bytes, bytes]]"


@dataclass(frozen=True, slots=True)
class JobRow:
    commit_ts: Ts
    start_ts: Ts
    job: Job


@dataclass(frozen=True, slots=True)
class JobGone:
    """The job has left the table: finished everywhere, or cancelled."""

    commit_ts: Ts
    job_id: int


def read_changes(changes: JobChanges, column_id: int = JOB_META_COLUMN_ID) -> Iterator[JobRow | JobGone]:
    """Decode changes of the job table, in the order given. An empty value is a delete."""
    for commit_ts, start_ts, key, value in _tuples(changes):
        if value:
            yield JobRow(Ts(commit_ts), Ts(start_ts), decode_job(key, value, column_id))
        else:
            yield JobGone(Ts(commit_ts), decode_int(key[-8:]))


def decode_job(key: bytes, value: bytes, column_id: int = JOB_META_COLUMN_ID) -> Job:
    job_id = decode_int(key[-8:])
    try:
        document = cell(value, column_id)
    except CorruptDataError as error:
        raise SchemaError(
            f"cannot read DDL job {job_id} from mysql.tidb_ddl_job: {error}. "
            "Nothing was skipped; check the job upstream with 'admin show ddl jobs'."
        ) from error
    if document is None:
        raise SchemaError(
            f"DDL job {job_id} has no job_meta (column id {column_id}) in mysql.tidb_ddl_job. "
            "The upstream is of a version whose job table has another form."
        )
    return parse_job(document, job_id)


def cell(row: bytes, column_id: int) -> bytes | None:
    """The bytes of one string column of a row in format v2 or v1; None if it is NULL or absent."""
    if not row:
        raise CorruptDataError("the row is empty")
    return _cell_v2(row, column_id) if row[0] == 0x80 else _cell_v1(row, column_id)


def _tuples(changes: JobChanges) -> Iterator[tuple[int, int, bytes, bytes]]:
    if not isinstance(changes, pa.RecordBatch):
        yield from changes
        return
    names = ("commit_ts", "start_ts", "key", "value", "op")
    for commit_ts, start_ts, key, value, op in zip(*(changes.column(n).to_pylist() for n in names), strict=True):
        yield commit_ts, start_ts, key, value if op == Op.PUT else b""


def _cell_v2(row: bytes, column_id: int) -> bytes | None:
    if len(row) < 6:
        raise CorruptDataError(f"the row ends inside its header: {len(row)} of at least 6 bytes")
    is_large = row[1] & 1
    id_size, offset_size = (4, 4) if is_large else (1, 2)
    not_null = int.from_bytes(row[2:4], "little")
    null = int.from_bytes(row[4:6], "little")
    offsets_at = 6 + (not_null + null) * id_size
    data_at = offsets_at + not_null * offset_size
    if len(row) < data_at:
        raise CorruptDataError(f"the row ends inside its header: {len(row)} of {data_at} bytes")

    def offset(i: int) -> int:
        at = offsets_at + i * offset_size
        return int.from_bytes(row[at : at + offset_size], "little")

    for i in range(not_null):
        if int.from_bytes(row[6 + i * id_size : 6 + (i + 1) * id_size], "little") == column_id:
            start, end = data_at + (offset(i - 1) if i else 0), data_at + offset(i)
            if not start <= end <= len(row):
                raise CorruptDataError(f"cell {column_id} lies at {start}..{end} of a row of {len(row)} bytes")
            return row[start:end]
    return None


def _cell_v1(row: bytes, column_id: int) -> bytes | None:
    """Pairs of (varint column id, value), each value behind a byte that tells its kind."""
    if row == b"\0":
        return None  # how a row without columns is written
    at = 0
    while at < len(row):
        try:
            found, at = _value_v1(row, at)
            value, at = _value_v1(row, at)
        except IndexError as error:
            raise CorruptDataError(f"the row ends inside a value, at byte {len(row)}") from error
        if found == column_id:
            return value if isinstance(value, bytes) else None
    return None


def _value_v1(row: bytes, at: int) -> tuple[int | bytes | None, int]:
    kind = row[at]
    at += 1
    match kind:
        case 0:
            return None, at
        case 1:
            return decode_bytes(row, at)
        case 2:
            length, at = _varint(row, at)
            if length < 0 or at + length > len(row):
                raise CorruptDataError(f"a string of {length} bytes at {at} leaves the row of {len(row)} bytes")
            return row[at : at + length], at + length
        case 3 | 4 | 5 | 7:
            return decode_int(row[at : at + 8]), at + 8
        case 8:
            return _varint(row, at)
        case 9:
            return _uvarint(row, at)
    raise CorruptDataError(f"unexpected kind of value {kind} at byte {at - 1} of a row in format v1")


def _uvarint(row: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = row[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(row: bytes, at: int) -> tuple[int, int]:
    value, at = _uvarint(row, at)
    return (value >> 1) ^ -(value & 1), at
