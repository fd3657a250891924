"""Tables whose rows cannot be told apart: named where a changefeed begins, no hindrance where it goes on."""

from pathlib import Path

import pytest

from tests.e2e.processes import wait_until
from tests.e2e.sqlclient import Client
from tidemill.control.state import ChangefeedState, DataDir
from tidemill.errors import FilterError
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ts import Ts
from tidemill.server import Changefeed, RunOptions
from tidemill.store.upstream import EmbeddedUpstream


def test_a_keyless_table_is_refused_at_the_start_but_not_when_it_came_later(tmp_path: Path) -> None:
    with EmbeddedUpstream.start(stores=1, sql_port=0, resolved_interval_seconds=0.05) as upstream:
        before_ts = upstream.tso()
        with Client(upstream.sql_addresses[0]) as client:
            client.run("create database shop")
            client.run("create table shop.keyless (v int)")
        now_ts = upstream.tso()

        def started(folder: str, start_ts: Ts) -> Changefeed:
            feed = Changefeed(
                RunOptions(
                    pd=upstream.pd_address, sink_uri="blackhole://", data_dir=tmp_path / folder, start_ts=start_ts,
                    target_ts=now_ts, config=ChangefeedConfig(),
                )
            )  # fmt: skip
            try:
                feed.start()
                wait_until(feed.poll, "the end of a changefeed that has nothing to do")
            finally:
                feed.close(is_finished=True)
            return feed

        with pytest.raises(FilterError, match=r"cannot be told apart: shop\.keyless"):
            started("new", now_ts)
        resumed = DataDir(tmp_path / "resumed")
        resumed.acquire()
        resumed.save(ChangefeedState(upstream.cluster_id, "blackhole://", before_ts, now_ts, now_ts, 0, {}, None))
        resumed.release()
        started("resumed", before_ts)
