"""What several commands share: reading a ts, writing a ready-file, noticing a signal."""

import os
import signal
import threading
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from tidemill.errors import UsageError
from tidemill.model.ts import MAX_TS, Ts, compose


class Output(StrEnum):
    text = "text"
    json = "json"


def parse_ts(text: str | None, flag: str) -> Ts | None:
    """A ts as people give it: a TSO number, or a time such as 2026-03-01T10:15:00Z."""
    if text is None:
        return None
    if text.isdecimal():
        ts = Ts(int(text))
        if not 0 < ts < MAX_TS:
            raise UsageError(f"{flag} {text} is not a ts: it must lie between 1 and 2^64-2. Give a TSO or a time.")
        return ts
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{flag} {text!r} is neither a TSO number nor a time. "
            "Write for example 464613566054400000 or 2026-03-01T10:15:00Z."
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
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
    """Set by SIGTERM or Ctrl-C. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop.set()

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        return self._stop.wait(seconds)
