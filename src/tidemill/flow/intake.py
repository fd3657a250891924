"""The intake: which spans are read from the upstream, and where their changes wait until a batch takes them.

    schema store ── followed intervals ──► Intake ── subscribe ──► puller
                                             ▲                        │ changes, resolved-ts
                    plan(from, to] ◄── sorters ◄──────────────────────┘

Each followed interval of a physical id is a span with a number of its own, since a table may be dropped and
recovered under the same id. Most begin where they are first read. The new ids of TRUNCATE PARTITION do not: sessions
write them while the job still runs, yet downstream those rows must come after the truncation. Their *early*
changes wait in a sorter of their own and go out with the first batch behind the DDL.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tidemill.errors import InvariantError
from tidemill.flow.puller import Puller
from tidemill.flow.schema import Followed, SchemaStore
from tidemill.flow.sorter import Sorter, SpanSlices
from tidemill.model.table import TableInfo
from tidemill.model.ts import MAX_TS, Ts
from tidemill.upstream.keys import record_span

FIRST_SPAN = 2  # number 1 is the subscription to the DDL jobs

Interval = tuple[int, Ts]  # physical id and since_ts: what stays the same of a followed interval


@dataclass(slots=True)
class _Span:
    id: int
    followed: Followed
    is_closed: bool = False


class Intake:
    def __init__(
        self,
        schema: SchemaStore,
        puller: Puller,
        sorter: Sorter,
        open_early: Callable[[], Sorter],
        is_captured: Callable[[TableInfo], bool] = lambda table: True,
    ) -> None:
        self._schema = schema
        self._is_captured = is_captured
        self._puller = puller
        self._sorter = sorter
        self._open_early = open_early
        self._early_sorter: Sorter | None = None
        self._spans: dict[Interval, _Span] = {}
        self._early: dict[Interval, _Span] = {}
        self._by_id: dict[int, tuple[Sorter, _Span]] = {}
        self._next_id = FIRST_SPAN

    async def receive(self, span_id: int, changes: pa.RecordBatch) -> None:
        """Take changes of a span; those of a span that is no longer read are dropped. May wait."""
        if span_id in self._by_id:
            await self._by_id[span_id][0].add(span_id, changes)

    def advance(self, span_id: int, resolved_ts: Ts) -> None:
        if span_id in self._by_id:
            self._by_id[span_id][0].advance(span_id, resolved_ts)

    def follow(self, checkpoint_ts: Ts) -> None:
        """Read what the schema store says is followed above the checkpoint, and nothing else."""
        wanted = {
            (f.physical_id, f.since_ts): f
            for f in self._schema.followed()
            if (f.until_ts is None or f.until_ts > checkpoint_ts) and self._is_wanted(f.physical_id, checkpoint_ts)
        }
        for interval, followed in wanted.items():
            begin_ts = followed.begin_ts
            if begin_ts is None or (followed.since_ts < begin_ts and begin_ts >= checkpoint_ts):
                self._follow_early(interval, followed)
            if begin_ts is not None:
                self._follow_from(interval, followed, Ts(max(begin_ts, checkpoint_ts)))
        for interval in self._spans.keys() - wanted.keys():
            self._drop(self._spans.pop(interval))
        for interval in self._early.keys() - wanted.keys():
            self._drop(self._early.pop(interval))

    def frontier_ts(self, checkpoint_ts: Ts) -> Ts:
        """How far everything is resolved; early changes that are due must be complete first."""
        if (
            self._early_sorter is not None
            and self._due(checkpoint_ts)
            and self._early_sorter.resolved_ts < checkpoint_ts
        ):
            return checkpoint_ts
        return self._sorter.resolved_ts

    def has_changes(self, checkpoint_ts: Ts, to_ts: Ts) -> bool:
        """Whether a batch (checkpoint, to] would have any rows."""
        return checkpoint_ts < to_ts and (
            self._sorter.has_changes(checkpoint_ts, to_ts) or bool(self._due_slices(checkpoint_ts))
        )

    def next_to(self, checkpoint_ts: Ts, limit_ts: Ts, max_rows: int, max_bytes: int) -> Ts:
        return self._sorter.next_to(checkpoint_ts, limit_ts, max_rows, max_bytes)

    def plan(self, checkpoint_ts: Ts, to_ts: Ts) -> list[tuple[int, SpanSlices]]:
        """What a batch (checkpoint, to] consists of: each physical id that has changes, with them."""
        found: dict[int, SpanSlices] = {}
        for slices in self._due_slices(checkpoint_ts) + self._sorter.plan(checkpoint_ts, to_ts):
            physical_id = self._by_id[slices.span_id][1].followed.physical_id
            found[physical_id] = found[physical_id].joined(slices) if physical_id in found else slices
        return list(found.items())

    def release(self, checkpoint_ts: Ts) -> None:
        """Everything up to the checkpoint is durable; early changes due before it have gone out with it."""
        self._sorter.release(checkpoint_ts)
        for interval, span in list(self._early.items()):
            if span.followed.begin_ts is not None and span.followed.begin_ts < checkpoint_ts:
                self._drop(self._early.pop(interval))
        if self._early_sorter is not None and not self._early:
            self._early_sorter.close()
            self._early_sorter = None

    # Spans.

    def _is_wanted(self, physical_id: int, checkpoint_ts: Ts) -> bool:
        """Whether the table is captured at the checkpoint, or in its newest version: a rename may lie between."""
        tables = [self._schema.table(physical_id, ts) for ts in (checkpoint_ts + 1, MAX_TS)]
        return any(table is None or self._is_captured(table) for table in tables)

    def _follow_from(self, interval: Interval, followed: Followed, since_ts: Ts) -> None:
        span = self._spans.get(interval)
        if span is None:
            span = self._spans[interval] = self._open(self._sorter, followed, since_ts)
        span.followed = followed
        if followed.until_ts is not None and not span.is_closed:
            self._sorter.close_span(span.id, followed.until_ts)
            span.is_closed = True

    def _follow_early(self, interval: Interval, followed: Followed) -> None:
        if self._early_sorter is None:
            self._early_sorter = self._open_early()
        span = self._early.get(interval)
        if span is None:
            span = self._early[interval] = self._open(self._early_sorter, followed, followed.since_ts)
        span.followed = followed
        if followed.begin_ts is not None and not span.is_closed:
            self._early_sorter.close_span(span.id, followed.begin_ts)
            span.is_closed = True

    def _open(self, sorter: Sorter, followed: Followed, since_ts: Ts) -> _Span:
        span = _Span(self._next_id, followed)
        self._next_id += 1
        sorter.open_span(span.id, since_ts)
        self._by_id[span.id] = sorter, span
        self._puller.subscribe(span.id, record_span(followed.physical_id), since_ts)
        return span

    def _drop(self, span: _Span) -> None:
        self._puller.unsubscribe(span.id)
        sorter, _ = self._by_id.pop(span.id)
        if not span.is_closed:
            # Given up in the middle of its job: no row of it is wanted, and it must hold nothing back.
            sorter.close_span(span.id, span.followed.since_ts)

    # Early changes.

    def _due(self, checkpoint_ts: Ts) -> list[_Span]:
        return [span for span in self._early.values() if span.followed.begin_ts == checkpoint_ts]

    def _due_slices(self, checkpoint_ts: Ts) -> list[SpanSlices]:
        due = {span.id for span in self._due(checkpoint_ts)}
        if not due:
            return []
        if self._early_sorter is None:
            raise InvariantError("early changes are due but their sorter is gone")
        if self._early_sorter.resolved_ts < checkpoint_ts:
            return []
        return [slices for slices in self._early_sorter.plan(Ts(0), checkpoint_ts) if slices.span_id in due]
