"""What several commands share: reading values of options, writing a ready-file, noticing a signal."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from tidemill import log
from tidemill.control.config import load_config
from tidemill.errors import UsageError
from tidemill.flow.filter import check_filters
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ts import MAX_TS, Ts, compose

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|spark://[^\s:,]+:\d+(,[^\s:,]+:\d+)*|yarn|k8s://\S+")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}


class Output(StrEnum):
    text = "text"
    json = "json"


def parse_ts(text: str | None, flag: str) -> Ts | None:
    """A ts as people give it: a TSO number, or a time such as 2026-03-01T10:15:00Z."""
    if text is None:
        return None
    if text.isdecimal():
        if not 0 < int(text) < MAX_TS:
            raise UsageError(f"{flag} {text} is not a ts: it must lie between 1 and 2^64-2. Give a TSO or a time.")
        return Ts(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{flag} {text!r} is neither a TSO number nor a time. "
            "Write for example 464613566054400000 or 2026-03-01T10:15:00Z."
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ts = compose(int(moment.timestamp() * 1000))
    if not 0 < ts < MAX_TS:
        raise UsageError(f"{flag} {text} is a time at which no cluster runs. Give one after 1970 and before 4199.")
    return ts


def parse_seconds(text: str) -> float:
    """``200ms``, ``1s``, ``2m`` or a plain number of seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration: write it like 200ms, 1s or 2m")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def spark_master_of(text: str) -> str:
    if not _MASTER.fullmatch(text):
        raise UsageError(f"--spark-master {text!r} is not a Spark master. Use local[2], or spark://HOST:PORT.")
    return text


def zone_of(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder, such as Europe
        raise UsageError(f"--time-zone {name!r} is unknown. Use a name such as UTC or Europe/Berlin.") from error
    return name


def config_of(path: Path | None) -> ChangefeedConfig:
    """What the changefeed's file says, its rules and expressions read once; without a file the defaults."""
    if path is None:
        return ChangefeedConfig(ignore_ineligible_table=True)
    config = load_config(path)
    check_filters(config)
    return config


def configure_log(level: str) -> None:
    if level.lower() not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level {level!r} is unknown. Use debug, info, warning or error.")
    log.configure(level)


class ReadyFile:
    """Tells whoever waits that we serve: the file appears whole or not at all.

    One that an earlier run has left is removed at once, and whether we may write is found out now, not when we serve.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
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


class StopSignal:
    """Set by SIGTERM or Ctrl-C while it is entered. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop.set()

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        return self._stop.wait(seconds)
