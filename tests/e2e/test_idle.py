"""A changefeed on an upstream where nothing happens yet."""

from pathlib import Path
from typing import Any

import pytest

from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.changefeed import Changefeed
from tidemill.capture.options import RunOptions
from tidemill.model.change import Op
from tidemill.tidb.keys import record_key

pytestmark = pytest.mark.spark

TABLE_ID = 112  # bench.sbtest


def test_a_changefeed_that_finds_nothing_at_first_takes_what_comes_later(spark: Any, tmp_path: Path) -> None:
    history = load("bench-narrow")
    value = next(v for v in history.row_changes(TABLE_ID)["value"].to_pylist() if v)
    with EmbeddedUpstream.start(load=history.folder / "history.parquet", resolved_interval_seconds=0.05) as upstream:
        feed = Changefeed(RunOptions(pd=upstream.pd_address, sink_uri="blackhole://", data_dir=tmp_path / "data"))
        try:
            feed.start()
            began = feed.owner.owned.checkpoint_ts
            while feed.owner.owned.checkpoint_ts == began:  # an idle checkpoint moves by itself
                assert not feed.poll()
            for _ in range(20):
                assert not feed.poll()
            assert feed.status().totals.batches == 0
            _, commit_ts = upstream.commit([Mutation(Op.PUT, record_key(TABLE_ID, 10_000_000), value)])
            while feed.owner.owned.checkpoint_ts < commit_ts:
                feed.poll()
            assert feed.status().totals.rows == 1
        finally:
            feed.close()
