"""Partitions become more and fewer while tables move between two processors and either is killed at random.

Owner, processors and broker are real; what Spark would run runs in threads, and goes on when its processor is gone.
"""

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.capture.test_two_processors import PATIENCE_SECONDS, Cluster, Running, clustered, play_alone
from tests.histories import History, load
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.open_topic import ROW, Log, read_log
from tests.rounds import rounds, seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.clock import SYSTEM_CLOCK
from tidemill.consumer.check_topic import check_topic
from tidemill.consumer.topic import parse_topic

SEED = 20261121
CHANGES = (9, 2, 5)
MOVES, KILL_EVERY = 40, 6
NEVER = 1 << 62


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="module")
def served() -> Iterator[EmbeddedUpstream]:
    path = load("ddl").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.05) as upstream:
        yield upstream


def rows_of(log: Log) -> set[str]:
    return {event.identity for event in log.events(ROW)}


def play(upstream: EmbeddedUpstream, history: History, folder: Path, uri: str, rng: random.Random) -> None:
    """The whole history, and on from there until everything has happened that is to."""
    at_work = Running()

    async def story() -> None:
        async with clustered(upstream, history, folder, uri, rng, at_work, NEVER) as (owner, builder, pd):
            cluster = Cluster(owner, builder, pd, rng)
            ids = sorted(table.id for table in builder.feed.store.tables())
            await cluster.start(frozenset(ids[: len(ids) // 2]), None)

            async def disturb() -> None:
                for number in range(MOVES):
                    await cluster.move()
                    has_all = all(any(r.lane.name in owner.owned.at for r in p.lanes) for p in cluster.processors)
                    if number % KILL_EVERY == KILL_EVERY - 1 and has_all:
                        await cluster.kill(None)

            async def change() -> None:
                for partitions in CHANGES:
                    await SYSTEM_CLOCK.sleep(rng.random() * 0.5)
                    await owner.meeting.repartition(partitions)

            def failure() -> BaseException | None:
                found = [owner.beside.failure, *(each.failure for each in cluster.processors)]
                return next((each for each in found if each is not None), None)

            async with asyncio.timeout(PATIENCE_SECONDS):
                both = asyncio.gather(disturb(), change())
                while not both.done() or owner.owned.checkpoint_ts < history.end_ts:
                    if (error := failure()) is not None:
                        raise error
                    await SYSTEM_CLOCK.sleep(0.01)
                await both
                told_ts = owner.owned.checkpoint_ts
                while owner.publishing.told_ts < told_ts:
                    await SYSTEM_CLOCK.sleep(0.01)
            while not at_work.is_quiet:  # tasks of those that were killed
                await SYSTEM_CLOCK.sleep(0.01)
            await cluster.close()

    asyncio.run(story())


@pytest.mark.rounds
def test_each_row_is_where_it_belongs_whoever_is_killed(
    broker: Broker, served: EmbeddedUpstream, tmp_path: Path
) -> None:
    history = load("ddl")

    def uri(topic: str) -> Any:
        return broker.uri(topic, "protocol=open-protocol&partition-num=4")

    play_alone(served, history, tmp_path / "alone", uri("alone"))
    expected = rows_of(read_log(broker, "alone"))
    for number in range(rounds(1)):
        topic = f"round-{number}"
        rng = random.Random(f"{seed(SEED)}-{number}")
        play(served, history, tmp_path / topic, uri(topic), rng)
        assert rows_of(read_log(broker, topic)) == expected
        report = check_topic(parse_topic(uri(topic)), keys_stay=True, partitions=4, should_stop=lambda: False)
        assert report.is_ok, report.violations
        assert report.admin == sum(max(each) for each in pairwise((4, *CHANGES)))
