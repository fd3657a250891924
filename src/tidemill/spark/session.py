"""A Spark session for this work: quiet, small, quick to start.

The JVM only plans and schedules here, rows stay in Python workers; so it gets little memory and only its
quick compiler, which saves several CPU-seconds of every start.
"""

import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from subprocess import TimeoutExpired

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemill.errors import EngineError, UsageError
from tidemill.spark.classes import java_options
from tidemill.spark.home import use_lean_home

DEFAULT_MASTER = "local[2]"
_JVM_END_SECONDS = 20.0
_MASTER_ANSWERS_SECONDS = 5.0

# The default one forks a process for every file's rights, which doubles the time of an empty micro-batch.
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def open_session(master: str = DEFAULT_MASTER, *, scratch: Path, name: str = "tidemill") -> SparkSession:
    """A session on ``master``: the one that this process has, unless its JVM is dead. ``scratch`` takes Spark's
    temporary files. Needs a JDK 17 or newer."""
    if not _is_alive():
        close_session()
    _check_reachable(master)
    # Workers must run this interpreter: by default they take whatever python3 is on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    home = use_lean_home(master)
    scratch.mkdir(parents=True, exist_ok=True)
    _hush()
    log_settings = files("tidemill.spark") / "log4j2.properties"
    java = f"-Dlog4j2.configurationFile=file:{log_settings} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": f"{java} {java_options(home)}".rstrip(),
        "spark.executor.extraJavaOptions": java,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "tidemill.spark.daemon",
        "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
        "spark.sql.streaming.pollingDelay": "5ms",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "4",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.task.maxFailures": "1",
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _stderr_into(scratch / "spark.log"):
            session = builder.getOrCreate()
            session.sparkContext._accumulatorServer.handle_error = _say_nothing
            return session
    except Exception as error:
        if not _has_java():
            raise UsageError(
                "cannot start Spark: no Java found. Install a JDK 17 or newer (Debian: openjdk-17-jre-headless) "
                "and have java on the PATH, or set JAVA_HOME."
            ) from error
        raise EngineError(
            f"cannot start Spark on master {master!r}: {_reason(error)} Check --spark-master, and what the logs of "
            "the master and the workers say."
        ) from error


def close_session(patience_seconds: float = _JVM_END_SECONDS) -> None:
    """Stop the session and its JVM, if there are any; returns when the JVM has ended. For a process about to end,
    which must not leave a JVM behind that still writes to the folders it was given, or for one whose JVM is dead."""
    from pyspark import SparkContext

    gateway, session = SparkContext._gateway, SparkSession._instantiatedSession
    with suppress(Py4JError, OSError), warnings.catch_warnings():  # the JVM may be gone already
        warnings.simplefilter("ignore", RuntimeWarning)
        if session is not None:
            session.stop()
    # The next session, if any, is to start a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if gateway is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    jvm = getattr(gateway, "proc", None)
    if jvm is not None:
        jvm.stdin.close()  # what the JVM takes as the sign to end
        try:
            jvm.wait(patience_seconds)
        except TimeoutExpired:
            jvm.kill()
            jvm.wait()


def _is_alive() -> bool:
    """Whether the JVM of this process's session answers; True if there is no session."""
    session = SparkSession._instantiatedSession
    try:
        return session is None or not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """The JVM inherits our stderr and greets on it. Give it a file instead; ours comes back at once."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _hush() -> None:
    """What goes wrong between us and the JVM reaches us as exceptions; Py4J would print their tracebacks as well."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)  # some it logs without a name


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _say_nothing(request: object, client_address: object) -> None:
    """In place of a traceback when the JVM's end is noticed by Spark's server for accumulators, which we do not use."""


def _check_reachable(master: str) -> None:
    """Spark itself tries for a minute, and then tells of a stopped context."""
    if not master.startswith("spark://"):
        return
    reason = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _MASTER_ANSWERS_SECONDS).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
    raise EngineError(
        f"cannot reach the Spark master at {master}: {reason}. Check --spark-master, and that the master is running."
    )


def _reason(error: Exception) -> str:
    """The sentence of an exception of the JVM, without its class and stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    found = lines[1] if len(lines) > 1 and lines[0].startswith("An error occurred while calling") else lines[0]
    return found.removeprefix(": ").rpartition("Exception: ")[2].strip().removesuffix(".") + "."


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    places = [home + "/bin"] if home else os.environ.get("PATH", "").split(os.pathsep)
    return any(os.access(os.path.join(place, "java"), os.X_OK) for place in places)
