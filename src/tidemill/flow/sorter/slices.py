"""One span's share of a batch: its description, made by the capture, and its reader, on executors.

    SpanSlices ── segments' rows in (from, to] ──► clusters ──► windows ──► Arrow batches in commit order
                                               └── large transactions ──► Arrow batches in key order

Slices whose ts ranges do not overlap follow one another; a slice that stands alone is handed on as
it lies in the mapped file. Those that overlap, as after a catch-up, where every segment covers all
of the time, are merged in windows of commit-ts, so that memory is bounded by a window and each
row is read once. A transaction that would not fit into one is taken out and read by itself, in windows of keys.

``keys`` confines reading to a range of keys: how a table too hot for one task is shared by several.

An executor on another host has no such file: a ``Supply`` brings it the rows, of the wanted keys alone, in a file of
the same form. From there on nothing tells the two apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.sorter.large import Keep, LargeTransaction
from tidemill.flow.sorter.order import Rows, Stamps, merge
from tidemill.flow.sorter.segment import SegmentSlice

_WINDOW_BATCHES = 4  # a merge takes about so many batches' rows at once
BATCH_ROWS, BATCH_BYTES = 1 << 16, 32 << 20
# What no batch exceeds, but for one row. An Arrow binary column ends at 2 GiB, and text may take eight times the bytes
# of what it is made of. No transaction is cut here that is not larger than twice what makes it a large one.
_MOST_BYTES = 2 * _WINDOW_BATCHES * BATCH_BYTES


@dataclass(frozen=True, slots=True)
class KeyRange:
    low: bytes
    high: bytes | None  # not included; None: no end

    def of(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the changes whose keys lie in it."""
        keys = changes.column("key")
        wanted = pc.greater_equal(keys, pa.scalar(self.low, pa.binary()))
        if self.high is not None:
            wanted = pc.and_(wanted, pc.less(keys, pa.scalar(self.high, pa.binary())))
        return changes.filter(wanted)


@dataclass(frozen=True, slots=True)
class SpanSlices:
    """The changes of one span in one batch. Small and picklable; it opens files only when read."""

    span_id: int
    rows: int  # a change that was delivered twice may count twice
    bytes: int  # about
    slices: tuple[SegmentSlice, ...]
    keys: KeyRange | None = None  # the only ones that are wanted

    def joined(self, other: "SpanSlices") -> "SpanSlices":
        """Both, to be read as one, in one commit order."""
        return replace(
            self,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            slices=self.slices + other.slices,
        )


class Supply(Protocol):
    """How an executor gets at the rows of segments. Small and picklable."""

    def bring(self, each: SegmentSlice, keys: KeyRange | None) -> SegmentSlice | None:
        """The same rows where they can be mapped: the slice itself, with keys that are not wanted, where its file is
        at hand; else a copy, of the wanted keys alone. None: there are no such rows."""


Portion: TypeAlias = pa.RecordBatch | LargeTransaction


def read_slices(
    slices: SpanSlices,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    most_bytes: int = _MOST_BYTES,
    supply: Supply | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every change of ``slices`` once, in the order ``(commit_ts, start_ts, key)``. Runs on executors.

    Batches hold about as much as asked for; whoever wants to know which of them end within a transaction asks for
    ``read_portions``. Raises ``SegmentCorruptError`` on a file that is not as it was written, before any row that it
    damages is yielded.
    """
    for portion in read_portions(slices, batch_rows, batch_bytes, most_bytes, supply):
        if isinstance(portion, LargeTransaction):
            yield from portion.read()
        else:
            yield portion


def read_portions(
    slices: SpanSlices,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    most_bytes: int = _MOST_BYTES,
    supply: Supply | None = None,
) -> Iterator[Portion]:
    """As ``read_slices``, with large transactions as such, unread: all batches between them hold whole transactions.

    A transaction is large if it has more than some batches' rows or bytes, as far as samples tell. Of one that is not
    found out what exceeds ``most_bytes`` is cut between two keys: a batch never has more, but for one row.

    Without ``supply`` the segments' files are here.
    """
    rest = slices.slices
    if supply is not None:
        rest = tuple(found for each in rest if (found := supply.bring(each, slices.keys)) is not None)
    keep = slices.keys.of if slices.keys is not None else None
    for ts in _large(rest, batch_rows * _WINDOW_BATCHES, batch_bytes * _WINDOW_BATCHES):
        before, within, rest = _around(rest, ts)
        yield from _read(before, batch_rows, batch_bytes, most_bytes, keep)
        yield LargeTransaction(ts, within, batch_rows, batch_bytes, keep)
    yield from _read(rest, batch_rows, batch_bytes, most_bytes, keep)


def pick_keys(slices: SpanSlices, count: int) -> list[bytes]:
    """About ``count`` of the keys, ascending, each standing for about as many changes."""
    found = []
    for each in slices.slices:
        file = each.open()
        step = max(1, slices.rows // count)
        found += [file.identity(row)[1] for row in range(each.row_low + min(step, len(each)) // 2, each.row_high, step)]
    return sorted(found)


def _read(
    slices: Sequence[SegmentSlice], batch_rows: int, batch_bytes: int, most_bytes: int, keep: Keep | None
) -> Iterator[pa.RecordBatch]:
    for cluster in _clusters(slices, batch_rows):
        if len(cluster) > 1:
            yield from _read_merged(cluster, batch_rows, batch_bytes, most_bytes, keep)
            continue
        for batch in _read_alone(cluster[0], batch_rows, batch_bytes, most_bytes):
            kept = batch if keep is None else keep(batch)
            if len(kept):
                yield kept


def _large(slices: Sequence[SegmentSlice], most_rows: int, most_bytes: int) -> list[int]:
    """Commit-ts that have more rows or bytes than that, ascending, as far as the samples tell."""
    if sum(len(each) for each in slices) <= most_rows and sum(map(_bytes_of, slices)) <= most_bytes:
        return []
    samples, rows, sizes = _samples(slices)
    found, place = np.unique(samples, return_inverse=True)
    count, size = (np.bincount(place, weights=weights, minlength=len(found)) for weights in (rows, sizes))
    is_large = (count > most_rows) | (size > most_bytes)
    return [int(ts) for ts in found[is_large]]


def _samples(slices: Sequence[SegmentSlice]) -> tuple[Stamps, Rows, Rows]:
    """Commit-ts of all samples, and the rows and bytes that each stands for."""
    return (
        np.concatenate([np.frombuffer(each.sample_ts, np.uint64) for each in slices]),
        np.concatenate([np.frombuffer(each.sample_rows, np.int64) for each in slices]),
        np.concatenate([np.frombuffer(each.sample_bytes, np.int64) for each in slices]),
    )


def _bytes_of(each: SegmentSlice) -> int:
    return int(np.frombuffer(each.sample_bytes, np.int64).sum())


def _around(
    slices: Sequence[SegmentSlice], ts: int
) -> tuple[tuple[SegmentSlice, ...], tuple[SegmentSlice, ...], tuple[SegmentSlice, ...]]:
    """What lies below, at and above ``ts``."""
    parts: tuple[list[SegmentSlice], ...] = ([], [], [])
    for each in slices:
        if each.last_ts < ts:
            parts[0].append(each)
        elif each.first_ts > ts:
            parts[2].append(each)
        else:
            commit = each.open().commit_ts(each.row_low, each.row_high)
            low, high = (int(np.searchsorted(commit, np.uint64(ts), side=side)) for side in ("left", "right"))
            for into, begin, end in zip(parts, (0, low, high), (low, high, len(each)), strict=True):
                if begin < end:
                    into.append(_part(each, begin, end, int(commit[begin]), int(commit[end - 1])))
    return tuple(parts[0]), tuple(parts[1]), tuple(parts[2])


def _part(each: SegmentSlice, begin: int, end: int, first_ts: int, last_ts: int) -> SegmentSlice:
    """Rows ``[begin, end)`` of a slice."""
    stamps, rows, sizes = _samples([each])
    inside = (stamps >= np.uint64(first_ts)) & (stamps <= np.uint64(last_ts))
    return replace(
        each,
        row_low=each.row_low + begin,
        row_high=each.row_low + end,
        first_ts=first_ts,
        last_ts=last_ts,
        sample_ts=stamps[inside].tobytes(),
        sample_rows=rows[inside].tobytes(),
        sample_bytes=sizes[inside].tobytes(),
    )


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


def _read_alone(alone: SegmentSlice, batch_rows: int, batch_bytes: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """One slice, uncopied; rows are checked as they are reached."""
    file = alone.open()
    cuts = _cuts(
        file.commit_ts(alone.row_low, alone.row_high),
        file.bytes_before(alone.row_low, alone.row_high),
        batch_rows,
        batch_bytes,
        most_bytes,
    )
    for low, high in pairwise(cuts):
        yield file.rows(alone.row_low + low, alone.row_low + high)


def _read_merged(
    cluster: Sequence[SegmentSlice], batch_rows: int, batch_bytes: int, most_bytes: int, keep: Keep | None
) -> Iterator[pa.RecordBatch]:
    """Slices that overlap, merged window by window."""
    files = [each.open() for each in cluster]
    # Copies: they are needed to the end, and pages that were read stay in memory as long as any view of their map.
    commits = [f.commit_ts(s.row_low, s.row_high).copy() for f, s in zip(files, cluster, strict=True)]
    at = [0] * len(cluster)
    for end_ts in _window_ends(cluster, batch_rows * _WINDOW_BATCHES, batch_bytes * _WINDOW_BATCHES):
        parts: list[pa.RecordBatch] = []
        for i, (file, commit) in enumerate(zip(files, commits, strict=True)):
            file.let_go()
            low, high = at[i], at[i] + int(np.searchsorted(commit[at[i] :], np.uint64(end_ts), side="right"))
            if low < high:
                parts.append(file.rows(cluster[i].row_low + low, cluster[i].row_low + high))
            at[i] = high
        if keep is not None:
            parts = [kept for part in parts if len(kept := keep(part))]
        if not parts:
            continue
        merged = merge(parts)
        size: Rows = np.sum([values.offsets() for values in merged.binary.values()], axis=0)
        yield from merged.batches(_cuts(merged.fixed("commit_ts"), size, batch_rows, batch_bytes, most_bytes))


def _window_ends(cluster: Sequence[SegmentSlice], window_rows: int, window_bytes: int) -> Iterator[int]:
    """Ascending ts such that about so many rows and bytes lie between two of them; the last one ends all."""
    samples, rows, sizes = _samples(cluster)
    order = np.argsort(samples, kind="stable")
    filled = np.maximum(np.cumsum(rows[order]) / window_rows, np.cumsum(sizes[order]) / window_bytes)
    window = filled.astype(np.int64)  # in which each sample's rows end
    last_ts = max(each.last_ts for each in cluster)
    for ts in np.unique(samples[order][1:][window[1:] != window[:-1]]):
        if int(ts) < last_ts:
            yield int(ts)
    yield last_ts


def _cuts(commit: Stamps, size: Rows, batch_rows: int, batch_bytes: int, most_bytes: int) -> list[int]:
    """Where to cut rows into batches: at 0, between two commit-ts, and at the end.

    ``size`` is, for each row and one more, the bytes of keys and values before it.
    """
    cuts = [0]
    while cuts[-1] < len(commit):
        low = cuts[-1]
        left = len(commit) - low
        even = -(-left // -(-left // batch_rows))  # so that the last one is not a small rest
        high = _end_of_batch(commit, low, max(1, min(even, _fitting(size, low, batch_bytes))))
        while size[high] - size[low] > most_bytes and high - low > 1:
            low = min(high - 1, low + max(1, _fitting(size, low, most_bytes)))
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
