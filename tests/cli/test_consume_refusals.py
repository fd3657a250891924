"""What ``consume`` and ``check-topic`` refuse, and how."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run_refusals import Tidemill, tidemill  # noqa: F401  # a fixture
from tests.e2e.processes import Command, wait_until

KAFKA = "kafka://127.0.0.1:1/shop?protocol=open-protocol"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["consume", "shop", "--to", "blackhole://"], 2, "must be a URI such as kafka://"),
        (["consume", "kafka://127.0.0.1:9092/shop", "--to", "blackhole://"], 2, "needs a protocol"),
        (["consume", KAFKA, "--to", "iceberg:///lake", "--consistency", "row"], 2, "whole transactions alone"),
        (["consume", KAFKA, "--to", "iceberg:///lake", "--time-zone", "Asia/Tokyo"], 2, "Write the topic in UTC"),
        (["consume", KAFKA, "--to", KAFKA], 2, "not read into another one"),
        (["consume", KAFKA.replace("open-protocol", "debezium"), "--to", "blackhole://"], 2, "enable-tidb-extension"),
        (["consume", KAFKA.replace("open-protocol", "canal-json"), "--to", "blackhole://"], 2, "enable-tidb-extension"),
        (["consume", KAFKA, "--to", "nosuch://x"], 2, "nosuch"),
        (["consume", KAFKA, "--to", "blackhole://", "--partitions", "0"], 2, "--partitions"),
        (["consume", KAFKA, "--to", "blackhole://", "--group", "a b"], 2, "--group 'a b' is not a name"),
        (["consume", KAFKA, "--to", KAFKA, "--group", "a"], 2, "not read into another one"),
        (["check-topic", "shop"], 2, "must be a URI such as kafka://"),
        (["check-topic", KAFKA], 1, "cannot read topic 'shop' (127.0.0.1:1)"),
        (["check-topic", KAFKA + "&partition-nun=3"], 2, "Did you mean 'partition-num'?"),
    ],
)
def test_what_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tidemill: Tidemill,  # noqa: F811
    tmp_path: Path,
    words: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = tidemill(*words)
    assert (done.code, done.output) == (code, "")
    assert said in done.errors


@pytest.mark.parametrize("group", [None, "shop"])
def test_a_broker_that_is_away_at_the_start_is_waited_for(tmp_path: Path, group: str | None) -> None:
    flags: dict[str, Any] = {"to": "blackhole://", "data_dir": tmp_path / "c", "group": group}
    with Command(tmp_path, "consume", KAFKA, is_serving=True, **flags) as waiting:
        wait_until(
            lambda: "waiting for Kafka: cannot read topic 'shop' (127.0.0.1:1)" in waiting.errors, "a word of it"
        )
        assert waiting.is_running()
        assert waiting.terminate() == 0
        assert "Traceback" not in waiting.errors


def test_the_folder_of_a_consumer_that_was_alone_is_not_a_members(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "consumer.json").write_text("{}")
    with Command(tmp_path, "consume", KAFKA, to="blackhole://", data_dir=tmp_path / "c", group="shop") as refused:
        assert refused.wait() == 1
        assert "has the state of a consumer that was alone" in refused.errors
