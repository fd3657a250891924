"""Binds the flow to Spark. The only package that imports pyspark.

session    the process's Spark session, quiet and quick to start, shared by its changefeeds
settings   what it is started with: the user's, and ours for what was left open
jvm        its JVM as a process of ours: started so that it can be given up, ended with all that it started
engine     a changefeed's batches: one job each, named, grouped and cancellable; task is what an executor does
supply     lets workers on other hosts get at segments
daemon     forks Python workers that have the pipeline loaded already
library/   ``spark.read.format("tidemill")``: tables and their changes for everybody's own jobs
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make ``spark.read.format("tidemill")`` and ``spark.readStream.format("tidemill")`` known to a session."""
    # Here, since Python workers import this package and need none of it.
    from tidemill.spark import library

    library.register(spark)


__all__ = ["register"]
