"""What a lane promises the others, where processors wait for each other."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, feeding, new_state, schema_at
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.sink_epoch import SinkEpoch
from tidemill.control.progress import Progress
from tidemill.model.orders import Report
from tidemill.model.progress import Checkpoints
from tidemill.model.ts import Ts
from tidemill.upstream.pd import PdClient


def test_nothing_is_resolved_beyond_the_ddls_that_are_known() -> None:
    """A capture that is behind with them does not know of a table that others write already."""
    progress = Progress(Checkpoints(Ts(10)), Ts(0), frontier_ts=Ts(30), schema_ts=Ts(20), together_ts=Ts(10))
    lane: Any = SimpleNamespace(progress=progress, written_ts=None)
    assert SinkEpoch(lane).obeyed.resolved_ts == 20


def test_a_lane_promises_nothing_for_tables_that_it_has_just_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(upstream: EmbeddedUpstream) -> list[Report]:
        async with PdClient(upstream.pd_address) as pd:
            ts, reports = await pd.get_ts(), list[Report]()
            schema, state = await schema_at(pd, ts), new_state(pd, ts)
            async with feeding(pd, schema, state, tmp_path) as feed, asyncio.timeout(PATIENCE_SECONDS):
                lane, owner = feed.lane, feed.owner
                report = owner.report

                def note(made: Report) -> None:
                    reports.append(made)
                    report(made)

                owner.owned = replace(owner.owned, is_together=True)
                lane.hold(ts)
                (moved,) = (table.id for table in schema.tables() if table.name == "b")
                handover = await lane.give_up(frozenset({moved}))
                last_ts = await pd.get_ts()
                await feed.until(lambda: lane.progress.frontier_ts > last_ts and lane.progress.schema_ts > last_ts)
                monkeypatch.setattr(owner, "report", note)
                assert await lane.accept(handover)
                assert handover.at[moved] < last_ts
                assert [made.obeyed.resolved_ts for made in reports if made.came] == [handover.at[moved]]
                lane.hold(None)
        return reports

    with EmbeddedUpstream.start(resolved_interval_seconds=0.05) as upstream:
        session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
        session.execute("create database shop")
        for name in "ab":
            session.execute(f"create table shop.{name} (id int primary key)")
        assert asyncio.run(story(upstream))
