"""Both halves of the MySQL sink.

    writer:     recover ─► target, one a unit ─► (executors: write_rows) ─► commit ─► delta
    owner:      begin, fence ─► ddl, take ─► state (caller) ─► publish

There is nothing to take back downstream: a batch that comes again is written again, as REPLACE and DELETE, and ends in
the same rows. That is done after a start, a loss or a hand-over until the table is past all that may have been written
before: what was lost as one batch may come again as several shorter ones, and a row that one of these inserts and
deletes may be there from the first time. Later ones may use plain INSERT. With sync points ``next_barrier`` says where
the checkpoint has to stop so that the pair of timestamps can be recorded exactly there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from tidemill.errors import InvariantError, SinkError
from tidemill.model.ddl import DdlEvent
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts, physical_ms
from tidemill.sinks.mysql.ddl import DdlRunner
from tidemill.sinks.mysql.dropped import KEPT_MS, Aside
from tidemill.sinks.mysql.generation import OWNER
from tidemill.sinks.mysql.joint import JointTarget
from tidemill.sinks.mysql.refill import Refill
from tidemill.sinks.mysql.session import POOL, Flavor
from tidemill.sinks.mysql.sessions import PATIENCE_SECONDS, Turn
from tidemill.sinks.mysql.syncpoint import SyncPoints
from tidemill.sinks.mysql.targets import Targets
from tidemill.sinks.mysql.together import Team
from tidemill.sinks.mysql.uri import MysqlOptions
from tidemill.sinks.mysql.waves import Prefix, waves
from tidemill.sinks.mysql.writer import MysqlTarget
from tidemill.sinks.port import AnyTable, Rescan

_STATE_FORMAT = 1


class MysqlOwner(AnyTable):
    """The owner's half: DDLs and sync points, in one term at a time."""

    def __init__(
        self,
        options: MysqlOptions,
        state: Mapping[str, Any] | None,
        *,
        start_ts: Ts | None = None,
        zone: tzinfo = UTC,
        patience_seconds: float = PATIENCE_SECONDS,
        rescan: Rescan | None = None,
    ) -> None:
        """``rescan`` is needed where a DDL has changed or brought rows that no change tells of."""
        _check_state(state)
        self._options, self._rescan = options, rescan
        self._turn = Turn(options, OWNER, zone, patience_seconds)
        self._team = Team(self._turn)
        self._targets = Targets(self._turn)
        self._saved_ts = Ts(0)  # no DDL below comes again
        self._tidied_ms = 0  # upstream time at which dropped tables were last looked through
        self._sync_points = SyncPoints(options, (state or {}).get("sync_point_ts") or start_ts)

    @property
    def term(self) -> str:
        return self._turn.generation.mark if self._turn.downstream is not None else ""

    def begin(self) -> None:
        self._team.close()
        self._turn.begin()

    def fence(self, writers: Collection[str] | None = None) -> None:
        self._turn.fence(writers)

    def ddl(self, event: DdlEvent) -> None:
        """Run a DDL and return when it is done. May be called again for the same one."""
        turn = self._turn
        if turn.downstream is None:
            raise InvariantError("a DDL before the owner's term has begun")
        rows = Refill(self._rescan, self._refill_target, turn.patience) if self._rescan is not None else None
        settings = turn.ddl_settings()
        runner = DdlRunner(settings, turn.downstream, turn.generation, turn.patience, turn.lines, rows, self._saved_ts)
        runner.run(event, turn.opened, turn.lose)

    def ddls(self, events: Sequence[DdlEvent], passed: Callable[[int], None]) -> None:
        """Those that have nothing to do with each other at the same time. A TiDB runs its DDLs one by one anyway."""
        turn, prefix = self._turn, Prefix(events, passed)
        if turn.downstream is None:
            raise InvariantError("DDLs before the owner's term has begun")
        for wave in waves(events):
            is_alone = len(wave) == 1 or turn.downstream.flavor is Flavor.TIDB
            for event in wave if is_alone else self._team.run(wave, self._saved_ts, prefix.note):
                self.ddl(event)
                prefix.note(event)

    def _refill_target(self, table: TableInfo) -> MysqlTarget:
        """In the midst of a DDL, which may have made the table just now."""
        self._targets.forget()
        return self._targets.make(table, is_safe=True)

    def take(self, commit: Mapping[str, Any]) -> dict[str, Any]:
        """Rows are there, and seen, as soon as they are committed downstream."""
        return self._state()

    def next_barrier(self, checkpoint_ts: Ts) -> Ts | None:
        """The next sync point; None: there are none."""
        return self._sync_points.next_ts(checkpoint_ts)

    def sync(self, checkpoint_ts: Ts) -> dict[str, Any]:
        if self._sync_points.is_due(checkpoint_ts):
            turn = self._turn
            turn.patiently(
                lambda: self._sync_points.record(turn.opened(), turn.generation, turn.downstream, checkpoint_ts),
                "record a sync point",
            )
        return self._state()

    def publish(self, checkpoint_ts: Ts) -> None:
        """Readers see rows as they are committed. From time to time, what was dropped long ago goes for good."""
        self._saved_ts = checkpoint_ts
        if physical_ms(checkpoint_ts) - self._tidied_ms >= KEPT_MS:
            self._turn.patiently(lambda: self._forget_dropped(checkpoint_ts), "drop old tables")
            self._tidied_ms = physical_ms(checkpoint_ts)

    def close(self) -> None:
        _close(self._turn)
        self._team.close()

    def _forget_dropped(self, checkpoint_ts: Ts) -> None:
        session = self._turn.opened()
        with self._turn.generation.ddl_turn(session, self._turn.patience.until):
            Aside.of(self._options.changefeed, self._options.cluster_id).forget(session, checkpoint_ts)

    def _state(self) -> dict[str, Any]:
        return {"format": _STATE_FORMAT, "sync_point_ts": self._sync_points.last_ts}


class MysqlWriter:
    """The writer's half: rows, in one generation at a time."""

    def __init__(
        self,
        options: MysqlOptions,
        name: str,
        *,
        zone: tzinfo = UTC,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if not name:
            raise InvariantError("a writer of the MySQL sink without a name")
        self._turn = Turn(options, name, zone, patience_seconds)
        self._targets = Targets(self._turn)
        self._begun_ts = 0  # up to here this writer may have written changes
        self._written_ts: dict[int, int] = {}  # by table: up to here others may have, who did not come to commit them
        self._written_most = 0  # the same, of any table
        self._is_fresh = True  # nothing has been committed in this generation

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        """What comes next of these tables may have been written before."""
        most = max(int(written_ts or 0), self._begun_ts)
        self._written_most = max(self._written_most, most)
        if tables is None:
            self._written_ts.clear()
        for table in tables or ():
            self._written_ts[table.id] = max(self._written_ts.get(table.id, 0), most)
        self._is_fresh = True
        self._targets.forget()
        self._turn.begin(term)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> MysqlTarget:
        """The table partitions of a table are to be one unit: one index may span them downstream."""
        if self._turn.downstream is None:
            raise InvariantError("a target of a writer whose first generation has not begun")
        from_ts, to_ts = window
        self._begun_ts = max(self._begun_ts, int(to_ts))
        written_ts = self._written_ts.get(table.id, self._written_most)  # a DDL may have given it another id
        return self._targets.make(table, is_safe=self._is_fresh or from_ts < written_ts)

    def joint_target(self, tables: Sequence[TableInfo]) -> JointTarget:
        if self._turn.downstream is None:
            raise InvariantError("a target of a writer whose first generation has not begun")
        return JointTarget(tuple(self._targets.make(table, is_safe=True) for table in tables))

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """All rows of the batch are there: each unit has returned from its last COMMIT."""
        self._turn.confirm()
        self._is_fresh = False
        return {"format": _STATE_FORMAT}

    def close(self) -> None:
        _close(self._turn)


def _close(turn: Turn) -> None:
    turn.patience.end()
    turn.lines.cut()
    POOL.close(turn.generation)


def _check_state(state: Mapping[str, Any] | None) -> None:
    if state is not None and state.get("format") != _STATE_FORMAT:
        raise SinkError(
            f"the state of the MySQL sink has format {state.get('format')!r}; this version reads {_STATE_FORMAT}. "
            "Go on with the version of Tidemill that wrote it."
        )
