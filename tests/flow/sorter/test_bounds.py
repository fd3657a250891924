"""Memory and disk are bounded, and waiting for room never ends in a deadlock."""

import asyncio
import sys
import threading
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.sorter.sorter_changes import Change, batch, change, in_order, read
from tests.rounds import examples
from tidemill.clock import SYSTEM_CLOCK
from tidemill.flow.sorter import Sorter
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import MAX_TS, Ts

DEADLINE_SECONDS = 30


def wide(low: int, high: int, key: bytes = b"k") -> list[Change]:
    """Changes of 1 KB, one per ts in ``(low, high]``."""
    return [change(ts, key, value=b"v" * 1000) for ts in range(low + 1, high + 1)]


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    return tmp_path / "segments"


def test_memory_stays_within_its_bound(segments: Path) -> None:
    async def flood(sorter: Sorter) -> None:
        async with asyncio.TaskGroup() as group:
            for span_id in range(8):
                sorter.open_span(span_id, Ts(0))
                group.create_task(pour(sorter, span_id))

    async def pour(sorter: Sorter, span_id: int) -> None:
        for ts in range(0, 300, 10):
            await sorter.add(span_id, batch(wide(ts, ts + 10)))
            assert sorter.stats().memory_bytes <= 100_000

    sorter = Sorter(segments, segment_bytes=40_000, memory_bytes=100_000)
    asyncio.run(asyncio.wait_for(flood(sorter), DEADLINE_SECONDS))
    for span_id in range(8):
        sorter.advance(span_id, Ts(300))
    assert read(sorter, 0, 300) == {span_id: wide(0, 300) for span_id in range(8)}
    sorter.release(Checkpoints(Ts(300)))
    stats = sorter.stats()
    assert (stats.memory_bytes, stats.disk_bytes, stats.rows, stats.segments) == (0, 0, 0, 0)
    assert list(segments.iterdir()) == []
    sorter.close()


def test_a_batch_bigger_than_the_memory_bound_is_taken_alone(segments: Path) -> None:
    sorter = Sorter(segments, segment_bytes=1000, memory_bytes=2000)
    sorter.open_span(1, Ts(0))

    async def script() -> None:
        for ts in (0, 50, 100):
            await asyncio.wait_for(sorter.add(1, batch(wide(ts, ts + 50))), DEADLINE_SECONDS)

    asyncio.run(script())
    sorter.advance(1, Ts(150))
    assert read(sorter, 0, 150) == {1: wide(0, 150)}
    sorter.close()


def test_beyond_the_disk_bound_add_waits_until_readers_made_room(segments: Path) -> None:
    sorter = Sorter(segments, segment_bytes=10_000, memory_bytes=40_000, disk_bytes=50_000)

    async def script() -> None:
        sorter.open_span(1, Ts(0))
        await sorter.add(1, batch(wide(0, 100)))
        sorter.advance(1, Ts(100))
        sorter.allow(Extent(Ts(0), MAX_TS))
        assert sorter.next_to(Ts(0), MAX_TS, 1000, 1 << 30) == 100
        assert sorter.stats().disk_bytes > 50_000
        late = asyncio.create_task(sorter.add(1, batch(wide(100, 110))))
        await asyncio.sleep(0)
        assert (late.done(), sorter.stats().waiting) == (False, 1)
        assert read(sorter, 0, 100) == {1: wide(0, 100)}
        assert not late.done()
        sorter.release(Checkpoints(Ts(100)))
        await asyncio.wait_for(late, DEADLINE_SECONDS)
        sorter.advance(1, Ts(110))
        assert read(sorter, 100, 110) == {1: wide(100, 110)}
        assert sorter.stats().waiting == 0

    asyncio.run(script())
    sorter.close()


@pytest.mark.parametrize("disk", ["as quick as it is", "held up"])
def test_what_is_in_memory_is_counted_before_it_goes_to_disk(segments: Path, disk: str) -> None:
    quota = 50_000
    sorter = Sorter(segments, segment_bytes=10_000, memory_bytes=1_000_000, disk_bytes=quota)
    may_write = threading.Event()
    if disk == "held up":
        sorter._thread.submit(may_write.wait)  # what is sealed waits behind it

    async def pour() -> None:
        for ts in range(5, 200, 5):
            await sorter.add(1, batch(wide(ts, ts + 5)))

    async def script() -> None:
        sorter.open_span(1, Ts(0))
        await sorter.add(1, batch(wide(0, 5)))
        sorter.advance(1, Ts(5))
        sorter.allow(Extent(Ts(0), Ts(5)))  # and nobody comes to take them
        late = asyncio.create_task(pour())
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not sorter.stats().is_full:
                await SYSTEM_CLOCK.sleep(0.001)
        may_write.set()
        sorter.plan(Extent(Ts(0), Ts(5)))  # when it returns, nothing is being written
        held = sorter.stats()
        assert quota - 15_000 < held.disk_bytes + held.memory_bytes <= quota
        assert _file_bytes(segments) == held.disk_bytes
        sorter.release(Checkpoints(Ts(5)))
        await asyncio.wait_for(late, DEADLINE_SECONDS)
        sorter.advance(1, Ts(200))
        assert read(sorter, 5, 200) == {1: wide(5, 200)}

    try:
        asyncio.run(script())
    finally:
        may_write.set()
        sorter.close()


def _file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("holder", ["another span", "the barrier", "readers not there yet"])
def test_beyond_the_disk_bound_everything_is_let_in_when_only_input_can_move_the_frontier(
    segments: Path, holder: str
) -> None:
    sorter = Sorter(segments, segment_bytes=1, memory_bytes=40_000, disk_bytes=1)
    sorter.open_span(1, Ts(0))
    sorter.open_span(2, Ts(0))
    sorter.advance(1, Ts(100))
    sorter.advance(2, Ts(0 if holder == "another span" else 100))
    if holder != "readers not there yet":
        sorter.allow(Extent(Ts(0), Ts(0) if holder == "the barrier" else MAX_TS))

    async def script() -> None:
        for span_id in (1, 2, 1):
            await asyncio.wait_for(sorter.add(span_id, batch(wide(0, 50))), DEADLINE_SECONDS)

    asyncio.run(script())
    sorter.advance(2, Ts(100))
    assert read(sorter, 0, 100) == {1: wide(0, 50), 2: wide(0, 50)}
    sorter.close()


def test_beyond_the_disk_bound_add_waits_while_readers_are_busy_otherwise(segments: Path) -> None:
    sorter = Sorter(segments, segment_bytes=1, memory_bytes=40_000, disk_bytes=1)

    async def script() -> None:
        sorter.open_span(1, Ts(0))
        await sorter.add(1, batch(wide(0, 5)))
        sorter.advance(1, Ts(5))
        sorter.plan(Extent(Ts(0), Ts(5)))
        sorter.allow(Extent(Ts(0), Ts(0)), is_busy=True)
        late = asyncio.create_task(sorter.add(1, batch(wide(5, 7))))
        await asyncio.sleep(0)
        assert (late.done(), sorter.stats().is_full) == (False, True)
        sorter.allow(Extent(Ts(0), Ts(0)))
        await asyncio.wait_for(late, DEADLINE_SECONDS)
        assert not sorter.stats().is_full

    asyncio.run(script())
    sorter.close()


def test_who_gives_up_waiting_has_added_nothing_and_harms_nobody(segments: Path) -> None:
    sorter = Sorter(segments, segment_bytes=1, memory_bytes=2, disk_bytes=1)

    async def script() -> None:
        sorter.open_span(1, Ts(0))
        await sorter.add(1, batch(wide(0, 5)))
        sorter.advance(1, Ts(5))
        sorter.allow(Extent(Ts(0), MAX_TS))
        late = asyncio.create_task(sorter.add(1, batch(wide(5, 7))))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        sorter.advance(1, Ts(9))
        assert sorter.stats().waiting == 0
        assert read(sorter, 0, 9) == {1: wide(0, 5)}

    asyncio.run(script())
    sorter.close()


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.randoms(use_true_random=False), disk_bytes=st.sampled_from([1, 5_000, 50_000]))
def test_whatever_the_bounds_a_reader_and_its_writers_come_to_the_end(seed: Random, disk_bytes: int) -> None:
    """Three writers on one stream each, one of them slow, and a reader that takes batches as they come."""
    with TemporaryDirectory() as folder:
        sorter = Sorter(Path(folder), segment_bytes=2_000, memory_bytes=8_000, disk_bytes=disk_bytes)
        try:
            taken = asyncio.run(asyncio.wait_for(_live(sorter, seed), DEADLINE_SECONDS))
        finally:
            sorter.close()
    assert taken == {span_id: in_order(_story(span_id)) for span_id in range(3)}


def _story(span_id: int) -> list[Change]:
    return [change(ts, b"%d" % span_id, value=b"v" * 300) for ts in range(1 + span_id, 61, 1 + span_id)]


async def _live(sorter: Sorter, seed: Random) -> dict[int, list[Change]]:
    for span_id in range(3):
        sorter.open_span(span_id, Ts(0))
    taken: dict[int, list[Change]] = {span_id: [] for span_id in range(3)}
    async with asyncio.TaskGroup() as group:
        for span_id in range(3):
            group.create_task(_write(sorter, span_id, seed))
        group.create_task(_take(sorter, taken, seed))
    return taken


async def _write(sorter: Sorter, span_id: int, seed: Random) -> None:
    story = _story(span_id)
    while story:
        count = seed.randint(1, 8)
        part, story = story[:count], story[count:]
        await sorter.add(span_id, batch(part))
        sorter.advance(span_id, Ts(part[-1][1]))
        for _ in range(seed.randint(0, 5 * (1 + span_id))):
            await asyncio.sleep(0)
    sorter.advance(span_id, Ts(60))


async def _take(sorter: Sorter, taken: dict[int, list[Change]], seed: Random) -> None:
    at = Ts(0)
    while at < 60:
        to = sorter.next_to(at, MAX_TS, 10, 1 << 20)
        for span_id, changes in read(sorter, at, to).items():
            taken[span_id] += changes
        sorter.release(Checkpoints(to))
        at = to
        for _ in range(seed.randint(1, 10)):
            await asyncio.sleep(0)


def test_asking_for_stats_from_another_thread_changes_nothing(segments: Path) -> None:
    sorter = Sorter(segments)
    sorter.open_span(1, Ts(0))
    is_over = threading.Event()
    planned: list[list[int]] = []

    def watch() -> None:
        while not is_over.is_set():
            sorter.stats()

    async def script() -> None:
        for ts in range(1, 200):
            await sorter.add(1, batch([change(ts, b"k")]))
            sorter.advance(1, Ts(ts))
            planned.append([slices.rows for slices in sorter.plan(Extent(Ts(ts - 1), Ts(ts)))])
            sorter.release(Checkpoints(Ts(ts)))

    watcher, interval = threading.Thread(target=watch), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the threads meet everywhere
    watcher.start()
    try:
        asyncio.run(script())
    finally:
        is_over.set()
        watcher.join()
        sys.setswitchinterval(interval)
        sorter.close()
    assert planned == [[1]] * 199
