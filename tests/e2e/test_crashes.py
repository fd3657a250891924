"""Whatever is killed, and whenever: after the restart the files hold every change exactly once, in order."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import content, tree
from tests.e2e.conftest import Capture
from tests.e2e.crashing import STEPS, CrashError, Fate, doomed
from tests.e2e.processes import Command, sink_uri, wait_until
from tests.e2e.test_progress import TXN, rows_of
from tests.histories import History, load
from tests.rounds import rounds, seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.capture.running import run_changefeed
from tidemill.model.ts import Ts

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20261115
A_SCENE = 20  # rounds, after which the history is over
ROUNDS_AN_UPSTREAM = 6  # of which one kills the upstream as well


class Scene:
    """An upstream that replays a history, and a changefeed that is started again and again on one data-dir."""

    def __init__(self, folder: Path, history: History, end_ts: int) -> None:
        self.folder = folder
        self.end_ts = end_ts
        self.files = folder / "files"
        self.history = history
        self.upstream = self._start_upstream(port=0)
        self.pd: str = self.upstream.ready()["pd"]

    def run(self) -> Command:
        return Command(
            self.folder / "runs",
            "run",
            is_serving=True,
            pd=self.pd,
            sink_uri=sink_uri(self.files),
            start_ts=self.history.bootstrap_ts,
            target_ts=self.end_ts,
            data_dir=self.folder / "data",
            output="json",
        )

    def kill_upstream(self) -> None:
        self.upstream.kill()
        self.upstream.wait_until_gone()
        self.upstream = self._start_upstream(port=int(self.pd.rpartition(":")[2]))
        assert self.upstream.ready()["pd"] == self.pd

    def state(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.folder / "data" / "changefeed.json").read_bytes())
        except FileNotFoundError:
            return {"checkpoint_ts": 0, "rows": 0}
        return document

    def data_files(self) -> set[Path]:
        return set(self.files.rglob("CDC*.json"))

    def _start_upstream(self, port: int) -> Command:
        return Command(
            self.folder / "upstream",
            "upstream",
            is_serving=True,
            stores=3,
            pd_port=port,
            data_dir=self.folder / "cluster",
            load=self.history.folder / "history.parquet",
            replay=0.2,
            resolved_interval="200ms",
        )


# The moments at which a changefeed dies. Each waits for its moment, or for the changefeed to end by itself.


def while_starting(scene: Scene, run: Command, rng: random.Random) -> None:
    pause(run, rng.uniform(0.3, 5.0))


def some_commits_later(scene: Scene, run: Command, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        wait_for_change(run, scene.state)
    pause(run, rng.uniform(0.0, 0.4))


def right_after_a_commit(scene: Scene, run: Command, rng: random.Random) -> None:
    wait_for_change(run, lambda: scene.state()["rows"])


def between_files_and_commit(scene: Scene, run: Command, rng: random.Random) -> None:
    wait_for_change(run, scene.data_files)


MOMENTS = (while_starting, some_commits_later, right_after_a_commit, between_files_and_commit)
ROUNDS = len(MOMENTS)  # in make test, each once; make soak takes as many as it is told


def pause(run: Command, seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until or not run.is_running(), "a moment")


def wait_for_change(run: Command, look: Callable[[], Any]) -> None:
    before = look()
    wait_until(lambda: look() != before or not run.is_running(), "a change", every_seconds=0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> tuple[Path, int, int]:
    """(files of a capture that nobody disturbed, its rows, the ts up to which it goes) of the history ``online``."""
    history, folder = load("online"), tmp_path_factory.mktemp("undisturbed")
    (end_ts,) = {mark["ts"] for mark in history.marks() if mark["mark"] == "after_partitions"}
    with EmbeddedUpstream.start(
        stores=3, load=history.folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        options = RunOptions(
            upstream.pd_address, sink_uri(folder / "files"), folder / "data", Ts(history.bootstrap_ts), Ts(end_ts)
        )
        _, last = run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)
    return folder / "files", last.totals.rows, end_ts


@pytest.mark.rounds
@pytest.mark.parametrize("part", range(-(-rounds(ROUNDS) // A_SCENE)))
def test_kills_of_the_changefeed_and_of_the_upstream_leave_every_change_in_the_files_once(
    part: int, tmp_path: Path, undisturbed: tuple[Path, int, int]
) -> None:
    whole, expected_rows, end_ts = undisturbed
    rng = random.Random(seed(SEED) + part)
    count = min(A_SCENE, rounds(ROUNDS) - part * A_SCENE)
    scene = Scene(tmp_path / "scene", load("online"), end_ts)
    shaken = set(rng.sample(range(count), -(-count // ROUNDS_AN_UPSTREAM)))
    moments = [moment for _ in range(count) for moment in rng.sample(MOMENTS, len(MOMENTS))]  # each kind comes soon
    reached = scene.state()
    runs: list[Command] = []
    try:
        for number, moment in zip(range(count), moments, strict=False):
            alone, haste = rng.random() < 0.5, rng.random() < 0.5
            run = scene.run()
            runs.append(run)
            if number in shaken:
                run.ready()
                scene.kill_upstream()
            moment(scene, run, rng)
            assert run.is_running() or run.wait() == 0, run.errors
            print(
                f"round {number}: killed {moment.__name__}, alone: {alone}, in haste: {haste}, rows {reached['rows']}"
            )
            run.kill(alone=alone)
            if not haste:  # the next one may meet what is left of this one
                run.wait_until_gone()
            now = scene.state()
            assert now["checkpoint_ts"] >= reached["checkpoint_ts"]
            assert now["rows"] >= reached["rows"]
            reached = now
        with scene.run() as last:
            assert last.wait() == 0, last.errors
            summary = json.loads(last.output)
        for run in runs:
            run.wait_until_gone()
    finally:
        for process in [*runs, scene.upstream]:
            process.kill()
    content.assert_same(content.read(scene.files), content.read(whole))
    # What was done before the last restart was not done again.
    assert reached["rows"] + summary["rows"] == scene.state()["rows"] == expected_rows


def test_a_crash_at_any_step_between_release_and_commit_loses_and_repeats_nothing(
    tmp_path: Path, capture: Capture
) -> None:
    history = load("ddl")
    end_ts = history.marks()[len(history.marks()) // 2]["ts"]
    rng = random.Random(seed(SEED))
    steps = rng.sample(STEPS, len(STEPS))
    print(steps)
    with EmbeddedUpstream.start(
        stores=2, load=history.folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        expected_rows = capture(upstream.pd_address, tmp_path / "undisturbed", history.bootstrap_ts, end_ts).totals.rows
        files = tmp_path / "files"
        options = RunOptions(
            upstream.pd_address,
            sink_uri(files),
            tmp_path / "data-files",
            Ts(history.bootstrap_ts),
            Ts(end_ts),
        )
        checkpoints = [0]
        for step in steps:
            with pytest.raises(CrashError):
                run_to_its_end(doomed(options, Fate(step, rng.randint(1, 6))))
            checkpoints.append(json.loads((options.data_dir / "changefeed.json").read_bytes())["checkpoint_ts"])
        rows_before = json.loads((options.data_dir / "changefeed.json").read_bytes())["rows"]
        last = capture(upstream.pd_address, files, history.bootstrap_ts, end_ts)
    content.assert_same(content.read(files), content.read(tmp_path / "undisturbed"))
    assert checkpoints == sorted(checkpoints)
    assert rows_before + last.totals.rows == expected_rows


def run_to_its_end(feed: Changefeed) -> None:
    try:
        feed.start()
        while not feed.poll():
            pass
    finally:
        feed.close()


def test_a_restart_pulls_only_what_is_not_done(tmp_path: Path, capture: Capture) -> None:
    history = load("types")
    changes = history.row_changes()
    middle = changes.column("commit_ts")[len(changes) // 2].as_py()
    files = tmp_path / "files"
    with EmbeddedUpstream.start(load=history.folder / "history.parquet", resolved_interval_seconds=0.05) as upstream:
        pd, start_ts = upstream.pd_address, history.bootstrap_ts
        first = capture(pd, files, start_ts, middle)
        second = capture(pd, files, start_ts, history.end_ts)
        third = capture(pd, files, start_ts, history.end_ts)
    above = sum(ts > middle for ts in changes.column("commit_ts").to_pylist())
    jobs_above = sum(ts >= middle for ts in history.job_changes().column("commit_ts").to_pylist())
    assert first.totals.rows > 0
    assert 0 < second.pulled_rows <= above + jobs_above
    assert third.pulled_rows == third.totals.rows == 0


def test_a_changefeed_that_saw_no_change_resumes(tmp_path: Path, capture: Capture) -> None:
    history = load("types")
    files = tmp_path / "files"
    with EmbeddedUpstream.start(load=history.folder / "history.parquet", resolved_interval_seconds=0.05) as upstream:
        quiet = upstream.tso()
        for _ in range(2):
            capture(upstream.pd_address, files, quiet, upstream.tso())
    assert list(tree.messages(files)) == []


def test_processes_of_spark_that_die_are_replaced_the_jvm_too(tmp_path: Path) -> None:
    files, data = tmp_path / "files", tmp_path / "data"
    rows = rows_of(TXN)

    def written() -> int:
        return int(json.loads((data / "changefeed.json").read_bytes())["rows"])

    with EmbeddedUpstream.start(
        load=load("types").folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        flags = {"pd": upstream.pd_address, "sink_uri": sink_uri(files), "data_dir": data}
        with Command(tmp_path, "run", is_serving=True, **flags) as run:
            run.ready()
            committed = [upstream.commit(rows)[1]]
            wait_until(lambda: written() == len(rows) or not run.is_running(), "a batch")
            for victims in ("-m tidemill.spark.daemon", "spark.deploy.SparkSubmit"):
                kill(run, victims)
                committed.append(upstream.commit(rows)[1])
                wait_until(lambda: written() == len(committed) * len(rows) or not run.is_running(), "a batch")
                assert run.is_running(), run.errors
            assert run.terminate() == 0, run.errors
            assert "Traceback" not in run.errors
    assert [m["_tidb"]["commitTs"] for m in tree.messages(files)] == [ts for ts in committed for _ in rows]
    tree.check_layout(files)


def kill(run: Command, words: str) -> None:
    """``kill -9`` of those processes of the run whose command line has the words."""
    found = run.named(words)
    assert found, words
    for process in found:
        process.kill()
