"""Which topics have readers who wait for a resolved-ts: those of tables that are there, and the default one.

A topic whose last table was dropped, or renamed away, is told once more, of a resolved-ts at or above the DDL, and then
no more. Pure.
"""

from collections.abc import Iterable

from tidemill.errors import ConfigError
from tidemill.flow.dispatcher import DispatchRules
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts

_DROPS = (ActionType.DROP_TABLE, ActionType.DROP_VIEW)


class Audience:
    """``has_one_table``: what the protocol writes into a topic has to be of one table."""

    def __init__(self, rules: DispatchRules, default_topic: str, *, has_one_table: bool = False) -> None:
        self._rules, self._default = rules, default_topic
        self._has_one_table = has_one_table and rules.may_mix_tables
        self._tables: dict[tuple[str, str], str] = {}  # by names: their topics
        self._leaving: dict[str, Ts] = {}  # topics that hear of one more resolved-ts, from here on
        self._others: set[str] = set()  # that rows went to, of tables that nobody told of

    def add(self, table: TableInfo) -> None:
        """Raises ConfigError where the table's topic has another one's rows, and must not."""
        if table.is_view:
            return
        place, topic = (table.schema, table.name), self._rules.topic(table.schema, table.name)
        if self._has_one_table:
            for other, taken in self._tables.items():
                if taken == topic and other != place:
                    raise ConfigError(
                        f"tables {'.'.join(other)} and {table.full_name} would share topic {topic!r}, which protocol "
                        "avro cannot: a topic has the schema of one table. Give each a topic of its own with "
                        "sink.dispatchers: topic = 'cdc_{schema}_{table}'."
                    )
        self._tables[place] = topic
        self._leaving.pop(topic, None)

    def use(self, topics: Iterable[str]) -> None:
        """Rows went there."""
        self._others.update(topics)

    def follow(self, event: DdlEvent) -> None:
        """What the DDL leaves."""
        if event.type == ActionType.DROP_SCHEMA:
            for schema, name in [place for place in self._tables if place[0] == event.schema]:
                self._drop(schema, name, event.finished_ts)
        elif event.type in _DROPS:
            self._drop(event.schema, event.table, event.finished_ts)
        else:
            if event.type == ActionType.RENAME_TABLE and event.pre_table:
                self._drop(event.pre_schema, event.pre_table, event.finished_ts)
            if event.table_info is not None:
                self.add(event.table_info)

    def topics(self) -> set[str]:
        """Those that are to hear of the next resolved-ts."""
        return {self._default, *self._tables.values(), *self._leaving, *self._others}

    def told(self, resolved_ts: Ts) -> None:
        """They have heard of it."""
        self._leaving = {topic: ts for topic, ts in self._leaving.items() if ts > resolved_ts}

    def _drop(self, schema: str, name: str, at: Ts) -> None:
        topic = self._tables.pop((schema, name), None) or self._rules.topic(schema, name)
        if topic not in self._tables.values():
            self._others.discard(topic)
            self._leaving[topic] = at
