"""What a lane and a schema feed do for keys that they do not do for tables."""

import asyncio
from pathlib import Path

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, feeding, new_state, schema_at
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.schema_feed import StillFeed
from tidemill.clock import SYSTEM_CLOCK
from tidemill.control.pace import Amount
from tidemill.flow.rawkv import RAW_TABLE_ID, raw_table
from tidemill.flow.schema import store_of_tables
from tidemill.model.ts import Ts
from tidemill.sinks import Traits
from tidemill.upstream.pd import PdClient


@pytest.mark.parametrize("never", [False, True])
def test_a_batch_that_comes_again_ends_no_earlier_where_the_sink_wants_that(tmp_path: Path, never: bool) -> None:
    async def story(upstream: EmbeddedUpstream, session: SqlSession) -> None:
        async with PdClient(upstream.pd_address) as pd:
            ts = await pd.get_ts()
            schema, state = await schema_at(pd, ts), new_state(pd, ts)
            traits = Traits(ends_never_earlier=never)
            async with feeding(pd, schema, state, tmp_path, traits=traits) as feed, asyncio.timeout(PATIENCE_SECONDS):
                lane = feed.lane
                lane.hold(ts)
                for number in range(5):
                    await asyncio.to_thread(session.execute, f"insert into shop.t values ({number})")
                last_ts = await pd.get_ts()
                await feed.until(lambda: lane.intake.frontier_ts >= last_ts)
                lane.hold(None)
                batch = await feed.begin()
                lane.pacer.limit = Amount(1, 1)  # what is slow gets less
                await lane.batches.begin_again()
                again = await feed.begin()
                assert batch.to_ts >= last_ts
                assert (again.to_ts >= batch.to_ts) is never

    with EmbeddedUpstream.start(resolved_interval_seconds=0.05) as upstream:
        session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
        session.execute("create database shop")
        session.execute("create table shop.t (id int primary key)")
        asyncio.run(story(upstream, session))


def test_the_schema_of_keys_is_known_up_to_the_clock_of_pd_and_an_outage_passes() -> None:
    async def story(upstream: EmbeddedUpstream) -> None:
        async with PdClient(upstream.pd_address, deadline_seconds=0.3) as pd:
            ts = await pd.get_ts()
            table = raw_table("DEFAULT", ts)
            feed, heard = StillFeed(pd, store_of_tables([table], ts), ts), list[Ts]()
            feed.listen(lambda changes, resolved_ts: heard.append(resolved_ts) if not changes else None)
            running = asyncio.create_task(feed.run())

            async def heard_above(wanted: Ts) -> None:
                while feed.resolved_ts <= wanted:
                    assert not running.done(), running.exception()
                    await SYSTEM_CLOCK.sleep(0.01)

            async with asyncio.timeout(PATIENCE_SECONDS):
                await heard_above(ts)
                upstream.pd_away()
                await SYSTEM_CLOCK.sleep(1.0)
                away_ts = feed.resolved_ts
                upstream.pd_back()
                await heard_above(away_ts)
            assert heard == sorted(heard)
            assert feed.store.table(RAW_TABLE_ID, feed.resolved_ts) == table
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with EmbeddedUpstream.start(api_version=2) as upstream:
        asyncio.run(story(upstream))
