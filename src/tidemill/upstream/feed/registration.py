"""What the change stream is asked for, and how it answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill._pb import cdcpb_pb2, kvrpcpb_pb2
from tidemill.model.span import Span
from tidemill.model.ts import LOGICAL_BITS, Ts
from tidemill.upstream.topology import Region


@dataclass(frozen=True, slots=True)
class StreamMode:
    """Which API's changes a stream brings."""

    kv_api: cdcpb_pb2.ChangeDataRequest.KvAPI
    extra_op: kvrpcpb_pb2.ExtraOp
    has_locks: bool  # of transactions, which may be abandoned
    safe_interval_ms: int = 0  # by which each resolved-ts is taken back: a little later than it, changes may come below

    def taken_back(self, resolved_ts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What to believe of resolved-ts as they came. None becomes negative."""
        return np.maximum(resolved_ts - (self.safe_interval_ms << LOGICAL_BITS), 0)


TRANSACTIONS = StreamMode(cdcpb_pb2.ChangeDataRequest.TiDB, kvrpcpb_pb2.ReadOldValue, has_locks=True)


def raw_mode(safe_interval_ms: int) -> StreamMode:
    """RawKV of API V2. When a region changes hands, the store that led it may have promised more than the next one
    knows: changes of the latter may lie below. So resolved-ts are taken back."""
    return StreamMode(cdcpb_pb2.ChangeDataRequest.RawKV, kvrpcpb_pb2.Noop, False, safe_interval_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """One region followed for one request, once. After a loss a new one takes its place."""

    request_id: int
    region: Region
    part: Span  # of the region's keys, physical
    checkpoint_ts: Ts  # changes above it are wanted


class FeedListener(Protocol):
    """Who wants the changes. All calls come from the loop, in the order of the stream."""

    async def changes(self, request_id: int, changes: pa.RecordBatch) -> None:
        """Take raw changes. The stream is not read on until this returns: that is the back-pressure."""
        ...

    def initialized(self, registration: Registration) -> None:
        """The incremental scan has ended; from now on the resolved-ts moves."""
        ...

    def resolved(self, progress: list[tuple[Registration, Ts]]) -> None:
        """All changes at or below these ts have been given to ``changes`` before."""
        ...

    def lost(self, registration: Registration, reason: str, at_least_seconds: float) -> None:
        """The region is no longer followed. The region cache has been corrected: find the keys again, after a pause."""
        ...
