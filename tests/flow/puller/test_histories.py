"""What a real TiDB committed, through the change stream and the snapshot reader, byte for byte."""

import asyncio

import pytest

from tests.flow.puller.test_puller import pulling
from tests.histories import load
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.model.span import WHOLE
from tidemill.model.ts import Ts
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader


def recorded(history):
    """key, commit_ts, start_ts, op, value and the value before, of every change in the history."""
    before, expected = {}, {}
    for row in history.changes.to_pylist():
        key, value = row["key"], row["value"] or b""
        op = Op.PUT if row["op"] == "put" else Op.DELETE
        change = (key, row["commit_ts"], row["start_ts"], op, value, before.get(key, b""))
        expected[key, row["commit_ts"]] = change
        before[key] = value if op is Op.PUT else b""
    return expected


@pytest.mark.parametrize("replay", [None, 0], ids=["loaded", "replayed live"])
@pytest.mark.parametrize("name", ["types", "ddl", "online"])
def test_every_recorded_change_is_pulled_with_its_old_value(name, replay):
    history = load(name)

    async def scenario(upstream):
        async with pulling(upstream, (1, WHOLE)) as (_, receiver):
            assert await asyncio.to_thread(upstream.wait_replayed, 60)
            await receiver.wait_resolved(1, upstream.tso(), seconds=60)
            assert receiver.changes[1] == recorded(history)

    path = history.folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, replay=replay, resolved_interval_seconds=0.02) as upstream:
        asyncio.run(scenario(upstream))


def test_a_snapshot_at_any_ts_is_what_was_committed_up_to_it():
    history = load("ddl")
    stamps = history.changes["commit_ts"].to_pylist()
    moments = [stamps[0] - 1, stamps[0], stamps[len(stamps) // 2], stamps[-1]]

    async def scenario(upstream):
        async with PdClient(upstream.pd_address) as pd:
            reader = SnapshotReader(pd, RegionCache(pd))
            for ts in moments:
                found = {}
                async for batch in reader.scan(b"", b"", Ts(ts)):
                    found.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
                keys = dict.fromkeys(history.changes["key"].to_pylist())
                assert found == {k: v for k in keys if (v := history.value_at(k, ts)) is not None}
            await reader.close()

    with EmbeddedUpstream.start(stores=3, load=history.folder / "history.parquet") as upstream:
        asyncio.run(scenario(upstream))
