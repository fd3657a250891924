"""What Spark is started with: the user's settings, and ours for what the user has left open.

    --spark-conf  ─►  PYSPARK_SUBMIT_ARGS  ─►  spark-defaults.conf  ─►  ours       the first that says something wins

A few are not the user's, since rows would be written twice otherwise (``REQUIRED``): others than ours are refused.

Ours are for a JVM that only plans and schedules, while rows stay in Python workers: little memory, and only the quick
compiler, which saves several CPU-seconds of every start. They differ by where the workers are. On this machine they
reach the driver over loopback, and run this interpreter. Elsewhere they get an address that leads here, and may have an
interpreter of their own.
"""

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark.find_spark_home import _find_spark_home

from tidemill.errors import UsageError
from tidemill.spark.classes import java_options
from tidemill.spark.home import use_lean_home
from tidemill.spark.scratch import process_folder

DEFAULT_MASTER: Final = "local[2]"
FLIGHT: Final = "spark.tidemill.flight.enabled"  # serve segments by Arrow Flight also where workers may see the files
FLIGHT_PORT: Final = "spark.tidemill.flight.port"
SMALL_ROWS: Final = "spark.tidemill.small.rows"  # up to so many a batch needs no job, where the sink's trait allows it

# A JVM takes a sixty-fourth of the machine's memory for its heap to begin with, and lets new objects fill a third of it
# before it looks for those that are still needed: hundreds of megabytes for one that needs fifty.
_SMALL_JVM: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m -Xms64m -Xmn24m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
)
_ONCE = (
    "a task that Spark runs again by itself would write beside its first attempt. Tidemill takes the batch back and "
    "begins it again instead"
)
REQUIRED: Final[Mapping[str, tuple[str, str]]] = {
    "spark.task.maxFailures": ("1", _ONCE),
    "spark.stage.maxConsecutiveAttempts": ("1", _ONCE),
    "spark.speculation": ("false", "the second copy of a task would write beside the first"),
    "spark.python.daemon.module": ("tidemill.spark.daemon", "it loads what workers need and gives files their rights"),
    "spark.submit.deployMode": ("client", "this process is Spark's driver"),
}
_REFUSED: Final = {
    "spark.remote": "Tidemill's tasks cannot be sent through Spark Connect. Give the cluster's own master",
    "spark.api.mode": "Tidemill's tasks cannot be sent through Spark Connect",
}
_FLAGS: Final = {  # of spark-submit, for what they set
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--executor-memory": "spark.executor.memory",
}
_PYTHON, _LOCAL_IP, _LOCAL_NAME = "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"
_SOCKET_NAME_BYTES, _MOST_SOCKET_PATH_BYTES = len("/.") + 36 + len(".sock"), 103  # macOS has the shortest paths
_WORKERS_PYTHON = os.environ.get(_PYTHON)  # the user's: sessions change it
_KEY = re.compile(r"spark\.[^\s=]+")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What to start Spark with. ``conf`` is what we tell it; what it finds by itself is not in there."""

    master: str
    conf: Mapping[str, str]
    python: str  # of the workers


def read_conf(texts: list[str] | None, flag: str = "--spark-conf") -> dict[str, str]:
    """Settings as people give them, each K=V. Raises UsageError, which names the one that is wrong."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        key = key.strip()
        if not sign or not _KEY.fullmatch(key):
            shown = key or text
            raise UsageError(f"{flag} {shown!r} is not a setting of Spark. Write spark.NAME=VALUE.")
        if key in found and found[key] != value:
            raise UsageError(f"{flag} {key} is given twice, with different values. Keep one of them.")
        found[key] = value.strip()
    check_allowed(found, flag)
    return found


def check_allowed(settings: Mapping[str, str], where: str) -> None:
    """Refuse what would break the promise that each change is written once."""
    for key, (value, reason) in REQUIRED.items():
        given = settings.get(key, value)
        if given.strip().lower() != value:
            raise UsageError(f"{where} sets {key} to {given!r}, which has to be {value!r}: {reason}. Take it out.")
    for key, reason in _REFUSED.items():
        if settings.get(key, "classic") != "classic":
            raise UsageError(f"{where} sets {key}: {reason}.")


def resolve(master: str | None, given: Mapping[str, str], scratch: Path, name: str) -> Resolved:
    """``master`` and ``given`` are what the user asked for here; environment and ``spark-defaults.conf`` add to it."""
    found: dict[str, str] = {}
    for where, settings in _around():
        check_allowed(settings, where)
        found |= settings
    if master is not None and given.get("spark.master", master) != master:
        raise UsageError("--spark-master and --spark-conf spark.master name different masters. Keep one of them.")
    found |= given
    chosen = master or found.get("spark.master") or DEFAULT_MASTER
    python, java = _python(chosen, found), f"{_java()} {java_options(use_lean_home(chosen))}".rstrip()
    ours = {
        "spark.app.name": name,
        "spark.driver.extraJavaOptions": java,
        "spark.executorEnv.PYSPARK_PYTHON": python,
        **_always(scratch),
        **(_near() if is_local(chosen) else _far(chosen)),
    }
    conf = {key: value for key, value in ours.items() if key not in found}
    conf |= {**given, **{key: value for key, (value, _) in REQUIRED.items()}, "spark.master": chosen}
    return Resolved(chosen, conf, python)


def is_local(master: str) -> bool:
    """Whether Spark's workers are processes of this machine, with its loopback and its files."""
    return master == "local" or master.startswith("local[")


def _always(scratch: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.worker.reuse": "true",
        "spark.scheduler.mode": "FAIR",  # among the changefeeds of this process
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    }


def _near() -> dict[str, str]:
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    # What goes to a Python worker is written in pieces. Over TCP, the second one waits until the kernel acknowledges
    # the first: 40 ms of each batch. And who may reach a socket is said by the rights of its folder.
    sockets = str(process_folder())
    if len(os.fsencode(sockets)) + _SOCKET_NAME_BYTES <= _MOST_SOCKET_PATH_BYTES:
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = sockets
    return settings


def _far(master: str) -> dict[str, str]:
    settings = {"spark.executor.extraJavaOptions": _SMALL_JVM}
    if not master.startswith("spark://"):
        # Where each executor is confined to what it asks for: its Python workers are none of the JVM's memory.
        settings["spark.executor.memoryOverhead"] = "2g"
    if not {_LOCAL_IP, _LOCAL_NAME} & set(os.environ):
        address = _address_towards(master)
        if address is not None:
            settings["spark.driver.host"] = address
    return settings


def _java() -> str:
    log_settings = files("tidemill.spark") / "log4j2.properties"
    return f"-Dlog4j2.configurationFile=file:{log_settings} {_SMALL_JVM}"


def _python(master: str, found: Mapping[str, str]) -> str:
    """Of the workers: by default they would take whatever python3 is on their path."""
    if "spark.pyspark.python" in found:
        return found["spark.pyspark.python"]
    return sys.executable if is_local(master) or _WORKERS_PYTHON is None else _WORKERS_PYTHON


def _address_towards(master: str) -> str | None:
    """This machine's, as the cluster's own machines see it; None: Spark is to find one."""
    if master.partition("://")[0] not in ("spark", "k8s"):
        return None  # YARN's is in files of Hadoop's own
    text = master.removeprefix("k8s://").split(",")[0]
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing: it only looks up the way
                host: str = probe.getsockname()[0]
                return f"[{host}]" if family == socket.AF_INET6 else host
    except (OSError, ValueError):
        return None
    return None


# What lies around on the machine, the weakest first.


def _around() -> list[tuple[str, dict[str, str]]]:
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    named = _value_of(words, "--properties-file")
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    file = Path(named) if named is not None else Path(folder) / "spark-defaults.conf"
    found = [(str(file), _read_properties(file)), ("PYSPARK_SUBMIT_ARGS", _read_flags(words))]
    if "SPARK_REMOTE" in os.environ:
        found.append(("the environment's SPARK_REMOTE", {"spark.remote": os.environ["SPARK_REMOTE"]}))
    return found


def _read_flags(words: list[str]) -> dict[str, str]:
    found = {key: value for flag, key in _FLAGS.items() if (value := _value_of(words, flag)) is not None}
    for at, word in enumerate(words):
        if word in ("--conf", "-c") and at + 1 < len(words):
            key, _, value = words[at + 1].partition("=")
            found[key] = value
        elif word.startswith("--conf="):
            key, _, value = word.removeprefix("--conf=").partition("=")
            found[key] = value
    return found


def _value_of(words: list[str], flag: str) -> str | None:
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _read_properties(file: Path) -> dict[str, str]:
    """Java's form of settings, as far as Spark's own examples go: a key, then a blank, ``=`` or ``:``, then a value."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read Spark's settings in {file}: {reason}. Check the file and its rights.") from error
    found: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        parts = re.fullmatch(r"\s*(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*", line)
        if parts is not None:
            found[parts[1]] = parts[2]
    return found
