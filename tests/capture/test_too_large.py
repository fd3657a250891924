"""A row that is too large for a topic stops the changefeed, or is put aside, as its options say."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.test_two_processors import PATIENCE_SECONDS, Running, clustered, until_done
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.open_topic import ROW, read_log
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.members import NOBODY
from tidemill.capture.processor import SpanProcessor
from tidemill.errors import RowTooLargeError
from tidemill.flow.deadletter import read_quarantine
from tidemill.model.orders import EVERYTHING


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[EmbeddedUpstream, Any]]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        session = SqlSession(SqlNodes(started.cluster, 1, lease_seconds=3600).nodes[0])
        session.execute("create database shop")
        session.execute("create table shop.t (id int primary key, v varchar(6000))")
        start_ts = started.publish_resolved()
        for number in range(6):
            text = "x" * (5000 if number == 3 else 10)
            session.execute(f"insert into shop.t values ({number}, '{text}')")
        yield started, SimpleNamespace(bootstrap_ts=start_ts, end_ts=started.publish_resolved())


def run(broker: Broker, upstream: tuple[EmbeddedUpstream, Any], folder: Path, topic: str, more: str) -> None:
    uri = broker.uri(topic, f"protocol=open-protocol&partition-num=2&max-message-bytes=2000{more}")

    async def story() -> None:
        async with clustered(*upstream, folder, uri, random.Random(1), Running()) as (owner, builder, _):
            processor = SpanProcessor("alone", builder)
            await processor.start(EVERYTHING, owner.state.at, written_ts=None, replaces=NOBODY)
            owner.start()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await until_done(owner, lambda: [processor])
            finally:
                await processor.close()
                await owner.close()

    asyncio.run(story())


def test_it_stops_the_changefeed_before_it(broker: Broker, upstream: Any, tmp_path: Path) -> None:
    with pytest.raises(RowTooLargeError, match=r"shop\.t becomes a message of 5\d+ bytes.*on-too-large=quarantine"):
        run(broker, upstream, tmp_path, "stops", "")
    assert not read_quarantine(tmp_path / "data" / "undecodable")


def test_it_is_put_aside_and_all_others_go_on(broker: Broker, upstream: Any, tmp_path: Path) -> None:
    run(broker, upstream, tmp_path, "goes-on", "&on-too-large=quarantine")
    (aside,) = read_quarantine(tmp_path / "data" / "undecodable")
    assert b"x" * 5000 in aside.value
    log = read_log(broker, "goes-on")
    log.check()
    assert sorted(event.columns["id"]["v"] for event in log.events(ROW)) == [0, 1, 2, 4, 5]
    assert log.resolved_ts >= aside.commit_ts
