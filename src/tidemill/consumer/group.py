"""Which process of a group has its work: the one to which Kafka assigns the one partition of the group's topic.

Kafka's own group protocol chooses, and notices within some seconds that a process is gone. It may be wrong for a while:
one that was stopped for a minute still believes to have the work when it wakes up. So nothing depends on what is said
here but who tries: what an earlier one still does is refused by the sink and by the group's state.
"""

import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidemill.consumer.group_state import topic_of
from tidemill.consumer.listening import unavailable
from tidemill.errors import UpstreamError
from tidemill.log import get_logger
from tidemill.sinks.kafka.connection import settings
from tidemill.sinks.kafka.uri import KafkaOptions

log = get_logger("consumer")

_SESSION_MS = 10_000  # a process of which nothing is heard for so long is taken to be gone
_BEAT_MS = 1_000
_POLL_SECONDS = 0.2
_REFUSED = ("AUTHORIZATION", "_AUTHENTICATION", "_SSL", "SASL", "INCONSISTENT_GROUP_PROTOCOL")


class Group:
    """This process among the others. ``is_mine`` and ``tell`` are for one thread; a thread of its own keeps in touch,
    whatever that one waits for. ``leave`` it in any case."""

    def __init__(self, kafka: KafkaOptions, name: str) -> None:
        self.name = name
        self._kafka, self._topic = kafka, topic_of(name)
        self._has_work = threading.Event()
        self._is_over = threading.Event()
        self._failure: UpstreamError | None = None
        self._to_tell: SimpleQueue[Mapping[int, int]] = SimpleQueue()
        self._told: dict[int, int] = {}
        self._consumer: Any = Consumer(
            settings(kafka)
            | {
                "group.id": name,
                "group.protocol": "classic",
                "partition.assignment.strategy": "cooperative-sticky",  # who joins takes nothing from who is at work
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _BEAT_MS,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "error_cb": _quiet,
                "on_commit": self._note_told,
            }
        )
        self._thread = threading.Thread(target=self._keep_in_touch, name="group", daemon=True)

    def join(self) -> None:
        """Its topic is there."""
        self._consumer.subscribe([self._topic], on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose)
        self._thread.start()

    @property
    def is_mine(self) -> bool:
        """Whether this process has the group's work, as far as is known. Raises what keeps it out of the group."""
        if self._failure is not None:
            raise self._failure
        return self._has_work.is_set()

    def tell(self, offsets: Mapping[int, int]) -> None:
        """Kafka's tools: from where on each partition is still to be written. Returns at once, and may be in vain."""
        self._to_tell.put(offsets)

    def leave(self) -> None:
        """The others learn of it at once."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._consumer.close()
        self._has_work.clear()

    def _keep_in_touch(self) -> None:
        while not self._is_over.is_set():
            try:
                message = self._consumer.poll(_POLL_SECONDS)
            except KafkaException as error:
                self._note(error.args[0])
                continue
            if message is not None and message.error() is not None:
                self._note(message.error())
            self._tell()

    def _tell(self) -> None:
        """By the thread that polls: the client lets no other one commit meanwhile."""
        wanted: dict[int, int] = {}
        while not self._to_tell.empty():
            wanted |= self._to_tell.get()
        wanted = {p: offset for p, offset in wanted.items() if offset >= 0 and self._told.get(p) != offset}
        if not wanted:
            return
        self._told |= wanted
        places = [TopicPartition(self._kafka.topic, p, offset) for p, offset in wanted.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._note_told(error.args[0], ())

    def _gain(self, consumer: Any, gained: list[Any]) -> None:
        consumer.incremental_assign(gained)
        if gained:
            consumer.pause(gained)  # its messages are read by who needs them
        if any(each.partition == 0 for each in gained):
            log.info("the group's work is ours", group=self.name)
            self._told = {}
            self._has_work.set()

    def _lose(self, consumer: Any, lost: list[Any]) -> None:
        consumer.incremental_unassign(lost)
        if any(each.partition == 0 for each in lost):
            log.info("the group's work is not ours any more", group=self.name)
            self._has_work.clear()

    def _note(self, error: Any) -> None:
        if any(word in error.name() for word in _REFUSED):
            self._failure = self._failure or unavailable(self._kafka, error, f"join group {self.name!r}")
        log.debug("said by Kafka", group=self.name, reason=error.str())

    def _note_told(self, error: Any, _: Any) -> None:
        if error is not None:
            self._told.clear()  # another time
            log.debug("Kafka's tools will not see how far this is", group=self.name, reason=error.str())


def _quiet(error: Any) -> None:
    """What matters comes with the messages."""
