"""Messages in, downstream out; and back: what is durable.

parse_sink_uri(uri) ─► SinkConfig ─► open_sink ─► FileSink | BlackholeSink      (driver)
                                       │ target, one a unit of a batch
                                       ▼
                        write(target, messages) ─► Receipt                  (executor)
                                       │ receipts
                                       ▼
                        commit ─► state, made durable by the caller ─► publish  (driver)
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from typing import Any

from tidemill.flow.encoder import Encoded
from tidemill.flow.sink.blackhole import BlackholeSink, BlackholeTarget, drop_messages
from tidemill.flow.sink.files import FileSink, FileTarget, write_files
from tidemill.flow.sink.receipt import Receipt
from tidemill.flow.sink.surface import Sink
from tidemill.flow.sink.uri import DateSeparator, Scheme, SinkConfig, parse_sink_uri, safe_uri
from tidemill.model.ts import Ts

Target = FileTarget | BlackholeTarget


def open_sink(
    config: SinkConfig, state: Mapping[str, Any] | None, *, start_ts: Ts | None = None, zone: tzinfo = UTC
) -> Sink:
    """Runs on the driver. ``state`` is what the sink's ``commit`` returned last; None for a new changefeed."""
    match config.scheme:
        case Scheme.FILE:
            return FileSink(config, state, start_ts=start_ts, zone=zone)
        case Scheme.BLACKHOLE:
            return BlackholeSink(state)


def write(target: Target, encoded: Iterator[Encoded]) -> Receipt:
    """Runs on executors: hand all messages of a unit to its target; returns when they are durable."""
    match target:
        case FileTarget():
            return write_files(target, encoded)
        case BlackholeTarget():
            return drop_messages(target, encoded)


__all__ = [
    "BlackholeSink",
    "BlackholeTarget",
    "DateSeparator",
    "FileSink",
    "FileTarget",
    "Receipt",
    "Scheme",
    "Sink",
    "SinkConfig",
    "Target",
    "open_sink",
    "parse_sink_uri",
    "safe_uri",
    "write",
    "write_files",
]
