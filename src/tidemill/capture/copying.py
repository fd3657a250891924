"""The initial copy: every row as of the start-ts, written downstream before the stream begins at the same ts.

    schema at start-ts ─► parts by region ─► batches of units ─► Spark ─► receipts ─► cursors, saved

Copy and stream meet exactly: what was committed up to start-ts is in the one, what came later in the other. The store
keeps the versions of rows; how keys without versions are copied is told in ``source/scan/keys.py``. How far each
physical table has been copied is part of the changefeed's state, so a copy that was killed continues where it was; the
changefeed's own GC safepoint keeps the past until it is done.

A batch that is lost, since Spark failed or the sink is away, is taken back and begun again, as those of the stream are.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.capture.batches import Totals
from tidemill.capture.metadata import ChangefeedState, Home
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.progress import waiting_for_sink
from tidemill.control.retries import gives_up, pause_seconds
from tidemill.errors import EngineError, SinkError
from tidemill.flow.deadletter import quarantine, read_quarantine
from tidemill.flow.filter import ColumnSelector, TableFilter
from tidemill.flow.pipeline import Unit
from tidemill.flow.schema import SchemaStore
from tidemill.log import get_logger
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.receipt import Undecodable
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.model.words import counted
from tidemill.sinks import OwnerSink, Receipt, SinkWriter, Traits
from tidemill.source.port import CopyPart, Source
from tidemill.source.scan.catalog import table_document
from tidemill.tidb.create_table import create_table_sql
from tidemill.tidb.lexer import quoted
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

log = get_logger("copying")

_PARTS_A_BATCH = 16  # where a sink takes them as they come
_TABLES_A_BATCH = 8  # otherwise
_PARTS_A_TABLE = 8  # of each, where a table may come in pieces
_STEP_SECONDS = 0.2  # at most that ``step`` stands still

Cursors = Mapping[str, str]  # by physical id: the key, in hex, below which all is copied


@dataclass(slots=True)
class _Table:
    info: TableInfo
    physical_id: int
    parts: list[CopyPart]  # still to be copied, in key order


class InitialCopy:
    """Driver's side. ``plan`` and ``prepare`` it, then take steps until there are none left."""

    def __init__(
        self,
        pd: PdClient,
        source: Source,
        schema: SchemaStore,
        wanted: TableFilter,
        sink: OwnerSink,
        writer: SinkWriter,
        traits: Traits,
        selector: ColumnSelector,
        state: ChangefeedState,
        home: Home,
        zone: str,
        totals: Totals,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``sink`` and ``writer``: both halves of the sink; nobody else writes meanwhile. ``totals``: what is copied is
        counted there."""
        self._pd, self._source = pd, source
        self._schema = schema
        self._wanted = wanted
        self._sink, self._writer = sink, writer
        self._totals = totals
        self._traits = traits
        self._selector = selector
        self._home = home
        self._zone = zone
        self._tables: list[_Table] = []
        self._to_make: dict[int, TableInfo] = {}  # by table id
        self._queries: dict[int, str] = {}  # by table id: what makes it, where the sink needs that
        self._taken: list[tuple[_Table, int]] = []
        self._clock = clock
        self._room = _PARTS_A_BATCH if traits.copies_by_region else _TABLES_A_BATCH
        self._failures = 0  # since the last batch that was committed
        self._again_at = 0.0  # when the batch that was lost is begun again
        self._away_since = 0.0
        self.trouble: str | None = None  # why the sink is waited for; None: it is not
        self.state = state
        self.parts = 0
        self.parts_done = 0

    @property
    def stage(self) -> str:
        """What is being done, for people."""
        if self.trouble is not None:
            return waiting_for_sink(self.trouble, self._clock.monotonic() - self._away_since)
        tables = {table.info.id for table in self._tables}
        done = tables - {table.info.id for table in self._tables if table.parts}
        parts = f"{self.parts_done}/{counted(self.parts, 'part')}"
        return f"copying {len(done)}/{counted(len(tables), 'table')}, {parts}"

    async def plan(self) -> None:
        """Find what is still to be copied."""
        ts, cursors = self.state.start_ts, self.state.copied or {}
        reader = SnapshotReader(self._pd, RegionCache(self._pd))
        try:
            await self._plan(reader, ts, cursors)
        finally:
            await reader.close()

    async def _plan(self, reader: SnapshotReader, ts: Ts, cursors: Cursors) -> None:
        for followed in self._schema.followed():
            info = self._schema.table(followed.physical_id, ts + 1)
            if info is None or followed.since_ts > ts or not self._wanted.captures(info):
                continue
            parts = await self._source.copy_parts(self._pd, info, followed.physical_id, ts, self._zone)
            left = _above(parts, bytes.fromhex(cursors.get(str(followed.physical_id), "")))
            self.parts += len(parts)
            self.parts_done += len(parts) - len(left)
            self._tables.append(_Table(info, followed.physical_id, left))
            self._to_make[info.id] = info
        if not self._traits.needs_tables:
            return
        # Rows of a table without a key are not captured, but its DDLs are, and may give it one.
        self._to_make |= {info.id: info for info in self._schema.tables() if self._wanted.leaves_out(info)}
        for info in self._to_make.values():
            query = create_table_sql(await table_document(reader, info, ts), info.schema)
            self._queries[info.id] = query.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)

    def prepare(self) -> None:
        """Take back what an earlier run did not come to commit, and have every database and table downstream, where the
        sink does not make them itself. Blocks."""
        self._recover()
        if not self._traits.needs_tables:
            return
        asked = (schema for schema in self._schema.databases() if self._wanted.matches_schema(schema))
        schemas = dict.fromkeys([*(info.schema for info in self._to_make.values()), *asked])
        for seq, schema in enumerate(schemas):
            query = f"CREATE DATABASE IF NOT EXISTS {quoted(schema)}"
            self._sink.ddl(self._event(seq, ActionType.CREATE_SCHEMA, query, schema, None))
        for seq, info in enumerate(self._to_make.values(), len(schemas)):
            query = self._queries[info.id]
            self._sink.ddl(self._event(seq, ActionType.CREATE_TABLE, query, info.schema, info))

    def step(self, run: Callable[[list[Unit]], list[Receipt]]) -> bool:
        """Take one batch, have it written by ``run``, and commit it; False once all is copied. Blocks.

        Where Spark fails, or the sink is away, the batch is begun again by a later call; until then, calls
        return after a moment, so that the changefeed can still be stopped.
        """
        wait_seconds = self._again_at - self._clock.monotonic()
        if wait_seconds > 0:
            threading.Event().wait(min(wait_seconds, _STEP_SECONDS))
            return True
        try:
            if self._failures:
                self._recover()
            units = self.take()
            if not units:
                self.finish()
                return False
            self.commit(run(units))
        except (EngineError, SinkError) as error:
            self._note(error)
        else:
            self._failures, self.trouble = 0, None
        return True

    def _note(self, error: EngineError | SinkError) -> None:
        """A batch was lost. Raises the reason where it does not pass."""
        self._failures += 1
        self._room = max(1, self._room // 2)  # where units have a deadline, fewer of them may be done in time
        is_away = isinstance(error, SinkError) and error.retryable
        if not is_away and gives_up(error, self._failures):
            raise error
        if is_away and self.trouble is None:
            self._away_since = self._clock.monotonic()
        self.trouble = str(error) if is_away else None
        self._again_at = self._clock.monotonic() + pause_seconds(self._failures)
        log.warning("a batch of the initial copy was lost; beginning it again", reason=str(error))

    def _recover(self) -> None:
        self._writer.recover(self.state.at, None, self.state.sink_state, None, self._sink.term)

    def take(self) -> list[Unit]:
        """The next batch; empty when all is copied."""
        self._taken = []
        units = []
        room = self._room
        for table in self._tables:
            if room <= 0 or not table.parts:
                continue
            if self._traits.copies_by_region:
                taken = table.parts[:room]
                units += [self._unit(table, [part]) for part in taken]
                room -= len(taken)
            else:
                taken = table.parts if self._traits.copies_at_once else table.parts[:_PARTS_A_TABLE]
                units.append(self._unit(table, taken))
                room -= 1
            self._taken.append((table, len(taken)))
        return units

    def commit(self, receipts: Sequence[Receipt]) -> None:
        """What ``take`` gave is durable downstream. Blocks."""
        sink_state = self._sink.take(self._writer.commit(self.state.start_ts, receipts))
        self._put_aside([row for receipt in receipts for row in receipt.aside])
        copied = dict(self.state.copied or {})
        for table, count in self._taken:
            copied[str(table.physical_id)] = table.parts[count - 1].end.hex()
            table.parts = table.parts[count:]
            self.parts_done += count
        rows = sum(receipt.rows for receipt in receipts)
        self.state = replace(self.state, copied=copied, sink_state=sink_state, rows=self.state.rows + rows)
        self._home.save(self.state)
        self._totals.count(receipts)

    def _put_aside(self, rows: Sequence[Undecodable]) -> None:
        """All batches of a copy end at the same ts, so they share a file."""
        if not rows:
            return
        folder, ts = self._home.undecodable, self.state.start_ts
        quarantine(folder, lambda _: ts, [*read_quarantine(folder), *rows])
        log.warning("rows that cannot be decoded were put aside", rows=len(rows), folder=str(folder))

    def finish(self) -> ChangefeedState:
        """All is copied: from here on it is a changefeed like any other."""
        self.state = replace(self.state, copied=None)
        self._home.save(self.state)
        self._sink.publish(self.state.checkpoint_ts)
        log.info("initial copy is complete", rows=self.state.rows, ts=self.state.start_ts)
        return self.state

    def close(self) -> None:
        """Let go of the writer. Blocks."""
        self._writer.close()

    def _unit(self, table: _Table, parts: Sequence[CopyPart]) -> Unit:
        ts = self.state.start_ts
        target = self._writer.target(self._selector.table(table.info), table.physical_id, (ts, ts))
        decoder = self._source.decoder(table.info, table.physical_id, False)
        return Unit(decoder, None, target, parts=tuple(parts))

    def _event(self, seq: int, kind: ActionType, query: str, schema: str, info: TableInfo | None) -> DdlEvent:
        ts = self.state.start_ts
        return DdlEvent(ts, Ts(ts - 1), seq, kind, kind, query, schema, info.name if info else "", info)


def _above(parts: Sequence[CopyPart], key: bytes) -> list[CopyPart]:
    """What of the parts lies at or above the key. Regions may have changed since it was noted."""
    return [_from(part, max(part.start, key)) for part in parts if part.end > key]


def _from(part: CopyPart, start: bytes) -> CopyPart:
    begun: CopyPart = replace(part, start=start)  # type: ignore[type-var]  # a port: each part is a dataclass
    return begun
