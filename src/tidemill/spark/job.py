"""The streaming query of a changefeed.

    source (groups of units) ─► mapInArrow: the fused pipeline ─► receipts ─► driver ─► Processor.commit

What is durable is known to the processor's state alone. Spark's own checkpoint lasts as long as the process: a
query that starts again begins at the changefeed's checkpoint, and what an unfinished batch had left downstream
is gone by then.
"""

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.errors import InvariantError, TidemillError
from tidemill.flow.sink import Receipt
from tidemill.model.ts import Ts
from tidemill.spark.endpoint import Address
from tidemill.spark.source import FORMAT, ChangefeedSource

_RESULT = pa.schema([pa.field("result", pa.binary())])
_OFFER_WAIT_SECONDS = 0.5

Commit = Callable[[Sequence[Receipt]], Coroutine[Any, Any, None]]


class ChangefeedJob:
    """One changefeed's query on one session. ``commit`` runs on ``loop``."""

    def __init__(
        self,
        spark: SparkSession,
        address: Address,
        start_ts: Ts,
        checkpoint_dir: Path,
        commit: Commit,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._spark = spark
        self._address = address
        self._start_ts = start_ts
        self._checkpoint_dir = checkpoint_dir
        self._commit = commit
        self._loop = loop
        self._query: StreamingQuery | None = None
        self._failure: TidemillError | None = None

    def start(self, *, available_now: bool = False) -> None:
        self._spark.dataSource.register(ChangefeedSource)
        options = self._address.options() | {
            "start-ts": str(self._start_ts),
            "wait-seconds": str(_OFFER_WAIT_SECONDS),
        }
        groups = self._spark.readStream.format(FORMAT).options(**options).load()
        results = groups.mapInArrow(run_groups, "result binary")
        writer = results.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(self._checkpoint_dir))
        if available_now:
            writer = writer.trigger(availableNow=True)
        self._query = writer.start()

    def is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def failure(self) -> TidemillError | None:
        """Why the query ended by itself, in our own words; None while it is well."""
        if self._failure is not None:
            return self._failure
        trouble = self._query.exception() if self._query is not None and not self._query.isActive else None
        return None if trouble is None else _translate(trouble)

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def wait(self, seconds: float) -> bool:
        """Wait for the query to end; True once it has."""
        if self._query is None:
            return True
        try:
            return bool(self._query.awaitTermination(seconds))
        except PySparkException:
            return True  # ``failure`` tells

    def _on_batch(self, results: DataFrame, batch_id: int) -> None:
        """Driver, in the thread of Spark's callback: run the batch and make it count."""
        try:
            receipts: list[Receipt] = []
            for value in results.toArrow()["result"].to_pylist():
                outcome = pickle.loads(value)
                if isinstance(outcome, TidemillError):
                    raise outcome
                receipts.extend(outcome)
            asyncio.run_coroutine_threadsafe(self._commit(receipts), self._loop).result()
        except TidemillError as error:
            self._failure = error
            raise


def run_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Executor: process every group of units; the result is its receipts or the error that stopped it."""
    for batch in batches:
        for blob in batch.column(0).to_pylist():
            yield pa.record_batch([pa.array([pickle.dumps(_run_group(blob))], pa.binary())], schema=_RESULT)


def _run_group(blob: bytes) -> list[Receipt] | TidemillError:
    pipeline, units = pickle.loads(blob)
    try:
        return [pipeline.process(unit) for unit in units]
    except TidemillError as error:
        # An error of ours is a result: a task that fails would be reported by Spark as a traceback.
        return error


def _translate(trouble: Exception) -> TidemillError:
    lines = [line for line in str(trouble).splitlines() if line.strip()]
    return InvariantError(f"Spark's query failed: {lines[-1] if lines else type(trouble).__name__}")
