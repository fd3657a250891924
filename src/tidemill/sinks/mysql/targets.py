"""Targets of the MySQL sink, for both halves: a unit's rows in one generation, with what the server knows of the
table.
"""

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.session import Flavor, SessionSettings, ask
from tidemill.sinks.mysql.sessions import Turn
from tidemill.sinks.mysql.writer import MysqlTarget

_Place = tuple[str, str, Ts]  # schema, table and version: DDLs may come from another process


class Targets:
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._generated: dict[_Place, frozenset[str]] = {}  # the columns that are so downstream

    def make(self, table: TableInfo, *, is_safe: bool) -> MysqlTarget:
        turn = self._turn
        settings = SessionSettings(turn.options, turn.downstream, turn.zone, is_for_rows=True)
        plain = self._plain_columns(table)
        return MysqlTarget(settings, table, turn.generation, is_safe, turn.patience.seconds, plain_columns=plain)

    def forget(self) -> None:
        self._generated.clear()

    def _plain_columns(self, table: TableInfo) -> frozenset[str]:
        """Those that are generated upstream and not here: a server need not know the expression, nor allow it."""
        stored = frozenset(column.name.lower() for column in table.stored_columns if column.is_generated)
        downstream = self._turn.downstream
        if not stored or downstream is None or downstream.flavor is Flavor.TIDB:
            return frozenset()
        place = table.schema, table.name, table.version_ts
        if place not in self._generated:
            self._turn.patiently(lambda: self._look_up_generated(place), "look at a table's columns")
        return stored - self._generated[place]

    def _look_up_generated(self, place: _Place) -> None:
        found = ask(
            self._turn.opened(),
            "SELECT column_name FROM information_schema.columns WHERE table_schema=%s AND table_name=%s AND "
            "generation_expression<>''",
            place[:2],
        )
        self._generated[place] = frozenset(str(column).lower() for (column,) in found)
