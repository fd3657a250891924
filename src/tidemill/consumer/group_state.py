"""What the consumers of a group remember together: a compacted topic of one partition, ``tidemill-group-NAME``.

    position   where each partition is written, and from where on it is read   ┐ each as a few messages; a save
    sink       the sink's own state                                            │ replaces what has changed, in one
    tables     what messages and DDLs have told of tables                      ┘ transaction of Kafka

One member at a time has the group's work and saves. It does so under the group's transactional id: who takes the work
over ends, by that, every transaction of whoever had it before, and what that one still tries to save is refused. So a
state that was read after ``begin`` is the last one, and a save that succeeded proves that the work was still ours.
"""

import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.clock import SYSTEM_CLOCK
from tidemill.consumer.listening import unavailable
from tidemill.consumer.state import ConsumerState, document_of_state, state_of
from tidemill.errors import CorruptDataError, StoppedError, SupersededError, UpstreamError, UpstreamUnavailableError
from tidemill.log import get_logger
from tidemill.sinks.kafka.connection import settings
from tidemill.sinks.kafka.uri import KafkaOptions

log = get_logger("consumer")

_ID: Final = "id"
_OF_SINK = frozenset({"sink_state"})
_OF_TABLES = frozenset({"ids", "catalog", "schemas", "meeting"})
_CHUNK_BYTES = 512 << 10  # of a message: brokers take 1 MiB unless they are told otherwise
_ANSWER_SECONDS = 10.0
_MADE_SECONDS = 30.0  # for a topic that was just made to be seen
_LOOK_SECONDS = 0.1
_OUTDATED = frozenset({"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING", "_FATAL"})
_HOPELESS = frozenset({"MSG_SIZE_TOO_LARGE", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_REFUSED = ("AUTHORIZATION", "_AUTHENTICATION", "_SSL", "SASL")
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(1 << 20),
}


def topic_of(group: str) -> str:
    return f"tidemill-group-{group}"


# What is in the topic. Pure.


def parts_of(state: ConsumerState) -> dict[str, bytes]:
    document = document_of_state(state)
    position = {key: value for key, value in document.items() if key not in _OF_SINK | _OF_TABLES}
    parts = {
        "position": position,
        "sink": {key: document[key] for key in sorted(_OF_SINK)},
        "tables": {key: document[key] for key in sorted(_OF_TABLES)},
    }
    return {name: orjson.dumps(part) for name, part in parts.items()}


def messages_of(name: str, content: bytes) -> list[tuple[str, bytes]]:
    """Keys and values. The first value begins with how many there are; further ones are of a longer part before."""
    packed = zlib.compress(content, 1)
    chunks = [packed[at : at + _CHUNK_BYTES] for at in range(0, len(packed), _CHUNK_BYTES)]
    chunks[0] = len(chunks).to_bytes(4) + chunks[0]
    return [(f"{name}/{n}", chunk) for n, chunk in enumerate(chunks)]


def contents_of(last: Mapping[str, bytes]) -> dict[str, bytes]:
    """Of the last value of each key. Raises one of KeyError, ValueError and zlib.error for what is not ours."""
    found = {}
    for name in (key.removesuffix("/0") for key in last if key.endswith("/0")):
        first = last[f"{name}/0"]
        rest = (last[f"{name}/{n}"] for n in range(1, int.from_bytes(first[:4])))
        found[name] = zlib.decompress(b"".join((first[4:], *rest)))
    return found


class GroupState:
    """For the member that has the group's work. One thread. ``close`` it in any case."""

    def __init__(self, kafka: KafkaOptions, group: str, should_stop: Callable[[], bool]) -> None:
        """``should_stop``: not to wait any longer for a broker that is away."""
        self._options, self._group, self._should_stop = kafka, group, should_stop
        self._topic = topic_of(group)
        self._saved: dict[str, bytes] = {}  # what the topic holds, by part
        self._is_outdated = False
        self._producer: Any = Producer(
            settings(kafka)
            | {
                "transactional.id": f"tidemill-group-{group}",
                "acks": "all",
                "enable.idempotence": True,
                "message.max.bytes": 1 << 20,
                "linger.ms": 0,
                "error_cb": _quiet,
            }
        )

    @property
    def shown(self) -> str:
        return f"group {self._group!r}"

    @property
    def another(self) -> str:
        return "--group"

    def begin(self) -> None:
        """From here on nothing is saved by whoever had the work before."""
        self._patiently(lambda: self._producer.init_transactions(_ANSWER_SECONDS))
        try:
            self._saved = contents_of(dict(self._messages()))  # of each key the last one
        except (KeyError, ValueError, zlib.error) as error:
            raise self._strange(error) from error

    def consumer_id(self) -> str:
        """Random, and in the topic before the sink hears of it."""
        found = self._saved.get(_ID)
        if found is None:
            found = f"tidemill-consumer-{secrets.token_hex(8)}".encode()
            self._write({_ID: found})
        return found.decode()

    def load(self) -> ConsumerState | None:
        parts = {name: content for name, content in self._saved.items() if name != _ID}
        if not parts:
            return None
        try:
            document = {key: value for part in parts.values() for key, value in orjson.loads(part).items()}
            return state_of(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._strange(error) from error

    def save(self, state: ConsumerState) -> None:
        """Durable when it returns, and a proof that nobody had taken the work over when it was called. Raises
        SupersededError where somebody has."""
        position = parts_of(state)
        changed = {name: part for name, part in position.items() if self._saved.get(name) != part}
        self._write({"position": position["position"]} | changed)

    def close(self) -> None:
        self._producer.purge()

    def _write(self, parts: Mapping[str, bytes]) -> None:
        while not self._is_written(parts):
            threading.Event().wait(_LOOK_SECONDS)
        self._saved |= parts

    def _is_written(self, parts: Mapping[str, bytes]) -> bool:
        """False: Kafka has taken the transaction back; another time."""
        if self._is_outdated:
            raise self._superseded("it has been told before")
        try:
            self._producer.begin_transaction()
            for name, content in parts.items():
                for key, value in messages_of(name, content):
                    self._producer.produce(self._topic, value, key, partition=0)
        except KafkaException as error:
            self._check(error.args[0])
            self._take_back()
            return False
        return self._patiently(lambda: self._producer.commit_transaction(_ANSWER_SECONDS))

    def _take_back(self) -> None:
        self._patiently(lambda: self._producer.abort_transaction(_ANSWER_SECONDS))

    def _patiently(self, call: Callable[[], object]) -> bool:
        """False: the transaction is taken back."""
        while True:
            try:
                call()
                return True
            except KafkaException as error:
                found = error.args[0]
            self._check(found)
            log.debug("said by Kafka", group=self._group, name=found.name(), reason=found.str())
            if found.txn_requires_abort():
                self._take_back()
                return False
            log.warning("waiting for Kafka to take the group's state", group=self._group, reason=found.str())
            threading.Event().wait(_LOOK_SECONDS)

    def _check(self, error: Any) -> None:
        """What does not pass by waiting is raised."""
        name = error.name()
        if any(word in name for word in _REFUSED) or "authorization failed" in error.str().lower():
            raise UpstreamError(
                f"cannot save the state of group {self._group!r} in topic {self._topic!r} ({self._options.place}): "
                f"{error.str()}. Grant the user Read, Write and Describe on the topic, and Write and Describe on the "
                f"transactional id tidemill-group-{self._group}."
            )
        if name in _HOPELESS:
            raise UpstreamError(
                f"cannot save the state of group {self._group!r} in topic {self._topic!r} ({self._options.place}): "
                f"{error.str()}. The topic must be there, with messages of 1 MiB allowed; who removed it has removed "
                "the state: then copy the tables anew, and begin with another --group."
            )
        if error.fatal() or name in _OUTDATED:
            self._is_outdated = True
            raise self._superseded(error.str())
        if self._should_stop():
            raise StoppedError("stopped while no broker took the group's state; what was not saved is read again.")

    def _messages(self) -> Iterator[tuple[str, bytes]]:
        """All that the topic holds."""
        consumer = Consumer(
            settings(self._options)
            | {
                "group.id": self._group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "error_cb": _quiet,
            }
        )
        try:
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            while True:
                message = consumer.poll(_ANSWER_SECONDS)
                error = None if message is None else message.error()
                if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                    if error is not None:
                        self._check(error)
                    if self._should_stop():
                        raise StoppedError("stopped while the group's state was read.")
                    continue
                if error is not None:
                    return
                yield (message.key() or b"").decode(errors="replace"), message.value() or b""
        finally:
            consumer.close()

    def _superseded(self, said: str) -> SupersededError:
        return SupersededError(
            f"another process of group {self._group!r} has taken the work over ({said}). What this one has not saved, "
            "that one does again."
        )

    def _strange(self, error: Exception) -> CorruptDataError:
        return CorruptDataError(
            f"cannot understand the state of group {self._group!r} in topic {self._topic!r}: {error}. Look who else "
            "writes there; start anew with another --group, once the tables are copied anew."
        )


def ensure_topic(kafka: KafkaOptions, group: str) -> None:
    """The group's topic is there. Raises UpstreamUnavailableError where no broker answers."""
    admin, name = AdminClient(settings(kafka) | {"error_cb": _quiet}), topic_of(group)
    deadline = SYSTEM_CLOCK.monotonic() + _MADE_SECONDS
    try:
        if _is_there(admin, name):
            return
        made = admin.create_topics([NewTopic(name, 1, -1, config=_TOPIC_SETTINGS)], request_timeout=_ANSWER_SECONDS)
        made[name].result(2 * _ANSWER_SECONDS)
        log.info("topic of the group's state made", topic=name)
    except KafkaException as error:
        found = error.args[0]
        if found.name() != "TOPIC_ALREADY_EXISTS":  # another member was quicker
            raise _not_made(kafka, name, found) from None
    except TimeoutError:
        raise UpstreamUnavailableError(f"cannot make topic {name!r} ({kafka.place}): no answer in time.") from None
    while not _is_there(admin, name):
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise UpstreamUnavailableError(f"topic {name!r} was made and is not seen yet ({kafka.place}).")
        admin.poll(_LOOK_SECONDS)


def _not_made(kafka: KafkaOptions, name: str, error: Any) -> UpstreamError:
    if "AUTHORIZATION" in error.name() or error.name() in ("POLICY_VIOLATION", "INVALID_REPLICATION_FACTOR"):
        return UpstreamError(
            f"cannot make topic {name!r}, where the group's state would be ({kafka.place}): {error.str()}. Make it by "
            "hand, with one partition and cleanup.policy=compact, or grant the user Create."
        )
    return unavailable(kafka, error)


def _is_there(admin: Any, name: str) -> bool:
    found = admin.list_topics(timeout=_ANSWER_SECONDS).topics.get(name)
    return found is not None and found.error is None


def _quiet(error: Any) -> None:
    """What matters comes with the answers."""
