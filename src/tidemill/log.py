"""Log lines as operational events: a stable message and typed fields.

    log = get_logger("puller")
    log.info("region relocated", region=7, reason="not leader")

One line per event on stderr: time, level, part, message, then ``key=value`` pairs. What runs in a ``context_of``
fields, such as a changefeed's name, has them in every line.
"""

import logging
import sys
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

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
            self._log.log(level, "%s%s", message, pairs)


def get_logger(name: str) -> Logger:
    return Logger(name)


def context_of(**fields: Any) -> Context:
    """A context in which every line has these fields: ``context.run(…)``, and the tasks that are made in there."""
    context = copy_context()
    context.run(lambda: _FIELDS.set({**_FIELDS.get({}), **fields}))
    return context


def configure(level: str = "info") -> None:
    """Send our lines to stderr. Called once by a command, never on import."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger("tidemill")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _show(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    text = str(value)
    return repr(text) if " " in text or text == "" else text
