"""What a processor hands out and keeps count of: batches, how large they may be, and where their time goes."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.pace import Amount, Bounds, next_limit
from tidemill.control.retries import pause_seconds
from tidemill.errors import SinkError
from tidemill.flow.skew import LEAST_BYTES
from tidemill.model.progress import Extent
from tidemill.model.ts import Ts, lag_seconds
from tidemill.sinks import Receipt

T = TypeVar("T")

_TRACES = 1024  # of the latest batches are kept


@dataclass(frozen=True, slots=True)
class Admission:
    """How much one batch may take. A batch costs Spark some 0.2 s, so it should be worth it; the next one has to wait
    for it, so it should not be too much for the sink."""

    bounds: Bounds = field(default_factory=Bounds)
    flush_interval_seconds: float = 0.0  # at least so long between the starts of two batches that could be one
    tasks: Callable[[], int] = lambda: 1  # that work on a batch at the same time, as things stand
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


class Pacer:
    """When the batches of a processor pass each point, and how much the next one may take because of it."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self._bounds, self._clock = bounds, clock
        self.limit = bounds.most  # of the next batch
        self.started_at = -1e9
        self.traces: deque[BatchTrace] = deque(maxlen=_TRACES)
        self.latencies: deque[float] = deque(maxlen=_TRACES)  # from the commit of a batch's first row to durable
        self._ready_at: float | None = None
        self._planned_at = -1e9
        self._taken = Amount(0, 0)

    def ready(self) -> None:
        """A batch could begin; of several such moments before it does, the first counts."""
        if self._ready_at is None:
            self._ready_at = self._clock.monotonic()

    def started(self) -> None:
        self.started_at = self._clock.monotonic()

    def planned(self, taken: Amount) -> None:
        self._planned_at, self._taken = self._clock.monotonic(), taken

    def durable(self, to_ts: Ts, receipts: Sequence[Receipt], written_at: float) -> None:
        """The batch is committed; ``written_at``: its receipts were back then."""
        durable_at = self._clock.monotonic()
        worked = sum(receipt.seconds for receipt in receipts)
        # What Spark takes for itself is no reason for smaller batches: those would only pay it more often.
        seconds = min(worked, written_at - self._planned_at) + durable_at - written_at
        self.limit = next_limit(self._bounds, self.limit, self._taken, seconds)
        first_ts = min((receipt.first_ts for receipt in receipts if receipt.first_ts), default=None)
        if first_ts is not None:
            self.latencies.append(lag_seconds(Ts(first_ts), self._clock.now()))
        ready_at = self.started_at if self._ready_at is None else self._ready_at
        times = (ready_at, self.started_at, self._planned_at, written_at, durable_at)
        self.traces.append(BatchTrace(to_ts, *times, worked))
        self._ready_at = None


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
