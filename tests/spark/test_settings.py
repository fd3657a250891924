"""What Spark is started with: the user's word first, ours where there is none, and what correctness needs always."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf

from tidemill.errors import UsageError
from tidemill.spark import session, settings
from tidemill.spark.session import borrow_session
from tidemill.spark.settings import read_conf, resolve

REQUIRED = {key: value for key, (value, _) in settings.REQUIRED.items()}


@pytest.fixture(autouse=True)
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Spark's settings, and nothing else that a machine may bring."""
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_HOME", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(settings, "_WORKERS_PYTHON", None)
    return tmp_path


def test_on_one_machine_everything_stays_on_loopback_and_with_this_interpreter(tmp_path: Path) -> None:
    found = resolve(None, {}, tmp_path, "feed")
    assert (found.master, found.python) == ("local[2]", sys.executable)
    assert found.conf["spark.driver.host"] == found.conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert found.conf["spark.driver.memory"] == "512m"
    assert found.conf["spark.app.name"] == "feed"
    assert REQUIRED.items() <= found.conf.items()


def test_workers_of_this_machine_are_reached_by_sockets_that_are_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = resolve(None, {}, tmp_path, "feed").conf
    folder = Path(conf["spark.python.unix.domain.socket.dir"])
    assert conf["spark.python.unix.domain.socket.enabled"] == "true"
    assert folder.stat().st_mode & 0o777 == 0o700
    enabled = "spark.python.unix.domain.socket.enabled"
    assert resolve(None, {enabled: "false"}, tmp_path, "feed").conf[enabled] == "false"
    assert enabled not in resolve("spark://127.0.0.1:7077", {}, tmp_path, "feed").conf  # no folder of ours is there
    monkeypatch.setattr(settings, "process_folder", lambda: Path("/" + "x" * 80))
    assert enabled not in resolve(None, {}, tmp_path, "feed").conf  # no address is that long


def test_workers_elsewhere_get_an_address_that_leads_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        conf = resolve("spark://127.0.0.1:7077", {}, tmp_path, "feed").conf
    assert conf["spark.driver.host"] == "127.0.0.1"  # the way to that master
    assert "spark.driver.bindAddress" not in conf
    assert "log4j" not in conf["spark.executor.extraJavaOptions"]  # our file is not there
    assert "spark.driver.host" not in resolve("yarn", {}, tmp_path, "feed").conf
    for master in ("k8s://https://127.0.0.1:6443", "k8s://127.0.0.1", "spark://127.0.0.1:1,10.0.0.1:2"):
        assert resolve(master, {}, tmp_path, "f").conf["spark.driver.host"] == "127.0.0.1"
    assert resolve("spark://[::1]:7077", {}, tmp_path, "f").conf.get("spark.driver.host", "[::1]") == "[::1]"
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    assert "spark.driver.host" not in resolve("spark://127.0.0.1:7077", {}, tmp_path, "feed").conf


def test_the_users_settings_win_in_their_order(tmp_path: Path, around: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (around / "spark-defaults.conf").write_text(
        "# Spark's own form\n\nspark.driver.memory   3g\nspark.ui.enabled=true\nspark.master : spark://127.0.0.1:7077\n"
        "spark.executor.memory 5g\nspark.local.dir = \\\n    /fast\nnot.sparks 1\n  spark.app.name\tshop \n"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--executor-memory 6g --conf 'spark.x=a b' pyspark-shell")
    found = resolve(None, {"spark.executor.memory": "7g"}, tmp_path, "feed")
    assert found.master == "spark://127.0.0.1:7077"
    assert found.conf["spark.executor.memory"] == "7g"
    # What Spark finds by itself it is not told otherwise.
    spoken_for = {"spark.driver.memory", "spark.ui.enabled", "spark.local.dir", "spark.app.name", "spark.x"}
    assert not spoken_for & set(found.conf)
    assert resolve("local[3]", {}, tmp_path, "feed").master == "local[3]"


def test_the_workers_may_have_an_interpreter_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_WORKERS_PYTHON", "/opt/python")
    assert resolve("yarn", {}, tmp_path, "feed").python == "/opt/python"
    assert resolve("local[2]", {}, tmp_path, "feed").python == sys.executable
    given = {"spark.pyspark.python": "./environment/bin/python"}
    assert resolve("yarn", given, tmp_path, "feed").python == "./environment/bin/python"


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["spark.driver.memory"], r"'spark\.driver\.memory' is not a setting"),
        (["=2"], "'=2' is not a setting"),
        (["driver.memory=2g"], r"'driver\.memory' is not a setting"),
        (["spark.a b=2"], "is not a setting"),
        (["spark.a=1", "spark.a=2"], r"spark\.a is given twice"),
        (["spark.task.maxFailures=4"], r"spark\.task\.maxFailures to '4', which has to be '1': a task"),
        (["spark.speculation=true"], r"spark\.speculation .*the second copy of a task"),
        (["spark.stage.maxConsecutiveAttempts=2"], "has to be '1'"),
        (["spark.python.daemon.module=x"], r"has to be 'tidemill\.spark\.daemon'"),
        (["spark.submit.deployMode=cluster"], "this process is Spark's driver"),
        (["spark.remote=sc://x"], "Spark Connect"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(texts: list[str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        read_conf(texts)


def test_what_is_right_is_taken_as_it_is() -> None:
    given = ["spark.a=x=y", "spark.a=x=y", "spark.b=", "spark.speculation=False", "spark.task.maxFailures=1"]
    assert read_conf(given) == {
        "spark.a": "x=y", "spark.b": "", "spark.speculation": "False", "spark.task.maxFailures": "1",
    }  # fmt: skip
    assert read_conf(None) == {}


def test_a_file_or_the_environment_is_refused_like_a_flag(
    tmp_path: Path, around: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = around / "spark-defaults.conf"
    defaults.write_text("spark.speculation true\n")
    with pytest.raises(UsageError, match=r"spark-defaults\.conf sets spark\.speculation"):
        resolve(None, {}, tmp_path, "feed")
    defaults.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"spark-defaults\.conf: it is not UTF-8"):
        resolve(None, {}, tmp_path, "feed")
    defaults.unlink()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf=spark.task.maxFailures=8 pyspark-shell")
    with pytest.raises(UsageError, match=r"PYSPARK_SUBMIT_ARGS sets spark\.task\.maxFailures"):
        resolve(None, {}, tmp_path, "feed")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {tmp_path}/mine pyspark-shell")
    (tmp_path / "mine").write_text("spark.remote sc://x")
    with pytest.raises(UsageError, match=r"mine sets spark\.remote"):
        resolve(None, {}, tmp_path, "feed")


def test_two_masters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="different masters"):
        resolve("local[2]", {"spark.master": "yarn"}, tmp_path, "feed")
    assert resolve(None, {"spark.master": "local[3]"}, tmp_path, "feed").master == "local[3]"


@pytest.mark.parametrize(
    ("said", "logged", "reason"),
    [
        (
            "An error occurred while calling X.\n: org.apache.spark.SparkException: Bad master.\n\tat x",
            "",
            "Bad master.",
        ),
        (
            "An error occurred while calling X.\n: io.k8s.KubernetesException: An error has occurred.\n\tat x\n"
            "Caused by: java.io.IOException: Failed\n\tat y\nCaused by: java.ConnectException: Connection refused\n",
            "",
            "An error has occurred (Connection refused).",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
            'WARNING: x\nException in thread "main" org.apache.spark.SparkException: Set HADOOP_CONF_DIR.\n\tat y',
            "Set HADOOP_CONF_DIR.",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
            "",
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
        ),
    ],
)
def test_why_spark_did_not_start_is_one_sentence(tmp_path: Path, said: str, logged: str, reason: str) -> None:
    log = tmp_path / "spark.log"
    log.write_text("Error: of an earlier start\n" + logged)
    assert session.reason_of_start(Exception(said), log, len("Error: of an earlier start\n")) == reason


SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tidemill.flow.sorter import Shelf
from tidemill.spark.engine import Engine
from tidemill.spark.session import borrow_session
from tidemill.spark.supply import serve

lease = borrow_session(conf={"spark.ui.showConsoleProgress": "true", "spark.tidemill.flight.enabled": "true"})
session = lease.session()
conf = session.sparkContext.getConf()
print(session.sparkContext.master, conf.get("spark.driver.memory"), conf.get("spark.ui.showConsoleProgress"))
engines = [Engine(lease, "feed"), Engine(lease, "feed", most_tasks=2), Engine(lease, "feed", 5)]
for engine in engines:
    engine.start()
print([engine.tasks for engine in engines])
one, other = serve(session, Shelf()), serve(session, Shelf())
print(one.supply.address == other.supply.address, one.supply.token == other.supply.token)
one.close()
other.close()
third = serve(session, Shelf())
print(third.supply.certificate == one.supply.certificate)
third.close()
lease.release()
"""


@pytest.mark.spark
def test_a_session_is_as_the_user_says(tmp_path: Path, around: Path) -> None:
    """In a process of its own, with a defaults file; and what goes with a session: tasks by its cores, its server."""
    (around / "spark-defaults.conf").write_text("spark.master local[3]\nspark.driver.memory 600m\n")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "local[3] 600m true",
        "[3, 2, 5]",
        "True False",
        "False",
    ], done.stderr


@pytest.mark.spark
def test_a_session_that_is_there_is_used_as_it_is_and_left_alone(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = borrow_session()
    assert lease.session() is spark
    lease.release()
    assert spark.sparkContext.parallelize([1, 2], 1).getNumPartitions() == 1

    def refusal(master: str | None = None, **conf: str) -> str:
        wanted = borrow_session(master, conf={name.replace("_", "."): value for name, value in conf.items()})
        try:
            with pytest.raises(UsageError) as refused:
                wanted.session()
            return str(refused.value)
        finally:
            wanted.release()

    assert "another value of spark.driver.memory: this process has a session" in refusal(spark_driver_memory="9g")
    assert "another value of spark.x" in refusal(spark_x="1")
    assert "this process has a session on 'local[2]'" in refusal("yarn")
    speculative = SparkConf(loadDefaults=False).set("spark.speculation", "true")
    monkeypatch.setattr(spark.sparkContext, "_conf", speculative)
    monkeypatch.setattr(session, "_checked", set())
    assert "the Spark session sets spark.speculation to 'true', which has to be 'false'" in refusal()
