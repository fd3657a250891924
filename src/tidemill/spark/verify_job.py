"""The tasks of a check on Spark: one a task, results back to the driver in order."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemill.errors import TidemillError
from tidemill.spark.engine import TROUBLES, translate, worst
from tidemill.spark.task import pack, unpack
from tidemill.verify.check import Task

_RESULT = pa.schema([pa.field("result", pa.binary())])


def runner(spark: SparkSession, loopbacks: Sequence[str] = ()) -> Callable[[Sequence[Task]], list[Any]]:
    """Carries tasks to executors. What stopped one is raised when all have ended. ``loopbacks``: addresses in them that
    only workers of this machine can do something with."""

    def run(tasks: Sequence[Task]) -> list[Any]:
        if not tasks:
            return []
        blobs = [pickle.dumps((number, pack(task, loopbacks))) for number, task in enumerate(tasks)]
        try:
            frame = spark.createDataFrame([(blob,) for blob in blobs], "task binary").repartition(len(blobs))
            results = frame.mapInArrow(run_tasks, "result binary").toArrow()
        except TROUBLES as trouble:
            raise translate(trouble) from trouble
        outcomes = dict(pickle.loads(value) for value in results["result"].to_pylist())
        failure = worst([outcome for outcome in outcomes.values() if isinstance(outcome, TidemillError)])
        if failure is not None:
            raise failure
        return [outcomes[number] for number in range(len(tasks))]

    return run


def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Executor: run every task; the result is what it found or the error that stopped it."""
    for batch in batches:
        for blob in batch.column(0).to_pylist():
            yield pa.record_batch([pa.array([pickle.dumps(_run_task(blob))], pa.binary())], schema=_RESULT)


def _run_task(blob: bytes) -> tuple[int, Any]:
    number, packed = pickle.loads(blob)
    try:
        return number, unpack(packed).run()
    except TidemillError as error:
        return number, error
