"""A Spark standalone cluster: its master and workers, each a JVM of its own."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark

from tests.e2e.processes import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


class Daemon:
    """One JVM of the cluster. Its log tells when it is up."""

    def __init__(
        self, folder: Path, kind: str, *words: str, address: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        """``address``: at which it is reached. ``prefix``: goes before the command, as of another host."""
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
        command = [*prefix, str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Dlog4j2.configurationFile=file:{settings}", "-cp", f"{SPARK_HOME}/jars/*", f"{DEPLOY}.{kind}"]
        # What bin/load-spark-env.sh would set: a worker needs it to start executors.
        environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": address}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--host", address, "--webui-port", "0", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

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
