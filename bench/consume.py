"""consume.mysql: rows a second from a topic of Kafka into a MariaDB, beside a client that sends the same statements.

The changes are those of ``flow.mysql``, written beforehand to a topic of three partitions in the open protocol: all
inserts first, then what happens to those rows. Ours reads the messages, stages the rows, and writes them in row mode
over four connections, one batch after the other, each on Spark, whose session is up and warm, as it is in a consumer
that has been running for a while; the clock runs from the first poll until all is written. The floor is that of
``flow.mysql``. Rounds alternate, and each figure is a median.
"""

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import mysql
from tests.kafka import running as running_kafka
from tests.mariadb import MariaDb
from tests.sinks.kafka.feed import BY_KEY, Feed
from tidemill.consumer.alignment import Consistency
from tidemill.consumer.consume import Consume, ConsumeOptions
from tidemill.model.row import RowBatch, sliced
from tidemill.model.ts import Ts
from tidemill.spark.session import open_session

_ROWS = 240_000
_ROUNDS = 3
_STEP = 20_000


def bench_consume() -> list[dict[str, Any]]:
    rows, create = mysql.some_rows(_ROWS)
    halves = mysql.halves(rows)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-")))
        server = stack.enter_context(MariaDb(folder / "mariadb"))
        broker = stack.enter_context(running_kafka(folder / "kafka"))
        stack.callback(open_session(scratch=folder / "spark").stop)
        server.query("CREATE DATABASE bench", create)
        uri = broker.uri("bench", "protocol=open-protocol&partition-num=3")
        end_ts = _tell(uri, halves)
        phases = [phase for half in halves for phase in mysql.texts(half)]
        seconds, floor_seconds = [], []
        for number in range(_ROUNDS + 1):
            ours = _ours(server, uri, folder / f"consumer-{number}", rows, end_ts)
            theirs = mysql.bare(server, phases, rows.table.full_name)
            if number:  # the first round starts Spark, compiles and fills caches
                seconds.append(ours)
                floor_seconds.append(theirs)
    value, floor = len(rows) / statistics.median(seconds), len(rows) / statistics.median(floor_seconds)
    return [{"name": "consume.mysql", "value": value, "unit": "rows/s", "floor": floor, "ratio": value / floor}]


def _tell(uri: str, halves: list[RowBatch]) -> Ts:
    """Returns up to where the topic is resolved."""
    feed = Feed(uri, BY_KEY)
    table, ts = halves[0].table, 1
    target = feed.writer.target(table, table.id, (Ts(0), Ts(1 << 62)))
    for half in halves:
        order = np.arange(len(half), dtype=np.uint64)
        numbered = replace(half, commit_ts=np.uint64(ts) + order, start_ts=np.uint64(ts - 1) + order)
        steps = [sliced(numbered, n, min(n + _STEP, len(half))) for n in range(0, len(half), _STEP)]
        feed.owner.take(feed.writer.commit(Ts(ts + len(half)), [target.write(iter(steps))]))
        ts += len(half)
        feed.owner.publish(Ts(ts))
    return Ts(ts)


def _ours(server: MariaDb, uri: str, folder: Path, rows: RowBatch, end_ts: Ts) -> float:
    server.query(f"TRUNCATE TABLE {rows.table.full_name}")
    feed = Consume(ConsumeOptions(uri, server.uri("worker-count=4"), folder, Consistency.ROW))
    try:
        feed.start(lambda: False)
        began = time.perf_counter()
        while not feed.is_at(end_ts):
            feed.poll()
        return time.perf_counter() - began
    finally:
        feed.close()


if __name__ == "__main__":
    for line in bench_consume():
        print(line)
