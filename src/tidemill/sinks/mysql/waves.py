"""Which DDLs may run at the same time. Pure.

    events, in order ─► waves: those of one wave have nothing to do with each other, and run in any order

Ids of tables do not tell: one that is dropped, and one that is then made under its name, have different ones, and
downstream it is names that stand in each other's way. What uses a name comes behind what used it before; a database
is used by all that uses a table of it. Kinds of which more is not known go by themselves, and so does whatever names a
table beside its own.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.ts import Ts
from tidemill.sinks.mysql.carry import is_converted

_OF_A_DATABASE: Final = frozenset({ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA})
_OF_ONE_TABLE: Final = frozenset(
    {
        ActionType.CREATE_TABLE, ActionType.DROP_TABLE, ActionType.TRUNCATE_TABLE, ActionType.RENAME_TABLE,
        ActionType.ADD_COLUMN, ActionType.DROP_COLUMN, ActionType.ADD_COLUMNS, ActionType.DROP_COLUMNS,
        ActionType.MODIFY_COLUMN, ActionType.SET_DEFAULT_VALUE, ActionType.ADD_INDEX, ActionType.DROP_INDEX,
        ActionType.RENAME_INDEX, ActionType.MODIFY_TABLE_COMMENT, ActionType.MULTI_SCHEMA_CHANGE,
    }
)  # fmt: skip


def waves(events: Sequence[DdlEvent]) -> list[list[DdlEvent]]:
    """The same events: each in a wave behind those of all events before it that it has to do with."""
    found: list[list[DdlEvent]] = []
    floor = 0  # the first wave that one may still be put into
    of_table: dict[tuple[str, str], int] = {}  # the wave of the last that used it
    of_database: dict[str, int] = {}  # the same, of the database as a whole
    in_database: dict[str, int] = {}  # the same, of the database or of any of its tables
    for event in events:
        if not _is_plain(event):
            found.append([event])
            floor = len(found)
            continue
        tables = _tables(event)
        databases = {schema for schema, _ in tables} or {event.schema.lower()}
        if tables:
            before = [of_table.get(table, -1) for table in tables] + [of_database.get(each, -1) for each in databases]
        else:
            before = [in_database.get(each, -1) for each in databases]
        number = max(floor, max(before) + 1)
        if number == len(found):
            found.append([])
        found[number].append(event)
        of_table |= dict.fromkeys(tables, number)
        if not tables:
            of_database |= dict.fromkeys(databases, number)
        in_database |= {each: max(number, in_database.get(each, -1)) for each in databases}
    return found


class Prefix:
    """How many of the first events have run, told as it grows. From any thread."""

    def __init__(self, events: Sequence[DdlEvent], tell: Callable[[int], None]) -> None:
        self._left = [(event.finished_ts, event.seq) for event in reversed(events)]
        self._all, self._done, self._tell = len(events), set[tuple[Ts, int]](), tell
        self._lock = threading.Lock()

    def note(self, event: DdlEvent) -> None:
        with self._lock:
            self._done.add((event.finished_ts, event.seq))
            before = len(self._left)
            while self._left and self._left[-1] in self._done:
                self._left.pop()
            if len(self._left) < before:
                self._tell(self._all - len(self._left))


def _is_plain(event: DdlEvent) -> bool:
    """Whether it uses no names but those that it is said to be of, and needs no rows of the upstream's."""
    if event.type in _OF_A_DATABASE:
        return True
    if event.type not in _OF_ONE_TABLE or event.is_like or event.gives_key or is_converted(event):
        return False
    tables = [table for table in (event.table_info, event.pre_table_info) if table is not None]
    is_alone = "references" not in f"{event.query} {event.creation}".lower()  # as a foreign key does
    return bool(event.table) and is_alone and not any(table.is_view for table in tables)


def _tables(event: DdlEvent) -> set[tuple[str, str]]:
    """By the names before and after."""
    if event.type in _OF_A_DATABASE:
        return set()
    places = {(event.schema.lower(), event.table.lower())}
    if event.pre_table:
        places.add(((event.pre_schema or event.schema).lower(), event.pre_table.lower()))
    return places
