"""Units run as one batch job, beside any stream: the initial copy's way through Spark."""

import pickle
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemill.errors import TidemillError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.sink import Receipt
from tidemill.spark.endpoint import balance
from tidemill.spark.job import run_groups, translate, worst


def run_units(spark: SparkSession, pipeline: Pipeline, units: Sequence[Unit], tasks: int) -> list[Receipt]:
    """Process all units on executors, in at most ``tasks`` tasks. What stopped one is raised when all have ended."""
    groups = [pickle.dumps((pipeline, group)) for group in balance(list(units), tasks)]
    try:
        frame = spark.createDataFrame([(group,) for group in groups], "group binary").repartition(len(groups))
        results = frame.mapInArrow(run_groups, "result binary").toArrow()
    except (PySparkException, Py4JError, OSError) as trouble:
        raise translate(trouble) from trouble
    outcomes = [pickle.loads(value) for value in results["result"].to_pylist()]
    failure = worst([outcome for outcome in outcomes if isinstance(outcome, TidemillError)])
    if failure is not None:
        raise failure
    return [receipt for receipts in outcomes for receipt in receipts]
