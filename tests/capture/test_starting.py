"""Owner and processors that begin late, or with nothing."""

import asyncio
from pathlib import Path
from typing import Any, cast

from tests.capture.feeds import BothHalves, kill
from tests.flow.schema.stores import fed_store
from tests.histories import load
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.processor import SpanProcessor
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.model.ts import Ts


def test_an_owner_that_starts_behind_its_feed_misses_no_ddl(tmp_path: Path) -> None:
    """Else rows of a table would be written before the DDL that creates it."""
    store, changes = fed_store("ddl")
    start_ts = Ts(load("ddl").bootstrap_ts)

    async def story() -> int | None:
        nobody: Any = None  # no upstream is asked
        feed = SchemaFeed(nobody, store, start_ts)
        state = ChangefeedState(1, "blackhole:", start_ts, start_ts, start_ts, 0, {}, None)
        data_dir = DataDir(tmp_path / "data")
        data_dir.acquire()
        states = StateWriter(data_dir)
        owner = ChangefeedOwner(feed, BothHalves(), state, states)
        feed.changes.extend(changes)
        feed.resolved_ts = Ts(load("ddl").end_ts)
        owner.start()
        first = owner.owned.barriers.first
        await kill(owner)
        states.close()
        data_dir.release()
        return first.ts if first is not None else None

    assert asyncio.run(story()) == changes[0].finished_ts


def test_who_takes_over_nothing_has_nothing_yet() -> None:
    heir = SpanProcessor("heir", cast(Any, None))
    asyncio.run(heir.take_over({}, written_ts=Ts(1)))
    assert list(heir.lanes) == []
