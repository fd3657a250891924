"""The capture's side of the sorter: buffers in memory, segments on disk, back-pressure, release.

    add ──► buffers (memory) ──seal──► segments (disk) ──plan──► readers ──release──► deleted

All methods are called from one event loop. Sealing, that is sorting and writing, is done by one
thread beside it; whoever needs the outcome waits for it. Nothing outlives the process: a new
``Sorter`` removes what an earlier one left, since all of it is pulled again from the checkpoint.

Back-pressure. ``add`` waits while ``memory_bytes`` would be exceeded; only the disk is waited for, so
that always ends. All that is taken in goes to disk sooner or later, so it is counted against ``disk_bytes`` from
then on, in the size of the file that it will become: what is in memory or being written never makes the files exceed
it. Where it would be exceeded, ``add`` waits as long as the readers can make room by
themselves: while there are changes that they may take (up to the lower of the resolved-ts and
what they told of last, by ``allow``) and that the checkpoint has not passed,
or while they are busy with something else that will end. When they
have taken all of that, only new input can move the frontier or the barrier on, whichever span it
comes from, so everything is let in, beyond the bound. To block the slowest span, or a stream that
it shares with others, would block for ever.
"""

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.columnar.memory import give_back
from tidemill.errors import DataDirError, InvariantError
from tidemill.flow.sorter.estimate import Estimate
from tidemill.flow.sorter.order import ts_column
from tidemill.flow.sorter.segment import Segment, SegmentSlice, write_segment
from tidemill.flow.sorter.shelf import Shelf
from tidemill.flow.sorter.slices import SpanSlices
from tidemill.flow.sorter.spans import FollowedSpans
from tidemill.log import get_logger
from tidemill.model.change import are_changes
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import MAX_TS, Ts
from tidemill.private import make_private

MIB = 1 << 20
_MAX_SEGMENT_BYTES = 1 << 30  # an Arrow binary column ends at 2 GiB
_GIVEN_BACK_BYTES = 64 * MIB  # once so much has gone to disk, and nothing waits to
FRAME_BYTES = 5 << 10  # what a segment's file has besides the bytes of its changes, at most; or one of each schema

log = get_logger("sorter")


@dataclass(frozen=True, slots=True)
class SorterStats:
    memory_bytes: int  # changes not yet written
    disk_bytes: int  # of segments
    rows: int  # in memory and in segments, not yet released; duplicates count
    spans: int
    segments: int
    waiting: int  # calls of ``add`` held back
    is_full: bool = False  # some of them until readers have made room on disk
    most_disk_bytes: int = 0  # at one time, so far


@dataclass(slots=True)
class _Buffers:
    """Changes in memory, by span, in the order of their arrival."""

    batches: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    oldest_ts: int = MAX_TS

    def append(self, span_id: int, changes: pa.RecordBatch) -> None:
        self.batches.setdefault(span_id, []).append(changes)
        self.rows += len(changes)
        self.bytes += changes.nbytes
        self.oldest_ts = min(self.oldest_ts, int(ts_column(changes, "commit_ts").min()))

    def drop_spans(self, span_ids: Iterable[int]) -> None:
        for span_id in span_ids:
            for changes in self.batches.pop(span_id, ()):
                self.rows -= len(changes)
                self.bytes -= changes.nbytes


@dataclass(frozen=True, slots=True)
class _Sealing:
    """Buffers on their way to disk."""

    buffers: _Buffers
    segments: "Future[list[Segment]]"


class Sorter:
    """Holds raw changes by span and ts; gives them out in commit order up to the frontier."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = 64 * MIB,
        memory_bytes: int = 256 * MIB,
        disk_bytes: int | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """``shelf``: where segments are to be found by those who have no path to them, as long as they are here."""
        self._folder = folder
        self._shelf = shelf if shelf is not None else Shelf()
        self._memory_bytes = memory_bytes
        # Half of the memory is filled while the other half is written.
        self._segment_bytes = max(1, min(segment_bytes, memory_bytes // 2, _MAX_SEGMENT_BYTES))
        self._disk_bytes = disk_bytes
        self._spans = FollowedSpans()
        self._buffers = _Buffers()
        self._sealing: _Sealing | None = None
        self._segments: list[Segment] = []
        self._estimate: Estimate | None = None  # of _segments; None: to be made again
        self._released = Checkpoints(Ts(0))
        self._planned_ts = Ts(0)
        self._allowed = Extent(Ts(0), Ts(0))  # what readers were ready to take when they told of it last
        self._is_busy = False
        self._numbered = 0
        self._freed_bytes = 0  # since memory was given back
        self._waiting = 0
        self._full = 0
        self._most_disk = 0
        self._something_moved = asyncio.Event()
        self._failure: BaseException | None = None
        removed = _clear(folder)
        if removed:
            log.info("segments of an earlier run removed", folder=folder, segments=removed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sorter")

    def close(self) -> None:
        """Stop writing and remove the segments. Maps that readers hold stay valid."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        for segment in self._segments:
            self._shelf.take(segment)
        _clear(self._folder)

    # Spans

    @property
    def taken_ts(self) -> Ts:
        """Batches up to here have been planned or are durable."""
        return max(self._planned_ts, self._released.base_ts)

    def open_span(self, span_id: int, since_ts: Ts) -> None:
        """Follow a span's changes above ``since_ts``; it holds the frontier there until it advances.

        ``since_ts`` may lie below the resolved-ts of the others (behind a barrier it does) but not
        below what was planned or released. An id that was closed and is resolved up to its end may
        be opened again.
        """
        self.open_spans(span_id, [span_id], since_ts)

    def open_spans(self, source_id: int, span_ids: Sequence[int], since_ts: Ts) -> None:
        """Follow spans that are read, and so resolved, together: ``advance`` is told of the source.

        Sources and spans have numbers of one series; a span that is opened alone is its own source.
        """
        self._spans.open(source_id, span_ids, since_ts, self.taken_ts)

    def join_spans(self, source_id: int, span_ids: Sequence[int]) -> Ts:
        """From now on these spans, none of which is closed, have a source in common, read above the ts returned.

        What is then delivered again is the same as before, so it is dropped when the changes are read.
        """
        return self._spans.join(source_id, span_ids)

    def close_span(self, span_id: int, until_ts: Ts) -> None:
        """Want no change of the span above ``until_ts`` any more, also of those already here.

        It stops holding the frontier once it is resolved up to there, and is forgotten once the
        checkpoint is there as well. What is still delivered for it then is dropped.
        """
        self._spans.close(span_id, until_ts)
        self._something_moved.set()

    def advance(self, source_id: int, resolved_ts: Ts) -> None:
        """Note that a source will see no more changes at or below ``resolved_ts``; less than before changes nothing."""
        self._spans.advance(source_id, resolved_ts)
        self._something_moved.set()

    @property
    def resolved_ts(self) -> Ts:
        """The frontier: the lowest resolved-ts of the spans; ``MAX_TS`` where none holds it.

        It moves back only if a span is opened below it.
        """
        return self._spans.resolved_ts

    def resolved_of(self, source_id: int) -> Ts:
        """The resolved-ts of one source, which must be there."""
        return self._spans.resolved_of(source_id)

    # Changes come in

    async def add(self, span_id: int, changes: pa.RecordBatch) -> None:
        """Take raw changes of a span, in any order, delivered once or more.

        Those outside of the span's interval and those that the checkpoint has passed are dropped. The
        batch is kept as it is until it is sealed, so it should not be a small slice of a big one.
        Waits, before it takes them, as the module says; when cancelled meanwhile it has taken nothing.
        """
        await self._room_for(changes.nbytes)
        wanted = self._wanted(span_id, changes)
        if wanted is None:
            return
        self._buffers.append(span_id, wanted)
        if self._buffers.bytes >= self._segment_bytes and self._sealing is None:
            self._seal()

    def _wanted(self, span_id: int, changes: pa.RecordBatch) -> pa.RecordBatch | None:
        if not are_changes(changes.schema):
            raise InvariantError(f"span {span_id} got a batch of another schema than changes have. This is a bug.")
        span = self._spans.find(span_id)
        if span is None or len(changes) == 0:
            return None
        commit = ts_column(changes, "commit_ts")
        low, high = max(span.since_ts, self._released.of(span_id)), span.until_ts
        if commit.min() > low and commit.max() <= high:
            return changes
        inside = (commit > np.uint64(low)) & (commit <= np.uint64(high))
        return changes.filter(pa.array(inside)) if inside.any() else None

    async def _room_for(self, more_bytes: int) -> None:
        self._settle(wait=False)
        while True:
            if self._sealing is not None and self._memory() + more_bytes > self._memory_bytes:
                wait = self._sealed()
            elif (
                self._disk_bytes is not None
                and self._reserved(more_bytes) > self._disk_bytes
                and self._readers_have_work()
            ):
                self._something_moved.clear()
                wait = self._readers_moved()
            elif self._buffers.rows and self._memory() + more_bytes > self._memory_bytes:
                self._seal()
                continue
            else:
                return
            self._waiting += 1
            try:
                await wait
            finally:
                self._waiting -= 1

    async def _readers_moved(self) -> None:
        self._full += 1
        try:
            await self._something_moved.wait()
        finally:
            self._full -= 1

    def _readers_have_work(self) -> bool:
        return self._is_busy or self.has_changes(self._allowed.up_to(self.resolved_ts).above(self._released))

    # Changes go out

    def allow(self, extent: Extent, *, is_busy: bool = False) -> None:
        """Readers may take what lies in ``extent``. ``is_busy``: not now, but soon, whether more comes in or not."""
        self._allowed = extent
        self._is_busy = is_busy
        self._something_moved.set()

    def next_to(
        self,
        from_ts: Ts,
        limit_ts: Ts,
        max_rows: int,
        max_bytes: int,
        *,
        only: Collection[int] = (),
        without: Collection[int] = (),
    ) -> Ts:
        """Where a batch that begins above ``from_ts`` should end: of ``only`` these spans, or of all ``without`` these.

        The largest ts, at most ``limit_ts`` and the frontier, up to which there are about no more rows
        and bytes than asked for; yet always one commit-ts if there is any, however big it is.
        ``from_ts`` itself where nothing can be taken.
        """
        bound = min(limit_ts, self.resolved_ts)
        if bound <= from_ts:
            return from_ts
        self._settle(wait=True)
        if self._buffers.oldest_ts <= bound:
            self._seal_now()
        if only or without:
            estimate = Estimate(self._segments, only, without)
        else:
            estimate = self._estimate = self._estimate or Estimate(self._segments)
        to = estimate.largest_to(from_ts, bound, max_rows, max_bytes)
        if to == bound:
            return Ts(to)
        return Ts(max(to, self._first_above(Extent(from_ts, bound), only, without)))

    def has_changes(self, extent: Extent) -> bool:
        """Whether any change that is wanted lies in ``extent``, whose own windows are those of spans."""
        if extent.is_empty:
            return False
        self._settle(wait=False)
        apart = self._spans.clipped | extent.own.keys()
        if any(self._has_buffered(b, extent) for b in self._all_buffers()):
            return True
        low, high = np.uint64(extent.from_ts), np.uint64(extent.to_ts)
        for segment in self._segments:
            first, last = segment.first_ts, segment.last_ts
            overlap = (first <= high) & (last > low)
            sure = overlap & ((first > low) | (last <= high))
            if apart:
                sure &= ~np.isin(segment.span_ids, list(apart))
            if sure.any():
                return True
            if any(True for _ in self._cut(segment, extent)):
                return True
        return False

    def plan(self, extent: Extent, *, again: bool = False) -> list[SpanSlices]:
        """Describe the changes in ``extent``, whose own windows are those of spans; one description per span that has
        some. ``again``: it will be asked for once more with spans that are opened later.

        Everything that it describes is in segments afterwards. The same extent gives the same changes, each time, as
        long as the checkpoints have not passed its beginning.
        """
        if extent.highest_ts > self.resolved_ts:
            raise InvariantError(
                f"cannot plan a batch up to {extent.highest_ts}: the frontier is at {self.resolved_ts}. This is a bug."
            )
        self._check_not_released(extent)
        self._settle(wait=True)
        if self._buffers.oldest_ts <= extent.highest_ts:
            self._seal_now()
        if not again:
            self._planned_ts = max(self._planned_ts, extent.to_ts)
        found: dict[int, list[SegmentSlice]] = {}
        sizes: dict[int, int] = {}
        for segment in self._segments:
            for span_id, part in self._cut(segment, extent):
                found.setdefault(span_id, []).append(part)
                sizes[span_id] = sizes.get(span_id, 0) + segment.bytes_of(part)
        return [
            SpanSlices(span_id, sum(len(part) for part in parts), sizes[span_id], tuple(parts))
            for span_id, parts in sorted(found.items())
        ]

    def _check_not_released(self, extent: Extent) -> None:
        """Of a span counts what it wants. One that was opened since the last release was not named in it, so it counts
        as being where most are; it may be a second one of a table that is behind (dropped and recovered, say), whose
        window begins below. What it wants does not."""
        windows = [(0, extent.from_ts, extent.to_ts)]
        for span_id, (low, high) in extent.own.items():
            span = self._spans.find(span_id)
            parts = span.wanted(low, high) if span is not None else ((low, high),)
            windows += [(span_id, Ts(since), Ts(until)) for since, until in parts]
        for span_id, low, high in windows:
            released_ts = self._released.of(span_id)
            if low < released_ts and low < high:
                raise InvariantError(
                    f"cannot plan a batch above {low}: changes up to {released_ts} were released. This is a bug."
                )

    def release(self, checkpoints: Checkpoints) -> None:
        """Delete segments of which all changes are durable downstream; ``checkpoints`` are those of spans."""
        self._settle(wait=False)
        self._released = checkpoints
        gone = self._spans.forget_below(checkpoints)
        self._buffers.drop_spans(gone)
        kept = []
        for segment in self._segments:
            if self._is_done(segment):
                self._shelf.take(segment)
                _delete(segment)
            else:
                kept.append(segment)
        if len(kept) != len(self._segments):
            self._segments, self._estimate = kept, None
        self._something_moved.set()

    def stats(self) -> SorterStats:
        """How full it is. Changes nothing and may be asked from any thread, which then may see a change half made."""
        sealing, segments = self._sealing, list(self._segments)
        held = [self._buffers] if sealing is None else [self._buffers, sealing.buffers]
        return SorterStats(
            memory_bytes=sum(b.bytes for b in held),
            disk_bytes=sum(s.layout.file_bytes for s in segments),
            rows=sum(b.rows for b in held) + sum(s.rows for s in segments),
            spans=len(self._spans),
            segments=len(segments),
            waiting=self._waiting,
            is_full=self._full > 0,
            most_disk_bytes=self._most_disk,
        )

    # Looking up

    def _all_buffers(self) -> Iterator[_Buffers]:
        yield self._buffers
        if self._sealing is not None:
            yield self._sealing.buffers

    def _has_buffered(self, buffers: _Buffers, extent: Extent) -> bool:
        if buffers.oldest_ts > extent.highest_ts:
            return False
        for span_id, batches in buffers.batches.items():
            span = self._spans.find(span_id)
            for low, high in span.wanted(*extent.of(span_id)) if span else ():
                for changes in batches:
                    commit = ts_column(changes, "commit_ts")
                    if ((commit > np.uint64(low)) & (commit <= np.uint64(high))).any():
                        return True
        return False

    def _cut(
        self, segment: Segment, extent: Extent, only: Collection[int] = (), without: Collection[int] = ()
    ) -> Iterator[tuple[int, SegmentSlice]]:
        """The wanted rows of a segment, with their span's id."""
        first, last = segment.first_ts, segment.last_ts
        touched = (first <= np.uint64(extent.to_ts)) & (last > np.uint64(extent.from_ts))
        if extent.own:  # of all others much may be here that is durable
            touched |= (
                (first <= np.uint64(extent.highest_ts))
                & (last > np.uint64(extent.lowest_ts))
                & np.isin(segment.span_ids, list(extent.own))
            )
        for section in np.flatnonzero(touched).tolist():
            span_id = int(segment.span_ids[section])
            if span_id in without or (only and span_id not in only):
                continue
            span = self._spans.find(span_id)
            for from_ts, to_ts in span.wanted(*extent.of(span_id)) if span else ():
                part = segment.cut(section, from_ts, to_ts)
                if part is not None:
                    yield span_id, part

    def _first_above(self, extent: Extent, only: Collection[int], without: Collection[int]) -> int:
        """The lowest wanted commit-ts in it; its end where there is none."""
        for segment in self._segments:
            for _, part in self._cut(segment, extent, only, without):
                extent = extent.up_to(Ts(part.first_ts))
        return extent.to_ts

    def _is_done(self, segment: Segment) -> bool:
        if segment.newest_ts <= self._released.lowest_ts:
            return True
        for span_id, last_ts in zip(segment.span_ids.tolist(), segment.last_ts.tolist(), strict=True):
            span = self._spans.find(span_id)
            if span is not None and any(span.wanted(self._released.of(span_id), last_ts)):
                return False
        return True

    # Memory to disk

    def _memory(self) -> int:
        return sum(b.bytes for b in self._all_buffers())

    def _disk(self) -> int:
        return sum(s.layout.file_bytes for s in self._segments)

    def _reserved(self, more_bytes: int) -> int:
        """What is on disk, and what will be once all that is in memory, and so much more, has been written."""
        sealing = self._sealing.buffers.bytes + FRAME_BYTES if self._sealing is not None else 0
        return self._disk() + sealing + self._buffers.bytes + more_bytes + FRAME_BYTES

    def _seal(self) -> None:
        """Have all that is in memory written by the thread. Everything goes, not only what is asked
        for: so each change is written once, and a batch that several spans share is let go as a whole."""
        buffers, self._buffers = self._buffers, _Buffers()
        groups = list(self._into_segments(buffers))
        paths = []
        for _ in groups:
            self._numbered += 1
            paths.append(self._folder / f"segment-{self._numbered:08d}.arrow")
        write = self._thread.submit(lambda: [write_segment(p, g) for p, g in zip(paths, groups, strict=True)])
        self._sealing = _Sealing(buffers, write)

    def _into_segments(self, buffers: _Buffers) -> Iterator[list[tuple[int, list[pa.RecordBatch]]]]:
        """Cut what is in memory into segments: into one, unless so much came that a column could overflow, or some
        of it has columns that the rest has not."""
        for columns in sorted({len(changes.schema) for batches in buffers.batches.values() for changes in batches}):
            yield from self._alike_into_segments(buffers, columns)

    def _alike_into_segments(self, buffers: _Buffers, columns: int) -> Iterator[list[tuple[int, list[pa.RecordBatch]]]]:
        group: dict[int, list[pa.RecordBatch]] = {}
        size = 0
        for span_id in sorted(buffers.batches):
            for changes in buffers.batches[span_id]:
                if len(changes.schema) != columns:
                    continue
                if group and size + changes.nbytes > _MAX_SEGMENT_BYTES:
                    yield list(group.items())
                    group, size = {}, 0
                group.setdefault(span_id, []).append(changes)
                size += changes.nbytes
        if group:
            yield list(group.items())

    def _seal_now(self) -> None:
        if self._buffers.rows:
            self._seal()
            self._settle(wait=True)

    async def _sealed(self) -> None:
        """Wait, without blocking the loop, until what is being written is written."""
        if self._sealing is not None:
            # Through wait, which leaves the writing alone when the caller is cancelled.
            written = asyncio.wrap_future(self._sealing.segments)
            await asyncio.wait([written])
            written.exception()  # looked at, so asyncio does not complain; _settle raises it
            self._settle(wait=False)

    def _settle(self, *, wait: bool) -> None:
        """Take over segments that were written. After a failure nothing goes on: changes would be missing."""
        if self._failure is not None:
            raise self._failure
        if self._sealing is None or not (wait or self._sealing.segments.done()):
            return
        try:
            sealed = self._sealing.segments.result()
        except BaseException as error:
            self._failure = error
            raise
        self._segments.extend(sealed)
        for segment in sealed:
            self._shelf.put(segment)
        self._freed_bytes += self._sealing.buffers.bytes
        self._sealing = None
        self._estimate = None
        self._most_disk = max(self._most_disk, self._disk())
        if self._freed_bytes >= _GIVEN_BACK_BYTES and not self._buffers.rows:
            self._freed_bytes = 0
            self._thread.submit(give_back)


def _clear(folder: Path) -> int:
    """Remove segments, finished ones and those being written, and say how many. Other files stay."""
    try:
        make_private(folder)
        leftovers = [p for pattern in ("segment-*.arrow", "segment-*.tmp") for p in folder.glob(pattern)]
        for path in leftovers:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise DataDirError(
            f"cannot prepare the sorter's folder {folder}: {error.strerror or error}. "
            "Give this user the right to write there, or choose another --data-dir."
        ) from error
    return len(leftovers)


def _delete(segment: Segment) -> None:
    try:
        os.unlink(segment.layout.path)
    except FileNotFoundError:
        log.warning("segment was already gone", path=segment.layout.path)
    except OSError as error:
        raise DataDirError(
            f"cannot delete segment {segment.layout.path}: {error.strerror}. Give this user the right to write in "
            "its folder and start again."
        ) from error
