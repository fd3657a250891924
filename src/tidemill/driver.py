"""A changefeed's query on Spark: started, watched, and started again when what ended it passes.

Lives on the main thread; the processor, which it asks and tells, on the loop's.
"""

import asyncio
import secrets
import shutil
from concurrent.futures import Future
from functools import partial

from tidemill.control.state import DataDir
from tidemill.errors import EngineError, InvariantError, RowUndecodableError, SinkError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.sink import Receipt
from tidemill.log import get_logger
from tidemill.model.ts import Ts
from tidemill.processor import Processor

log = get_logger("driver")

_MOST_SPARK_FAILURES = 3  # in a row, without a batch in between
_MOST_SLOW_STARTS = 30  # of Python processes, likewise: Spark waits 10 s for each, which a busy machine may exceed
_SLOW_START = "worker failed to connect back"  # Spark's words for it


class SparkDriver:
    """The session, the endpoint and the query. Importing pyspark is left to the moment that it is needed."""

    def __init__(
        self,
        pipeline: Pipeline,
        processor: Processor,
        loop: asyncio.AbstractEventLoop,
        data_dir: DataDir,
        *,
        master: str,
        tasks: int,
        available_now: bool,
    ) -> None:
        """``tasks``: how many a batch is cut into at most. ``available_now``: take what is there, then end."""
        from tidemill.spark.endpoint import Endpoint
        from tidemill.spark.session import open_session

        self._processor = processor
        self._pipeline = pipeline
        self._folder = data_dir.spark
        self._available_now = available_now
        self._loop = loop
        self._failures = 0
        self._batches = 0
        self._recovering: Future[None] | None = None
        self._open_session = partial(open_session, master, scratch=data_dir.scratch)
        self._endpoint = Endpoint(self._processor, loop, self._pipeline, tasks)
        self._start()

    def _start(self) -> None:
        from tidemill.spark.job import ChangefeedJob

        # Our own state is the one truth about what is durable, so Spark's offsets of an earlier query are not wanted:
        # they could only disagree with it. A JVM that lost its process may still write to the folder it had.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._job = ChangefeedJob(
            self._open_session(),  # another one, should its JVM have died
            self._endpoint.address,
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
        failure = self._endpoint.failure or self._job.failure()
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
        asyncio.run_coroutine_threadsafe(self._processor.begin_again(), self._loop).result()
        self._start()

    def _recover(self, failure: SinkError) -> None:
        """The sink has given up for a reason that passes: begin the batch again once it is back."""
        self._processor.note_trouble(failure)
        self._recovering = asyncio.run_coroutine_threadsafe(self._processor.begin_again(), self._loop)

    def _wait_for_sink(self, recovering: Future[None], seconds: float) -> None:
        """In small steps, so that the changefeed can still be stopped."""
        try:
            recovering.result(seconds)
        except TimeoutError:
            return
        except SinkError as error:
            if not error.retryable:
                raise
            self._recover(error)
            return
        self._recovering = None
        self._start()

    def close(self, *, stop_session: bool) -> None:
        from tidemill.spark.session import close_session

        self._job.stop()
        self._endpoint.close()
        if stop_session:
            close_session()

    async def _salvage(self, error: RowUndecodableError) -> None:
        """A row cannot be decoded: deliver what was committed before it, then raise. Runs on the loop; the work is
        done here rather than by Spark, whose batch has failed."""
        while True:
            units = await self._processor.shorten(Ts((error.commit_ts or 0) - 1))
            try:
                receipts = await asyncio.to_thread(self._process, units)
            except RowUndecodableError as earlier:
                error = earlier
                continue
            if units:
                await self._processor.commit(receipts)
            raise error

    def _process(self, units: list[Unit]) -> list[Receipt]:
        return [self._pipeline.process(unit) for unit in units]


def gives_up(failure: Exception, failures: int) -> bool:
    """Whether to end instead of starting Spark's query again, after so many failures in a row."""
    if not isinstance(failure, EngineError):
        return True
    return failures > (_MOST_SLOW_STARTS if _SLOW_START in str(failure) else _MOST_SPARK_FAILURES)
