"""The Spark session of this process: quiet, small, quick to start, shared by all of its changefeeds.

A process can have one session only. Whoever needs it borrows it; when the last one has given its lease back, the
session is closed, unless it was there before the first one came: then it is somebody else's, and used as it is.
"""

import logging
import os
import re
import shutil
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemill.errors import EngineError, StoppedError, UsageError
from tidemill.spark import jvm
from tidemill.spark.jvm import ShouldStop, never
from tidemill.spark.scratch import process_folder
from tidemill.spark.settings import check_allowed, is_local, resolve

_JVM_END_SECONDS = 20.0
_MASTER_ANSWERS_SECONDS = 5.0
_LOG_NAME = "spark.log"
_SCRATCH = "spark"


class Lease:
    """One user's share of the session. ``release`` it in any case."""

    def __init__(self, master: str | None, conf: Mapping[str, str], log: Path | None, should_stop: ShouldStop) -> None:
        self._master = master
        self._conf = conf
        self._log = log
        self._should_stop = should_stop

    def session(self) -> SparkSession:
        """The session as it is now: another one, should its JVM have died. ``StoppedError`` once ``should_stop``."""
        with _lock:
            if self not in _leases:
                raise StoppedError("the share of the Spark session was given back.")
            return open_session(self._master, conf=self._conf, log=self._log, should_stop=self._should_stop)

    def release(self, patience_seconds: float = _JVM_END_SECONDS) -> None:
        """Once is enough. The last one closes the session, and returns when its JVM has ended; one that somebody
        waits for in vain is ended at once."""
        if not _lock.acquire(timeout=patience_seconds):
            _kill_silent()
            _lock.acquire()
        try:
            if self in _leases:
                _leases.remove(self)
                if not _leases and not _is_kept:
                    close_session(patience_seconds)
        finally:
            _lock.release()


_lock = threading.RLock()
_leases: set[Lease] = set()
_is_kept = False  # whether the session was there before the first lease
_log: Path | None = None
_checked: set[tuple[Any, str | None, frozenset[tuple[str, str]]]] = set()  # who may use the session as it is


def borrow_session(
    master: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
    should_stop: ShouldStop = never,
) -> Lease:
    """A share of the process's session, which is started when it is first used. ``log`` takes what its JVM prints.
    ``master``, ``conf``: what the user says of it; None: whichever it is."""
    global _is_kept
    with _lock:
        if not _leases:
            _is_kept = SparkSession._instantiatedSession is not None
        lease = Lease(master, conf or {}, log, should_stop)
        _leases.add(lease)
        return lease


def session_log() -> Path | None:
    """Where the JVM of the session that was opened last prints to."""
    return _log


def open_session(
    master: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    scratch: Path | None = None,
    log: Path | None = None,
    name: str = "tidemill",
    should_stop: ShouldStop = never,
) -> SparkSession:
    """A session on ``master``, with ``conf``: the one that this process has, unless its JVM is dead. ``scratch`` takes
    Spark's temporary files, by default the folder of this process. Needs a JDK 17 or newer.

    ``StoppedError`` once ``should_stop``, and nothing of a JVM that was being started is left then.
    """
    with _lock:
        if not _is_alive():
            close_session()
        existing = SparkSession._instantiatedSession
        if existing is not None:
            _check_same(existing, master, conf or {})
            return _activated(existing)
        return _activated(_start(master, conf or {}, scratch or process_folder() / _SCRATCH, log, name, should_stop))


def _activated(session: SparkSession) -> SparkSession:
    """The same, made the active one of this thread. A session is started in another, and a thread without an active
    one plans with Spark's defaults in place of the session's settings."""
    assert session._jvm is not None
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    return session


def _start(
    wanted: str | None,
    given: Mapping[str, str],
    scratch: Path,
    log: Path | None,
    name: str,
    should_stop: ShouldStop,
) -> SparkSession:
    global _log
    chosen = resolve(wanted, given, scratch, name)
    master, settings = chosen.master, chosen.conf
    _check_reachable(master)
    scratch.mkdir(parents=True, exist_ok=True)
    _log = log or scratch / _LOG_NAME
    _hush()
    os.environ["PYSPARK_PYTHON"] = chosen.python
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    logged = _log.stat().st_size if _log.exists() else 0
    try:
        if SparkContext._gateway is None:
            SparkContext._ensure_initialized(gateway=jvm.start(settings, _log, should_stop))
        process = getattr(SparkContext._gateway, "proc", None)
        session = jvm.interruptible(builder.getOrCreate, process, should_stop)
        session.sparkContext._accumulatorServer.handle_error = _say_nothing
        return session
    except StoppedError:
        close_session(0.0)
        raise
    except Exception as error:
        trouble = jvm.java_trouble()
        if trouble is not None:
            raise UsageError(
                f"cannot start Spark: {trouble}. Install a JDK 17 or newer (Debian: openjdk-17-jre-headless) "
                "and have java on the PATH, or set JAVA_HOME."
            ) from error
        raise EngineError(
            f"cannot start Spark on master {master!r}: {reason_of_start(error, _log, logged)} Check --spark-master, "
            "--spark-conf, and what the logs of the master and the workers say."
        ) from error


def close_session(patience_seconds: float = _JVM_END_SECONDS) -> None:
    """Stop the session and its JVM, if there are any; returns when the JVM has ended. For a process about to end,
    which must not leave a JVM behind that still writes to the folders it was given, or for one whose JVM is dead."""
    gateway, session = SparkContext._gateway, SparkSession._instantiatedSession
    process = getattr(gateway, "proc", None)
    if gateway is not None and (process is None or process.poll() is None):
        _stop(session, gateway, process, patience_seconds)
    _checked.clear()
    # The next session, if any, is to start a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if process is not None:
        jvm.end(process, 0.0)
    shutil.rmtree(process_folder() / _SCRATCH, ignore_errors=True)


def _stop(session: SparkSession | None, gateway: Any, process: jvm.Process | None, patience_seconds: float) -> None:
    """Ask the JVM to end, in a thread of its own: it may not answer."""

    def ask() -> None:
        with suppress(Py4JError, OSError), warnings.catch_warnings():  # the JVM may go meanwhile
            warnings.simplefilter("ignore", RuntimeWarning)
            if session is not None:
                session.stop()
        with suppress(Py4JError, OSError):
            gateway.shutdown()
        if process is not None:
            jvm.end(process, patience_seconds)

    asking = threading.Thread(target=ask, name="spark-stop", daemon=True)
    asking.start()
    asking.join(patience_seconds)


def _kill_silent() -> None:
    """End a JVM that does not answer: whoever waits for it, with the lock held, hears of its end."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        jvm.kill(process)


def _is_alive() -> bool:
    """Whether the JVM of this process's session answers; True if there is no session."""
    session = SparkSession._instantiatedSession
    try:
        return session is None or not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _hush() -> None:
    """What goes wrong between us and the JVM reaches us as exceptions; Py4J would print their tracebacks as well."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)  # some it logs without a name


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _say_nothing(request: object, client_address: object) -> None:
    """In place of a traceback when the JVM's end is noticed by Spark's server for accumulators, which we do not use."""


def _check_same(session: SparkSession, wanted: str | None, conf: Mapping[str, str]) -> None:
    """How many threads a local one has matters to nobody; where the work is done does. Asked for each batch, so the JVM
    is not asked each time."""
    asked = session, wanted, frozenset(conf.items())
    if asked in _checked:
        return
    context = session.sparkContext
    running, settings = context.master, context._conf  # not a copy: that would ask the JVM for each of its settings
    if wanted is not None and running != wanted and not (is_local(running) and is_local(wanted)):
        raise UsageError(
            f"cannot use Spark on master {wanted!r}: this process has a session on {running!r}, and it can have only "
            "one. Use the same master for all changefeeds of a process, or another process."
        )
    differing = [key for key, value in conf.items() if settings.get(key) != value]
    if differing:
        raise UsageError(
            f"cannot use Spark with another value of {', '.join(sorted(differing))}: this process has a session, and "
            "it can have only one. Use the same settings for all changefeeds of a process, or another process."
        )
    # Of a session that the user has built: one that may try a task again is well, since the second attempt refuses to
    # write (``task``); one that always starts two copies would never complete a batch.
    check_allowed({"spark.speculation": settings.get("spark.speculation", "false")}, "the Spark session")
    _checked.add(asked)


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


def reason_of_start(error: Exception, log: Path, logged: int) -> str:
    """The sentence of what ended a start, without classes and stacks: the JVM's exception with what caused it. Where it
    ended before it could be asked, what it has written into its log, behind the first ``logged`` bytes."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text and log.exists():
        said = log.read_bytes()[logged:].decode(errors="replace")
        found = re.search(r"(?:Exception|Error)(?: in [^:\n]*)?: (.+)", said)
        return _sentence(found[1]) if found else _sentence(text.splitlines()[0])
    lines = [line for line in text.splitlines() if line.strip()]
    found_line = lines[1] if len(lines) > 1 and lines[0].startswith("An error occurred while calling") else lines[0]
    reason = _sentence(found_line.removeprefix(": ").rpartition("Exception: ")[2])
    causes = re.findall(r"^Caused by: [\w.$]+: (.+)", text, re.MULTILINE)
    if causes and causes[-1].strip() not in reason:
        return f"{reason.removesuffix('.')} ({causes[-1].strip().removesuffix('.')})."
    return reason


def _sentence(text: str) -> str:
    return text.strip().removesuffix(".") + "."
