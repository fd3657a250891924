"""What an executor does for the Kafka sink: the rows of one unit dispatched, encoded, sent and confirmed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tidemill.clock import SYSTEM_CLOCK
from tidemill.columnar.encoded import Encoded
from tidemill.errors import SinkError
from tidemill.flow.dispatcher import PartitionRule
from tidemill.flow.encoder import QueueProtocol
from tidemill.flow.encoder.framing import OVERHEAD
from tidemill.model.receipt import Receipt
from tidemill.model.row import LargeRows, RowBatch, flat
from tidemill.sinks.kafka.generations import NEWEST, Generation
from tidemill.sinks.kafka.topics import Topic
from tidemill.sinks.kafka.uri import KafkaOptions


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

        topic = self.topic
        NEWEST.meet(self.generation)
        encoder = limited(self.options.protocol, topic.most_bytes).encoder(int(SYSTEM_CLOCK.now() * 1000))
        count = size = 0
        with POOL.sending(self.options, topic.most_bytes) as sending:
            for batch in flat(rows):
                if not len(batch):
                    continue
                encoded = encoder.encode(batch, self.rule.partitions(batch, topic.partitions))
                self._check_sizes(encoded)
                NEWEST.meet(self.generation)
                send_encoded(sending, topic.name, encoded)
                count += len(batch)
                size += encoded.payload.size + (encoded.keys.payload.size if encoded.keys is not None else 0)
            sending.confirm(topic.name)
        NEWEST.meet(self.generation)
        detail = {"topic": topic.name, "partitions": topic.partitions}
        return Receipt("", 0, 0, count, size, detail)

    def share(self, number: int) -> "KafkaTarget":
        return self

    def _check_sizes(self, encoded: Encoded) -> None:
        sizes = np.diff(encoded.ends, prepend=0) + OVERHEAD
        if encoded.keys is not None:
            sizes = sizes + np.diff(encoded.keys.ends, prepend=0)
        if len(sizes) and int(sizes.max()) > self.topic.most_bytes:
            raise SinkError(
                f"a row of table {self.table} becomes a message of {int(sizes.max())} bytes, above the limit of topic "
                f"{self.topic.name!r} ({self.topic.most_bytes}). Raise max-message-bytes in the sink URI and "
                "max.message.bytes of the topic, or leave the table's large columns out."
            )


def limited(protocol: QueueProtocol, most_bytes: int) -> QueueProtocol:
    """The protocol with messages of at most so many bytes, where it goes by that."""
    if not hasattr(protocol, "max_message_bytes"):
        return protocol
    # Protocols are dataclasses; which fields one has is its own affair.
    return replace(protocol, max_message_bytes=most_bytes)  # type: ignore[type-var]
