"""What the intake reads of many tables, by a processor without Spark over an embedded upstream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.schema import write_history
from tests.capture.feeds import PATIENCE_SECONDS, Feed, feeding, new_state, schema_at
from tests.flow.schema.builders import SHOP, JobChange, job, store_with, table
from tests.flow.sorter.sorter_changes import rows
from tidebox.sql.nodes import SqlNodes
from tidebox.sql.session import SqlSession
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import InvariantError
from tidemill.flow.puller import Puller
from tidemill.flow.sorter import Sorter, read_slices
from tidemill.model.change import Op
from tidemill.model.changefeed import ChangefeedConfig
from tidemill.model.ddl import ActionType
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.span import Span
from tidemill.model.ts import Ts
from tidemill.source.intake import FEW_READINGS, FIRST_SPAN, Intake
from tidemill.tidb.keys import physical_id_of, record_key, table_prefix
from tidemill.upstream.pd import PdClient

Change = tuple[int, int, bytes]  # commit-ts, physical id, key


async def until(feed: Feed, ts: int) -> list[Change]:
    """Take batches until the checkpoint has reached ``ts``."""
    taken: list[Change] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while feed.checkpoint_ts < ts:
            batch = await feed.lane.batches.offer(0.2)
            if batch is not None:
                for unit in await feed.lane.batches.units(batch):
                    assert unit.slices is not None
                    changes = rows(read_slices(unit.slices))
                    taken += [(c[1], physical_id_of(c[3]), c[3]) for c in changes]
                await feed.lane.batches.commit(batch, [])
    return sorted(taken)


async def until_now(feed: Feed) -> list[Change]:
    return await until(feed, await feed.pd.get_ts())


@asynccontextmanager
async def following(
    upstream: EmbeddedUpstream,
    folder: Path,
    few_readings: int = FEW_READINGS,
    *,
    tables: Sequence[Any] = (),
    rules: tuple[str, ...] = ("*.*",),
    open_early: Callable[[Path], Sorter] | None = None,
) -> AsyncIterator[Feed]:
    """``tables``: documents of the tables that there are; none: as the upstream tells."""
    async with PdClient(upstream.pd_address) as pd:
        ts = await pd.get_ts()
        schema = store_with(*tables, ts=ts) if tables else await schema_at(pd, ts)
        config = ChangefeedConfig(rules=rules)
        at = feeding(
            pd, schema, new_state(pd, ts), folder, config=config, few_readings=few_readings, open_early=open_early
        )
        async with at as feed:
            yield feed


@pytest.fixture
def upstream() -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream.start(stores=1, resolved_interval_seconds=0.05) as started:
        yield started


def rows_of(tables: Iterable[int]) -> list[Mutation]:
    """A row of each table, and an index entry beside it."""
    rows = [Mutation(Op.PUT, record_key(table, 1), b"row") for table in tables]
    return rows + [Mutation(Op.PUT, table_prefix(table) + b"_i" + b"\0" * 8, b"0") for table in tables]


def test_thousands_of_tables_are_read_by_a_few_registrations(tmp_path: Path) -> None:
    history = write_history(3_000, tmp_path)

    async def scenario(upstream: EmbeddedUpstream) -> None:
        async with following(upstream, tmp_path) as feed:
            tables = [followed.physical_id for followed in feed.schema.followed()]
            assert len(tables) == 3_000
            chosen = [tables[0], *tables[500:520], tables[-1]]
            first_ts = (await asyncio.to_thread(upstream.commit, rows_of(chosen)))[1]
            second_ts = (await asyncio.to_thread(upstream.commit, rows_of(tables[:2])))[1]
            taken = await until(feed, second_ts)
            assert taken == sorted(
                [(first_ts, table, record_key(table, 1)) for table in chosen]
                + [(second_ts, table, record_key(table, 1)) for table in tables[:2]]
            )
            stats = feed.running.puller.stats()
            assert stats.subscriptions <= 2 * FEW_READINGS
            assert stats.regions == stats.initialized_regions == stats.subscriptions  # the cluster is one region

    with EmbeddedUpstream.start(stores=1, load=history, resolved_interval_seconds=0.05) as upstream:
        asyncio.run(scenario(upstream))


def test_few_tables_are_read_one_by_one_and_later_ones_are_joined(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    """Every row of every table comes once, whether its table was there at the start, was created, or dropped."""
    session = SqlSession(SqlNodes(upstream.cluster, 1, lease_seconds=3600).nodes[0])
    session.execute("create database shop")
    for i in range(4):
        session.execute(f"create table shop.t{i} (id int primary key, v int, key (v))")

    async def scenario() -> None:
        async with following(upstream, tmp_path, few_readings=4) as feed:
            await until_now(feed)
            assert feed.running.puller.stats().subscriptions == 4
            taken: list[Change] = []
            most = 0
            for i in range(4, 24):
                await asyncio.to_thread(session.execute, f"create table shop.t{i} (id int primary key, v int, key (v))")
                for table in range(i + 1):
                    if table != 5 or i < 10:
                        await asyncio.to_thread(session.execute, f"insert into shop.t{table} values ({i}, 0)")
                if i == 10:
                    await asyncio.to_thread(session.execute, "drop table shop.t5")
                taken += await until_now(feed)
                most = max(most, feed.running.puller.stats().subscriptions)
            by_table: dict[int, set[bytes]] = {}
            for _, physical_id, key in taken:
                assert key not in by_table.setdefault(physical_id, set())
                by_table[physical_id].add(key)
            whole = [24 - max(table, 4) for table in range(24)]
            whole[5] = 5
            assert [len(keys) for _, keys in sorted(by_table.items())] == whole
            assert most <= 4 * 4
            assert feed.running.puller.stats().subscriptions < 20

    try:
        asyncio.run(scenario())
    finally:
        session.close()


def test_what_came_to_a_neighbour_while_a_partition_was_dropped_comes_once_more(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    """Downstream it stood in the table partition that went: its rows are taken again, right behind the DDL."""
    before, after = {71: "p0", 72: "p1", 73: "p2"}, {72: "p1", 73: "p2"}

    def put(*rows: tuple[int, int]) -> int:
        return upstream.commit([Mutation(Op.PUT, record_key(table_id, handle), b"row") for table_id, handle in rows])[1]

    async def scenario() -> None:
        async with following(upstream, tmp_path, tables=[table(7, "t", partitions=before)]) as feed:
            first_ts = put((71, 1), (72, 1001))
            *_, key, value = job(
                0, 50, ActionType.DROP_TABLE_PARTITION, table_id=7, after=table(7, "t", partitions=after),
                start_ts=upstream.tso(),
            )  # fmt: skip
            during_ts = put((72, 2), (73, 2001))
            done_ts = upstream.commit([Mutation(Op.PUT, key, value)])[1]
            later_ts = put((72, 3))
            taken = await until(feed, done_ts)
            at_once = [(first_ts, 71, 1), (first_ts, 72, 1001), (during_ts, 72, 2), (during_ts, 73, 2001)]
            assert taken == [(ts, table_id, record_key(table_id, handle)) for ts, table_id, handle in at_once]
            taken = await until(feed, later_ts)
            behind = [(during_ts, 72, 2), (later_ts, 72, 3)]
            assert taken == [(ts, table_id, record_key(table_id, handle)) for ts, table_id, handle in behind]

    asyncio.run(scenario())


class LateSorter(Sorter):
    """Hears of no resolved-ts before it may."""

    may_hear = False

    def advance(self, source_id: int, resolved_ts: Ts) -> None:
        if self.may_hear:
            super().advance(source_id, resolved_ts)


def test_table_partitions_wait_together_for_what_one_of_them_got_early(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    """Downstream they are one table, of which a sink may remember one ts only, and which has one order."""
    before, after = {71: "p0", 72: "p1"}, {73: "p0", 72: "p1"}
    early: list[LateSorter] = []

    def put(*rows: tuple[int, int]) -> int:
        return upstream.commit([Mutation(Op.PUT, record_key(table_id, handle), b"row") for table_id, handle in rows])[1]

    def open_early(folder: Path) -> Sorter:
        early.append(LateSorter(folder))
        return early[-1]

    async def scenario() -> None:
        tables = [table(7, "t", partitions=before)]
        async with (
            following(upstream, tmp_path, tables=tables, open_early=open_early) as feed,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            lane, start_ts = feed.lane, upstream.tso()
            during_ts = put((73, 1))
            *_, key, value = job(
                0, 50, ActionType.TRUNCATE_TABLE_PARTITION, table_id=7, after=table(7, "t", partitions=after),
                start_ts=start_ts, args={"old_partition_ids": [71], "new_partition_ids": [73]},
            )  # fmt: skip
            done_ts = upstream.commit([Mutation(Op.PUT, key, value)])[1]
            later_ts = put((72, 2), (73, 3))
            while lane.progress.at.base_ts < later_ts or lane.progress.ddl_ts < later_ts:
                assert await lane.batches.offer(0.05) is None, "nothing but the table that waits has rows"
            assert {lane.progress.at.of(i) for i in (72, 73)} == {done_ts}
            with pytest.raises(InvariantError, match="the frontier is at"):
                lane.intake.plan(Extent(Ts(done_ts), Ts(later_ts)))
            early[0].may_hear = True
            taken = await until(feed, later_ts)
            due = [(during_ts, 73, 1), (later_ts, 72, 2), (later_ts, 73, 3)]
            assert taken == [(ts, table_id, record_key(table_id, handle)) for ts, table_id, handle in due]

    asyncio.run(scenario())


class SilentPuller(Puller):
    """Reads nothing: the test says what came."""

    def __init__(self) -> None:
        pass

    def subscribe(self, subscription: int, span: Span, start_ts: Ts) -> None:
        pass

    def unsubscribe(self, subscription: int) -> None:
        pass


def test_a_table_that_left_the_rules_and_is_dropped_holds_nobody_back(tmp_path: Path) -> None:
    """It is let go of before the upstream has come to its end."""
    store, sorter = store_with(table(7, "t"), table(8, "u"), ts=100), Sorter(tmp_path)
    intake = Intake(store, SilentPuller(), sorter, lambda: sorter, lambda table: table.name != "v")
    intake.follow(Checkpoints(Ts(100)))
    args = {"old_schema_id": SHOP, "new_table_name": {"O": "v", "L": "v"}}
    store.apply(
        [
            job(110, 50, ActionType.RENAME_TABLE, table_id=8, args=args, after=table(8, "v")),
            job(120, 51, ActionType.DROP_TABLE, table_id=8, after=table(8, "v")),
        ]
    )
    intake.follow(Checkpoints(Ts(100)))
    for reading in (FIRST_SPAN, FIRST_SPAN + 1):
        intake.advance(reading, Ts(115))
    store.apply([job(130, 52, ActionType.CREATE_TABLE, table_id=9, after=table(9, "w"))])
    intake.follow(Checkpoints(Ts(115), {8: Ts(110)}))
    for reading in (FIRST_SPAN, FIRST_SPAN + 2):
        intake.advance(reading, Ts(150))
    assert intake.frontier_ts == 150
    sorter.close()


@asynccontextmanager
async def with_a_batch_at_hand(
    upstream: EmbeddedUpstream, folder: Path, done: Callable[..., JobChange]
) -> AsyncIterator[Feed]:
    """Table shop.u, which the rules leave out, is changed by a job that comes while a batch of shop.t is at hand."""
    tables = [table(7, "t"), table(8, "u")]
    async with following(upstream, folder, tables=tables, rules=("*.*", "!shop.u")) as feed:
        lane, now_ts = feed.lane, put(upstream, 7)
        put(upstream, 8)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (batch := await lane.batches.offer(0.2)) is None:
                pass
            assert batch.to_ts >= now_ts
            await lane.batches.units(batch)
            *_, key, value = done(0, 50, table_id=8)
            done_ts = upstream.commit([Mutation(Op.PUT, key, value)])[1]
            while lane.progress.schema_ts < done_ts:
                await SYSTEM_CLOCK.sleep(0.01)
        await lane.batches.commit(batch, [])
        yield feed


def put(upstream: EmbeddedUpstream, table_id: int) -> int:
    """Write a row."""
    return upstream.commit([Mutation(Op.PUT, record_key(table_id, 1), b"row")])[1]


def test_a_table_that_is_left_out_may_be_dropped_while_a_batch_is_at_hand(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    """Gone, it has no name that a rule could leave out; it must not be read for that."""

    async def scenario() -> None:
        drop = partial(job, kind=ActionType.DROP_TABLE, after=table(8, "u"))
        async with with_a_batch_at_hand(upstream, tmp_path, drop) as feed:
            taken = await until(feed, put(upstream, 7))
            assert [physical_id for _, physical_id, _ in taken] == [7]

    asyncio.run(scenario())


def test_a_table_that_is_renamed_into_the_rules_while_a_batch_is_at_hand_is_refused_by_name(
    upstream: EmbeddedUpstream, tmp_path: Path
) -> None:
    async def scenario() -> None:
        args = {"old_schema_id": SHOP, "new_table_name": {"O": "v", "L": "v"}}
        rename = partial(job, kind=ActionType.RENAME_TABLE, schema_id=SHOP, args=args, after=table(8, "v"))
        async with with_a_batch_at_hand(upstream, tmp_path, rename) as feed, asyncio.timeout(PATIENCE_SECONDS):
            while feed.failure is None:
                await feed.lane.batches.offer(0.2)
            assert "shop.u was outside filter.rules and has become shop.v" in str(feed.failure)

    asyncio.run(scenario())
