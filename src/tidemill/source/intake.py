"""The intake: which spans are read from the upstream, and where their changes wait until a batch takes them.

    schema store ── followed intervals ──► Intake ── subscribe ──► puller
                                             ▲                        │ changes, resolved-ts
                    plan(from, to] ◄── sorters ◄──────────────────────┘

Each followed interval of a physical id is a span with a number of its own, since a table may be dropped and
recovered under the same id. Most begin where they are first read. The new ids of TRUNCATE PARTITION do not: sessions
write them while the job still runs, yet downstream those rows must come after the truncation. Their *early*
changes wait in a sorter of their own and go out with the first batch behind the DDL. So do those that a DROP
PARTITION downstream would take along, although they went out before: they are *replayed*.

A *reading* is what is subscribed: one span where tables are few, many neighbours where they are not. Its spans are
resolved together; each keeps its own interval, so one that is dropped just ends inside it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, groupby

import pyarrow as pa

from tidemill.errors import InvariantError
from tidemill.flow.puller import Puller
from tidemill.flow.schema import Followed, SchemaStore
from tidemill.flow.sorter import Sorter, SpanSlices
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.span import Span
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.portions import by_table, portions, span_of

FIRST_SPAN = 2  # number 1 is the subscription to the DDL jobs
FEW_READINGS = 256  # up to so many tables are read one by one; more share about so many readings
_MOST = 4  # times as many, since tables that come later are read one by one; then the smallest readings are joined

Interval = tuple[int, Ts]  # physical id and since_ts: what stays the same of a followed interval


@dataclass(slots=True)
class _Span:
    id: int
    followed: Followed
    reading: "_Reading"
    is_closed: bool = False


@dataclass(slots=True, eq=False)
class _Reading:
    id: int
    sorter: Sorter
    spans: dict[int, _Span]  # by physical id
    is_shared: bool


class Intake:
    def __init__(
        self,
        schema: SchemaStore,
        puller: Puller,
        sorter: Sorter,
        open_early: Callable[[], Sorter],
        is_captured: Callable[[TableInfo], bool] = lambda table: True,
        *,
        few_readings: int = FEW_READINGS,
        replays: bool = True,
        span_of: Callable[[Sequence[int]], Span] = span_of,
    ) -> None:
        """``replays``: the sink puts a row into the table partition that its values name, not into the one that it
        is in upstream; so it needs some rows again behind a DROP PARTITION. ``span_of``: what to subscribe to."""
        self._schema = schema
        self._is_captured = is_captured
        self._puller = puller
        self._sorter = sorter
        self._open_early = open_early
        self._few = few_readings
        self._replays = replays
        self._span_of = span_of
        self._early_sorter: Sorter | None = None
        self._spans: dict[Interval, _Span] = {}
        self._early: dict[Interval, _Span] = {}
        self._by_id: dict[int, _Span] = {}
        self._of_table: dict[int, set[int]] = {}  # spans by physical id, without early ones
        self._readings: dict[int, _Reading] = {}
        self._numbers = count(FIRST_SPAN)
        self._followed_revision = -1
        self._settled_ts: Ts | None = None  # a checkpoint from which on fewer spans may be wanted

    async def receive(self, reading_id: int, changes: pa.RecordBatch) -> None:
        """Take changes of a reading; those of a span that is no longer read are dropped. May wait."""
        reading = self._readings.get(reading_id)
        if reading is None:
            return
        if not reading.is_shared:
            for span in reading.spans.values():
                await reading.sorter.add(span.id, changes)
            return
        for physical_id, rows in by_table(changes):
            found = reading.spans.get(physical_id)
            if found is not None:
                await reading.sorter.add(found.id, rows)

    def advance(self, reading_id: int, resolved_ts: Ts) -> None:
        if reading_id in self._readings:
            self._readings[reading_id].sorter.advance(reading_id, resolved_ts)

    def follow(self, at: Checkpoints, *, is_reassigned: bool = False) -> None:
        """Read what the schema store says is followed above the checkpoints, and nothing else. ``is_reassigned``: other
        tables are captured than before."""
        lowest_ts = at.lowest_ts
        is_settled = self._settled_ts is None or lowest_ts < self._settled_ts
        if self._followed_revision == self._schema.revision and is_settled and not is_reassigned:
            return  # the answer is the one of last time, and long if there are many tables
        self._followed_revision = self._schema.revision
        self._settled_ts = self._schema.changed_ts if self._schema.changed_ts > lowest_ts else None
        wanted = {
            (f.physical_id, f.since_ts): f
            for f in self._schema.followed()
            if (f.until_ts is None or f.until_ts > at.of(f.physical_id)) and self._is_wanted(f.physical_id, at)
        }
        self._follow_main(wanted, at)
        for interval, followed in wanted.items():
            begin_ts = followed.begin_ts
            if begin_ts is None or (followed.since_ts < begin_ts and begin_ts >= at.of(followed.physical_id)):
                self._follow_early(interval, followed)
        replayed = {
            (f.physical_id, f.since_ts): f
            for f in (self._schema.replayed() if self._replays else ())
            if f.begin_ts is not None and f.begin_ts >= at.of(f.physical_id) and self._is_wanted(f.physical_id, at)
        }
        for interval, followed in replayed.items():
            self._follow_early(interval, followed)
        for interval in self._spans.keys() - wanted.keys():
            self._drop(self._spans.pop(interval))
        for interval in self._early.keys() - wanted.keys() - replayed.keys():
            self._drop(self._early.pop(interval))
        if len(self._readings) > _MOST * self._few:
            self._join_smallest()

    @property
    def physical_ids(self) -> set[int]:
        """Of what is read, early changes included."""
        return {physical_id for physical_id, _ in (*self._spans, *self._early)}

    def readings(self) -> dict[int, tuple[Ts, list[int]]]:
        """How far each subscription is resolved, and the physical ids that it is for; without early changes."""
        main = [r for r in self._readings.values() if r.sorter is self._sorter]
        return {
            r.id: (self._sorter.resolved_of(r.id), list(r.spans))
            for r in main
            if any(not span.is_closed for span in r.spans.values())
        }

    @property
    def taken_ts(self) -> Ts:
        """Batches up to here have been planned or are durable: nothing can be followed from below."""
        return self._sorter.taken_ts

    @property
    def frontier_ts(self) -> Ts:
        """How far everything is resolved, early changes apart."""
        return self._sorter.resolved_ts

    def waiting(self, at: Checkpoints) -> frozenset[int]:
        """The physical ids that cannot move on: early changes are due that are not complete. With the other table
        partitions: downstream they are one table, which has one order."""
        if self._early_sorter is None or self._early_sorter.resolved_ts >= at.base_ts:
            return frozenset()
        due = (span.followed.physical_id for span in self._early.values() if _begins(span, at))
        waiting = {i for i in due if self._early_sorter.resolved_ts < at.of(i)}
        tables = [self._schema.table(i, at.of(i) + 1) for i in waiting]
        return frozenset(waiting.union(*(table.physical_ids for table in tables if table is not None)))

    def has_changes(self, extent: Extent) -> bool:
        """Whether a batch of this extent would have any rows."""
        return self._sorter.has_changes(extent.named(self._of_table)) or bool(self._due_slices(extent))

    def allow(self, extent: Extent, *, is_busy: bool) -> None:
        """A batch may take this: now, or later where the sink is busy. The intake waits for it if it must."""
        self._sorter.allow(extent.named(self._of_table), is_busy=is_busy)

    def next_to(self, extent: Extent, max_rows: int, max_bytes: int) -> Ts:
        """Where a batch of at most this extent should end, for those that begin where it does: what stops at a DDL
        within it is as much as anything else."""
        behind = {i: w for i, w in extent.own.items() if w[0] < extent.from_ts or w[0] >= w[1]}
        apart = Extent(extent.from_ts, extent.to_ts, behind).named(self._of_table).own.keys()
        return self._sorter.next_to(extent.from_ts, extent.to_ts, max_rows, max_bytes, without=apart)

    def catch_up_ts(self, extent: Extent, max_rows: int, max_bytes: int) -> Ts:
        """The same for those that begin below the others."""
        behind = {i: w for i, w in extent.own.items() if w[0] < min(w[1], extent.from_ts)}
        if not behind:
            return extent.to_ts
        spans = Extent(extent.from_ts, extent.to_ts, behind).named(self._of_table).own
        if not spans:
            return extent.to_ts
        from_ts, to_ts = min(low for low, _ in behind.values()), max(high for _, high in behind.values())
        return self._sorter.next_to(from_ts, to_ts, max_rows, max_bytes, only=spans.keys())

    def plan(self, extent: Extent) -> list[tuple[int, SpanSlices]]:
        """What a batch of this extent consists of: each physical id that has changes, with them."""
        found: dict[int, SpanSlices] = {}
        for slices in self._due_slices(extent) + self._sorter.plan(extent.named(self._of_table)):
            physical_id = self._by_id[slices.span_id].followed.physical_id
            found[physical_id] = found[physical_id].joined(slices) if physical_id in found else slices
        return list(found.items())

    def release(self, at: Checkpoints) -> None:
        """Everything up to the checkpoints is durable; early changes due before have gone out with it."""
        behind = {span: ts for i, ts in at.own.items() for span in self._of_table.get(i, ())}
        self._sorter.release(Checkpoints(at.base_ts, behind))
        for interval, span in list(self._early.items()):
            begin_ts = span.followed.begin_ts
            if begin_ts is not None and begin_ts < at.of(span.followed.physical_id):
                self._drop(self._early.pop(interval))
        if self._early_sorter is not None and not self._early:
            self._early_sorter.close()
            self._early_sorter = None

    # Spans.

    def _is_wanted(self, physical_id: int, at: Checkpoints) -> bool:
        """Whether any of the tables that it is of, from its checkpoint on, is captured: a rename may lie between."""
        known = self._schema.tables_above(physical_id, at.of(physical_id))
        # One that is not captured is not for being dropped.
        return not known or any(map(self._is_captured, known))

    def _follow_main(self, wanted: dict[Interval, Followed], at: Checkpoints) -> None:
        begun = {i: f for i, f in wanted.items() if f.begin_ts is not None}
        new = sorted((self._since(f, at.of(f.physical_id)), *i) for i, f in begun.items() if i not in self._spans)
        for since_ts, intervals in groupby(new, key=lambda each: each[0]):
            self._open_main({i: wanted[i, since] for _, i, since in intervals}, since_ts)
        for interval, followed in begun.items():
            span = self._spans[interval]
            span.followed = followed
            if followed.until_ts is not None and not span.is_closed:
                self._sorter.close_span(span.id, followed.until_ts)
                span.is_closed = True

    def _since(self, followed: Followed, checkpoint_ts: Ts) -> Ts:
        """From where on to read. A table that is renamed into the rules has nothing to give before that: what is at
        hand, or begun, was planned without it."""
        since_ts = Ts(max(followed.begin_ts or 0, checkpoint_ts))
        taken_ts = self._sorter.taken_ts
        if since_ts >= taken_ts:
            return since_ts
        table = self._schema.table(followed.physical_id, taken_ts)
        return since_ts if table is None or self._is_captured(table) else taken_ts

    def _open_main(self, followed: dict[int, Followed], since_ts: Ts) -> None:
        """Intervals that begin together, by their physical ids, which ascend."""
        for ids in _portions(self._schema, list(followed), self._few - len(self._readings), self._few):
            for span in self._open(self._sorter, [followed[i] for i in ids], since_ts):
                self._spans[span.followed.physical_id, span.followed.since_ts] = span
                self._of_table.setdefault(span.followed.physical_id, set()).add(span.id)

    def _follow_early(self, interval: Interval, followed: Followed) -> None:
        if self._early_sorter is None:
            self._early_sorter = self._open_early()
        span = self._early.get(interval)
        if span is None:
            (span,) = self._open(self._early_sorter, [followed], followed.since_ts)
            self._early[interval] = span
        span.followed = followed
        if followed.begin_ts is not None and not span.is_closed:
            self._early_sorter.close_span(span.id, followed.begin_ts)
            span.is_closed = True

    def _open(self, sorter: Sorter, followed: Sequence[Followed], since_ts: Ts) -> Iterable[_Span]:
        """Spans of one reading, by physical id."""
        reading = _Reading(next(self._numbers), sorter, {}, is_shared=len(followed) > 1)
        for one in followed:
            # A span that is read alone has the number of its reading.
            span = _Span(next(self._numbers) if reading.is_shared else reading.id, one, reading)
            reading.spans[one.physical_id] = self._by_id[span.id] = span
        sorter.open_spans(reading.id, [span.id for span in reading.spans.values()], since_ts)
        self._read(reading, since_ts)
        return reading.spans.values()

    def _read(self, reading: _Reading, since_ts: Ts) -> None:
        self._readings[reading.id] = reading
        self._puller.subscribe(reading.id, self._span_of(list(reading.spans)), since_ts)

    def _drop(self, span: _Span) -> None:
        reading, physical_id = span.reading, span.followed.physical_id
        del self._by_id[span.id]
        self._of_table.get(physical_id, set()).discard(span.id)
        if not self._of_table.get(physical_id, True):
            del self._of_table[physical_id]
        del reading.spans[physical_id]
        if not reading.spans:
            self._puller.unsubscribe(reading.id)
            del self._readings[reading.id]
        # Be it given up in the middle of its job, or before its end: no row of it is wanted, and nothing waits for it.
        reading.sorter.close_span(span.id, span.followed.since_ts)

    def _join_smallest(self) -> None:
        """Tables that were created one by one are read together from now on, where they are."""
        readings = [r for r in self._readings.values() if r.sorter is self._sorter]
        readings.sort(key=lambda reading: len(reading.spans))
        before = readings[: (_MOST - 1) * self._few]
        spans = {i: s for reading in before for i, s in reading.spans.items() if not s.is_closed}
        for ids in _portions(self._schema, sorted(spans), 0, self._few):
            reading = _Reading(next(self._numbers), self._sorter, {i: spans[i] for i in ids}, is_shared=True)
            since_ts = self._sorter.join_spans(reading.id, [spans[i].id for i in ids])
            for i in ids:
                del spans[i].reading.spans[i]
                spans[i].reading = reading
            self._read(reading, since_ts)
        for reading in before:
            if not reading.spans:
                self._puller.unsubscribe(reading.id)
                del self._readings[reading.id]

    # Early changes.

    def _due_slices(self, extent: Extent) -> list[SpanSlices]:
        """Those that go out with the first batch behind their DDL. Raises where they are not complete: that batch would
        be the last that could have them."""
        due: dict[Ts, set[int]] = {}
        for span in self._early.values():
            low, high = extent.of(span.followed.physical_id)
            if span.followed.begin_ts == low < high:
                due.setdefault(low, set()).add(span.id)
        if due and self._early_sorter is None:
            raise InvariantError("early changes are due but their sorter is gone")
        return [
            slices
            for begin_ts, spans in due.items()
            if self._early_sorter is not None
            for slices in self._early_sorter.plan(Extent(Ts(0), begin_ts), again=True)
            if slices.span_id in spans
        ]


def _portions(schema: SchemaStore, ids: Sequence[int], room: int, few: int) -> Iterable[Sequence[int]]:
    """What is read together of ``ids``: one by one as long as there is ``room``."""
    if len(ids) <= max(room, 1):
        return [[i] for i in ids]
    own = set(ids)
    return portions(ids, [i for i in schema.physical_ids() if i not in own], few)


def _begins(span: _Span, at: Checkpoints) -> bool:
    return span.followed.begin_ts == at.of(span.followed.physical_id)
