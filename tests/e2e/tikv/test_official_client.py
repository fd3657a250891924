"""The official ``tikv-client``, unchanged, on ``tidemill upstream --stores 3``."""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.processes import PATIENCE_SECONDS
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import UsageError
from tidemill.model.change import Op

pytest.importorskip(
    "tikv_client", reason="the official client has wheels for Python 3.11 on x86-64 Linux only: run the tests there"
)

POINTS = ["raw_points", "raw_batches", "raw_families", "raw_large_values"]
CUT = ["raw_scans", "txn_optimistic", "txn_pessimistic"]
WHOLE = ["txn_conflicts", "txn_large", "txn_idle", "timestamps"]
SEEDS = range(3)
KEYS = [b"acc", b"cnt", b"w"]


def drive(upstream: EmbeddedUpstream, scenario: str, **arguments: int) -> str:
    """Run the scenario in a process of its own; return what it says."""
    words = [sys.executable, "-m", "tests.e2e.tikv.driver", scenario, upstream.pd_address, json.dumps(arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, f"{scenario} failed ({done.returncode}):\n{done.stderr}"
    return done.stdout


@pytest.fixture
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=3) as started:
        yield started


@contextmanager
def moving(upstream: EmbeddedUpstream, seed: int) -> Iterator[dict[str, int]]:
    """Regions split, merge and change leader all the while."""
    rng = random.Random(seed)
    done = threading.Event()
    counts = {"split": 0, "merge": 0, "transfer": 0}

    def split() -> None:
        key = rng.choice(KEYS) + b"%d/%02d" % (rng.randrange(8), rng.randrange(60))
        upstream.split(rng.choice([key, key[:3] + key[-2:]]))
        counts["split"] += 1

    def merge() -> None:
        regions = upstream.regions()
        if len(regions) > 1:
            at = rng.randrange(len(regions) - 1)
            pair = [regions[at].id, regions[at + 1].id]
            rng.shuffle(pair)
            upstream.cluster.merge(*pair)
            counts["merge"] += 1

    def transfer() -> None:
        region = rng.choice(upstream.regions())
        upstream.transfer_leader(region.id, rng.choice(region.stores))
        counts["transfer"] += 1

    def run() -> None:
        while not done.wait(0.03):
            action = rng.choice([split, transfer, transfer, merge if len(upstream.regions()) > 6 else split, merge])
            try:
                action()
            except UsageError:  # the key is a boundary already
                continue

    mover = threading.Thread(target=run)
    mover.start()
    try:
        yield counts
    finally:
        done.set()
        mover.join()


@pytest.mark.parametrize("scenario", POINTS + WHOLE)
def test_client_gets_what_it_expects(upstream, scenario):
    drive(upstream, scenario)


@pytest.mark.parametrize("scenario", CUT)
def test_client_gets_what_it_expects_across_regions(upstream, scenario):
    for store, key in enumerate((b"k3", b"k6"), start=2):
        upstream.split(key)
        upstream.transfer_leader(upstream.region_of(key).id, store)
    drive(upstream, scenario)


def test_reader_clears_an_expired_lock(upstream):
    upstream.commit([Mutation(Op.PUT, b"orphan", b"before")])
    with upstream.cluster.mutex:
        mutations = [Mutation(Op.PUT, b"orphan", b"lost"), Mutation(Op.PUT, b"other", b"lost")]
        upstream.cluster.transactions.prewrite(mutations, upstream.tso(), primary=b"other", ttl_ms=1)
    drive(upstream, "txn_reads_past_expired_lock")


def test_reader_leaves_a_living_lock_alone(upstream):
    with upstream.cluster.mutex:
        start = upstream.tso()
        upstream.cluster.transactions.prewrite([Mutation(Op.PUT, b"alive", b"v")], start, ttl_ms=600_000)
    drive(upstream, "txn_waits_for_live_lock")
    upstream.commit_prewritten([b"alive"], start)
    assert upstream.get(b"alive") == b"v"


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_of_eight_writers_equal_the_model_while_regions_change(upstream, seed):
    with moving(upstream, seed) as counts:
        drive(upstream, "txn_model", seed=seed, steps=12)
    assert all(counts.values()), counts


@pytest.mark.parametrize("seed", SEEDS)
def test_raw_operations_of_eight_writers_equal_the_model_while_regions_change(upstream, seed):
    with moving(upstream, seed) as counts:
        drive(upstream, "raw_model", seed=seed, steps=120)
    assert all(counts.values()), counts
