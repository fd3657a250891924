"""DDL jobs: their documents as TiDB keeps them in mysql.tidb_ddl_job, and what a step does to the schema.

step(job, documents, moment) ──► Change     one transaction: documents, a schema version, the job's row
                             ──► Reorg      rows to fill in or to look at first; then step again with its result
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

from tidemill.errors import SchemaError
from tidemill.model.ddl import ActionType
from tidemill.tidb.documents import JobState, SchemaState

Document: TypeAlias = dict[str, Any]  # TiDB's JSON

STRICT_SQL_MODE: Final = 1075838976
REORG_KINDS: Final = frozenset(
    {ActionType.ADD_INDEX, ActionType.ADD_PRIMARY_KEY, ActionType.MODIFY_COLUMN, ActionType.MULTI_SCHEMA_CHANGE}
)


# What a step works with


@dataclass(frozen=True, slots=True)
class Documents:
    """The part of the schema that a job can touch, as its transaction sees it. Not to be changed in place."""

    databases: Mapping[int, Document] = field(default_factory=dict)
    tables: Mapping[tuple[int, int], Document] = field(default_factory=dict)  # by (schema id, table id)

    def database(self, schema_id: int) -> Document:
        """A copy, free to be changed."""
        if schema_id not in self.databases:
            raise SchemaError(f"database {schema_id} of a DDL job is not in the metadata")
        return copy.deepcopy(self.databases[schema_id])

    def table(self, schema_id: int, table_id: int) -> Document:
        if (schema_id, table_id) not in self.tables:
            raise SchemaError(f"table {table_id} of a DDL job is not in database {schema_id} of the metadata")
        return copy.deepcopy(self.tables[schema_id, table_id])


@dataclass(frozen=True, slots=True)
class Moment:
    """Of the step's transaction: its start-ts, and the schema version that it makes if it makes one."""

    start_ts: int
    version: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A table that leaves a database; its counters stay if it only moves."""

    schema_id: int
    table_id: int
    keeps_counters: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a step does, all in one transaction."""

    job: Document
    diff: Document | None  # None: no new schema version
    databases: tuple[Document, ...] = ()
    gone_databases: tuple[int, ...] = ()
    tables: tuple[tuple[int, Document], ...] = ()  # with the id of their database
    gone: tuple[Gone, ...] = ()
    counters: tuple[tuple[int, int, int], ...] = ()  # (schema id, table id, at least): counters to raise


@dataclass(frozen=True, slots=True)
class FillIndexes:
    """Write the entries of these indexes for rows that were there before."""

    schema_id: int
    table_id: int
    index_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FillColumn:
    """Write a changing column, and its indexes, into rows that were there before."""

    schema_id: int
    table_id: int
    column_id: int
    index_ids: tuple[int, ...]
    name: str = ""  # that the column will have
    zone: tzinfo = UTC  # of the session that asked: in it moments are cast to TIMESTAMP and back


@dataclass(frozen=True, slots=True)
class CheckNotNull:
    """Look whether any row has a NULL in this column."""

    schema_id: int
    table_id: int
    column_id: int
    name: str = ""  # that MODIFY COLUMN gives it; empty: a primary key is added


Reorg: TypeAlias = FillIndexes | FillColumn | CheckNotNull


@dataclass(frozen=True, slots=True)
class Done:
    """A reorganization came to its end."""

    rows: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A reorganization met something that forbids the change: a duplicate key, a value that cannot be cast."""

    number: int
    message: str


Result: TypeAlias = Done | Failed


# Documents of jobs


def new_job(
    kind: ActionType,
    *,
    schema_id: int,
    schema_name: str,
    table_id: int = 0,
    table_name: str = "",
    args: Document | None,
    query: str,
    start_ts: int = 0,
    schema_state: SchemaState = SchemaState.NONE,
    involving: Sequence[tuple[str, str]] = (),
    sub_jobs: Sequence[Document] | None = None,
) -> Document:
    """A job as it is queued, without an id."""
    job: Document = {
        "id": 0,
        "type": int(kind),
        "schema_id": schema_id,
        "table_id": table_id,
        "schema_name": schema_name.lower(),
        "table_name": table_name.lower(),
        "state": int(JobState.QUEUEING),
        "warning": None,
        "err": None,
        "err_count": 0,
        "row_count": 0,
        "raw_args": args,
        "schema_state": int(schema_state),
        "snapshot_ver": 0,
        "real_start_ts": 0,
        "start_ts": start_ts,
        "dependency_id": 0,
        "query": query,
        "binlog": _empty_binlog(),
        "version": 2,
        "reorg_meta": _reorg_meta(4, 256) if kind in REORG_KINDS else None,
        "multi_schema_info": None,
        "priority": 0,
        "seq_num": 0,
        "charset": "",
        "collate": "",
        "involving_schema_info": [{"database": d.lower(), "table": t.lower()} for d, t in involving],
        "admin_operator": 0,
        "trace_info": {"connection_id": 0, "session_alias": ""},
        "bdr_role": "",
        "cdc_write_source": 0,
        "local_mode": False,
        "sql_mode": STRICT_SQL_MODE,
    }
    if not involving:
        del job["involving_schema_info"]
    if kind in (ActionType.ADD_INDEX, ActionType.ADD_PRIMARY_KEY):
        job["priority"] = 1
    if kind is ActionType.ADD_INDEX:
        job.update(charset="utf8mb4", collate="utf8mb4_bin")
    if sub_jobs is not None:
        fills = any(s["type"] in REORG_KINDS for s in sub_jobs)
        job["reorg_meta"] = _reorg_meta(4, 256) if fills else _reorg_meta(0, 0)
        job["multi_schema_info"] = {"sub_jobs": list(sub_jobs), "revertible": True, "seq": 0}
    return job


def new_sub_job(kind: ActionType, args: Document, schema_state: SchemaState = SchemaState.NONE) -> Document:
    return {
        "type": int(kind),
        "raw_args": args,
        "schema_state": int(schema_state),
        "snapshot_ver": 0,
        "real_start_ts": 0,
        "revertible": True,
        "state": int(JobState.QUEUEING),
        "row_count": 0,
        "warning": None,
        "schema_version": 0,
        "reorg_tp": 0,
    }


def _empty_binlog() -> Document:
    return {"SchemaVersion": 0, "DBInfo": None, "TableInfo": None, "FinishedTS": 0, "MultipleTableInfos": None}


def _reorg_meta(concurrency: int, batch_size: int) -> Document:
    return {
        "sql_mode": STRICT_SQL_MODE,
        "warnings": {},
        "warnings_count": {},
        "location": {"name": "", "offset": 0},
        "reorg_tp": 0,
        "is_fast_reorg": False,
        "is_dist_reorg": False,
        "use_cloud_storage": False,
        "resource_group_name": "default",
        "version": 1,
        "target_scope": "",
        "concurrency": concurrency,
        "batch_size": batch_size,
        "max_write_speed": 0,
    }


def running(job: Document, moment: Moment) -> Document:
    """A copy of ``job`` in its next step."""
    job = copy.deepcopy(job)
    if job["state"] == JobState.QUEUEING:
        job["state"] = int(JobState.RUNNING)
    if job["real_start_ts"] == 0:
        job["real_start_ts"] = moment.start_ts
    return job


def finish_with_table(job: Document, state: SchemaState, version: int, table: Document) -> None:
    """The last step has been taken: ``table`` is what it left."""
    job.update(state=int(JobState.DONE), schema_state=int(state))
    job["binlog"].update(SchemaVersion=version, TableInfo=table)


def finish_with_database(job: Document, state: SchemaState, version: int, database: Document) -> None:
    job.update(state=int(JobState.DONE), schema_state=int(state))
    job["binlog"].update(SchemaVersion=version, DBInfo=database)


def finish_without_change(job: Document) -> None:
    """There was nothing to do: CDC knows such a job by its version 0."""
    job["state"] = int(JobState.DONE)


def diff_of(job: Document, **more: Any) -> Document:
    """What a step tells to those who keep a copy of the schema."""
    return {
        "type": job["type"],
        "schema_id": job["schema_id"],
        "table_id": job["table_id"],
        "old_table_id": 0,
        "old_schema_id": 0,
        "regenerate_schema_map": False,
        "affected_options": None,
        **more,
    }


def touch(table: Document, moment: Moment) -> Document:
    """Note in a table's document that it has changed."""
    table["revision"] += 1
    if table["state"] == SchemaState.PUBLIC:
        table["update_timestamp"] = moment.start_ts
    return table


# Where TiDB's errors come from, which a job keeps with their numbers: class and name.
_ERROR_CLASSES = {1062: (8, "kv"), 8214: (2, "ddl"), 1138: (2, "ddl")}


def error_document(number: int, message: str) -> Document:
    """An error as a job keeps it."""
    code, name = _ERROR_CLASSES.get(number, (20, "types"))
    return {"class": code, "code": number, "message": message, "rfccode": f"{name}:{number}"}


def set_zone(job: Document, zone: tzinfo) -> None:
    """Keep the time zone of the session that asked, for those who cast rows."""
    if job["reorg_meta"] is None or zone is UTC:
        return
    if isinstance(zone, ZoneInfo):
        job["reorg_meta"]["location"] = {"name": zone.key, "offset": 0}
    else:
        offset = zone.utcoffset(None) or timedelta()
        job["reorg_meta"]["location"] = {"name": "", "offset": int(offset.total_seconds())}


def zone_of(job: Document) -> tzinfo:
    location = (job["reorg_meta"] or {}).get("location") or {}
    if location.get("name") and location["name"] not in ("UTC", "System", "Local"):
        return ZoneInfo(location["name"])
    offset = location.get("offset") or 0
    return timezone(timedelta(seconds=offset)) if offset else UTC


def roll_back(job: Document, number: int, message: str) -> None:
    """From here on the job undoes what it did."""
    # Bytes that a value brought into the message would make the job unwritable.
    text = message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    job.update(state=int(JobState.ROLLING_BACK), err=error_document(number, text), err_count=job["err_count"] + 1)
