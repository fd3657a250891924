"""Where tables are that somebody else is about to write: asked of the owner of the changefeed, one ask at a time.

What was said of a table is kept until somebody writes it, so a word that was lost can be said again. The rest is asked
for by itself, and while it is on its way nobody is given a table out of it: its next writer was told which it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.model.orders import Handover
from tidemill.model.schedule import REST, TableId, TableState, TableStatus, Takeover
from tidemill.model.ts import MAX_TS, Ts

UNKNOWN_TS = MAX_TS  # up to where something was written: nobody knows, so up to now


@dataclass(frozen=True, slots=True)
class HandOver:
    """Say where these tables are, which nobody writes any more, for those who are to write them next; and up to where
    changes may have been written without being committed: ``UNKNOWN_TS`` stands for now, None for nothing.

    ``ChangefeedOwner.hand_over`` says it of tables. Of ``REST``, which comes alone, ``Members.rest_of_the_gone`` does,
    once whoever had it was dismissed. The answer goes to ``Coordinator.handed_over``: None for a table that turned out
    to be one of the rest, with a capture that is there."""

    number: int
    tables: Mapping[TableId, Ts | None]


Whereabouts = Handover | Takeover


class Handovers:
    def __init__(self) -> None:
        self._wanted: dict[TableId, None] = {}
        self._known: dict[TableId, Whereabouts] = {}
        self._written: dict[TableId, Ts] = {}
        self._asked: HandOver | None = None
        self._made = 0

    def of(self, table: TableId) -> Whereabouts | None:
        return self._known.get(table)

    def want(self, table: TableId) -> None:
        if table not in self._known:
            self._wanted[table] = None

    def note_written(self, table: TableId, written_ts: Ts | None) -> None:
        """Somebody who had it may have written up to here. What was said of it before is out of date."""
        self._known.pop(table, None)
        if written_ts is not None:
            self._written[table] = max(written_ts, self._written.get(table, written_ts))

    def note_end(self, status: TableStatus, *, is_committing: bool) -> None:
        """Its writer says that it has stopped, or that it does not have it. ``is_committing``: it may be one that has
        still to begin."""
        if status.state is TableState.STOPPED:
            self.note_written(status.table, status.written_ts)
        elif not is_committing or status.table not in self._known:
            # It has written, and its last word is lost: nobody knows up to where.
            self.note_written(status.table, UNKNOWN_TS)

    def forget(self, table: TableId) -> None:
        """Somebody writes it, or nobody is to."""
        for each in (self._wanted, self._known, self._written):
            each.pop(table, None)

    def ask(self) -> HandOver | None:
        """What is to be asked for now."""
        if self._asked is not None or REST in self._known:
            return None
        named = [table for table in self._wanted if table != REST]
        tables = named or list(self._wanted)
        if not tables:
            return None
        self._made += 1
        self._asked = HandOver(self._made, {table: self._written.get(table) for table in tables})
        for table in tables:
            del self._wanted[table]
        return self._asked

    def answered(self, ask: HandOver, found: Mapping[TableId, Whereabouts | None]) -> list[TableId]:
        """Those of which it is known where they are now. Somebody may have written one since it was asked for: then it
        is asked for again."""
        if self._asked != ask:
            return []
        self._asked = None
        known = []
        for table, whereabouts in found.items():
            if self._written.get(table) != ask.tables.get(table):
                self.want(table)
            elif whereabouts is not None:
                self._known[table] = whereabouts
                known.append(table)
        return known
