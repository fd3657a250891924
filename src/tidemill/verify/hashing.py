"""Sums of rows' numbers that no order changes. Runs on executors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.columnar.jit import kernel
from tidemill.columnar.row_hashes import Hashes, row_hashes

__all__ = ["Hashes", "Sums", "row_hashes"]


@dataclass(frozen=True, slots=True)
class Sums:
    """By bucket: how many rows, and the sum and the exclusive or of their numbers. 128 bits that no order changes."""

    counts: npt.NDArray[np.int64]
    sums: Hashes
    xors: Hashes

    @classmethod
    def empty(cls, buckets: int) -> "Sums":
        return cls(np.zeros(buckets, np.int64), np.zeros(buckets, np.uint64), np.zeros(buckets, np.uint64))

    def add(self, keys: Hashes, rows: Hashes) -> None:
        """Take in rows, each in the bucket that its key's number says."""
        _add(self.counts, self.sums, self.xors, keys, rows)

    def merge(self, other: "Sums") -> None:
        self.counts.__iadd__(other.counts)
        self.sums.__iadd__(other.sums)
        self.xors.__ixor__(other.xors)

    def differing(self, other: "Sums") -> npt.NDArray[np.int64]:
        """The buckets that are not the same."""
        differ = (self.counts != other.counts) | (self.sums != other.sums) | (self.xors != other.xors)
        return np.flatnonzero(differ)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())


@kernel
def _add(counts: Any, sums: Any, xors: Any, keys: Any, rows: Any) -> None:
    buckets = np.uint64(len(counts))
    for row in range(len(rows)):
        bucket = keys[row] % buckets
        counts[bucket] += 1
        sums[bucket] += rows[row]
        xors[bucket] ^= rows[row]
