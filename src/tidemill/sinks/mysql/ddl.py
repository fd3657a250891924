"""Runs DDLs downstream, each once as far as anybody can tell.

A DDL is no transaction, so what has begun and what is done is noted in ``tidb_cdc.tidemill_ddl_v2``. If we die between
the two, or the server does, we find out: a RENAME looks which name is there; an EXCHANGE compares the table with what
it was before; a table that has got the columns and partitions it is to have needs nothing more (COALESCE PARTITION 1
is not the same twice); and most other DDLs say by their error that their work is done (an index that exists, a table
that is gone). A TiDB's job goes on without the session that began it, so we wait for its end before we look. A DDL
runs as long as it runs: nobody's time-out ends it, and a lost connection is followed by asking what became of it.

    run ─► turn (no other generation is at a DDL) ─► note ─► Carrier, which gets it through ─► note
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pymysql

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, show
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.carry import Carrier
from tidemill.sinks.mysql.generation import Generation
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.notes import Notes
from tidemill.sinks.mysql.place import has_job
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.retry import Patience
from tidemill.sinks.mysql.session import Downstream, Flavor, SessionSettings, ask
from tidemill.tidb.lexer import quoted

log = get_logger("mysql")

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
_JOB_POLL_SECONDS = 0.5
_AS_ROWS = "rows"  # in the place of a fingerprint: an exchange that is begun again, whatever is there

_Form = tuple[tuple[str, ...], tuple[str, ...]]  # the names of a table's columns and of its partitions, in order


class DdlRunner:
    """For one DDL; ``session`` gives the driver's session, ``lose`` throws it away."""

    def __init__(
        self,
        settings: SessionSettings,
        downstream: Downstream,
        generation: Generation,
        patience: Patience,
        lines: Lines,
        rows: Refill | None,
        saved_ts: Ts,
    ) -> None:
        """``rows`` reads from the upstream what a DDL brings unseen. Below ``saved_ts`` no DDL comes again."""
        self._settings, self._options = settings, settings.options
        self._downstream, self._generation = downstream, generation
        self._patience, self._lines, self._rows, self._saved_ts = patience, lines, rows, saved_ts

    def run(self, event: DdlEvent, session: Callable[[], Any], lose: Callable[[], None]) -> None:
        if event.type in (_MEANINGLESS_TO_TIDB if self._is_tidb else _MEANINGLESS):
            log.info("DDL skipped: it means nothing downstream", type=event.type, table=_place(event))
            return
        for is_last in self._patience.tries():
            try:
                with self._generation.ddl_turn(session(), self._patience.until):
                    self._run_once(session(), event)
                return
            except (pymysql.err.MySQLError, OSError) as error:
                if failures.is_lost(error):
                    lose()
                if is_last or not failures.is_passing(error):
                    raise self._refused(event, error) from error

    @property
    def _is_tidb(self) -> bool:
        return self._downstream.flavor is Flavor.TIDB

    def _run_once(self, session: Any, event: DdlEvent) -> None:
        notes = Notes(session, self._options)
        notes.prepare()
        found = notes.of([event]).get((event.finished_ts, event.seq))
        is_done, was = found or (False, "")
        if is_done:
            return
        has_run = found is not None and self._went_through(session, event, was)
        if found is None:
            notes.begin([event], self._fingerprint(session, event), saved_ts=self._saved_ts)
        if self._is_tidb and event.type not in (ActionType.CREATE_SCHEMA, ActionType.CREATE_TABLE):
            self._wait_for_job(session, event, is_add_index=True)
        carrier = Carrier(
            session, event, self._settings, self._downstream, self._lines, self._rows,
            lambda: notes.change(event, _AS_ROWS), is_new=found is None,
        )  # fmt: skip
        carrier.carry_out(has_run=has_run)
        notes.end(event)
        note_executed(event)

    def _went_through(self, session: Any, event: DdlEvent, was: str) -> bool:
        """Whether a DDL that is noted as begun is found to be done."""
        if self._is_tidb:
            self._wait_for_job(session, event, is_add_index=False)
        if event.type == ActionType.RENAME_TABLE:
            return self._is_renamed(session, event)
        if event.type == ActionType.EXCHANGE_PARTITION:
            return was != _AS_ROWS and self._fingerprint(session, event) != was
        before, after = event.pre_table_info, event.table_info
        if before is None or after is None or _form(before) == _form(after):
            return False
        columns, partitions = self._form(session, event)
        if not partitions and after.partitions:  # what could not be partitioned
            return columns == _form(after)[0] != _form(before)[0]
        return (columns, partitions) == _form(after)

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
        there = ask(
            session,
            "SELECT table_schema, table_name FROM information_schema.tables WHERE (table_schema, table_name) IN %s",
            (((event.pre_schema, event.pre_table), (event.schema, event.table)),),
        )
        found = {(str(schema).lower(), str(table).lower()) for schema, table in there}
        has_old = (event.pre_schema.lower(), event.pre_table.lower()) in found
        return not has_old and (event.schema.lower(), event.table.lower()) in found

    def _fingerprint(self, session: Any, event: DdlEvent) -> str:
        """Of the plain table of an EXCHANGE: its rows tell on which side of it we are."""
        if event.type != ActionType.EXCHANGE_PARTITION or not event.pre_table:
            return ""
        place = f"{quoted(event.pre_schema)}.{quoted(event.pre_table)}"
        command = "ADMIN CHECKSUM TABLE" if self._is_tidb else "CHECKSUM TABLE"
        return ":".join(str(value) for value in ask(session, f"{command} {place}")[0])[-64:]

    def _wait_for_job(self, session: Any, event: DdlEvent, *, is_add_index: bool) -> None:
        """A TiDB's job on the same table may still run by itself: an ADD INDEX, or what a lost session began."""
        if not self._patience.until(lambda: not has_job(session, event, is_add_index=is_add_index), _JOB_POLL_SECONDS):
            raise failures.DownstreamUnavailableError(
                f"stopped while {self._options.place} was still at work on table {_place(event)}. The changefeed "
                "continues with this DDL when it is started again."
            )

    def _refused(self, event: DdlEvent, error: BaseException) -> SinkError:
        number, said = failures.number_of(error), failures.text_of(error)
        if failures.is_passing(error):
            return failures.DownstreamUnavailableError(
                f"cannot run the DDL on {_place(event)} of {show(event.finished_ts)} at {self._options.place}: {said} "
                f"(error {number}), for {self._patience.seconds:.0f} s. See that the server answers; the changefeed "
                "continues with this DDL."
            )
        if failures.is_forbidden(error):
            return SinkError(
                f"{self._options.place} does not let us run the DDL on {_place(event)} of {show(event.finished_ts)}: "
                f"{said} (error {number}). {failures.remedy(error, 'CREATE, ALTER, DROP and INDEX there')}"
            )
        return SinkError(
            f"{self._options.place} refused the DDL on {_place(event)} of {show(event.finished_ts)}: {said} (error "
            f"{number}). The statement is: {event.query}. Give the table the form that it has upstream, "
            "or let the changefeed's filter ignore this DDL, then start again; nothing was skipped."
        )


def note_executed(event: DdlEvent) -> None:
    log.info("DDL executed", table=_place(event), query=event.query, finished_ts=event.finished_ts)


def _form(table: TableInfo) -> _Form:
    return _names(c.name for c in table.columns if not c.is_hidden), _names(p.name for p in table.partitions)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(each.lower() for each in names)


def _place(event: DdlEvent) -> str:
    return f"{event.schema}.{event.table}" if event.table else event.schema
