"""TiDB's JSON documents of schemas and DDL jobs, read into our own nouns.

    DBInfo ──► Database      TableInfo, ColumnInfo, IndexInfo, PartitionInfo ──► model.table
    Job with its binlog and its arguments (array of version 1, object of version 2) ──► Job

Only what is public is kept: a column or index in the middle of an online DDL belongs to the
version that its job will finish, not to the one in force.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from tidemill.errors import SchemaError
from tidemill.model.ddl import ActionType
from tidemill.model.table import ColumnInfo, ColumnType, IndexColumn, IndexInfo, PartitionInfo, TableInfo
from tidemill.model.ts import Ts, to_datetime
from tidemill.tidb.sql_mode import in_default_mode, modes_of

Document = Mapping[str, Any]  # parsed JSON: its shape is TiDB's, and is checked key by key as it is read
T = TypeVar("T")

_MOST_SHARED = 1 << 14  # columns and indexes remembered to be shared among tables
_LIST_PARTITIONS = 3  # TiDB's number of that kind of partitioning
_DEFAULT_VALUES = ["DEFAULT"]
_TODAY = "CURRENT_DATE"  # an original default that is another one each day: TiDB works it out as it reads a row
_KINDS = {int(kind): kind.name.lower().replace("_", " ") for kind in ActionType}


class SchemaState(IntEnum):
    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORG = 3
    DELETE_REORG = 4
    PUBLIC = 5
    REPLICA_ONLY = 6


PUBLIC_ONLY = frozenset({SchemaState.PUBLIC})


class JobState(IntEnum):
    NONE = 0
    RUNNING = 1
    ROLLING_BACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    CANCELLED = 5
    SYNCED = 6
    CANCELLING = 7
    QUEUEING = 8
    PAUSED = 9
    PAUSING = 10


@dataclass(frozen=True, slots=True)
class Database:
    id: int
    name: str
    charset: str
    collate: str


@dataclass(frozen=True, slots=True)
class SubJob:
    """One clause of a multi-schema change."""

    type: int
    state: int
    schema_state: int
    args: Any = None


@dataclass(frozen=True, slots=True)
class Job:
    """A DDL job at one of its transitions. ``table`` and ``tables`` stay documents until their names are known."""

    id: int
    type: int  # ActionType, or a number of a newer TiDB
    state: int
    schema_state: int
    schema_id: int
    table_id: int
    query: str  # as the default sql_mode reads it
    real_start_ts: Ts  # 0 until its first step; the metadata at this ts are those before the job
    args: Any  # array (version 1) or object (version 2) of TiDB
    schema_version: int  # 0 in a finished job: it changed nothing
    database: Database | None = None
    table: Document | None = None
    tables: tuple[Document, ...] = ()
    sub_jobs: tuple[SubJob, ...] = ()
    involved: tuple[tuple[str, str], ...] = ()  # (schema, table), in lower case
    sql_modes: tuple[str, ...] = ()  # under which ``query`` is to be read, beside the default ones
    time_zone: str = ""  # in which rows are converted: ``+05:30`` or a name; "" where the job does not tell

    @property
    def is_running(self) -> bool:
        """It has changed metadata and may change more."""
        return self.real_start_ts != 0 and self.state in (
            JobState.RUNNING,
            JobState.ROLLING_BACK,
            JobState.CANCELLING,
            JobState.PAUSED,
            JobState.PAUSING,
        )

    @property
    def is_undone(self) -> bool:
        return self.state in (JobState.ROLLING_BACK, JobState.ROLLBACK_DONE, JobState.CANCELLED)

    def __str__(self) -> str:
        return f"DDL job {self.id} ({_KINDS.get(self.type, f'type {self.type}')})"


@dataclass(frozen=True, slots=True)
class Rename:
    table_id: int
    old_schema_id: int
    new_schema_id: int
    new_name: str


def parse_job(raw: bytes, job_id: int) -> Job:
    return _read(f"DDL job {job_id}", lambda: _job(_load(raw)))


def parse_database(raw: bytes | Document, schema_id: int) -> Database:
    return _read(f"database {schema_id}", lambda: _database(_load(raw)))


def parse_table(
    raw: bytes | Document,
    schema_id: int,
    schema: str,
    version_ts: Ts,
    table_id: int = 0,
    states: frozenset[SchemaState] = PUBLIC_ONLY,
) -> TableInfo:
    """A table as a changefeed sees it: public columns and indexes, partitions that are in use.

    ``states``: which columns and indexes to take, for who sees more of an online DDL.
    """
    return _read(f"table {table_id} of {schema!r}", lambda: _table(_load(raw), schema_id, schema, version_ts, states))


# Arguments of jobs


def rename_args(job: Job) -> tuple[Rename, ...]:
    """The pairs of RENAME TABLE and RENAME TABLES, in the order of the statement."""
    return _read(f"the arguments of {job}", lambda: _rename_args(job))


def partition_args(job: Job) -> tuple[frozenset[str], tuple[int, ...]]:
    """Names (lower case) of the table partitions that go, and ids of those that come."""

    def read() -> tuple[frozenset[str], tuple[int, ...]]:
        if isinstance(job.args, list):
            names, info = (job.args[0], job.args[1]) if len(job.args) > 1 else (job.args[0], None)
        else:
            names, info = job.args.get("part_names"), job.args.get("part_info")
        ids = tuple(int(d["id"]) for d in (info or {}).get("definitions") or ())
        return frozenset(str(name).lower() for name in names or ()), ids

    return _read(f"the arguments of {job}", read)


def truncate_partition_args(job: Job) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids that go, ids that come). A finished job may have lost the latter."""

    def read() -> tuple[tuple[int, ...], tuple[int, ...]]:
        if isinstance(job.args, list):
            old, new = (*job.args, None, None)[:2]
        else:
            old, new = job.args.get("old_partition_ids"), job.args.get("new_partition_ids")
        return tuple(map(int, old or ())), tuple(map(int, new or ()))

    return _read(f"the arguments of {job}", read)


def taking_partitions(job: Job, before: Sequence[int]) -> frozenset[int]:
    """Ids of the table partitions that may take rows of those that a DROP PARTITION removed: behind a range the next
    one, the DEFAULT of a list. ``before``: all ids before it, in order; empty if not known, and all that are left do.
    """

    def read() -> frozenset[int]:
        document = (job.table or {}).get("partition") or {}
        left = document.get("definitions") or ()
        if int(document.get("type") or 0) == _LIST_PARTITIONS:
            return frozenset(int(d["id"]) for d in left if _DEFAULT_VALUES in (d.get("in_values") or ()))
        ids = [int(d["id"]) for d in left]
        if not before:
            return frozenset(ids)
        gone = {at for at, each in enumerate(before) if each not in ids}
        return frozenset(before[at + 1] for at in gone if at + 1 < len(before) and at + 1 not in gone)

    return _read(f"the partitions of {job}", read)


def exchange_args(job: Job) -> tuple[int, int, int, str, bool]:
    """(partition id, schema id, table id, partition name, with validation) of EXCHANGE PARTITION."""

    def read() -> tuple[int, int, int, str, bool]:
        keys = ("partition_id", "pt_schema_id", "pt_table_id", "partition_name", "with_validation")
        if isinstance(job.args, list):
            partition_id, schema_id, table_id, name, validates = job.args[:5]
        else:
            partition_id, schema_id, table_id, name, validates = (job.args.get(k) for k in keys)
        return int(partition_id), int(schema_id), int(table_id), str(name), bool(validates)

    return _read(f"the arguments of {job}", read)


def swapped_columns(job: Job) -> tuple[tuple[str, ColumnInfo], ...]:
    """Columns that a lossy MODIFY COLUMN has swapped already, although the job is not done: the name that each had
    before (lower case), and the column that sessions read and write now. Its offset is not to be used."""

    def read() -> tuple[tuple[str, ColumnInfo], ...]:
        found = []
        parts: tuple[Job | SubJob, ...] = (job, *job.sub_jobs)
        for part in parts:
            if part.type != ActionType.MODIFY_COLUMN or part.schema_state != SchemaState.PUBLIC:
                continue
            args = part.args
            if isinstance(args, list):
                old_name, changing = args[1], args[5] if len(args) > 5 else None
            else:
                old_name, changing = (args or {}).get("old_column_name"), (args or {}).get("changing_column")
            if changing:
                column = replace(_column(changing, 0, Ts(0)), origin_default=None, origin_default_bit=None)
                found.append((_name(old_name).lower(), column))
        return tuple(found)

    return _read(f"the arguments of {job}", read)


def replaced_view_id(job: Job) -> int:
    """The id of the view that CREATE OR REPLACE VIEW removes; 0 if it replaces none."""

    def read() -> int:
        if isinstance(job.args, list):
            return int(job.args[2]) if len(job.args) > 2 and job.args[1] else 0
        return int(job.args.get("old_view_tbl_id") or 0)

    return _read(f"the arguments of {job}", read)


def recovered_tables(job: Job) -> tuple[Document, ...] | None:
    """The tables that RECOVER SCHEMA brings back; None where the job only says when they were."""

    def read() -> tuple[Document, ...] | None:
        info = job.args[0] if isinstance(job.args, list) else job.args.get("recover_info")
        if (info or {}).get("LoadTablesOnExecute"):
            return None
        listed = (info or {}).get("RecoverTableInfos") or (info or {}).get("RecoverTabsInfo") or ()
        return tuple(entry["TableInfo"] for entry in listed)

    return _read(f"the arguments of {job}", read)


def _rename_args(job: Job) -> tuple[Rename, ...]:
    if job.type == ActionType.RENAME_TABLE:
        if isinstance(job.args, list):
            old_schema_id, name = job.args[0], job.args[1]
        else:
            old_schema_id, name = job.args["old_schema_id"], job.args["new_table_name"]
        return (Rename(job.table_id, int(old_schema_id), job.schema_id, _name(name)),)
    if isinstance(job.args, list):
        old_schemas, new_schemas, names, table_ids = job.args[:4]
        columns = zip(table_ids, old_schemas, new_schemas, names, strict=True)
        return tuple(Rename(int(t), int(o), int(n), _name(name)) for t, o, n, name in columns)
    return tuple(
        Rename(int(r["table_id"]), int(r["old_schema_id"]), int(r["new_schema_id"]), _name(r["new_table_name"]))
        for r in job.args["rename_table_infos"]
    )


# Documents


def _read(what: str, read: Callable[[], T]) -> T:
    """Turn whatever a malformed document provokes into one error that names it."""
    try:
        return read()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, binascii.Error) as error:
        raise SchemaError(
            f"cannot read {what}: {type(error).__name__}: {error}. "
            "The upstream's metadata are damaged, or of a version that this one does not know."
        ) from error


def _load(raw: bytes | Document) -> Document:
    document = orjson.loads(raw) if isinstance(raw, bytes) else raw
    if not isinstance(document, Mapping):
        raise ValueError(f"a JSON object was expected, not {type(document).__name__}")
    return document


def _name(value: Any) -> str:
    """An identifier: ``{"O": as typed, "L": lower case}``, or just a string."""
    return str(value) if isinstance(value, str) else str(value["O"])


def _job(document: Document) -> Job:
    binlog = document.get("binlog") or {}
    multi = document.get("multi_schema_info") or {}
    sql_mode = int(document.get("sql_mode") or 0)
    return Job(
        id=int(document["id"]),
        type=int(document["type"]),
        state=int(document["state"]),
        schema_state=int(document.get("schema_state") or 0),
        schema_id=int(document.get("schema_id") or 0),
        table_id=int(document.get("table_id") or 0),
        query=in_default_mode(str(document.get("query") or ""), sql_mode),
        real_start_ts=Ts(int(document.get("real_start_ts") or 0)),
        args=document.get("raw_args") or {},
        schema_version=int(binlog.get("SchemaVersion") or 0),
        database=_database(binlog["DBInfo"]) if binlog.get("DBInfo") else None,
        table=binlog.get("TableInfo"),
        tables=tuple(binlog.get("MultipleTableInfos") or ()),
        sub_jobs=tuple(
            SubJob(int(s["type"]), int(s["state"]), int(s["schema_state"]), s.get("raw_args"))
            for s in multi.get("sub_jobs") or ()
        ),
        involved=tuple(
            (str(i.get("database") or ""), str(i.get("table") or ""))
            for i in document.get("involving_schema_info") or ()
        ),
        sql_modes=modes_of(sql_mode),
        time_zone=_time_zone((document.get("reorg_meta") or {}).get("location")),
    )


def _time_zone(location: Document | None) -> str:
    """That of the session: TiDB keeps an offset in seconds, or a name, of which ``Local`` says nothing to others."""
    if location is None or location.get("name") == "Local":
        return ""
    minutes = int(location.get("offset") or 0) // 60
    if not minutes:
        return str(location.get("name") or "") or "+00:00"
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _database(document: Document) -> Database:
    return Database(
        int(document["id"]),
        _name(document["db_name"]),
        str(document.get("charset") or ""),
        str(document.get("collate") or ""),
    )


def _table(
    document: Document, schema_id: int, schema: str, version_ts: Ts, states: frozenset[SchemaState]
) -> TableInfo:
    table_id = int(document["id"])
    is_view = document.get("view") is not None
    columns: list[ColumnInfo] = []
    places: dict[int, int] = {}  # offset in the document → offset among the columns that are taken
    # The columns of a view carry no types, and no rows: they are left out.
    for at, column in enumerate(() if is_view else document.get("cols") or ()):
        if column["state"] in states:
            places[at] = len(columns)
            columns.append(_column(column, len(columns), version_ts))
    return TableInfo(
        id=table_id,
        schema_id=schema_id,
        schema=schema,
        name=_name(document["name"]),
        version_ts=version_ts,
        columns=tuple(columns),
        indexes=tuple(
            _index(index, places)
            for index in document.get("index_info") or ()
            if index["state"] in states and all(c["offset"] in places for c in index["idx_cols"])
        ),
        pk_is_handle=bool(document.get("pk_is_handle")),
        is_common_handle=bool(document.get("is_common_handle")),
        partitions=_partitions(document.get("partition"), table_id),
        is_view=is_view,
        is_sequence=document.get("sequence") is not None,
        charset=str(document.get("charset") or ""),
        collate=str(document.get("collate") or ""),
        update_ts=Ts(int(document.get("update_timestamp") or 0)),
        view_columns=tuple(_name(c["name"]) for c in document.get("cols") or ()) if is_view else (),
    )


def _column(document: Document, offset: int, version_ts: Ts) -> ColumnInfo:
    kind = document["type"]
    elems = kind.get("Elems")
    origin = _text(document.get("origin_default"))
    if origin == _TODAY and ColumnType(kind["Tp"]) in (ColumnType.DATE, ColumnType.NEWDATE):
        origin = to_datetime(version_ts).date().isoformat()
    return _shared_column(
        int(document["id"]),
        _name(document["name"]),
        offset,
        int(kind["Tp"]),
        int(kind["Flag"]),
        int(kind["Flen"]),
        int(kind["Decimal"]),
        str(kind.get("Charset") or ""),
        str(kind.get("Collate") or ""),
        tuple(map(str, elems)) if elems else (),
        _text(document.get("default")),
        _bits(document.get("default_bit")),
        origin,
        _bits(document.get("origin_default_bit")),
        str(document.get("generated_expr_string") or ""),
        bool(document.get("generated_stored")),
        bool(document.get("hidden")),
        str(document.get("comment") or ""),
    )


@lru_cache(_MOST_SHARED)
def _shared_column(column_id: int, name: str, offset: int, kind: int, *rest: Any) -> ColumnInfo:
    """The same object for the same column: of a hundred thousand tables most look like another."""
    return ColumnInfo(column_id, name, offset, ColumnType(kind), *rest)


def _index(document: Document, places: Mapping[int, int]) -> IndexInfo:
    return _shared_index(
        int(document["id"]),
        _name(document["idx_name"]),
        tuple([(places[int(c["offset"])], int(c["length"])) for c in document["idx_cols"]]),
        bool(document.get("is_unique")),
        bool(document.get("is_primary")),
    )


@lru_cache(_MOST_SHARED)
def _shared_index(
    index_id: int, name: str, columns: tuple[tuple[int, int], ...], is_unique: bool, is_primary: bool
) -> IndexInfo:
    return IndexInfo(index_id, name, tuple(IndexColumn(*column) for column in columns), is_unique, is_primary)


def _partitions(document: Document | None, table_id: int) -> tuple[PartitionInfo, ...]:
    """The partitions in force. A document from the middle of a DROP or TRUNCATE PARTITION has already
    let the old ones go; until the job is done they still are the table's."""
    if not document or not document.get("enable"):
        return ()
    live = [PartitionInfo(int(d["id"]), _name(d["name"])) for d in document.get("definitions") or ()]
    action = int(document.get("ddl_action") or 0)
    if action in (ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION):
        going = [PartitionInfo(int(d["id"]), _name(d["name"])) for d in document.get("dropping_definitions") or ()]
        by_name = {p.name: p for p in going}
        coming = {int(i) for i in document.get("new_partition_ids") or ()}
        live = [by_name.pop(p.name, p) if p.id in coming else p for p in live]
        known = {p.id for p in live}
        live = [p for p in by_name.values() if p.id not in known] + live
    if len(live) == 1 and live[0].id == table_id:
        return ()  # the stand-in for the whole table while PARTITION BY runs
    return tuple(live)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _bits(value: Any) -> bytes | None:
    return None if value is None else base64.b64decode(value, validate=True)
