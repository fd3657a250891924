"""Two processors of one changefeed into Kafka: whether the one goes on while a table of the other is not resolved, and
what the topic promises (constraints 2.2 and 2.3) either way."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.test_two_processors import (
    PATIENCE_SECONDS,
    SEED,
    Cluster,
    Running,
    clustered,
    play,
)
from tests.histories import load
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.open_topic import ROW, Log, read_log
from tests.rounds import rounds, seed
from tidebox.mvcc import physical_key
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.ts import Ts
from tidemill.tidb.keys import record_key, table_prefix

CONSISTENCIES = ("row", "transaction")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


class Shop:
    """Two tables in regions of their own."""

    def __init__(self, upstream: EmbeddedUpstream) -> None:
        self.upstream = upstream
        self._session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
        self.execute("create database shop")
        for name in ("slow", "quick"):
            self.execute(f"create table shop.{name} (id int primary key, v int)")
        self._number = 0

    def execute(self, sql: str) -> None:
        self._session.execute(sql)

    def settle(self, ids: dict[str, int]) -> None:
        self.upstream.cluster.split_at([physical_key(table_prefix(i)) for i in (*ids.values(), max(ids.values()) + 1)])
        self.region = self.upstream.region_of(record_key(ids["slow"], 1)).id

    def insert(self, table: str) -> None:
        self._number += 1
        self.execute(f"insert into shop.{table} (id, v) values ({self._number}, {self._number})")

    def now(self) -> Ts:
        return Ts(self.upstream.publish_resolved())


def ids_of(log: Log, table: str) -> set[int]:
    return {event.columns["id"]["v"] for event in log.events(ROW) if event.table == table}


@pytest.mark.parametrize("consistency", CONSISTENCIES)
def test_a_processor_passes_what_another_has_not_resolved_by_rows_alone(
    consistency: str, broker: Broker, tmp_path: Path
) -> None:
    topic = f"held-{consistency}"
    uri = broker.uri(topic, f"protocol=open-protocol&partition-num=3&consistency={consistency}")

    async def story(shop: Shop) -> None:
        start_ts = shop.now()
        history: Any = SimpleNamespace(bootstrap_ts=start_ts, end_ts=2**63)
        rng = random.Random(1)
        async with clustered(shop.upstream, history, tmp_path, uri, rng, Running()) as (owner, builder, pd):
            cluster = Cluster(owner, builder, pd, rng)
            ids = {table.name: table.id for table in builder.feed.store.tables()}
            shop.settle(ids)
            await cluster.start(frozenset({ids["slow"]}), None)
            quick, slow = (processor.main.lane for processor in cluster.processors)

            async def until(holds: Any) -> None:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not holds():
                        failures = [owner.beside.failure, *(each.failure for each in cluster.processors)]
                        assert not any(failures), failures
                        await asyncio.to_thread(shop.now)
                        await SYSTEM_CLOCK.sleep(0.2)

            async def until_there(table: str, wanted: set[int]) -> None:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while topic not in broker.topics() or not wanted <= ids_of(read_log(broker, topic), table):
                        await SYSTEM_CLOCK.sleep(0.5)

            for table in ("slow", "quick"):
                shop.insert(table)
            await until_there("quick", {2})
            await until_there("slow", {1})
            shop.upstream.hold_resolved(shop.region)
            for _ in range(3):
                shop.insert("quick")
            inserted_ts = shop.now()
            await until(lambda: quick.progress.frontier_ts >= inserted_ts)
            assert slow.progress.frontier_ts < inserted_ts
            if consistency == "row":
                await until_there("quick", {2, 3, 4, 5})
            else:
                told = slow.progress.frontier_ts
                await until(lambda: quick.progress.together_ts == told)  # it has heard of all that there is to hear
                assert quick.progress.limit_ts < inserted_ts
                assert ids_of(read_log(broker, topic), "quick") == {2}
            await asyncio.to_thread(shop.execute, "alter table shop.quick add column w int")
            shop.insert("quick")
            assert not read_log(broker, topic).queries()
            assert read_log(broker, topic).resolved_ts < inserted_ts
            shop.upstream.release_resolved(shop.region)
            await until_there("quick", {2, 3, 4, 5, 6})
            last_ts = shop.now()
            await until(lambda: read_log(broker, topic).resolved_ts >= last_ts)
            await cluster.close()

    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.2) as upstream:
        asyncio.run(story(Shop(upstream)))
    log = read_log(broker, topic)
    log.check()
    assert len(log.queries()) == 1


@pytest.mark.soak
@pytest.mark.rounds
@pytest.mark.parametrize("consistency", CONSISTENCIES)
@pytest.mark.parametrize("name", ["ddl", "online"])
def test_constraints_hold_while_tables_move_and_processors_are_killed(
    name: str, consistency: str, broker: Broker, tmp_path: Path
) -> None:
    history = load(name)
    told: list[list[str]] = []
    with EmbeddedUpstream.start(
        stores=3, load=history.folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        for number in range(rounds(1)):
            rng = random.Random(f"{seed(SEED)}-{name}-kafka-{number}")
            topic = f"moved-{name}-{consistency}-{number}"
            uri = broker.uri(topic, f"protocol=open-protocol&partition-num=3&consistency={consistency}")
            cluster = play(upstream, history, tmp_path / str(number), uri, rng)
            log = read_log(broker, topic)
            log.check()
            assert log.resolved_ts == history.end_ts
            told.append(log.queries())
            rows = sum(1 for _ in log.events(ROW))
            print(f"round {number}: {cluster.moves} moves, {cluster.kills} kills, {rows} rows, {log.copies} copies")
    assert all(each == told[0] for each in told)
