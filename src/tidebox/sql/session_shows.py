"""SHOW, in a session."""

from typing import Final

from tidebox.sql import show
from tidebox.sql.catalog import Catalog, CatalogTable
from tidebox.sql.compute.compiler import Compiler, like_pattern
from tidebox.sql.compute.operators import truth_of
from tidebox.sql.compute.scope import Scope, ScopeColumn
from tidebox.sql.query import wire_column
from tidebox.sql.session_state import SessionState
from tidebox.sql.session_tables import Listing
from tidebox.sql.syntax.tree import (
    Show,
    TableName,
)
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.session import Rows

_NO_TABLE: Final = TableName("")


def show_rows(session: SessionState, statement: Show) -> Rows:
    names, rows = _shown(session, statement)
    columns = tuple(wire_column(name, kind) for name, kind in names)
    if statement.like is not None:
        weigh = statement.like
        rows = [row for row in rows if _is_like(str(row[0]), weigh)]
    if statement.where is not None:
        context = session.context(())
        scope = Scope(ScopeColumn(name, kind) for name, kind in names)
        test = truth_of(Compiler(scope, context).compile(statement.where), context.settings)
        rows = [row for row in rows if test(row)]
    return Rows(columns, rows)


def _shown(session: SessionState, statement: Show) -> show.Answer:
    catalog = session.current_catalog()
    listing = Listing(catalog, session.time_zone())
    match statement.what:
        case "DATABASES" | "SCHEMAS":
            names = ["INFORMATION_SCHEMA", *(listing.document(n)["db_name"]["O"] for n in listing.names())]
            return show.columns("Database"), [(name,) for name in names]
        case "TABLES":
            return _shown_tables(session, statement, listing)
        case "TABLE STATUS":
            return show.table_status(listing, session.schema_name(statement.schema or session.schema_of(_NO_TABLE)))
        case "COLUMNS" | "FIELDS":
            return show.show_columns(
                _shown_table(session, catalog, statement), session.time_zone(), is_full=statement.is_full
            )
        case "INDEX" | "INDEXES" | "KEYS":
            return show.show_index(_shown_table(session, catalog, statement))
        case "CREATE TABLE":
            table = _shown_table(session, catalog, statement)
            made = show.create_table(table, session.node.auto_ids.stored(table) + 1, session.time_zone())
            return show.columns("Table", "Create Table"), [(table.name, made)]
        case "CREATE DATABASE" | "CREATE SCHEMA":
            document = catalog.database(statement.schema).document
            rows = [(document["db_name"]["O"], show.create_database(document))]
            return show.columns("Database", "Create Database"), rows
        case "VARIABLES":
            values = [(n, str(session.variables.shown(n, statement.scope))) for n in session.variables.names()]
            return show.columns("Variable_name", "Value"), list(values)
        case "STATUS":
            return show.columns("Variable_name", "Value"), []
        case "WARNINGS" | "ERRORS":
            wanted = session.warnings if statement.what == "WARNINGS" else _errors(session.warnings)
            return show.columns("Level", "Code#", "Message"), list(wanted)
        case "CHARACTER SET" | "CHARSET":
            return show.character_sets()
        case "COLLATION":
            return show.collations()
        case "ENGINES" | "STORAGE ENGINES":
            return show.engines()
        case "PROCESSLIST":
            head = show.columns("Id#", "User", "Host", "db", "Command", "Time#", "State", "Info")
            me = (session.client.connection_id, session.client.user, "127.0.0.1", session.database or None)
            return head, [(*me, "Query", 0, "autocommit", "SHOW PROCESSLIST")]
        case "PLUGINS" | "PRIVILEGES" | "PROFILES" | "TRIGGERS" | "EVENTS" | "PROCEDURE STATUS" | "FUNCTION STATUS":
            return show.columns("Name"), []
        case "GRANTS":
            return show.columns("Grants for User"), [("GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION",)]
        case what:
            raise sql_error(Errno.NOT_SUPPORTED_YET, f"SHOW {what}")


def _shown_tables(session: SessionState, statement: Show, listing: Listing) -> show.Answer:
    schema = session.schema_name(statement.schema or session.schema_of(_NO_TABLE))
    if schema.lower() == show.INFORMATION_SCHEMA:
        found = [(name, "SYSTEM VIEW") for name in show.listed_names()]
    else:
        found = [(table.name, _table_kind(table)) for table in listing.tables(schema)]
    head = f"Tables_in_{schema}"
    if statement.is_full:
        return show.columns(head, "Table_type"), list(found)
    return show.columns(head), [(name,) for name, _ in found]


def _shown_table(session: SessionState, catalog: Catalog, statement: Show) -> CatalogTable:
    assert statement.table is not None  # the parser sees to it
    return catalog.table(session.schema_of(statement.table), statement.table.name)


def _errors(warnings: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    return [warning for warning in warnings if warning[0] == "Error"]


def _is_like(text: str, pattern: str) -> bool:
    """As SHOW … LIKE compares: without case."""
    return like_pattern(pattern, "\\", is_folding=True).fullmatch(text) is not None


def _table_kind(table: CatalogTable) -> str:
    document = table.document
    return "VIEW" if document.get("view") else "SEQUENCE" if document.get("sequence") else "BASE TABLE"
