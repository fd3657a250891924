"""A row that its schema does not explain stops the changefeed exactly before it."""

import json
from pathlib import Path

import pytest

from tests.e2e import tree
from tests.e2e.processes import Command, sink_uri
from tests.e2e.test_progress import TXN, WIDE, rows_of
from tests.histories import load
from tests.reference.encode import row_v2
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_everything_before_it_is_delivered_and_nothing_after_it(tmp_path: Path) -> None:
    txn, wide = rows_of(TXN), rows_of(WIDE)
    broken = Mutation(Op.PUT, txn[0].key, row_v2({2: b"\1\2\3"}))  # no integer has three bytes
    files = tmp_path / "files"
    with EmbeddedUpstream.start(
        load=load("types").folder / "history.parquet", resolved_interval_seconds=0.05
    ) as upstream:
        start_ts = upstream.tso()
        _, good_ts = upstream.commit(txn + wide)
        _, bad_ts = upstream.commit([broken, *wide])
        _, later_ts = upstream.commit(wide)
        for _ in range(2):  # it stays where it is
            with Command(
                tmp_path,
                "run",
                pd=upstream.pd_address,
                sink_uri=sink_uri(files),
                start_ts=start_ts,
                target_ts=later_ts,
                data_dir=tmp_path / "data",
            ) as run:
                assert run.wait() == 1
            assert f"column 'v' of table kinds.txn, key {broken.key.hex()}, commit-ts {bad_ts}" in run.errors
            assert "Nothing was skipped" in run.errors
            assert "Traceback" not in run.errors
            assert run.output == ""
            assert [m["_tidb"]["commitTs"] for m in tree.messages(files)] == [good_ts] * (len(txn) + len(wide))
            tree.check_layout(files)
    state = json.loads((tmp_path / "data" / "changefeed.json").read_bytes())
    assert state["checkpoint_ts"] == tree.checkpoint(files) == bad_ts - 1
