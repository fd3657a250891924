"""What holds the checkpoint back, what moves it on, and how a changefeed ends."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import tree
from tests.e2e.processes import Command, sink_uri, wait_until
from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.model.change import Op
from tidemill.model.ts import Ts
from tidemill.tidb.keys import physical_id_of, table_prefix

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SEED = 3
WIDE, TXN = 166, 174  # physical ids of two tables of the history ``types``, each with a region of its own
NAMES = {WIDE: "wide", TXN: "txn"}


@pytest.fixture
def upstream() -> Iterator[EmbeddedUpstream]:
    history = load("types").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=history, resolved_interval_seconds=0.05) as started:
        yield started


def rows_of(table: int) -> list[Mutation]:
    """Puts that repeat the rows that the table has at the end of its history."""
    history = load("types")
    prefix = table_prefix(table)
    pairs = history.scan_at(prefix + b"_r", prefix + b"_s", history.end_ts)
    return [Mutation(Op.PUT, key, value) for key, value in pairs]


class Run:
    """A changefeed in this process, moved by ``until``."""

    def __init__(self, feed: Changefeed, files: Path) -> None:
        self.feed = feed
        self.files = files

    def until(self, holds: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self.feed.poll(0.01) or holds(), what)

    def until_checkpoint(self, ts: int) -> None:
        self.until(lambda: self.feed.owner.owned.checkpoint_ts >= ts, f"the checkpoint {ts}")

    def messages(self) -> list[tuple[int, str]]:
        """(commit-ts, table) of every message, in the order of time."""
        return sorted((m["_tidb"]["commitTs"], m["table"]) for m in tree.messages(self.files))


@contextmanager
def running(upstream: EmbeddedUpstream, folder: Path, **options: Any) -> Iterator[Run]:
    files = folder / "files"
    given = {"pd": upstream.pd_address, "sink_uri": sink_uri(files), "data_dir": folder / "data", **options}
    feed = Changefeed(RunOptions(**given))
    try:
        feed.start()
        yield Run(feed, files)
    finally:
        feed.close()


def test_a_slow_region_holds_everything_above_its_resolved_ts_back(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    slow, quick = rows_of(TXN)[:5], rows_of(WIDE)[:5]
    region = upstream.region_of(slow[0].key).id
    with running(upstream, tmp_path) as run:
        _, before_ts = upstream.commit([slow[0], quick[0]])
        run.until_checkpoint(before_ts)
        upstream.hold_resolved(region)
        held_ts = upstream.publish_resolved()
        pulled = run.feed.status().pulled_rows
        held_back = [upstream.commit([row])[1] for pair in zip(slow, quick, strict=True) for row in pair]
        run.until(lambda: run.feed.status().pulled_rows >= pulled + len(held_back), "the changes to be pulled")
        for _ in range(10):  # the other regions go on, and Spark asks for more
            upstream.publish_resolved()
            run.feed.poll(0.1)
        assert [ts for ts, _ in run.messages()] == [before_ts, before_ts]
        assert run.feed.owner.owned.checkpoint_ts <= held_ts
        upstream.release_resolved(region)
        run.until_checkpoint(held_back[-1])
        assert [ts for ts, _ in run.messages()] == [before_ts, before_ts, *held_back]
    tree.check_layout(run.files)


def test_splits_leader_changes_and_broken_streams_leave_no_hole_and_no_repetition(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    rows = rows_of(TXN) + rows_of(WIDE)
    stores = list(upstream.cluster.stores)
    expected: list[tuple[int, str]] = []

    def commit() -> None:
        chosen = rng.sample(rows, rng.randint(1, 4))
        _, ts = upstream.commit(chosen)
        expected.extend((ts, NAMES[physical_id_of(row.key)]) for row in chosen)

    def split() -> None:
        upstream.split(rng.choice(rows).key)

    def move_leader() -> None:
        upstream.transfer_leader(upstream.region_of(rng.choice(rows).key).id, rng.choice(stores))

    def lose_store() -> None:
        store = rng.choice(stores)
        upstream.stop_store(store)
        commit()
        upstream.start_store(store)

    faults = [split, split, move_leader, move_leader, upstream.drop_streams, lose_store]
    with running(upstream, tmp_path) as run:
        for number in range(60):
            commit()
            rng.choice(faults)() if number % 3 == 0 else run.feed.poll(0.02)
            if number % 20 == 10:
                run.until_checkpoint(expected[0][0])
        run.until_checkpoint(expected[-1][0])
        assert len(upstream.regions()) > 40
        assert run.messages() == sorted(expected)
    tree.check_layout(run.files)


def test_available_now_takes_what_is_there_and_ends(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    history = load("types")
    rows = rows_of(TXN)
    _, last_ts = upstream.commit(rows)
    with running(upstream, tmp_path, start_ts=Ts(history.bootstrap_ts), available_now=True) as run:
        upstream.commit(rows[:1])  # as likely behind the moment as before it: either way the run ends
        wait_until(run.feed.poll, "the end")
        assert run.feed.owner.owned.checkpoint_ts >= last_ts
    assert sum(ts == last_ts for ts, _ in run.messages()) == len(rows)
    assert tree.checkpoint(run.files) >= last_ts


def test_a_stopped_changefeed_ends_while_the_upstream_promises_nothing(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    rows = rows_of(TXN)
    upstream.hold_resolved(upstream.region_of(rows[0].key).id)
    with running(upstream, tmp_path) as run:
        upstream.commit(rows)
        run.until(lambda: run.feed.status().pulled_rows >= len(rows), "the changes to be pulled")
        run.feed.drain()
        assert run.messages() == []


def test_sigterm_ends_with_0_after_the_batch_at_hand_and_a_later_run_goes_on(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    rows = rows_of(TXN)
    files = tmp_path / "files"
    flags = {"pd": upstream.pd_address, "sink_uri": sink_uri(files), "data_dir": tmp_path / "data", "output": "json"}
    committed = [upstream.tso()]
    with Command(tmp_path, "run", is_serving=True, start_ts=committed[0], **flags) as first:
        first.ready()
        committed += [upstream.commit(rows)[1] for _ in range(3)]
        wait_until(lambda: files.exists() and any(files.rglob("CDC.index")), "a batch")
        assert first.terminate() == 0, first.errors
        assert first.survivors() == []
        stopped = json.loads(first.output)
    assert not stopped["finished"]
    assert committed[0] < stopped["checkpoint_ts"] <= tree.checkpoint(files)
    committed.append(upstream.commit(rows)[1])
    with Command(tmp_path, "run", target_ts=committed[-1], **flags) as second:
        assert second.wait() == 0, second.errors
        summary = json.loads(second.output)
    assert summary["finished"]
    assert stopped["rows"] + summary["rows"] == 4 * len(rows)
    found = sorted(m["_tidb"]["commitTs"] for m in tree.messages(files))
    assert found == sorted(ts for ts in committed[1:] for _ in rows)
    tree.check_layout(files)
