"""Which spans are followed, over which interval of commit-ts, and how far they are resolved.

    open(since) ── advance(resolved) ... ── close(until) ── resolved ≥ until ── checkpoint ≥ until: forgotten

Pure state, no files. A span's changes are wanted where ``since < commit_ts ≤ until``. While it is
open it holds the frontier at its resolved-ts; closed, only until that has reached ``until``.

Spans that are read together are resolved together: they have one *source*, and a report of its
resolved-ts costs the same for one span and for a thousand. What has to be done regularly looks at
sources and at spans that have an end, never at all spans: there may be a hundred thousand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from tidemill.errors import InvariantError
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import MAX_TS, Ts

_SPARE_ENTRIES = 64


@dataclass(slots=True, eq=False)
class Source:
    """What some spans have in common: how far they are resolved, and which of them hold the frontier."""

    id: int
    resolved_ts: Ts
    open_spans: int
    ends: dict[int, Ts] = field(default_factory=dict)  # of its closed spans that are not forgotten, by id

    @property
    def is_holding(self) -> bool:
        return self.open_spans > 0 or any(until > self.resolved_ts for until in self.ends.values())

    @property
    def is_empty(self) -> bool:
        return self.open_spans == 0 and not self.ends


@dataclass(slots=True)
class Followed:
    """One span. ``past`` are earlier intervals of the same id whose changes may still be wanted."""

    since_ts: Ts
    source: Source
    until_ts: Ts = MAX_TS
    past: tuple[tuple[Ts, Ts], ...] = ()
    is_reopened: bool = False

    @property
    def resolved_ts(self) -> Ts:
        return self.source.resolved_ts

    @property
    def is_complete(self) -> bool:
        return self.resolved_ts >= self.until_ts

    def wanted(self, from_ts: int, to_ts: int) -> Iterator[tuple[int, int]]:
        """The parts ``(low, high]`` of ``(from_ts, to_ts]`` in which changes are wanted, ascending."""
        for since, until in (*self.past, (self.since_ts, self.until_ts)):
            low, high = max(from_ts, since), min(to_ts, until)
            if low < high:
                yield low, high


class FollowedSpans:
    """All spans and their frontier."""

    def __init__(self) -> None:
        self._spans: dict[int, Followed] = {}
        self._forgotten: set[int] = set()  # one number per table that is gone: late deliveries are told from bugs
        self._clipped: set[int] = set()
        self._sources: dict[int, Source] = {}
        self._ended: set[int] = set()  # sources that have no spans any more
        # The lowest first. An entry counts if its source still holds the frontier at that ts.
        self._holding: list[tuple[Ts, int]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, span_id: int) -> Followed:
        return self._spans[span_id]

    def find(self, span_id: int) -> Followed | None:
        """The span, or None when it was forgotten. One that was never opened is a bug of the caller."""
        span = self._spans.get(span_id)
        if span is None and span_id not in self._forgotten:
            raise InvariantError(f"span {span_id} was never opened, yet something arrived for it. This is a bug.")
        return span

    @property
    def resolved_ts(self) -> Ts:
        """The lowest resolved-ts of the spans that hold the frontier; ``MAX_TS`` where none does."""
        while self._holding:
            resolved_ts, source_id = self._holding[0]
            source = self._sources.get(source_id)
            if source is not None and source.resolved_ts == resolved_ts and source.is_holding:
                return resolved_ts
            heappop(self._holding)
        return MAX_TS

    def resolved_of(self, source_id: int) -> Ts:
        return self._sources[source_id].resolved_ts

    @property
    def clipped(self) -> set[int]:
        """Spans of which changes may be at hand that are not wanted: they came before the end was known."""
        return self._clipped

    def open(self, source_id: int, span_ids: Sequence[int], since_ts: Ts, taken_ts: Ts) -> None:
        """Follow spans above ``since_ts``, which must not lie below ``taken_ts``: what the reader already has."""
        if since_ts < taken_ts:
            raise InvariantError(
                f"cannot follow span {span_ids[0]} from {since_ts}: batches up to {taken_ts} were already handed out, "
                "and its changes below would be lost. Open a span before the checkpoint passes its since-ts."
            )
        source = Source(source_id, since_ts, len(span_ids))
        for span_id in span_ids:
            self._open_one(span_id, since_ts, source)
        self._add_source(source)

    def _open_one(self, span_id: int, since_ts: Ts, source: Source) -> None:
        past: tuple[tuple[Ts, Ts], ...] = ()
        is_reopened = span_id in self._forgotten
        before = self._spans.get(span_id)
        if before is not None:
            if not before.is_complete or since_ts < before.until_ts:
                raise InvariantError(
                    f"cannot follow span {span_id} again from {since_ts}: it is followed up to {before.until_ts} "
                    f"and resolved to {before.resolved_ts}. Close it, and let it be resolved up to there, first."
                )
            is_reopened = True
            past = (*before.past, (before.since_ts, before.until_ts))
            self._leave(before.source, span_id)
        self._spans[span_id] = Followed(since_ts, source, past=past, is_reopened=is_reopened)
        self._forgotten.discard(span_id)
        if is_reopened:
            self._clipped.add(span_id)

    def join(self, source_id: int, span_ids: Sequence[int]) -> Ts:
        """Let open spans be resolved together from now on, by a new source that must be read above the ts returned."""
        spans = [self._spans[span_id] for span_id in span_ids]
        source = Source(source_id, min(span.resolved_ts for span in spans), len(spans))
        for span_id, span in zip(span_ids, spans, strict=True):
            if span.until_ts != MAX_TS:
                raise InvariantError(f"span {span_id} ends at {span.until_ts} and cannot join others. This is a bug.")
            self._leave(span.source, span_id)
            span.source = source
        self._add_source(source)
        return source.resolved_ts

    def close(self, span_id: int, until_ts: Ts) -> None:
        """Want nothing above ``until_ts`` any more. Closing again can only lower the end."""
        span = self.find(span_id)
        if span is None:
            return
        if span.until_ts == MAX_TS:
            span.source.open_spans -= 1
        span.until_ts = min(span.until_ts, max(until_ts, span.since_ts))
        span.source.ends[span_id] = span.until_ts
        self._clipped.add(span_id)

    def advance(self, source_id: int, resolved_ts: Ts) -> None:
        """A new region leader may report less than the old one promised: what was promised stands."""
        source = self._sources.get(source_id)
        if source is None:
            if source_id not in self._ended:
                raise InvariantError(f"span {source_id} was never opened, yet something arrived for it. This is a bug.")
        elif resolved_ts > source.resolved_ts:
            source.resolved_ts = resolved_ts
            self._hold(source)

    def forget_below(self, checkpoints: Checkpoints) -> list[int]:
        """Forget closed spans whose end their checkpoint has reached; return their ids."""
        clipped = [(span_id, self._spans[span_id]) for span_id in self._clipped]
        gone = [i for i, s in clipped if s.is_complete and s.until_ts <= checkpoints.of(i)]
        for span_id in gone:
            self._leave(self._spans.pop(span_id).source, span_id)
        self._clipped.difference_update(gone)
        self._forgotten.update(gone)
        for span_id, span in clipped:
            if span.past:
                span.past = tuple((since, until) for since, until in span.past if until > checkpoints.of(span_id))
        return gone

    def _add_source(self, source: Source) -> None:
        if source.id in self._sources:
            raise InvariantError(f"source {source.id} has spans already, others cannot be added. This is a bug.")
        self._sources[source.id] = source
        self._ended.discard(source.id)
        self._hold(source)

    def _leave(self, source: Source, span_id: int) -> None:
        if source.ends.pop(span_id, None) is None:
            source.open_spans -= 1
        if source.is_empty and self._sources.get(source.id) is source:
            del self._sources[source.id]
            self._ended.add(source.id)

    def _hold(self, source: Source) -> None:
        heappush(self._holding, (source.resolved_ts, source.id))
        if len(self._holding) > 2 * len(self._sources) + _SPARE_ENTRIES:  # most of them do not count any more
            self._holding = [(s.resolved_ts, i) for i, s in self._sources.items() if s.is_holding]
            heapify(self._holding)
