"""catchup.*: what there is to catch up with, and whose memory counts."""

import os
import subprocess
import sys

from bench.catchup import Scan, family, own_bytes
from bench.data import TABLE_ID
from tidemill.model.change import RAW_CHANGE_SCHEMA
from tidemill.tidb.keys import record_prefix


def test_a_scan_has_the_size_that_was_asked_for():
    scan = Scan(0.02)
    batches = list(scan.batches())
    assert sum(map(len, batches)) == len(scan)
    assert abs(sum(batch.nbytes for batch in batches) - 20_000_000) < 2_000_000


def test_a_scan_comes_by_key_and_at_all_times():
    scan = Scan(0.01)
    batches = list(scan.batches())
    keys = [key for batch in batches for key in batch["key"].to_pylist()]
    commits = [ts for batch in batches for ts in batch["commit_ts"].to_pylist()]
    assert keys == sorted(keys)
    assert all(key.startswith(record_prefix(TABLE_ID)) for key in keys)
    assert len(set(zip(keys, commits, strict=True))) == len(scan)
    assert scan.start_ts < min(commits)
    assert max(commits) <= scan.end_ts
    firsts = [batch["commit_ts"][0].as_py() for batch in batches]
    assert firsts != sorted(firsts)
    assert all(batch.schema == RAW_CHANGE_SCHEMA for batch in batches)


def test_the_memory_is_that_of_a_process_and_all_below_it():
    code = "import sys; held = bytearray(64 << 20); print('there', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        assert child.stdout.readline() == b"there\n"
        assert child.pid in list(family(os.getpid()))
        assert own_bytes(child.pid) > 64 << 20
        child.stdin.close()
    assert own_bytes(child.pid) == 0
