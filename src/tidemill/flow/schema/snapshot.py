"""From documents of one moment to the catalogue that was in force at it, running jobs allowed for.

In the middle of an online DDL the metadata show what is coming: columns about to be dropped are no
longer public, a renamed table has its new name. A changefeed goes on with the form before the DDL
until the job is done. That form is still there, one read into the past away: as of the job's first
step no other job is at work on its tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from tidemill.errors import SchemaError
from tidemill.flow.schema.effects import SYSTEM_SCHEMAS, Catalogue
from tidemill.flow.schema.jobs import JOB_META_COLUMN_ID, decode_job
from tidemill.model.ddl import ActionType
from tidemill.model.ts import Ts
from tidemill.tidb.documents import Job, exchange_args, parse_database, parse_table, rename_args
from tidemill.tidb.meta import JOB_TABLE_ID, MetaSnapshot, read_snapshot, table_key

_CREATING = frozenset({ActionType.CREATE_TABLE, ActionType.CREATE_TABLES, ActionType.CREATE_VIEW})


@dataclass(frozen=True, slots=True)
class PastRead:
    """A key to be read at a ts below the snapshot's."""

    ts: Ts
    key: bytes


@dataclass(frozen=True, slots=True)
class Start:
    catalogue: Catalogue
    jobs: tuple[Job, ...]  # those running
    job_meta_column_id: int
    base_ts: Ts


def past_reads(pairs: Iterable[tuple[bytes, bytes]] | MetaSnapshot) -> tuple[PastRead, ...]:
    """What to read besides a snapshot because jobs are running in it; mostly nothing."""
    snapshot = pairs if isinstance(pairs, MetaSnapshot) else read_snapshot(pairs)
    jobs = _running_jobs(snapshot, _job_meta_column_id(snapshot))
    reads = (PastRead(job.real_start_ts, table_key(*ids)) for job in jobs for ids in _tables_of(job))
    return tuple(dict.fromkeys(reads))


def load_start(
    snapshot: MetaSnapshot,
    past: Mapping[PastRead, bytes | None],
    base_ts: Ts,
    versions: Mapping[int, Ts],
) -> Start:
    """``snapshot`` is used up."""
    column_id = _job_meta_column_id(snapshot)
    databases = {i: parse_database(raw, i) for i, raw in snapshot.databases.items()}
    system_ids = {i for i, d in databases.items() if d.name.lower() in SYSTEM_SCHEMAS}
    jobs = tuple(j for j in _running_jobs(snapshot, column_id) if j.schema_id not in system_ids)

    documents = {table_id: (schema_id, raw) for (schema_id, table_id), raw in snapshot.tables.items()}
    snapshot.tables.clear()  # each document goes when it is read: of many tables they are most of the memory
    for job in jobs:
        for schema_id, table_id in _tables_of(job):
            read = PastRead(job.real_start_ts, table_key(schema_id, table_id))
            before = past.get(read)
            if before is not None:
                documents[table_id] = schema_id, before
            elif read in past or job.type in _CREATING:
                documents.pop(table_id, None)  # it is only coming into being

    catalogue = Catalogue(system_ids=system_ids)
    catalogue.databases = {i: d for i, d in databases.items() if i not in system_ids}
    for table_id in list(documents):
        schema_id, raw = documents.pop(table_id)
        database = catalogue.databases.get(schema_id)
        if database is not None:
            version_ts = versions.get(table_id, base_ts)
            catalogue.tables[table_id] = parse_table(raw, schema_id, database.name, version_ts, table_id)
    return Start(catalogue, jobs, column_id, base_ts)


def _running_jobs(snapshot: MetaSnapshot, column_id: int) -> list[Job]:
    jobs = (decode_job(key, value, column_id) for key, value in snapshot.job_rows)
    return [job for job in jobs if job.is_running]


def _tables_of(job: Job) -> list[tuple[int, int]]:
    """(schema id, table id) under which the tables of a job were found before it began."""
    if job.type in (ActionType.RENAME_TABLE, ActionType.RENAME_TABLES):
        places: dict[int, int] = {}
        for pair in rename_args(job):
            places.setdefault(pair.table_id, pair.old_schema_id)
        return [(schema_id, table_id) for table_id, schema_id in places.items()]
    if job.type == ActionType.EXCHANGE_PARTITION:
        _, schema_id, table_id, _, _ = exchange_args(job)
        return [(job.schema_id, job.table_id), (schema_id, table_id)]
    return [(job.schema_id, job.table_id)] if job.table_id else []


def _job_meta_column_id(snapshot: MetaSnapshot) -> int:
    """Where the job table keeps its documents, by the column's name."""
    for (_, table_id), raw in snapshot.tables.items():
        if table_id == JOB_TABLE_ID:
            try:
                columns = orjson.loads(raw)["cols"]
                return next(int(c["id"]) for c in columns if c["name"]["L"] == "job_meta")
            except (ValueError, KeyError, TypeError, StopIteration) as error:
                raise SchemaError(
                    "the upstream's mysql.tidb_ddl_job has no readable column job_meta, where DDL jobs are kept. "
                    "The upstream is of a version that this one does not know."
                ) from error
    return JOB_META_COLUMN_ID
