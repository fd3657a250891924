"""Values of three unique keys change places between rows in different partitions; a consumer by rows keeps up.

Rows go through the Kafka sink's own halves, from batches that are partly lost and sent again; the consumer is killed.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pymysql
import pytest

from tests.e2e.processes import Command, wait_until
from tests.flow.dispatcher.conflict_world import Change, changes
from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.mariadb import MariaDb, need_mariadb
from tests.mariadb import running as running_mariadb
from tests.open_topic import ROW, read_log
from tests.rounds import rounds, seed
from tests.sinks.kafka.feed import Feed
from tidemill.consumer.check_topic import check_topic
from tidemill.model.changefeed import Dispatch
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261122
BY_CONFLICT = (Dispatch(("*.*",), "conflict"),)
NUMBER = ColumnType.LONGLONG
SEATS = table_of(
    column("id", NUMBER, KEY, flen=20), column("a", NUMBER, NOT_NULL, flen=20), column("b", NUMBER, NOT_NULL, flen=20),
    name="seats", uniques=[["a"], ["b"]],
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


def named(row: Sequence[int] | None) -> dict[str, int] | None:
    return dict(zip(("id", "a", "b"), row, strict=True)) if row is not None else None


def batches(some: list[Change]) -> Iterator[RowBatch]:
    pairs = [(named(old), named(new)) for _, old, new in some]
    yield rows_of(SEATS, *pairs, ts=[COMMIT_TS + ts for ts, _, _ in some])


def held(mariadb: MariaDb) -> list[tuple[int, ...]] | None:
    try:
        return list(mariadb.query("select id, a, b from shop.seats order by id"))
    except pymysql.err.MySQLError:
        return None


@pytest.mark.rounds
@pytest.mark.parametrize("consistency", ["row", pytest.param("transaction", marks=pytest.mark.soak)])
def test_a_table_whose_unique_values_are_swapped_is_equal(broker: Broker, tmp_path: Path, consistency: str) -> None:
    need_mariadb()
    rng, count = random.Random(seed(SEED)), rounds(2)
    some, there = changes(rng, 150 * count, rows=30)
    wanted = sorted(there.values())
    uri = broker.uri(tmp_path.name, "protocol=open-protocol&partition-num=4")
    feed = Feed(uri, BY_CONFLICT)
    with ExitStack() as stack:
        mariadb = stack.enter_context(running_mariadb(tmp_path / "mariadb"))
        mariadb.query(
            "create database shop", "create table shop.seats (id bigint primary key, a bigint unique, b bigint unique)"
        )

        def consumer() -> Command:
            folder, to = tmp_path / "consumer", mariadb.uri()
            return Command(
                tmp_path / "runs", "consume", uri, is_serving=True, to=to, data_dir=folder, consistency=consistency
            )

        reading = consumer()
        stack.callback(lambda: reading.kill())
        reading.ready()
        sent_ts, last_ts = 0, some[-1][0]
        while sent_ts < last_ts:
            to_ts = sent_ts + 10 * rng.randint(5, 60)
            part = [each for each in some if sent_ts < each[0] <= to_ts]
            if part and rng.random() < 0.4:  # what was not saved comes again, in batches that end elsewhere
                lost = [each for each in some if sent_ts < each[0] <= to_ts + 10 * rng.randint(-3, 10)]
                if lost:
                    feed.target(of=SEATS).write(batches(lost))
                feed = Feed(uri, BY_CONFLICT, feed.saved)
            if part:
                receipt = feed.target(of=SEATS).write(batches(part))
                feed.saved = feed.owner.take(feed.writer.commit(Ts(COMMIT_TS + to_ts), [receipt]))
            feed.owner.publish(Ts(COMMIT_TS + to_ts))
            if rng.random() < 0.1:
                reading.kill()
                reading = consumer()
            sent_ts = to_ts

        def is_equal() -> bool:
            assert reading.is_running(), reading.errors
            return held(mariadb) == wanted

        wait_until(is_equal, "equality", every_seconds=0.2)
    report = check_topic(feed.options, keys_stay=True, partitions=4, should_stop=lambda: False)
    assert report.is_ok, report.violations
    log = read_log(broker, tmp_path.name)
    meetings = {e.ts for part in log.partitions for e in part if e.kind == 4}
    assert all({e.ts for e in part if e.kind == 4} == meetings for part in log.partitions)
    sizes = [sum(e.kind == ROW for e in part) for part in log.partitions]
    print(f"{len(some)} rows, {len(meetings)} meetings, {sizes} messages by partition")
    assert len(meetings) > 10
    assert min(sizes) > 0
