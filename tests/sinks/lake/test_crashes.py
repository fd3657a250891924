"""A lake is the same whatever dies on the way: a batch comes twice, is cut elsewhere, or is in some tables only."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.histories import load
from tests.sinks.halves import LakeHalves
from tests.sinks.lake.marks import check_marks
from tests.sinks.lake.replay import KINDS, Replay, calm_lake, rows_of
from tidemill.errors import SupersededError
from tidemill.model.ts import Ts
from tidemill.sinks.lake import write_rows
from tidemill.sinks.lake.reader import Lake


class Died(Exception):
    pass


class Fragile:
    """A backend that dies before or after some call that changes the lake."""

    def __init__(self, backend: Any, left: list[int], is_after: bool) -> None:
        """``left``: so many calls are, of both halves together."""
        self._backend = backend
        self._left = left
        self._is_after = is_after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name not in ("put", "append"):
            return found

        def call(*arguments: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] == 0 and not self._is_after:
                raise Died
            answer = found(*arguments)
            if self._left[0] == 0:
                raise Died
            return answer

        return call


def make_fragile(sink: LakeHalves, calls: int, is_after: bool) -> None:
    left = [calls]
    for half in (sink.owner, sink.writer):
        half._book.backend = Fragile(half._book.backend, left, is_after)  # type: ignore[assignment]  # the fault


def run_with_crashes(replay: Replay, seed: int) -> int:
    """The whole history; about every third batch and DDL dies somewhere, and comes again, perhaps cut elsewhere."""
    chance, crashes = random.Random(seed), 0
    stops = replay.stops()
    while replay.from_ts < stops[-1]:
        barrier = next(ts for ts in stops if ts > replay.from_ts)
        wanted = chance.choice([barrier, (replay.from_ts + barrier) // 2])
        make_fragile(replay.sink, chance.choice([0, 0, 1, 2, 3]), chance.random() < 0.5)
        try:
            receipts = replay.write(wanted)
            if chance.random() < 0.1:
                raise Died
            state = replay.sink.commit(Ts(wanted), receipts)
            if chance.random() < 0.1:
                raise Died  # committed everywhere, and nobody knows
            replay.state, replay.from_ts = state, wanted
            replay.sink.publish(Ts(wanted))
        except Died:
            crashes += 1
            replay.crash()
            continue
        while wanted == barrier:
            try:
                replay.run_ddl(barrier)
                break
            except Died:
                crashes += 1
                replay.crash()
    replay.sink.publish(Ts(stops[-1]))
    return crashes


def contents(lake: Lake) -> dict[str, list[Any]]:
    """Every change of every table, without its columns: while an online DDL is under way it depends on how batches are
    cut whether rows are written in the old type or the new. What they say at a mark does not."""
    what = ["_commit_ts", "_seq", "_op", "_start_ts", "_table_id"]
    return {table.id: sorted(map(repr, lake.changes(table).select(what).to_pylist())) for table in lake.journal.tables}


def whole(name: str, kind: str, root: Path) -> Replay:
    """A history whose DDLs have all been run, and no batch: ``types`` creates tables and nothing else."""
    replay = Replay(name, kind, root)
    for to_ts in replay.stops():
        replay.run_ddl(to_ts)
    return replay


@pytest.mark.parametrize(
    ("name", "kind", "seed"),
    [
        ("types", "delta", 1),
        pytest.param("ddl", "iceberg", 2, marks=pytest.mark.soak),
        ("ddl", "delta", 3),
        ("ddl", "parquet", 4),
        ("online", "parquet", 5),
        ("types", "iceberg", 6),
    ],
)
def test_a_lake_that_crashed_holds_each_change_once(name: str, kind: str, seed: int, tmp_path: Path) -> None:
    replay = Replay(name, kind, tmp_path / "crashed")
    assert run_with_crashes(replay, seed) > 3
    assert contents(Lake(replay.options)) == contents(calm_lake(name, kind))
    check_marks(load(name), Lake(replay.options))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_commit_that_comes_twice_is_made_once(kind: str, tmp_path: Path) -> None:
    replay = whole("types", kind, tmp_path / "lake")
    receipts = replay.write(replay.history.end_ts)
    for _ in range(2):
        replay.commit(replay.history.end_ts, receipts)
    lake = Lake(replay.options)
    counted = sum(len(lake.changes(table)) for table in lake.journal.tables)
    assert counted == sum(receipt.rows for receipt in receipts) > 100


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_of_a_batch_that_comes_again_and_longer_only_the_rest_is_taken(kind: str, tmp_path: Path) -> None:
    replay = whole("types", kind, tmp_path / "lake")
    begin, end = replay.from_ts, replay.history.end_ts
    half = (begin + end) // 2
    first = replay.write(half)
    replay.sink.commit(Ts(half), first)
    replay.crash()  # before the state was saved
    again = replay.write(end)
    replay.commit(end, again)
    calm = whole("types", kind, tmp_path / "calm")
    calm.commit(end, calm.write(end))
    assert sum(r.rows for r in first) > 0
    assert contents(Lake(replay.options)) == contents(Lake(calm.options))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_an_initial_copy_come_one_after_the_other_at_one_ts(kind: str, tmp_path: Path) -> None:
    replay = whole("types", kind, tmp_path / "lake")
    end = replay.history.end_ts
    receipts = [r for r in replay.write(end) if r.files]
    for receipt in receipts:
        replay.commit(end, [receipt])
    lake = Lake(replay.options)
    partitioned = lake.table("kinds", "p_hash", end)
    assert len(set(lake.changes(partitioned)["_table_id"].to_pylist())) > 1
    assert sum(len(lake.changes(t)) for t in lake.journal.tables) == sum(r.rows for r in receipts)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_lost_batch_left_is_removed(kind: str, tmp_path: Path) -> None:
    replay = whole("types", kind, tmp_path / "lake")
    assert replay.write(replay.history.end_ts)
    assert list((tmp_path / "lake").rglob("*.parquet"))
    replay.crash()
    assert not list((tmp_path / "lake").rglob("*.parquet"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_whose_sink_was_replaced_stops(kind: str, tmp_path: Path) -> None:
    replay = whole("types", kind, tmp_path / "lake")
    table, physical_id = next(iter(replay.tables()))
    target = replay.sink.target(table, physical_id, (Ts(0), Ts(replay.history.end_ts)))
    replay.crash()
    rows = rows_of(replay.history, table, physical_id, replay.history.end_ts)
    with pytest.raises(SupersededError):
        write_rows(target, iter([rows]))
