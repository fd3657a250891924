"""What an executor does for the Kafka sink: the rows of one unit dispatched, encoded, sent and confirmed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tidemill.clock import SYSTEM_CLOCK
from tidemill.columnar.encoded import Encoded
from tidemill.errors import RowTooLargeError
from tidemill.flow.dispatcher import PartitionRule
from tidemill.flow.dispatcher.conflicts import Crossings, key_hashes
from tidemill.flow.dispatcher.partition import Kind
from tidemill.flow.encoder import QueueProtocol
from tidemill.flow.encoder.framing import OVERHEAD
from tidemill.flow.encoder.port import BootstrapProtocol, MeetProtocol, QueueEncoder
from tidemill.flow.filter.rows import without
from tidemill.model.receipt import Receipt, Undecodable
from tidemill.model.row import LargeRows, RowBatch, flat, sliced
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.kafka.generations import NEWEST, Generation
from tidemill.sinks.kafka.speaking import BOOTSTRAPPING, encoder_of, in_topic
from tidemill.sinks.kafka.topics import Topic
from tidemill.sinks.kafka.uri import KafkaOptions

if TYPE_CHECKING:
    from tidemill.sinks.kafka.producer import Sending

_ROWS_AT_ONCE: Final = 8192


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """Where one unit's messages go. Small and picklable: it is sent to an executor."""

    options: KafkaOptions
    table: str  # its name, for messages
    topic: Topic
    rule: PartitionRule
    generation: Generation

    def write(self, rows: Iterator[RowBatch | LargeRows]) -> Receipt:
        """Runs on executors. All messages are confirmed when this returns."""
        from tidemill.sinks.kafka.producer import POOL, send_encoded

        topic, built_ms = self.topic, int(SYSTEM_CLOCK.now() * 1000)
        NEWEST.meet(self.generation)
        protocol = in_topic(self.options.protocol, topic)
        encoder = encoder_of(protocol, built_ms)
        crossings = Crossings() if self.rule.kind is Kind.CONFLICT else None
        count, size, aside = 0, 0, list[Undecodable]()
        with POOL.sending(self.options, topic.most_bytes, topic.epoch) as sending:
            for batch in _pieces(rows):
                if BOOTSTRAPPING.due(protocol, topic, batch.table, len(batch)):
                    self._bootstrap(sending, protocol, batch.table, built_ms)
                for part, meets_at in self._apart(batch, crossings):
                    if meets_at is not None:
                        self._meet(sending, protocol, meets_at, batch.table)
                    encoded, left = self._encoded(encoder, part, aside)
                    NEWEST.meet(self.generation)
                    send_encoded(sending, topic.name, encoded)
                    size += encoded.payload.size + (encoded.keys.payload.size if encoded.keys is not None else 0)
                    count += left
            sending.confirm(topic.name)
        NEWEST.meet(self.generation)
        detail = {"topic": topic.name, "partitions": topic.partitions}
        return Receipt("", 0, 0, count, size, detail, aside=tuple(aside))

    def share(self, number: int) -> "KafkaTarget":
        return self

    def _encoded(self, encoder: QueueEncoder, rows: RowBatch, aside: list[Undecodable]) -> tuple[Encoded, int]:
        """And of how many rows. What is too large goes into ``aside``, where that is wanted."""
        while True:
            try:
                encoded = encoder.encode(rows, self.rule.partitions(rows, self.topic.partitions))
                self._check_sizes(encoded)
                return encoded, len(rows)
            except RowTooLargeError as error:
                if self.options.on_too_large != "quarantine":
                    raise
                aside += self._left_out(rows, error)
                is_out = np.zeros(len(rows), np.bool_)
                is_out[list(error.messages)] = True
                rows = without(rows, is_out)

    def _left_out(self, rows: RowBatch, error: RowTooLargeError) -> Iterator[Undecodable]:
        for place, (key, value) in error.messages.items():
            start_ts, commit_ts = int(rows.start_ts[place]), int(rows.commit_ts[place])
            why = f"its message has {len(key or b'') + len(value)} bytes, more than topic {self.topic.name} takes"
            yield Undecodable(self.table, rows.physical_id, key or b"", start_ts, commit_ts, value, b"", None, why)

    def _apart(self, rows: RowBatch, crossings: Crossings | None) -> Iterator[tuple[RowBatch, Ts | None]]:
        """What goes out together, and the ts at which readers meet before it."""
        if crossings is None:
            yield rows, None
            return
        partitions = self.rule.partitions(rows, self.topic.partitions)
        meetings = crossings.meetings(key_hashes(rows), partitions, rows.commit_ts)
        bounds = [int(np.searchsorted(rows.commit_ts, np.uint64(at), "right")) for at in meetings]
        if not bounds or bounds[0] > 0:
            yield sliced(rows, 0, bounds[0] if bounds else len(rows)), None
        for at, first, end in zip(meetings, bounds, [*bounds[1:], len(rows)], strict=True):
            yield sliced(rows, first, end), at

    def _meet(self, sending: "Sending", protocol: QueueProtocol, at: Ts, table: TableInfo) -> None:
        assert isinstance(protocol, MeetProtocol)
        message = protocol.meet(at, table.schema, table.name)
        for partition in range(self.topic.partitions):
            sending.send(self.topic.name, partition, [{"value": message.value, "key": message.key}])

    def _bootstrap(self, sending: "Sending", protocol: QueueProtocol, table: TableInfo, built_ms: int) -> None:
        assert isinstance(protocol, BootstrapProtocol)
        message, wanted = protocol.bootstrap(table, built_ms), protocol.bootstraps
        partitions = self.topic.partitions if wanted is not None and wanted.to_all_partitions else 1
        for partition in range(partitions):
            sending.send(self.topic.name, partition, [{"value": message.value, "key": message.key}])

    def _check_sizes(self, encoded: Encoded) -> None:
        sizes = np.diff(encoded.ends, prepend=0) + OVERHEAD
        if encoded.keys is not None:
            sizes = sizes + np.diff(encoded.keys.ends, prepend=0)
        over = np.flatnonzero(sizes > self.topic.most_bytes)
        if len(over):  # a message of one row: whoever puts several into one knows the limit
            keys, values = encoded.message_keys(), encoded.messages()
            raise RowTooLargeError(
                f"a row of table {self.table} becomes a message of {int(sizes.max())} bytes, above the limit of topic "
                f"{self.topic.name!r} ({self.topic.most_bytes}). Raise max-message-bytes in the sink URI and "
                "max.message.bytes of the topic, or leave the table's large columns out, or set "
                "on-too-large=quarantine.",
                {place: (keys[place] if keys is not None else None, values[place]) for place in over.tolist()},
            )


def _pieces(rows: Iterator[RowBatch | LargeRows]) -> Iterator[RowBatch]:
    """Of a size at which messages many times as large as their rows do not fill the memory."""
    for batch in flat(rows):
        for first in range(0, len(batch), _ROWS_AT_ONCE):
            whole = len(batch) <= _ROWS_AT_ONCE
            yield batch if whole else sliced(batch, first, min(first + _ROWS_AT_ONCE, len(batch)))
