"""Where the rows of each table go: ``sink.dispatchers`` of a changefeed's file, the first entry that matches.

Dispatching (text, travels) ──► DispatchRules (read) ── table ──► Destination: topic, rule for partitions
"""

from dataclasses import dataclass
from typing import Any

from tidemill.flow.dispatcher.partition import Kind, PartitionRule
from tidemill.flow.dispatcher.topics import TopicExpression
from tidemill.flow.filter.rules import TableRules
from tidemill.flow.rawkv import is_of_keys
from tidemill.model.changefeed import ChangefeedConfig, Dispatch
from tidemill.model.table import TableInfo

_BY_KEY = PartitionRule(Kind.INDEX_VALUE)  # keys are in order each by itself, and a table of them is large


@dataclass(frozen=True, slots=True)
class Destination:
    topic: str
    rule: PartitionRule


@dataclass(frozen=True, slots=True)
class Dispatching:
    """What a changefeed's file says. Small and picklable."""

    entries: tuple[Dispatch, ...] = ()
    case_sensitive: bool = False

    @classmethod
    def of(cls, config: ChangefeedConfig) -> "Dispatching":
        return cls(config.dispatchers, config.case_sensitive)


class DispatchRules:
    """Raises ConfigError or FilterError for what cannot be read."""

    def __init__(self, dispatching: Dispatching, default_topic: str) -> None:
        self._dispatching = dispatching
        self._default_topic = default_topic
        self._entries = [
            _Entry(entry, f"sink.dispatchers[{i}]", dispatching.case_sensitive)
            for i, entry in enumerate(dispatching.entries)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dispatching, self._default_topic)

    def destination(self, table: TableInfo) -> Destination:
        entry = self._entry(table.schema, table.name)
        if entry is None:
            return Destination(self._default_topic, _BY_KEY if is_of_keys(table) else PartitionRule())
        return Destination(entry.topic.topic(table.schema, table.name, self._default_topic), entry.rule)

    def topic(self, schema: str, table: str) -> str:
        """Of a table, by its names; an empty one: of the database as a whole."""
        entry = self._entry(schema, table) if table else None
        return entry.topic.topic(schema, table, self._default_topic) if entry is not None else self._default_topic

    @property
    def may_mix_tables(self) -> bool:
        """Whether one topic may have rows of several tables, in theory at least."""
        return not any(entry.matches_all for entry in self._entries) or any(
            not entry.topic.is_of_one_table for entry in self._entries
        )

    def check(self, table: TableInfo) -> None:
        """Raises ConfigError if the rule that the table has does not fit it."""
        self.destination(table).rule.hashed_columns(table)

    def _entry(self, schema: str, table: str) -> "_Entry | None":
        return next((entry for entry in self._entries if entry.rules.matches(schema, table)), None)


class _Entry:
    def __init__(self, entry: Dispatch, place: str, case_sensitive: bool) -> None:
        self.rules = TableRules(entry.matcher, f"{place}.matcher", case_sensitive=case_sensitive)
        self.matches_all = "*.*" in entry.matcher
        self.topic = TopicExpression(entry.topic, f"{place}.topic")
        self.rule = PartitionRule.read(entry.partition, entry.index, entry.columns, place)
