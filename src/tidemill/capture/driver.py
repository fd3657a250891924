"""A lane's batches, one after the other, on Spark; begun again when what ended one passes.

    offer ─► units ─► engine (a job of Spark) ─► receipts ─► commit
      ▲                    │ Spark failed, or the sink is away
      └── begin_again ◄────┘

Runs on the lane's loop, as a task that waits for what may be done next; nothing is asked in between.
"""

import asyncio
from typing import TYPE_CHECKING

from tidemill.capture.batches import Batch
from tidemill.capture.lane import Lane
from tidemill.control.retries import gives_up
from tidemill.errors import EngineError, RowUndecodableError, SinkError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.log import get_logger
from tidemill.model.receipt import Receipt
from tidemill.model.ts import Ts, show

if TYPE_CHECKING:
    from tidemill.spark.engine import Engine

log = get_logger("driver")

_OFFER_WAIT_SECONDS = 3600.0  # whatever may be offered is noticed at once


class BatchDriver:
    def __init__(self, pipeline: Pipeline, lane: Lane, engine: "Engine") -> None:
        """``engine``: the caller's."""
        self._pipeline = pipeline
        self._batches = lane.batches
        self._engine = engine
        self._failures = 0  # of Spark, since the last batch that was committed
        self.is_waiting_for_sink = False

    async def run(self) -> None:
        """Until it is cancelled. Raises what ended it: where Spark itself is to blame, a batch is begun again
        a few times; where the sink is away, as often as it takes."""
        while True:
            batch = await self._batches.offer(_OFFER_WAIT_SECONDS)
            if batch is not None:
                await self._take(batch)

    async def _take(self, batch: Batch) -> None:
        try:
            units = await self._batches.units(batch)
            work = self._engine.submit(self._pipeline, units, f"changes up to {show(batch.to_ts)}")
            receipts = await asyncio.wrap_future(work)
            await self._batches.commit(batch, receipts)
        except RowUndecodableError as error:
            await self._salvage(batch, error)
        except SinkError as error:
            if not error.retryable:
                raise
            await self._begin_again(error)
        except EngineError as error:
            self._failures += 1
            if gives_up(error, self._failures):
                raise
            log.warning("Spark failed; beginning the batch again", reason=str(error), failures=self._failures)
            await self._begin_again()
        else:
            self._failures = 0

    async def _begin_again(self, trouble: SinkError | None = None) -> None:
        """Have the batch taken back, which may take as long as the sink is away."""
        self.is_waiting_for_sink = True
        try:
            await self._batches.begin_again(trouble)
        finally:
            self.is_waiting_for_sink = False

    async def _salvage(self, batch: Batch, error: RowUndecodableError) -> None:
        """A row cannot be decoded: deliver what was committed before it, then raise. The work is done here rather than
        by Spark, whose batch has failed."""
        while True:
            shorter, units = await self._batches.shorten(batch, Ts((error.commit_ts or 0) - 1))
            if shorter is None:
                raise error
            batch = shorter
            try:
                receipts = await asyncio.to_thread(self._process, units)
            except RowUndecodableError as earlier:
                error = earlier
                continue
            await self._batches.commit(batch, receipts)
            raise error

    def _process(self, units: list[Unit]) -> list[Receipt]:
        return [self._pipeline.process(unit) for unit in units]
