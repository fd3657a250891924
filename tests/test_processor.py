"""What a processor does for a Spark that comes and goes."""

import asyncio
from pathlib import Path

from tests.flow.test_intake import PATIENCE_SECONDS, feeding
from tidemill.store.sql.nodes import SqlNodes
from tidemill.store.sql.session import SqlSession
from tidemill.store.upstream import EmbeddedUpstream


def test_an_offer_to_somebody_who_is_gone_takes_no_batch_from_the_next(tmp_path: Path) -> None:
    """Spark's source may be killed while it waits. Its call still waits here when the next source asks."""

    async def scenario(upstream: EmbeddedUpstream, session: SqlSession) -> None:
        async with feeding(upstream, tmp_path) as feed, asyncio.timeout(PATIENCE_SECONDS):
            from_ts = feed.processor.progress.checkpoint_ts
            of_the_dead = asyncio.create_task(feed.processor.offer(from_ts, PATIENCE_SECONDS))
            await asyncio.sleep(0)  # it has begun to wait
            await feed.processor.begin_again()
            await asyncio.to_thread(session.execute, "insert into shop.t values (1)")
            assert await of_the_dead == from_ts
            assert len(await feed.until_now()) == 1

    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as upstream:
        session = SqlSession(SqlNodes(upstream.cluster, 1).nodes[0])
        session.execute("create database shop")
        session.execute("create table shop.t (id int primary key)")
        asyncio.run(scenario(upstream, session))
