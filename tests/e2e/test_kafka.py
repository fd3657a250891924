"""SQL on the embedded TiDB into a real Kafka, by way of Spark: what readers of the topics find there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Command
from tests.e2e.shop import AFTER, BEFORE, TABLES
from tests.e2e.sqlclient import Client
from tests.kafka import Broker, running
from tests.open_topic import read_log
from tidebox.upstream import EmbeddedUpstream

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=3, sql_port=0, sql_nodes=2, resolved_interval_seconds=0.05) as started:
        yield started


def execute(upstream: EmbeddedUpstream, statements: list[str]) -> None:
    with Client(upstream.sql_addresses[0]) as client:
        for statement in statements:
            for part in statement.split("; "):
                client.run(part)


def numbers(upstream: EmbeddedUpstream, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    with Client(upstream.sql_addresses[0]) as client:
        found = client.run(f"select {', '.join(columns)} from {table}")
    return sorted(tuple(None if value is None else int(value) for value in row) for row in found)


def test_topics_tell_the_whole_story(broker: Broker, upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    start_ts = upstream.tso()
    execute(upstream, ["create database shop", *TABLES, *BEFORE, *AFTER])
    target_ts = upstream.tso()
    uri = broker.uri("story", "protocol=open-protocol&partition-num=4")
    flags: dict[str, Any] = {"pd": upstream.pd_address, "sink_uri": uri, "data_dir": tmp_path / "data"}
    with Command(tmp_path, "run", start_ts=start_ts, target_ts=target_ts, **flags) as command:
        assert command.wait() == 0, command.errors
    log = read_log(broker, "story")
    assert len(log.partitions) == 4
    log.check()
    assert log.resolved_ts == target_ts
    assert log.copies == 0
    found = sorted((row["id"], row["n"], row["twice"]) for row in log.rows("shop", "sums").values())
    assert found == numbers(upstream, "shop.sums", ["id", "n", "twice"])
    assert log.queries()[0].lower().startswith("create database")
