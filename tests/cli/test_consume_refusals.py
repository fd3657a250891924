"""What ``consume`` and ``check-topic`` refuse, and how."""

import subprocess
import sys
from pathlib import Path

import pytest

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
def test_what_is_refused_is_named(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
