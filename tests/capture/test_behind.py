"""Tables that wait for a DDL while others go on, and what becomes known of them meanwhile."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.capture.feeds import PATIENCE_SECONDS, BothHalves, Feed, feeding, new_state
from tests.flow.schema.builders import job, store_with, table
from tests.flow.sorter.sorter_changes import rows
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.clock import SystemClock
from tidemill.flow.sorter import read_slices
from tidemill.model.change import Op
from tidemill.model.ddl import ActionType
from tidemill.model.ts import Ts
from tidemill.tidb.documents import JobState, SchemaState
from tidemill.tidb.keys import physical_id_of, record_key
from tidemill.upstream.pd import PdClient

OTHER = 8  # a table that no DDL touches


class SlowSink(BothHalves):
    """A DDL takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def ddl(self, event: Any) -> None:
        assert self.may_end.wait(PATIENCE_SECONDS)


class StandingClock(SystemClock):
    """What moves without rows is never due to be saved."""

    def monotonic(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Story:
    """A table with id 7, whose DDL takes long. Another one becomes known in two steps, one before and one after a batch
    of others was saved. ``ids``: the physical ids that get a row before the first, between the two, and after both."""

    before: dict[str, Any]
    steps: tuple[dict[str, Any], dict[str, Any]]
    ids: tuple[Sequence[int], Sequence[int], Sequence[int]] = ((7,), (), (7,))


PARTS, TRUNCATED = {71: "p0", 72: "p1"}, {73: "p0", 72: "p1"}
NEW_IDS = {"old_partition_ids": [71], "new_partition_ids": [73]}
STORIES = {
    "recovered": Story(
        table(7, "t"),
        (
            {"job_id": 51, "kind": ActionType.DROP_TABLE, "after": table(7, "t")},
            {"job_id": 52, "kind": ActionType.RECOVER_TABLE, "after": table(7, "t")},
        ),
    ),
    "without a key for a while": Story(
        table(7, "t"),
        (
            {"job_id": 51, "kind": ActionType.DROP_PRIMARY_KEY, "after": table(7, "t", pk_is_handle=False)},
            {"job_id": 52, "kind": ActionType.ADD_PRIMARY_KEY, "after": table(7, "t")},
        ),
    ),
    "truncated in part": Story(
        table(7, "t", partitions=PARTS),
        (
            {
                "job_id": 51, "kind": ActionType.TRUNCATE_TABLE_PARTITION, "after": table(7, "t", partitions=TRUNCATED),
                "args": NEW_IDS, "state": JobState.RUNNING, "schema_state": SchemaState.DELETE_ONLY,
            },
            {
                "job_id": 51, "kind": ActionType.TRUNCATE_TABLE_PARTITION, "after": table(7, "t", partitions=TRUNCATED),
                "args": NEW_IDS,
            },
        ),
        ((), (72, 73), (72, 73)),
    ),
}  # fmt: skip


@pytest.fixture
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_physical_id_begins_again_while_its_table_is_behind_what_is_durable_of_others(
    upstream: EmbeddedUpstream, tmp_path: Path, story: Story
) -> None:
    """Nothing is saved in between, so nothing durable has said where what begins is."""
    handles, due = iter(range(1, 100)), list[tuple[int, int]]()

    def put(*physical_ids: int) -> Ts:
        for physical_id in physical_ids:
            ts = upstream.commit([Mutation(Op.PUT, record_key(physical_id, next(handles)), b"row")])[1]
            due.append((physical_id, ts))
        return Ts(due[-1][1] if due else 0)

    def alter(**what: Any) -> Ts:
        *_, key, value = job(0, table_id=7, **what)
        return Ts(upstream.commit([Mutation(Op.PUT, key, value)])[1])

    async def take(feed: Feed, found: list[tuple[int, int]]) -> None:
        batch = await feed.lane.batches.offer(0.1)
        if batch is None:
            assert feed.failure is None, feed.failure
            return
        for unit in await feed.lane.batches.units(batch):
            assert unit.slices is not None
            found += [(physical_id_of(each[3]), each[1]) for each in rows(read_slices(unit.slices))]
        await feed.lane.batches.commit(batch, [])

    async def scenario() -> None:
        found: list[tuple[int, int]] = []
        async with PdClient(upstream.pd_address) as pd:
            ts, sink = await pd.get_ts(), SlowSink()
            schema = store_with(story.before, table(OTHER, "u"), ts=ts)
            at = feeding(pd, schema, new_state(pd, ts), tmp_path, sink=sink, clock=StandingClock())
            async with at as feed, asyncio.timeout(PATIENCE_SECONDS):
                altered_ts = alter(job_id=50, kind=ActionType.ADD_COLUMN, after=story.before)
                put(*story.ids[0])
                start_ts = upstream.tso()
                alter(**story.steps[0], start_ts=start_ts)
                others_ts = put(OTHER)
                while feed.lane.progress.at.base_ts < others_ts:
                    await take(feed, found)
                assert feed.lane.progress.at.lowest_ts == altered_ts
                put(*story.ids[1])
                begins_ts = alter(**story.steps[1], start_ts=start_ts)
                last_ts = put(*story.ids[2])
                await feed.until(lambda: feed.lane.progress.schema_ts >= begins_ts)
                assert feed.sorter.taken_ts < begins_ts
                sink.may_end.set()
                while feed.checkpoint_ts < last_ts:
                    await take(feed, found)
        assert sorted(found) == sorted(due)

    asyncio.run(scenario())
