"""The streaming query of a changefeed.

    source (groups of units) ─► mapInArrow: the fused pipeline ─► receipts ─► driver ─► Processor.commit

A query belongs to one generation of the processor. With every group goes the end of its batch, which comes back with
the receipts, so that what is committed is the batch that was written, or nothing. A task runs once: a second attempt of
Spark's would write beside the first, in the same generation, so it fails the batch instead.

What is durable is known to the processor's state alone. Spark's own checkpoint lasts as long as the process: a
query that starts again begins at the changefeed's checkpoint, and what an unfinished batch had left downstream
is gone by then.
"""

import asyncio
import pickle
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.errors import EngineError, InvariantError, RowUndecodableError, TidemillError
from tidemill.model.receipt import Receipt
from tidemill.model.ts import Ts
from tidemill.spark.endpoint import Address
from tidemill.spark.source import FORMAT, ChangefeedSource

_RESULT = pa.schema([pa.field("result", pa.binary())])
_OFFER_WAIT_SECONDS = 0.5

Commit = Callable[[int, Ts, Sequence[Receipt]], Coroutine[Any, Any, None]]  # generation, end of the batch
Salvage = Callable[[int, RowUndecodableError], Coroutine[Any, Any, None]]
Outcome = tuple[int, list[Receipt] | TidemillError]  # of a group: the end of its batch, and what became of it

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b")

# What a call to the JVM may end with: its own exceptions, or no answer since it is gone.
_TROUBLES = (PySparkException, Py4JError, OSError)


class ChangefeedJob:
    """One changefeed's query on one session, for one start.

    ``commit`` and ``salvage`` run on ``loop``: the batch is durable, or stopped by a row that cannot be decoded,
    before which ``salvage`` may still deliver the rest.
    """

    def __init__(
        self,
        spark: SparkSession,
        address: Address,
        generation: int,
        start_ts: Ts,
        checkpoint_dir: Path,
        commit: Commit,
        salvage: Salvage,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._spark = spark
        self._address = address
        self._generation = generation
        self._start_ts = start_ts
        self._checkpoint_dir = checkpoint_dir
        self._commit = commit
        self._salvage = salvage
        self._loop = loop
        self._query: StreamingQuery | None = None
        self._failure: TidemillError | None = None

    def start(self, *, available_now: bool = False) -> None:
        try:
            self._query = self._start(available_now)
        except _TROUBLES as trouble:
            raise translate(trouble) from trouble

    def _start(self, available_now: bool) -> StreamingQuery:
        self._spark.dataSource.register(ChangefeedSource)
        options = self._address.options() | {
            "generation": str(self._generation),
            "start-ts": str(self._start_ts),
            "wait-seconds": str(_OFFER_WAIT_SECONDS),
        }
        groups = self._spark.readStream.format(FORMAT).options(**options).load()
        results = groups.mapInArrow(run_batch, "result binary")
        writer = results.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(self._checkpoint_dir))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def failure(self) -> TidemillError | None:
        """Why the query ended by itself, in our own words; None while it is well. An EngineError is Spark's own
        trouble: another query may do better."""
        if self._failure is not None or self._query is None:
            return self._failure
        try:
            trouble = None if self._query.isActive else self._query.exception()
        except _TROUBLES as error:
            trouble = error
        return None if trouble is None else translate(trouble)

    def stop(self) -> None:
        if self._query is not None:
            with suppress(*_TROUBLES):  # it has ended, one way or another
                self._query.stop()

    def wait(self, seconds: float) -> bool:
        """Wait for the query to end; True once it has."""
        if self._query is None:
            return True
        try:
            return bool(self._query.awaitTermination(seconds))
        except _TROUBLES:
            return True  # ``failure`` tells

    def _on_batch(self, results: DataFrame, batch_id: int) -> None:
        """Driver, in the thread of Spark's callback: run the batch and make it count."""
        try:
            outcomes: list[Outcome] = [pickle.loads(value) for value in results.toArrow()["result"].to_pylist()]
            if not outcomes:
                return  # Spark runs its very first batch even where the offer had nothing
            ends = {to_ts for to_ts, _ in outcomes}
            if len(ends) != 1:
                raise InvariantError(f"Spark's batch {batch_id} has groups that end at {sorted(ends)}. Report it.")
            failure = worst([result for _, result in outcomes if isinstance(result, TidemillError)])
            if isinstance(failure, RowUndecodableError):
                self._run(self._salvage(self._generation, failure))
            if failure is not None:
                raise failure
            receipts = [receipt for _, result in outcomes if isinstance(result, list) for receipt in result]
            self._run(self._commit(self._generation, Ts(ends.pop()), receipts))
        except TidemillError as error:
            self._failure = error
            raise

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def worst(failures: Sequence[TidemillError]) -> TidemillError | None:
    """Of what stopped the groups of a batch, the one to act on: rows that cannot be decoded only if nothing else
    did, and of those the first committed."""
    return min(
        failures,
        key=lambda e: (e.commit_ts or 0) + 1 if isinstance(e, RowUndecodableError) else 0,
        default=None,
    )


def run_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Executor: as ``run_groups``, for groups that come with the end of their batch, and so do their results."""
    for blob in _blobs(batches):
        to_ts, group = pickle.loads(blob)
        yield _result((to_ts, _run_group(group)))


def run_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Executor: process every group of units; the result is its receipts or the error that stopped it."""
    for blob in _blobs(batches):
        yield _result(_run_group(blob))


def _blobs(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _result(outcome: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_RESULT)


def _run_group(blob: bytes) -> list[Receipt] | TidemillError:
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        return EngineError(
            "Spark ran a task again by itself, since it had lost the executor of the first attempt, which may still be "
            "writing. Nothing is lost: the batch is taken back, so that nothing of that one counts, and begun again."
        )
    pipeline, units = pickle.loads(blob)
    try:
        return [pipeline.process(unit) for unit in units]
    except TidemillError as error:
        # An error of ours is a result: a task that fails would be reported by Spark as a traceback.
        return error


def translate(trouble: Exception) -> EngineError:
    """What Spark itself failed with, in our own words."""
    from tidemill.spark.scratch import process_folder
    from tidemill.spark.session import session_log  # here, since Python workers import this module and need none of it

    if not isinstance(trouble, PySparkException):
        return EngineError(
            f"Spark does not answer any more ({type(trouble).__name__}): its JVM has ended. Nothing is lost; see that "
            "the machine has memory for it, then start again."
        )
    log = session_log()
    # Spark's own folder goes with the process, and with it a log that nobody asked for.
    where = f"see {log}, then start again" if log is not None and process_folder() not in log.parents else "start again"
    return EngineError(f"Spark's query failed: {reason_of(str(trouble))}. Nothing is lost; {where}.")


def reason_of(text: str) -> str:
    """The one line that tells, of what Spark says of a failed query: no plan, no ids, no stack."""
    text = re.split(r"\n=== Streaming Query ===|\n\s*JVM stacktrace:", text)[0]
    text = re.sub(r".*?terminated with exception:\s*", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"\s*SQLSTATE: \w{5}|\(no cause message\)", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "one of its processes has ended without a word"
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        lines = [line for line in lines if _EXCEPTION.match(line)][-1:] or lines
    return lines[0].rstrip(".")
