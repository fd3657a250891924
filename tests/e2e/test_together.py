"""Several changefeeds in one process: they share one Spark session, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e import tree
from tests.e2e.processes import PATIENCE_SECONDS, sink_uri, wait_until
from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.capture.running import run_changefeed
from tidemill.errors import DataDirError
from tidemill.model.change import Op
from tidemill.model.ts import Ts
from tidemill.tidb.keys import table_prefix

pytestmark = pytest.mark.spark

TXN = 174  # the physical id of a table of the history ``types``


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    history = load("types").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=history, resolved_interval_seconds=0.05) as started:
        yield started


def commit(upstream: EmbeddedUpstream) -> int:
    """Write some rows again; their commit-ts."""
    history, prefix = load("types"), table_prefix(TXN)
    pairs = islice(history.scan_at(prefix + b"_r", prefix + b"_s", history.end_ts), 5)
    return upstream.commit([Mutation(Op.PUT, key, value) for key, value in pairs])[1]


def options(upstream: EmbeddedUpstream, folder: Path, start_ts: int, target_ts: int | None = None) -> RunOptions:
    target = Ts(target_ts) if target_ts is not None else None
    return RunOptions(upstream.pd_address, sink_uri(folder / "files"), folder / "data", Ts(start_ts), target)


def until(feed: Changefeed, ts: int) -> None:
    wait_until(lambda: feed.poll(0.01) or feed.owner.owned.checkpoint_ts >= ts, f"the checkpoint {ts}")


def commits(folder: Path) -> list[int]:
    """The commit-ts of every message, each of which stands for one of five rows."""
    return sorted(message["_tidb"]["commitTs"] for message in tree.messages(folder / "files"))


@pytest.mark.usefixtures("spark")
def test_three_run_at_once_and_one_that_is_closed_leaves_the_others_running(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    start_ts = upstream.tso()
    first = commit(upstream)
    folders = [tmp_path / name for name in ("one", "two", "three")]
    one, two = (Changefeed(options(upstream, folder, start_ts)) for folder in folders[:2])
    ended: list[bool] = []

    def run_three(target_ts: int) -> None:
        chosen = options(upstream, folders[2], start_ts, target_ts)
        ended.append(run_changefeed(chosen, lambda: False, lambda feed: None, lambda now: None)[0])

    try:
        one.start()
        two.start()
        until(one, first)
        until(two, first)
        second = commit(upstream)
        three = Thread(target=run_three, args=(second,), daemon=True)
        three.start()
        until(two, second)
        two.close()
        third = commit(upstream)
        until(one, third)
        three.join(PATIENCE_SECONDS)
    finally:
        one.close()
        two.close()
    assert ended == [True]
    assert commits(folders[0]) == sorted([first, second, third] * 5)
    assert commits(folders[1]) == commits(folders[2]) == sorted([first, second] * 5)


@pytest.mark.usefixtures("spark")
def test_a_data_dir_in_use_is_refused_before_anything_in_it_is_touched(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    chosen = options(upstream, tmp_path, upstream.tso())
    one, other = Changefeed(chosen), Changefeed(chosen)
    try:
        one.start()
        mark = tmp_path / "data" / "scratch" / "mark"
        mark.touch()
        with pytest.raises(DataDirError, match="is in use by another tidemill"):
            other.start()
        other.close()
        assert mark.exists()
        first = commit(upstream)
        until(one, first)
    finally:
        one.close()
    assert commits(tmp_path) == [first] * 5


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from tidemill.model.ts import Ts
from tidemill.capture.options import RunOptions
from tidemill.capture.running import run_changefeed
from tidemill.spark import jvm
from tidemill.spark.session import borrow_session

pd, folder, start_ts, middle_ts, end_ts = json.loads(sys.argv[1])
given = lambda to: RunOptions(pd, f"file://{folder}/files?protocol=canal-json&enable-tidb-extension=true",
                              Path(folder) / "data", Ts(start_ts), Ts(to))
run = lambda to: run_changefeed(given(to), lambda: False, lambda feed: None, lambda now: None)[0]
handler = signal.getsignal(signal.SIGINT)
lease = borrow_session()
finished = [run(middle_ts)]
kept = list(Path(folder, "tmp").glob("tidemill-process-*/spark"))
finished.append(run(end_ts))  # the same folder again, on the same session
pids = [process.pid for process in jvm._started]
is_alive = jvm._started[0].poll() is None
lease.release()
print(json.dumps({
    "finished": finished, "jvms": len(pids), "is_alive": is_alive, "folders": len(kept),
    "is_gone": jvm._started[0].poll() is not None,
    "has_handler": signal.getsignal(signal.SIGINT) is handler,
    "in_data": sorted(path.name for path in Path(folder, "data", "scratch").iterdir()),
}))
"""


def test_the_session_has_a_folder_of_its_own_and_ends_with_the_last_that_uses_it(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    leftover = tmp_path / "tmp" / "tidemill-process-killed"
    leftover.mkdir(parents=True)
    (leftover / "process.lock").touch()
    start_ts, first, second = upstream.tso(), commit(upstream), commit(upstream)
    given = json.dumps([upstream.pd_address, str(tmp_path), start_ts, first, second])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, given],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {
        "finished": [True, True],
        "jvms": 1,
        "is_alive": True,
        "folders": 1,
        "is_gone": True,
        "has_handler": True,
        "in_data": [],
    }
    assert list((tmp_path / "tmp").iterdir()) == []
    assert commits(tmp_path) == sorted([first, second] * 5)
