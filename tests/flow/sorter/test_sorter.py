"""The sorter against its slow model, and its rules one by one."""

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.sorter.sorter_changes import Change, Model, ModelSpan, batch, change, full_batch, in_order, read, rows
from tests.rounds import examples
from tidemill.errors import DataDirError, InvariantError
from tidemill.flow.sorter import LargeTransaction, Sorter, read_portions, read_slices
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import MAX_TS, Ts


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Sorter]]:
    made: list[Sorter] = []

    def build(**bounds: Any) -> Sorter:
        made.append(Sorter(tmp_path / "segments", **bounds))
        return made[-1]

    yield build
    for sorter in made:
        sorter.close()


def run(*steps: Coroutine[Any, Any, None]) -> None:
    async def all_in_turn() -> None:
        for step in steps:
            await asyncio.wait_for(step, 30)

    asyncio.run(all_in_turn())


keys = st.sampled_from([b"a", b"b", b"ba", b"\xff", b"", b"t\x80\0\0\0\0\0\0\1_r\x80\0\0\0\0\0\0\7"])
some_changes = st.lists(st.builds(change, st.integers(1, 60), keys), max_size=40)


@settings(max_examples=examples(100), deadline=None)
@given(
    changes=st.dictionaries(st.integers(1, 4), some_changes),
    windows=st.lists(st.tuples(st.integers(1, 60), st.dictionaries(st.integers(1, 4), st.integers(1, 60))), max_size=8),
    segment_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_spans_that_are_behind_the_others_give_every_change_once(
    changes: dict[int, list[Change]], windows: list[tuple[int, dict[int, int]]], segment_bytes: int
) -> None:
    async def story(sorter: Sorter) -> None:
        for span in range(1, 5):
            sorter.open_span(span, Ts(0))
        for span, delivered in changes.items():
            for each in delivered:
                await sorter.add(span, batch([each]))
        for span in range(1, 5):
            sorter.advance(span, Ts(60))
        at, taken = Checkpoints(Ts(0)), dict[int, list[Change]]()
        for to_ts, ends in [*windows, (60, {})]:
            base_ts = max(at.base_ts, Ts(to_ts))
            own = {i: (at.of(i), min(base_ts, max(at.of(i), Ts(ends.get(i, to_ts))))) for i in range(1, 5)}
            extent = Extent(at.base_ts, base_ts, {i: w for i, w in own.items() if w != (at.base_ts, base_ts)})
            found = {plan.span_id: rows(read_slices(plan)) for plan in sorter.plan(extent)}
            assert sorter.has_changes(extent) == any(found.values())
            for span, some in found.items():
                assert all(own[span][0] < each[1] <= own[span][1] for each in some)
                taken.setdefault(span, []).extend(some)
            at = at.moved(extent)
            sorter.release(at)
        assert taken == {span: in_order(delivered) for span, delivered in changes.items() if delivered}
        assert sorter.stats().segments == 0

    with TemporaryDirectory() as folder:
        sorter = Sorter(Path(folder), segment_bytes=segment_bytes)
        try:
            asyncio.run(story(sorter))
        finally:
            sorter.close()


def test_what_is_durable_of_others_is_not_looked_through_for_a_span_that_is_behind(
    make: Callable[..., Sorter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each resolved-ts asks, and one table may be held for long while thousands of others go on."""
    sorter, looked = make(), list[int]()

    async def story() -> None:
        for span in range(1, 101):
            sorter.open_span(span, Ts(0))
            await sorter.add(span, batch([change(10, b"a"), change(20, b"b")]))
            sorter.advance(span, Ts(30))
        sorter.plan(Extent(Ts(0), Ts(25), {1: (Ts(0), Ts(10))}))
        sorter.release(Checkpoints(Ts(25), {1: Ts(10)}))
        assert sorter.stats().segments == 1
        find = sorter._spans.find

        def noted(span: int) -> Any:
            looked.append(span)
            return find(span)

        monkeypatch.setattr(sorter._spans, "find", noted)
        assert not sorter.has_changes(Extent(Ts(25), Ts(30), {1: (Ts(10), Ts(10))}))
        assert sorter.has_changes(Extent(Ts(25), Ts(30), {1: (Ts(10), Ts(30))}))
        assert set(looked) <= {1}

    run(story())


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_consecutive_batches_hold_every_change_once_and_in_order(data: st.DataObject) -> None:
    """Any delivery order, repetitions, spans that open and close, batches cut anywhere."""
    with TemporaryDirectory() as folder:
        sorter = Sorter(
            Path(folder),
            segment_bytes=data.draw(st.sampled_from([1, 200, 1 << 20]), "segment_bytes"),
            memory_bytes=data.draw(st.sampled_from([1, 1000, 1 << 20]), "memory_bytes"),
        )
        try:
            asyncio.run(_follow_model(sorter, data))
        finally:
            sorter.close()


async def _follow_model(sorter: Sorter, data: st.DataObject) -> None:
    model, checkpoint, open_ids = Model(), 0, 0
    for _ in range(data.draw(st.integers(1, 25), "steps")):
        step = data.draw(st.sampled_from(["open", "add", "add", "add", "close", "advance", "advance", "batch"]), "step")
        span_id = data.draw(st.sampled_from(sorted(model.spans)), "span") if model.spans else None
        if step == "open" or span_id is None:
            open_ids += 1
            since = checkpoint + data.draw(st.integers(0, 5), "since")
            sorter.open_span(open_ids, Ts(since))
            model.spans[open_ids] = ModelSpan(since, since)
        elif step == "add":
            above = model.spans[span_id].resolved  # upstream's promise
            fresh = [c for c in data.draw(some_changes, "changes") if c[1] > above]
            again = [c for c in model.spans[span_id].changes if data.draw(st.booleans(), "again")]
            delivered = data.draw(st.permutations(fresh + again), "order")
            await asyncio.wait_for(sorter.add(span_id, batch(delivered)), 30)
            model.add(span_id, delivered)
        elif step == "close":
            until = checkpoint + data.draw(st.integers(0, 60), "until")
            sorter.close_span(span_id, Ts(until))
            span = model.spans[span_id]
            span.until = min(span.until, max(until, span.since))
        elif step == "advance":
            resolved = data.draw(st.integers(0, 60), "resolved")
            sorter.advance(span_id, Ts(resolved))
            model.spans[span_id].resolved = max(model.spans[span_id].resolved, resolved)
        else:
            checkpoint = _take_batch(sorter, model, checkpoint, data)
        assert sorter.resolved_ts == model.resolved


def _take_batch(sorter: Sorter, model: Model, checkpoint: int, data: st.DataObject) -> int:
    limit = data.draw(st.integers(0, 80), "limit")
    bound = min(limit, model.resolved)
    to = sorter.next_to(Ts(checkpoint), Ts(limit), data.draw(st.integers(1, 20), "max_rows"), 1 << 20)
    assert checkpoint <= to <= max(bound, checkpoint)
    waiting = [c[1] for changes in model.read(checkpoint, bound).values() for c in changes]
    assert to >= min(waiting, default=max(bound, checkpoint))  # one commit-ts at least, or all the way
    expected = model.read(checkpoint, to)
    assert sorter.has_changes(Extent(Ts(checkpoint), Ts(to))) == bool(expected)
    assert read(sorter, checkpoint, to, data.draw(st.integers(1, 9), "batch_rows")) == expected
    assert read(sorter, checkpoint, to) == expected  # a replay gives the same
    sorter.release(Checkpoints(Ts(to)))
    for span in model.spans.values():
        span.changes = [c for c in span.changes if c[1] > to]
    for gone in [i for i, s in model.spans.items() if s.resolved >= s.until and s.until <= to]:
        del model.spans[gone]
    return int(to)


@settings(max_examples=examples(60), deadline=None)
@given(
    changes=st.lists(st.builds(change, st.integers(1, 12), keys, st.sampled_from([None])), min_size=1, max_size=60),
    segments=st.integers(1, 5),
    batch_rows=st.integers(1, 20),
)
def test_batches_are_cut_only_between_two_commit_ts(changes: list[Change], segments: int, batch_rows: int) -> None:
    with TemporaryDirectory() as folder:
        sorter = Sorter(Path(folder), segment_bytes=1)
        try:
            sorter.open_span(1, Ts(0))
            run(*(sorter.add(1, batch(changes[i::segments])) for i in range(segments) if changes[i::segments]))
            sorter.advance(1, Ts(20))
            [plan] = sorter.plan(Extent(Ts(0), Ts(20)))
            portions = [p.read() if isinstance(p, LargeTransaction) else [p] for p in read_portions(plan, batch_rows)]
            batches = [list(portion) for portion in portions]
        finally:
            sorter.close()
    assert rows(each for portion in batches for each in portion) == in_order(changes)
    seen: set[int] = set()
    for portion in batches:
        commits = {ts for each in portion for ts in each["commit_ts"].to_pylist()}
        assert not commits & seen
        assert len(commits) == 1 or (len(portion) == 1 and len(portion[0]) <= batch_rows)
        seen |= commits


def test_changes_with_and_without_a_source_are_told_apart_in_one_order(make: Callable[..., Sorter]) -> None:
    sorter, some = make(), [change(ts, b"k%d" % ts) for ts in range(1, 40)]
    sorter.open_span(1, Ts(0))
    run(sorter.add(1, batch(some[::2])), sorter.add(1, full_batch(some[1::2])))
    sorter.advance(1, Ts(50))
    [plan] = sorter.plan(Extent(Ts(0), Ts(50)))
    found = [row for each in read_slices(plan) for row in each.to_pylist()]
    assert [row["key"] for row in found] == [each[3] for each in some]
    assert [row["txn_source"] for row in found] == [each[1] % 5 * (each[1] % 2 == 0) for each in some]


def test_transactions_that_share_a_commit_ts_keep_their_own_order(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    late, early = [change(9, k, start_ts=7) for k in (b"a", b"c")], [change(9, k, start_ts=3) for k in (b"b", b"d")]
    run(sorter.add(1, batch([late[1], early[1], late[0], early[0]])))
    sorter.advance(1, Ts(9))
    assert read(sorter, 0, 9) == {1: early + late}


@pytest.mark.parametrize("flushed_between", [False, True], ids=["in memory", "in two segments"])
@pytest.mark.parametrize(
    ("second", "found"),
    [
        pytest.param(change(9, b"k", value=b"other"), "two deliveries that differ in value", id="another value"),
        pytest.param((8, 9, 1, b"k", b"one", b"old"), "two deliveries that differ in op", id="another op"),
        pytest.param(change(9, b"k", start_ts=5), "two transactions", id="another transaction"),
    ],
)
def test_two_changes_of_one_key_and_commit_ts_that_differ_are_refused(
    make: Callable[..., Sorter], second: Change, found: str, flushed_between: bool
) -> None:
    sorter = make(segment_bytes=1 if flushed_between else 1 << 20)
    sorter.open_span(1, Ts(0))
    first = change(9, b"k", value=b"one")

    def take() -> None:
        run(sorter.add(1, batch([first, change(9, b"z")])), sorter.add(1, batch([change(9, b"b"), second])))
        sorter.advance(1, Ts(9))
        read(sorter, 0, 9)

    with pytest.raises(InvariantError, match=f"key 6b at commit-ts 9: found {found}"):
        take()


def test_after_a_failed_write_nothing_goes_on(make: Callable[..., Sorter], tmp_path: Path) -> None:
    sorter = make(segment_bytes=1)
    sorter.open_span(1, Ts(0))
    (tmp_path / "segments").rmdir()
    run(sorter.add(1, batch([change(5, b"k")])))
    sorter.advance(1, Ts(9))
    for _ in range(2):
        with pytest.raises(DataDirError, match=r"cannot write segment .*segment-00000001.arrow: .*start again"):
            sorter.plan(Extent(Ts(0), Ts(9)))
    (tmp_path / "segments").mkdir()


def test_leftovers_of_an_earlier_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("segment-00000001.arrow", "segment-00000002.tmp", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    sorter = Sorter(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    sorter.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirError, match=r"cannot prepare the sorter's folder .*file.*choose another --data-dir"):
        Sorter(tmp_path / "file" / "segments")


def test_a_description_travels_pickled_and_small(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(7, Ts(0))
    many = [change(ts, b"%06d" % ts) for ts in range(1, 20_001)]
    run(sorter.add(7, batch(many)))
    sorter.advance(7, Ts(20_000))
    [plan] = sorter.plan(Extent(Ts(100), Ts(19_000)))
    pickled = pickle.dumps(plan)
    assert len(pickled) < 2000
    assert rows(read_slices(pickle.loads(pickled))) == many[100:19_000]
    assert plan.rows == 18_900
    assert abs(plan.bytes / sum(29 + len(c[3]) + len(c[4]) + len(c[5]) for c in many[100:19_000]) - 1) < 0.05


def test_many_small_spans_share_a_file(make: Callable[..., Sorter], tmp_path: Path) -> None:
    sorter = make()
    for span_id in range(300):
        sorter.open_span(span_id, Ts(0))
    run(*(sorter.add(s, batch([change(5 + s, b"k"), change(3, b"%d" % s)])) for s in range(300)))
    for span_id in range(300):
        sorter.advance(span_id, Ts(1000))
    found = read(sorter, 0, 1000)
    assert found == {s: in_order([change(5 + s, b"k"), change(3, b"%d" % s)]) for s in range(300)}
    assert len(list((tmp_path / "segments").iterdir())) == 1


def test_next_to_cuts_a_catch_up_into_even_batches(make: Callable[..., Sorter]) -> None:
    """Every segment covers all of the time, as when a table is scanned in key order."""
    sorter = make(segment_bytes=200_000)
    sorter.open_span(1, Ts(0))
    for part in range(10):
        scanned = [change((i * 7919) % 30_000 + 1, b"%d-%d" % (part, i)) for i in range(6000)]
        run(sorter.add(1, batch(scanned)))
    sorter.advance(1, Ts(30_000))
    at, taken = Ts(0), []
    while at < 30_000:
        to = sorter.next_to(at, Ts(40_000), 5000, 1 << 30)
        taken.append(sum(plan.rows for plan in sorter.plan(Extent(at, to))))
        sorter.release(Checkpoints(to))
        at = to
    assert sorter.stats().segments == 0
    assert sum(taken) == 60_000
    assert all(4000 < count < 6000 for count in taken[:-1])


def test_next_to_counts_bytes_as_well(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    run(sorter.add(1, batch([change(ts, b"k", value=b"v" * 1000) for ts in range(1, 10_001)])))
    sorter.advance(1, Ts(10_000))
    assert 900 < sorter.next_to(Ts(0), MAX_TS, 1 << 30, 1_000_000) < 1100


def test_next_to_takes_a_commit_ts_whole_however_big_it_is(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    run(sorter.add(1, batch([change(50, b"%d" % i) for i in range(3000)] + [change(90, b"k")])))
    sorter.advance(1, Ts(100))
    assert sorter.next_to(Ts(0), MAX_TS, 10, 10) == 50
    assert sorter.next_to(Ts(50), MAX_TS, 10, 100) >= 90


def test_nothing_above_the_slowest_span_leaves(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    sorter.open_span(2, Ts(0))
    run(sorter.add(1, batch([change(5, b"k"), change(15, b"k")])))
    sorter.advance(1, Ts(20))
    sorter.advance(2, Ts(10))
    assert sorter.next_to(Ts(0), MAX_TS, 100, 1 << 20) == 10
    with pytest.raises(InvariantError, match="cannot plan a batch up to 11: the frontier is at 10"):
        sorter.plan(Extent(Ts(0), Ts(11)))


def test_what_progress_costs_and_keeps_does_not_grow_while_one_span_stands_still(make: Callable[..., Sorter]) -> None:
    sorter = make()
    for span_id in range(50):
        sorter.open_span(span_id, Ts(0))
    for ts in range(1, 200):
        for span_id in range(1, 50):
            sorter.advance(span_id, Ts(ts))
            assert sorter.resolved_ts == 0
    assert len(sorter._spans._holding) < 250
    sorter.advance(0, Ts(300))
    assert sorter.resolved_ts == 199


def test_released_changes_cannot_be_planned_again(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    sorter.advance(1, Ts(20))
    sorter.release(Checkpoints(Ts(10)))
    with pytest.raises(InvariantError, match="changes up to 10 were released"):
        sorter.plan(Extent(Ts(9), Ts(20)))


def test_a_span_that_comes_after_a_release_may_be_of_a_table_that_is_behind(make: Callable[..., Sorter]) -> None:
    """Its window begins where the table is, its changes above all that is durable."""
    sorter = make()
    sorter.open_span(1, Ts(0))
    run(sorter.add(1, batch([change(4, b"k"), change(7, b"k"), change(9, b"k")])))
    sorter.close_span(1, Ts(8))
    sorter.advance(1, Ts(20))
    sorter.release(Checkpoints(Ts(20), {1: Ts(5)}))
    sorter.open_span(2, Ts(20))
    run(sorter.add(2, batch([change(25, b"k")])))
    sorter.advance(2, Ts(30))

    def planned(low: int, high: int) -> list[tuple[int, int]]:
        extent = Extent(Ts(20), Ts(20), {1: (Ts(low), Ts(high)), 2: (Ts(low), Ts(high))})
        return [(slices.span_id, each[1]) for slices in sorter.plan(extent) for each in rows(read_slices(slices))]

    assert planned(5, 8) == [(1, 7)]
    assert planned(5, 30) == [(1, 7), (2, 25)]
    with pytest.raises(InvariantError, match="above 4: changes up to 5 were released"):
        planned(4, 8)
    sorter.release(Checkpoints(Ts(30)))
    with pytest.raises(InvariantError, match="changes up to 30 were released"):
        planned(5, 8)


def test_a_span_cannot_be_opened_below_what_was_handed_out(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    sorter.advance(1, Ts(20))
    sorter.plan(Extent(Ts(0), Ts(10)))
    sorter.open_span(2, Ts(10))  # below the frontier, but nobody has taken it
    assert sorter.resolved_ts == 10
    with pytest.raises(InvariantError, match="cannot follow span 3 from 9: batches up to 10"):
        sorter.open_span(3, Ts(9))


def test_what_comes_for_a_span_that_was_never_opened_is_a_bug(make: Callable[..., Sorter]) -> None:
    with pytest.raises(InvariantError, match="span 4 was never opened"):
        run(make().add(4, batch([change(1, b"k")])))


def test_changes_of_another_schema_are_a_bug(make: Callable[..., Sorter]) -> None:
    sorter = make()
    sorter.open_span(1, Ts(0))
    with pytest.raises(InvariantError, match="another schema"):
        run(sorter.add(1, batch([change(1, b"k")]).select(["key"])))
