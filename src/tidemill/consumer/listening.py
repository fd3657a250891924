"""Messages of a topic's partitions, in order, from where each was left.

Offsets are ours: Kafka's groups would move partitions to another process while their rows are staged here. What was not
written yet is read again after a restart. Kafka is told of them all the same, for those who watch a group's lag. Of
several processes of a group one reads all partitions (``group``).
"""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UpstreamError, UpstreamUnavailableError, UsageError
from tidemill.flow.reader import Received
from tidemill.log import get_logger
from tidemill.sinks.kafka.connection import settings, sink_error
from tidemill.sinks.kafka.uri import KafkaOptions

log = get_logger("consumer")

BEGINNING = -1  # for an offset: wherever the partition begins
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_LOST = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"})
_UNKNOWN = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_REFUSED = ("AUTHORIZATION", "_AUTHENTICATION", "_SSL", "SASL")


@dataclass(frozen=True, slots=True)
class Heard:
    """Some messages of one partition that follow each other. ``next_offset`` is behind the last."""

    partition: int
    first_offset: int
    next_offset: int
    messages: Received
    offsets: tuple[int, ...]  # of each message: compaction and transactions leave gaps


class Listening:
    """One thread at a time. ``close`` it in any case."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self.trouble: str | None = None  # why nothing comes, where that is known
        self.positions: dict[int, int] = {}  # by partition: what is read next
        self._paused: set[int] = set()
        self._assigned: set[int] = set()
        self._told: dict[int, int] = {}
        self._is_telling_refused = False
        self._consumer = Consumer(
            settings(options)
            | {
                "group.id": options.changefeed,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",  # never skip by itself
                "isolation.level": "read_committed",
                "enable.partition.eof": False,
                "fetch.message.max.bytes": 4 << 20,
                "queued.max.messages.kbytes": 64 << 10,
                "error_cb": self._note,
                "on_commit": self._note_told,
            }
        )

    def partitions(self) -> int:
        """How many the topic has. Raises UsageError where there is no such topic."""
        topic = self._options.topic
        try:
            found = self._consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic]
        except KafkaException as error:
            raise unavailable(self._options, error.args[0]) from None
        if found.error is not None or not found.partitions:
            raise UsageError(
                f"there is no topic {topic!r} at {self._options.place}. Check its name, or start whoever writes it."
            )
        return len(found.partitions)

    def cluster_id(self) -> str:
        try:
            return str(self._consumer.list_topics(timeout=_ANSWER_SECONDS).cluster_id)
        except KafkaException as error:
            raise unavailable(self._options, error.args[0]) from None

    def ends(self, partitions: int) -> dict[int, int]:
        """The offset behind the last message of each partition, as of now."""
        return {p: self._bounds(p)[1] for p in range(partitions)}

    def listen(self, offsets: Mapping[int, int]) -> None:
        """To these partitions, each from its offset on, and to no others. Some may have been added just now."""
        deadline = SYSTEM_CLOCK.monotonic() + _ANSWER_SECONDS
        while self.partitions() <= max(offsets, default=0) and SYSTEM_CLOCK.monotonic() < deadline:
            threading.Event().wait(_LOOK_SECONDS)  # not every broker has heard of them
        self._assigned = set(offsets)
        self._paused = set()
        self.positions = {p: self._first(p, offset) for p, offset in offsets.items()}
        self._consumer.assign([self._place(p, offset) for p, offset in self.positions.items()])

    def _first(self, partition: int, offset: int) -> int:
        """The first offset to read. Where reading is resumed, the messages from there on must still be there."""
        low, high = self._bounds(partition)
        if offset == BEGINNING:
            if low > 0:
                log.warning("the topic's first messages are gone; reading what is there", partition=partition)
            return low
        if low <= offset <= high:
            return offset
        raise UpstreamError(
            f"cannot go on with partition {partition} of topic {self._options.topic!r} at offset {offset}: Kafka has "
            f"{low} to {high} of it. Messages were removed before they were read. Copy the tables anew, and start with "
            "another --data-dir."
        )

    def _bounds(self, partition: int) -> tuple[int, int]:
        try:
            low, high = self._consumer.get_watermark_offsets(self._place(partition), timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            raise unavailable(self._options, error.args[0]) from None
        return int(low), int(high)

    def poll(self, most: int, seconds: float) -> list[Heard]:
        """What has come, at most so many messages; waits for the first."""
        try:
            messages = self._consumer.consume(most, seconds)
        except KafkaException as error:
            raise unavailable(self._options, error.args[0]) from None
        parts: dict[int, tuple[list[Any], list[Any], list[int]]] = {}
        for message in messages:
            if message.error() is not None:
                self._check(message.partition(), message.error())
                continue
            keys, values, offsets = parts.setdefault(message.partition(), ([], [], []))
            keys.append(message.key())
            values.append(message.value())
            offsets.append(message.offset())
        if parts:
            self.trouble = None
        self.positions |= {p: offsets[-1] + 1 for p, (_, _, offsets) in parts.items() if p in self._assigned}
        return [
            Heard(
                partition,
                offsets[0],
                offsets[-1] + 1,
                Received(pa.array(keys, pa.binary()), pa.array(values, pa.binary())),
                tuple(offsets),
            )
            for partition, (keys, values, offsets) in parts.items()
            if partition in self._assigned
        ]

    def pause(self, partitions: Collection[int]) -> None:
        """Fetch nothing of these for now, and of all others go on."""
        wanted = set(partitions) & self._assigned
        if wanted - self._paused:
            self._consumer.pause([self._place(p) for p in wanted - self._paused])
        if self._paused - wanted:
            self._consumer.resume([self._place(p) for p in self._paused - wanted])
        self._paused = wanted

    def tell(self, offsets: Mapping[int, int]) -> None:
        """Kafka's tools: from where on each partition is still to be written. Returns at once, and may be in vain."""
        wanted = {p: offset for p, offset in offsets.items() if offset >= 0 and self._told.get(p) != offset}
        if wanted:
            self._told |= wanted
            self._consumer.commit(offsets=[self._place(p, at) for p, at in wanted.items()], asynchronous=True)

    def close(self) -> None:
        self._consumer.close()

    def _place(self, partition: int, offset: int | None = None) -> TopicPartition:
        topic = self._options.topic
        return TopicPartition(topic, partition) if offset is None else TopicPartition(topic, partition, offset)

    def _note(self, error: Any) -> None:
        self.trouble = error.str()

    def _note_told(self, error: Any, _: Any) -> None:
        if error is not None and not self._is_telling_refused:
            self._is_telling_refused = True
            log.warning(
                "Kafka's tools will not see how far this is", group=self._options.changefeed, reason=error.str()
            )

    def _check(self, partition: int, error: Any) -> None:
        """What does not pass by waiting is raised."""
        if error.name() in _LOST:
            raise UpstreamError(
                f"messages of partition {partition} of topic {self._options.topic!r} were removed before they were "
                "read. Copy the tables anew, and start with another --data-dir."
            )
        if error.name() in _UNKNOWN:
            raise UpstreamError(
                f"partition {partition} of topic {self._options.topic!r} is not there any more. Check that nobody has "
                "removed the topic; start anew with another --data-dir if it was."
            )
        if any(word in error.name() for word in _REFUSED):
            raise unavailable(self._options, error)
        self.trouble = error.str()


def unavailable(options: KafkaOptions, error: Any, doing: str = "") -> UpstreamError:
    """The sink's words fit where waiting does not help; else it is the source that is away."""
    doing = doing or f"read topic {options.topic!r}"
    found = sink_error(options, doing, error)
    if not found.retryable:
        return UpstreamError(str(found))
    return UpstreamUnavailableError(
        f"cannot {doing} ({options.place}): {error.str()}. Check the brokers' addresses and that they are up, then "
        "start again."
    )
