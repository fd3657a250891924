"""The schema of a changefeed as it changes: every state of every DDL job, read through the change stream.

    puller ── rows of the job table ──► SchemaFeed ── SchemaChange, resolved-ts ──► owner, processors
                                            └── store: tables as of any ts

One for each changefeed of a capture: its owner and its processors listen to it, and look tables up in its store.
"""

from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import UpstreamUnavailableError
from tidemill.flow.puller import Puller
from tidemill.flow.schema import JOB_TABLE_ID, SchemaChange, SchemaStore
from tidemill.log import get_logger
from tidemill.model.change import RAW_CHANGE_SCHEMA, without_rare
from tidemill.model.ts import Ts
from tidemill.tidb.keys import record_span
from tidemill.upstream.pd import PdClient

log = get_logger("schema")

_SUBSCRIPTION = 1
_STILL_SECONDS = 0.2

Listener = Callable[[Sequence[SchemaChange], Ts], None]


class SchemaFeed:
    """Runs on the capture's loop. ``resolved_ts``: every DDL up to here is known."""

    def __init__(self, pd: PdClient, store: SchemaStore, resolved_ts: Ts, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        self.resolved_ts = resolved_ts
        self.learned = 0  # changes so far
        self.changes: deque[SchemaChange] = deque()  # that were learned, but for those that were forgotten
        self._pd, self._clock = pd, clock
        self._puller = Puller(pd, self, clock=clock)
        self._job_rows: list[pa.RecordBatch] = []
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """``listener`` hears of new changes, in order, and of each resolved-ts."""
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        """Whether it has listened or not."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def run(self) -> None:
        """Until it is cancelled."""
        # One below: the schema store wants to see again what was done exactly at its ts.
        self._puller.subscribe(_SUBSCRIPTION, record_span(JOB_TABLE_ID), Ts(self.resolved_ts - 1))
        await self._puller.run()

    def forget(self, ts: Ts) -> None:
        """Nobody looks at anything at or below ``ts`` any more."""
        self.store.gc(ts)
        while self.changes and self.changes[0].finished_ts <= ts:
            self.changes.popleft()

    # What the puller calls.

    async def receive(self, subscription: int, changes: pa.RecordBatch) -> None:
        self._job_rows.append(without_rare(changes))

    def resolve(self, subscription: int, resolved_ts: Ts) -> None:
        if resolved_ts <= self.resolved_ts:
            return
        rows = self._take_job_rows(resolved_ts)
        changes = self.store.apply(rows)
        self.changes += changes
        self.learned += len(changes)
        self.resolved_ts = resolved_ts
        for listener in list(self._listeners):
            listener(changes, resolved_ts)

    def _take_job_rows(self, resolved_ts: Ts) -> pa.RecordBatch:
        """Job rows up to ``resolved_ts``, in commit order. The store drops what it has seen before."""
        if not self._job_rows:
            return pa.RecordBatch.from_pylist([], RAW_CHANGE_SCHEMA)
        held = pa.Table.from_batches(self._job_rows, RAW_CHANGE_SCHEMA)
        commit_ts = held["commit_ts"]
        self._job_rows = held.filter(pc.greater(commit_ts, pa.scalar(resolved_ts, pa.uint64()))).to_batches()
        due = held.filter(pc.less_equal(commit_ts, pa.scalar(resolved_ts, pa.uint64())))
        due = due.sort_by([("commit_ts", "ascending"), ("start_ts", "ascending"), ("key", "ascending")])
        batches: list[pa.RecordBatch] = due.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], RAW_CHANGE_SCHEMA)


class StillFeed(SchemaFeed):
    """Of a source without DDLs: whatever the ts, all of them up to there are known. So it is as far as the clock of the
    upstream."""

    async def run(self) -> None:
        while True:
            try:
                self.resolve(_SUBSCRIPTION, await self._pd.get_ts())
            except UpstreamUnavailableError as error:
                log.warning("PD is away; nothing is captured beyond what is known", reason=str(error))
            await self._clock.sleep(_STILL_SECONDS)
