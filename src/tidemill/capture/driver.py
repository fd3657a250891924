"""A changefeed's query on Spark: started, watched, and started again when what ended it passes.

Lives on the main thread; the processor, which it asks and tells, on the loop's.
"""

import asyncio
import secrets
import shutil
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tidemill.capture.metadata import DataDir
from tidemill.capture.processor import Processor
from tidemill.control.retries import gives_up
from tidemill.errors import InvariantError, RowUndecodableError, SinkError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.log import get_logger
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt

if TYPE_CHECKING:
    from tidemill.spark.session import Lease

log = get_logger("driver")


class SparkDriver:
    """The session, the endpoint and the query. Importing pyspark is left to the moment that it is needed."""

    def __init__(
        self,
        pipeline: Pipeline,
        processor: Processor,
        loop: asyncio.AbstractEventLoop,
        data_dir: DataDir,
        *,
        lease: "Lease",
        tasks: int,
        available_now: bool,
    ) -> None:
        """``lease``: of the session; the caller's. ``tasks``: how many a batch is cut into at most. ``available_now``:
        take what is there, then end."""
        from tidemill.spark.endpoint import Endpoint

        self._processor = processor
        self._pipeline = pipeline
        self._folder = data_dir.spark
        self._available_now = available_now
        self._loop = loop
        self._failures = 0
        self._batches = 0
        self._recovering: Future[None] | None = None
        self._lease = lease
        self._endpoint = Endpoint(self._processor, loop, self._pipeline, tasks)
        try:
            self._start()
        except BaseException:
            self._endpoint.close()
            raise

    def _start(self) -> None:
        from tidemill.spark.job import ChangefeedJob

        # Our own state is the one truth about what is durable, so Spark's offsets of an earlier query are not wanted:
        # they could only disagree with it. A JVM that lost its process may still write to the folder it had.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._generation = self._processor.generation
        self._job = ChangefeedJob(
            self._lease.session(),  # another one, should its JVM have died
            self._endpoint.address,
            self._generation,
            self._processor.progress.checkpoint_ts,
            self._folder / secrets.token_hex(4),
            self._processor.commit,
            self._salvage,
            self._loop,
        )
        self._job.start(available_now=self._available_now)

    @property
    def is_waiting_for_sink(self) -> bool:
        return self._recovering is not None

    def wait(self, seconds: float) -> None:
        """Raises why the query ended, should it. Where Spark itself is to blame, it is started again some times;
        where the sink is away, as often as it takes."""
        if self._recovering is not None:
            self._wait_for_sink(self._recovering, seconds)
            return
        if not self._job.wait(seconds):
            return
        failure = self._endpoint.failure(self._generation) or self._job.failure()
        if failure is None:
            if self._available_now:
                return
            raise InvariantError("Spark's query ended by itself")
        if isinstance(failure, SinkError) and failure.retryable:
            self._recover(failure)
            return
        batches = self._processor.totals.batches
        self._failures = self._failures + 1 if batches == self._batches else 1
        self._batches = batches
        if gives_up(failure, self._failures):
            raise failure
        log.warning("Spark failed; starting its query again", reason=str(failure), failures=self._failures)
        self._recover()

    def _recover(self, trouble: SinkError | None = None) -> None:
        """Have the batch taken back, which may take as long as the sink is away; then begin it again."""
        self._recovering = asyncio.run_coroutine_threadsafe(self._processor.begin_again(trouble), self._loop)

    def _wait_for_sink(self, recovering: Future[None], seconds: float) -> None:
        """In small steps, so that the changefeed can still be stopped."""
        try:
            recovering.result(seconds)
        except TimeoutError:
            return
        self._job.stop()  # where only the connection to it was lost, it may still run; nothing it does counts any more
        self._recovering = None
        self._start()

    def close(self) -> None:
        self._job.stop()
        self._endpoint.close()

    async def _salvage(self, generation: int, error: RowUndecodableError) -> None:
        """A row cannot be decoded: deliver what was committed before it, then raise. Runs on the loop; the work is
        done here rather than by Spark, whose batch has failed."""
        while True:
            to_ts = Ts((error.commit_ts or 0) - 1)
            generation, units = await self._processor.shorten(generation, to_ts)
            try:
                receipts = await asyncio.to_thread(self._process, units)
            except RowUndecodableError as earlier:
                error = earlier
                continue
            if units:
                await self._processor.commit(generation, to_ts, receipts)
            raise error

    def _process(self, units: list[Unit]) -> list[Receipt]:
        return [self._pipeline.process(unit) for unit in units]
