"""SET, in a session."""

from decimal import Decimal
from typing import Any

from tidebox.sql.codec.datum import Time
from tidebox.sql.compute import convert
from tidebox.sql.compute.compiler import Compiler
from tidebox.sql.compute.kinds import Type
from tidebox.sql.compute.scope import Scope
from tidebox.sql.session_state import SessionState, time_zone
from tidebox.sql.session_tables import planner_of
from tidebox.sql.syntax.tree import (
    Default,
    Ending,
    Set,
    SetNames,
)
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.session import Affected


def set_variables(session: SessionState, statement: Set, parameters: list[tuple[Any, Type]]) -> Affected:
    context = session.context(parameters)
    reading = session.reading() if any(a.scope == "user" for a in statement.assignments) else None
    if reading is not None:
        planner_of(session, context, reading)
    for assignment in statement.assignments:
        if isinstance(assignment.value, Default):
            _set_system(session, assignment.scope, assignment.name, None)
            continue
        computed = Compiler(Scope(()), context).compile(assignment.value)
        value = computed.compute(())
        if assignment.scope == "user":
            session.variables.set_user(assignment.name, value, computed.type)
            continue
        if value is None:
            if assignment.name not in ("character_set_results", "tidb_snapshot"):
                raise sql_error(Errno.WRONG_VALUE_FOR_VAR, assignment.name, "NULL")
            value = ""
        if isinstance(value, float | Decimal):
            value = str(value)
        elif isinstance(value, Time):
            value = convert.as_text(computed)(())
        _set_system(session, assignment.scope, assignment.name, value)
    return Affected(warnings=session.keep_warnings(context))


def _set_system(session: SessionState, scope: str, name: str, value: str | int | None) -> None:
    if scope == "transaction":
        session.next_read_only = name == "transaction_read_only" and bool(value)
        return
    if name == "time_zone" and value is not None:
        time_zone(str(value))
    before = session.variables.shown(name)
    session.variables.set(scope, name, value)
    if name == "autocommit" and session.variables.is_on("autocommit"):
        session.end(Ending.COMMIT)
    if name == "tidb_snapshot" and value:
        try:
            session.snapshot_ts()
        except SqlError:
            session.variables.set(scope, name, before)
            raise


def set_names(session: SessionState, statement: SetNames) -> Affected:
    charset = "utf8mb4" if statement.charset.lower() == "default" else statement.charset.lower()
    for name in ("character_set_client", "character_set_connection", "character_set_results"):
        session.variables.set("session", name, charset)
    if statement.collation:
        session.variables.set("session", "collation_connection", statement.collation.lower())
    return Affected()
