"""One DDL's table downstream: what is there, how the statement is spelled for it, and running it."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pymysql

from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.literals import plain_key_columns
from tidemill.sinks.mysql.rewrite import Fit, ForeignKeys, rewritten
from tidemill.sinks.mysql.session import Downstream, Flavor, SessionSettings, ask, closed, open_session
from tidemill.sinks.mysql.zones import Clock
from tidemill.tidb.lexer import quoted

log = get_logger("mysql")

PARTITIONING: Final = re.compile(r"\nPARTITION BY (\w+)")
_ASYNC_AFTER_SECONDS = 5.0
_JOB_POLL_SECONDS = 0.5


class Place:
    def __init__(
        self, session: Any, event: DdlEvent, settings: SessionSettings, downstream: Downstream, lines: Lines
    ) -> None:
        self.session, self.event = session, event
        self._settings, self._options, self._lines = settings, settings.options, lines
        self._downstream = downstream

    @property
    def is_tidb(self) -> bool:
        return self._downstream.flavor is Flavor.TIDB

    @property
    def name(self) -> str:
        return f"{quoted(self.event.schema)}.{quoted(self.event.table)}"

    def is_for_us(self, error: BaseException) -> bool:
        """Whether a refusal is about what the statement wants, so that it may be wanted otherwise."""
        return not (self.is_tidb or failures.is_passing(error) or failures.is_forbidden(error))

    def is_there(self, schema: str, table: str) -> bool:
        here = "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name=%s"
        return bool(ask(self.session, here, (schema, table)))

    def is_partitioned(self) -> bool:
        return bool(
            ask(
                self.session,
                "SELECT 1 FROM information_schema.partitions WHERE table_schema=%s AND table_name=%s AND "
                "partition_name IS NOT NULL LIMIT 1",
                (self.event.schema, self.event.table),
            )
        )

    def is_hashed(self) -> bool:
        """Others put a row by a hash into another partition than TiDB does."""
        return self.is_partitioned_by("HASH", "KEY")

    def is_partitioned_by(self, *kinds: str) -> bool:
        """Whether the upstream's table is."""
        found = PARTITIONING.search(self.event.creation)
        return found is not None and found.group(1) in kinds

    def unpartition(self) -> None:
        if self.is_partitioned():
            log.warning("table is not partitioned downstream from here on", table=self.name)
            ask(self.session, f"ALTER TABLE {self.name} REMOVE PARTITIONING")

    def text(self) -> str:
        event = self.event
        if event.type == ActionType.RENAME_TABLE and event.pre_table:
            return f"RENAME TABLE {quoted(event.pre_schema)}.{quoted(event.pre_table)} TO {self.name}"
        return event.query

    def fitted(self, query: str, **more: Any) -> str:
        table = self.event.table_info
        has_plain_keys = self._downstream.has_plain_keys and table is not None
        fit = Fit(
            has_vectors=self._downstream.has_vectors and not self._options.has_vector_type,
            plain_columns=plain_key_columns(table) if table is not None and has_plain_keys else frozenset(),
            place=(self.event.schema, self.event.table),
            expressions=_expressions(table) if table is not None else {},
        )
        return rewritten(query, self._downstream, replace(fit, **({"foreign_keys": self.foreign_keys()} | more)))

    def foreign_keys(self) -> ForeignKeys:
        return ForeignKeys(added=self._unique_name, dropped=self._known_name)

    def _unique_name(self, key: str) -> str:
        """One that no other table of the database has."""
        event = self.event
        taken = ask(
            self.session,
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
            self.session,
            "SELECT constraint_name FROM information_schema.table_constraints WHERE constraint_schema=%s AND "
            "table_name=%s AND constraint_type='FOREIGN KEY'",
            (self.event.schema, self.event.table),
        )
        names = [str(each) for (each,) in found]
        made = re.compile(re.escape(key[:50]) + r"__[0-9a-f]{8}", re.IGNORECASE)
        same = [each for each in names if each.lower() == key.lower()] + [n for n in names if made.fullmatch(n)]
        return same[0] if same else None

    def knows_zone(self, name: str) -> bool:
        return bool(ask(self.session, "SELECT CONVERT_TZ('2000-01-01', '+00:00', %s) IS NOT NULL", (name,))[0][0])

    def has_columns_of(self, table: TableInfo) -> bool:
        """Whether the table downstream has these columns, in order."""
        found = ask(
            self.session,
            "SELECT column_name FROM information_schema.columns WHERE table_schema=%s AND table_name=%s "
            "ORDER BY ordinal_position",
            (self.event.schema, self.event.table),
        )
        wanted = [column.name.lower() for column in table.columns if not column.is_hidden]
        return [str(name).lower() for (name,) in found] == wanted

    def run(self, clock: Clock, *, is_whole: Callable[[], bool] = lambda: True) -> None:
        """Run a statement; one that finds its work done has done it, unless ``is_whole`` says that some is left."""
        if not clock.query:
            return
        try:
            with set_to(self.session, clock):
                if self.is_tidb and self.event.type == ActionType.ADD_INDEX:
                    self._add_index(clock.query)
                else:
                    ask(self.session, clock.query)
        except pymysql.err.MySQLError as error:
            if failures.number_of(error) not in failures.DDL_DONE or not is_whole():
                raise
            log.warning("DDL found its work done", query=clock.query, said=failures.text_of(error))

    def _add_index(self, query: str) -> None:
        """Filling an index may take hours and holds up nobody's rows: once its job runs, it goes on by itself."""
        event, failed = self.event, list[BaseException]()

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
        while thread.is_alive() and not has_job(self.session, event, is_add_index=True):
            thread.join(_JOB_POLL_SECONDS)
        if failed:
            raise failed[0]
        if thread.is_alive():
            log.info("ADD INDEX goes on downstream by itself", table=self.name, query=query)


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
def set_to(session: Any, clock: Clock) -> Iterator[None]:
    """The session's time zone, moment and modes are these meanwhile."""
    if clock.modes:
        modes = ",".join(clock.modes)
        ask(session, f"SET @tidemill_modes = @@SESSION.sql_mode, SESSION sql_mode = CONCAT(@@sql_mode, ',{modes}')")
    if clock.time_zone is not None:
        ask(session, f"SET @tidemill_zone = @@SESSION.time_zone, SESSION time_zone = '{clock.time_zone}'")
    if clock.moment is not None:
        ask(session, f"SET TIMESTAMP = {clock.moment}")
    try:
        yield
    finally:
        with suppress(pymysql.err.MySQLError, OSError):  # whoever lost it opens another one
            if session.open and clock.modes:
                ask(session, "SET SESSION sql_mode = @tidemill_modes")
            if session.open and clock.moment is not None:
                ask(session, "SET TIMESTAMP = DEFAULT")
            if session.open and clock.time_zone is not None:
                ask(session, "SET SESSION time_zone = @tidemill_zone")


def _expressions(table: TableInfo) -> dict[str, str]:
    """Of generated columns, as TiDB understood them."""
    return {c.name.lower(): c.generated_expr for c in table.columns if c.is_generated}
