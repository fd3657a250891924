"""A bank goes through a topic that gets more partitions, and fewer, under load, with a consumer behind it."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bank import Bank, kill_part
from tests.e2e.processes import Command, wait_until
from tests.e2e.test_consume import Reader, held
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.mariadb import need_mariadb
from tests.mariadb import running as running_mariadb
from tests.rounds import rounds, seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261120
VICTIMS = ("capture", "consumer", "worker", "broker", "nobody")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.mark.rounds
@pytest.mark.parametrize("consistency", ["transaction", pytest.param("row", marks=pytest.mark.soak)])
def test_partitions_become_more_and_fewer_under_load_whoever_is_killed(
    broker: Broker, tmp_path: Path, consistency: str
) -> None:
    need_mariadb()
    rng, count = random.Random(chosen := seed(SEED)), rounds(1)
    changes = [n for _ in range(count) for n in (9, 2, rng.randint(3, 12))][: max(2, 3 * (count - 1))]
    victims = [victim for _ in changes for victim in rng.sample(VICTIMS, len(VICTIMS))]
    topic, data = tmp_path.name, tmp_path / "feed"
    rules = tmp_path / "rules.toml"
    rules.write_text('[sink]\ndispatchers = [{matcher = ["bank.*"], partition = "index-value"}]\n')
    with ExitStack() as stack:
        mariadb = stack.enter_context(running_mariadb(tmp_path / "mariadb"))
        bank = stack.enter_context(Bank(tmp_path, chosen))
        uri = broker.uri(topic, "protocol=open-protocol&partition-num=4")
        flags: dict[str, Any] = {
            "pd": bank.pd, "sink_uri": uri, "start_ts": bank.open(), "data_dir": data, "config": rules,
        }  # fmt: skip

        def feed() -> Command:
            return Command(tmp_path / "runs", "run", is_serving=True, **flags)

        def consumer() -> Command:
            folder, to = tmp_path / "consumer", mariadb.uri()
            return Command(
                tmp_path / "runs", "consume", uri, is_serving=True, to=to, data_dir=folder, consistency=consistency
            )

        capture = feed()
        stack.callback(lambda: capture.kill())
        capture.ready()
        reading = consumer()
        stack.callback(lambda: reading.kill())

        def is_equal() -> bool:
            assert capture.is_running(), capture.errors
            assert reading.is_running(), reading.errors
            return held(mariadb) == wanted

        def is_told(partitions: int) -> bool:
            assert capture.is_running(), capture.errors
            sink = json.loads((data / "changefeed.json").read_bytes())["sink_state"] or {}
            return bool(sink.get("partitions") == partitions and sink["change"]["is_told"])

        reader = stack.enter_context(Reader(mariadb))
        for partitions, victim in zip(changes, victims, strict=False):
            bank.go()
            bank.wait_for(rng.randint(2, 8))
            with Command(tmp_path / "runs", "partitions", data_dir=data, count=partitions, wait=0) as asked:
                assert asked.wait() == 0, asked.errors
            bank.wait_for(rng.randint(0, 4))
            match victim:
                case "capture":
                    capture.kill(alone=rng.random() < 0.5)
                    capture = feed()
                case "consumer":
                    reading.kill()
                    reading = consumer()
                case "worker":
                    kill_part(capture, "worker", rng)
                case "broker":
                    with broker.away():
                        bank.wait_for(2)
            wait_until(lambda n=partitions: is_told(n), f"{partitions} partitions", every_seconds=0.1)  # type: ignore[misc]
            bank.wait_for(rng.randint(3, 8))
            bank.hold()
            wanted = bank.rows()
            wait_until(is_equal, f"equality with {partitions} partitions, {victim} killed", every_seconds=0.2)
        with Command(tmp_path / "runs", "check-topic", uri, partitions=4, output="json") as check:
            assert check.wait() == 0, check.output + check.errors
            report = json.loads(check.output)
        assert report["is_ok"], report
        assert len(report["partitions"]) >= 9
        assert report["rows"]
        assert broker.topics()[topic] == max(changes)
        if consistency == "transaction":
            assert reader.torn == []
