"""SQL on the embedded TiDB, into Kafka, and from there into a MariaDB: equal, and no transaction ever torn."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bank import Bank, kill_part
from tests.e2e.mirrored import Reader, held
from tests.e2e.processes import Command, wait_until
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.mariadb import need_mariadb
from tests.mariadb import running as running_mariadb
from tests.rounds import rounds, seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261118
VICTIMS = ("consumer", "worker", "capture", "broker", "jvm")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.mark.rounds
@pytest.mark.parametrize(
    ("protocol", "consistency", "usually"),
    [
        pytest.param("open-protocol", "transaction", 2, id="transactions"),
        pytest.param("open-protocol", "row", 1, id="rows"),
        pytest.param(
            "canal-json&enable-tidb-extension=true", "transaction", 1, id="canal-json", marks=pytest.mark.soak
        ),
    ],
)
def test_a_bank_comes_out_of_a_topic_as_it_is_whoever_is_killed(
    broker: Broker, tmp_path: Path, protocol: str, consistency: str, usually: int
) -> None:
    need_mariadb()
    rng, count = random.Random(chosen := seed(SEED)), rounds(usually)
    victims = [victim for _ in range(count) for victim in rng.sample(VICTIMS, len(VICTIMS))][:count]
    topic = tmp_path.name
    # Rows of one table go to several partitions, and so do those of one transfer.
    rules = tmp_path / "rules.toml"
    rules.write_text('[sink]\ndispatchers = [{matcher = ["bank.*"], partition = "index-value"}]\n')
    with ExitStack() as stack:
        mariadb = stack.enter_context(running_mariadb(tmp_path / "mariadb"))
        bank = stack.enter_context(Bank(tmp_path, chosen))
        uri = broker.uri(topic, f"protocol={protocol}&partition-num=3")
        flags: dict[str, Any] = {
            "pd": bank.pd, "sink_uri": uri, "start_ts": bank.open(), "data_dir": tmp_path / "feed", "config": rules,
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

        reader = stack.enter_context(Reader(mariadb))
        for victim in victims:
            bank.go()
            bank.wait_for(rng.randint(2, 10))
            match victim:
                case "consumer":
                    reading.kill()
                    reading = consumer()
                case "capture":
                    capture.kill()
                    capture = feed()
                case "broker":
                    with broker.away():
                        bank.wait_for(2)
                case "worker" | "jvm":
                    kill_part(reading, victim, rng)
            bank.wait_for(rng.randint(2, 6))
            bank.hold()
            wanted = bank.rows()
            wait_until(is_equal, f"equality after {victim}", every_seconds=0.2)
        assert reader.looked
        with Command(tmp_path / "runs", "check-topic", uri, output="json") as check:
            assert check.wait() == 0, check.output + check.errors
            report = json.loads(check.output)
        assert report["is_ok"]
        assert report["rows"]
        assert report["ddls"]
        if consistency == "transaction":
            assert reader.torn == []
