"""What a DDL statement asks for, checked against the schema: the jobs to queue, or why it is refused.

    statement, catalog ──► Plan(jobs, notes, error)

What is checked here is checked again, where it matters, by the steps: the schema may change in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tidebox.sql.catalog import Catalog, CatalogTable
from tidebox.sql.ddl.clauses import Clause, clauses_of
from tidebox.sql.ddl.columns import ci
from tidebox.sql.ddl.defaults import Settings
from tidebox.sql.ddl.jobs import Document, new_job, new_sub_job
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_database, build_like, build_table
from tidebox.sql.parse.statements import (
    AlterDatabase,
    AlterTable,
    CreateDatabase,
    CreateTable,
    CreateTableLike,
    Ddl,
    DropDatabase,
    DropTable,
    RenameTables,
    RenameTo,
    TableName,
    TruncateTable,
)
from tidebox.sql.types import Charset, resolve_charset
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.ddl import ActionType
from tidemill.tidb.documents import SchemaState

_ALL_TABLES = "*"
_SYSTEM = frozenset({"mysql", "sys", "information_schema", "performance_schema", "metrics_schema"})


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to queue. ``ids``: how many new ids it takes beside its own, and ``assign`` puts them in."""

    job: Document
    ids: int = 0
    assign: Callable[[Document, list[int]], None] | None = None
    schema_ids: tuple[int, ...] = ()
    table_ids: tuple[int, ...] = ()
    is_reorg: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """``notes`` are warnings; ``error``, if any, ends the statement after its jobs are done."""

    jobs: tuple[PlannedJob, ...] = ()
    notes: tuple[SqlError, ...] = ()
    error: SqlError | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """Of the session that asks."""

    schema: str | None  # its database
    query: str
    now: datetime
    settings: Settings = field(default_factory=Settings)


def plan(statement: Ddl, catalog: Catalog, asking: Asking) -> Plan:
    match statement:
        case CreateDatabase():
            return _create_database(statement, catalog, asking)
        case AlterDatabase():
            return _alter_database(statement, catalog, asking)
        case DropDatabase():
            return _drop_database(statement, catalog, asking)
        case CreateTable():
            return _create_table(statement, catalog, asking)
        case CreateTableLike():
            return _create_like(statement, catalog, asking)
        case DropTable():
            return _drop_tables(statement, catalog, asking)
        case TruncateTable():
            return _truncate(statement, catalog, asking)
        case RenameTables():
            return _rename(statement.pairs, catalog, asking)
        case AlterTable():
            return _alter(statement, catalog, asking)


# Databases


def _create_database(statement: CreateDatabase, catalog: Catalog, asking: Asking) -> Plan:
    name = statement.name
    if not name or name.endswith(" "):
        raise sql_error(Errno.WRONG_DB_NAME, name)
    if name.lower() in catalog.databases:
        error = sql_error(Errno.DB_CREATE_EXISTS, name)
        return _noted_or_raised(error, is_note=statement.if_not_exists)
    charset = resolve_charset(statement.charset, statement.collate, DEFAULT_CHARSET)
    job = new_job(
        ActionType.CREATE_SCHEMA,
        schema_id=0,
        schema_name=name,
        args={"db_info": build_database(0, name, charset)},
        query=asking.query,
        involving=[(name, _ALL_TABLES)],
    )

    def assign(job: Document, ids: list[int]) -> None:
        job["schema_id"] = job["raw_args"]["db_info"]["id"] = ids[0]

    return Plan((PlannedJob(job, 1, assign),))


def _alter_database(statement: AlterDatabase, catalog: Catalog, asking: Asking) -> Plan:
    name = statement.name or asking.schema
    if name is None:
        raise sql_error(Errno.NO_DB_ERROR)
    database = catalog.database(name)
    charset = resolve_charset(statement.charset, statement.collate, DEFAULT_CHARSET)
    job = new_job(
        ActionType.MODIFY_SCHEMA_CHARSET,
        schema_id=database.id,
        schema_name=database.name,
        args={"to_charset": charset.name, "to_collate": charset.collate},
        query=asking.query,
        involving=[(database.name, _ALL_TABLES)],
    )
    return Plan((PlannedJob(job, schema_ids=(database.id,)),))


def _drop_database(statement: DropDatabase, catalog: Catalog, asking: Asking) -> Plan:
    if not catalog.has_database(statement.name):
        if statement.if_exists:
            return Plan()
        raise sql_error(Errno.DB_DROP_EXISTS, statement.name)
    if statement.name.lower() in _SYSTEM:
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"drop of the system database '{statement.name}'")
    database = catalog.database(statement.name)
    job = new_job(
        ActionType.DROP_SCHEMA,
        schema_id=database.id,
        schema_name=database.name,
        args={"fk_check": True},
        query=asking.query,
        schema_state=SchemaState.PUBLIC,
        involving=[(database.name, _ALL_TABLES)],
    )
    return Plan((PlannedJob(job, schema_ids=(database.id,)),))


# Tables


def _create_table(statement: CreateTable, catalog: Catalog, asking: Asking) -> Plan:
    schema = _schema_of(statement.table, asking)
    database = catalog.database(schema)
    if catalog.find(schema, statement.table.name) is not None:
        return _table_exists(schema, statement.table.name, is_note=statement.if_not_exists)
    charset = Charset(database.document["charset"], database.document["collate"])
    table = build_table(statement, charset, asking.settings)
    return _creation(database.id, database.name, table, asking)


def _create_like(statement: CreateTableLike, catalog: Catalog, asking: Asking) -> Plan:
    schema = _schema_of(statement.table, asking)
    source = _table_of(statement.source, catalog, asking)
    database = catalog.database(schema)
    if catalog.find(schema, statement.table.name) is not None:
        return _table_exists(schema, statement.table.name, is_note=statement.if_not_exists)
    _refuse_partitions(source)
    return _creation(database.id, database.name, build_like(source.document, statement.table.name), asking)


def _creation(schema_id: int, schema: str, table: Document, asking: Asking) -> Plan:
    table["state"] = int(SchemaState.NONE)
    job = new_job(
        ActionType.CREATE_TABLE,
        schema_id=schema_id,
        schema_name=schema,
        table_name=table["name"]["O"],
        args={"table_info": table, "fk_check": True},
        query=asking.query,
    )

    def assign(job: Document, ids: list[int]) -> None:
        job["table_id"] = job["raw_args"]["table_info"]["id"] = ids[0]

    return Plan((PlannedJob(job, 1, assign, schema_ids=(schema_id,)),))


def _table_exists(schema: str, name: str, *, is_note: bool) -> Plan:
    return _noted_or_raised(sql_error(Errno.TABLE_EXISTS_ERROR, f"{schema}.{name}"), is_note=is_note)


def _drop_tables(statement: DropTable, catalog: Catalog, asking: Asking) -> Plan:
    """Those that are there are dropped, one job each, before those that are not end the statement."""
    named = [(_schema_of(name, asking), name.name) for name in statement.tables]
    if len({(s.lower(), n.lower()) for s, n in named}) < len(named):
        raise sql_error(Errno.NONUNIQ_TABLE, named[-1][1])
    jobs: list[PlannedJob] = []
    missing: list[str] = []
    identifiers = [{"Schema": ci(s), "Name": ci(n)} for s, n in named]
    for schema, name in named:
        table = catalog.find(schema, name)
        if table is None:
            missing.append(f"{schema}.{name}")
            continue
        _refuse_system(schema)
        args = {"identifiers": identifiers, "fk_check": True}
        jobs.append(_planned(table, ActionType.DROP_TABLE, args, asking, SchemaState.PUBLIC))
    if not missing:
        return Plan(tuple(jobs))
    error = sql_error(Errno.BAD_TABLE_ERROR, ",".join(missing))
    if statement.if_exists:
        notes = tuple(sql_error(Errno.BAD_TABLE_ERROR, name) for name in missing)
        return Plan(tuple(jobs), notes)
    return Plan(tuple(jobs), error=error)


def _truncate(statement: TruncateTable, catalog: Catalog, asking: Asking) -> Plan:
    table = _table_of(statement.table, catalog, asking)
    _refuse_partitions(table)
    _refuse_system(table.schema)

    def assign(job: Document, ids: list[int]) -> None:
        job["raw_args"]["new_table_id"] = ids[0]

    planned = _planned(table, ActionType.TRUNCATE_TABLE, {"fk_check": True, "new_table_id": 0}, asking)
    return Plan((replace(planned, ids=1, assign=assign),))


# Renames


def _rename(pairs: tuple[tuple[TableName, TableName], ...], catalog: Catalog, asking: Asking) -> Plan:
    moves = _moves(pairs, catalog, asking)
    return Plan((_renaming(moves, asking) if len(moves) > 1 else _renaming_one(moves[0], asking),))


@dataclass(frozen=True, slots=True)
class _Move:
    table: CatalogTable
    old_schema: tuple[int, str]
    old_name: str
    new_schema: tuple[int, str]
    new_name: str


def _moves(pairs: tuple[tuple[TableName, TableName], ...], catalog: Catalog, asking: Asking) -> list[_Move]:
    """Each pair sees what those before it did: names may go round."""
    present: dict[tuple[str, str], CatalogTable | None] = {}

    def find(schema: str, name: str) -> CatalogTable | None:
        key = schema.lower(), name.lower()
        return present[key] if key in present else catalog.find(schema, name)

    moves: list[_Move] = []
    for old, new in pairs:
        old_schema, new_schema = _schema_of(old, asking), _schema_of(new, asking)
        _refuse_system(old_schema)
        table = find(old_schema, old.name)
        if table is None:
            raise sql_error(Errno.NO_SUCH_TABLE, old_schema, old.name)
        if not catalog.has_database(new_schema):
            message = f"./{old_schema}/{old.name}", f"./{new_schema}/{new.name}"
            raise sql_error(Errno.WRONG_NAME_FOR_RENAME, *message, 168, f"Database `{new_schema}` doesn't exist")
        if find(new_schema, new.name) is not None:
            raise sql_error(Errno.TABLE_EXISTS_ERROR, f"{new_schema}.{new.name}")
        before, after = catalog.database(old_schema), catalog.database(new_schema)
        moves.append(_Move(table, (before.id, before.name), old.name, (after.id, after.name), new.name))
        present[old_schema.lower(), old.name.lower()] = None
        present[new_schema.lower(), new.name.lower()] = table
    return moves


def _involved(moves: list[_Move]) -> list[tuple[str, str]]:
    return [pair for m in moves for pair in ((m.old_schema[1], m.old_name), (m.new_schema[1], m.new_name))]


def _renaming_one(move: _Move, asking: Asking) -> PlannedJob:
    job = new_job(
        ActionType.RENAME_TABLE,
        schema_id=move.new_schema[0],
        schema_name=move.new_schema[1],
        table_id=move.table.id,
        table_name=move.old_name,
        args={
            "old_schema_id": move.old_schema[0],
            "old_schema_name": ci(move.old_schema[1]),
            "new_table_name": ci(move.new_name),
            "old_table_name": ci(""),
        },
        query=asking.query,
        involving=_involved([move]),
    )
    schemas = move.old_schema[0], move.new_schema[0]
    return PlannedJob(job, schema_ids=schemas, table_ids=(move.table.id,))


def _renaming(moves: list[_Move], asking: Asking) -> PlannedJob:
    infos = [
        {
            "old_schema_id": m.old_schema[0],
            "old_schema_name": ci(m.old_schema[1]),
            "new_table_name": ci(m.new_name),
            "old_table_name": ci(m.old_name),
            "new_schema_id": m.new_schema[0],
            "table_id": m.table.id,
        }
        for m in moves
    ]
    job = new_job(
        ActionType.RENAME_TABLES,
        schema_id=moves[0].old_schema[0],
        schema_name=moves[0].old_schema[1],
        table_id=moves[0].table.id,
        args={"rename_table_infos": infos},
        query=asking.query,
        involving=_involved(moves),
    )
    schemas = tuple(i for m in moves for i in (m.old_schema[0], m.new_schema[0]))
    return PlannedJob(job, schema_ids=schemas, table_ids=tuple(m.table.id for m in moves))


# ALTER TABLE


def _alter(statement: AlterTable, catalog: Catalog, asking: Asking) -> Plan:
    table = _table_of(statement.table, catalog, asking)
    _refuse_system(table.schema)
    renames = [s for s in statement.specs if isinstance(s, RenameTo)]
    if renames and len(statement.specs) > 1:
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, "multi schema change for rename table")
    if renames:
        return _rename(((statement.table, renames[0].table),), catalog, asking)
    _refuse_partitions(table)
    found, notes = clauses_of(statement.specs, table, asking.settings, asking.now)
    if not found:
        return Plan(notes=notes)
    if len(found) == 1:
        clause = found[0]
        planned = _planned(table, clause.kind, clause.args, asking, clause.schema_state)
        return Plan((replace(planned, is_reorg=clause.is_reorg),), notes)
    return Plan((_several(table, found, asking),), notes)


def _several(table: CatalogTable, clauses: list[Clause], asking: Asking) -> PlannedJob:
    job = new_job(
        ActionType.MULTI_SCHEMA_CHANGE,
        schema_id=table.schema_id,
        schema_name=table.schema,
        table_id=table.id,
        table_name=table.name,
        args=None,
        query=asking.query,
        sub_jobs=[new_sub_job(c.kind, c.args, c.schema_state) for c in clauses],
    )
    is_reorg = any(c.is_reorg for c in clauses)
    return PlannedJob(job, schema_ids=(table.schema_id,), table_ids=(table.id,), is_reorg=is_reorg)


# Shared


def _planned(
    table: CatalogTable,
    kind: ActionType,
    args: dict[str, Any],
    asking: Asking,
    schema_state: SchemaState = SchemaState.NONE,
) -> PlannedJob:
    job = new_job(
        kind,
        schema_id=table.schema_id,
        schema_name=table.schema,
        table_id=table.id,
        table_name=table.name,
        args=args,
        query=asking.query,
        schema_state=schema_state,
    )
    return PlannedJob(job, schema_ids=(table.schema_id,), table_ids=(table.id,))


def _schema_of(name: TableName, asking: Asking) -> str:
    schema = name.schema or asking.schema
    if schema is None:
        raise sql_error(Errno.NO_DB_ERROR)
    return schema


def _table_of(name: TableName, catalog: Catalog, asking: Asking) -> CatalogTable:
    table = catalog.table(_schema_of(name, asking), name.name)
    if table.info.is_view or table.info.is_sequence:
        raise sql_error(Errno.WRONG_OBJECT, table.schema, table.name, "BASE TABLE")
    return table


def _refuse_partitions(table: CatalogTable) -> None:
    """Of a loaded history: they are read, but not changed."""
    if table.info.is_partitioned:
        raise sql_error(Errno.NOT_SUPPORTED_YET, "DDL on a partitioned table")


def _refuse_system(schema: str) -> None:
    if schema.lower() in _SYSTEM:
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"DDL on tables of the system database '{schema}'")


def _noted_or_raised(error: SqlError, *, is_note: bool) -> Plan:
    if not is_note:
        raise error
    return Plan(notes=(error,))
