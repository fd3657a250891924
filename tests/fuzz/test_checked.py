"""Every compiled loop once more with its bounds checked, on bytes that nobody means well with.

Numba checks no index unless told so before it is imported: so the cases run in a process of their own. What they
compile is kept beside the other kernels; only the first run on a machine takes long. ``make soak`` runs more rounds.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import met
from tests.fuzz.mutate import ROUNDS, SEED

ROOT = Path(__file__).parent.parent.parent
CASES = ("tests/fuzz/wire.py", "tests/fuzz/rows.py", "tests/fuzz/stores.py", "tests/fuzz/messages.py")
# Properties that are worth being held with checks as well: they meet the rest of the loops.
PROPERTIES = (
    "tests/upstream/feed/test_matcher.py",
    "tests/flow/encoder/test_canal_json.py",
    "tests/flow/encoder/test_csv.py",
    "tests/flow/encoder/test_open_protocol.py",
    "tests/flow/reader/test_open_protocol.py",
    "tests/flow/reader/test_canal_json.py",
    "tests/flow/reader/test_simple.py",
    "tests/flow/reader/test_debezium.py",
    "tests/flow/reader/test_avro.py",
    "tests/flow/reader/test_simple_avro.py",
    "tests/flow/reader/test_row_checksums.py",
    "tests/flow/reader/test_long_form.py",
    "tests/consumer/test_checker.py",
    "tests/flow/encoder/test_debezium.py",
    "tests/flow/encoder/test_avro.py",
    "tests/columnar/test_decimal_bytes.py",
    "tests/flow/dispatcher/test_conflicts.py",
    "tests/flow/dispatcher/test_crossings.py",
    "tests/flow/dispatcher/test_partition.py",
    "tests/columnar/test_go_quoted.py",
    "tests/columnar/test_json_plain.py",
    "tests/columnar/test_time_numbers.py",
    "tests/columnar/test_gather.py",
    "tests/columnar/test_checksum.py",
    "tests/flow/sorter/test_large.py",
    "tests/tidebox/test_blocks.py",
    "tests/tidebox/test_raw_blocks.py",
)


LOOPS = """
import numpy as np

from tidemill.columnar.jit import copy, kernel, load_u64

@kernel
def element(data, at):
    return data[at]

@kernel
def word(data, at):
    return load_u64(data, at)

@kernel
def copied(data, at):
    copy(data, 0, data, at, 4)

few = np.zeros(9, np.uint8)
for loop in (element, word, copied):
    loop(few, 1)
    try:
        loop(few, 9)
    except IndexError:
        print("noticed")
"""


@pytest.mark.slow
@pytest.mark.rounds
def test_no_loop_leaves_its_arrays_whatever_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(met.VARIABLE, str(tmp_path / "unmet"))
    done = _checked("-m", "pytest", "--tb=short", "-p", "no:xdist", "-p", met.__name__, *CASES, *PROPERTIES)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert (tmp_path / "unmet").read_text().split() == [], "compiled loops that no case here calls"


def test_a_loop_that_leaves_its_array_is_noticed(tmp_path: Path) -> None:
    """In elements, in words and in copies; otherwise the cases would show nothing."""
    (tmp_path / "loops.py").write_text(LOOPS)
    done = _checked(str(tmp_path / "loops.py"))
    assert done.stdout.split() == ["noticed"] * 3, done.stderr


def _checked(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Python with bounds checks, and without the settings of a soak, which are for this process."""
    asked = {ROUNDS: "TIDEMILL_ROUNDS", SEED: "TIDEMILL_SEED"}
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", *asked.values())}
    environment |= {name: os.environ[given] for name, given in asked.items() if given in os.environ}
    environment |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"}  # with full optimisation, compiling takes twice as long
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
