"""The same job on a real Spark standalone cluster gives the same files."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.e2e import content
from tests.e2e.conftest import Capture
from tests.e2e.processes import Command, sink_uri, wait_until
from tests.histories import load
from tidebox.upstream import EmbeddedUpstream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK_HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
# What bin/load-spark-env.sh would set: a worker needs it to start executors.
ENVIRONMENT = {"SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}


class Daemon:
    """One JVM of the cluster. Its log tells when it is up."""

    def __init__(self, folder: Path, kind: str, *words: str) -> None:
        self._log = folder / f"{len(list(folder.iterdir()))}.log"
        settings = folder / "log4j2.properties"
        settings.write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
            "appender.out.name = out\nappender.out.target = SYSTEM_ERR\nappender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %m%n\n"
        )
        java = (
            os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
        )
        command = [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Dlog4j2.configurationFile=file:{settings}", "-cp", f"{SPARK_HOME}/jars/*", f"{DEPLOY}.{kind}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", "0", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
            )

    def wait_for(self, pattern: str) -> str:
        """The first group of what its log says once it matches."""
        found: list[str] = []

        def is_there() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            found.extend(re.findall(pattern, self._log.read_text()))
            return bool(found)

        wait_until(is_there, f"{pattern!r} in {self._log}")
        return found[0]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


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
    history = load("online")
    (end_ts,) = {mark["ts"] for mark in history.marks() if mark["mark"] == "after_partitions"}
    files = tmp_path / "files"
    with EmbeddedUpstream.start(
        stores=3, load=history.folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        with Command(
            tmp_path,
            "run",
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
