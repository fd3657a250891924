"""What several commands share: reading a ts, writing a ready-file, noticing a signal."""

import os
import signal
import threading
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, Self

import orjson

from tidemill.errors import UsageError
from tidemill.model.ts import Ts, compose

_EARLIEST = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
_LAST_TS = compose(int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000))


class Output(StrEnum):
    text = "text"
    json = "json"


def parse_ts(text: str | None, flag: str) -> Ts | None:
    """A ts as people give it: a TSO number, or a time such as 2026-03-01T10:15:00Z."""
    if text is None:
        return None
    if text.isdecimal():
        if not 0 < int(text) <= _LAST_TS:
            raise UsageError(
                f"{flag} {text} is not a ts: it must lie between 1 and {_LAST_TS} (the year 9999). Give a TSO, "
                "as 'select tidb_current_ts()' shows it, or a time."
            )
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
    if moment < _EARLIEST:
        raise UsageError(f"{flag} {text} lies before 1970, when no cluster ran. Give a TSO or a later time.")
    return compose(int(moment.timestamp() * 1000))


def write_ready_file(path: Path | None, document: dict[str, Any]) -> None:
    """Tell whoever waits that we serve: the file appears whole or not at all."""
    if path is None:
        return
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_bytes(orjson.dumps(document) + b"\n")
        os.replace(aside, path)
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
