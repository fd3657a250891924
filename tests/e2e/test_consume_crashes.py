"""``tidemill consume`` into files and into lakes, killed again and again: each change is there exactly once."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.story import Story, tell
from tests.e2e.bank import kill_part
from tests.e2e.processes import Command, wait_until
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.rounds import rounds, seed
from tidemill.errors import UsageError
from tidemill.sinks.lake.reader import open_lake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261120
PLACES = {
    "files": "file://{root}?protocol=canal-json&enable-tidb-extension=true&date-separator=none",
    "iceberg": "iceberg://{root}",
    "delta": "delta://{root}",
    "parquet": "file://{root}?protocol=parquet",
}
VICTIMS = ("consumer", "consumer", "worker", "jvm")

Change = tuple[int, str, int]  # commit-ts, operation, id


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


class Reading:
    """One consumer into one place."""

    def __init__(self, folder: Path, uri: str, kind: str) -> None:
        self.kind, self.root, self._folder, self._uri = kind, folder / kind, folder, uri
        self.to = PLACES[kind].format(root=self.root)
        self.runs: list[Command] = []
        self.start()

    @property
    def run(self) -> Command:
        return self.runs[-1]

    def start(self) -> None:
        folder = self._folder / f"consumer-{self.kind}"
        self.runs.append(
            Command(self._folder / "runs", "consume", self._uri, is_serving=True, to=self.to, data_dir=folder)
        )

    def close(self) -> None:
        for run in self.runs:
            run.kill()

    def kill(self, victim: str, rng: random.Random) -> None:
        if victim == "consumer":
            self.run.kill(alone=rng.random() < 0.5)
            self.start()
        else:
            kill_part(self.run, victim, rng)

    def wait_for(self, ts: int) -> None:
        def is_there() -> bool:
            assert self.run.is_running(), self.run.errors
            return self.checkpoint() >= ts

        wait_until(is_there, f"ts {ts} in {self.kind}", every_seconds=0.2)

    def checkpoint(self) -> int:
        if self.kind != "files":
            try:
                return int(open_lake(self.to).checkpoint_ts)
            except UsageError:
                return 0
        metadata = self.root / "metadata"
        return int(json.loads(metadata.read_bytes())["checkpoint-ts"]) if metadata.exists() else 0

    def changes(self, story: Story) -> list[Change]:
        """Of the table ``thing``, which was ``item``."""
        if self.kind != "files":
            lake = open_lake(self.to)
            held = lake.changes(lake.table("shop", "thing")).to_pylist()
            return [(row["_commit_ts"], row["_op"], row["id"]) for row in held if row["_op"] != "T"]
        files = sorted(path for name in ("item", "thing") for path in (self.root / "shop" / name).rglob("CDC*.json"))
        lines = [json.loads(line) for path in files for line in path.read_bytes().splitlines()]
        return [(each["_tidb"]["commitTs"], each["type"][0], int(each["data"][0]["id"])) for each in lines]


@pytest.mark.rounds
@pytest.mark.parametrize(
    "kinds",
    [pytest.param(("files", "iceberg"), id="now"), pytest.param(tuple(PLACES), id="all", marks=pytest.mark.soak)],
)
def test_each_change_is_there_once_however_often_the_consumer_is_killed(
    broker: Broker, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    rng, count = random.Random(seed(SEED)), rounds(2)
    uri = broker.uri(tmp_path.name, "protocol=open-protocol&partition-num=3")
    story = tell(uri)
    with ExitStack() as stack:
        readings = [Reading(tmp_path, uri, kind) for kind in kinds]
        for reading in readings:
            stack.callback(reading.close)
        for reading in readings:
            reading.run.ready()
        first = 2000
        for number in range(count):
            for reading in readings:
                more(story, first, rng)
                first += 30
                reading.kill(VICTIMS[number % len(VICTIMS)], rng)
            more(story, first, rng)
            first += 30
            for reading in readings:
                reading.wait_for(story.ts - 10)
        for reading in readings:
            assert reading.run.terminate() == 0, reading.run.errors
    wanted = sorted([*story.changes["item"], *story.changes["thing"]])
    for reading in readings:
        assert sorted(reading.changes(story)) == wanted, reading.kind


def more(story: Story, first: int, rng: random.Random) -> None:
    """Some transactions, each resolved by itself, so that batches end anywhere."""
    for id in range(first, first + rng.randint(5, 25)):
        row: dict[str, Any] = {**story.row(id), "note": "more", "code": f"c{id}"}
        row.pop("sku")
        story.transaction(("thing", id, row))
        if rng.random() < 0.3:
            story.transaction(("thing", id, None))
        if rng.random() < 0.5:
            story.resolve()
    story.resolve()
