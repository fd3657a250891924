"""Faults that readers of TiDB's changes are known for, each as a test. Those that stand elsewhere are named here.

A restart neither copies again nor leaves a gap: here; test_crashes.py (a restart pulls only what is not done; a crash
    at any step), test_mysql.py (a copy that was stopped), test_mysql_crashes.py.
An undecodable row never vanishes: here (put aside, in a copy too); test_undecodable.py (stop),
    tests/flow/test_deadletter.py.
Regions of unequal progress merge and split without hole or overlap: tests/flow/puller/test_merges.py, test_frontier.py,
    test_regions_in_motion.py, test_progress.py (through Spark), tests/source/scan/test_scan.py, and here (in a copy).
DDL in mid-stream: test_sql_capture.py, test_histories.py, test_mysql.py.
Clustered keys that are no integers: here (copied, cut by region, resumed); test_mysql.py, and tables k_* of ``types``.
Orphan locks: here (copy and stream); tests/flow/puller/test_stalls.py, tests/upstream/test_lock_resolver.py.
GC never passes the checkpoint: here (copy, stopped and running changefeed); tests/tidebox/test_safepoints.py.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import tree
from tests.e2e.processes import sink_uri, wait_until
from tests.e2e.sqlclient import Client
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.errors import StartTsCollectedError
from tidemill.flow.deadletter import read_quarantine
from tidemill.model.change import Op
from tidemill.model.changefeed import ChangefeedConfig, OnUndecodable
from tidemill.model.ts import Ts
from tidemill.tidb.keys import encode_bytes, record_key, record_prefix

pytestmark = pytest.mark.spark

NAMES = [f"k{n:02d}" for n in range(40)]


class Feed:
    """A changefeed into files, in this process; each ``Changefeed`` of it is one run."""

    def __init__(self, upstream: EmbeddedUpstream, folder: Path, **more: Any) -> None:
        self.files = folder / "files"
        self.data = folder / "data"
        uri = sink_uri(self.files, ["flush-interval=2s"])
        self._options: dict[str, Any] = {"pd": upstream.pd_address, "sink_uri": uri, "data_dir": self.data, **more}

    def open(self, **more: Any) -> Changefeed:
        return Changefeed(RunOptions(**{**self._options, **more}))

    def run(self, target_ts: int) -> Changefeed:
        """To its end."""
        feed = self.open(target_ts=Ts(target_ts))
        is_finished = False
        try:
            feed.start()
            wait_until(feed.poll, "the target")
            is_finished = True
        finally:
            feed.close(is_finished=is_finished)
        return feed

    def messages(self) -> Counter[tuple[str, str, int]]:
        """(kind, value, commit-ts) of each row that went out."""
        tree.check_layout(self.files)
        return Counter((m["type"], m["data"][0]["v"], m["_tidb"]["commitTs"]) for m in tree.messages(self.files))


@pytest.fixture
def upstream(spark: Any) -> Iterator[EmbeddedUpstream]:
    """A table with a clustered text key, in five regions, and an empty one."""
    with EmbeddedUpstream.start(stores=3, sql_port=0, sql_nodes=1, resolved_interval_seconds=0.05) as started:
        with Client(started.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run(
                "create table shop.t (name varchar(10) primary key clustered, v varchar(20)) collate utf8mb4_bin"
            )
            client.run("create table shop.empty (id int primary key)")
            client.run("insert into shop.t values " + ", ".join(f"('{name}', 'old {name}')" for name in NAMES))
        for name in NAMES[8::8]:
            started.split(key_of(started, name))
        yield started


def key_of(upstream: EmbeddedUpstream, name: str) -> bytes:
    return record_prefix(table_id(upstream, "t")) + b"\x01" + encode_bytes(name.encode())


def table_id(upstream: EmbeddedUpstream, table: str) -> int:
    with Client(upstream.sql_addresses[0]) as client:
        ((found,),) = client.run(
            f"select tidb_table_id from information_schema.tables where table_schema='shop' and table_name='{table}'"
        )
    return int(found)


def execute(upstream: EmbeddedUpstream, statement: str) -> Ts:
    """A ts behind it."""
    with Client(upstream.sql_addresses[0]) as client:
        client.run(statement)
    return upstream.tso()


def collect_all(upstream: EmbeddedUpstream) -> None:
    """Garbage is collected: up to now is asked for, and it goes as far as it may."""
    upstream.set_gc_safepoint(upstream.tso())
    upstream.cluster.collect_garbage()


COPIED = {("INSERT", f"old {name}"): 1 for name in NAMES}


@pytest.mark.parametrize(
    ("polls", "stage"),
    [
        pytest.param(0, "copying 0/2 tables, 0/6 parts", id="before its first batch"),
        pytest.param(1, "copying 1/2 tables, 3/6 parts", id="in the middle"),
        pytest.param(3, "copying 2/2 tables, 6/6 parts", id="after its last batch"),
        pytest.param(4, None, id="when the stream has just begun"),
    ],
)
def test_a_copy_that_is_stopped_anywhere_neither_begins_again_nor_leaves_a_gap(
    upstream: EmbeddedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, polls: int, stage: str | None
) -> None:
    """Rows change, regions split and merge, locks are left behind and garbage is collected all the while."""
    monkeypatch.setattr("tidemill.capture.copying._PARTS_A_TABLE", 2)
    upstream.orphan_lock(record_key(table_id(upstream, "empty"), 7), 1)
    start_ts = upstream.tso()
    feed = Feed(upstream, tmp_path, start_ts=start_ts, initial_copy=True)
    first = feed.open()
    try:
        first.start()
        execute(upstream, "update shop.t set v = concat('new ', name)")  # of which the copy must not see a thing
        collect_all(upstream)
        for _ in range(polls):
            first.poll(0.0)
        assert stage is None or first.status().stage == stage
        assert (stage is None) == (not first.status().stage.startswith("copying"))
    finally:
        first.close()
    left = upstream.region_of(key_of(upstream, NAMES[9]))
    upstream.merge(left.id, upstream.region_of(key_of(upstream, NAMES[17])).id)
    upstream.split(key_of(upstream, NAMES[36]))
    if stage is None:
        upstream.orphan_lock(key_of(upstream, NAMES[3]), 1)  # for the stream, which waits seconds before it asks
    execute(upstream, f"delete from shop.t where name = '{NAMES[0]}'")
    collect_all(upstream)
    feed.run(upstream.tso())
    found = feed.messages()
    assert {kind[:2]: count for kind, count in found.items() if kind[2] == start_ts} == COPIED
    later = {kind[:2]: count for kind, count in found.items() if kind[2] > start_ts}
    assert later == {**{("UPDATE", f"new {name}"): 1 for name in NAMES}, ("DELETE", f"new {NAMES[0]}"): 1}


def test_garbage_collection_waits_for_a_changefeed_that_runs_and_for_one_that_is_stopped(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    start_ts = upstream.tso()
    feed = Feed(upstream, tmp_path, start_ts=start_ts)
    first = feed.open()
    expected: Counter[tuple[str, str]] = Counter()

    def write(round: int) -> None:
        execute(upstream, f"update shop.t set v = 'round {round}'")
        expected["UPDATE", f"round {round}"] += len(NAMES)

    try:
        first.start()
        write(1)
        collect_all(upstream)  # beside a changefeed that runs
        held = upstream.cluster.safepoints.minimum()
        assert held.service.startswith(b"tidemill-")
        assert held.ts <= first.status().checkpoint_ts
        target_ts = upstream.tso()
        wait_until(lambda: first.poll() or first.status().checkpoint_ts >= target_ts, "the checkpoint")
        first.drain()
        checkpoint_ts = first.status().checkpoint_ts
    finally:
        first.close()
    for round in (2, 3):  # the first of these two is garbage, but for the changefeed
        write(round)
    collect_all(upstream)  # beside one that is stopped
    held = upstream.cluster.safepoints.minimum()
    assert held.service.startswith(b"tidemill-")
    assert held.ts <= checkpoint_ts
    feed.run(upstream.tso())
    found: Counter[tuple[str, str]] = Counter()
    for (kind, value, _), count in feed.messages().items():
        found[kind, value] += count
    assert found == expected
    assert upstream.cluster.safepoints.minimum().service == b"gc_worker"  # a finished one lets go


def test_a_changefeed_that_comes_back_too_late_says_so_instead_of_leaving_a_gap(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    feed = Feed(upstream, tmp_path, start_ts=upstream.tso())
    first = feed.open()
    try:
        first.start()
    finally:
        first.close()
    held = upstream.cluster.safepoints.lowest_barrier()
    assert held is not None
    assert held.service.startswith(b"tidemill-")
    execute(upstream, "update shop.t set v = 'lost'")
    upstream.cluster.safepoints.update(held.service, held.ts, 0)  # as when its time is up
    collect_all(upstream)
    late = feed.open()
    try:
        with pytest.raises(StartTsCollectedError, match="garbage-collected up to"):
            late.start()
    finally:
        late.close()


@pytest.mark.parametrize("is_copied", [True, False], ids=["in the copy", "in the stream"])
def test_a_row_that_cannot_be_decoded_is_put_aside_and_all_others_go_on(
    upstream: EmbeddedUpstream, tmp_path: Path, is_copied: bool
) -> None:
    config = ChangefeedConfig(on_undecodable=OnUndecodable.QUARANTINE)
    before_ts = upstream.tso()
    key = key_of(upstream, "k99")
    _, bad_ts = upstream.commit([Mutation(Op.PUT, key, b"\x80\x00\x01\x00\x00\x00\x02")])  # ends in its header
    start_ts = upstream.tso() if is_copied else before_ts
    execute(upstream, f"update shop.t set v = 'later' where name = '{NAMES[5]}'")
    feed = Feed(upstream, tmp_path, start_ts=start_ts, initial_copy=is_copied, config=config)
    feed.run(upstream.tso())
    (aside,) = read_quarantine(feed.data / "undecodable")
    assert (aside.key, aside.table, aside.commit_ts) == (key, "shop.t", start_ts if is_copied else bad_ts)
    found = feed.messages()
    assert {kind[:2]: count for kind, count in found.items() if kind[0] == "INSERT"} == (COPIED if is_copied else {})
    assert [kind[:2] for kind in found if kind[0] == "UPDATE"] == [("UPDATE", "later")]
