"""A hot table, and a sink that goes away and comes back, through Spark."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import BothHalves
from tests.e2e.processes import wait_until
from tests.sinks.around import instead
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.capture.running import run_changefeed
from tidemill.errors import SinkError
from tidemill.model.ts import Ts
from tidemill.sinks import Receipt
from tidemill.sinks.lake.reader import open_lake

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ROWS = 2_000


class SinkAwayError(SinkError):
    retryable = True


class MoodySink(BothHalves):
    """Away for some calls, whatever they are."""

    absences = 3

    def recover(self, *words: Any) -> None:
        self._be_away()

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        self._be_away()
        return super().commit(to_ts, receipts)

    def _be_away(self) -> None:
        if MoodySink.absences:
            MoodySink.absences -= 1
            raise SinkAwayError("the sink sleeps. Wake it.")


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.fixture(scope="module")
def filled(upstream: EmbeddedUpstream) -> tuple[Ts, Ts]:
    """The ts before and after ``shop.hot`` was filled and changed."""
    session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
    session.execute("create database shop")
    session.execute("create table shop.hot (id int primary key, sku int unique, v varchar(100))")
    session.execute("create table shop.cold (id int primary key)")
    start_ts = Ts(upstream.publish_resolved())
    for first in range(0, ROWS, 500):
        rows = ", ".join(f"({n}, {n}, 'row {n}')" for n in range(first, first + 500))
        session.execute(f"insert into shop.hot values {rows}")
    session.execute("insert into shop.cold values (1)")
    session.execute("update shop.hot set id = id + 5000 where id % 7 = 0")
    session.execute("update shop.hot set sku = -sku, v = 'changed' where id % 5 = 0")
    session.execute("delete from shop.hot where id % 11 = 0")
    return start_ts, Ts(upstream.publish_resolved())


def expected() -> list[tuple[int, int, str]]:
    rows = [(n + 5000 if n % 7 == 0 else n, n, f"row {n}") for n in range(ROWS)]
    rows = [(i, -sku, "changed") if i % 5 == 0 else (i, sku, v) for i, sku, v in rows]
    return sorted(row for row in rows if row[0] % 11)


def test_a_hot_table_is_shared_by_tasks_and_the_lake_has_its_rows(
    upstream: EmbeddedUpstream, filled: tuple[Ts, Ts], tmp_path: Path
) -> None:
    start_ts, target_ts = filled
    uri = f"iceberg://{tmp_path}/lake"
    options = RunOptions(
        upstream.pd_address,
        uri,
        tmp_path / "data",
        start_ts,
        target_ts,
        least_shared_bytes=1,
    )
    finished, last = run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)
    assert finished
    assert 0 < last.most_disk_bytes < last.disk_quota
    lake = open_lake(uri)
    rows = lake.rows_at("shop", "hot", target_ts)
    assert sorted(zip(*(rows[name].to_pylist() for name in ("id", "sku", "v")), strict=True)) == expected()
    changes = lake.changes(lake.table("shop", "hot"))
    places = list(zip(changes["_commit_ts"].to_pylist(), changes["_seq"].to_pylist(), strict=True))
    assert len(places) == len(set(places))
    files = [path.name for path in (tmp_path / "lake").rglob("*.parquet")]
    assert {name.split("-")[2] for name in files} >= {"00000", "01000"}  # the first file of each share


def test_a_sink_that_goes_away_in_a_batch_is_waited_for(
    upstream: EmbeddedUpstream, filled: tuple[Ts, Ts], tmp_path: Path
) -> None:
    start_ts, target_ts = filled
    MoodySink.absences, sink = 0, MoodySink()
    options = RunOptions(upstream.pd_address, "blackhole://", tmp_path / "data", start_ts, target_ts)
    feed = Changefeed(options, sink=instead(lambda: sink))
    said: set[str] = set()
    try:
        feed.start()
        MoodySink.absences = 3

        def is_finished() -> bool:
            said.add(feed.status().stage)
            return feed.poll(0.01)

        wait_until(is_finished, "the target")
        assert any(re.match(r"waiting for the sink since .* s \(the sink sleeps\)", stage) for stage in said)
        assert MoodySink.absences == 0
        assert feed.status().totals.rows > ROWS
    finally:
        feed.close()
