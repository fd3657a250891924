"""One span's share of a batch: its description, made by the capture, and its reader, on executors.

    SpanSlices ── segments' rows in (from, to] ──► clusters ──► windows ──► Arrow batches in commit order

Slices whose ts ranges do not overlap follow one another; a slice that stands alone is handed on as
it lies in the mapped file. Those that overlap, as after a catch-up, where every segment covers all
of the time, are merged in windows of commit-ts, so that memory is bounded by a window and each
row is read once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemill.flow.sorter.order import Rows, Stamps, merge
from tidemill.flow.sorter.segment import SAMPLE_ROWS, MappedSegment, SegmentSlice

_COLUMN_BYTES = 1 << 30  # an Arrow binary column ends at twice that
_WINDOW_BATCHES = 4  # a merge takes about so many batches' rows at once


@dataclass(frozen=True, slots=True)
class SpanSlices:
    """The changes of one span in one batch. Small and picklable; it opens files only when read."""

    span_id: int
    rows: int  # a change that was delivered twice may count twice
    bytes: int  # about
    slices: tuple[SegmentSlice, ...]

    def joined(self, other: "SpanSlices") -> "SpanSlices":
        """Both, to be read as one, in one commit order."""
        return replace(
            self,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            slices=self.slices + other.slices,
        )


def read_slices(
    slices: SpanSlices, batch_rows: int = 65536, batch_bytes: int = 32 << 20, column_bytes: int = _COLUMN_BYTES
) -> Iterator[pa.RecordBatch]:
    """Every change of ``slices`` once, in the order ``(commit_ts, start_ts, key)``. Runs on executors.

    Batches hold about as much as asked for, and more where one commit-ts has more: they are cut only
    between two commit-ts. Only what exceeds ``column_bytes`` is cut within one, between two keys,
    since an Arrow binary column ends at 2 GiB. Raises ``SegmentCorruptError`` on a file that is not
    as it was written, before any row that it damages is yielded.
    """
    for cluster in _clusters(slices.slices, batch_rows):
        if len(cluster) == 1:
            yield from _read_alone(cluster[0], batch_rows, batch_bytes)
        else:
            yield from _read_merged(cluster, batch_rows, batch_bytes, column_bytes)


def _clusters(slices: Sequence[SegmentSlice], batch_rows: int) -> Iterator[list[SegmentSlice]]:
    """Groups that must be merged, and runs of small slices that fit into one batch, in commit order."""
    cluster: list[SegmentSlice] = []
    rows = last_ts = 0
    for each in sorted(slices, key=lambda s: s.first_ts):
        if cluster and each.first_ts > last_ts and rows + len(each) > batch_rows:
            yield cluster
            cluster, rows = [], 0
        cluster.append(each)
        rows += len(each)
        last_ts = max(last_ts, each.last_ts)
    if cluster:
        yield cluster


def _read_alone(alone: SegmentSlice, batch_rows: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """One slice, uncopied; rows are checked as they are reached."""
    file = MappedSegment(alone.layout, alone.sums)
    cuts = _cuts(
        file.commit_ts(alone.row_low, alone.row_high),
        file.bytes_before(alone.row_low, alone.row_high),
        batch_rows,
        batch_bytes,
    )
    for low, high in pairwise(cuts):
        yield file.rows(alone.row_low + low, alone.row_low + high)


def _read_merged(
    cluster: Sequence[SegmentSlice], batch_rows: int, batch_bytes: int, column_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Slices that overlap, merged window by window."""
    files = [MappedSegment(each.layout, each.sums) for each in cluster]
    commits = [f.commit_ts(s.row_low, s.row_high) for f, s in zip(files, cluster, strict=True)]
    at = [0] * len(cluster)
    for end_ts in _window_ends(cluster, batch_rows * _WINDOW_BATCHES):
        parts: list[pa.RecordBatch] = []
        for i, (file, commit) in enumerate(zip(files, commits, strict=True)):
            low, high = at[i], at[i] + int(np.searchsorted(commit[at[i] :], np.uint64(end_ts), side="right"))
            if low < high:
                parts.append(file.rows(cluster[i].row_low + low, cluster[i].row_low + high))
            at[i] = high
        merged = merge(parts)
        size: Rows = np.sum([values.offsets() for values in merged.binary.values()], axis=0)
        yield from merged.batches(_cuts(merged.fixed("commit_ts"), size, batch_rows, batch_bytes, column_bytes))


def _window_ends(cluster: Sequence[SegmentSlice], window_rows: int) -> Iterator[int]:
    """Ascending ts such that about ``window_rows`` rows lie between two of them; the last one ends all."""
    samples = np.sort(np.concatenate([np.frombuffer(each.sample_ts, dtype=np.uint64) for each in cluster]))
    step = max(1, window_rows // SAMPLE_ROWS)
    last_ts = max(each.last_ts for each in cluster)
    for ts in np.unique(samples[step::step]):
        if int(ts) < last_ts:
            yield int(ts)
    yield last_ts


def _cuts(
    commit: Stamps, size: Rows, batch_rows: int, batch_bytes: int, column_bytes: int = _COLUMN_BYTES
) -> list[int]:
    """Where to cut rows into batches: at 0, between two commit-ts, and at the end.

    ``size`` is, for each row and one more, the bytes of keys and values before it.
    """
    cuts = [0]
    while cuts[-1] < len(commit):
        low = cuts[-1]
        left = len(commit) - low
        even = -(-left // -(-left // batch_rows))  # so that the last one is not a small rest
        high = _end_of_batch(commit, low, max(1, min(even, _fitting(size, low, batch_bytes))))
        while size[high] - size[low] > column_bytes and high - low > 1:
            low = min(high - 1, low + max(1, _fitting(size, low, column_bytes)))
            cuts.append(low)
        cuts.append(high)
    return cuts


def _fitting(size: Rows, low: int, max_bytes: int) -> int:
    """How many rows from ``low`` on have together no more than so many bytes."""
    return int(np.searchsorted(size, size[low] + max_bytes, side="right")) - 1 - low


def _end_of_batch(commit: Stamps, low: int, rows: int) -> int:
    """The last end at most ``rows`` behind ``low`` that cuts no commit-ts; else the first one after."""
    high = low + rows
    if high >= len(commit):
        return len(commit)
    before = int(np.searchsorted(commit[low:high], commit[high])) + low
    return before if before > low else low + int(np.searchsorted(commit[low:], commit[high], side="right"))
