"""What names mean, and what a statement knows besides its text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidebox.sql.codec.datum import Time
from tidebox.sql.compute.kinds import Computed, Settings, Type
from tidebox.sql.syntax.tree import Name, Query
from tidebox.sql.wire.errors import Errno, sql_error


@dataclass(frozen=True, slots=True)
class ScopeColumn:
    name: str
    type: Type
    table: str = ""  # its alias
    schema: str = ""
    original_table: str = ""
    is_hidden: bool = False  # found by name, but not by ``*``


class Scope:
    """The columns of a row: the value of column i is ``row[i]``. Names are found without regard to case.

    ``outer`` is the scope of the query around; its row at the time is in ``outer.current``.
    """

    def __init__(
        self, columns: Iterable[ScopeColumn], outer: "Scope | None" = None, clause: str = "field list"
    ) -> None:
        self.columns = tuple(columns)
        self.outer = outer
        self.clause = clause
        self.current: Sequence[Any] = ()
        self.is_correlated = False  # whether something of ``outer`` was asked for
        self._by_name: dict[str, list[int]] = {}
        for index, column in enumerate(self.columns):
            self._by_name.setdefault(column.name.lower(), []).append(index)

    def find(self, name: Name) -> int | None:
        """The place of a column; None if there is none. 1052 if it could be several."""
        places = self._by_name.get(name.column.lower(), [])
        if name.table:
            table, schema = name.table.lower(), name.schema.lower()
            places = [
                at
                for at in places
                if self.columns[at].table.lower() == table and (not schema or self.columns[at].schema.lower() == schema)
            ]
        if len(places) > 1:
            shown = [at for at in places if not self.columns[at].is_hidden]
            if len(shown) != 1:
                raise sql_error(Errno.NON_UNIQ_ERROR, name, self.clause)
            places = shown
        return places[0] if places else None

    def resolve(self, name: Name) -> Computed:
        place = self.find(name)
        if place is not None:
            return Computed(self.columns[place].type, _item(place))
        if self.outer is not None:
            try:
                found = self.outer.resolve(name)
            except Exception as error:
                if getattr(error, "number", 0) != Errno.BAD_FIELD_ERROR:
                    raise
            else:
                self.is_correlated = True
                outer, compute = self.outer, found.compute
                return Computed(found.type, lambda row: compute(outer.current))
        raise sql_error(Errno.BAD_FIELD_ERROR, name, self.clause)


def _item(place: int) -> Callable[[Any], Any]:
    def item(row: Any) -> Any:
        return row[place]

    return item


NO_COLUMNS = Scope(())


class Variables(Protocol):
    """Variables of a session."""

    def system(self, name: str, scope: str) -> tuple[Any, Type]: ...

    def user(self, name: str) -> tuple[Any, Type]: ...

    def set_user(self, name: str, value: Any, kind: Type) -> None: ...


class Subqueries(Protocol):
    """Runs queries inside of expressions."""

    def prepare(self, query: Query, scope: Scope) -> "PreparedQuery": ...


class PreparedQuery(Protocol):
    types: tuple[Type, ...]
    is_correlated: bool

    def rows(self) -> list[Sequence[Any]]: ...


@dataclass
class Context:
    """``now``: the statement's moment, in UTC and to the microsecond."""

    settings: Settings
    now: Time
    database: str = ""
    user: str = "root@127.0.0.1"
    connection_id: int = 0
    version: str = "8.0.11-TiDB-v8.5.0"
    last_insert_id: int = 0
    found_rows: int = 0
    row_count: int = 0
    parameters: Sequence[tuple[Any, Type]] = ()
    variables: Variables | None = None
    subqueries: Subqueries | None = None
    set_last_insert_id: Callable[[int], None] = lambda value: None
    is_interrupted: Callable[[], bool] = lambda: False
    current_ts: Callable[[], int] = lambda: 0
    extras: dict[str, Any] = field(default_factory=dict)
