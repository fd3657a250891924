"""Thousands of simulated clusters: whatever goes wrong, what must always hold does, and all is well at the end."""

import os
import subprocess
import sys

import pytest

from tests.rounds import rounds, seed
from tidemill.testing.simulation import simulate

CHUNKS = 8
SEEDS = 2_000  # in make test; a soak of R rounds takes R times 250 of them in each chunk


@pytest.mark.rounds
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_cluster_survives_whatever_goes_wrong(chunk: int) -> None:
    each = SEEDS // CHUNKS * rounds(1)
    first = seed(0) * 1_000_000 + chunk * each
    failed = {
        outcome.seed: outcome.violation for outcome in map(simulate, range(first, first + each)) if outcome.violation
    }
    assert failed == {}, f"replay one with: tidemill simulate --seed {next(iter(failed))}"


def test_faults_are_not_only_asked_for_but_happen() -> None:
    outcomes = [simulate(number) for number in range(3_000_000, 3_000_030)]
    assert sum(outcome.lost_messages for outcome in outcomes) > 100
    assert sum(outcome.late_rows for outcome in outcomes) > 10
    assert sum(outcome.owners > 1 for outcome in outcomes) > 5
    assert {"crash", "hang", "cut", "cut from store", "run ddl", "drain"} <= {f for o in outcomes for f in o.faults}


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    command = [sys.executable, "-m", "tidemill", "simulate", "--seed", "7", "--output", "json"]
    found = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, check=True, timeout=300
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(found) == 1
