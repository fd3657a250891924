"""Which spans are followed, over which interval of commit-ts, and how far they are resolved.

    open(since) ── advance(resolved) ... ── close(until) ── resolved ≥ until ── checkpoint ≥ until: forgotten

Pure state, no files. A span's changes are wanted where ``since < commit_ts ≤ until``. While it is
open it holds the frontier at its resolved-ts; closed, only until that has reached ``until``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from tidemill.errors import InvariantError
from tidemill.model.ts import MAX_TS, Ts

_SPARE_ENTRIES = 64


@dataclass(slots=True)
class Followed:
    """One span. ``past`` are earlier intervals of the same id whose changes may still be wanted."""

    since_ts: Ts
    resolved_ts: Ts
    until_ts: Ts = MAX_TS
    past: list[tuple[Ts, Ts]] = field(default_factory=list)
    is_reopened: bool = False

    @property
    def is_complete(self) -> bool:
        return self.resolved_ts >= self.until_ts

    @property
    def is_clipped(self) -> bool:
        """Whether changes may be at hand that are not wanted: they came before the end was known."""
        return self.until_ts != MAX_TS or self.is_reopened

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
        # The lowest first. An entry counts if its span still holds the frontier at that ts.
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
            resolved_ts, span_id = self._holding[0]
            span = self._spans.get(span_id)
            if span is not None and span.resolved_ts == resolved_ts and not span.is_complete:
                return resolved_ts
            heappop(self._holding)
        return MAX_TS

    @property
    def clipped(self) -> set[int]:
        return {span_id for span_id, span in self._spans.items() if span.is_clipped}

    def open(self, span_id: int, since_ts: Ts, taken_ts: Ts) -> None:
        """Follow a span above ``since_ts``, which must not lie below ``taken_ts``: what the reader already has."""
        if since_ts < taken_ts:
            raise InvariantError(
                f"cannot follow span {span_id} from {since_ts}: batches up to {taken_ts} were already handed out, "
                "and its changes below would be lost. Open a span before the checkpoint passes its since-ts."
            )
        past: list[tuple[Ts, Ts]] = []
        is_reopened = span_id in self._forgotten
        before = self._spans.get(span_id)
        if before is not None:
            if not before.is_complete or since_ts < before.until_ts:
                raise InvariantError(
                    f"cannot follow span {span_id} again from {since_ts}: it is followed up to {before.until_ts} "
                    f"and resolved to {before.resolved_ts}. Close it, and let it be resolved up to there, first."
                )
            is_reopened = True
            past = [*before.past, (before.since_ts, before.until_ts)]
        self._spans[span_id] = Followed(since_ts, since_ts, past=past, is_reopened=is_reopened)
        self._forgotten.discard(span_id)
        self._hold(since_ts, span_id)

    def close(self, span_id: int, until_ts: Ts) -> None:
        """Want nothing above ``until_ts`` any more. Closing again can only lower the end."""
        span = self.find(span_id)
        if span is not None:
            span.until_ts = min(span.until_ts, max(until_ts, span.since_ts))

    def advance(self, span_id: int, resolved_ts: Ts) -> None:
        """A new region leader may report less than the old one promised: what was promised stands."""
        span = self.find(span_id)
        if span is not None and resolved_ts > span.resolved_ts:
            span.resolved_ts = resolved_ts
            self._hold(resolved_ts, span_id)

    def forget_below(self, checkpoint_ts: Ts) -> list[int]:
        """Forget closed spans whose end the checkpoint has reached; return their ids."""
        gone = [i for i, s in self._spans.items() if s.is_complete and s.until_ts <= checkpoint_ts]
        for span_id in gone:
            del self._spans[span_id]
        self._forgotten.update(gone)
        for span in self._spans.values():
            if span.past:
                span.past = [(since, until) for since, until in span.past if until > checkpoint_ts]
        return gone

    def _hold(self, resolved_ts: Ts, span_id: int) -> None:
        heappush(self._holding, (resolved_ts, span_id))
        if len(self._holding) > 2 * len(self._spans) + _SPARE_ENTRIES:  # most of them do not count any more
            self._holding = [(s.resolved_ts, i) for i, s in self._spans.items() if not s.is_complete]
            heapify(self._holding)
