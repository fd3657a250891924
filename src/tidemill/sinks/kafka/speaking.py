"""What protocols want of the sink beside sending: their topic, the changefeed's time zone, a place for large messages,
and the schemas of tables, which some tell by messages of their own.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkError
from tidemill.flow.encoder import Avro, Debezium, RawAvro
from tidemill.flow.encoder.port import (
    BootstrapProtocol,
    ChangefeedProtocol,
    ClaimCheckProtocol,
    QueueEncoder,
    QueueProtocol,
    Store,
    TopicProtocol,
)
from tidemill.model.table import TableInfo
from tidemill.sinks.files.storage import StorageOptions, parse_storage
from tidemill.sinks.kafka.topics import Topic

_MOST_TABLES: Final = 10_000  # whose last bootstrap is remembered


def of_changefeed(protocol: QueueProtocol, zone: str) -> QueueProtocol:
    if isinstance(protocol, Debezium):
        return replace(protocol, time_zone=zone)
    return protocol.of_changefeed(zone) if isinstance(protocol, ChangefeedProtocol) else protocol


def check(protocol: QueueProtocol) -> None:
    """Whether others that the protocol needs are there. Raises SinkError."""
    if isinstance(protocol, Avro | RawAvro):
        protocol.registry.check()


def in_topic(protocol: QueueProtocol, topic: Topic) -> QueueProtocol:
    """The protocol as it is spoken in one topic, with messages of at most as many bytes as that takes."""
    if hasattr(protocol, "max_message_bytes"):
        # Protocols are dataclasses; which fields one has is its own affair.
        protocol = replace(protocol, max_message_bytes=topic.most_bytes)  # type: ignore[type-var]
    return protocol.for_topic(topic.name) if isinstance(protocol, TopicProtocol) else protocol


def encoder_of(protocol: QueueProtocol, built_ms: int) -> QueueEncoder:
    if isinstance(protocol, ClaimCheckProtocol) and protocol.has_claim_checks:
        return protocol.encoder(built_ms, claim_store(protocol.claim_check_storage_uri))
    return protocol.encoder(built_ms)


def claim_store(uri: str) -> Store:
    """Where large messages are kept, each in a file of its own: a folder or a bucket. Runs on executors."""
    options = parse_storage(uri)
    return lambda name, content: _keep(options, name, content)


def _keep(options: StorageOptions, name: str, content: bytes) -> None:
    try:
        if options.is_s3:
            with options.filesystem().open_output_stream(f"{options.root}/{name}") as stream:
                stream.write(content)
            return
        folder = Path(options.root)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SinkError(
            f"cannot keep a large message in {options.shown}: {error.strerror or error}. Check claim-check-storage-uri "
            "and its rights."
        ) from error


@dataclass(slots=True)
class _Sent:
    at_seconds: float
    rows: int = 0


@dataclass(slots=True)
class Bootstrapping:
    """When the schema of a table is due again, as far as this process knows. Another one may send it once more."""

    _last: dict[Any, _Sent] = field(default_factory=dict)

    def due(self, protocol: QueueProtocol, topic: Topic, table: TableInfo, rows: int) -> bool:
        """Whether it goes before the next ``rows`` rows of the table."""
        wanted = protocol.bootstraps if isinstance(protocol, BootstrapProtocol) else None
        if wanted is None:
            return False
        now, place = SYSTEM_CLOCK.monotonic(), (topic, table)
        last = self._last.get(place)
        if last is not None and now - last.at_seconds < wanted.interval_seconds and last.rows + rows <= wanted.rows:
            last.rows += rows
            return False
        if len(self._last) >= _MOST_TABLES:
            self._last.clear()
        self._last[place] = _Sent(now, rows)
        return True


BOOTSTRAPPING: Final = Bootstrapping()
