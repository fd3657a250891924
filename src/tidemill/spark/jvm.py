"""Spark's JVM as a process of ours: started so that it can be given up half-way, ended with all that it started.

PySpark starts it in our own process group, where Ctrl-C in a terminal reaches the Python workers and ends the batch at
hand, and it waits for it where nothing can interrupt it. So we start ``spark-submit`` ourselves, in a session of its
own, and hand PySpark the port at which the JVM answers, as Spark does with its own Python drivers. The JVM ends when
its stdin is closed, and so with us, however we end.
"""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from tidemill.errors import StoppedError
from tidemill.private import open_private, private_children
from tidemill.spark.scratch import process_folder

T = TypeVar("T")
Process = subprocess.Popen[bytes]
ShouldStop = Callable[[], bool]

_POLL_SECONDS = 0.05
_OLDEST_JAVA = 17
_ASKING_SECONDS = 30.0
_started: list[Process] = []


def never() -> bool:
    return False


def start(settings: Mapping[str, str], log: Path, should_stop: ShouldStop = never) -> Any:
    """A JVM, as the gateway through which PySpark talks to it; its process is ``proc``. ``log`` takes what it prints.

    ``StoppedError`` once ``should_stop``; nothing of the JVM is left then.
    """
    told = process_folder() / f"port-{secrets.token_hex(4)}"
    process = _spawn(settings, log, told)
    try:
        while not told.exists():  # the JVM renames it into place
            if should_stop():
                raise StoppedError("stopped while Spark was starting.")
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        with told.open("rb") as file:
            port, secret = read_int(file), UTF8Deserializer().loads(file)
        with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            gateway = launch_gateway()  # none is launched: it connects
    except BaseException:
        kill(process)
        raise
    finally:
        told.unlink(missing_ok=True)
    gateway.proc = process
    return gateway


def interruptible(work: Callable[[], T], process: Process | None, should_stop: ShouldStop) -> T:
    """What ``work``, which talks to the JVM and cannot be interrupted, returns. It runs in a thread of its own: so it
    can be given up, which ends the JVM, and PySpark leaves our handlers of signals alone."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="spark-start", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        if should_stop() and thread.is_alive() and process is not None:
            kill(process)
            thread.join()  # it has lost its connection
            raise StoppedError("stopped while Spark was starting.")
    if failure:
        raise failure[0]
    return outcome[0]


def end(process: Process, patience_seconds: float) -> None:
    """Let the JVM end by itself, and kill what is left of it after the patience."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()  # what the JVM takes as the sign to end
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience_seconds)
    kill(process)


def kill(process: Process) -> None:
    """The JVM and every process of its session: without it they have nothing to do. Returns when the JVM has ended."""
    for pid in _members(process.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def kill_all() -> None:
    """Every JVM that this process has started, in whatever phase: for a process that ends at once."""
    for process in _started:
        kill(process)


def _members(session: int) -> Iterator[int]:
    """Processes of a session. Its number is the JVM's, and is not used again while any of them lives."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(entry.name)) == session:
                yield int(entry.name)


def _spawn(settings: Mapping[str, str], log: Path, told: Path) -> Process:
    *words, resource = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")) or ["pyspark-shell"]
    command = [os.path.join(_find_spark_home(), "bin", "spark-submit"), *words]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]  # the last one counts
    command.append(resource)
    with private_children(), open_private(log, "ab") as output:
        environment = {**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    _started[:] = [*(one for one in _started if one.poll() is None), process]
    return process


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def java_trouble() -> str | None:
    """Why Spark cannot run on the Java that it would start, in some words; None where it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        return f"no Java found in JAVA_HOME ({home})" if home else "no Java found"
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASKING_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"{java} does not run"
    if asked.returncode:
        return f"{java} does not run"  # such as the one of macOS, which only asks for one to be installed
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    if found and int(found[1]) < _OLDEST_JAVA:
        return f"{java} is Java {found[1]}"
    return None
