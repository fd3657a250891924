"""A bank on the embedded TiDB, told of in a topic while all around is killed. A seed tells what and when."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bank import TABLES, TOTAL, Bank, kill_part, total
from tests.e2e.processes import Command, wait_until
from tests.kafka import Broker, running
from tests.open_topic import Log, read_log
from tests.rounds import rounds, seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261118
VICTIMS = ("broker", "worker", "capture", "jvm")
TOPIC = "bank"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path / "kafka") as started:
        yield started


class Scene:
    """The changefeed's process, and what may happen to it and around it."""

    def __init__(self, bank: Bank, broker: Broker, folder: Path) -> None:
        self.bank, self.broker, self._folder = bank, broker, folder
        uri = broker.uri(TOPIC, "protocol=open-protocol&partition-num=3&write-timeout=5s")
        config = folder / "feed.toml"
        config.write_text('[sink]\ndispatchers = [{ matcher = ["bank.*"], partition = "index-value" }]\n')
        self._flags = {
            "pd": bank.pd, "sink_uri": uri, "start_ts": bank.open(), "data_dir": folder / "data", "config": config,
        }  # fmt: skip
        self.runs: list[Command] = []
        self.start()

    @property
    def run(self) -> Command:
        return self.runs[-1]

    def start(self) -> None:
        self.runs.append(Command(self._folder / "runs", "run", is_serving=True, **self._flags))

    def kill(self, victim: str, rng: random.Random) -> None:
        match victim:
            case "capture":
                self.run.kill(alone=rng.random() < 0.5)
                self.start()
            case "broker":
                self.broker.kill()
                self.broker.start()
            case part:
                kill_part(self.run, part, rng)

    def wait_until_equal(self) -> Log:
        """The bank holds still; whatever is left of its work arrives."""
        wanted = self.bank.rows()
        assert total(wanted) == TOTAL
        logs: list[Log] = []

        def is_equal() -> bool:
            if TOPIC not in self.broker.topics():
                return not self.run.is_running()
            logs.append(read_log(self.broker, TOPIC))
            return balances(logs[-1]) == bank_balances(wanted) or not self.run.is_running()

        wait_until(is_equal, "equality", every_seconds=0.5)
        assert self.run.is_running(), self.run.errors
        return logs[-1]


def balances(log: Log) -> dict[str, Any]:
    rows = {table: log.rows("bank", table).values() for table in TABLES}
    return {table: sorted((r["id"], r["tag"], r["balance"], r["moves"]) for r in rows[table]) for table in TABLES}


def bank_balances(rows: Any) -> dict[str, Any]:
    return {table: sorted((r["id"], r["tag"], r["balance"], r["moves"]) for r in rows[table]) for table in TABLES}


@pytest.mark.rounds
def test_a_topic_tells_of_a_bank_in_order_whatever_is_killed(broker: Broker, tmp_path: Path) -> None:
    rng, count = random.Random(chosen := seed(SEED)), rounds(len(VICTIMS))
    victims = [victim for _ in range(count) for victim in rng.sample(VICTIMS, len(VICTIMS))][:count]
    with Bank(tmp_path, chosen) as bank:
        scene = Scene(bank, broker, tmp_path)
        try:
            scene.wait_until_equal()
            for victim in victims:
                bank.go()
                bank.wait_for(rng.randint(3, 12))
                scene.kill(victim, rng)
                bank.wait_for(rng.randint(1, 5))
                bank.hold()
                log = scene.wait_until_equal()
                log.check()
                print(f"{victim}: {bank.transfers} transfers, {log.copies} copies")
            assert scene.run.terminate() == 0, scene.run.errors
            state = json.loads((tmp_path / "data" / "changefeed.json").read_bytes())
            assert read_log(broker, TOPIC).resolved_ts >= state["checkpoint_ts"]
        finally:
            for run in scene.runs:
                run.kill()
        for run in scene.runs:
            run.wait_until_gone()
