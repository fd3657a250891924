"""What a queue's sink decides with a DDL is saved before anybody may write behind it."""

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.capture.feeds import PATIENCE_SECONDS, BothHalves, kill
from tests.flow.schema.stores import fed_store
from tests.histories import load
from tidemill.capture.members import NOBODY
from tidemill.capture.metadata import ChangefeedState, DataDir, StateWriter
from tidemill.capture.owner import ChangefeedOwner
from tidemill.capture.schema_feed import SchemaFeed
from tidemill.model.ddl import DdlEvent
from tidemill.model.orders import EVERYTHING, Committed, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts

DECIDED = {"format": 1, "topics": {"new": 3}}


class DecidingSink(BothHalves):
    def ddl(self, event: DdlEvent) -> dict[str, Any]:  # type: ignore[override]  # the port's, in full
        return DECIDED


def test_it_is_saved_when_processors_hear_that_the_ddl_has_run(tmp_path: Path) -> None:
    store, changes = deepcopy(fed_store("ddl"))
    start_ts, data_dir = Ts(load("ddl").bootstrap_ts), DataDir(tmp_path / "data")
    one = next(change for change in changes if change.events and not any(event.gives_key for event in change.events))
    heard: list[Any] = []

    async def story() -> None:
        nobody: Any = None  # no upstream is asked
        told = asyncio.Event()
        feed = SchemaFeed(nobody, store, Ts(one.finished_ts - 1))
        state = ChangefeedState(1, "blackhole:", start_ts, feed.resolved_ts, feed.resolved_ts, 0, {}, None)
        data_dir.acquire()
        data_dir.save(state)
        sink, states = DecidingSink(), StateWriter(data_dir)
        owner = ChangefeedOwner(feed, sink, state, states, orders_ddls=True)
        feed.changes.extend([one])
        feed.resolved_ts = Ts(one.finished_ts + 1)

        def tell(orders: Orders) -> None:
            if orders.ddl_ts >= one.finished_ts:
                saved = data_dir.saved
                heard.append(saved and saved.sink_state)
                told.set()

        owner.enter("p", EVERYTHING, state.at, tell, replaces=NOBODY)
        owner.start()
        at = Checkpoints(one.finished_ts)
        owner.report(Report("p", 1, EVERYTHING, at, committed=Committed(1, sink.commit(at.base_ts, []))))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await told.wait()
        await kill(owner)
        states.close()
        data_dir.release()

    asyncio.run(story())
    assert heard[0] == DECIDED
