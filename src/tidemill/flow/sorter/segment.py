"""One segment: a file of sorted changes that readers map, and what the writer remembers of it.

The file is an Arrow IPC file with a single record batch. It holds one or more *sections*, one per
span, each sorted by ``(commit_ts, start_ts, key)``: a range of commit-ts of one span is a range of
rows. Readers do not parse it. They are told where its buffers lie and take views of the rows they
want, after checking the checksums of exactly those blocks of 64 KiB that the rows touch.

In memory stays, per segment, a sample of every thousandth row, and of more where rows are large (its commit-ts
and the size of everything before it) and the checksums. That answers how many rows and bytes lie below a ts, and
where, but for the last thousand rows, which are looked up in the file.

Each file has an identity within it. An executor that finds a file under the path takes it for the segment only if it
has that; one on another host may be another changefeed's. Where there is none, rows are fetched (``fetching``) into a
file of the same form, which has no name, and all that reads them is the same.

Files are not synced: what a crash takes is pulled again from the checkpoint. They are written under
another name and renamed, so a file that has its name is whole.
"""

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.checksum import checksums
from tidemill.columnar.gather import Scattered
from tidemill.errors import DataDirError, SegmentCorruptError
from tidemill.flow.sorter.arrowfile import ALIGNMENT, IDENTITY_BYTES, frame
from tidemill.flow.sorter.order import BINARY_COLUMNS, Rows, Stamps, merge
from tidemill.model.change import FULL_CHANGE_SCHEMA, RAW_CHANGE_SCHEMA, cut_by_bytes
from tidemill.private import open_private

BLOCK_BYTES = 1 << 16  # what one checksum covers
_COMPARED = -1  # in place of a checksum that was found right
SAMPLE_ROWS, SAMPLE_BYTES = 1 << 10, 1 << 20  # one sample stands for so much at most, or for one row

_WIDTHS = (8, 8, 1, 8, 8)  # of columns of fixed width; the last two are there where rows have them
_FEW_COLUMNS = 3  # where they have not
_ROW_BYTES = sum(_WIDTHS[:_FEW_COLUMNS]) + 4 * len(BINARY_COLUMNS)  # of a row with empty key and values


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a segment's file is and where its buffers begin in it."""

    path: str
    file_bytes: int
    fixed: tuple[int, ...]  # columns of fixed width, the first of those in _WIDTHS
    offsets: tuple[int, ...]  # of BINARY_COLUMNS
    data: tuple[int, ...]
    identity: bytes = b""  # which no other segment has, on any host
    identity_at: int = 0

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def schema(self) -> pa.Schema:
        return RAW_CHANGE_SCHEMA if len(self.fixed) == _FEW_COLUMNS else FULL_CHANGE_SCHEMA

    def is_here(self) -> bool:
        """Whether the path leads to this very segment from this process."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            found = os.pread(handle, len(self.identity), self.identity_at)
            return os.fstat(handle).st_size == self.file_bytes and found == self.identity
        except OSError:
            return False
        finally:
            os.close(handle)


class Body(Protocol):
    """The bytes of a segment that has no path of its own here: fetched, and compared with their checksums then."""

    def map(self) -> pa.Buffer: ...


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Checksums of consecutive blocks."""

    first: int
    values: bytes  # four bytes each, native order

    def __len__(self) -> int:
        return len(self.values) // 4


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Rows ``[row_low, row_high)`` of a segment: one span's changes over a range of commit-ts."""

    layout: Layout
    row_low: int
    row_high: int
    first_ts: int
    last_ts: int
    sample_ts: bytes  # uint64: commit-ts of a row every SAMPLE_ROWS or SAMPLE_BYTES or so, within the slice
    sample_rows: bytes  # int64: how many rows there are from each of those to the next
    sample_bytes: bytes  # int64: and about how many bytes
    sums: tuple[BlockSums, ...]  # of every block that the rows touch
    body: Body | None = None  # where they were fetched; never travels

    def __len__(self) -> int:
        return self.row_high - self.row_low

    def open(self) -> "MappedSegment":
        return MappedSegment(self.layout, self.sums, self.body)


@dataclass(frozen=True)
class Segment:
    """What the capture remembers of a sealed segment.

    Section i holds the changes of ``span_ids[i]``. Its samples are ``[section_sample[i],
    section_sample[i + 1])``; sample s stands for the rows ``[row[s], row[s + 1])``.
    """

    layout: Layout
    span_ids: npt.NDArray[np.int64]
    first_ts: Stamps  # per section
    last_ts: Stamps
    section_sample: Rows
    row: Rows  # per sample, and one more: the number of rows
    ts: Stamps  # per sample
    data_at: tuple[Rows, ...]  # per column of BINARY_COLUMNS, per sample and one more: offset into its data
    checksums: npt.NDArray[np.uint32]  # per block

    @property
    def rows(self) -> int:
        return int(self.row[-1])

    @cached_property
    def newest_ts(self) -> int:
        return int(self.last_ts.max())

    @cached_property
    def sections(self) -> dict[int, int]:
        return {int(span_id): section for section, span_id in enumerate(self.span_ids)}

    @cached_property
    def sample_bytes(self) -> Rows:
        """Per sample, and one more: bytes of all rows before it."""
        return np.sum(self.data_at, axis=0, dtype=np.int64) + self.row * _ROW_BYTES

    @cached_property
    def sample_last_ts(self) -> Stamps:
        """Per sample: no row that it stands for is above."""
        last = np.append(self.ts[1:], self.ts[:1])
        last[self.section_sample[1:] - 1] = self.last_ts
        return last

    @cached_property
    def _file(self) -> "MappedSegment":
        return self.open()

    def open(self) -> "MappedSegment":
        return MappedSegment(self.layout, (BlockSums(0, self.checksums.tobytes()),))

    def cut(self, section: int, low_ts: int, high_ts: int) -> SegmentSlice | None:
        """The rows of a section with ``low_ts < commit_ts ≤ high_ts``; None where there are none."""
        if low_ts >= self.last_ts[section] or high_ts < self.first_ts[section]:
            return None
        low, high = self._row_above(section, low_ts), self._row_above(section, high_ts)
        if low >= high:
            return None
        first, last = self._ts_of(section, low), self._ts_of(section, high - 1)
        a, b = np.searchsorted(self.row, (low, high))
        return SegmentSlice(
            layout=self.layout,
            row_low=low,
            row_high=high,
            first_ts=first,
            last_ts=last,
            sample_ts=self.ts[a:b].tobytes(),
            sample_rows=np.diff(self.row[a : b + 1]).tobytes(),
            sample_bytes=np.diff(self.sample_bytes[a : b + 1]).tobytes(),
            sums=self._sums_of(low, high),
        )

    def bytes_of(self, rows: SegmentSlice) -> int:
        """About how many bytes a slice holds."""
        low, high = np.interp((rows.row_low, rows.row_high), self.row, self.sample_bytes)
        return int(high - low)

    def _row_above(self, section: int, ts: int) -> int:
        """The first row of the section with commit-ts above ``ts``; the section's end where there is none."""
        begin, end = self.section_sample[section], self.section_sample[section + 1]
        if ts >= self.last_ts[section]:
            return int(self.row[end])
        sample = begin + int(np.searchsorted(self.ts[begin:end], np.uint64(ts), side="right")) - 1
        if sample < begin:
            return int(self.row[begin])
        low, high = int(self.row[sample]), int(self.row[sample + 1])
        return low + int(np.searchsorted(self._file.commit_ts(low, high), np.uint64(ts), side="right"))

    def _ts_of(self, section: int, row: int) -> int:
        if row + 1 == self.row[self.section_sample[section + 1]]:
            return int(self.last_ts[section])
        sample = int(np.searchsorted(self.row, row))
        if self.row[sample] == row:
            return int(self.ts[sample])
        return int(self._file.commit_ts(row, row + 1)[0])

    def _sums_of(self, low: int, high: int) -> tuple[BlockSums, ...]:
        """Checksums of all blocks that rows ``[low, high)`` touch, as few runs."""
        a = int(np.searchsorted(self.row, low, side="right")) - 1
        b = int(np.searchsorted(self.row, high))
        touched = list(_fixed_ranges(self.layout, low, high))
        touched += [
            (at + int(data[a]), at + int(data[b])) for at, data in zip(self.layout.data, self.data_at, strict=True)
        ]
        runs: list[list[int]] = []
        for begin, end in sorted((lo // BLOCK_BYTES, -(-hi // BLOCK_BYTES)) for lo, hi in touched if lo < hi):
            if runs and begin <= runs[-1][1]:
                runs[-1][1] = max(runs[-1][1], end)
            else:
                runs.append([begin, end])
        return tuple(BlockSums(begin, self.checksums[begin:end].tobytes()) for begin, end in runs)


class MappedSegment:
    """A segment's file mapped for reading. Nothing of it is believed before its checksum was compared.

    The file is closed at once; the map lives as long as a batch that was taken from it.
    """

    def __init__(self, layout: Layout, sums: Sequence[BlockSums], body: Body | None = None) -> None:
        self._layout = layout
        self._sums = {run.first + i: found for run in sums for i, found in enumerate(_unpack(run))}
        self._body = body
        self.let_go()

    def let_go(self) -> None:
        """Map the file anew, so that what was read of it stays in memory only as long as batches need it."""
        self._buffer: pa.Buffer = _map_file(self._layout) if self._body is None else self._body.map()

    @property
    def schema(self) -> pa.Schema:
        return self._layout.schema

    def commit_ts(self, low: int, high: int) -> Stamps:
        """Commit-ts of rows ``[low, high)``, without a copy."""
        at = self._layout.fixed[1] + low * 8
        return np.frombuffer(self._checked(at, at + 8 * (high - low)), dtype=np.uint64)

    def bytes_before(self, low: int, high: int) -> Rows:
        """For each of rows ``[low, high)``, and one more, the bytes of keys and values in all rows before it."""
        begins = _fixed_ranges(self._layout, low, high)[len(self._layout.fixed) :]
        offsets = [np.frombuffer(self._checked(begin, end), dtype=np.int32) for begin, end in begins]
        total: Rows = np.sum(offsets, axis=0, dtype=np.int64)
        return total

    def data_bytes(self, low: int, high: int) -> list[int]:
        """Of rows ``[low, high)``: the bytes of keys, of values and of old values."""
        ends = [(at + row * 4, at + row * 4 + 4) for at in self._layout.offsets for row in (low, high)]
        found = [int.from_bytes(self._checked(*end).to_pybytes(), sys.byteorder) for end in ends]
        return [last - first for first, last in zip(found[::2], found[1::2], strict=True)]

    def identity(self, row: int) -> tuple[int, bytes]:
        """The start-ts and key of a row: its place within its commit-ts."""
        at = self._layout.fixed[0] + row * 8
        start_ts = int.from_bytes(self._checked(at, at + 8).to_pybytes(), sys.byteorder)
        at = self._layout.offsets[0] + row * 4
        low, high = np.frombuffer(self._checked(at, at + 8), dtype=np.int32)
        at = self._layout.data[0]
        return start_ts, self._checked(at + int(low), at + int(high)).to_pybytes()

    def has_values(self, low: int, high: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """For each of rows ``[low, high)`` whether it has a value, and whether it has an old one."""
        _, value, old_value = _fixed_ranges(self._layout, low, high)[len(self._layout.fixed) :]
        has, had = (np.diff(np.frombuffer(self._checked(*ends), dtype=np.int32)) > 0 for ends in (value, old_value))
        return has, had

    def rows(self, low: int, high: int) -> pa.RecordBatch:
        """Rows ``[low, high)``, without a copy."""
        schema = self._layout.schema
        columns = [
            pa.Array.from_buffers(field.type, high - low, [None, self._checked(begin, end)])
            for field, (begin, end) in zip(
                schema, _fixed_ranges(self._layout, low, high)[: len(self._layout.fixed)], strict=False
            )
        ]
        for at, data_at in zip(self._layout.offsets, self._layout.data, strict=True):
            offsets = self._checked(at + low * 4, at + high * 4 + 4)
            first, last = np.frombuffer(offsets, dtype=np.int32)[[0, -1]]
            self._check(data_at + int(first), data_at + int(last))
            data = self._buffer.slice(data_at, int(last))
            columns.append(pa.Array.from_buffers(pa.binary(), high - low, [None, offsets, data]))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _checked(self, begin: int, end: int) -> pa.Buffer:
        self._check(begin, end)
        return self._buffer.slice(begin, end - begin)

    def _check(self, begin: int, end: int) -> None:
        """Compare the checksums of the blocks under ``[begin, end)`` that were not compared before."""
        if begin == end:
            return  # a column without bytes lies in no block
        if self._body is not None and 0 <= begin < end <= self._buffer.size:
            return  # compared when it came
        first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        expected = [self._sums.get(block) for block in range(first, last)]
        if None in expected or end > self._buffer.size:
            at = (first + expected.index(None) if None in expected else last) * BLOCK_BYTES
            raise _corrupt(self._layout, f"rows lead outside of what was planned, to byte {at}")
        left = [block for block, value in enumerate(expected, first) if value != _COMPARED]
        if not left:
            return
        low, high = left[0] * BLOCK_BYTES, min((left[-1] + 1) * BLOCK_BYTES, self._buffer.size)
        found = checksums(np.frombuffer(self._buffer, np.uint8, high - low, low), BLOCK_BYTES).tolist()
        for block, value in enumerate(found, left[0]):
            if self._sums[block] not in (value, _COMPARED):
                was = f"{value:08x} instead of {self._sums[block]:08x}"
                raise _corrupt(self._layout, f"bytes from {block * BLOCK_BYTES} have the checksum {was}")
            self._sums[block] = _COMPARED


def write_segment(
    path: Path, spans: Sequence[tuple[int, Sequence[pa.RecordBatch]]], *, sample_bytes: int = SAMPLE_BYTES
) -> Segment:
    """Sort the batches of each span, drop duplicates and write them as one segment at ``path``.

    Every span given must have a row. Rows of all together must stay below 2 GiB a column.
    """
    counts = [sum(len(batch) for batch in batches) for _, batches in spans]
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    changes = merge([batch for _, batches in spans for batch in batches], bounds)
    fixed = [changes.fixed(name) for name in changes.schema.names if name not in BINARY_COLUMNS]
    binary = [changes.binary[name] for name in BINARY_COLUMNS]
    offsets = [values.offsets() for values in binary]
    unfinished = path.with_suffix(".tmp")
    try:
        with open_private(unfinished, "wb") as file:
            layout, sums = _write(file, str(path), fixed, binary, offsets)
        unfinished.replace(path)
    except OSError as error:
        raise DataDirError(
            f"cannot write segment {path}: {error.strerror or error}. Nothing is lost: free space or give rights "
            "there, or choose another --data-dir, and start again; the changes are pulled again from the checkpoint."
        ) from error
    commit: Stamps = fixed[1]
    sizes = np.diff(np.sum(offsets, axis=0)) + _ROW_BYTES
    samples = [_samples(sizes, low, high, sample_bytes) for low, high in pairwise(changes.bounds)]
    row = np.append(np.concatenate(samples), changes.bounds[-1])
    return Segment(
        layout=layout,
        span_ids=np.array([span_id for span_id, _ in spans], dtype=np.int64),
        first_ts=commit[changes.bounds[:-1]],
        last_ts=commit[changes.bounds[1:] - 1],
        section_sample=np.concatenate(([0], np.cumsum([len(s) for s in samples]))),
        row=row,
        ts=commit[row[:-1]],
        data_at=tuple(each[row] for each in offsets),
        checksums=sums,
    )


def whole_slice(layout: Layout, rows: int, body: Body) -> SegmentSlice:
    """All rows, of which there are some, of what was fetched."""
    file = MappedSegment(layout, (), body)
    commit, before = file.commit_ts(0, rows), file.bytes_before(0, rows)
    row = np.append(_samples(np.diff(before) + _ROW_BYTES, 0, rows, SAMPLE_BYTES), rows)
    return SegmentSlice(
        layout=layout,
        row_low=0,
        row_high=rows,
        first_ts=int(commit[0]),
        last_ts=int(commit[-1]),
        sample_ts=commit[row[:-1]].tobytes(),
        sample_rows=np.diff(row).tobytes(),
        sample_bytes=np.diff(before[row] + row * _ROW_BYTES).tobytes(),
        sums=(),
        body=body,
    )


def empty_layout(like: Layout, rows: int, data_bytes: Sequence[int]) -> Layout:
    """Places for as many rows and bytes of keys and values, and no frame: nobody opens it but by its places."""
    places, at = [], 0
    widths = _WIDTHS[: len(like.fixed)]
    for size in (*(rows * width for width in widths), *(4 * (rows + 1) for _ in data_bytes), *data_bytes):
        places.append(at)
        at += -(-size // ALIGNMENT) * ALIGNMENT
    fixed, binary = len(widths), len(data_bytes)
    return Layout(like.path, at, tuple(places[:fixed]), tuple(places[fixed : fixed + binary]), tuple(places[-binary:]))


def _samples(sizes: Rows, low: int, high: int, sample_bytes: int) -> Rows:
    """Which of rows ``[low, high)`` are samples, the first one always."""
    by_rows = np.arange(low, high, SAMPLE_ROWS)
    if sizes[low:high].sum() <= sample_bytes:
        return by_rows
    by_bytes = low + np.array(cut_by_bytes(sizes[low:high], sample_bytes)[:-1], dtype=np.int64)
    return np.union1d(by_rows, by_bytes)


def _write(
    file: BinaryIO, path: str, fixed: Sequence[npt.NDArray[Any]], binary: Sequence[Scattered], offsets: Sequence[Rows]
) -> tuple[Layout, npt.NDArray[np.uint32]]:
    """Write the frame and, in it, column by column; values are gathered on the way."""
    rows = len(fixed[0])
    sizes = [column.nbytes for column in fixed]
    for places in offsets:
        sizes += [4 * (rows + 1), int(places[-1])]
    identity = secrets.token_hex(IDENTITY_BYTES // 2).encode()
    count = len(fixed)
    around = frame(rows, sizes, identity, RAW_CHANGE_SCHEMA if count == _FEW_COLUMNS else FULL_CHANGE_SCHEMA)
    to = _BlockWriter(file)
    to.write(np.frombuffer(around.head, dtype=np.uint8))
    for column in fixed:
        to.write(column.view(np.uint8))
        to.align()
    for values in binary:
        to.write(values.arrow_offsets().view(np.uint8))
        to.align()
        to.gather(values)
        to.align()
    to.write(np.frombuffer(around.tail, dtype=np.uint8))
    sums = to.finish()
    fixed_at, offsets_at, data_at = around.places[:count], around.places[count::2], around.places[count + 1 :: 2]
    return Layout(path, to.written, fixed_at, offsets_at, data_at, identity, around.identity_at), sums


class _BlockWriter:
    """Writes through one piece of memory, small enough to stay in the cache, and sums up each block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._memory = np.empty(16 * BLOCK_BYTES, dtype=np.uint8)
        self._used = 0
        self._sums = [np.empty(0, dtype=np.uint32)]
        self.written = 0

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        at = 0
        while at < data.size:
            count = min(data.size - at, self._memory.size - self._used)
            self._memory[self._used : self._used + count] = data[at : at + count]
            at += count
            self._take(count)

    def gather(self, values: Scattered) -> None:
        row = skip = 0
        while row < len(values.length):
            count, row, skip = values.copy_to(self._memory[self._used :], row, skip)
            self._take(count)

    def align(self) -> None:
        self.write(np.zeros(-(self.written + self._used) % ALIGNMENT, dtype=np.uint8))

    def finish(self) -> npt.NDArray[np.uint32]:
        """Write what is left; return the checksum of every block."""
        self._flush()
        return np.concatenate(self._sums)

    def _take(self, count: int) -> None:
        self._used += count
        if self._used == self._memory.size:
            self._flush()

    def _flush(self) -> None:
        full = self._memory[: self._used]
        self._sums.append(checksums(full, BLOCK_BYTES))
        self._file.write(full.data)
        self.written += self._used
        self._used = 0


def _fixed_ranges(layout: Layout, low: int, high: int) -> list[tuple[int, int]]:
    """Bytes of the fixed-width columns, then of the offsets of the binary ones, for rows ``[low, high)``."""
    fixed = [(at + low * w, at + high * w) for at, w in zip(layout.fixed, _WIDTHS, strict=False)]
    return fixed + [(at + low * 4, at + high * 4 + 4) for at in layout.offsets]


def _unpack(run: BlockSums) -> list[int]:
    found: list[int] = np.frombuffer(run.values, dtype=np.uint32).tolist()
    return found


def _map_file(layout: Layout) -> pa.Buffer:
    try:
        found = os.stat(layout.path).st_size
        if found != layout.file_bytes:
            raise _corrupt(layout, f"it has {found} bytes instead of {layout.file_bytes}")
        with pa.memory_map(layout.path) as file:
            return file.read_buffer()
    except OSError as error:
        raise _corrupt(layout, f"it cannot be read ({error.strerror or error})") from error


def _corrupt(layout: Layout, found: str) -> SegmentCorruptError:
    return SegmentCorruptError(
        f"segment {layout.path} is not as it was written: {found}. Nothing of it went downstream. "
        "Check the disk, then start again: segments are removed and their changes pulled again from the checkpoint."
    )
