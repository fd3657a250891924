"""Every table at every mark, read by parts and presented, is what TiDB selected there."""

from typing import Any

import pytest

from tests.histories import load
from tests.source.scan.marks import shown_cell, told_cell
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.ts import Ts
from tidemill.source.scan import Dates, Presenter, ScanClient, TableName, read_part
from tidemill.source.scan.hold import ReadHold


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_table_at_every_mark_is_what_tidb_selected(name: str) -> None:
    history = load(name)
    with (
        EmbeddedUpstream.start(stores=3, load=history.folder / "history.parquet") as upstream,
        ScanClient(upstream.pd_address) as client,
    ):
        for mark in history.marks():
            ts = Ts(mark["ts"])
            table = client.find_table(TableName(mark["schema"], mark["table"]), ts)
            presenter = Presenter(table, dates=Dates.TEXT)
            ours: list[Any] = []
            for part in client.plan_scan(table, ts, hold=ReadHold.new(ts)):
                for rows in read_part(part):
                    assert set(rows.commit_ts.tolist()) == {ts}
                    ours += presenter.present(rows).to_pylist()
            names = [n for n in mark["columns"] if n in presenter.schema.names]
            columns = {c.name: c for c in table.columns}
            theirs = [dict(zip(mark["columns"], row, strict=True)) for row in mark["rows"]]
            assert sorted([[shown_cell(row[n]) for n in names] for row in ours], key=repr) == sorted(
                [[told_cell(columns[n], row[n]) for n in names] for row in theirs], key=repr
            ), (mark["mark"], table.full_name)
