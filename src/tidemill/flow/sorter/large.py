"""A transaction of one table that is too large to be held: read piece by piece, as often as wanted.

    slices of one commit-ts ──► windows of (start-ts, key) ──► merged ──► Arrow batches

All its rows have one commit-ts, so windows of time cannot cut it; its keys can. Where the windows end is found by keys
picked at even distances from every slice. Files are mapped anew for each window, so that what was read goes out of
memory with the batches made of it. Runs on executors.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemill.flow.sorter.order import Rows, merge
from tidemill.flow.sorter.segment import MappedSegment, SegmentSlice
from tidemill.model.change import cut_by_bytes

Identity = tuple[int, bytes]  # start-ts and key
Keep = Callable[[pa.RecordBatch], pa.RecordBatch]

_PICKS = 4  # of each slice, for a window
_CENSUS_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class LargeTransaction:
    """The changes of one commit-ts: as a rule one transaction. Small; opens files only when it is read."""

    commit_ts: int
    slices: tuple[SegmentSlice, ...]
    batch_rows: int
    batch_bytes: int
    keep: Keep | None = None

    def __len__(self) -> int:
        """A change that was delivered twice counts twice."""
        return sum(len(each) for each in self.slices)

    def kinds(self) -> tuple[bool, bool, bool]:
        """Whether there are deletes, updates and inserts."""
        found = [False, False, False]
        for each in self.slices:
            file = each.open()
            for low in range(each.row_low, each.row_high, _CENSUS_ROWS):
                has, had = file.has_values(low, min(low + _CENSUS_ROWS, each.row_high))
                for i, some in enumerate((~has, has & had, has & ~had)):
                    found[i] |= bool(some.any())
        return found[0], found[1], found[2]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Every change once, in the order ``(start_ts, key)``, about as many at a time as one batch holds."""
        files = [each.open() for each in self.slices]
        for window in self._windows(files):
            parts = [file.rows(low, high) for file, (low, high) in zip(files, window, strict=True) if low < high]
            if self.keep is not None:
                parts = [kept for part in parts if len(kept := self.keep(part))]
            for file in files:
                file.let_go()
            if parts:
                merged = merge(parts)
                del parts
                sizes: Rows = np.sum([values.length for values in merged.binary.values()], axis=0, dtype=np.int64)
                yield from merged.batches(cut_by_bytes(sizes, self.batch_bytes))

    def _windows(self, files: Sequence[MappedSegment]) -> Iterator[list[tuple[int, int]]]:
        """For each window the rows of every file that belong to it."""
        size = sum(int(np.frombuffer(each.sample_bytes, np.int64).sum()) for each in self.slices)
        rows = max(1, min(self.batch_rows, int(len(self) * self.batch_bytes / max(size, 1))))
        stride = max(1, rows // (_PICKS * len(files)))
        picked = [
            [(file.identity(row), row) for row in range(each.row_low, each.row_high, stride)]
            for file, each in zip(files, self.slices, strict=True)
        ]
        cuts = sorted(identity for of_file in picked for identity, _ in of_file)[:: max(1, rows // stride)][1:]
        bounds = [
            [each.row_low, *(_first_at(file, of_file, each.row_high, cut) for cut in cuts), each.row_high]
            for file, each, of_file in zip(files, self.slices, picked, strict=True)
        ]
        yield from (list(window) for window in zip(*(pairwise(of_file) for of_file in bounds), strict=True))


def _first_at(file: MappedSegment, picked: Sequence[tuple[Identity, int]], end: int, cut: Identity) -> int:
    """The first row that is not below ``cut``; between two picked ones it is looked up in the file."""
    at = bisect_left(picked, cut, key=lambda pick: pick[0])
    if at == 0:
        return picked[0][1]
    low = picked[at - 1][1] + 1
    high = picked[at][1] if at < len(picked) else end
    return bisect_left(range(high), cut, low, high, key=file.identity)
