"""What ``consume`` and ``check-topic`` refuse, and how."""

from pathlib import Path

import pytest

from tests.cli.test_run_refusals import Tidemill, tidemill  # noqa: F401  # a fixture

KAFKA = "kafka://127.0.0.1:1/shop?protocol=open-protocol"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["consume", "shop", "--to", "blackhole://"], 2, "must be a URI such as kafka://"),
        (["consume", "kafka://127.0.0.1:9092/shop", "--to", "blackhole://"], 2, "needs a protocol"),
        (["consume", KAFKA, "--to", "iceberg:///lake"], 2, "cannot be read into iceberg:// yet"),
        (["consume", KAFKA.replace("open-protocol", "simple"), "--to", "blackhole://"], 2, "cannot be read back yet"),
        (["consume", KAFKA.replace("open-protocol", "canal-json"), "--to", "blackhole://"], 2, "enable-tidb-extension"),
        (["consume", KAFKA, "--to", "nosuch://x"], 2, "nosuch"),
        (["consume", KAFKA, "--to", "blackhole://"], 1, "cannot read topic 'shop' (127.0.0.1:1)"),
        (["consume", KAFKA, "--to", "blackhole://", "--partitions", "0"], 2, "--partitions"),
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
