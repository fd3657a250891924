"""The changes of a table as a stream. Its offset is a ts:

    {"ts": "470489262527873024", "hold": "tidemill-read-5f0c…"}     everything with commit-ts ≤ ts has been given

A batch is the changes in ``(start, end]``, a pure function of the two, so a stream that starts again from Spark's
checkpoint has neither gap nor overlap. ``hold`` is the claim on the upstream's past: it is part of the offset so that
the stream finds its own again; while it runs the claim is renewed from here, at what Spark has committed.

Rows come in the form that the table has when the query starts. Where a DDL gives it other columns, a batch ends with
the last row before it, and the next one fails: a query that is started again continues there, in the new form.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tidemill.errors import SchemaError
from tidemill.model.ts import LOGICAL_BITS, Ts, show
from tidemill.source.scan import Presenter, ReadHold, ScanClient, Stretch, TableHistory, cut, first_change
from tidemill.spark.library.options import Now, ReadOptions
from tidemill.spark.library.source import Part, narrowed, read_parts

Offset = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Interval:
    """Where the table's changes in ``(from_ts, to_ts]`` are."""

    from_ts: Ts
    to_ts: Ts
    stretches: list[Stretch]


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and plans on the driver, in a process of Spark's own; reads on executors."""

    def __init__(self, options: ReadOptions, presenter: Presenter) -> None:
        self._options = options
        self._presenter = presenter
        self._history = TableHistory(options.table)
        self._client: ScanClient | None = None  # only where it is asked: what travels to executors has none
        self._end_ts: Ts | None = None  # of a stream that takes what there is now
        self._found: _Interval | None = None  # of the last offset, for the plan of its batch

    def initialOffset(self) -> Offset:
        start = self._options.starting_ts
        ts = self._ask.now() if start is None or isinstance(start, Now) else start
        hold = ReadHold.new(ts, self._options.gc_ttl_seconds)
        self._ask.keep(hold)
        return {"ts": str(ts), "hold": hold.id}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        # How many rows an interval has is known only once it is read: Spark's limits by rows cannot be kept.
        self._keep(start)
        from_ts = Ts(int(start["ts"]))
        to_ts = self._end_ts if self._end_ts is not None else self._ask.now()
        seconds = self._options.max_interval_seconds
        if seconds is not None:
            to_ts = Ts(min(to_ts, from_ts + (seconds * 1000 << LOGICAL_BITS)))
        return {**start, "ts": str(self._taken(from_ts, to_ts) if from_ts < to_ts else from_ts)}

    def _taken(self, from_ts: Ts, to_ts: Ts) -> Ts:
        """How far a batch may go: to ``to_ts``, or to a DDL behind which rows have another form."""
        stretches = self._ask.stretches(self._history, from_ts, to_ts)
        change = first_change(self._presenter, stretches)
        if change is not None:
            if change.ts <= from_ts:
                raise SchemaError(
                    f"the schema of table {self._options.table} changed at {show(change.ts)}: "
                    f"{', '.join(change.differences)}. No row of the new schema has been taken. Start the query again "
                    "with the same checkpointLocation: it continues there, with the new schema."
                )
            to_ts, stretches = change.ts, cut(stretches, change.ts)
        self._found = _Interval(from_ts, to_ts, stretches)
        return to_ts

    def prepareForTriggerAvailableNow(self) -> None:
        self._end_ts = self._ask.now()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        from_ts, to_ts = Ts(int(start["ts"])), Ts(int(end["ts"]))
        if from_ts >= to_ts:
            return []
        self._keep(start)
        known = self._found
        if known is None or (known.from_ts, known.to_ts) != (from_ts, to_ts):  # a batch that was planned before
            known = _Interval(from_ts, to_ts, self._ask.stretches(self._history, from_ts, to_ts))
        found = [narrowed(stretch, self._presenter) for stretch in known.stretches]
        return [Part(part) for part in self._ask.plan_changes(found, zone=self._options.mount_zone)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        yield from read_parts(partition.part, self._presenter)

    def commit(self, end: Offset) -> None:
        self._keep(end)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _keep(self, offset: Offset) -> None:
        ts = Ts(int(offset["ts"]))
        self._ask.keep(ReadHold(offset["hold"], ts, self._options.gc_ttl_seconds))

    @property
    def _ask(self) -> ScanClient:
        if self._client is None:
            self._client = ScanClient(self._options.pd, self._options.security)
        return self._client
