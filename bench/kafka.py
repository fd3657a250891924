"""flow.kafka: rows a second from an embedded upstream's change stream through Spark into a Kafka of the bench's own,
beside a client that produces the same messages from memory.

The topic has three partitions and the open protocol; rows go by their key. The upstream and the broker do not count,
nor does starting Spark: the clock runs from the start of the changefeed until the last row is confirmed. The floor has
all messages in memory, each with its partition, and the same settings of librdkafka. It runs on the same broker, into
another topic. Rounds alternate, and each figure is a median.
"""

import json
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.data import grow
from bench.flow import upstream, warm_up
from tests.kafka import Broker, Found, running
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.model.changefeed import ChangefeedConfig, Dispatch
from tidemill.model.ts import Ts
from tidemill.sinks import read_sink_uri
from tidemill.sinks.kafka import KafkaOptions
from tidemill.sinks.kafka.connection import producer_settings
from tidemill.spark.session import open_session

_ROWS = 1_000_000
_ROUNDS = 3
_BY_KEY = ChangefeedConfig(dispatchers=(Dispatch(("*.*",), "index-value"),))
_AT_ONCE = 10_000  # messages that the floor hands over together
_topics = count()


def bench_kafka() -> list[dict[str, Any]]:
    seconds, floor_seconds, rows = [], [], 0
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        history = grow("bench-narrow", _ROWS, folder / "narrow")
        ends = json.loads((history.parent / "meta.json").read_text())
        spark = open_session(scratch=folder / "spark")
        try:
            warm_up(folder)
            with running(folder / "kafka") as broker, upstream(folder / "upstream", history) as (pd, _):
                for number in range(_ROUNDS + 1):
                    topic = f"ours-{number}"
                    took, rows = _ours(pd, broker, topic, folder / topic, ends)
                    theirs = _bare(broker, broker.messages(topic))
                    if number:  # the first round compiles and fills caches
                        seconds.append(took)
                        floor_seconds.append(theirs)
        finally:
            spark.stop()
    value, floor = rows / statistics.median(seconds), rows / statistics.median(floor_seconds)
    return [{"name": "flow.kafka", "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}]


def _uri(broker: Broker, topic: str) -> str:
    return broker.uri(topic, "protocol=open-protocol&partition-num=3")


def _ours(pd: str, broker: Broker, topic: str, data_dir: Path, ends: dict[str, int]) -> tuple[float, int]:
    """Seconds, and rows."""
    options = RunOptions(
        pd=pd, sink_uri=_uri(broker, topic), data_dir=data_dir, start_ts=Ts(ends["bootstrap_ts"]),
        target_ts=Ts(ends["end_ts"]), config=_BY_KEY,
    )  # fmt: skip
    began = time.perf_counter()
    feed = Changefeed(options)
    try:
        feed.start()
        while not feed.poll():
            pass
        return time.perf_counter() - began, feed.status().totals.rows
    finally:
        feed.close(is_finished=True)


def _bare(broker: Broker, messages: list[list[Found]]) -> float:
    topic = f"floor-{next(_topics)}"
    broker.create(topic, len(messages))
    options = read_sink_uri(_uri(broker, topic))
    assert isinstance(options, KafkaOptions)
    producer = Producer(producer_settings(options, options.max_message_bytes))
    parts = [
        (partition, [{"key": each.key, "value": each.value} for each in some[first : first + _AT_ONCE]])
        for partition, some in enumerate(messages)
        for first in range(0, len(some), _AT_ONCE)
    ]
    began = time.perf_counter()
    for partition, some in parts:
        while len(producer) > 4 * _AT_ONCE:
            producer.poll(0.01)
        if producer.produce_batch(topic, some, partition=partition) != len(some):
            raise AssertionError("flow.kafka: the floor's client has refused messages")
    if producer.flush(120):
        raise AssertionError("flow.kafka: the floor's messages were not confirmed")
    return time.perf_counter() - began


if __name__ == "__main__":
    for line in bench_kafka():
        print(line)
