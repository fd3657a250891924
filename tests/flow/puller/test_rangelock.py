"""Scenarios of splits, merges and stale pictures, then the one thing that must always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import InvariantError
from tidemill.flow.puller.rangelock import Granted, RangeLock, Stale, Wait
from tidemill.model.span import Span


def span(start, end):
    return Span(start.encode(), end.encode())


@pytest.fixture
def parent():
    lock = RangeLock()
    assert lock.lock(span("a", "z"), 1, 5) == Granted()
    return lock


def test_children_of_a_split_wait_for_the_parent_to_let_go(parent):
    assert parent.lock(span("a", "m"), 2, 6) == Wait()
    assert parent.lock(span("m", "z"), 1, 6) == Wait()
    parent.unlock(span("a", "z"), 1)
    assert parent.lock(span("a", "m"), 2, 6) == Granted()
    assert parent.lock(span("m", "z"), 1, 6) == Granted()


def test_a_merged_region_waits_for_both_halves():
    lock = RangeLock()
    lock.lock(span("a", "m"), 2, 6)
    lock.lock(span("m", "z"), 1, 6)
    assert lock.lock(span("a", "z"), 1, 8) == Wait()
    lock.unlock(span("a", "m"), 2)
    assert lock.lock(span("a", "z"), 1, 8) == Wait()
    lock.unlock(span("m", "z"), 1)
    assert lock.lock(span("a", "z"), 1, 8) == Granted()


@pytest.mark.parametrize(
    ("asked", "region", "version", "verdict"),
    [
        pytest.param(span("a", "z"), 9, 5, Stale((span("a", "h"), span("m", "z"))), id="an older picture of the whole"),
        pytest.param(span("h", "m"), 9, 6, Stale(()), id="the same range at the same version"),
        pytest.param(span("j", "z"), 9, 6, Stale((span("m", "z"),)), id="only the uncovered end comes back"),
        pytest.param(span("a", "h"), 9, 1, Granted(), id="touching is not overlapping"),
        pytest.param(span("m", "z"), 3, 6, Stale((span("m", "z"),)), id="the same region held elsewhere counts"),
        pytest.param(span("m", "z"), 3, 7, Wait(), id="also when it is newer"),
    ],
)
def test_against_one_that_is_held(asked, region, version, verdict):
    lock = RangeLock()
    lock.lock(span("h", "m"), 3, 6)
    assert lock.lock(asked, region, version) == verdict


def test_one_older_and_one_newer_neighbour_make_the_picture_stale():
    lock = RangeLock()
    lock.lock(span("a", "c"), 1, 3)
    lock.lock(span("c", "e"), 2, 9)
    assert lock.lock(span("b", "f"), 4, 5) == Stale((span("e", "f"),))


@pytest.mark.parametrize(("part", "region"), [(span("a", "y"), 1), (span("a", "z"), 2), (span("b", "z"), 1)])
def test_only_what_was_granted_can_be_given_back(parent, part, region):
    with pytest.raises(InvariantError, match="does not hold"):
        parent.unlock(part, region)


def test_what_nobody_holds_is_told_in_key_order(parent):
    assert parent.uncovered(span("Z", "zz")) == [span("Z", "a"), span("z", "zz")]
    assert parent.uncovered(span("b", "c")) == []


regions = st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))


@given(st.lists(st.one_of(regions, st.integers(0, 30)), max_size=60))
def test_no_key_and_no_region_is_ever_held_twice(steps):
    lock, held = RangeLock(), []
    for step in steps:
        if isinstance(step, int):
            if held:
                part, region = held.pop(step % len(held))
                lock.unlock(part, region)
            continue
        start, length, region, version = step
        part = Span(b"%04d" % start, b"%04d" % (start + length))
        if lock.lock(part, region, version) == Granted():
            assert all(not part.overlaps(other) and region != r for other, r in held)
            held.append((part, region))
        assert len(lock) == len(held)
