"""What a finished DDL job does: to the catalogue of tables, and to the downstream.

    JobRow (done) + Catalogue ──► Effect: databases and tables put or dropped, events in order

Pure decisions. Names come from the catalogue by id, since a job may carry them in lower case or,
where tables swap names, carry only the last of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemill.errors import SchemaError
from tidemill.flow.schema.jobs import JobRow
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb import statements
from tidemill.tidb.create_table import create_table_sql, create_view_sql
from tidemill.tidb.documents import (
    Database,
    Document,
    Job,
    Rename,
    exchange_args,
    parse_table,
    recovered_tables,
    rename_args,
    replaced_view_id,
    truncate_partition_args,
)
from tidemill.tidb.lexer import qualified, quoted

SYSTEM_SCHEMAS = frozenset(
    {
        "mysql",
        "sys",
        "information_schema",
        "performance_schema",
        "metrics_schema",
        "inspection_schema",
        "dm_heartbeat",
        "tidb_cdc",
        "lightning_task_info",
        "workload_schema",
    }
)

# The kinds that go downstream. Foreign keys do not, as in TiCDC 9.0.0-beta.1, whose answers are recorded
# in our test data; later versions of it send them.
REPLICATED = frozenset(
    {
        ActionType.CREATE_SCHEMA,
        ActionType.DROP_SCHEMA,
        ActionType.MODIFY_SCHEMA_CHARSET,
        ActionType.CREATE_TABLE,
        ActionType.CREATE_TABLES,
        ActionType.DROP_TABLE,
        ActionType.TRUNCATE_TABLE,
        ActionType.RENAME_TABLE,
        ActionType.RENAME_TABLES,
        ActionType.RECOVER_TABLE,
        ActionType.RECOVER_SCHEMA,
        ActionType.CREATE_VIEW,
        ActionType.DROP_VIEW,
        ActionType.ADD_COLUMN,
        ActionType.DROP_COLUMN,
        ActionType.ADD_COLUMNS,
        ActionType.DROP_COLUMNS,
        ActionType.MODIFY_COLUMN,
        ActionType.SET_DEFAULT_VALUE,
        ActionType.ADD_INDEX,
        ActionType.DROP_INDEX,
        ActionType.RENAME_INDEX,
        ActionType.ALTER_INDEX_VISIBILITY,
        ActionType.ADD_PRIMARY_KEY,
        ActionType.DROP_PRIMARY_KEY,
        ActionType.REBASE_AUTO_ID,
        ActionType.MODIFY_TABLE_COMMENT,
        ActionType.MODIFY_TABLE_CHARSET,
        ActionType.ADD_TABLE_PARTITION,
        ActionType.DROP_TABLE_PARTITION,
        ActionType.TRUNCATE_TABLE_PARTITION,
        ActionType.EXCHANGE_PARTITION,
        ActionType.REORGANIZE_PARTITION,
        ActionType.ALTER_TABLE_PARTITIONING,
        ActionType.REMOVE_PARTITIONING,
        ActionType.MULTI_SCHEMA_CHANGE,
        ActionType.ALTER_TTL,
        ActionType.REMOVE_TTL,
    }
)


_MISSED = (
    "A job before it was missed: start the changefeed again from its checkpoint. If it is a new one, its start-ts lies "
    "before the history that the upstream has: choose a later one."
)
_DROPS = frozenset({ActionType.DROP_TABLE, ActionType.DROP_VIEW, ActionType.DROP_SEQUENCE})

# Reads the documents of all tables of a database as of a ts: for a job that brings one back and does not list them.
Recovered = Callable[[int, Ts], Sequence[Document]]


@dataclass(slots=True)
class Catalogue:
    """The newest databases and tables, without those of system schemas."""

    databases: dict[int, Database] = field(default_factory=dict)
    tables: dict[int, TableInfo] = field(default_factory=dict)  # by logical table id
    system_ids: set[int] = field(default_factory=set)  # of system schemas
    dropped: dict[int, tuple[TableInfo, ...]] = field(default_factory=dict)  # what databases held that are gone, by id
    recovered: Recovered | None = None

    def database(self, schema_id: int, job: Job) -> Database:
        found = self.databases.get(schema_id)
        if found is None:
            raise SchemaError(f"{job} belongs to database {schema_id}, which is not known. {_MISSED}")
        return found

    def table(self, table_id: int, job: Job) -> TableInfo:
        found = self.tables.get(table_id)
        if found is None:
            raise SchemaError(f"{job} changes table {table_id}, which is not known. {_MISSED}")
        return found


@dataclass(frozen=True, slots=True)
class Effect:
    events: tuple[DdlEvent, ...] = ()
    put: tuple[TableInfo, ...] = ()
    drop: tuple[int, ...] = ()  # logical table ids; a table put under the same id stays
    put_database: Database | None = None
    drop_database: int | None = None


def effect_of(row: JobRow, catalogue: Catalogue) -> Effect | None:
    """What a job in state done does; None where it changes nothing that a changefeed sees."""
    job = row.job
    if job.schema_version == 0 or job.schema_id in catalogue.system_ids:
        return None  # a no-op such as ADD COLUMN IF NOT EXISTS, or the upstream's own housekeeping
    if job.database is not None and job.database.name.lower() in SYSTEM_SCHEMAS:
        catalogue.system_ids.add(job.database.id)
        return None
    match job.type:
        case ActionType.CREATE_SCHEMA | ActionType.MODIFY_SCHEMA_CHARSET:
            return _put_database(row)
        case ActionType.RECOVER_SCHEMA:
            return _recover_database(row, catalogue)
        case ActionType.DROP_SCHEMA:
            return _drop_database(row, catalogue)
        case ActionType.CREATE_TABLE | ActionType.RECOVER_TABLE | ActionType.CREATE_SEQUENCE:
            return _create(row, catalogue)
        case ActionType.CREATE_TABLES:
            return _create_many(row, catalogue)
        case ActionType.CREATE_VIEW:
            effect = _create(row, catalogue)
            return effect and replace(effect, drop=tuple(filter(None, (replaced_view_id(job),))))
        case ActionType.DROP_TABLE | ActionType.DROP_VIEW | ActionType.DROP_SEQUENCE:
            return _drop(row, catalogue)
        case ActionType.RENAME_TABLE | ActionType.RENAME_TABLES:
            return _rename(row, catalogue)
        case ActionType.EXCHANGE_PARTITION:
            return _exchange(row, catalogue)
        case ActionType.TRUNCATE_TABLE_PARTITION:
            return _truncate_partition(row, catalogue)
        case ActionType.FLASHBACK_CLUSTER:
            raise SchemaError(
                f"{job} turned the whole cluster back in time, which no change stream reports. "
                "Create the changefeed anew with a start-ts after the flashback, from a fresh copy."
            )
    return _alter(row, catalogue) if job.table is not None else None


def _put_database(row: JobRow) -> Effect:
    database = _database_of(row.job)
    return Effect(_events(row, _Shape(database.name)), put_database=database)


def _recover_database(row: JobRow, catalogue: Catalogue) -> Effect:
    """As if the database was made, and each of its tables brought back: no downstream has a word for the whole."""
    database = _database_of(row.job)
    documents: Sequence[Document] | None = recovered_tables(row.job)
    if documents is None and catalogue.recovered is not None:  # it is for who recovers to look them up
        documents = catalogue.recovered(database.id, row.commit_ts)
    if documents is None:
        if database.id not in catalogue.dropped:
            raise SchemaError(
                f"{row.job} brought back database {database.name!r}, which was dropped before this changefeed started, "
                "so its tables are not known. Create the changefeed anew from a fresh copy, or leave the database out "
                "in filter.rules."
            )
        known = catalogue.dropped[database.id]
        tables = tuple(replace(table, schema=database.name, version_ts=row.commit_ts) for table in known)
        creations = [""] * len(tables)
    else:
        tables = tuple(parse_table(d, database.id, database.name, row.commit_ts) for d in documents)
        creations = ["" if _has_no_rows(document) else create_table_sql(document) for document in documents]
    query = f"CREATE DATABASE {quoted(database.name)}"
    if database.charset and database.collate:
        query += f" CHARACTER SET {database.charset} COLLATE {database.collate}"
    shapes = [_Shape(database.name, query=query, type=ActionType.CREATE_SCHEMA)]
    for table, creation in zip(tables, creations, strict=True):
        if table.is_view or table.is_sequence:
            continue
        back = f"RECOVER TABLE {qualified(table.schema, table.name)}"
        shapes.append(
            _Shape(database.name, table, query=creation or back, type=ActionType.RECOVER_TABLE, creation=creation)
        )
    for table, document in zip(tables, documents or (), strict=False):
        if table.is_view:
            query = create_view_sql(document, database.name)
            shapes.append(_Shape(database.name, table, query=query, type=ActionType.CREATE_VIEW, creation=query))
    return Effect(_events(row, *shapes), put=tables, put_database=database)


def _has_no_rows(document: Document) -> bool:
    return document.get("view") is not None or document.get("sequence") is not None


def _drop_database(row: JobRow, catalogue: Catalogue) -> Effect:
    schema_id = row.job.schema_id
    database = catalogue.database(schema_id, row.job)
    tables = tuple(t.id for t in catalogue.tables.values() if t.schema_id == schema_id)
    return Effect(_events(row, _Shape(database.name)), drop=tables, drop_database=schema_id)


def _create(row: JobRow, catalogue: Catalogue) -> Effect | None:
    table = _table_after(row, catalogue, row.job.schema_id)
    if table.id in catalogue.tables:
        return None
    # What LIKE meant was settled when the statement came; the other table may be another by now, or not be replicated.
    is_like = row.job.type == ActionType.CREATE_TABLE and statements.is_create_like(row.job.query)
    return Effect(_events(row, _Shape(table.schema, table, is_like=is_like)), put=(table,))


def _create_many(row: JobRow, catalogue: Catalogue) -> Effect | None:
    job = row.job
    database = catalogue.database(job.schema_id, job)
    texts = statements.merged_statements(job.query)
    if len(texts) != len(job.tables):
        # Not the form in which TiDB merges statements. The whole text creates each of them too.
        texts = [job.query] * len(job.tables)
    shapes, tables = [], []
    for document, statement in zip(job.tables, texts, strict=True):
        table = parse_table(document, database.id, database.name, row.commit_ts)
        if table.id not in catalogue.tables:
            tables.append(table)
            shapes.append(_Shape(table.schema, table, query=statement, type=ActionType.CREATE_TABLE))
    return Effect(_events(row, *shapes), put=tuple(tables)) if tables else None


def _drop(row: JobRow, catalogue: Catalogue) -> Effect:
    table = catalogue.table(row.job.table_id, row.job)
    kind = "VIEW" if table.is_view else "TABLE"
    query = f"DROP {kind} {qualified(table.schema, table.name)}"
    return Effect(_events(row, _Shape(table.schema, table, pre=table, query=query)), drop=(table.id,))


def _rename(row: JobRow, catalogue: Catalogue) -> Effect:
    """Step through the pairs: a table may pass through several names within one statement."""
    job = row.job
    documents: dict[int, Document] = {int(d["id"]): d for d in job.tables or (job.table or {},) if d}
    now: dict[int, TableInfo] = {}
    shapes: list[_Shape] = []
    for at, pair in enumerate(rename_args(job)):
        before = now.get(pair.table_id) or catalogue.table(pair.table_id, job)
        if pair.table_id not in now:
            before = _name_before(before, pair, at, job)
        database = catalogue.database(pair.new_schema_id, job)
        document = documents.get(pair.table_id)
        after = parse_table(document, database.id, database.name, row.commit_ts) if document else before
        after = replace(
            after, schema_id=database.id, schema=database.name, name=pair.new_name, version_ts=row.commit_ts
        )
        now[pair.table_id] = after
        query = None
        if job.type == ActionType.RENAME_TABLES:
            old, new = qualified(before.schema, before.name), qualified(after.schema, after.name)
            query = f"RENAME TABLE {old} TO {new}"
        shapes.append(_Shape(after.schema, after, pre=before, query=query, type=ActionType.RENAME_TABLE))
    return Effect(_events(row, *shapes), put=tuple(now.values()))


def _name_before(table: TableInfo, pair: Rename, at: int, job: Job) -> TableInfo:
    """The name before a rename. Metadata show the new one a step before the job is done, so a snapshot
    taken in between gives that; the job then still tells the old one, if only in lower case."""
    if (table.schema_id, table.name) != (pair.new_schema_id, pair.new_name) or len(job.involved) <= 2 * at:
        return table
    schema, name = job.involved[2 * at]
    return replace(table, schema=schema, name=name, schema_id=pair.old_schema_id)


def _exchange(row: JobRow, catalogue: Catalogue) -> Effect:
    """A table partition and a plain table swap their rows, that is, their physical ids."""
    job = row.job
    plain = catalogue.table(job.table_id, job)
    partition_id, _, table_id, partition_name, validates = exchange_args(job)
    before = catalogue.table(table_id, job)
    after = _parse(job, job.table, before.schema_id, before.schema, row.commit_ts)
    gone = {p.id for p in before.partitions} - {p.id for p in after.partitions}
    if gone not in ({partition_id}, set()):
        raise SchemaError(
            f"{job} exchanges table partition {partition_id} of table {table_id}, but {sorted(gone)} left it. {_MISSED}"
        )
    swapped = replace(plain, id=partition_id, version_ts=row.commit_ts)
    name = next((p.name for p in before.partitions if p.id == partition_id), partition_name)
    query = (
        f"ALTER TABLE {qualified(after.schema, after.name)} EXCHANGE PARTITION {quoted(name)} "
        f"WITH TABLE {qualified(plain.schema, plain.name)}" + ("" if validates else " WITHOUT VALIDATION")
    )
    events = _events(row, _Shape(after.schema, after, pre=plain, query=query, partition_id=partition_id))
    return Effect(events, put=(after, swapped), drop=(plain.id,))


def _truncate_partition(row: JobRow, catalogue: Catalogue) -> Effect:
    """TiDB looks up the partitions' ids before the job waits for its turn. Those that a job before it has given new
    ones, as COALESCE PARTITION does, are not truncated after all, and must not be downstream."""
    job = row.job
    before = catalogue.table(job.table_id, job)
    after = _table_after(row, catalogue, before.schema_id)
    left = {p.id for p in after.partitions}
    emptied = [p.name for p in before.partitions if p.id not in left]
    if not emptied:
        return Effect(put=(after,))
    query = None
    if len(emptied) < len(truncate_partition_args(job)[0]):
        names = ", ".join(map(quoted, emptied))
        query = f"ALTER TABLE {qualified(after.schema, after.name)} TRUNCATE PARTITION {names}"
    return Effect(_events(row, _Shape(after.schema, after, pre=before, query=query)), put=(after,))


def _alter(row: JobRow, catalogue: Catalogue) -> Effect | None:
    """All DDLs that leave one table in a new form, perhaps under a new id."""
    job = row.job
    if job.type not in REPLICATED and job.table_id not in catalogue.tables:
        return None
    before = catalogue.table(job.table_id, job)
    after = _table_after(row, catalogue, before.schema_id)
    if job.type not in REPLICATED and replace(after, version_ts=before.version_ts) == before:
        return None
    drop = (before.id,) if after.id != before.id else ()
    return Effect(_events(row, _Shape(after.schema, after, pre=before)), put=(after,), drop=drop)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What distinguishes one event of a job from the others."""

    schema: str
    table: TableInfo | None = None
    pre: TableInfo | None = None
    query: str | None = None  # None: as typed
    type: int | None = None  # None: the job's
    creation: str = ""
    is_like: bool = False
    partition_id: int = 0


def _creation(job: Job, table: TableInfo | None) -> str:
    """What would make the table in its form after the job; empty where it has none, or the job does not tell."""
    if table is None or table.is_sequence or job.type in _DROPS:
        return ""
    documents = [d for d in (job.table, *job.tables) if isinstance(d, Mapping) and d.get("id") == table.id]
    if table.is_view:
        is_told = documents and "view_select" in documents[-1]["view"]
        return create_view_sql(documents[-1], table.schema) if is_told else ""
    return create_table_sql(documents[-1]) if documents and "charset" in documents[-1] else ""


def _events(row: JobRow, *shapes: _Shape) -> tuple[DdlEvent, ...]:
    job = row.job
    if job.type not in REPLICATED:
        return ()
    return tuple(
        DdlEvent(
            finished_ts=row.commit_ts,
            start_ts=row.start_ts,
            seq=seq,
            type=job.type if shape.type is None else shape.type,
            job_type=job.type,
            query=job.query if shape.query is None else shape.query,
            schema=shape.schema,
            table=shape.table.name if shape.table else "",
            table_info=shape.table,
            pre_schema=shape.pre.schema if shape.pre else "",
            pre_table=shape.pre.name if shape.pre else "",
            pre_table_info=shape.pre,
            creation=shape.creation or _creation(job, shape.table),
            is_like=shape.is_like,
            partition_id=shape.partition_id,
            sql_modes=job.sql_modes,
            time_zone=job.time_zone,
        )
        for seq, shape in enumerate(shapes)
    )


def _database_of(job: Job) -> Database:
    if job.database is None:
        raise SchemaError(f"{job} is done but carries no database. The upstream's job table is damaged.")
    return job.database


def _table_after(row: JobRow, catalogue: Catalogue, schema_id: int) -> TableInfo:
    database = catalogue.database(schema_id, row.job)
    return _parse(row.job, row.job.table, database.id, database.name, row.commit_ts)


def _parse(job: Job, document: Document | None, schema_id: int, schema: str, version_ts: Ts) -> TableInfo:
    if not isinstance(document, Mapping):
        raise SchemaError(f"{job} is done but carries no table. The upstream's job table is damaged.")
    return parse_table(document, schema_id, schema, version_ts, job.table_id)
