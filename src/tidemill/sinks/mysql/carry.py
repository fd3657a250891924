"""Gets one DDL through, whatever of it the downstream cannot do as TiDB did.

The statement is run as it was typed, but for what only TiDB can spell (``rewrite``). CREATE TABLE is made of the
table's document, which says all that the statement leaves to defaults. Where a server that is no TiDB refuses it, it
gets less of what carries no rows, step by step: other names for foreign keys or none, no partitions. What is left is
to make the table anew, as it is upstream afterwards, and fill it from there.

A table that is partitioned upstream may thus not be so here (a GLOBAL index, rows that an exchange WITHOUT VALIDATION
put where they do not belong). Then DDLs on its partitions mean rows: those that go are deleted one by one.

Some DDLs change rows that no change tells of: a table that gets a key, a column that becomes another type, a table
that is brought back, a partition that is exchanged. Those rows are read from the upstream as of the DDL (``Refill``).
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pymysql

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import INTEGER_TYPES, ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import show
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.creation import UTC, Creation, is_virtual
from tidemill.sinks.mysql.dropped import Aside
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.place import PARTITIONING, Place, set_to
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.session import Downstream, SessionSettings, ask
from tidemill.sinks.mysql.zones import Clock, added_now, clock_of
from tidemill.tidb.lexer import QUOTED_NAME, quoted, unquoted

log = get_logger("mysql")

_OF_DATABASES: Final = frozenset({ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA, ActionType.MODIFY_SCHEMA_CHARSET})
_REMOVES_PARTITIONS: Final = frozenset({ActionType.DROP_TABLE_PARTITION, ActionType.TRUNCATE_TABLE_PARTITION})
_REPARTITIONS: Final = frozenset(
    {
        ActionType.ADD_TABLE_PARTITION, ActionType.REORGANIZE_PARTITION, ActionType.ALTER_TABLE_PARTITIONING,
        ActionType.REMOVE_PARTITIONING,
    }
)  # fmt: skip
_BY_ZONE: Final = frozenset(
    {
        ActionType.MODIFY_COLUMN, ActionType.MULTI_SCHEMA_CHANGE, ActionType.REORGANIZE_PARTITION,
        ActionType.ALTER_TABLE_PARTITIONING,
    }
)  # fmt: skip
_GLOBAL_INDEX: Final = 1503
_NO_TABLE: Final = 1146
_NO_DATABASE: Final = 1049
_NO_PLACE: Final = frozenset({_NO_TABLE, _NO_DATABASE})
_NO_COLUMN: Final = 1054
# A TiDB exchanges only what was made alike: the ids of columns and indexes have to be the same.
_MADE_OTHERWISE: Final = frozenset({1731, 1736})
_DEFINITION = re.compile(rf"^[( ](PARTITION ({QUOTED_NAME}) .*?)(?:,|\))$", re.MULTILINE)


class Carrier:
    """For one DDL, once: what it finds half done it completes."""

    def __init__(
        self,
        session: Any,
        event: DdlEvent,
        settings: SessionSettings,
        downstream: Downstream,
        lines: Lines,
        rows: Refill | None,
        on_rows: Callable[[], object] = lambda: None,
        *,
        is_new: bool = False,
    ) -> None:
        """``on_rows`` is called before an exchange begins that moves row by row, and so may stop halfway. ``is_new``:
        nothing of the DDL can have run before."""
        self._session, self._event, self._rows, self._is_new = session, event, rows, is_new
        self._on_rows = on_rows
        self._options = settings.options
        self._aside = Aside.of(self._options.changefeed, self._options.cluster_id)
        self._at = Place(session, event, settings, downstream, lines)
        self._creation = Creation(self._at, self._aside, rows)

    def carry_out(self, *, has_run: bool) -> None:
        """``has_run``: the statement itself has been, but perhaps not what follows it."""
        event = self._event
        if event.type not in _OF_DATABASES:
            ask(self._session, f"USE {quoted(event.schema)}")
        if event.type == ActionType.DROP_TABLE:
            self._drop()
        elif event.type == ActionType.RECOVER_TABLE:
            self._bring_back()
        elif event.type == ActionType.CREATE_TABLE:
            self._create()
        elif event.type == ActionType.CREATE_VIEW:
            self._create_view()
        elif event.type == ActionType.EXCHANGE_PARTITION:
            self._exchange(has_run=has_run)
        elif self._at.is_tidb or event.table_info is None or event.table_info.is_view:
            self._alter(has_run=has_run)
        elif event.type in _REMOVES_PARTITIONS:
            self._remove_partitions(has_run=has_run)
        elif event.type in _REPARTITIONS:
            self._repartition(has_run=has_run)
        else:
            self._alter(has_run=has_run)

    # The kinds of DDL

    def _drop(self) -> None:
        statement = self._aside.drop(self._session, self._event)
        try:
            self._at.run(Clock(statement))
        except pymysql.err.MySQLError as error:
            if failures.number_of(error) == _NO_TABLE:
                return
            if not self._at.is_for_us(error) or not statement.startswith("RENAME"):
                raise
            self._at.run(Clock(f"DROP TABLE {self._at.name}"))  # so it comes back, if at all, from the upstream

    def _create(self) -> None:
        event = self._event
        if self._at.is_tidb:
            is_like = event.is_like
            self._at.run(Clock(self._at.fitted(event.creation), UTC) if is_like else clock_of(event, self._bounded()))
        else:
            self._creation.make(event.creation, event.query)

    def _create_view(self) -> None:
        """A view holds no rows, so one that the downstream cannot have is not worth a stop. As it was typed, its tables
        may be those of another database, in which the session was."""
        try:
            self._at.run(Clock(self._at.fitted(self._event.creation or self._event.query)))
        except pymysql.err.MySQLError as error:
            if not (self._at.is_for_us(error) or failures.number_of(error) in {*_NO_PLACE, _NO_COLUMN}):
                raise
            log.warning("view left out", view=self._at.name, said=failures.text_of(error), query=self._event.query)
            with suppress(pymysql.err.MySQLError):  # one that this would have replaced
                ask(self._session, f"DROP VIEW IF EXISTS {self._at.name}")

    def _bring_back(self) -> None:
        """A table that was kept aside; or one that was truncated, or dropped before we could keep it."""
        event, table = self._event, self._event.table_info
        restored = self._aside.restore(self._session, event)
        if restored is not None:
            self._at.run(Clock(restored))
            return
        is_there = self._at.is_there(event.schema, event.table)
        if table is not None and self._rows is not None and event.creation:
            if not is_there:
                self._creation.make(event.creation, event.creation)
            if table.is_eligible:
                self._rows.copy(table, table.physical_ids, event.finished_ts)
        elif not is_there:
            raise SinkError(
                f"cannot bring back table {event.schema}.{event.table} at {self._options.place}: it was dropped before "
                f"this changefeed could keep it aside. Copy it as of {show(event.finished_ts)} from the upstream, then "
                "start again; nothing was skipped."
            )

    def _alter(self, *, has_run: bool) -> None:
        event, after = self._event, self._event.table_info
        is_new = self._rows is not None and event.gives_key
        if is_new:
            # What is there, if anything, was written while the table had another key, and is as old.
            ask(self._session, f"TRUNCATE TABLE {self._at.name}")
        clock = self._clock(self._bounded())
        if not clock.query:
            log.info("DDL skipped: it means nothing downstream", type=event.type, query=event.query)
        elif not has_run and self._run_fitted(clock):
            return  # made anew: with all its rows
        self._settle_defaults(clock)
        if self._rows is not None and after is not None and (is_new or (not self._at.is_tidb and is_converted(event))):
            self._rows.copy(after, after.physical_ids, event.finished_ts)

    def _remove_partitions(self, *, has_run: bool) -> None:
        event, after = self._event, self._event.table_info
        before = event.pre_table_info
        if has_run or before is None or after is None:
            self._alter(has_run=has_run)
            return
        left = {partition.id for partition in after.partitions}
        gone = [partition for partition in before.partitions if partition.id not in left]
        if not self._at.is_partitioned() or (self._at.is_hashed() and self._rows is not None):
            self._delete_rows(before, [partition.id for partition in gone])
            return
        verb = "DROP" if event.type == ActionType.DROP_TABLE_PARTITION else "TRUNCATE"
        names = ", ".join(quoted(partition.name) for partition in gone)
        self._at.run(Clock(f"ALTER TABLE {self._at.name} {verb} PARTITION {names}" if gone else ""))

    def _repartition(self, *, has_run: bool) -> None:
        """Which rows there are does not change, so at worst the table is not partitioned here any more."""
        event, before = self._event, self._event.pre_table_info
        if has_run or (before is not None and before.partitions and not self._at.is_partitioned()):
            return
        partitioning = event.creation[found.start() :] if (found := PARTITIONING.search(event.creation)) else ""
        whole = self._at.fitted(f"ALTER TABLE {self._at.name}{partitioning}") if partitioning else ""
        texts = [self._at.fitted(self._added_partitions(partitioning) or self._at.text()), whole]
        is_of_session = event.type != ActionType.ADD_TABLE_PARTITION and "UNIX_TIMESTAMP" in event.query.upper()
        # MariaDB leaves rows where they are when a DEFAULT partition is cut in two (10.11), and shows it nowhere.
        is_list = event.type == ActionType.REORGANIZE_PARTITION and self._at.is_partitioned_by("LIST")
        if event.type == ActionType.ALTER_TABLE_PARTITIONING or is_of_session or is_list:
            texts.reverse()  # as typed, bounds may depend on the time zone
        texts = [text for text in texts if text]
        for text in texts:
            try:
                self._at.run(clock_of(event, text))
                return
            except pymysql.err.MySQLError as error:
                if not self._at.is_for_us(error):
                    raise
                log.warning("repartitioning refused", table=self._at.name, said=failures.text_of(error))
        self._at.unpartition()

    def _added_partitions(self, partitioning: str) -> str:
        """ADD PARTITION with the bounds as they were understood: ``unix_timestamp('…')`` depends on the time zone."""
        event, before = self._event, self._event.pre_table_info
        if event.type != ActionType.ADD_TABLE_PARTITION or before is None or self._at.is_hashed():
            return ""
        known = {partition.name.lower() for partition in before.partitions}
        definitions = [d for d in _definitions(partitioning) if d[0].lower() not in known]
        text = ", ".join(definition for _, definition in definitions)
        return f"ALTER TABLE {self._at.name} ADD PARTITION ({text})" if text else ""

    def _exchange(self, *, has_run: bool) -> None:
        event, rows = self._event, self._rows
        after, plain = event.table_info, event.pre_table_info
        if rows is None or after is None or plain is None or not event.partition_id or not after.is_eligible:
            self._alter(has_run=has_run)
            return
        is_native = self._at.is_tidb or (
            self._at.is_partitioned() and not self._at.is_hashed() and not _read_differently(after, plain)
        )
        if has_run and is_native:
            return
        if is_native:
            try:
                self._at.run(Clock(self._at.fitted(event.query)))
                return
            except pymysql.err.MySQLError as error:
                is_otherwise = self._at.is_tidb and failures.number_of(error) in _MADE_OTHERWISE
                if not (self._at.is_for_us(error) or is_otherwise):
                    raise
                log.warning("exchanging rows as rows", table=self._at.name, said=failures.text_of(error))
                if not is_otherwise:
                    # A row that does not belong into the partition has no place in any other. From here on the table
                    # cannot be partitioned as the upstream's is.
                    self._at.unpartition()
        self._on_rows()
        rows.delete(after, [event.partition_id], event.finished_ts)
        rows.copy(after, [plain.id], event.finished_ts)
        ask(self._session, f"TRUNCATE TABLE {quoted(plain.schema)}.{quoted(plain.name)}")
        rows.copy(plain, [event.partition_id], event.finished_ts)

    # Statements

    def _bounded(self) -> str:
        """The statement; for a TiDB with the bounds of partitions as they were understood where the job does not tell
        by which time zone ``unix_timestamp('…')`` was."""
        event, found = self._event, PARTITIONING.search(self._event.creation)
        if not (self._at.is_tidb and found and "UNIX_TIMESTAMP" in event.query.upper()):
            return self._at.fitted(self._at.text())
        partitioning = event.creation[found.start() :]
        if event.type == ActionType.CREATE_TABLE:
            return self._at.fitted(event.query, keeps_partitions=False) + partitioning
        return self._at.fitted(self._added_partitions(partitioning) or self._at.text())

    def _clock(self, query: str) -> Clock:
        """A TiDB converts the rows itself when a column becomes another type, and works out bounds of partitions, by
        the session's time zone. Where others do, the rows are written again as the upstream has them."""
        event = self._event
        clock = clock_of(event, query)
        is_told = self._at.is_tidb and event.type in _BY_ZONE and clock.moment is None and event.time_zone
        if is_told and self._at.knows_zone(event.time_zone):
            return replace(clock, query=query, time_zone=event.time_zone)
        return clock

    def _run_fitted(self, clock: Clock) -> bool:
        """Run a statement on a table, with less and less of what the downstream refuses. True: the table was made anew
        instead."""
        event = self._event
        try:
            self._at.run(clock, is_whole=self._is_whole)
            return False
        except pymysql.err.MySQLError as error:
            is_ours = self._at.is_for_us(error) or (self._at.is_tidb and failures.is_about_foreign_key(error))
            if not is_ours or failures.number_of(error) in _NO_PLACE or event.table_info is None:
                raise
            refusal = error
        log.warning("DDL refused; trying it otherwise", table=self._at.name, said=failures.text_of(refusal))
        for adapt in (self._without_foreign_keys, self._without_partitions):
            adapted = adapt(clock, refusal)
            if adapted is None:
                continue
            try:
                self._at.run(adapted, is_whole=self._is_whole)
                return False
            except pymysql.err.MySQLError as error:
                if not self._at.is_for_us(error):
                    raise
                clock = adapted
        known = {index.name for index in event.pre_table_info.indexes} if event.pre_table_info else None
        if event.type == ActionType.ADD_INDEX and known is not None:
            added = [index for index in event.table_info.indexes if index.name not in known]
            if added and all(is_virtual(index, event.table_info) for index in added):
                log.warning("index of a virtual column left out", table=self._at.name, said=failures.text_of(refusal))
                return False
        if self._rows is None or not event.creation:
            raise refusal
        self._creation.make_anew()
        return True

    def _is_whole(self) -> bool:
        """Of a statement with several changes one may find its work done (an index that is there), and take the others
        along: then they are still to be made."""
        after = self._event.table_info
        if self._at.is_tidb or after is None or after.is_view or self._event.type != ActionType.MULTI_SCHEMA_CHANGE:
            return True
        return not self._is_new and self._at.has_columns_of(after)

    def _without_foreign_keys(self, clock: Clock, refusal: BaseException) -> Clock | None:
        """Dropping one is not replicated, so some may be left that upstream is not in the way of anything."""
        if not failures.is_about_foreign_key(refusal):
            return None
        for schema, table, key in ask(
            self._session,
            "SELECT constraint_schema, table_name, constraint_name FROM information_schema.referential_constraints "
            "WHERE (constraint_schema = %s AND table_name = %s) OR (unique_constraint_schema = %s AND "
            "referenced_table_name = %s)",
            (self._event.schema, self._event.table) * 2,
        ):
            ask(self._session, f"ALTER TABLE {quoted(schema)}.{quoted(table)} DROP FOREIGN KEY {quoted(key)}")
        query = self._at.fitted(self._at.text(), foreign_keys=replace(self._at.foreign_keys(), are_kept=False))
        return replace(clock, query=query)

    def _without_partitions(self, clock: Clock, refusal: BaseException) -> Clock | None:
        if failures.number_of(refusal) != _GLOBAL_INDEX or not self._at.is_partitioned():
            return None
        self._at.unpartition()
        return clock

    # Rows

    def _delete_rows(self, table: TableInfo, physical_ids: list[int]) -> None:
        if not table.is_eligible or not physical_ids:
            return
        if self._rows is None:
            raise SinkError(
                f"cannot empty table partitions of {table.full_name} at {self._options.place}, where the table is not "
                "partitioned: the upstream cannot be asked for their rows."
            )
        self._rows.delete(table, physical_ids, self._event.finished_ts)

    def _settle_defaults(self, clock: Clock) -> None:
        """A SET's default that has its empty member, which others drop from a text, for the rows that were there; and
        CURRENT_TIMESTAMP where columns that were added together have two, by two clocks."""
        event = self._event
        if self._at.is_tidb or event.table_info is None:
            return
        before = {column.id for column in event.pre_table_info.columns} if event.pre_table_info else None
        if before is None:
            return
        values = {}
        for column in event.table_info.columns:
            if column.id not in before and column.type is ColumnType.SET and "" in column.elems and column.default:
                values[column.name] = str(_bits(column, column.origin_default or column.default))
        moments = {c.origin_default for c in added_now(event)}
        if len(moments) > 1 and clock.moment is not None:
            values |= {c.name: f"'{c.origin_default}'" for c in added_now(event)}
        if values:
            kept = [c for c in event.table_info.columns if c.flag & ColumnFlag.ON_UPDATE_NOW and c.name not in values]
            values |= {column.name: quoted(column.name) for column in kept}
            sets = ", ".join(f"{quoted(column)} = {value}" for column, value in values.items())
            with set_to(self._session, Clock("", UTC)):
                ask(self._session, f"UPDATE {self._at.name} SET {sets}")


def is_converted(event: DdlEvent) -> bool:
    """Whether TiDB has written all rows anew, by rules of its own: a column has become another, of its name or, by
    CHANGE COLUMN, of a new one. Another TiDB does the same by itself."""
    before, after = event.pre_table_info, event.table_info
    if before is None or after is None or not before.is_eligible or not after.is_eligible:
        return False
    was = {column.name.lower(): column for column in before.columns}
    known = {column.id for column in before.columns}
    may_be_renamed = "CHANGE" in event.query.upper()
    for new in after.columns:
        old = was.get(new.name.lower())
        is_other = may_be_renamed if old is None else _is_other_kind(old, new)
        is_new = new.id not in known if old is None else new.id != old.id
        if is_new and is_other and not new.is_virtual:
            return True
    return False


def _definitions(partitioning: str) -> list[tuple[str, str]]:
    """Name and text of each partition that a CREATE TABLE ends with."""
    found = _DEFINITION.finditer(partitioning)
    return [(unquoted(each.group(2)), each.group(1)) for each in found]


def _read_differently(after: TableInfo, plain: TableInfo) -> bool:
    """Whether rows mean something else in the other table: where one was written before a column came, the table tells
    what the column is in it."""
    pairs = zip(after.columns, plain.columns, strict=False)
    return any(one.origin_default != other.origin_default for one, other in pairs)


def _is_other_kind(old: ColumnInfo, new: ColumnInfo) -> bool:
    return not (old.type in INTEGER_TYPES and new.type in INTEGER_TYPES)


def _bits(column: ColumnInfo, text: str) -> int:
    """The number of a SET's text, empty members counted."""
    wanted = {part.lower() for part in text.split(",")} if text else set()
    return sum(1 << at for at, element in enumerate(column.elems) if element.lower() in wanted)
