"""Topics: made where they are missing, and looked at: how many partitions they have, and how large a message may be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.log import get_logger
from tidemill.sinks.kafka.connection import settings, sink_error
from tidemill.sinks.kafka.uri import DEFAULT_PARTITIONS, KafkaOptions

log = get_logger("kafka")

T = TypeVar("T")
_MARGIN_BYTES = 128  # below the topic's limit, as in classic TiCDC
_MADE_SECONDS = 30.0  # for a topic that was just made to be seen
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    partitions: int  # that are used
    most_bytes: int  # of a message
    epoch: int = 0  # of the dispatch: clients that were there before know of fewer partitions


class Topics:
    """Any thread, one at a time. Raises SinkError; retryable where nobody answers."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self.partition_num = options.partition_num  # of topics that are made from here on
        self.epoch = 0
        self._troubles: list[Any] = []  # what the client says beside its answers; the last ones count
        try:
            self._admin = AdminClient(settings(options) | {"error_cb": self._troubles.append})
        except KafkaException as error:
            raise sink_error(options, "set up a client of Kafka", error.args[0]) from None

    def cluster_id(self) -> str:
        """The one that Kafka gave itself."""
        return str(self._ask("reach Kafka", lambda: self._metadata(None)).cluster_id)

    def ensure(self, name: str, known: int | None = None) -> Topic:
        """The topic, made where it is missing. ``known``: so many partitions have been used so far, and are used on,
        however many there are now."""
        real = self._partitions(name)
        if real is None:
            if known is not None:
                raise SinkError(
                    f"topic {name!r} is not there any more, though rows have been sent to it; they are lost with it. "
                    "Restore it, or begin a new changefeed, with another --data-dir."
                )
            real = self._make(name)
        if known is not None and self.epoch:  # it has grown, and not every broker has heard of it
            real = self._seen(name, known)
        return Topic(name, self._used(name, real, known), self._limit(name), self.epoch)

    def grow(self, name: str, count: int) -> None:
        """Let the topic have at least so many partitions. It never has fewer again."""
        real = self._partitions(name)
        if real is None or real >= count:
            return  # one that is missing is made in this size, or refused, when it is used
        options = self._options

        def grow() -> None:
            timeout = options.dial_timeout_seconds + options.read_timeout_seconds
            new = NewPartitions(name, count)
            asked = self._admin.create_partitions([new], operation_timeout=timeout, request_timeout=timeout)
            asked[name].result(2 * timeout)

        self._ask(f"give topic {name!r} {count} partitions", grow)
        if self._seen(name, count) < count:
            raise SinkUnavailableError(f"topic {name!r} was given partitions that are not seen yet. It is tried again.")
        log.info("topic grown", topic=name, partitions=count)

    def _seen(self, name: str, count: int) -> int:
        """How many partitions it has; waits a while for so many."""
        deadline = SYSTEM_CLOCK.monotonic() + _MADE_SECONDS
        while (real := self._partitions(name) or 0) < count and SYSTEM_CLOCK.monotonic() < deadline:
            self._admin.poll(_LOOK_SECONDS)
        return real

    def _used(self, name: str, real: int, known: int | None) -> int:
        wanted = known or self.partition_num
        if wanted is None:
            return real
        if wanted > real:
            raise SinkError(
                f"topic {name!r} has {real} partitions, where {wanted} are wanted. Add partitions to the topic, or "
                "lower partition-num in the sink URI of a new changefeed."
            )
        if wanted < real and not self.epoch:  # else somebody has asked for it
            log.warning("the topic has more partitions than are used", topic=name, partitions=real, used=wanted)
        return wanted

    def _partitions(self, name: str) -> int | None:
        found = self._ask(f"look for topic {name!r}", lambda: self._metadata(name)).topics.get(name)
        if found is None or (found.error is not None and found.error.name() == "UNKNOWN_TOPIC_OR_PART"):
            return None
        if found.error is not None:
            raise sink_error(self._options, f"look at topic {name!r}", found.error)
        return len(found.partitions)

    def _make(self, name: str) -> int:
        options = self._options
        if not options.auto_create_topic:
            raise SinkError(
                f"topic {name!r} is not there, and auto-create-topic is false. Make it, or allow us to make it."
            )
        count = self.partition_num or DEFAULT_PARTITIONS

        def make() -> None:
            timeout = options.dial_timeout_seconds + options.read_timeout_seconds
            new = NewTopic(name, count, options.replication_factor)
            made = self._admin.create_topics([new], operation_timeout=timeout, request_timeout=timeout)
            try:
                made[name].result(2 * timeout)
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another writer was quicker
                    raise

        self._ask(f"make topic {name!r}", make)
        log.info("topic made", topic=name, partitions=count, replicas=options.replication_factor)
        deadline = SYSTEM_CLOCK.monotonic() + _MADE_SECONDS
        while (real := self._partitions(name)) is None:
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise SinkUnavailableError(f"topic {name!r} was made and is not seen yet. It is tried again.")
            self._admin.poll(_LOOK_SECONDS)
        return real

    def _limit(self, name: str) -> int:
        """Of a message: the sink URI's, and less where the topic says so."""
        options = self._options
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        seconds = options.read_timeout_seconds

        def look() -> Any:
            return self._admin.describe_configs([resource], request_timeout=seconds)[resource].result(2 * seconds)

        try:
            config = self._ask(f"look at the settings of topic {name!r}", look)
        except SinkUnavailableError:
            raise
        except SinkError:
            log.warning("may not look at the topic's settings; its limit of messages is taken from the URI", topic=name)
            return options.max_message_bytes
        return min(options.max_message_bytes, int(config["max.message.bytes"].value) - _MARGIN_BYTES)

    def _metadata(self, topic: str | None) -> Any:
        seconds = self._options.dial_timeout_seconds
        # Asked for all: for one that is missing a broker may make it, with settings of its own.
        return self._admin.list_topics(timeout=seconds) if topic is None else self._admin.list_topics(topic, seconds)

    def _ask(self, doing: str, work: Callable[[], T]) -> T:
        self._troubles.clear()
        try:
            return work()
        except KafkaException as error:
            raise sink_error(self._options, doing, self._reason(error.args[0])) from None
        except TimeoutError:
            raise sink_error(self._options, doing, self._reason(None)) from None

    def _reason(self, error: Any) -> Any:
        """What is behind an answer that did not come: a login that was refused, say."""
        while self._admin.poll(0):
            pass  # the client tells of it when it is asked
        telling = [each for each in self._troubles if each.name() in ("_AUTHENTICATION", "_SSL", "_RESOLVE")]
        is_vague = error is None or error.name() in ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN")
        return telling[-1] if telling and is_vague else error


def answers(options: KafkaOptions, seconds: float) -> bool:
    """Whether any broker tells of itself."""
    try:
        return bool(AdminClient(settings(options)).list_topics(timeout=seconds).brokers)
    except KafkaException:
        return False
