"""What the change stream is asked for, and how it answers."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.upstream.topology import Region


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
