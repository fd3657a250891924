"""Tidemill as a Spark data source for everybody's own jobs: ``spark.read.format("tidemill")`` and ``readStream``.

options   what a reader may ask for, checked
source    the data source: a table as of a ts, or its changes between two ts
stream    the changes from a ts on, as a stream whose offset is a ts

Spark finds it by itself (``pyspark_tidemill``). ``register`` is for sessions on which filters should be pushed down
as well, and for machines on which the package is on the path but not installed.
"""

from pyspark.sql import SparkSession

from tidemill.spark.library.source import PushingSource

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format ``tidemill`` known to the session, and let Spark push filters down to it."""
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(PushingSource)


__all__ = ["register"]
