"""INSERT, UPDATE and DELETE in a session: a statement alone is run again when others were quicker."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidebox.sql.compute.kinds import Type
from tidebox.sql.compute.scope import Context
from tidebox.sql.dml import Changer, delete, insert, update
from tidebox.sql.query import Planner
from tidebox.sql.session_state import Open, SessionState
from tidebox.sql.session_tables import planner_of
from tidebox.sql.syntax.tree import (
    Delete,
    Insert,
    Query,
    Update,
)
from tidebox.sql.tables import access_to
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.session import Affected
from tidemill.errors import TidemillError

_RETRIED: Final = frozenset({int(Errno.WRITE_CONFLICT), int(Errno.TXN_RETRYABLE), int(Errno.INFO_SCHEMA_CHANGED)})


def change(session: SessionState, statement: Insert | Update | Delete, parameters: list[tuple[Any, Type]]) -> Affected:
    if session.snapshot_ts() is not None:
        raise session.no_writes()
    if session.opened is None and not session.variables.is_on("autocommit"):
        session.opened = session.new_transaction()
    opened = session.opened
    if opened is not None:
        if opened.is_read_only:
            raise sql_error(Errno.CANT_EXECUTE_IN_READ_ONLY_TRANSACTION)
        return _changed_in(session, opened, statement, parameters)
    attempts = int(session.variables.get("tidb_retry_limit"))
    while True:
        alone = session.new_transaction("optimistic")
        try:
            result = _changed_in(session, alone, statement, parameters)
            session.commit(alone)
            return result
        except SqlError as error:
            alone.transaction.rollback()
            if error.number not in _RETRIED or attempts <= 0:
                raise
            attempts -= 1
            session.warnings = []
        except TidemillError:
            alone.transaction.rollback()
            raise


def _changed_in(
    session: SessionState, opened: Open, statement: Insert | Update | Delete, parameters: list[tuple[Any, Type]]
) -> Affected:
    name = statement.table if isinstance(statement, Insert) else statement.source.table
    if not isinstance(statement, Insert) and statement.source.as_of is not None:
        raise sql_error(Errno.NOT_SUPPORTED_YET, "AS OF TIMESTAMP in a changing statement")
    table = session.table(opened.catalog, name)
    access = access_to(table)
    contexts: list[Context] = []

    def run() -> Affected:
        context = session.context(parameters)
        contexts[:] = [context]
        context.settings.is_writing = True
        planner = planner_of(session, context, opened)
        changer = Changer(opened.transaction, context, session.node.auto_ids, session.client.is_counting_matches)
        match statement:
            case Insert():
                return insert(changer, access, statement, _queried(planner, statement.query))
            case Update():
                return update(changer, access, statement)
            case Delete():
                return delete(changer, access, statement)

    result = opened.transaction.run_statement(run)
    opened.table_ids.add(table.id)
    session.keep_warnings(contexts[0])
    return result


def _queried(planner: Planner, query: Query | None) -> Iterator[tuple[Sequence[Any], Sequence[Type]]] | None:
    """Rows of INSERT … SELECT, all read before the first is written."""
    if query is None:
        return None
    plan = planner.plan(query)
    return iter([(row, plan.types) for row in plan.rows()])
