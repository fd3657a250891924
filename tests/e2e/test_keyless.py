"""Tables whose rows cannot be told apart: named where a changefeed begins, no hindrance where it goes on."""

from pathlib import Path

import pytest

from tests.e2e import tree
from tests.e2e.conftest import Capture
from tests.e2e.processes import wait_until
from tests.e2e.sqlclient import Client
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.options import RunOptions
from tidemill.errors import FilterError
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ts import Ts


def test_a_keyless_table_is_refused_at_the_start_but_not_when_it_came_later(tmp_path: Path) -> None:
    with EmbeddedUpstream.start(stores=1, sql_port=0, resolved_interval_seconds=0.05) as upstream:
        before_ts = upstream.tso()
        with Client(upstream.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run("create table shop.keyless (v int)")
        now_ts = upstream.tso()

        def started(folder: str, start_ts: Ts) -> tuple[str, ...]:
            feed = Changefeed(
                RunOptions(
                    pd=upstream.pd_address, sink_uri="blackhole://", data_dir=tmp_path / folder, start_ts=start_ts,
                    target_ts=now_ts, config=ChangefeedConfig(ignore_ineligible_table=False),
                )
            )  # fmt: skip
            try:
                feed.start()
                wait_until(feed.poll, "the end of a changefeed that has nothing to do")
                return feed.status().left_out
            finally:
                feed.close(is_finished=True)

        with pytest.raises(FilterError, match=r"cannot be told apart: shop\.keyless"):
            started("new", now_ts)
        resumed = DataDir(tmp_path / "resumed")
        resumed.acquire()
        resumed.save(ChangefeedState(upstream.cluster_id, "blackhole://", before_ts, now_ts, now_ts, 0, {}, None))
        resumed.release()
        assert started("resumed", before_ts) == ("shop.keyless",)


def test_a_table_without_a_key_is_named_when_it_comes_and_until_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        EmbeddedUpstream.start(stores=1, sql_port=0, resolved_interval_seconds=0.05) as upstream,
        Client(upstream.sql_addresses[0]) as client,
    ):
        client.run("create database shop")
        now_ts = upstream.tso()
        feed = Changefeed(
            RunOptions(upstream.pd_address, "blackhole://", tmp_path / "data", start_ts=now_ts, target_ts=now_ts)
        )
        try:
            feed.start()
            client.run("create table shop.early (v int)")
            client.run("create table shop.late (v int)")
            wait_until(lambda: feed.status().left_out == ("shop.early", "shop.late"), "both to be named")
            client.run("alter table shop.early add primary key (v)")
            wait_until(lambda: feed.status().left_out == ("shop.late",), "the one with a key to be captured")
            client.run("drop table shop.late")
            client.run("create table shop.other (id int primary key)")
        finally:
            feed.close(is_finished=True)
    named = [record.getMessage() for record in caplog.records if "are left out" in record.getMessage()]
    assert "shop.early" in named[0]
    assert "give them a key" in named[0]


@pytest.mark.spark
def test_rows_from_before_a_table_got_its_key_are_in_the_files(tmp_path: Path, capture: Capture) -> None:
    with EmbeddedUpstream.start(stores=1, sql_port=0, resolved_interval_seconds=0.05) as upstream:
        start_ts = upstream.tso()
        with Client(upstream.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run("create table shop.t (id int not null, v varchar(10))")
            client.run("insert into shop.t values (1, 'one'), (2, 'two'), (3, 'three')")
            client.run("update shop.t set v = 'zwei' where id = 2")
            client.run("delete from shop.t where id = 3")
            client.run("alter table shop.t add primary key (id)")
            client.run("insert into shop.t values (4, 'four')")
        capture(upstream.pd_address, tmp_path / "files", start_ts, upstream.tso())
    found = [(m["type"], m["data"][0]["id"], m["data"][0]["v"]) for m in tree.messages(tmp_path / "files")]
    assert sorted(found) == [("INSERT", "1", "one"), ("INSERT", "2", "zwei"), ("INSERT", "4", "four")]
    tree.check_layout(tmp_path / "files")
