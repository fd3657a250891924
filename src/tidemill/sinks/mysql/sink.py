"""The driver's side of the MySQL sink.

    recover ─► target, one a unit ─► (executors: write_rows) ─► commit ─► state (caller) ─► publish
                                        ddl between batches

There is nothing to take back downstream: a batch that comes again is written again, as REPLACE and DELETE, and ends in
the same rows. That is done after a start or a loss until the checkpoint is past all that may have been written before:
what was lost as one batch may come again as several shorter ones, and a row that one of these inserts and deletes may
be there from the first time. Later ones may use plain INSERT. With sync points ``next_barrier`` says where the
checkpoint has to stop so that the pair of timestamps can be recorded exactly there.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pymysql

from tidemill.errors import SinkError
from tidemill.log import get_logger
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms
from tidemill.sinks.mysql import failures
from tidemill.sinks.mysql.ddl import DdlRunner
from tidemill.sinks.mysql.dropped import KEPT_MS, Aside
from tidemill.sinks.mysql.generation import SCHEMA, Generation
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.retry import Patience
from tidemill.sinks.mysql.session import (
    POOL,
    Connection,
    Downstream,
    Flavor,
    SessionSettings,
    ask,
    closed,
    examine,
    open_session,
)
from tidemill.sinks.mysql.syncpoint import SyncPoints
from tidemill.sinks.mysql.uri import MysqlOptions
from tidemill.sinks.mysql.writer import MysqlTarget
from tidemill.sinks.port import Rescan

log = get_logger("mysql")

_STATE_FORMAT = 1
_PATIENCE_SECONDS = 120.0


class MysqlSink:
    """One generation at a time. Methods block, and raise SinkError, after which ``recover`` is to be called."""

    def __init__(
        self,
        options: MysqlOptions,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        patience_seconds: float = _PATIENCE_SECONDS,
        rescan: Rescan | None = None,
        written_ts: Ts | None = None,
    ) -> None:
        """``zone`` is the one in which rows are decoded. ``state`` is what ``commit`` returned last. ``rescan`` is
        needed where a DDL has changed or brought rows that no change tells of. Changes above ``written_ts`` have
        not been written by others before."""
        if state is not None and state.get("format") != _STATE_FORMAT:
            raise SinkError(
                f"the state of the MySQL sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
                "Go on with the version of Tidemill that wrote it."
            )
        self._options = options
        self._patience = Patience(patience_seconds)
        self._rescan = rescan
        self._zone = _session_zone(zone)
        self._generation = Generation.new(options.changefeed, options.cluster_id)
        self._lines = Lines()
        self._downstream: Downstream | None = None
        self._session: Connection | None = None  # the driver's own, for DDL and sync points
        self._is_safe = True
        self._begun_ts = int(written_ts or 0)  # up to here changes may have been written
        self._written_ts = 0  # and up to here by somebody who did not come to commit them
        self._generated: dict[tuple[str, str], frozenset[str]] = {}  # the columns that are so downstream, by table
        self._tidied_ms = 0  # upstream time at which dropped tables were last looked through
        self._sync_points = SyncPoints(options, (state or {}).get("sync_point_ts") or start_ts)

    def recover(self, at: Checkpoints) -> None:
        """Begin a new generation, the only one that writes; what comes next may have been written before."""
        self._begin_generation()

    def _begin_generation(self) -> None:
        self._generation = Generation.new(self._options.changefeed, self._options.cluster_id)
        self._is_safe, self._written_ts = True, self._begun_ts
        self._drop_session()
        self._patiently(self._take_over, "take over the downstream")

    def target(self, table: TableInfo, physical_id: int, window: Window) -> MysqlTarget:
        """The table partitions of a table are to be one unit: one index may span them downstream."""
        if self._downstream is None:
            self._begin_generation()
        from_ts, to_ts = window
        self._begun_ts = max(self._begun_ts, int(to_ts))
        return self._target(table, is_safe=self._is_safe or from_ts < self._written_ts)

    def ddl(self, event: DdlEvent) -> None:
        """Run a DDL and return when it is done. May be called again for the same one."""
        if self._downstream is None:
            self._begin_generation()
        assert self._downstream is not None
        rows = None
        if self._rescan is not None:
            rows = Refill(self._rescan, self._refill_target, self._patience)
        runner = DdlRunner(self._ddl_settings(), self._downstream, self._generation, self._patience, self._lines, rows)
        try:
            runner.run(event, self._opened, self._drop_session)
        finally:
            self._generated.clear()

    def _refill_target(self, table: TableInfo) -> MysqlTarget:
        """In the midst of a DDL, which may have made the table just now."""
        self._generated.clear()
        return self._target(table, is_safe=True)

    def _target(self, table: TableInfo, *, is_safe: bool) -> MysqlTarget:
        settings = SessionSettings(self._options, self._downstream, self._zone, is_for_rows=True)
        return MysqlTarget(
            settings, table, self._generation, is_safe, self._patience.seconds, plain_columns=self._plain_columns(table)
        )

    def _plain_columns(self, table: TableInfo) -> frozenset[str]:
        """Those that are generated upstream and not here: a server need not know the expression, nor allow it."""
        stored = frozenset(column.name.lower() for column in table.stored_columns if column.is_generated)
        if not stored or self._downstream is None or self._downstream.flavor is Flavor.TIDB:
            return frozenset()
        place = table.schema, table.name
        if place not in self._generated:
            self._patiently(lambda: self._look_up_generated(place), "look at a table's columns")
        return stored - self._generated[place]

    def _look_up_generated(self, place: tuple[str, str]) -> None:
        found = ask(
            self._opened(),
            "SELECT column_name FROM information_schema.columns WHERE table_schema=%s AND table_name=%s AND "
            "generation_expression<>''",
            place,
        )
        self._generated[place] = frozenset(str(column).lower() for (column,) in found)

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """All rows of the batch are there: each unit has returned from its last COMMIT."""
        self._is_safe = False
        if physical_ms(to_ts) - self._tidied_ms >= KEPT_MS and self._downstream is not None:
            self._tidied_ms = physical_ms(to_ts)
            self._patiently(lambda: self._forget_dropped(to_ts), "drop old tables")
        return self._state()

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        if self._sync_points.is_due(checkpoint_ts):
            self._patiently(
                lambda: self._sync_points.record(self._opened(), self._generation, self._downstream, checkpoint_ts),
                "record a sync point",
            )
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {"format": _STATE_FORMAT, "sync_point_ts": self._sync_points.last_ts}

    def _forget_dropped(self, to_ts: Ts) -> None:
        session = self._opened()
        with self._generation.ddl_turn(session, self._patience.until):
            Aside.of(self._options.changefeed, self._options.cluster_id).forget(session, to_ts)

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """The next sync point; None: there are none."""
        return self._sync_points.next_ts(checkpoint_ts)

    def publish(self, checkpoint_ts: Ts) -> None:
        """Readers see rows as they are committed; there is nothing more to tell."""

    def close(self) -> None:
        self._patience.end()
        self._lines.cut()
        POOL.close(self._generation)

    # The driver's own session

    def _opened(self) -> Connection:
        if self._session is None:
            self._session = open_session(self._ddl_settings(), self._lines)
        return self._session

    def _ddl_settings(self) -> SessionSettings:
        zone = self._zone if self._options.time_zone is None else self._options.time_zone.replace("UTC", "+00:00")
        return SessionSettings(self._options, self._downstream, zone, is_for_ddl=True)

    def _drop_session(self) -> None:
        if self._session is not None:
            closed(self._session)
            self._session = None

    def _take_over(self) -> None:
        session = open_session(SessionSettings(self._options), self._lines)
        try:
            self._downstream = examine(session)
            self._generation.begin(session)
            for is_last in self._patience.tries():
                if self._generation.end_older(session):
                    break
                if is_last:
                    raise failures.DownstreamUnavailableError(
                        f"an earlier run of changefeed {self._options.changefeed!r} is still at work at "
                        f"{self._options.place} although its sessions were ended. It is waited for."
                    )
        finally:
            closed(session)
        log.info("downstream taken over", at=self._options.place, flavor=self._downstream.flavor.value)

    def _patiently(self, work: Callable[[], None], doing: str) -> None:
        """Do ``work``, again where the reason of a failure passes; the first failure is said at once."""
        is_said = False
        for is_last in self._patience.tries():
            try:
                work()
                return
            except (pymysql.err.MySQLError, OSError) as error:
                self._drop_session()
                number, said = failures.number_of(error), failures.text_of(error)
                if not failures.is_passing(error):
                    rights = f"CREATE, SELECT, INSERT, UPDATE and DELETE on `{SCHEMA}`.* and on what is replicated"
                    raise SinkError(
                        f"cannot {doing} at {self._options.place}: {said} (error {number}). "
                        f"{failures.remedy(error, rights)}"
                    ) from error
                if is_last:
                    raise failures.DownstreamUnavailableError(
                        f"cannot {doing} at {self._options.place}: {said} (error {number}), for "
                        f"{self._patience.seconds:.0f} s. See that the server of the sink URI answers; the changefeed "
                        "goes on from its checkpoint."
                    ) from error
                if not (is_said or self._patience.is_ended):
                    log.warning(
                        f"cannot {doing} yet; trying again for {self._patience.seconds:.0f} s",
                        at=self._options.place,
                        reason=f"{said} (error {number})",
                    )
                    is_said = True


def _session_zone(zone: tzinfo) -> str:
    """As the server is told. UTC by its offset: names are known only where their tables were loaded."""
    if isinstance(zone, ZoneInfo) and zone.key and zone.key not in ("UTC", "Etc/UTC"):
        return zone.key
    offset = zone.utcoffset(None)
    minutes = int(offset.total_seconds()) // 60 if offset is not None else 0
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
