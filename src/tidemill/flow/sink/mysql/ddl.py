"""Runs DDLs downstream, each once as far as anybody can tell.

A DDL is no transaction, so what has begun and what is done is noted in ``tidb_cdc.tidemill_ddl_v1``. If we die between
the two, or the server does, we find out: a RENAME looks which name is there; an EXCHANGE compares the table with what
it was before; a table that has got the columns and partitions it is to have needs nothing more (COALESCE PARTITION 1
is not the same twice); and most other DDLs say by their error that their work is done (an index that exists, a table
that is gone). A TiDB's job goes on without the session that began it, so we wait for its end before we look. A DDL
runs as long as it runs: nobody's time-out ends it, and a lost connection is followed by asking what became of it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import pymysql

from tidemill.errors import SinkError
from tidemill.flow.sink.mysql import dropped, failures
from tidemill.flow.sink.mysql.owner import SCHEMA
from tidemill.flow.sink.mysql.rewrite import rewritten
from tidemill.flow.sink.mysql.session import Downstream, Flavor, SessionSettings, ask, closed, open_session
from tidemill.flow.sink.mysql.statement import name
from tidemill.flow.sink.mysql.waiting import Patience
from tidemill.flow.sink.mysql.zones import typed_offset
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import show

log = get_logger("mysql")

_TABLE = f"`{SCHEMA}`.`tidemill_ddl_v1`"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (changefeed VARCHAR(255) NOT NULL, finished_ts BIGINT UNSIGNED NOT NULL, "
    "seq INT NOT NULL, is_done TINYINT NOT NULL, was VARCHAR(64) NOT NULL, PRIMARY KEY (changefeed, finished_ts, seq))"
)

# What these change exists in TiDB only.
_MEANINGLESS: Final = frozenset(
    {
        ActionType.SHARD_ROW_ID, ActionType.LOCK_TABLE, ActionType.UNLOCK_TABLE, ActionType.REPAIR_TABLE,
        ActionType.SET_TIFLASH_REPLICA, ActionType.UPDATE_TIFLASH_STATUS, ActionType.CREATE_SEQUENCE,
        ActionType.ALTER_SEQUENCE, ActionType.DROP_SEQUENCE, ActionType.MODIFY_AUTO_ID_CACHE,
        ActionType.REBASE_AUTO_RANDOM, ActionType.ALTER_TABLE_ATTRIBUTES, ActionType.ALTER_PARTITION_ATTRIBUTES,
        ActionType.CREATE_PLACEMENT_POLICY, ActionType.ALTER_PLACEMENT_POLICY, ActionType.DROP_PLACEMENT_POLICY,
        ActionType.ALTER_PARTITION_PLACEMENT, ActionType.MODIFY_SCHEMA_PLACEMENT, ActionType.ALTER_TABLE_PLACEMENT,
        ActionType.CACHE_TABLE, ActionType.NOCACHE_TABLE, ActionType.ALTER_TTL, ActionType.REMOVE_TTL,
        ActionType.CREATE_RESOURCE_GROUP, ActionType.ALTER_RESOURCE_GROUP, ActionType.DROP_RESOURCE_GROUP,
    }
)  # fmt: skip
# Of those, what a TiDB downstream is not to be told either.
_MEANINGLESS_TO_TIDB: Final = _MEANINGLESS - {
    ActionType.SHARD_ROW_ID, ActionType.MODIFY_AUTO_ID_CACHE, ActionType.REBASE_AUTO_RANDOM, ActionType.ALTER_TTL,
    ActionType.REMOVE_TTL, ActionType.CACHE_TABLE, ActionType.NOCACHE_TABLE,
}  # fmt: skip
_ASYNC_AFTER_SECONDS = 5.0
_JOB_POLL_SECONDS = 0.5
_ADD_INDEX = "LIKE 'add index%%'"
_NO_TABLE = 1146
_UTC = "+00:00"

_Form = tuple[tuple[str, ...], tuple[str, ...]]  # the names of a table's columns and of its partitions, in order


class DdlRunner:
    """For one DDL; ``session`` gives the driver's session, ``lose`` throws it away."""

    def __init__(
        self,
        settings: SessionSettings,
        downstream: Downstream,
        patience: Patience,
        copy: Callable[[DdlEvent], None] | None,
    ) -> None:
        """``copy`` writes the rows of a table that was brought back, as often as it is asked to."""
        self._settings, self._options = settings, settings.options
        self._downstream, self._patience, self._copy = downstream, patience, copy

    def run(self, event: DdlEvent, session: Callable[[], Any], lose: Callable[[], None]) -> None:
        query = self._query(event)
        if not query:
            log.info(
                "DDL skipped: it means nothing downstream", type=event.type, table=_place(event), query=event.query
            )
            return
        is_again = False
        for is_last in self._patience.tries():
            try:
                if not self._is_done(session(), event):
                    self._execute(session(), event, query, is_again)
                return
            except (pymysql.err.MySQLError, OSError) as error:
                if failures.is_lost(error):
                    lose()
                if is_last or failures.number_of(error) in failures.DDL_HOPELESS:
                    raise self._refused(event, error) from error
                if not failures.is_passing(error):
                    raise self._refused(event, error) from error
                is_again = True

    def _query(self, event: DdlEvent) -> str:
        is_tidb = self._downstream.flavor is Flavor.TIDB
        if event.type in (_MEANINGLESS_TO_TIDB if is_tidb else _MEANINGLESS):
            return ""
        if event.type == ActionType.RENAME_TABLE and event.pre_table:
            return (
                f"RENAME TABLE {name(event.pre_schema)}.{name(event.pre_table)} TO "
                f"{name(event.schema)}.{name(event.table)}"
            )
        is_like = event.type == ActionType.CREATE_TABLE and event.creation
        return self._rewritten(event.creation if is_like else event.query, event.table_info)

    def _rewritten(self, query: str, table: TableInfo | None) -> str:
        has_vectors = self._downstream.has_vectors and not self._options.has_vector_type
        has_primary_key = table is None or bool(table.primary_key)
        return rewritten(query, self._downstream, has_vectors=has_vectors, has_primary_key=has_primary_key)

    def _is_done(self, session: Any, event: DdlEvent) -> bool:
        """Whether it is noted as done, or noted as begun and found to be done. Notes that it begins."""
        ask(session, _CREATE)
        place = (self._options.changefeed, event.finished_ts, event.seq)
        found = ask(
            session, f"SELECT is_done, was FROM {_TABLE} WHERE changefeed=%s AND finished_ts=%s AND seq=%s", place
        )
        if found:
            return bool(found[0][0]) or self._went_through(session, event, str(found[0][1]))
        ask(session, f"DELETE FROM {_TABLE} WHERE changefeed=%s AND finished_ts<%s", place[:2])
        ask(session, f"INSERT INTO {_TABLE} VALUES (%s, %s, %s, 0, %s)", (*place, self._fingerprint(session, event)))
        return False

    def _went_through(self, session: Any, event: DdlEvent, was: str) -> bool:
        if self._downstream.flavor is Flavor.TIDB:
            self._wait_for_job(session, event, f"NOT {_ADD_INDEX}")
        if event.type == ActionType.RENAME_TABLE:
            return self._is_renamed(session, event)
        if event.type == ActionType.EXCHANGE_PARTITION:
            return self._fingerprint(session, event) != was
        before, after = event.pre_table_info, event.table_info
        if before is None or after is None or _form(before) == _form(after):
            return False
        return self._form(session, event) == _form(after)

    def _form(self, session: Any, event: DdlEvent) -> _Form:
        here = "table_schema=%s AND table_name=%s"
        columns = ask(
            session,
            f"SELECT column_name FROM information_schema.columns WHERE {here} ORDER BY ordinal_position",
            (event.schema, event.table),
        )
        partitions = ask(
            session,
            f"SELECT partition_name FROM information_schema.partitions WHERE {here} AND partition_name IS NOT NULL "
            "ORDER BY partition_ordinal_position",
            (event.schema, event.table),
        )
        return _names(row[0] for row in columns), _names(row[0] for row in partitions)

    def _is_renamed(self, session: Any, event: DdlEvent) -> bool:
        has_old = self._is_there(session, event.pre_schema, event.pre_table)
        has_new = self._is_there(session, event.schema, event.table)
        return has_new and not has_old

    def _fingerprint(self, session: Any, event: DdlEvent) -> str:
        """Of the plain table of an EXCHANGE: its rows tell on which side of it we are."""
        if event.type != ActionType.EXCHANGE_PARTITION or not event.pre_table:
            return ""
        place = f"{name(event.pre_schema)}.{name(event.pre_table)}"
        command = "ADMIN CHECKSUM TABLE" if self._downstream.flavor is Flavor.TIDB else "CHECKSUM TABLE"
        return ":".join(str(value) for value in ask(session, f"{command} {place}")[0])[-64:]

    def _execute(self, session: Any, event: DdlEvent, query: str, is_again: bool) -> None:
        if self._downstream.flavor is Flavor.TIDB and event.type not in (
            ActionType.CREATE_SCHEMA,
            ActionType.CREATE_TABLE,
        ):
            self._wait_for_job(session, event, _ADD_INDEX)
        if event.type not in (ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA, ActionType.MODIFY_SCHEMA_CHARSET):
            ask(session, f"USE {name(event.schema)}")
        query = self._kept_aside(session, event, query)
        moment = _default_moment(event)
        offset = _UTC if event.creation else typed_offset(event)
        try:
            with _at_moment(session, moment) if moment is not None else _in_zone(session, offset):
                if self._downstream.flavor is Flavor.TIDB and event.type == ActionType.ADD_INDEX:
                    self._add_index(session, event, query)
                else:
                    ask(session, query)
        except pymysql.err.MySQLError as error:
            number = failures.number_of(error)
            is_moved = number == _NO_TABLE and (
                event.type == ActionType.DROP_TABLE
                or (event.type == ActionType.RENAME_TABLE and self._is_renamed(session, event))
            )
            if number not in failures.DDL_DONE and not is_moved:
                raise
            log.warning(
                "DDL found its work done", table=_place(event), query=query, error=number, is_again=is_again,
                said=failures.text_of(error),
            )  # fmt: skip
        ask(
            session,
            f"UPDATE {_TABLE} SET is_done=1 WHERE changefeed=%s AND finished_ts=%s AND seq=%s",
            (self._options.changefeed, event.finished_ts, event.seq),
        )
        log.info("DDL executed", table=_place(event), query=query, finished_ts=event.finished_ts)

    def _add_index(self, session: Any, event: DdlEvent, query: str) -> None:
        """Filling an index may take hours and holds up nobody's rows: once its job runs, it goes on by itself."""
        failed: list[BaseException] = []

        def work() -> None:
            try:
                other = open_session(self._settings)
                try:
                    ask(other, f"USE {name(event.schema)}")
                    ask(other, query)
                finally:
                    closed(other)
            except (pymysql.err.MySQLError, OSError) as error:
                failed.append(error)

        thread = threading.Thread(target=work, name="add-index", daemon=True)
        thread.start()
        thread.join(_ASYNC_AFTER_SECONDS)
        while thread.is_alive() and not self._has_job(session, event, _ADD_INDEX):
            thread.join(_JOB_POLL_SECONDS)
        if failed:
            raise failed[0]
        if thread.is_alive():
            log.info("ADD INDEX goes on downstream by itself", table=_place(event), query=query)

    def _kept_aside(self, session: Any, event: DdlEvent, query: str) -> str:
        """Tables that are dropped, or brought back, go to the side and come from there."""
        if event.type == ActionType.DROP_TABLE:
            return dropped.drop(session, event)
        if event.type != ActionType.RECOVER_TABLE:
            return query
        return dropped.restore(session, event) or self._brought_back(session, event)

    def _brought_back(self, session: Any, event: DdlEvent) -> str:
        """A table that was truncated, or dropped before we could keep it: its rows are read from the upstream."""
        is_there = self._is_there(session, event.schema, event.table)
        if self._copy is not None and event.creation:
            if not is_there:
                with _in_zone(session, _UTC):
                    ask(session, self._rewritten(event.creation, event.table_info))
            self._copy(event)
        elif not is_there:
            raise SinkError(
                f"cannot bring back table {_place(event)} at {self._options.place}: it was dropped before this "
                "changefeed could keep it aside. Copy it as of "
                f"{show(event.finished_ts)} from the upstream, then start again; nothing was skipped."
            )
        return "DO 0"

    def _is_there(self, session: Any, schema: str, table: str) -> bool:
        return bool(
            ask(
                session,
                "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name=%s",
                (schema, table),
            )
        )

    def _wait_for_job(self, session: Any, event: DdlEvent, kind: str) -> None:
        """A job on the same table may still run by itself: an ADD INDEX, or what a lost session began."""
        if not self._patience.until(lambda: not self._has_job(session, event, kind), _JOB_POLL_SECONDS):
            raise failures.DownstreamUnavailableError(
                f"stopped while {self._options.place} was still at work on table {_place(event)}. The changefeed goes "
                "on with this DDL when it is started again."
            )

    def _has_job(self, session: Any, event: DdlEvent, kind: str) -> list[Any]:
        """Whether a TiDB has work left on the table, of a kind of job given as a condition."""
        return ask(
            session,
            "SELECT 1 FROM information_schema.ddl_jobs WHERE db_name=%s AND table_name=%s AND "
            f"job_type {kind} AND state IN ('running', 'queueing') LIMIT 1",
            (event.pre_schema or event.schema, event.pre_table or event.table),
        )

    def _refused(self, event: DdlEvent, error: BaseException) -> SinkError:
        number, said = failures.number_of(error), failures.text_of(error)
        if failures.is_passing(error):
            return failures.DownstreamUnavailableError(
                f"cannot run the DDL on {_place(event)} of {show(event.finished_ts)} at {self._options.place}: {said} "
                f"(error {number}), for {self._patience.seconds:.0f} s. See that the server answers; the changefeed "
                "goes on with this DDL."
            )
        if failures.is_forbidden(error):
            return SinkError(
                f"{self._options.place} does not let us run the DDL on {_place(event)} of {show(event.finished_ts)}: "
                f"{said} (error {number}). {failures.remedy(error, 'CREATE, ALTER, DROP and INDEX there')}"
            )
        return SinkError(
            f"{self._options.place} refused the DDL on {_place(event)} of {show(event.finished_ts)}: {said} (error "
            f"{number}). The statement is: {event.query}. Bring the downstream to the form that it should have given, "
            "or let the changefeed's filter ignore this DDL, then start again; nothing was skipped."
        )


@contextmanager
def _at_moment(session: Any, moment: float) -> Iterator[None]:
    """CURRENT_TIMESTAMP is this one meanwhile."""
    ask(session, f"SET TIMESTAMP = {moment:.6f}")
    try:
        yield
    finally:
        if session.open:
            ask(session, "SET TIMESTAMP = DEFAULT")


@contextmanager
def _in_zone(session: Any, offset: str | None) -> Iterator[None]:
    """The session's time zone is this one meanwhile; None: the one it has."""
    if offset is None:
        yield
        return
    ask(session, f"SET @tidemill_zone = @@SESSION.time_zone, SESSION time_zone = '{offset}'")
    try:
        yield
    finally:
        if session.open:
            ask(session, "SET SESSION time_zone = @tidemill_zone")


def _form(table: TableInfo) -> _Form:
    return _names(c.name for c in table.columns if not c.is_hidden), _names(p.name for p in table.partitions)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(each.lower() for each in names)


def _place(event: DdlEvent) -> str:
    return f"{event.schema}.{event.table}" if event.table else event.schema


def _default_moment(event: DdlEvent) -> float | None:
    """What CURRENT_TIMESTAMP was upstream when a column with that default was added: rows that were there got it."""
    if event.type not in (ActionType.ADD_COLUMN, ActionType.ADD_COLUMNS, ActionType.MULTI_SCHEMA_CHANGE):
        return None
    known = {column.id for column in event.pre_table_info.columns} if event.pre_table_info else set()
    for column in event.table_info.columns if event.table_info else ():
        if column.id not in known and _is_now(column) and column.origin_default:
            try:
                return datetime.fromisoformat(column.origin_default).replace(tzinfo=UTC).timestamp()
            except ValueError:
                return None
    return None


def _is_now(column: ColumnInfo) -> bool:
    is_moment = column.type in (ColumnType.TIMESTAMP, ColumnType.DATETIME)
    return is_moment and (column.default or "").upper().startswith("CURRENT_TIMESTAMP")
