"""Messages sent in order, and confirmed. Runs on executors, and in the owner.

One producer is kept per process for each connection, between batches: making one costs round trips and threads. A unit
has a producer to itself while it sends. What it could not send in order, or was not told of in time, is purged and the
producer dropped: what has been sent is then, in each partition, a prefix of what was to be.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaException, Producer

from tidemill.clock import SYSTEM_CLOCK
from tidemill.columnar.encoded import Encoded
from tidemill.sinks.kafka.connection import producer_settings, sink_error
from tidemill.sinks.kafka.uri import KafkaOptions

_SLICE_SECONDS = 0.2
_KEPT: Final = 4  # producers that nobody uses


class Sending:
    """One producer, for one unit at a time."""

    def __init__(self, options: KafkaOptions, most_bytes: int) -> None:
        self._options = options
        self._failed: list[Any] = []  # KafkaErrors of messages
        self._troubles: list[Any] = []  # and what the client says beside
        more = {"error_cb": self._troubles.append}
        try:
            self._producer = Producer(producer_settings(options, most_bytes) | more)
        except KafkaException as error:
            raise sink_error(options, "set up a producer", error.args[0]) from None
        self._queued = 0  # messages of the batch before

    def send(self, topic: str, partition: int, messages: list[dict[str, Any]]) -> None:
        """In this order, behind what was sent before."""
        self._wait(self._queued // 2, topic)
        self._queued = 0
        self.add(topic, partition, messages)

    def add(self, topic: str, partition: int, messages: list[dict[str, Any]]) -> None:
        """Likewise, without a look at how many wait to be confirmed: for few messages to many partitions."""
        self._queued += len(messages)
        # The partition of a single message would be ignored in a batch, so each partition has its own.
        try:
            taken = self._producer.produce_batch(topic, messages, partition=partition, on_delivery=self._delivered)
        except KafkaException as error:
            raise self._error(topic, error.args[0]) from None
        if taken != len(messages):
            refused = next(message["_error"] for message in messages if "_error" in message)
            raise self._error(topic, refused)

    def confirm(self, topic: str) -> None:
        """Return once every message is confirmed by all replicas in sync."""
        self._wait(0, topic)
        self._queued = 0

    def give_up(self) -> None:
        """Nothing is sent any more that has not been."""
        try:
            self._producer.purge(blocking=False)
            self._producer.poll(0)
        except KafkaException:
            pass  # it is in a fatal state, and sends nothing either

    def _delivered(self, error: Any, _message: Any) -> None:
        """Of what failed only."""
        if error is not None:
            self._failed.append(error)

    def _wait(self, most: int, topic: str = "") -> None:
        """Until at most so many messages wait to be confirmed. Raises where none is for too long."""
        left, since = len(self._producer), SYSTEM_CLOCK.monotonic()
        while True:
            try:
                now = self._producer.flush(_SLICE_SECONDS) if not most else self._poll()
            except KafkaException as error:
                raise self._error(topic, error.args[0]) from None
            if self._failed:
                raise self._error(topic, self._failed[0])
            if now <= most:
                return
            if now < left:
                left, since = now, SYSTEM_CLOCK.monotonic()
            elif SYSTEM_CLOCK.monotonic() - since > self._options.write_timeout_seconds:
                raise self._error(topic, None)

    def _poll(self) -> int:
        self._producer.poll(0.01)
        return len(self._producer)

    def _error(self, topic: str, error: Any) -> Exception:
        telling = [each for each in self._troubles if each.name() in ("_AUTHENTICATION", "_SSL") or each.fatal()]
        is_vague = error is None or error.name() in ("_FATAL", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_TRANSPORT")
        found = telling[-1] if telling and is_vague else error
        return sink_error(self._options, f"send messages to topic {topic!r}" if topic else "send messages", found)


_Place = tuple[KafkaOptions, int, int, int]


class _Pool:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[_Place, Sending]] = []  # those used last at the end

    @contextmanager
    def sending(self, options: KafkaOptions, most_bytes: int, epoch: int = 0) -> Iterator[Sending]:
        """A producer of this process; dropped where anything goes wrong. One that was there before the number of
        partitions changed does not know of new ones, so each ``epoch`` has its own."""
        place = options, most_bytes, os.getpid(), epoch
        sending = self._take(place) or Sending(options, most_bytes)
        try:
            yield sending
        except BaseException:
            sending.give_up()
            raise
        with self._lock:
            self._idle.append((place, sending))
            del self._idle[:-_KEPT]

    def _take(self, place: _Place) -> Sending | None:
        with self._lock:
            for at, (known, sending) in enumerate(self._idle):
                if known == place:
                    del self._idle[at]
                    return sending
        return None


POOL: Final = _Pool()


def send_encoded(sending: Sending, topic: str, encoded: Encoded) -> None:
    """All messages, in order within each partition."""
    if not len(encoded):
        return
    values, keys = list[bytes | None](_pieces(encoded.payload, encoded.ends)), None
    if encoded.has_value is not None:
        values = [value if there else None for value, there in zip(values, encoded.has_value, strict=True)]
    if encoded.keys is not None:
        keys = _pieces(encoded.keys.payload, encoded.keys.ends)
    if encoded.partitions is None:
        sending.send(topic, 0, _messages(values, keys))
        return
    order = np.argsort(encoded.partitions, kind="stable")
    of = encoded.partitions[order]
    bounds = np.flatnonzero(np.diff(of, prepend=-1))
    for first, end in zip(bounds.tolist(), [*bounds[1:].tolist(), len(of)], strict=True):
        picked = order[first:end].tolist()
        of_keys = [keys[at] for at in picked] if keys is not None else None
        sending.send(topic, int(of[first]), _messages([values[at] for at in picked], of_keys))


def _messages(values: list[bytes | None], keys: list[bytes] | None) -> list[dict[str, Any]]:
    if keys is None:
        return [{"value": value} for value in values]
    return [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]


def _pieces(payload: Any, ends: npt.NDArray[np.int64]) -> list[bytes]:
    data, stops = payload.to_pybytes(), ends.tolist()
    return [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def send_everywhere(sending: Sending, topics: Mapping[str, int], message: Mapping[str, bytes | None]) -> None:
    """One message into each partition of each topic, all under way at the same time."""
    for topic, partitions in topics.items():
        for partition in range(partitions):
            sending.add(topic, partition, [dict(message)])
