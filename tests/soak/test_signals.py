"""Signals at any moment of any command, one after the other on the same changefeed: nothing lost, nothing left."""

import os
import random
import signal
import time
from itertools import islice
from pathlib import Path

import pytest

from tests.e2e import tree
from tests.e2e.processes import Command, sink_uri
from tests.e2e.test_signals import TXN, closed_port
from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.tidb.keys import table_prefix

pytestmark = [pytest.mark.soak, pytest.mark.spark]

ROUNDS = int(os.environ.get("TIDEMILL_ROUNDS", "10"))
SEED = int(os.environ.get("TIDEMILL_SEED", "1"))
LONGEST_SECONDS = 15.0  # that a command is left alone: some are stopped before they run, some while they do


def test_signals_at_any_moment(tmp_path: Path) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds")
    chance = random.Random(SEED)
    history, prefix = load("types"), table_prefix(TXN)
    rows = [
        Mutation(Op.PUT, key, value)
        for key, value in islice(history.scan_at(prefix + b"_r", prefix + b"_s", history.end_ts), 5)
    ]
    path, files = history.folder / "history.parquet", tmp_path / "files"
    with EmbeddedUpstream.start(stores=1, load=path, resolved_interval_seconds=0.05) as upstream:
        pd, start_ts = upstream.pd_address, upstream.tso()
        run = {"pd": pd, "sink_uri": sink_uri(files), "data_dir": tmp_path / "data", "start_ts": start_ts}
        away = {"pd": pd, "sink_uri": f"mysql://root@127.0.0.1:{closed_port()}/", "start_ts": start_ts}
        commits = []
        for number in range(ROUNDS):
            commits.append(upstream.commit(rows)[1])
            kind = chance.choice(["run", "run", "run", "away", "verify", "upstream"])
            folder = tmp_path / str(number)
            match kind:
                case "run":
                    command = Command(folder, "run", **run)
                case "away":
                    command = Command(folder, "run", data_dir=folder / "data", **away)
                case "verify":
                    command = Command(folder, "verify", pd=pd, sink_uri=sink_uri(files), data_dir=tmp_path / "data")
                case "upstream":
                    command = Command(folder, "upstream", pd_port=0, load=path)
            _stop(command, chance, kind)
        with Command(tmp_path, "run", target_ts=commits[-1], **run) as last:
            assert last.wait() == 0, last.errors
    found = sorted(message["_tidb"]["commitTs"] for message in tree.messages(files))
    assert found == sorted(commits * 5)


def _stop(command: Command, chance: random.Random, kind: str) -> None:
    """After a while, in some cases twice; see that it ends as it should."""
    number, twice = chance.choice([signal.SIGINT, signal.SIGTERM]), chance.random() < 0.2
    deadline = time.monotonic() + chance.uniform(0.7, LONGEST_SECONDS)  # an interpreter takes its time to start
    with command:
        while command.is_running() and time.monotonic() < deadline:
            time.sleep(0.01)
        is_done = not command.is_running()  # by itself: verify may be quick, or find nothing to compare with yet
        command.signal(number)
        if twice:
            time.sleep(chance.uniform(0.4, 2.0))
            command.signal(number)
        code = command.wait()
        what = f"{kind}, {signal.Signals(number).name}{' twice' if twice else ''}: {code}\n{command.errors}"
        assert is_done or code in ((0, 1) if twice or kind == "verify" else (0,)), what
        assert "Traceback" not in command.errors, what
        assert command.survivors() == [], what
        assert list(command.temporary.iterdir()) == [], what
