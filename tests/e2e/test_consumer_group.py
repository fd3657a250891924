"""Two consumers of one group into a MariaDB: one is killed or stopped, the other goes on, and nothing comes twice."""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bank import Bank, Rows
from tests.e2e.mirrored import Reader, held
from tests.e2e.processes import Command, wait_until
from tests.kafka import Broker
from tests.kafka import running as running_kafka
from tests.mariadb import MariaDb, need_mariadb
from tests.mariadb import running as running_mariadb
from tests.rounds import rounds, seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261119
FATES = ("stopped", "killed", "ended")  # in make test the first two; make soak takes as many as it is told
WORK, NO_WORK = "group bank: the work is ours", "group bank: the work is given up"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


class Members:
    """Of a group: always two."""

    def __init__(self, folder: Path, uri: str, to: str, consistency: str) -> None:
        self._folder, self._uri = folder, uri
        self._flags: dict[str, Any] = {"to": to, "consistency": consistency, "group": "bank"}
        self.all: list[Command] = []

    def __enter__(self) -> "Members":
        self.start()
        wait_until(lambda: self.at_work() is not None, "somebody who works", every_seconds=0.1)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for command in self.all:
            command.kill()

    def start(self) -> None:
        folder = self._folder / f"member-{len(self.all)}"
        words = "consume", self._uri
        self.all.append(Command(self._folder / "runs", *words, is_serving=True, data_dir=folder, **self._flags))
        self.all[-1].ready()

    def at_work(self) -> Command | None:
        """As they say themselves."""
        found = [c for c in self.all if c.is_running() and c.errors.rfind(WORK) > c.errors.rfind(NO_WORK)]
        return found[-1] if found else None

    def wait_for_another(self, than: Command) -> None:
        def has_taken_over() -> bool:
            return any(
                c is not than and c.is_running() and c.errors.rfind(WORK) > c.errors.rfind(NO_WORK) for c in self.all
            )

        wait_until(has_taken_over, "another one that has taken over", every_seconds=0.1)


def halt(command: Command, rng: random.Random) -> list[int]:
    """SIGSTOP, of it alone or of its JVM and workers, too."""
    others = [process.pid for process in command.survivors()] if rng.random() < 0.5 else []
    pids = [command.pid, *(pid for pid in others if pid != command.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def stop_and_wake(one: Command, members: Members, bank: Bank, rng: random.Random) -> None:
    """It notices that it has been replaced, and stands by."""
    pids = halt(one, rng)
    members.wait_for_another(one)
    bank.wait_for(rng.randint(1, 4))
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: one.errors.count(NO_WORK) == one.errors.count(WORK), "the word that it stands by")


def wait_until_equal(mariadb: MariaDb, wanted: Rows, after: str) -> None:
    wait_until(lambda: held(mariadb) == wanted, f"equality after one was {after}", every_seconds=0.2)


@pytest.mark.rounds
@pytest.mark.parametrize("consistency", ["transaction", pytest.param("row", marks=pytest.mark.soak)])
def test_the_work_survives_the_death_of_any_member(broker: Broker, tmp_path: Path, consistency: str) -> None:
    need_mariadb()
    rng, count = random.Random(chosen := seed(SEED)), rounds(2)
    rules = tmp_path / "rules.toml"
    rules.write_text('[sink]\ndispatchers = [{matcher = ["bank.*"], partition = "index-value"}]\n')
    with ExitStack() as stack:
        mariadb = stack.enter_context(running_mariadb(tmp_path / "mariadb"))
        bank = stack.enter_context(Bank(tmp_path, chosen))
        uri = broker.uri(tmp_path.name, "protocol=open-protocol&partition-num=3")
        flags: dict[str, Any] = {"pd": bank.pd, "sink_uri": uri, "start_ts": bank.open(), "config": rules}
        capture = Command(tmp_path / "runs", "run", is_serving=True, data_dir=tmp_path / "feed", **flags)
        stack.callback(capture.kill)
        capture.ready()
        members = stack.enter_context(Members(tmp_path, uri, mariadb.uri(), consistency))
        reader = stack.enter_context(Reader(mariadb))
        for number in range(count):
            fate = FATES[number % len(FATES)]
            bank.go()
            bank.wait_for(rng.randint(2, 10))
            one = members.at_work()
            assert one is not None
            match fate:
                case "stopped":
                    stop_and_wake(one, members, bank, rng)
                case "killed":
                    one.kill(alone=rng.random() < 0.5)
                    members.start()
                    members.wait_for_another(one)
                case "ended":
                    assert one.terminate() == 0, one.errors
                    members.start()
                    members.wait_for_another(one)
            bank.wait_for(rng.randint(2, 6))
            bank.hold()
            wait_until_equal(mariadb, bank.rows(), fate)
            assert capture.is_running(), capture.errors
            assert sum(command.is_running() for command in members.all) == 2, [c.errors for c in members.all]
        assert reader.looked
        if consistency == "transaction":
            assert reader.torn == []
        with Command(tmp_path / "runs", "check-topic", uri, output="json") as check:
            assert check.wait() == 0, check.output + check.errors
        report = json.loads(check.output)
        assert (report["is_ok"], report["rows"] > 0, report["ddls"] > 0) == (True, True, True)
