"""Garbage collection: what goes, what stays, and that nobody who may still read notices."""

import threading
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tidebox import blocks
from tidebox.cluster import Cluster
from tidebox.engine import Engine, Family
from tidebox.gc import Collector, Sweeper
from tidebox.mvcc import Lock, LockType, Reader, Write, WriteType, physical_key, version_key
from tidemill._pb import cdcpb_pb2
from tidemill.errors import CorruptDataError
from tidemill.tidb.keys import split_mvcc_key

LONG = b"long" * 100
KEYS = [b"", b"a", b"ab", b"b" * 8, b"b" * 9]
DEADLINE_SECONDS = 30
P, D, L, R = WriteType.PUT, WriteType.DELETE, WriteType.LOCK, WriteType.ROLLBACK


class HandClock:
    seconds = 1_000_000.0

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds


@contextmanager
def opened(folder, clock=None, block=blocks.RECORDS_PER_BLOCK):
    engine = Engine(folder)
    try:
        cluster = Cluster(engine, clock or HandClock(), 1)
        cluster.garbage.records_per_block = block
        yield cluster
    finally:
        engine.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """For many examples: opening one takes longer than they do."""
    opened = Engine(tmp_path_factory.mktemp("gc") / "d")
    yield opened
    opened.close()


def emptied(engine, block):
    batch = engine.batch()
    for family in Family:
        for key, _ in engine.items(family):
            batch.delete(family, key)
    engine.write(batch)
    return started(engine, block)


def started(engine, block):
    """A cluster on what the engine holds, as after a restart."""
    cluster = Cluster(engine, HandClock(), 1)
    cluster.garbage.records_per_block = block
    return cluster


def write(cluster, versions, locks=()):
    """``versions`` are (key, commit-ts, start-ts, type, value); ``locks`` are (key, start-ts, value)."""
    batch = cluster.engine.batch()
    for key, commit_ts, start_ts, kind, value in versions:
        is_long = kind is P and len(value) > 255
        record = Write(kind, start_ts, value if kind is P and not is_long else None)
        batch.put(Family.WRITE, version_key(key, commit_ts), record.encode())
        if is_long:
            batch.put(Family.DEFAULT, version_key(key, start_ts), value)
    for key, start_ts, value in locks:
        cluster.locks.put(batch, key, Lock(LockType.PUT, key, start_ts, 3000, short_value=None))
        batch.put(Family.DEFAULT, version_key(key, start_ts), value)
    cluster.engine.write(batch)


def left(cluster):
    """What is stored: (key, commit-ts) of commit records, (key, start-ts) of long values."""
    families = (Family.WRITE, Family.DEFAULT)
    return tuple({split_mvcc_key(stored) for stored, _ in cluster.engine.items(family)} for family in families)


def collect(cluster, safepoint, **options):
    with cluster.mutex:
        cluster.safepoints.announce_gc(safepoint)
    return cluster.garbage.collect(**options)


# What goes


@pytest.mark.parametrize(
    ("versions", "stays"),
    [
        pytest.param([(9, P), (5, P), (3, P)], {9, 5}, id="the newest put at or below the safepoint stays"),
        pytest.param([(6, P), (5, P)], {6}, id="a version at the safepoint is what a read at it sees"),
        pytest.param([(7, P), (5, P)], {7, 5}, id="nothing above the safepoint goes"),
        pytest.param([(5, D), (3, P)], set(), id="a delete goes with what it deleted"),
        pytest.param([(9, P), (5, D), (3, P)], {9}, id="also below a newer put"),
        pytest.param([(9, D), (5, P)], {9, 5}, id="a delete above the safepoint stays"),
        pytest.param([(5, L), (4, R), (3, P)], {3}, id="lock and rollback records hide nothing"),
        pytest.param([(9, L), (8, R), (3, P)], {9, 8, 3}, id="rollback records above the safepoint stay"),
        pytest.param([(5, D), (4, D), (2, R)], set(), id="a key with nothing to see goes as a whole"),
    ],
)
def test_of_each_key_only_what_a_read_at_the_safepoint_sees_is_left(tmp_path, versions, stays):
    with opened(tmp_path) as cluster:
        write(cluster, [(b"k", ts, ts - 1 if kind is not R else ts, kind, b"v") for ts, kind in versions])
        collected = collect(cluster, 6)
        assert {ts for _, ts in left(cluster)[0]} == stays
        assert (collected.versions, collected.is_whole) == (len(versions) - len(stays), True)


def test_long_values_go_with_their_commit_records(tmp_path):
    with opened(tmp_path) as cluster:
        write(cluster, [(b"k", ts, ts - 1, P, LONG) for ts in (2, 4, 8)], locks=[(b"k", 9, LONG)])
        collect(cluster, 6)
        assert left(cluster) == ({(b"k", 8), (b"k", 4)}, {(b"k", 9), (b"k", 7), (b"k", 3)})


def test_one_key_with_more_versions_than_a_block_is_collected_over_several(tmp_path):
    with opened(tmp_path, block=4) as cluster:
        write(cluster, [(b"a", 90, 89, P, b"v")])
        write(cluster, [(b"k", ts, ts - 1, D if ts == 60 else P, b"v") for ts in range(2, 62, 2)])
        write(cluster, [(b"z", 90, 89, P, b"v")])
        assert collect(cluster, 70).versions == 30
        assert left(cluster)[0] == {(b"a", 90), (b"z", 90)}


def test_without_a_gc_safepoint_everything_stays(tmp_path):
    with opened(tmp_path) as cluster:
        write(cluster, [(b"k", 2, 1, P, b"v"), (b"k", 4, 3, P, b"v")])
        assert cluster.collect_garbage().versions == 0


def test_a_safepoint_from_the_future_does_not_pass_the_present(tmp_path):
    with opened(tmp_path) as cluster:
        present = cluster.tso.next()
        assert collect(cluster, (1 << 64) - 1).safepoint < present + (1 << 18)


# Nobody notices


@st.composite
def stores(draw):
    """Versions of few keys and a safepoint among them; start-ts are odd, commit-ts even."""
    versions = []
    for key in draw(st.sets(st.sampled_from(KEYS), min_size=1)):
        previous = 0
        for step in draw(st.lists(st.integers(1, 3), max_size=9)):
            commit_ts = previous + 2 * step
            kind = draw(st.sampled_from([P, P, D, L, R]))
            start_ts = commit_ts if kind is R else draw(st.integers(previous // 2, commit_ts // 2 - 1)) * 2 + 1
            value = draw(st.sampled_from([b"short", LONG])) + b"%d" % commit_ts
            versions.append((key, commit_ts, start_ts, kind, value))
            previous = commit_ts
    return versions, draw(st.integers(0, 30))


def seen(cluster, safepoint):
    """Reads and change streams that may be asked for: at the safepoint and wherever something changes above it."""
    snapshot = cluster.engine.snapshot()
    reader = Reader(snapshot)
    stamps = [ts for _, ts in left(cluster)[0] if ts > safepoint]
    reads = {(key, ts): reader.get(key, ts) for key in KEYS for ts in (safepoint, *stamps)}
    return reads, [changed(snapshot, ts) for ts in (safepoint, safepoint + 5)]


def changed(snapshot, checkpoint_ts):
    wire = b"".join(rows.data.tobytes() for rows in blocks.changes(snapshot, b"", b"", checkpoint_ts))
    return cdcpb_pb2.Event.Entries.FromString(wire)


def needed(versions, safepoint):
    """The slow way: what is left of ``versions`` when all is collected."""
    for key, commit_ts, start_ts, kind, value in versions:
        newer = [v for v in versions if v[0] == key and commit_ts < v[1] <= safepoint and v[3] in (P, D)]
        if commit_ts > safepoint or (kind is P and not newer):
            yield key, commit_ts, start_ts, kind, value


@settings(max_examples=examples(80), deadline=None)
@given(stores(), st.integers(1, 6))
def test_reads_at_or_above_the_safepoint_are_unchanged_and_nothing_unneeded_is_left(engine, store, block):
    versions, safepoint = store
    cluster = emptied(engine, block)
    write(cluster, versions)
    before = seen(cluster, safepoint)
    assert collect(cluster, safepoint).is_whole
    assert seen(cluster, safepoint) == before
    stays = list(needed(versions, safepoint))
    values = {(key, start_ts) for key, _, start_ts, kind, value in stays if kind is P and len(value) > 255}
    assert left(cluster) == ({(key, commit_ts) for key, commit_ts, *_ in stays}, values)


@settings(max_examples=examples(80), deadline=None)
@given(stores(), st.integers(1, 3), st.integers(0, 40))
@example(store=([(b"a", 4, 3, D, b""), (b"a", 2, 1, P, b"v")], 6), block=1, blocks_done=40)
def test_a_pass_that_ends_after_any_block_has_done_no_harm(engine, store, block, blocks_done):
    versions, safepoint = store
    cluster = emptied(engine, block)
    write(cluster, versions)
    before = seen(cluster, safepoint)
    asked = iter(range(1000))

    def should_stop():  # asked after each block
        assert seen(cluster, safepoint) == before
        return next(asked) >= blocks_done

    collect(cluster, safepoint, should_stop=should_stop)
    cluster = started(engine, block)
    assert seen(cluster, safepoint) == before
    cluster.garbage.collect_if_due()
    assert seen(cluster, safepoint) == before
    assert left(cluster)[0] == {(key, commit_ts) for key, commit_ts, *_ in needed(versions, safepoint)}


@settings(max_examples=examples(80), deadline=None)
@given(stores(), st.integers(1, 3), st.sets(st.integers(0, 31), max_size=5), st.sampled_from([b"a", b"z"]))
def test_what_an_unfinished_transaction_needs_stays_until_it_is_over(engine, store, block, starts, prefix):
    versions, safepoint = store
    cluster = emptied(engine, block)
    locks = [(prefix + b"%d" % start, start, LONG) for start in starts]
    write(cluster, versions, locks)
    before, stored = seen(cluster, safepoint), left(cluster)
    collected = collect(cluster, safepoint)
    assert seen(cluster, safepoint) == before
    records, values = left(cluster)
    fates = {(key, ts) for key, ts, start, *_ in versions if start in starts or ts in starts}
    assert fates <= records <= stored[0]
    assert {(key, start) for key, start, _ in locks} <= values
    batch = engine.batch()
    for key, start, _ in locks:
        cluster.locks.remove(batch, key)
        batch.delete(Family.DEFAULT, version_key(key, start))
    engine.write(batch)
    stays = {(key, ts) for key, ts, *_ in needed(versions, safepoint)}
    assert collected.is_whole == (records == stays)
    assert collect(cluster, safepoint).is_whole
    assert left(cluster)[0] == stays


def test_a_locked_key_is_left_alone(tmp_path):
    with opened(tmp_path) as cluster:
        write(cluster, [(b"k", 4, 3, P, b"v"), (b"k", 2, 2, R, b"")], locks=[(b"k", 5, LONG)])
        assert (collect(cluster, 6).versions, collect(cluster, 6).is_whole) == (0, False)


def test_a_key_that_a_command_is_on_waits_for_the_next_pass(tmp_path):
    with opened(tmp_path) as cluster:
        write(cluster, [(key, ts, ts - 1, P, b"v") for key in (b"a", b"b") for ts in (2, 4)])
        with cluster.mutex, cluster.in_flight.latch([b"a"]):
            assert not collect(cluster, 6).is_whole
            assert left(cluster)[0] == {(b"a", 2), (b"a", 4), (b"b", 4)}
        assert cluster.garbage.collect_if_due().is_whole
        assert left(cluster)[0] == {(b"a", 4), (b"b", 4)}


@settings(max_examples=examples(80), deadline=None)
@given(stores(), st.integers(1, 3), st.lists(st.sets(st.sampled_from(KEYS)), max_size=12))
@example(
    store=([(b"a", 6, 5, D, b""), (b"a", 4, 3, P, b"v"), (b"a", 2, 1, P, b"v")], 8), block=1, commands=[set(), {b"a"}]
)
def test_commands_that_come_and_go_meanwhile_bring_nothing_back(engine, store, block, commands):
    versions, safepoint = store
    cluster = emptied(engine, block)
    write(cluster, versions)
    before = seen(cluster, safepoint)
    turns = iter(commands)
    with ExitStack() as on:

        def should_stop():  # asked after each block: other keys are busy then
            assert seen(cluster, safepoint) == before
            on.close()
            on.enter_context(cluster.mutex)
            on.enter_context(cluster.in_flight.latch(next(turns, set())))
            return False

        collect(cluster, safepoint, should_stop=should_stop)
    assert seen(cluster, safepoint) == before
    assert cluster.collect_garbage().is_whole
    assert left(cluster)[0] == {(key, ts) for key, ts, *_ in needed(versions, safepoint)}


def test_what_settles_its_commit_ts_during_a_pass_settles_above_the_safepoint(tmp_path):
    with opened(tmp_path) as cluster:
        collect(cluster, 6)
        assert cluster.in_flight.max_ts >= 6


def test_an_unreadable_record_stops_the_pass_and_is_named(tmp_path):
    with opened(tmp_path) as cluster:
        cluster.engine.put(Family.WRITE, version_key(b"k", 4), b"P")
        with pytest.raises(CorruptDataError, match=physical_key(b"k").hex()):
            collect(cluster, 6)


# When


def test_a_safepoint_that_has_not_moved_is_not_collected_again(tmp_path):
    with opened(tmp_path) as cluster:
        write(cluster, [(b"k", 2, 1, P, b"v"), (b"k", 4, 3, P, b"v")])
        collect(cluster, 6)
        write(cluster, [(b"k", 3, 2, P, b"v")])
        assert cluster.garbage.collect_if_due().versions == 0
    with opened(tmp_path) as cluster:
        assert cluster.garbage.collect_if_due().versions == 0
        assert cluster.collect_garbage().versions == 1


def test_a_service_safepoint_holds_versions_back_until_its_time_is_up(tmp_path):
    clock = HandClock()
    with opened(tmp_path, clock) as cluster:
        write(cluster, [(b"k", ts, ts - 1, P, b"v") for ts in (2, 4, 6, 8)])
        cluster.safepoints.update(b"cdc", 4, 60)
        assert collect(cluster, 8).safepoint == 4
        assert left(cluster)[0] == {(b"k", 4), (b"k", 6), (b"k", 8)}
        clock.seconds += 60
        assert cluster.garbage.collect_if_due().versions == 0
        clock.seconds += 1
        assert cluster.garbage.collect_if_due().versions == 2
        assert left(cluster)[0] == {(b"k", 8)}


def test_the_sweeper_collects_by_itself_when_the_safepoint_moves(tmp_path):
    with opened(tmp_path) as cluster:
        swept = threading.Event()
        parts = (cluster.mutex, cluster.safepoints, cluster.locks, cluster.in_flight, cluster.tso)
        collector = Collector(cluster.engine, *parts, collect_raw=lambda before_ts: swept.set() or 0)
        write(cluster, [(b"k", 2, 1, P, b"v"), (b"k", 4, 3, P, b"v")])
        with cluster.mutex:
            cluster.safepoints.announce_gc(6)
        sweeper = Sweeper(collector, 0.001)
        sweeper.start()
        try:
            assert swept.wait(DEADLINE_SECONDS)  # raw versions come after the others
        finally:
            sweeper.stop()
        assert left(cluster)[0] == {(b"k", 4)}


@pytest.mark.parametrize(
    ("barrier", "before_ms"),
    [(None, 1_000_000_000 - 86_400_000), (5 << 18, 5)],
    ids=["older than their lifetime", "below every service safepoint"],
)
def test_raw_versions_go_when_they_are(tmp_path, barrier, before_ms):
    asked = []
    with opened(tmp_path) as cluster:
        parts = (cluster.mutex, cluster.safepoints, cluster.locks, cluster.in_flight, cluster.tso)
        collector = Collector(cluster.engine, *parts, collect_raw=lambda before_ts: asked.append(before_ts) or 3)
        if barrier is not None:
            cluster.safepoints.set_barrier(b"cdc", barrier, 60)
        assert collector.collect().raw_versions == 3
    assert asked == [before_ms << 18]
