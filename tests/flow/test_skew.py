"""Which tables of a batch several tasks share, and that nothing of them is lost, doubled or put out of order."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.flow.mounter.tables import ID
from tests.flow.test_pipeline import PLAIN, changes
from tests.sinks.halves import Halves, opened
from tidemill.flow.pipeline import Pipeline, Unit, make_units
from tidemill.flow.skew import share_skewed, shares
from tidemill.flow.sorter import Sorter, read_slices
from tidemill.model.progress import Extent
from tidemill.model.table import IndexColumn, IndexInfo
from tidemill.model.ts import Ts
from tidemill.sinks import Sharing, read_sink_uri
from tidemill.sinks.lake.reader import open_lake

BIG = 100 << 20
UNIQUE = IndexInfo(2, "u", (IndexColumn(1, -1),), is_unique=True, is_primary=False)


@pytest.mark.parametrize(
    ("weights", "tasks", "expected"),
    [
        pytest.param([BIG], 4, [4], id="one table alone goes to all tasks"),
        pytest.param([BIG], 1, [1], id="one task has nobody to share with"),
        pytest.param([60, 40], 2, [1, 1], id="two that are about equal need no sharing"),
        pytest.param([90, 10], 2, [2, 1], id="most of the batch is one table"),
        pytest.param([70, 10, 10, 10], 4, [3, 1, 1, 1], id="a table gets as many tasks as its part of the batch"),
        pytest.param([40, 40, 20], 4, [2, 2, 1], id="two hot ones"),
        pytest.param([3, 0], 2, [1, 1], id="what is small is not worth it"),
        pytest.param([], 2, [], id="nothing"),
    ],
)
def test_how_many_tasks_share_a_table(weights: list[int], tasks: int, expected: list[int]) -> None:
    assert shares(weights, tasks, least_bytes=4) == expected


@pytest.mark.parametrize(
    ("uri", "plain", "with_unique"),
    [
        ("blackhole://", True, True),
        ("iceberg:///lake", True, True),
        ("delta:///lake", True, True),
        ("file:///lake?protocol=parquet", True, True),
        ("file:///out?protocol=csv", False, False),
        ("mysql://root@127.0.0.1:3306/", True, False),
        ("mysql://root@127.0.0.1:3306/?transaction-atomicity=table", False, False),
    ],
)
def test_which_sinks_allow_it(uri: str, plain: bool, with_unique: bool) -> None:
    allows = read_sink_uri(uri).traits.sharing.allows
    assert allows(PLAIN) is plain
    assert allows(replace(PLAIN, indexes=(UNIQUE,))) is with_unique
    rowid = replace(PLAIN, pk_is_handle=False)
    assert allows(rowid) is (plain and with_unique)  # a key beside that of the row


def hot_units(
    folder: Path, uri: str, tasks: int, rows: int = 3_000
) -> tuple[Pipeline, Halves[Any, Any], list[Unit], Unit]:
    """Units of a batch with one hot table, shared and as a whole; segments stay where they are."""
    chosen = Random(1)
    made = [(10 * i + 10, chosen.randrange(400), i, i - 1 if i % 3 else None) for i in range(rows)]
    sorter = Sorter(folder / "segments", segment_bytes=1)
    options = read_sink_uri(uri)
    sink = opened(options, start_ts=Ts(0))

    async def fill() -> None:
        sorter.open_span(ID, Ts(0))
        for part in range(3):
            await sorter.add(ID, changes(ID, *made[part::3]))
        sorter.advance(ID, Ts(10**6))

    asyncio.run(fill())
    [slices] = sorter.plan(Extent(Ts(0), Ts(10**6)))
    [whole] = make_units([(PLAIN, ID, slices)], lambda table, id: sink.target(table, id, (Ts(0), Ts(10**6))))
    units = share_skewed([whole], tasks, Sharing.ALWAYS.allows, least_bytes=1)
    wants = options.traits
    return Pipeline("UTC", splits_large=wants.splits_large), sink, units, whole


def test_shares_together_are_the_whole_and_each_key_lies_in_one_in_order(tmp_path: Path) -> None:
    _, _, units, whole = hot_units(tmp_path, "blackhole://", tasks=4)
    assert len(units) == 4
    found = [
        [(row["commit_ts"], row["key"]) for each in read_slices(unit.slices) for row in each.to_pylist()]
        for unit in units
        if unit.slices
    ]
    sizes = [len(part) for part in found]
    assert min(sizes) > 0.15 * sum(sizes)
    assert all(part == sorted(part) for part in found)
    keys = [{key for _, key in part} for part in found]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert whole.slices
    rows = [(r["commit_ts"], r["key"]) for each in read_slices(whole.slices) for r in each.to_pylist()]
    assert sorted(row for part in found for row in part) == rows


def test_a_row_that_is_the_whole_batch_has_one_share(tmp_path: Path) -> None:
    sorter = Sorter(tmp_path, segment_bytes=1)

    async def fill() -> None:
        sorter.open_span(ID, Ts(0))
        await sorter.add(ID, changes(ID, *((ts, 7, ts, ts - 1) for ts in range(1, 500))))
        sorter.advance(ID, Ts(1000))

    asyncio.run(fill())
    [slices] = sorter.plan(Extent(Ts(0), Ts(1000)))
    sink = opened(read_sink_uri("blackhole://"))
    [whole] = make_units([(PLAIN, ID, slices)], lambda table, id: sink.target(table, id, (Ts(0), Ts(1000))))
    [unit] = share_skewed([whole], 4, Sharing.ALWAYS.allows, least_bytes=1)
    assert unit.slices
    assert sum(map(len, read_slices(unit.slices))) == 499
    sorter.close()


@pytest.mark.parametrize("kind", ["iceberg://{}/lake", "delta://{}/lake", "file://{}/lake?protocol=parquet"])
def test_a_lake_gets_the_same_rows_from_several_tasks_as_from_one(tmp_path: Path, kind: str) -> None:
    found = []
    for tasks in (1, 3):
        folder = tmp_path / str(tasks)
        folder.mkdir()
        pipeline, sink, units, _ = hot_units(folder, kind.format(folder), tasks)
        assert len(units) == tasks
        receipts = [pipeline.process(unit) for unit in units]
        sink.commit(Ts(10**6), receipts)
        sink.publish(Ts(10**6))
        sink.close()
        files = [file["path"] for receipt in receipts for file in receipt.detail["files"]]
        assert len(files) == len(set(files)) == tasks
        lake = open_lake(kind.format(folder))
        rows = lake.changes(lake.table(PLAIN.schema, PLAIN.name)).to_pylist()
        places = [(row["_commit_ts"], row["_seq"]) for row in rows]
        assert len(places) == len(set(places)) == 3_000
        found.append(sorted((r["_commit_ts"], r["_op"], r["id"], r["c2"]) for r in rows))
    assert found[0] == found[1]
