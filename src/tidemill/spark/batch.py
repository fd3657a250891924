"""Units run as one batch job, beside any stream: the initial copy's way through Spark."""

import pickle
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemill.errors import StoppedError, TidemillError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.model.receipt import Receipt
from tidemill.spark.endpoint import balance
from tidemill.spark.job import run_groups, translate, worst

_POLL_SECONDS = 0.05
_TROUBLES = (PySparkException, Py4JError, OSError)


def run_units(
    spark: SparkSession,
    pipeline: Pipeline,
    units: Sequence[Unit],
    tasks: int,
    gives_up: Callable[[], bool],
) -> list[Receipt]:
    """Process all units on executors, in at most ``tasks`` tasks. What stopped one is raised when all have ended.
    ``StoppedError`` once ``gives_up``: Spark then ends what it has begun."""
    groups = [pickle.dumps((pipeline, group)) for group in balance(list(units), tasks)]
    job = _Job(spark, groups)
    while not job.is_done(_POLL_SECONDS):
        if gives_up():
            job.cancel()
            raise StoppedError("stopped in the middle of a batch of the initial copy; it comes again.")
    outcomes = job.outcomes()
    failure = worst([outcome for outcome in outcomes if isinstance(outcome, TidemillError)])
    if failure is not None:
        raise failure
    return [receipt for receipts in outcomes for receipt in receipts]


class _Job:
    """In a thread of its own: a call to the JVM cannot be interrupted, but the job that it waits for can."""

    def __init__(self, spark: SparkSession, groups: Sequence[bytes]) -> None:
        self._spark = spark
        self._groups = groups
        self._id = f"tidemill-copy-{secrets.token_hex(4)}"
        self._outcomes: list[Any] = []
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)
        self._thread.start()

    def is_done(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        with suppress(*_TROUBLES):
            self._spark.sparkContext.cancelJobGroup(self._id)

    def outcomes(self) -> list[Any]:
        if self._trouble is not None:
            raise translate(self._trouble) from self._trouble
        return self._outcomes

    def _run(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._id, "initial copy", interruptOnCancel=True)
            rows = [(group,) for group in self._groups]
            frame = self._spark.createDataFrame(rows, "group binary").repartition(len(rows))
            results = frame.mapInArrow(run_groups, "result binary").toArrow()
            self._outcomes = [pickle.loads(value) for value in results["result"].to_pylist()]
        except _TROUBLES as trouble:
            self._trouble = trouble
