"""Every table at every mark, read over the wire by the snapshot reader and decoded, is what TiDB selected there."""

import asyncio

import pytest

from tests.flow.mounter.test_histories import selected, shown, tables_at
from tests.histories import History, load
from tidebox.upstream import EmbeddedUpstream
from tidemill.flow.mounter import mount_values
from tidemill.model.ts import Ts
from tidemill.tidb.keys import record_range
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_table_at_every_mark_is_what_tidb_selected(name: str) -> None:
    history = load(name)
    with EmbeddedUpstream.start(stores=3, load=history.folder / "history.parquet") as upstream:
        asyncio.run(check_marks(history, upstream.pd_address))


async def check_marks(history: History, pd_address: str) -> None:
    async with PdClient(pd_address) as pd:
        reader = SnapshotReader(pd, RegionCache(pd))
        for mark in history.marks():
            table = tables_at(history, mark["ts"])[mark["schema"], mark["table"]]
            stored = {c.name: c for c in table.stored_columns}
            ours = []
            for physical_id in table.physical_ids:
                async for pairs in reader.scan(*record_range(physical_id), Ts(mark["ts"])):
                    rows = mount_values(table, physical_id, pairs["key"], pairs["value"]).to_pylist()
                    ours += [[shown(stored[n], row[n]) for n in mark["columns"] if n in stored] for row in rows]
            theirs = [
                [selected(stored[n], cell) for n, cell in zip(mark["columns"], row, strict=True) if n in stored]
                for row in mark["rows"]
            ]
            assert sorted(ours, key=repr) == sorted(theirs, key=repr), (mark["mark"], table.full_name)
        await reader.close()
