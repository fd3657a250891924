"""What every encoder gives: messages, one after the other in one buffer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Encoded:
    """The messages of some changes, in their order, each with its terminator.

    Message ``i`` is ``payload[ends[i - 1]:ends[i]]`` (the first begins at 0) and belongs to the
    transaction that committed at ``commit_ts[i]``.
    """

    payload: pa.Buffer
    ends: npt.NDArray[np.int64]
    commit_ts: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.ends)

    def messages(self) -> list[bytes]:
        """Each message by itself: for tests and for sinks that send one by one."""
        data = self.payload.to_pybytes()
        starts = [0, *self.ends.tolist()]
        return [data[start:end] for start, end in zip(starts, self.ends.tolist(), strict=False)]
