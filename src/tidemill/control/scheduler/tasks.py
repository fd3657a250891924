"""What policies want done, and what of it is under way."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.model.schedule import CaptureId, TableId


@dataclass(frozen=True, slots=True)
class AddTables:
    """Nobody has them; this capture is to have them."""

    tables: tuple[TableId, ...]
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class ReturnTables:
    """Nobody has them, and they have no rows to come: this capture, which has the rest, takes them back."""

    tables: tuple[TableId, ...]
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class MoveTables:
    """They are written by one capture; another one is to have them."""

    tables: tuple[TableId, ...]
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class RemoveTables:
    """Whoever has them is to stop."""

    tables: tuple[TableId, ...]


Task = AddTables | ReturnTables | MoveTables | RemoveTables


@dataclass(frozen=True, slots=True)
class Plan:
    """``is_burst``: not held to the number of tasks that may be under way."""

    tasks: tuple[Task, ...] = ()
    is_burst: bool = False


class Running:
    """Tasks under way. Tables that move together are one task; it is over when each of them is where it should be."""

    def __init__(self) -> None:
        self._task_of: dict[TableId, int] = {}
        self._left: dict[int, int] = {}  # by task: how many of its tables are on their way
        self._made = 0

    def __len__(self) -> int:
        return len(self._left)

    def __contains__(self, table: TableId) -> bool:
        return table in self._task_of

    def begin(self, tables: Iterable[TableId]) -> None:
        named = [table for table in tables if table not in self._task_of]
        if named:
            self._made += 1
            self._task_of |= dict.fromkeys(named, self._made)
            self._left[self._made] = len(named)

    def end(self, table: TableId) -> None:
        task = self._task_of.pop(table, None)
        if task is not None:
            self._left[task] -= 1
            if not self._left[task]:
                del self._left[task]
