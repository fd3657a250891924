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

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pymysql

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import INTEGER_TYPES, ColumnFlag, ColumnInfo, ColumnType, IndexInfo, TableInfo
from tidemill.model.ts import show
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.dropped import Aside
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.literals import plain_key_columns
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.rewrite import Fit, ForeignKeys, rewritten
from tidemill.sinks.mysql.session import Downstream, Flavor, SessionSettings, ask, closed, open_session
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
_NOT_PARTITIONED: Final = 1505
_GLOBAL_INDEX: Final = 1503
_NO_TABLE: Final = 1146
_NO_DATABASE: Final = 1049
_NO_PLACE: Final = frozenset({_NO_TABLE, _NO_DATABASE})
_ASYNC_AFTER_SECONDS = 5.0
_JOB_POLL_SECONDS = 0.5
_UTC = "+00:00"
_LONG_TEXT: Final = 256  # characters of a VARCHAR that may become TEXT where a row is too long
_CREATION = re.compile(rf"CREATE TABLE {QUOTED_NAME}")
_DEFINITION = re.compile(rf"^[( ](PARTITION ({QUOTED_NAME}) .*?)(?:,|\))$", re.MULTILINE)
_PARTITIONING = re.compile(r"\nPARTITION BY (\w+)")


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
    ) -> None:
        self._session, self._event, self._rows = session, event, rows
        self._settings, self._options, self._lines = settings, settings.options, lines
        self._downstream = downstream
        self._aside = Aside.of(self._options.changefeed, self._options.cluster_id)

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
        elif self._is_tidb or event.table_info is None or event.table_info.is_view:
            self._alter(has_run=has_run)
        elif event.type == ActionType.EXCHANGE_PARTITION:
            self._exchange(has_run=has_run)
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
            self._run(Clock(statement))
        except pymysql.err.MySQLError as error:
            if failures.number_of(error) == _NO_TABLE:
                return
            if not self._is_for_us(error) or not statement.startswith("RENAME"):
                raise
            self._run(Clock(f"DROP TABLE {self._place}"))  # so it comes back, if at all, from the upstream

    def _create(self) -> None:
        event = self._event
        if self._is_tidb:
            text = event.creation if event.is_like else event.query
            self._run(Clock(self._fitted(text), _UTC) if event.is_like else clock_of(event, self._fitted(text)))
        else:
            self._make(event.creation, event.query)

    def _create_view(self) -> None:
        """A view holds no rows, so one that the downstream cannot have is not worth a stop."""
        try:
            self._run(Clock(self._fitted(self._event.query)))
        except pymysql.err.MySQLError as error:
            if not self._is_for_us(error):
                raise
            log.warning("view left out", view=self._place, said=failures.text_of(error), query=self._event.query)
            with suppress(pymysql.err.MySQLError):  # one that this would have replaced
                ask(self._session, f"DROP VIEW IF EXISTS {self._place}")

    def _bring_back(self) -> None:
        """A table that was kept aside; or one that was truncated, or dropped before we could keep it."""
        event, table = self._event, self._event.table_info
        restored = self._aside.restore(self._session, event)
        if restored is not None:
            self._run(Clock(restored))
            return
        is_there = self._is_there(event.schema, event.table)
        if table is not None and self._rows is not None and event.creation:
            if not is_there:
                self._make(event.creation, event.creation)
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
            ask(self._session, f"TRUNCATE TABLE {self._place}")
        clock = clock_of(event, self._fitted(self._text()))
        if not clock.query:
            log.info("DDL skipped: it means nothing downstream", type=event.type, query=event.query)
        elif not has_run and self._run_fitted(clock):
            return  # made anew: with all its rows
        self._settle_defaults(clock)
        if self._rows is not None and after is not None and (is_new or self._is_converted()):
            self._rows.copy(after, after.physical_ids, event.finished_ts)

    def _remove_partitions(self, *, has_run: bool) -> None:
        event, after = self._event, self._event.table_info
        before = event.pre_table_info
        if has_run or before is None or after is None:
            self._alter(has_run=has_run)
            return
        left = {partition.id for partition in after.partitions}
        gone = [partition for partition in before.partitions if partition.id not in left]
        if not self._is_partitioned() or (self._is_hashed() and self._rows is not None):
            self._delete_rows(before, [partition.id for partition in gone])
            return
        verb = "DROP" if event.type == ActionType.DROP_TABLE_PARTITION else "TRUNCATE"
        names = ", ".join(quoted(partition.name) for partition in gone)
        self._run(Clock(f"ALTER TABLE {self._place} {verb} PARTITION {names}" if gone else ""))

    def _repartition(self, *, has_run: bool) -> None:
        """Which rows there are does not change, so at worst the table is not partitioned here any more."""
        event, before = self._event, self._event.pre_table_info
        if has_run or (before is not None and before.partitions and not self._is_partitioned()):
            return
        partitioning = event.creation[found.start() :] if (found := _PARTITIONING.search(event.creation)) else ""
        whole = self._fitted(f"ALTER TABLE {self._place}{partitioning}") if partitioning else ""
        texts = [self._fitted(self._added_partitions(partitioning) or self._text()), whole]
        is_of_session = event.type != ActionType.ADD_TABLE_PARTITION and "UNIX_TIMESTAMP" in event.query.upper()
        if event.type == ActionType.ALTER_TABLE_PARTITIONING or is_of_session:
            texts.reverse()  # as typed, bounds may depend on the time zone
        texts = [text for text in texts if text]
        for text in texts:
            try:
                self._run(clock_of(event, text))
                return
            except pymysql.err.MySQLError as error:
                if not self._is_for_us(error):
                    raise
                log.warning("repartitioning refused", table=self._place, said=failures.text_of(error))
        self._unpartition()

    def _added_partitions(self, partitioning: str) -> str:
        """ADD PARTITION with the bounds as they were understood: ``unix_timestamp('…')`` depends on the time zone."""
        event, before = self._event, self._event.pre_table_info
        if event.type != ActionType.ADD_TABLE_PARTITION or before is None or self._is_hashed():
            return ""
        known = {partition.name.lower() for partition in before.partitions}
        definitions = [d for d in _definitions(partitioning) if d[0].lower() not in known]
        text = ", ".join(definition for _, definition in definitions)
        return f"ALTER TABLE {self._place} ADD PARTITION ({text})" if text else ""

    def _exchange(self, *, has_run: bool) -> None:
        event, rows = self._event, self._rows
        after, plain = event.table_info, event.pre_table_info
        if rows is None or after is None or plain is None or not event.partition_id or not after.is_eligible:
            self._alter(has_run=has_run)
            return
        is_native = self._is_partitioned() and not self._is_hashed() and not _read_differently(after, plain)
        if has_run and is_native:
            return
        if is_native:
            try:
                self._run(Clock(self._fitted(event.query)))
                return
            except pymysql.err.MySQLError as error:
                if not self._is_for_us(error):
                    raise
                log.warning("exchanging rows as rows", table=self._place, said=failures.text_of(error))
                # A row that does not belong into the partition has no place in any other. From here on the table
                # cannot be partitioned as the upstream's is.
                self._unpartition()
        rows.delete(after, [event.partition_id], event.finished_ts)
        rows.copy(after, [plain.id], event.finished_ts)
        ask(self._session, f"TRUNCATE TABLE {quoted(plain.schema)}.{quoted(plain.name)}")
        rows.copy(plain, [event.partition_id], event.finished_ts)

    # Statements

    def _run_fitted(self, clock: Clock) -> bool:
        """Run a statement on a table, with less and less of what the downstream refuses. True: the table was made anew
        instead."""
        event = self._event
        try:
            self._run(clock)
            return False
        except pymysql.err.MySQLError as error:
            if not self._is_for_us(error) or failures.number_of(error) in _NO_PLACE or event.table_info is None:
                raise
            refusal = error
        log.warning("DDL refused; trying it otherwise", table=self._place, said=failures.text_of(refusal))
        for adapt in (self._without_foreign_keys, self._without_partitions):
            adapted = adapt(clock, refusal)
            if adapted is None:
                continue
            try:
                self._run(adapted)
                return False
            except pymysql.err.MySQLError as error:
                if not self._is_for_us(error):
                    raise
                clock = adapted
        known = {index.name for index in event.pre_table_info.indexes} if event.pre_table_info else None
        if event.type == ActionType.ADD_INDEX and known is not None:
            added = [index for index in event.table_info.indexes if index.name not in known]
            if added and all(_is_virtual(index, event.table_info) for index in added):
                log.warning("index of a virtual column left out", table=self._place, said=failures.text_of(refusal))
                return False
        if self._rows is None or not event.creation:
            raise refusal
        self._make_anew()
        return True

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
        query = self._fitted(self._text(), foreign_keys=replace(self._foreign_keys(), are_kept=False))
        return replace(clock, query=query)

    def _without_partitions(self, clock: Clock, refusal: BaseException) -> Clock | None:
        if failures.number_of(refusal) != _GLOBAL_INDEX or not self._is_partitioned():
            return None
        self._unpartition()
        return clock

    def _make(self, creation: str, query: str, place: str | None = None) -> None:
        """Create the event's table, with as much as the downstream takes; under another name, if ``place`` is given."""
        refusal: pymysql.err.MySQLError | None = None
        for clock in self._creations(creation, query):
            if place is not None:
                clock = replace(clock, query=_CREATION.sub(lambda _: f"CREATE TABLE {place}", clock.query, count=1))
            try:
                self._run(clock)
                return
            except pymysql.err.MySQLError as error:
                if not self._is_for_us(error) or failures.number_of(error) == _NO_DATABASE:
                    raise
                log.warning("CREATE TABLE refused; trying it otherwise", said=failures.text_of(error))
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _creations(self, creation: str, query: str) -> Iterator[Clock]:
        keys = self._foreign_keys()
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
            for text, zone in ((creation, _UTC), (query, None)):
                for more in ways:
                    fitted = self._fitted(text, **more, **bent)
                    if fitted and fitted not in seen:
                        seen.add(fitted)
                        yield Clock(fitted, zone) if zone else clock_of(self._event, fitted)

    def _bent(self) -> Iterator[dict[str, Any]]:
        """With long texts outside of the row, then with fewer and fewer generated columns: a server need not know their
        expressions, nor allow them."""
        yield {}
        table = self._event.table_info
        if table is None:
            return
        indexed = {part.offset for index in table.indexes for part in index.columns}
        long = {c.name.lower() for c in table.columns if c.flen >= _LONG_TEXT and c.offset not in indexed}
        if long:
            yield {"text_columns": frozenset(long)}
        left = frozenset(index.name.lower() for index in table.indexes if _is_virtual(index, table))
        if left:
            yield {"left_indexes": left}
        generated = [column for column in table.columns if column.is_generated]
        for columns in ([column for column in generated if not column.is_virtual], generated):
            if columns:
                plain = frozenset(column.name.lower() for column in columns)
                yield {"plain_columns": plain, "text_columns": frozenset(long), "left_indexes": left}

    def _make_anew(self) -> None:
        """The table as it is upstream, beside the one that is here, filled, and put into its place."""
        event, table = self._event, self._event.table_info
        assert table is not None
        assert self._rows is not None
        shadow = self._aside.place("anew", table.id, event.finished_ts)
        old = self._aside.place("old", table.id, event.finished_ts)
        log.warning("making the table anew, from the upstream", table=self._place, query=event.query)
        ask(self._session, f"DROP TABLE IF EXISTS {shadow}, {old}")
        self._make(event.creation, event.creation, shadow)
        if table.is_eligible:
            schema, _, called = shadow.replace("`", "").partition(".")
            self._rows.copy(table, table.physical_ids, event.finished_ts, (schema, called))
        if self._is_there(event.schema, event.table):
            ask(self._session, f"RENAME TABLE {self._place} TO {old}, {shadow} TO {self._place}")
            ask(self._session, f"DROP TABLE {old}")
        else:
            ask(self._session, f"RENAME TABLE {shadow} TO {self._place}")

    def _run(self, clock: Clock) -> None:
        """Run a statement; one that finds its work done has done it."""
        if not clock.query:
            return
        try:
            with _set_to(self._session, clock):
                if self._is_tidb and self._event.type == ActionType.ADD_INDEX:
                    self._add_index(clock.query)
                else:
                    ask(self._session, clock.query)
        except pymysql.err.MySQLError as error:
            if failures.number_of(error) not in failures.DDL_DONE:
                raise
            log.warning("DDL found its work done", query=clock.query, said=failures.text_of(error))

    def _add_index(self, query: str) -> None:
        """Filling an index may take hours and holds up nobody's rows: once its job runs, it goes on by itself."""
        event, failed = self._event, list[BaseException]()

        def work() -> None:
            try:
                other = open_session(self._settings, self._lines)
                try:
                    ask(other, f"USE {quoted(event.schema)}")
                    ask(other, query)
                finally:
                    closed(other)
            except (pymysql.err.MySQLError, OSError) as error:
                failed.append(error)

        thread = threading.Thread(target=work, name="add-index", daemon=True)
        thread.start()
        thread.join(_ASYNC_AFTER_SECONDS)
        while thread.is_alive() and not has_job(self._session, event, is_add_index=True):
            thread.join(_JOB_POLL_SECONDS)
        if failed:
            raise failed[0]
        if thread.is_alive():
            log.info("ADD INDEX goes on downstream by itself", table=self._place, query=query)

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

    def _is_converted(self) -> bool:
        """Whether TiDB has written all rows anew, by rules of its own: a column has become another of its name."""
        before, after = self._event.pre_table_info, self._event.table_info
        if self._is_tidb or before is None or after is None or not before.is_eligible or not after.is_eligible:
            return False
        was = {column.name.lower(): column for column in before.columns}
        pairs = ((was.get(c.name.lower()), c) for c in after.columns if not c.is_virtual)
        return any(old is not None and old.id != new.id and _is_other_kind(old, new) for old, new in pairs)

    def _settle_defaults(self, clock: Clock) -> None:
        """A SET's default that has its empty member, which others drop from a text, for the rows that were there; and
        CURRENT_TIMESTAMP where columns that were added together have two, by two clocks."""
        event = self._event
        if self._is_tidb or event.table_info is None:
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
            with _set_to(self._session, Clock("", _UTC)):
                ask(self._session, f"UPDATE {self._place} SET {sets}")

    # What is there

    @property
    def _is_tidb(self) -> bool:
        return self._downstream.flavor is Flavor.TIDB

    @property
    def _place(self) -> str:
        return f"{quoted(self._event.schema)}.{quoted(self._event.table)}"

    def _is_for_us(self, error: BaseException) -> bool:
        """Whether a refusal is about what the statement wants, so that it may be wanted otherwise."""
        return not (self._is_tidb or failures.is_passing(error) or failures.is_forbidden(error))

    def _is_there(self, schema: str, table: str) -> bool:
        here = "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name=%s"
        return bool(ask(self._session, here, (schema, table)))

    def _is_partitioned(self) -> bool:
        return bool(
            ask(
                self._session,
                "SELECT 1 FROM information_schema.partitions WHERE table_schema=%s AND table_name=%s AND "
                "partition_name IS NOT NULL LIMIT 1",
                (self._event.schema, self._event.table),
            )
        )

    def _is_hashed(self) -> bool:
        """Others put a row by a hash into another partition than TiDB does."""
        found = _PARTITIONING.search(self._event.creation)
        return found is not None and found.group(1) in ("HASH", "KEY")

    def _unpartition(self) -> None:
        if self._is_partitioned():
            log.warning("table is not partitioned downstream from here on", table=self._place)
            ask(self._session, f"ALTER TABLE {self._place} REMOVE PARTITIONING")

    # Text

    def _text(self) -> str:
        event = self._event
        if event.type == ActionType.RENAME_TABLE and event.pre_table:
            return f"RENAME TABLE {quoted(event.pre_schema)}.{quoted(event.pre_table)} TO {self._place}"
        return event.query

    def _fitted(self, query: str, **more: Any) -> str:
        table = self._event.table_info
        has_plain_keys = self._downstream.has_plain_keys and table is not None
        fit = Fit(
            has_vectors=self._downstream.has_vectors and not self._options.has_vector_type,
            plain_columns=plain_key_columns(table) if table is not None and has_plain_keys else frozenset(),
            place=(self._event.schema, self._event.table),
            expressions=_expressions(table) if table is not None else {},
        )
        return rewritten(query, self._downstream, replace(fit, **({"foreign_keys": self._foreign_keys()} | more)))

    def _foreign_keys(self) -> ForeignKeys:
        return ForeignKeys(added=self._unique_name, dropped=self._known_name)

    def _unique_name(self, key: str) -> str:
        """One that no other table of the database has."""
        event = self._event
        taken = ask(
            self._session,
            "SELECT 1 FROM information_schema.table_constraints WHERE constraint_schema=%s AND constraint_name=%s AND "
            "table_name<>%s",
            (event.schema, key, event.table),
        )
        if not taken:
            return key
        digest = hashlib.sha256(f"{event.schema}\0{event.table}\0{event.finished_ts}\0{key}".encode()).hexdigest()
        return f"{key[:50]}__{digest[:8]}"

    def _known_name(self, key: str) -> str | None:
        """The one under which a foreign key of the event's table was made; None: there is none."""
        found = ask(
            self._session,
            "SELECT constraint_name FROM information_schema.table_constraints WHERE constraint_schema=%s AND "
            "table_name=%s AND constraint_type='FOREIGN KEY'",
            (self._event.schema, self._event.table),
        )
        names = [str(each) for (each,) in found]
        made = re.compile(re.escape(key[:50]) + r"__[0-9a-f]{8}", re.IGNORECASE)
        same = [each for each in names if each.lower() == key.lower()] + [n for n in names if made.fullmatch(n)]
        return same[0] if same else None


def has_job(session: Any, event: DdlEvent, *, is_add_index: bool) -> bool:
    """Whether a TiDB has work left on the table, of this kind or of any other."""
    kind = "LIKE" if is_add_index else "NOT LIKE"
    found = ask(
        session,
        "SELECT 1 FROM information_schema.ddl_jobs WHERE db_name=%s AND table_name=%s AND "
        f"job_type {kind} 'add index%%' AND state IN ('running', 'queueing') LIMIT 1",
        (event.pre_schema or event.schema, event.pre_table or event.table),
    )
    return bool(found)


@contextmanager
def _set_to(session: Any, clock: Clock) -> Iterator[None]:
    """The session's time zone and moment are these meanwhile."""
    if clock.time_zone is not None:
        ask(session, f"SET @tidemill_zone = @@SESSION.time_zone, SESSION time_zone = '{clock.time_zone}'")
    if clock.moment is not None:
        ask(session, f"SET TIMESTAMP = {clock.moment}")
    try:
        yield
    finally:
        with suppress(pymysql.err.MySQLError, OSError):  # whoever lost it opens another one
            if session.open and clock.moment is not None:
                ask(session, "SET TIMESTAMP = DEFAULT")
            if session.open and clock.time_zone is not None:
                ask(session, "SET SESSION time_zone = @tidemill_zone")


def _is_virtual(index: IndexInfo, table: TableInfo) -> bool:
    """Whether it has a virtual column, so that no row needs it: it is never the handle key."""
    return any(table.columns[part.offset].is_virtual for part in index.columns)


def _expressions(table: TableInfo) -> dict[str, str]:
    """Of generated columns, as TiDB understood them."""
    return {c.name.lower(): c.generated_expr for c in table.columns if c.is_generated}


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
