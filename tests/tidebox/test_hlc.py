"""The clocks of stores: strictly rising, above all that their regions have seen, and never twice the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.engine import Engine, Family
from tidebox.hlc import Hlc, RegionClocks
from tidebox.regions import Peer, Region
from tidemill.errors import InvariantError

PEERS = (Peer(11, 1), Peer(12, 2))


def region(region_id: int = 5, leader: int = 1) -> Region:
    return Region(region_id, b"", b"", 1, 1, PEERS, leader)


@pytest.fixture
def engine(tmp_path):
    opened = Engine(tmp_path / "d")
    yield opened
    opened.close()


@pytest.fixture
def clocks(engine):
    return RegionClocks(engine, [1, 2])


@given(st.lists(st.one_of(st.none(), st.tuples(st.booleans(), st.integers(0, 1 << 40)))))
def test_a_clock_rises_strictly_whatever_it_is_told(steps):
    clock, last = Hlc(), 0
    for step in steps:
        if step is None:
            assert clock.next() > last
            last = clock.last
        else:
            is_refresh, ts = step
            (clock.refresh if is_refresh else clock.advance_to)(ts)
            last = max(last, ts)
            assert clock.last == last


def test_only_the_tso_makes_a_clock_trustworthy():
    clock = Hlc()
    clock.advance_to(100)
    assert not clock.is_synced
    clock.refresh(50)
    assert clock.is_synced
    assert clock.next() == 101


def test_a_full_logical_part_runs_over_into_the_physical_one():
    clock = Hlc()
    clock.refresh((7 << 18) - 1)
    assert clock.next() == 7 << 18


def test_a_new_leader_with_a_slower_clock_stamps_above_the_old_ones_writes(clocks):
    """The case of the RawKV CDC proposal: first put at 10, the store's clock is then 11; the other store's is 8."""
    clocks.clock(1).refresh(8)
    clocks.clock(2).refresh(7)
    led_by_1, led_by_2 = region(leader=1), region(leader=2)
    _, first = clocks.stamp(led_by_1)
    clocks.applied(led_by_1, first)
    assert (first, clocks.clock(1).last + 1, clocks.clock(2).last + 1) == (10, 11, 8)
    clocks.on_leader(led_by_2)
    in_flight, second = clocks.stamp(led_by_2)
    assert first < in_flight < second


def test_without_taking_over_the_stamp_is_refused_as_a_bug(clocks):
    clocks.refresh(8)
    _, first = clocks.stamp(region(leader=1))
    clocks.applied(region(leader=1), first)
    with pytest.raises(InvariantError, match="was not advanced"):
        clocks.stamp(region(leader=2))


def test_a_promise_counts_like_a_write(clocks):
    clocks.refresh(8)
    clocks.observe(5, 100)
    clocks.on_leader(region(leader=2))
    assert clocks.stamp(region(leader=2))[0] > 100


def test_a_split_copies_what_the_region_has_seen(clocks):
    clocks.observe(5, 100)
    clocks.on_split(5, [5, 6, 7])
    assert [clocks.max_ts(i) for i in (5, 6, 7)] == [100, 100, 100]


@pytest.mark.parametrize(("source", "target"), [(100, 90), (90, 100)])
def test_a_merge_takes_the_greater_and_its_leader_goes_past_it(clocks, source, target):
    clocks.observe(6, source)
    clocks.observe(5, target)
    clocks.on_merge(6, region(5, leader=2))
    assert clocks.max_ts(5) == 100
    assert clocks.stamp(region(5, leader=2))[0] > 100


def test_a_store_that_restarts_waits_for_the_tso_and_is_past_its_regions_then(clocks):
    clocks.refresh(8)
    clocks.observe(5, 100)
    clocks.on_restart(1, [region(leader=1)])
    assert not clocks.clock(1).is_synced
    clocks.refresh(20)
    assert clocks.stamp(region(leader=1))[0] > 100


def test_a_write_that_outlives_its_store_takes_the_new_clock_along(clocks):
    clocks.refresh(100)
    _, on_its_way = clocks.stamp(region(leader=1))
    clocks.on_restart(1, [region(leader=1)])
    clocks.applied(region(leader=1), on_its_way)
    assert clocks.stamp(region(leader=1))[0] > on_its_way


@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize("is_promise", [False, True])
def test_nothing_used_or_promised_before_a_restart_is_given_out_after_it(engine, is_orderly, is_promise):
    before = RegionClocks(engine, [1, 2])
    before.refresh(1 << 30)
    _, used = before.stamp(region(leader=1))
    if is_promise:
        used += 1_000_000
        before.observe(5, used)
    if is_orderly:
        before.close()
    after = RegionClocks(engine, [1, 2])
    after.refresh(1 << 30)  # the TSO has not moved
    assert after.stamp(region(6, leader=2))[0] > used
    if is_orderly:
        assert after.clock(1).last == used  # and no reserve is lost


def test_the_bound_is_not_written_for_every_stamp(engine):
    clocks = RegionClocks(engine, [1])
    clocks.refresh(1 << 40)
    clocks.stamp(region(leader=1))
    bound = engine.get(Family.META, b"raw_ts_bound")
    for _ in range(1000):
        clocks.stamp(region(leader=1))
    assert engine.get(Family.META, b"raw_ts_bound") == bound
