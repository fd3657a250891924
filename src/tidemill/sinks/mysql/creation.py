"""Making a table with as much of it as the downstream takes, step by step less."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pymysql

from tidemill.log import get_logger
from tidemill.model.table import IndexInfo, TableInfo
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.dropped import Aside
from tidemill.sinks.mysql.place import Place
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.rewrite import generated_in
from tidemill.sinks.mysql.session import ask
from tidemill.sinks.mysql.zones import Clock, clock_of
from tidemill.tidb.lexer import QUOTED_NAME

log = get_logger("mysql")

UTC: Final = "+00:00"
LONG_TEXT: Final = 256  # characters of a VARCHAR that may become TEXT where a row is too long
_NO_DATABASE: Final = 1049
_CREATION: Final = re.compile(rf"CREATE TABLE {QUOTED_NAME}")


class Creation:
    """Of the table of one event."""

    def __init__(self, at: Place, aside: Aside, rows: Refill | None) -> None:
        self._at, self._aside, self._rows = at, aside, rows
        self._session, self._event = at.session, at.event

    def make(self, creation: str, query: str, place: str | None = None) -> None:
        """Create the event's table, with as much as the downstream takes; under another name, if ``place`` is given."""
        refusal: pymysql.err.MySQLError | None = None
        for clock in self._creations(creation, query):
            if place is not None:
                clock = replace(clock, query=_CREATION.sub(lambda _: f"CREATE TABLE {place}", clock.query, count=1))
            try:
                self._at.run(clock)
                return
            except pymysql.err.MySQLError as error:
                if not self._at.is_for_us(error) or failures.number_of(error) == _NO_DATABASE:
                    raise
                log.warning("CREATE TABLE refused; trying it otherwise", said=failures.text_of(error))
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _creations(self, creation: str, query: str) -> Iterator[Clock]:
        keys = self._at.foreign_keys()
        without = replace(keys, are_kept=False)
        ways: list[dict[str, Any]] = [
            {"foreign_keys": keys},
            {"foreign_keys": without},
            {"foreign_keys": keys, "keeps_partitions": False},
            {"foreign_keys": without, "keeps_partitions": False},
            {"foreign_keys": without, "keeps_partitions": False, "widens_latin1": False},
            {"foreign_keys": keys, "keeps_default_expressions": False},
            {"foreign_keys": without, "keeps_partitions": False, "keeps_default_expressions": False},
        ]
        seen: set[str] = set()
        for bent in self._bent():
            for text, zone in ((creation, UTC), (query, None)):
                for more in ways:
                    fitted = self._at.fitted(text, **more, **bent)
                    if fitted and fitted not in seen:
                        seen.add(fitted)
                        yield Clock(fitted, zone) if zone else clock_of(self._event, fitted)

    def _bent(self) -> Iterator[dict[str, Any]]:
        """With long texts outside of the row, then with fewer and fewer generated columns: a server need not know their
        expressions, nor allow them."""
        yield {}
        table = self._event.table_info
        if table is None:  # told by a topic
            for names in generated_in(self._event.query):
                if names:
                    yield {"plain_columns": names}
            return
        indexed = {part.offset for index in table.indexes for part in index.columns}
        long = {c.name.lower() for c in table.columns if c.flen >= LONG_TEXT and c.offset not in indexed}
        if long:
            yield {"text_columns": frozenset(long)}
        left = frozenset(index.name.lower() for index in table.indexes if is_virtual(index, table))
        if left:
            yield {"left_indexes": left}
        generated = [column for column in table.columns if column.is_generated]
        for columns in ([column for column in generated if not column.is_virtual], generated):
            if columns:
                plain = frozenset(column.name.lower() for column in columns)
                yield {"plain_columns": plain, "text_columns": frozenset(long), "left_indexes": left}

    def make_anew(self) -> None:
        """The table as it is upstream, beside the one that is here, filled, and put into its place."""
        event, table = self._event, self._event.table_info
        assert table is not None
        assert self._rows is not None
        shadow = self._aside.place("anew", table.id, event.finished_ts)
        old = self._aside.place("old", table.id, event.finished_ts)
        log.warning("making the table anew, from the upstream", table=self._at.name, query=event.query)
        ask(self._session, f"DROP TABLE IF EXISTS {shadow}, {old}")
        self.make(event.creation, event.creation, shadow)
        if table.is_eligible:
            schema, _, called = shadow.replace("`", "").partition(".")
            self._rows.copy(table, table.physical_ids, event.finished_ts, (schema, called))
        if self._at.is_there(event.schema, event.table):
            ask(self._session, f"RENAME TABLE {self._at.name} TO {old}, {shadow} TO {self._at.name}")
            ask(self._session, f"DROP TABLE {old}")
        else:
            ask(self._session, f"RENAME TABLE {shadow} TO {self._at.name}")


def is_virtual(index: IndexInfo, table: TableInfo) -> bool:
    """Whether it has a virtual column, so that no row needs it: it is never the handle key."""
    return any(table.columns[part.offset].is_virtual for part in index.columns)
