"""DDLs hold back their own tables only: recorded histories through a changefeed that is stopped and killed at random.

Whatever the batches, and wherever it was killed: each change comes once, in the form that was in force at its ts, and
around each DDL the rows of the tables that it touches come in order.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.capture.feeds import BothHalves, Feed, feeding, new_state
from tests.flow.schema.stores import fed_store
from tests.flow.sorter.sorter_changes import rows
from tests.histories import load
from tests.rounds import rounds, seed
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.batches import Admission
from tidemill.capture.metadata import DataDir
from tidemill.control.pace import Amount, Bounds
from tidemill.flow.schema.loader import load_schema, recovered_reader
from tidemill.flow.sorter import read_slices
from tidemill.model.ddl import DdlEvent
from tidemill.model.ts import Ts
from tidemill.tidb.keys import physical_id_of
from tidemill.upstream.pd import PdClient
from tidemill.upstream.regions import RegionCache
from tidemill.upstream.snapshot import SnapshotReader

PATIENCE_SECONDS = 120.0
SEED = 20261118
ROUNDS = 2  # in make test; make soak takes as many as it is told
NAMES = ("ddl", "online", "types")

Taken = tuple[int, int, bytes, int]  # physical id, commit-ts, key, the version that it was read in


@dataclass
class Downstream:
    """What came out, in order: changes of a batch that was committed, and DDLs."""

    rows: list[Taken] = field(default_factory=list)
    ddls: list[tuple[int, int]] = field(default_factory=list)  # finished-ts and number
    rows_before: list[int] = field(default_factory=list)  # each of those


class NotingSink(BothHalves):
    def __init__(self, downstream: Downstream) -> None:
        super().__init__()
        self._downstream = downstream

    def ddl(self, event: DdlEvent) -> None:
        at = (event.finished_ts, event.seq)
        if at not in self._downstream.ddls:  # it may come again
            self._downstream.ddls.append(at)
            self._downstream.rows_before.append(len(self._downstream.rows))


@asynccontextmanager
async def processing(
    upstream: EmbeddedUpstream, folder: Path, start_ts: Ts, target_ts: Ts, most: Amount, downstream: Downstream
) -> AsyncIterator[Feed]:
    """A changefeed that goes on where the one before it had saved its state, and is killed at the end."""
    async with PdClient(upstream.pd_address) as pd:
        state = DataDir(folder / "data").load() or replace(new_state(pd, start_ts), sink="")
        reader = SnapshotReader(pd, RegionCache(pd))
        versions = {int(table): Ts(ts) for table, ts in state.table_versions.items()}
        schema = await load_schema(reader, state.schema_ts, start_ts, versions)
        await reader.close()
        schema.read_recovered_with(recovered_reader(lambda: PdClient(upstream.pd_address)))
        admission = Admission(bounds=Bounds(most, most))
        sink = NotingSink(downstream)
        at = feeding(pd, schema, state, folder, sink=sink, target_ts=target_ts, admission=admission, is_closed=False)
        async with at as feed:
            yield feed


async def take(feed: Feed, downstream: Downstream, batches: float) -> None:
    """So many batches, or to the end."""
    while batches > 0 and not feed.owner.is_done:
        assert feed.failure is None, feed.failure
        batch = await feed.lane.batches.offer(0.2)
        if batch is None:
            continue
        found: list[Taken] = []
        for unit in await feed.lane.batches.units(batch):
            assert unit.slices is not None
            for each in rows(read_slices(unit.slices)):
                found.append((physical_id_of(each[3]), each[1], each[3], unit.decoder.table.version_ts))
        await feed.lane.batches.commit(batch, [])
        downstream.rows += found
        batches -= 1


def play(name: str, upstream: EmbeddedUpstream, folder: Path, rng: random.Random) -> Downstream:
    history, downstream = load(name), Downstream()

    async def story() -> None:
        kills = rng.randint(1, 6)
        while True:
            most = Amount(rng.choice([1, 5, 50, 100_000]), 1 << 30)
            start_ts, target_ts = Ts(history.bootstrap_ts), Ts(history.end_ts)
            at = processing(upstream, folder, start_ts, target_ts, most, downstream)
            async with at as feed, asyncio.timeout(PATIENCE_SECONDS):
                await take(feed, downstream, rng.randint(1, 30) if kills else float("inf"))
                if feed.owner.is_done:
                    return
                kills -= 1

    asyncio.run(story())
    return downstream


@cache
def expected(name: str) -> tuple[Counter[tuple[int, int, bytes]], dict[int, frozenset[int]]]:
    """How often each change is due: once, or twice if a DROP PARTITION downstream takes it along. And what each DDL
    touches, by its ts."""
    history = load(name)
    store, changes = fed_store(name)
    due: Counter[tuple[int, int, bytes]] = Counter()
    for followed in (*store.followed(), *store.replayed()):
        of_table = history.row_changes(followed.physical_id)
        until_ts = history.end_ts if followed.until_ts is None else min(followed.until_ts, history.end_ts)
        if followed.begin_ts is None or followed.begin_ts > history.end_ts:
            continue
        stamps = of_table.column("commit_ts").to_numpy()
        inside = (stamps > np.uint64(followed.since_ts)) & (stamps <= np.uint64(until_ts))
        chosen = np.flatnonzero(inside)
        keys = of_table.column("key").take(chosen).to_pylist()
        due.update((followed.physical_id, int(ts), key) for ts, key in zip(stamps[chosen], keys, strict=True))
    return due, {int(change.finished_ts): change.touched for change in changes}


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, EmbeddedUpstream]]:
    path = load(request.param).folder / "history.parquet"
    with EmbeddedUpstream.start(stores=3, load=path, resolved_interval_seconds=0.05) as upstream:
        yield request.param, upstream


@pytest.mark.rounds
def test_whoever_is_killed_each_change_comes_once_and_around_ddls_in_order(
    served: tuple[str, EmbeddedUpstream], tmp_path: Path
) -> None:
    name, upstream = served
    due, touched = expected(name)
    store, _ = fed_store(name)
    for number in range(rounds(ROUNDS)):
        rng = random.Random(f"{seed(SEED)}-{name}-{number}")
        found = play(name, upstream, tmp_path / str(number), rng)
        came = Counter((table, ts, key) for table, ts, key, _ in found.rows)
        assert came - due == Counter(), f"round {number}: too many"
        assert due - came == Counter(), f"round {number}: missing"
        assert found.ddls == sorted(found.ddls)
        seen: set[Taken] = set()
        began = 0
        for (ts, _), before in zip(found.ddls, found.rows_before, strict=True):
            for row in found.rows[began:before]:
                seen.add(row)
            began = before
            late = [row for row in seen if row[0] in touched[ts] and row[1] > ts]
            assert not late, f"round {number}: before the DDL at {ts}"
        check_versions(store, found, touched)


def check_versions(store: Any, found: Downstream, touched: dict[int, frozenset[int]]) -> None:
    """A change is read in the form that was in force when it was committed, unless it had to wait for a DDL."""
    for table, ts, _, version_ts in found.rows:
        form = store.table(table, ts)
        waited = any(ts <= at and table in ids for at, ids in touched.items() if at == version_ts)
        assert waited or (form is not None and form.version_ts == version_ts), (table, ts, version_ts)
