"""catchup.*: how much there is to catch up with, and whose memory counts."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.catchup import _begin_of_last_share, _bytes, _family, _own_bytes
from bench.data import grow


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grow("bench-wide", 5000, tmp_path_factory.mktemp("grown"))


def test_the_smaller_run_begins_where_a_fifth_of_the_changes_is_left(history):
    commit_ts = pq.read_table(history, columns=["commit_ts"])["commit_ts"].to_pylist()
    begin_ts = _begin_of_last_share(history)
    assert len([ts for ts in commit_ts if ts > begin_ts]) == pytest.approx(len(commit_ts) / 5, rel=0.2)


def test_the_size_is_that_of_keys_and_values(history):
    rows = pq.read_table(history, columns=["key", "value"]).to_pylist()
    size = sum(len(row["key"]) + len(row["value"] or b"") for row in rows)
    assert _bytes(history) == pytest.approx(size, rel=0.05)


def test_the_memory_is_that_of_a_process_and_all_below_it():
    code = "import sys; held = bytearray(64 << 20); print('there', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        assert child.stdout.readline() == b"there\n"
        assert child.pid in list(_family(os.getpid()))
        assert _own_bytes(child.pid) > 64 << 20
        child.stdin.close()
    assert _own_bytes(child.pid) == 0
