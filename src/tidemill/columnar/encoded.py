"""What every encoder gives: messages, one after the other in one buffer."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Keys:
    """Key ``i`` is ``payload[ends[i - 1]:ends[i]]``; the first begins at 0."""

    payload: pa.Buffer
    ends: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The messages of some changes, in their order, each with its terminator.

    Message ``i`` is ``payload[ends[i - 1]:ends[i]]`` (the first begins at 0) and belongs to the
    transaction that committed at ``commit_ts[i]``; where it holds several changes, to the last of them.
    """

    payload: pa.Buffer
    ends: npt.NDArray[np.int64]
    commit_ts: npt.NDArray[np.uint64]
    keys: Keys | None = None  # None: messages have no keys
    partitions: npt.NDArray[np.int32] | None = None  # of a topic; None: there is one, or none
    changes: npt.NDArray[np.int64] | None = None  # in each message; None: one
    has_value: npt.NDArray[np.bool_] | None = None  # False: the message is its key, with null behind it; None: all have

    def __len__(self) -> int:
        return len(self.ends)

    def messages(self) -> list[bytes]:
        """Each message by itself: for tests and for sinks that send one by one."""
        return _cut(self.payload, self.ends)

    def message_keys(self) -> list[bytes] | None:
        return _cut(self.keys.payload, self.keys.ends) if self.keys is not None else None


def _cut(payload: pa.Buffer, ends: npt.NDArray[np.int64]) -> list[bytes]:
    data = payload.to_pybytes()
    starts = [0, *ends.tolist()]
    return [data[start:end] for start, end in zip(starts, ends.tolist(), strict=False)]
