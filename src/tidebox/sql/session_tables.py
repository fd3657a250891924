"""The tables that a statement of a session names."""

from collections.abc import Iterable
from datetime import tzinfo
from typing import Any

from tidebox.sql import show
from tidebox.sql.catalog import Catalog, CatalogTable
from tidebox.sql.compute.scope import Context
from tidebox.sql.query import Listed, Planner, Stored
from tidebox.sql.session_state import Open, SessionState
from tidebox.sql.syntax.tree import (
    TableSource,
)
from tidebox.sql.tables import TableAccess, TableUse, access_to
from tidebox.sql.wire.errors import Errno, sql_error


class Tables:
    """Opens the tables that a query names."""

    def __init__(self, session: SessionState, context: Context, reading: Open) -> None:
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
            listing = Listing(reading.catalog, self._context.settings.time_zone)
            found = show.listed(listing, source.table.name)
            if found is None:
                raise sql_error(Errno.NO_SUCH_TABLE, "information_schema", source.table.name)
            return found
        table = reading.catalog.table(schema, source.table.name)
        access = access_to(table)
        if access.info.is_view or access.info.is_sequence:
            raise sql_error(Errno.NOT_SUPPORTED_YET, "views and sequences")
        return Stored(TableUse(access, self._context, source.alias), reading.transaction)


class Listing:
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


def planner_of(session: SessionState, context: Context, reading: Open) -> Planner:
    """For a statement and all of its subqueries."""
    planner = Planner(Tables(session, context, reading), context)
    context.subqueries = planner
    return planner
