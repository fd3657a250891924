"""The statements of one connection: transactions, variables, and who runs what.

    wire ── text, parameters ──► SqlSession ──► syntax ──► dml, query, show
                                           └──► Node.execute_ddl

A statement alone is its own transaction and is run again when others were quicker; between BEGIN and
COMMIT it is the client's to try again.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidebox.sql import show
from tidebox.sql.catalog import Catalog, CatalogTable
from tidebox.sql.check import check_table
from tidebox.sql.codec.datum import Time
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.compiler import Compiler, like_pattern, literal_type
from tidebox.sql.compute.kinds import Kind, Settings, Type
from tidebox.sql.compute.operators import truth_of
from tidebox.sql.compute.scope import Context, Scope, ScopeColumn
from tidebox.sql.dml import Changer, delete, insert, update
from tidebox.sql.node import DdlRequest, Node
from tidebox.sql.query import Listed, Plan, Planner, Stored, result_rows, wire_column
from tidebox.sql.syntax.statements import Parsed, parse
from tidebox.sql.syntax.tree import (
    AdminCheck,
    Begin,
    Deallocate,
    Default,
    Delete,
    Do,
    End,
    Ending,
    Execute,
    Expression,
    Insert,
    Kill,
    Locking,
    Nothing,
    Prepare,
    Query,
    Savepoint,
    Select,
    Set,
    SetNames,
    Show,
    Statement,
    TableName,
    TableSource,
    Union,
    Update,
    Use,
    With,
)
from tidebox.sql.tables import TableAccess, TableUse, access_to
from tidebox.sql.transaction import Transaction
from tidebox.sql.variables import VERSION, SessionVariables
from tidebox.sql.wire.columns import Column, column_of
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.session import Affected, Client, Prepared, Result, Rows, Status
from tidemill.errors import TidemillError
from tidemill.model.ts import compose

_DDL_WORDS: Final = frozenset({"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME"})
_RETRIED: Final = frozenset({int(Errno.WRITE_CONFLICT), int(Errno.TXN_RETRYABLE), int(Errno.INFO_SCHEMA_CHANGED)})
_R = TypeVar("_R")


@dataclass
class _Open:
    """A transaction that the client has begun, and the schema it runs with."""

    transaction: Transaction
    catalog: Catalog
    table_ids: set[int]
    marks: dict[str, int]
    is_read_only: bool = False


class SqlSession:
    """A ``wire.Session`` on a node."""

    def __init__(self, node: Node, kill: Callable[[int, bool], None] | None = None) -> None:
        self._node = node
        self._cluster = node.cluster
        self._kill = kill
        self._client = Client(0, "root", 45)
        self._variables = SessionVariables(node.shared)
        self._database = ""
        self._open: _Open | None = None
        self._interrupted = threading.Event()
        self._warnings: list[tuple[str, int, str]] = []
        self._last_insert_id = 0
        self._found_rows = 0
        self._row_count = 0
        self._prepared: dict[str, str] = {}
        self._next_read_only = False

    # What the wire asks

    @property
    def status(self) -> Status:
        return Status(self._variables.is_on("autocommit"), self._open is not None)

    def connect(self, client: Client) -> None:
        self._client = client

    def use(self, database: str) -> None:
        self._database = self._schema_name(database)

    def reset(self) -> None:
        self._end(Ending.ROLLBACK)
        self._variables.reset()
        self._prepared.clear()
        self._warnings = []
        self._last_insert_id = 0

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._end(Ending.ROLLBACK)

    def prepare(self, statement: str) -> Prepared:
        if _first_word(statement) in _DDL_WORDS:
            return Prepared(0)
        parsed = parse(statement)
        if isinstance(parsed.statement, Select | Union | With):
            context = self._context(())
            reading = self._reading()
            plan = Planner(_Tables(self, context, reading), context)
            context.subqueries = plan
            return Prepared(parsed.parameter_count, plan.plan(parsed.statement).columns)
        if isinstance(parsed.statement, Show):
            result = self._show(parsed.statement)
            return Prepared(parsed.parameter_count, result.columns if isinstance(result, Rows) else ())
        return Prepared(parsed.parameter_count)

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> Result | list[Result]:
        self._interrupted.clear()
        try:
            word = _first_word(statement)
            if word in _DDL_WORDS:
                return self._ddl(statement)
            if word == "ADMIN" and "CHECK" not in statement.upper():
                return self._ddl(statement)
            return self._run(parse(statement), [_typed(value) for value in parameters or ()])
        except SqlError as error:
            if error.number == Errno.LOCK_DEADLOCK:
                self._end(Ending.ROLLBACK)
            self._warnings = [*self._warnings, ("Error", error.number, error.message)]
            raise

    # Statements

    def _run(self, parsed: Parsed, parameters: list[tuple[Any, Type]]) -> Result:
        statement = parsed.statement
        if parsed.parameter_count != len(parameters):
            raise sql_error(Errno.WRONG_ARGUMENTS, "EXECUTE")
        if not _keeps_warnings(statement):
            self._warnings = []
        result = self._dispatch(statement, parameters)
        if isinstance(result, Affected):
            self._row_count = result.rows
        else:
            self._row_count = -1
        return result

    def _dispatch(self, statement: Statement, parameters: list[tuple[Any, Type]]) -> Result:
        match statement:
            case Select() | Union() | With():
                return self._query(statement, parameters)
            case Insert() | Update() | Delete():
                return self._change(statement, parameters)
            case Begin():
                return self._begin(statement, parameters)
            case End(how):
                self._end(how)
                return Affected()
            case Savepoint():
                return self._savepoint(statement)
            case Set():
                return self._set(statement, parameters)
            case SetNames():
                return self._set_names(statement)
            case Use(schema):
                self.use(schema)
                return Affected()
            case Show():
                return self._show(statement)
            case Prepare(name, text):
                return self._prepare_text(name, text)
            case Execute(name, using):
                return self._execute_prepared(name, using)
            case Deallocate(name):
                if self._prepared.pop(name, None) is None:
                    raise sql_error(Errno.PREPARED_NOT_FOUND)
                return Affected()
            case Kill():
                return self._kill_other(statement)
            case Do(values):
                context = self._context(parameters)
                for value in values:
                    Compiler(Scope(()), context).compile(value).compute(())
                return Affected(warnings=self._keep_warnings(context))
            case Nothing():
                return Affected()
            case AdminCheck(tables):
                return self._admin_check(tables)

    def _ddl(self, text: str) -> Result:
        if self._snapshot_ts() is not None:
            raise self._no_writes()
        self._warnings = []
        self._end(Ending.COMMIT)
        request = DdlRequest(
            text,
            self._database,
            str(self._variables.get("sql_mode")),
            self._time_zone(),
            self._is_strict(),
            self._interrupted.is_set,
        )
        result = self._node.execute_ddl(request)
        if isinstance(result, Affected):
            self._warnings = list(result.notes)
        if self._database and not self._catalog().has_database(self._database):
            self._database = ""
        return result

    # Transactions

    def _begin(self, statement: Begin, parameters: list[tuple[Any, Type]]) -> Affected:
        self._end(Ending.COMMIT)
        ts = None
        if statement.as_of is not None:
            ts = self._as_of_ts(statement.as_of, self._context(parameters))
        self._open = self._new_transaction(statement.mode, ts)
        self._open.is_read_only = statement.is_read_only or self._next_read_only
        self._next_read_only = False
        return Affected()

    def _new_transaction(self, mode: str = "", ts: int | None = None) -> _Open:
        mode = mode or str(self._variables.get("tidb_txn_mode"))
        catalog = self._node.catalog_at(ts) if ts is not None else self._catalog()
        transaction = Transaction(
            self._cluster,
            pessimistic=mode == "pessimistic" and ts is None,
            start_ts=ts,
            lock_wait_seconds=float(self._variables.get("innodb_lock_wait_timeout")),
            is_interrupted=self._interrupted.is_set,
        )
        return _Open(transaction, catalog, set(), {}, is_read_only=ts is not None)

    def _end(self, how: Ending) -> None:
        """Commit or roll back what is open, if anything is."""
        opened, self._open = self._open, None
        if opened is None:
            return
        if how is Ending.COMMIT:
            self._commit(opened)
        else:
            opened.transaction.rollback()

    def _commit(self, opened: _Open) -> None:
        table_ids = list(opened.table_ids)
        opened.transaction.commit(lambda: self._node.check(opened.catalog, table_ids) if table_ids else None)

    def _savepoint(self, statement: Savepoint) -> Affected:
        opened = self._open
        if opened is None:
            if statement.action == "set":
                return Affected()
            raise SqlError(1305, "42000", f"SAVEPOINT {statement.name} does not exist")
        if statement.action == "set":
            opened.marks.pop(statement.name, None)
            opened.marks[statement.name] = opened.transaction.savepoint()
            return Affected()
        if statement.name not in opened.marks:
            raise SqlError(1305, "42000", f"SAVEPOINT {statement.name} does not exist")
        names = list(opened.marks)
        later = names[names.index(statement.name) + (statement.action == "rollback") :]
        if statement.action == "rollback":
            opened.transaction.rollback_to(opened.marks[statement.name])
        for name in later:
            del opened.marks[name]
        return Affected()

    # Changes

    def _change(self, statement: Insert | Update | Delete, parameters: list[tuple[Any, Type]]) -> Affected:
        if self._snapshot_ts() is not None:
            raise self._no_writes()
        if self._open is None and not self._variables.is_on("autocommit"):
            self._open = self._new_transaction()
        opened = self._open
        if opened is not None:
            if opened.is_read_only:
                raise sql_error(Errno.CANT_EXECUTE_IN_READ_ONLY_TRANSACTION)
            return self._changed_in(opened, statement, parameters)
        attempts = int(self._variables.get("tidb_retry_limit"))
        while True:
            alone = self._new_transaction("optimistic")
            try:
                result = self._changed_in(alone, statement, parameters)
                self._commit(alone)
                return result
            except SqlError as error:
                alone.transaction.rollback()
                if error.number not in _RETRIED or attempts <= 0:
                    raise
                attempts -= 1
                self._warnings = []
            except TidemillError:
                alone.transaction.rollback()
                raise

    def _changed_in(
        self, opened: _Open, statement: Insert | Update | Delete, parameters: list[tuple[Any, Type]]
    ) -> Affected:
        name = statement.table if isinstance(statement, Insert) else statement.source.table
        if not isinstance(statement, Insert) and statement.source.as_of is not None:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "AS OF TIMESTAMP in a changing statement")
        table = self._table(opened.catalog, name)
        access = access_to(table)
        contexts: list[Context] = []

        def run() -> Affected:
            context = self._context(parameters)
            contexts[:] = [context]
            context.settings.is_writing = True
            planner = Planner(_Tables(self, context, opened), context)
            context.subqueries = planner
            changer = Changer(opened.transaction, context, self._node.auto_ids, self._client.is_counting_matches)
            match statement:
                case Insert():
                    return insert(changer, access, statement, _queried(planner, statement.query))
                case Update():
                    return update(changer, access, statement)
                case Delete():
                    return delete(changer, access, statement)

        result = opened.transaction.run_statement(run)
        opened.table_ids.add(table.id)
        self._keep_warnings(contexts[0])
        return result

    def _no_writes(self) -> SqlError:
        return sql_error(Errno.UNKNOWN_ERROR, "can not execute write statement when 'tidb_snapshot' is set")

    # Queries

    def _query(self, query: Query, parameters: list[tuple[Any, Type]]) -> Rows:
        context = self._context(parameters)
        reading = self._reading()
        planner = Planner(_Tables(self, context, reading), context)
        context.subqueries = planner
        plan = planner.plan(query)
        is_locking = isinstance(query, Select) and query.locking is Locking.UPDATE
        if is_locking and self._open is not None and self._open.transaction.is_pessimistic:
            rows = self._locked_rows(self._open.transaction, plan, query.is_nowait)  # type: ignore[union-attr]  # a Select
        else:
            rows = list(result_rows(plan))
        self._found_rows = len(rows)
        return Rows(plan.columns, rows, self._keep_warnings(context))

    def _locked_rows(self, transaction: Transaction, plan: Plan, is_nowait: bool) -> list[Sequence[object]]:
        def run() -> list[Sequence[object]]:
            rows = list(result_rows(plan))
            transaction.lock(plan.locked_keys, nowait=is_nowait)
            return rows

        return transaction.run_statement(run)

    def _reading(self) -> _Open:
        """The transaction to read in: at tidb_snapshot, the one that is open, or a new one."""
        ts = self._snapshot_ts()
        if ts is not None:
            return self._new_transaction(ts=ts)
        if self._open is None and not self._variables.is_on("autocommit"):
            self._open = self._new_transaction()
        return self._open if self._open is not None else self._new_transaction("optimistic")

    def reading_at(self, as_of: Expression, context: Context) -> _Open:
        return self._new_transaction(ts=self._as_of_ts(as_of, context))

    def _as_of_ts(self, tree: Expression, context: Context) -> int:
        if self._open is not None:
            raise sql_error(Errno.AS_OF, "as of timestamp can't be set in transaction.")
        computed = Compiler(Scope(()), context).compile(tree)
        value = computed.compute(())
        if value is None:
            raise sql_error(Errno.AS_OF, "as of timestamp cannot be NULL")
        if computed.type.kind is Kind.INT and value > 1 << 50:
            return self._checked_ts(int(value))
        moment = convert.moment(value, computed.type, context.settings)
        if moment is None:
            raise sql_error(Errno.AS_OF, f"invalid as of timestamp {value}")
        return self._checked_ts(self._ts_of(moment))

    def _snapshot_ts(self) -> int | None:
        text = str(self._variables.get("tidb_snapshot"))
        if not text:
            return None
        if text.isdigit() and len(text) > 14:
            return self._checked_ts(int(text))
        parsed = temporal.parse_moment(text)
        if parsed is None:
            raise sql_error(Errno.WRONG_VALUE_FOR_VAR, "tidb_snapshot", text)
        return self._checked_ts(self._ts_of(parsed[0]))

    def _ts_of(self, moment: Time) -> int:
        utc = datetime(*temporal.to_utc(moment, self._time_zone()), tzinfo=UTC)
        return compose(int(utc.timestamp() * 1000))

    def _checked_ts(self, ts: int) -> int:
        if ts > self._cluster.tso.advance():
            raise sql_error(Errno.UNKNOWN_ERROR, "cannot set read timestamp to a future time")
        safepoint = self._cluster.safepoints.gc_safepoint
        if ts < safepoint:
            raise sql_error(Errno.SNAPSHOT_TOO_OLD, safepoint)
        return ts

    # Names

    def _catalog(self) -> Catalog:
        return self._node.cache.current()

    def _schema_name(self, name: str) -> str:
        if name.lower() == show.INFORMATION_SCHEMA:
            return show.INFORMATION_SCHEMA.upper()
        return self._current_catalog().database(name).name

    def _current_catalog(self) -> Catalog:
        ts = self._snapshot_ts()
        if ts is not None:
            return self._node.catalog_at(ts)
        return self._open.catalog if self._open is not None else self._catalog()

    def schema_of(self, name: TableName) -> str:
        schema = name.schema or self._database
        if not schema:
            raise sql_error(Errno.NO_DB_ERROR)
        return schema

    def _table(self, catalog: Catalog, name: TableName) -> CatalogTable:
        schema = self.schema_of(name)
        if schema.lower() == show.INFORMATION_SCHEMA:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "changing INFORMATION_SCHEMA")
        return catalog.table(schema, name.name)

    # The statement's surroundings

    def _context(self, parameters: Sequence[tuple[Any, Type]]) -> Context:
        return Context(
            self._settings(),
            self._now(),
            self._database,
            f"{self._client.user}@127.0.0.1",
            self._client.connection_id,
            VERSION,
            self._last_insert_id,
            self._found_rows,
            self._row_count,
            parameters,
            self._variables,
            set_last_insert_id=self._set_last_insert_id,
            is_interrupted=self._interrupted.is_set,
            current_ts=lambda: int(self._open.transaction.start_ts) if self._open is not None else 0,
        )

    def _set_last_insert_id(self, value: int) -> None:
        self._last_insert_id = value

    def _settings(self) -> Settings:
        mode = str(self._variables.get("sql_mode"))
        return Settings(
            self._time_zone(),
            is_strict="STRICT_TRANS_TABLES" in mode or "STRICT_ALL_TABLES" in mode,
            no_zero_date="NO_ZERO_DATE" in mode,
            no_zero_in_date="NO_ZERO_IN_DATE" in mode,
            error_for_division="ERROR_FOR_DIVISION_BY_ZERO" in mode,
        )

    def _is_strict(self) -> bool:
        return self._settings().is_strict

    def _now(self) -> Time:
        fixed = str(self._variables.get("timestamp"))
        seconds = float(fixed) if fixed not in ("", "0") else self._cluster.clock.now()
        return temporal.of_datetime(datetime.fromtimestamp(seconds, UTC))

    def _time_zone(self) -> tzinfo:
        return time_zone(str(self._variables.get("time_zone")))

    def _keep_warnings(self, context: Context) -> int:
        self._warnings = list(context.settings.warnings)
        return len(self._warnings)

    # Settings

    def _set(self, statement: Set, parameters: list[tuple[Any, Type]]) -> Affected:
        context = self._context(parameters)
        reading = self._reading() if any(a.scope == "user" for a in statement.assignments) else None
        if reading is not None:
            context.subqueries = Planner(_Tables(self, context, reading), context)
        for assignment in statement.assignments:
            if isinstance(assignment.value, Default):
                self._set_system(assignment.scope, assignment.name, None)
                continue
            computed = Compiler(Scope(()), context).compile(assignment.value)
            value = computed.compute(())
            if assignment.scope == "user":
                self._variables.set_user(assignment.name, value, computed.type)
                continue
            if value is None:
                if assignment.name not in ("character_set_results", "tidb_snapshot"):
                    raise sql_error(Errno.WRONG_VALUE_FOR_VAR, assignment.name, "NULL")
                value = ""
            if isinstance(value, float | Decimal):
                value = str(value)
            elif isinstance(value, Time):
                value = convert.as_text(computed)(())
            self._set_system(assignment.scope, assignment.name, value)
        return Affected(warnings=self._keep_warnings(context))

    def _set_system(self, scope: str, name: str, value: str | int | None) -> None:
        if scope == "transaction":
            self._next_read_only = name == "transaction_read_only" and bool(value)
            return
        if name == "time_zone" and value is not None:
            time_zone(str(value))
        before = self._variables.shown(name)
        self._variables.set(scope, name, value)
        if name == "autocommit" and self._variables.is_on("autocommit"):
            self._end(Ending.COMMIT)
        if name == "tidb_snapshot" and value:
            try:
                self._snapshot_ts()
            except SqlError:
                self._variables.set(scope, name, before)
                raise

    def _set_names(self, statement: SetNames) -> Affected:
        charset = "utf8mb4" if statement.charset.lower() == "default" else statement.charset.lower()
        for name in ("character_set_client", "character_set_connection", "character_set_results"):
            self._variables.set("session", name, charset)
        if statement.collation:
            self._variables.set("session", "collation_connection", statement.collation.lower())
        return Affected()

    # Prepared as text

    def _prepare_text(self, name: str, text: Expression) -> Affected:
        computed = Compiler(Scope(()), self._context(())).compile(text)
        value = computed.compute(())
        statement = value.decode() if isinstance(value, bytes) else str(value)
        if _first_word(statement) not in _DDL_WORDS:
            parse(statement)
        self._prepared[name] = statement
        return Affected()

    def _execute_prepared(self, name: str, using: Sequence[str]) -> Result:
        statement = self._prepared.get(name)
        if statement is None:
            raise sql_error(Errno.PREPARED_NOT_FOUND)
        if _first_word(statement) in _DDL_WORDS:
            return self._ddl(statement)
        return self._run(parse(statement), [self._variables.user(variable) for variable in using])

    def _kill_other(self, statement: Kill) -> Affected:
        if self._kill is None:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "KILL")
        computed = Compiler(Scope(()), self._context(())).compile(statement.connection_id)
        self._kill(int(computed.compute(())), statement.is_query)
        return Affected()

    def _admin_check(self, tables: Sequence[TableName]) -> Affected:
        reading = self._reading()
        for name in tables:
            use = TableUse(access_to(self._table(reading.catalog, name)), self._context(()))
            check_table(use, reading.transaction)
        return Affected()

    # SHOW

    def _show(self, statement: Show) -> Rows:
        names, rows = self._shown(statement)
        columns = tuple(wire_column(name, kind) for name, kind in names)
        if statement.like is not None:
            weigh = statement.like
            rows = [row for row in rows if _is_like(str(row[0]), weigh)]
        if statement.where is not None:
            context = self._context(())
            scope = Scope(ScopeColumn(name, kind) for name, kind in names)
            test = truth_of(Compiler(scope, context).compile(statement.where), context.settings)
            rows = [row for row in rows if test(row)]
        return Rows(columns, rows)

    def _shown(self, statement: Show) -> show.Answer:
        catalog = self._current_catalog()
        listing = _Listing(catalog, self._time_zone())
        match statement.what:
            case "DATABASES" | "SCHEMAS":
                names = ["INFORMATION_SCHEMA", *(listing.document(n)["db_name"]["O"] for n in listing.names())]
                return show.columns("Database"), [(name,) for name in names]
            case "TABLES":
                return self._shown_tables(statement, listing)
            case "TABLE STATUS":
                return show.table_status(listing, self._schema_name(statement.schema or self.schema_of(_NO_TABLE)))
            case "COLUMNS" | "FIELDS":
                return show.show_columns(
                    self._shown_table(catalog, statement), self._time_zone(), is_full=statement.is_full
                )
            case "INDEX" | "INDEXES" | "KEYS":
                return show.show_index(self._shown_table(catalog, statement))
            case "CREATE TABLE":
                table = self._shown_table(catalog, statement)
                made = show.create_table(table, self._node.auto_ids.stored(table) + 1, self._time_zone())
                return show.columns("Table", "Create Table"), [(table.name, made)]
            case "CREATE DATABASE" | "CREATE SCHEMA":
                document = catalog.database(statement.schema).document
                rows = [(document["db_name"]["O"], show.create_database(document))]
                return show.columns("Database", "Create Database"), rows
            case "VARIABLES":
                values = [(n, str(self._variables.shown(n, statement.scope))) for n in self._variables.names()]
                return show.columns("Variable_name", "Value"), list(values)
            case "STATUS":
                return show.columns("Variable_name", "Value"), []
            case "WARNINGS" | "ERRORS":
                wanted = self._warnings if statement.what == "WARNINGS" else _errors(self._warnings)
                return show.columns("Level", "Code#", "Message"), list(wanted)
            case "CHARACTER SET" | "CHARSET":
                return show.character_sets()
            case "COLLATION":
                return show.collations()
            case "ENGINES" | "STORAGE ENGINES":
                return show.engines()
            case "PROCESSLIST":
                head = show.columns("Id#", "User", "Host", "db", "Command", "Time#", "State", "Info")
                me = (self._client.connection_id, self._client.user, "127.0.0.1", self._database or None)
                return head, [(*me, "Query", 0, "autocommit", "SHOW PROCESSLIST")]
            case "PLUGINS" | "PRIVILEGES" | "PROFILES" | "TRIGGERS" | "EVENTS" | "PROCEDURE STATUS" | "FUNCTION STATUS":
                return show.columns("Name"), []
            case "GRANTS":
                return show.columns("Grants for User"), [
                    ("GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION",)
                ]
            case what:
                raise sql_error(Errno.NOT_SUPPORTED_YET, f"SHOW {what}")

    def _shown_tables(self, statement: Show, listing: "_Listing") -> show.Answer:
        schema = self._schema_name(statement.schema or self.schema_of(_NO_TABLE))
        if schema.lower() == show.INFORMATION_SCHEMA:
            found = [(name, "SYSTEM VIEW") for name in show.listed_names()]
        else:
            found = [(table.name, _table_kind(table)) for table in listing.tables(schema)]
        head = f"Tables_in_{schema}"
        if statement.is_full:
            return show.columns(head, "Table_type"), list(found)
        return show.columns(head), [(name,) for name, _ in found]

    def _shown_table(self, catalog: Catalog, statement: Show) -> CatalogTable:
        assert statement.table is not None  # the parser sees to it
        return catalog.table(self.schema_of(statement.table), statement.table.name)

    # For the wire's list of columns

    def fields(self, table: str) -> list[Column]:
        found = self._current_catalog().table(self.schema_of(_NO_TABLE), table)
        info = found.info
        return [column_of(column, database=info.schema, table=info.name) for column in info.columns]


class _Tables:
    """Opens the tables that a query names."""

    def __init__(self, session: SqlSession, context: Context, reading: _Open) -> None:
        self._session = session
        self._context = context
        self._reading = reading
        self._accesses: dict[str, TableAccess] = {}

    def open(self, source: TableSource) -> Stored | Listed:
        schema = self._session.schema_of(source.table)
        reading = self._reading
        if source.as_of is not None:
            reading = self._session.reading_at(source.as_of, self._context)
        if schema.lower() == show.INFORMATION_SCHEMA:
            listing = _Listing(reading.catalog, self._context.settings.time_zone)
            found = show.listed(listing, source.table.name)
            if found is None:
                raise sql_error(Errno.NO_SUCH_TABLE, "information_schema", source.table.name)
            return found
        table = reading.catalog.table(schema, source.table.name)
        access = access_to(table)
        if access.info.is_view or access.info.is_sequence:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "views and sequences")
        return Stored(TableUse(access, self._context, source.alias), reading.transaction)


class _Listing:
    """The catalog as ``show`` wants it."""

    def __init__(self, catalog: Catalog, zone: tzinfo) -> None:
        self._catalog = catalog
        self.zone = zone

    def names(self) -> list[str]:
        return sorted(name for name, database in self._catalog.databases.items() if database.is_usable)

    def document(self, schema: str) -> Any:
        return self._catalog.database(schema).document

    def tables(self, schema: str) -> Iterable[CatalogTable]:
        return self._catalog.tables(schema)


_NO_TABLE: Final = TableName("")


def _queried(planner: Planner, query: Query | None) -> Iterator[tuple[Sequence[Any], Sequence[Type]]] | None:
    """Rows of INSERT … SELECT, all read before the first is written."""
    if query is None:
        return None
    plan = planner.plan(query)
    return iter([(row, plan.types) for row in plan.rows()])


def _first_word(statement: str) -> str:
    """In upper case; empty where the text begins with a comment or a sign, which none of ours do."""
    text = statement.lstrip()
    while text.startswith(("/*", "--", "#")):
        end = text.find("*/") + 2 if text.startswith("/*") else text.find("\n") + 1
        if end <= 1 or text.startswith(("/*!", "/*T!")):
            break
        text = text[end:].lstrip()
    at = 0
    while at < len(text) and text[at].isalpha():
        at += 1
    return text[:at].upper()


def _typed(value: object) -> tuple[Any, Type]:
    """A parameter of a prepared statement, as a literal would be."""
    if isinstance(value, bytes):
        return value, Type(Kind.BYTES, collation="binary")
    return value, literal_type(value)


def _keeps_warnings(statement: Statement) -> bool:
    return isinstance(statement, Show) and statement.what in ("WARNINGS", "ERRORS")


def _errors(warnings: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    return [warning for warning in warnings if warning[0] == "Error"]


def _is_like(text: str, pattern: str) -> bool:
    """As SHOW … LIKE compares: without case."""
    return like_pattern(pattern, "\\", is_folding=True).fullmatch(text) is not None


def _table_kind(table: CatalogTable) -> str:
    document = table.document
    return "VIEW" if document.get("view") else "SEQUENCE" if document.get("sequence") else "BASE TABLE"


def time_zone(name: str) -> tzinfo:
    """``SYSTEM``, an offset or a name; 1298 if there is none such."""
    if name.upper() in ("SYSTEM", "UTC"):
        return UTC
    found = temporal.fixed_zone(name)
    if found is not None:
        return UTC if not found.utcoffset(None) else found
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise sql_error(Errno.UNKNOWN_TIME_ZONE, name) from error
