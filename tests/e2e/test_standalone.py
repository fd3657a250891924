"""The same job on a real Spark standalone cluster gives the same files."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import content
from tests.e2e.conftest import Capture
from tests.e2e.processes import Command, sink_uri
from tests.e2e.standalone import Daemon
from tests.histories import load
from tidebox.upstream import EmbeddedUpstream

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers of one core each."""
    folder = tmp_path_factory.mktemp("spark-cluster")
    daemons = [Daemon(folder, "master.Master", "--port", "0")]
    try:
        address = daemons[0].wait_for(r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            work = str(folder / f"work-{number}")
            size = ["--cores", "1", "--memory", "700m", "--work-dir", work]
            daemons.append(Daemon(folder, "worker.Worker", *size, address))
        for worker in daemons[1:]:
            worker.wait_for(r"(Successfully registered with master)")
        yield address
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


def test_two_workers_write_the_same_files_as_one_process(tmp_path: Path, spark_master: str, capture: Capture) -> None:
    """Their Python comes out of an archive that Spark sends along."""
    history = load("online")
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / "bin" / "python").chmod(0o755)
    archive = shutil.make_archive(str(environment), "gztar", environment)
    (end_ts,) = {mark["ts"] for mark in history.marks() if mark["mark"] == "after_partitions"}
    files = tmp_path / "files"
    with EmbeddedUpstream.start(
        stores=3, load=history.folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        with Command(
            tmp_path,
            "run",
            "--spark-conf",
            f"spark.archives={archive}#environment",
            "--spark-conf",
            "spark.pyspark.python=./environment/bin/python",
            pd=upstream.pd_address,
            sink_uri=sink_uri(files),
            start_ts=history.bootstrap_ts,
            target_ts=end_ts,
            data_dir=tmp_path / "data",
            spark_master=spark_master,
        ) as run:
            assert run.wait() == 0, run.errors
        capture(upstream.pd_address, tmp_path / "local", history.bootstrap_ts, end_ts)
    content.assert_same(content.read(files), content.read(tmp_path / "local"))


def test_a_master_that_nobody_runs_is_named(tmp_path: Path) -> None:
    with (
        EmbeddedUpstream.start() as upstream,
        Command(
            tmp_path,
            "run",
            pd=upstream.pd_address,
            sink_uri="blackhole://",
            data_dir=tmp_path / "data",
            spark_master="spark://127.0.0.1:1",
        ) as run,
    ):
        assert run.wait() == 1
    assert "cannot reach the Spark master at spark://127.0.0.1:1" in run.errors
    assert "Traceback" not in run.errors
