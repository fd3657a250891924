"""What several commands share: reading values of options, writing a ready-file."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
import typer

from tidemill import log
from tidemill.clock import SYSTEM_CLOCK
from tidemill.config.changefeed import load_config
from tidemill.config.values import seconds_of
from tidemill.errors import UsageError
from tidemill.model.address import read_address
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.moments import shortened, ts_of
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts
from tidemill.upstream.tls import context_of

if TYPE_CHECKING:
    from rich.console import Console

_MASTER = re.compile(
    r"local(\[([1-9][0-9]{0,3}|\*)(,[1-9][0-9]{0,3})?\])?|spark://[^\s:,]+:[0-9]+(,[^\s:,]+:[0-9]+)*|yarn|k8s://\S+"
)
_NAME = re.compile("[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
_LONGEST_NAME = 128


class Output(StrEnum):
    text = "text"
    json = "json"


def parse_ts(text: str | None, flag: str) -> Ts | None:
    """A ts as people give it: a TSO, a time such as 2026-03-01T10:15:00Z, or ``now`` and ``-15m`` by our own clock."""
    if text is None:
        return None
    try:
        return ts_of(text, SYSTEM_CLOCK.now())
    except ValueError as wrong:
        raise UsageError(f"{flag} {shortened(text)} {wrong}") from None


def parse_seconds(text: str) -> float:
    """``200ms``, ``1m30s`` or a plain number of seconds."""
    text = text.strip()
    try:
        return seconds_of(f"{text}s" if text[-1:].isdigit() else text)
    except ValueError as wanted:
        raise UsageError(f"{shortened(text)!r} is not a duration that can be used: it must be {wanted}") from None


# Options of every command that runs work on Spark.
SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        help="local[N], spark://HOST:PORT, yarn or k8s://URL. Default: as Spark's own settings say, else local[2].",
    ),
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf", help="A setting of Spark, as in spark.driver.memory=2g; may be given again.", metavar="K=V"
    ),
]


def spark_master_of(text: str | None) -> str | None:
    if text is None:
        return None
    wanted = "Use local[2], spark://HOST:PORT, yarn or k8s://URL."
    if not _MASTER.fullmatch(text):
        raise UsageError(f"--spark-master {text!r} is not a Spark master. {wanted}")
    for address in text.removeprefix("spark://").split(",") if text.startswith("spark://") else ():
        try:
            read_address(address)
        except ValueError as error:
            raise UsageError(f"--spark-master {text!r} {error}. {wanted}") from None
    return text


def spark_conf_of(texts: list[str] | None) -> dict[str, str]:
    """What is wrong with them is refused before anything is done."""
    if not texts:
        return {}  # and nothing of Spark is loaded for it
    from tidemill.spark.settings import read_conf

    conf = read_conf(texts)
    spark_master_of(conf.get("spark.master"))
    return conf


def zone_of(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder, such as Europe
        raise UsageError(f"--time-zone {name!r} is unknown. Use a name such as UTC or Europe/Berlin.") from error
    return name


def config_of(path: Path | None) -> ChangefeedConfig:
    """What the changefeed's file says, its rules and expressions read once; without a file the defaults."""
    if path is None:
        return ChangefeedConfig()
    from tidemill.flow.encoder import protocol_keys  # late: they bring the compiler along
    from tidemill.flow.filter import check_filters

    config = load_config(path, protocol_keys())
    check_filters(config)
    return config


# Options of every command that dials PD.
Ca = Annotated[
    str, typer.Option("--ca", help="File with the certificate of the cluster's authority: connect over TLS.")
]
Cert = Annotated[str, typer.Option("--cert", help="File with our own certificate, where the cluster wants one.")]
KeyFile = Annotated[str, typer.Option("--key", help="File with the key of our own certificate.")]


def security_of(ca: str, cert: str, key: str, config: ChangefeedConfig | None = None) -> Security:
    """The flags, or else what the changefeed's file says. Files that cannot be used are refused here."""
    security = Security(ca, cert, key)
    if security == PLAIN and config is not None:
        security = config.security
    if security.is_tls:
        context_of(security)
    return security


# The sink URI may hold a password, and anybody may look at a command line.
SINK_URI_VARIABLE = "TIDEMILL_SINK_URI"
_HOLD_SINK_URIS = (SINK_URI_VARIABLE, "TIDEMILL_TO")  # the latter is that of tidemill consume


def sink_uri_of(text: str) -> str:
    """The URI, or with ``@FILE`` what the file holds. The environment loses it, so that no child process gets it."""
    for variable in _HOLD_SINK_URIS:
        os.environ.pop(variable, None)
    if not text.startswith("@"):
        return text.strip()
    try:
        found = Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read the sink URI from {text[1:]}: {reason}. Check the path and its rights."
        ) from None
    if not found or len(found.splitlines()) > 1:
        raise UsageError(f"{text[1:]} does not hold a sink URI: it must be the file's one line.")
    return found


def name_of(text: str, flag: str = "--changefeed-id") -> str:
    """A changefeed's name, as TiCDC allows it, or another one alike."""
    if _NAME.fullmatch(text) is None or len(text) > _LONGEST_NAME:
        raise UsageError(
            f"{flag} {shortened(text)!r} is not a name. Use letters and digits, with hyphens between them, "
            f"{_LONGEST_NAME} characters at most."
        )
    return text


LOG_FILE = "--log-file"


@dataclass(slots=True)
class _LogPlace:
    """Where log lines go and how they look: two options that every command with a --log-level has (``commands``)."""

    file: Path | None = None
    form: log.Format = log.Format.text


log_place = _LogPlace()


def configure_log(level: str) -> None:
    if level.lower() not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level {level!r} is unknown. Use debug, info, warning or error.")
    try:
        log.configure(level, log_place.file, log_place.form)
    except OSError as error:
        raise UsageError(
            f"cannot write {LOG_FILE} {log_place.file}: {error.strerror}. Choose a file that you may write."
        ) from None


def told() -> "Console":
    """stderr, for lines that may quote paths, names and errors of others: nothing in them is an order to the console,
    where ``[/data]`` would end a style that nobody has begun."""
    from rich.console import Console

    return Console(stderr=True, markup=False, emoji=False)


class ReadyFile:
    """Tells whoever waits that we serve: the file appears whole or not at all.

    One that an earlier run has left is removed at once, and whether we may write is found out now, not when we serve.
    What is no file is left alone: to remove /dev/null would hurt everybody on the machine.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            if path.exists() and not path.is_file():
                raise UsageError(f"--ready-file {path} is no file, and is not replaced. Name one that may be.")
            with self._explained(path):
                path.unlink(missing_ok=True)
                self._aside(path).write_bytes(b"")
                self._aside(path).unlink()

    def write(self, document: dict[str, Any]) -> None:
        if self._path is not None:
            with self._explained(self._path):
                self._aside(self._path).write_bytes(orjson.dumps(document) + b"\n")
                self._aside(self._path).replace(self._path)

    @staticmethod
    def _aside(path: Path) -> Path:
        return path.with_name(f".{path.name}.{os.getpid()}")

    @staticmethod
    @contextmanager
    def _explained(path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"cannot write --ready-file {path}: {error.strerror}. Choose a folder that you may write to."
            ) from error
