"""The statements of one connection: transactions, variables, and who runs what.

    wire ── text, parameters ──► SqlSession ──► syntax ──► dml, query, show
                                           └──► Node.execute_ddl

A statement alone is its own transaction and is run again when others were quicker; between BEGIN and
COMMIT it is the client's to try again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tidebox.sql.check import check_table
from tidebox.sql.compute.compiler import Compiler, literal_type
from tidebox.sql.compute.kinds import Kind, Type
from tidebox.sql.compute.scope import Scope
from tidebox.sql.node import DdlRequest, Node
from tidebox.sql.query import Plan, result_rows
from tidebox.sql.session_changes import change
from tidebox.sql.session_settings import set_names, set_variables
from tidebox.sql.session_shows import show_rows
from tidebox.sql.session_state import SessionState
from tidebox.sql.session_tables import planner_of
from tidebox.sql.syntax.statements import Parsed, parse
from tidebox.sql.syntax.tree import (
    AdminCheck,
    Begin,
    Deallocate,
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
    Union,
    Update,
    Use,
    With,
)
from tidebox.sql.tables import TableUse, access_to
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.session import Affected, Client, Prepared, Result, Rows, Status
from tidemill.tidb.lexer import Kind as LexKind
from tidemill.tidb.lexer import pieces

_DDL_WORDS: Final = frozenset({"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME"})
_R = TypeVar("_R")


class SqlSession(SessionState):
    """A ``wire.Session`` on a node."""

    def __init__(self, node: Node, kill: Callable[[int, bool], None] | None = None) -> None:
        super().__init__(node)
        self._kill = kill
        self._prepared: dict[str, str] = {}

    # What the wire asks

    @property
    def status(self) -> Status:
        return Status(self.variables.is_on("autocommit"), self.opened is not None)

    def connect(self, client: Client) -> None:
        self.client = client

    def use(self, database: str) -> None:
        self.database = self.schema_name(database)

    def reset(self) -> None:
        self.end(Ending.ROLLBACK)
        self.variables.reset()
        self._prepared.clear()
        self.warnings = []
        self.last_insert_id = 0

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.end(Ending.ROLLBACK)

    def prepare(self, statement: str) -> Prepared:
        if _first_word(statement) in _DDL_WORDS:
            return Prepared(0)
        parsed = parse(statement)
        if isinstance(parsed.statement, Select | Union | With):
            context = self.context(())
            reading = self.reading()
            planner = planner_of(self, context, reading)
            return Prepared(parsed.parameter_count, planner.plan(parsed.statement).columns)
        if isinstance(parsed.statement, Show):
            result = show_rows(self, parsed.statement)
            return Prepared(parsed.parameter_count, result.columns if isinstance(result, Rows) else ())
        return Prepared(parsed.parameter_count)

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> Result | list[Result]:
        self.interrupted.clear()
        try:
            word = _first_word(statement)
            if word in _DDL_WORDS:
                return self._ddl(statement)
            if word == "ADMIN" and "CHECK" not in statement.upper():
                return self._ddl(statement)
            return self._run(parse(statement), [_typed(value) for value in parameters or ()])
        except SqlError as error:
            if error.number == Errno.LOCK_DEADLOCK:
                self.end(Ending.ROLLBACK)
            self.warnings = [*self.warnings, ("Error", error.number, error.message)]
            raise

    # Statements

    def _run(self, parsed: Parsed, parameters: list[tuple[Any, Type]]) -> Result:
        statement = parsed.statement
        if parsed.parameter_count != len(parameters):
            raise sql_error(Errno.WRONG_ARGUMENTS, "EXECUTE")
        if not _keeps_warnings(statement):
            self.warnings = []
        result = self._dispatch(statement, parameters)
        if isinstance(result, Affected):
            self.row_count = result.rows
        else:
            self.row_count = -1
        return result

    def _dispatch(self, statement: Statement, parameters: list[tuple[Any, Type]]) -> Result:
        match statement:
            case Select() | Union() | With():
                return self._query(statement, parameters)
            case Insert() | Update() | Delete():
                return change(self, statement, parameters)
            case Begin():
                return self._begin(statement, parameters)
            case End(how):
                self.end(how)
                return Affected()
            case Savepoint():
                return self._savepoint(statement)
            case Set():
                return set_variables(self, statement, parameters)
            case SetNames():
                return set_names(self, statement)
            case Use(schema):
                self.use(schema)
                return Affected()
            case Show():
                return show_rows(self, statement)
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
                context = self.context(parameters)
                for value in values:
                    Compiler(Scope(()), context).compile(value).compute(())
                return Affected(warnings=self.keep_warnings(context))
            case Nothing():
                return Affected()
            case AdminCheck(tables):
                return self._admin_check(tables)

    def _ddl(self, text: str) -> Result:
        if self.snapshot_ts() is not None:
            raise self.no_writes()
        self.warnings = []
        self.end(Ending.COMMIT)
        request = DdlRequest(
            text,
            self.database,
            str(self.variables.get("sql_mode")),
            self.time_zone(),
            self.is_strict(),
            self.interrupted.is_set,
        )
        result = self.node.execute_ddl(request)
        if isinstance(result, Affected):
            self.warnings = list(result.notes)
        if self.database and not self.catalog().has_database(self.database):
            self.database = ""
        return result

    # Transactions

    def _begin(self, statement: Begin, parameters: list[tuple[Any, Type]]) -> Affected:
        self.end(Ending.COMMIT)
        ts = None
        if statement.as_of is not None:
            ts = self.as_of_ts(statement.as_of, self.context(parameters))
        self.opened = self.new_transaction(statement.mode, ts)
        self.opened.is_read_only = statement.is_read_only or self.next_read_only
        self.next_read_only = False
        return Affected()

    def _savepoint(self, statement: Savepoint) -> Affected:
        opened = self.opened
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

    # Queries

    def _query(self, query: Query, parameters: list[tuple[Any, Type]]) -> Rows:
        context = self.context(parameters)
        reading = self.reading()
        plan = planner_of(self, context, reading).plan(query)
        is_locking = isinstance(query, Select) and query.locking is Locking.UPDATE
        if is_locking and self.opened is not None and self.opened.transaction.is_pessimistic:
            rows = self._locked_rows(self.opened.transaction, plan, query.is_nowait)  # type: ignore[union-attr]  # a Select
        else:
            rows = list(result_rows(plan))
        self.found_rows = len(rows)
        return Rows(plan.columns, rows, self.keep_warnings(context))

    def _locked_rows(self, transaction: Transaction, plan: Plan, is_nowait: bool) -> list[Sequence[object]]:
        def run() -> list[Sequence[object]]:
            rows = list(result_rows(plan))
            transaction.lock(plan.locked_keys, nowait=is_nowait)
            return rows

        return transaction.run_statement(run)

    # Prepared as text

    def _prepare_text(self, name: str, text: Expression) -> Affected:
        computed = Compiler(Scope(()), self.context(())).compile(text)
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
        return self._run(parse(statement), [self.variables.user(variable) for variable in using])

    def _kill_other(self, statement: Kill) -> Affected:
        if self._kill is None:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "KILL")
        computed = Compiler(Scope(()), self.context(())).compile(statement.connection_id)
        self._kill(int(computed.compute(())), statement.is_query)
        return Affected()

    def _admin_check(self, tables: Sequence[TableName]) -> Affected:
        reading = self.reading()
        for name in tables:
            use = TableUse(access_to(self.table(reading.catalog, name)), self.context(()))
            check_table(use, reading.transaction)
        return Affected()


def _first_word(statement: str) -> str:
    """In upper case; empty where it begins with something else."""
    for piece in pieces(statement):
        if piece.kind not in (LexKind.SPACE, LexKind.COMMENT, LexKind.OPEN):
            return piece.text.upper() if piece.kind is LexKind.WORD else ""
    return ""


def _typed(value: object) -> tuple[Any, Type]:
    """A parameter of a prepared statement, as a literal would be."""
    if isinstance(value, bytes):
        return value, Type(Kind.BYTES, collation="binary")
    return value, literal_type(value)


def _keeps_warnings(statement: Statement) -> bool:
    return isinstance(statement, Show) and statement.what in ("WARNINGS", "ERRORS")
