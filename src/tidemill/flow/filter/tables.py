"""Which tables a changefeed captures, and which DDLs go downstream.

Both are judged by the upstream's names. Runs in the capture.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from tidemill.errors import FilterError
from tidemill.flow.filter import events
from tidemill.flow.filter.rules import Expression, TableRules
from tidemill.flow.schema.effects import SYSTEM_SCHEMAS
from tidemill.log import get_logger
from tidemill.model.changefeed import ChangefeedConfig, EventFilter
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo

_MOST_NAMED = 10

log = get_logger("filter")


class TableFilter:
    """``filter.rules``, beside which system databases are always out."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self._rules = TableRules(config.rules, "filter.rules", case_sensitive=config.case_sensitive)
        self._force_replicate = config.force_replicate
        self._ignore_ineligible = config.ignore_ineligible_table

    def matches(self, schema: str, table: str) -> bool:
        return schema.lower() not in SYSTEM_SCHEMAS and self._rules.matches(schema, table)

    def matches_schema(self, schema: str) -> bool:
        """Whether a DDL of the whole database concerns us."""
        return schema.lower() not in SYSTEM_SCHEMAS and self._rules.matches_schema(schema)

    def captures(self, table: TableInfo) -> bool:
        """Whether rows of the table are captured. Views and sequences have none."""
        if table.is_view or table.is_sequence or not self.matches(table.schema, table.name):
            return False
        return table.is_eligible or self._force_replicate

    def leaves_out(self, table: TableInfo) -> bool:
        """Whether the rules ask for the table, but its rows cannot be told apart."""
        return self._is_lacking(table) and not self._force_replicate

    def _is_lacking(self, table: TableInfo) -> bool:
        has_rows = not table.is_view and not table.is_sequence
        return has_rows and not table.is_eligible and self.matches(table.schema, table.name)

    def check_eligible(self, tables: Iterable[TableInfo]) -> None:
        """At the start: raises FilterError if rows of tables that the rules ask for cannot be told apart."""
        if self._force_replicate or self._ignore_ineligible:
            return
        lacking = sorted(table.full_name for table in tables if self._is_lacking(table))
        if lacking:
            raise FilterError(
                f"{len(lacking)} of the tables have neither a primary key nor a unique one of NOT NULL columns, so "
                f"their rows cannot be told apart: {_some(lacking)}. Give them a key, leave them out by filter.rules "
                "of the changefeed's file (--config), or take ignore-ineligible-table = false out of it to start "
                "without their rows."
            )


class LeftOut:
    """The tables that the rules ask for and that are left out all the same. Each is named in the log, once."""

    def __init__(self, filter: TableFilter) -> None:
        self._filter = filter
        self._names: dict[int, str] = {}  # by table id; one that was dropped stays: its rows were never captured

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._names.values()))

    def note(self, tables: Iterable[TableInfo]) -> None:
        """All that there are now."""
        found: dict[int, str] = {}
        for table in tables:
            if self._filter.leaves_out(table):
                found[table.id] = table.full_name
            else:
                self._names.pop(table.id, None)
        new = sorted(name for id, name in found.items() if id not in self._names)
        self._names |= found
        if new:
            log.warning(
                "tables without a primary key, or a unique key of NOT NULL columns, are left out; give them a key",
                tables=_some(new),
                count=len(new),
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")


class Verdict(Enum):
    """What becomes of a DDL."""

    NORMAL = "normal"  # it goes downstream
    IGNORED = "ignored"  # an event filter holds it back; the schema changes all the same
    DISCARDED = "discarded"  # it concerns no table of this changefeed


class DdlFilter:
    """Judges DDLs. Raises FilterError where none of the verdicts would be right."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self._tables = TableFilter(config)
        self._ignored_start_ts = config.ignore_txn_start_ts
        entries = enumerate(config.event_filters)
        self._entries = [_Entry(entry, f"filter.event-filters[{i}]", config.case_sensitive) for i, entry in entries]

    def keeps(self, event: DdlEvent) -> bool:
        """Whether it goes downstream."""
        return self.judge(event) is Verdict.NORMAL

    def judge(self, event: DdlEvent) -> Verdict:
        if event.start_ts in self._ignored_start_ts or not self._concerns(event):
            return Verdict.DISCARDED
        return Verdict.IGNORED if any(entry.ignores(event) for entry in self._entries) else Verdict.NORMAL

    def _concerns(self, event: DdlEvent) -> bool:
        if not event.table:
            return self._tables.matches_schema(event.schema)
        is_in = self._tables.matches(event.schema, event.table)
        if event.type == ActionType.EXCHANGE_PARTITION:
            return self._exchange(event, is_in)
        if event.type != ActionType.RENAME_TABLE or not event.pre_table:
            return is_in
        was_in = self._tables.matches(event.pre_schema, event.pre_table)
        if is_in and not was_in:
            raise FilterError(
                f"table {event.pre_schema}.{event.pre_table} was outside filter.rules and has become "
                f"{event.schema}.{event.table}, which is inside (DDL at {event.finished_ts}): its rows up to now are "
                "not downstream. Take both names into filter.rules, or the new one out, and copy the table first."
            )
        return was_in

    def _exchange(self, event: DdlEvent, is_in: bool) -> bool:
        if is_in != self._tables.matches(event.pre_schema, event.pre_table):
            raise FilterError(
                f"tables {event.schema}.{event.table} and {event.pre_schema}.{event.pre_table} exchange a partition "
                f"(DDL at {event.finished_ts}), and only one of them is inside filter.rules: its new rows are not "
                "downstream. Take both into filter.rules, or both out, and copy them first."
            )
        return is_in


class _Entry:
    """One of ``filter.event-filters``, as far as it is about DDLs."""

    def __init__(self, entry: EventFilter, place: str, case_sensitive: bool) -> None:
        self._rules = TableRules(entry.matcher, f"{place}.matcher", case_sensitive=case_sensitive)
        _, self._kinds = events.read(entry.ignore_event, f"{place}.ignore-event")
        texts = enumerate(entry.ignore_sql)
        self._patterns = [Expression(text, f"{place}.ignore-sql[{i}]", is_folding=True) for i, text in texts]

    def ignores(self, event: DdlEvent) -> bool:
        """A renamed table counts by its old name; a DDL of a database, if any of its tables may match."""
        if not event.table:
            matches = self._rules.matches_schema(event.schema)
        elif event.type == ActionType.RENAME_TABLE and event.pre_table:
            matches = self._rules.matches(event.pre_schema, event.pre_table)
        else:
            matches = self._rules.matches(event.schema, event.table)
        if not matches:
            return False
        return event.type in self._kinds or any(pattern.is_found(event.query) for pattern in self._patterns)
