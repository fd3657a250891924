"""Spark's Python daemon with the pipeline already imported.

Each Python worker is forked from the daemon. Loading Arrow, Numba and the stages costs a second
of CPU, so it is paid once here rather than in every worker (``spark.python.daemon.module``). What was loaded is shared
with the workers, and stays so: the collector leaves it alone. Workers write the sink's
files, which are not as private as Spark's own.
"""

from tidemill.startup import quick_imports

with quick_imports():
    import numba  # noqa: F401
    import pyarrow.compute  # noqa: F401
    from pyspark.daemon import manager

    import tidemill.sinks.registry
    import tidemill.source.scan.snapshot
    import tidemill.spark.task  # noqa: F401
    from tidemill.private import take_umask

if __name__ == "__main__":
    take_umask()
    manager()
