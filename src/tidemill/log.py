"""Log lines as operational events: a stable message and typed fields.

    log = get_logger("puller")
    log.info("region relocated", region=7, reason="not leader")

One line per event on stderr or in a file: time, level, part, message, then ``key=value`` pairs; or all of it as JSON.
What runs in a ``context_of`` fields, such as a changefeed's name, has them in every line.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final, TextIO

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_EVENT, _VALUES = "tidemill_event", "tidemill_values"  # of a line, as it was before it became text
_FIELDS: Final[ContextVar[Mapping[str, Any]]] = ContextVar("fields")  # of every line that is written in a context


class Logger:
    """A named logger with bound fields. Cheap to bind; shares the standard library's handlers."""

    def __init__(self, name: str, fields: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._log = logging.getLogger(f"tidemill.{name}")
        self._fields = dict(fields or {})

    def bind(self, **fields: Any) -> "Logger":
        return Logger(self._name, {**self._fields, **fields})

    def debug(self, message: str, **fields: Any) -> None:
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._emit(logging.ERROR, message, fields)

    def _emit(self, level: int, message: str, fields: Mapping[str, Any]) -> None:
        if self._log.isEnabledFor(level):
            known = {**_FIELDS.get({}), **self._fields, **fields}
            pairs = "".join(f" {name}={_show(value)}" for name, value in known.items())
            self._log.log(level, "%s%s", message, pairs, extra={_EVENT: message, _VALUES: known})


def get_logger(name: str) -> Logger:
    return Logger(name)


def context_of(**fields: Any) -> Context:
    """A context in which every line has these fields: ``context.run(…)``, and the tasks that are made in there."""
    context = copy_context()
    context.run(lambda: _FIELDS.set({**_FIELDS.get({}), **fields}))
    return context


class Format(StrEnum):
    text = "text"
    json = "json"


def configure(level: str = "info", file: Path | None = None, form: Format = Format.text) -> None:
    """Send our lines to stderr, or append them to ``file``. Called once by a command, never on import.

    A file that was moved away, as logrotate does, is opened anew. Raises OSError where it cannot be written.
    """
    handler: logging.Handler = _Stderr() if file is None else WatchedFileHandler(file, encoding="utf-8")
    handler.setFormatter(_Json() if form is Format.json else logging.Formatter(_TEXT))
    root = logging.getLogger("tidemill")
    former, root.handlers[:] = root.handlers[:], [handler]
    for each in former:
        each.close()
    root.setLevel(level.upper())
    root.propagate = False


class _Stderr(logging.StreamHandler[TextIO]):
    """The stderr of the moment: a live line of progress stands in front of the real one, and puts ours above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # looked up, where the library has an attribute
        return sys.stderr


class _Json(logging.Formatter):
    """One object per line: time, level, part, message, and the fields by their names."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": record.name,
            "message": getattr(record, _EVENT, None) or record.getMessage(),
        }
        values: Mapping[str, Any] = getattr(record, _VALUES, {})
        # A field of one of those names would hide it.
        document |= {f"{name}_" if name in document else name: _plain(value) for name, value in values.items()}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _show(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    text = str(value)
    return repr(text) if " " in text or text == "" else text
