"""What a processor hands out and keeps count of: batches, how large they may be, and where their time goes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.pace import Bounds
from tidemill.control.retries import pause_seconds
from tidemill.errors import SinkError
from tidemill.flow.skew import LEAST_BYTES
from tidemill.model.progress import Extent
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt, Sharing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Admission:
    """How much one batch may take. A batch costs Spark some 0.2 s, so it should be worth it; the next one has to wait
    for it, so it should not be too much for the sink."""

    bounds: Bounds = field(default_factory=Bounds)
    flush_interval_seconds: float = 0.0  # at least so long between the starts of two batches that could be one
    tasks: Callable[[], int] = lambda: 1  # that work on a batch at the same time, as things stand
    sharing: Callable[[int], Sharing] = lambda tasks: Sharing.NEVER  # among them, of a table that is most of a batch
    least_shared: int = LEAST_BYTES


@dataclass(frozen=True, slots=True)
class Batch:
    """What may be taken next. ``number`` tells it from others of the same extent: those that were taken back."""

    number: int
    generation: int
    extent: Extent

    @property
    def to_ts(self) -> Ts:
        return self.extent.to_ts


@dataclass(frozen=True, slots=True)
class BatchTrace:
    """When a batch passed each point, by the monotonic clock: where the time from commit to durable goes."""

    to_ts: Ts
    ready_at: float  # it could have begun: the upstream had resolved changes, and the batch before was done
    offered_at: float  # the driver had asked for it
    planned_at: float  # and what it consists of
    written_at: float  # the pipeline had run, its receipts were back
    durable_at: float  # the state was saved
    pipeline_seconds: float  # that the tasks of the batch, taken together, worked on their units


@dataclass(slots=True)
class Totals:
    """What this run has done, for the progress line and the closing summary."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    ddls: int = 0
    undecodable: int = 0  # rows that were put aside

    def count(self, receipts: Sequence[Receipt]) -> None:
        """A batch has been committed, of the stream or of the initial copy."""
        self.rows += sum(receipt.rows for receipt in receipts)
        self.bytes += sum(receipt.bytes for receipt in receipts)
        self.batches += 1
        self.undecodable += sum(len(receipt.aside) for receipt in receipts)


async def wait_out(
    work: Callable[[], Awaitable[T]],
    note: Callable[[SinkError], None],
    is_closing: Callable[[], bool] = lambda: False,
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Do it; while the sink is away, again and again, and ``note`` why. It may have waited by itself already."""
    attempts = 0
    while True:
        try:
            return await work()
        except SinkError as error:
            if not error.retryable or is_closing():
                raise
            note(error)
        attempts += 1
        await clock.sleep(pause_seconds(attempts))
