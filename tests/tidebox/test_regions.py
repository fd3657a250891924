"""What regions become when they split and merge: ranges, ids and epochs, without a cluster."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.regions import Peer, Region, RegionMap, merge, split
from tidemill.errors import CorruptDataError, UsageError

STORES = (1, 2, 3)


def region(at: int = 10, start: bytes = b"", end: bytes = b"", version: int = 1, conf_ver: int = 1, **other) -> Region:
    peers = tuple(Peer(at * 10 + store, store) for store in other.pop("stores", STORES))
    return Region(at, start, end, conf_ver, version, peers, other.pop("leader_store", peers[0].store_id))


def counter(first: int = 1000):
    return iter(range(first, first + 1000)).__next__


@pytest.mark.parametrize(
    ("keys", "bounds"),
    [
        pytest.param([b"m"], [b"a", b"m", b"z"], id="in two"),
        pytest.param([b"c", b"m", b"x"], [b"a", b"c", b"m", b"x", b"z"], id="in four at once"),
    ],
)
def test_a_split_raises_every_version_by_the_number_of_cuts_and_the_right_part_keeps_the_id(keys, bounds):
    parent = region(start=b"a", end=b"z", version=7, conf_ver=5, leader_store=2)
    parts = split(parent, keys, counter())
    assert [(p.start, p.end) for p in parts] == list(pairwise(bounds))
    assert {(p.version, p.conf_ver, p.leader_store, p.stores) for p in parts} == {(7 + len(keys), 5, 2, STORES)}
    assert parts[-1].id == parent.id
    assert parts[-1].peers == parent.peers
    ids = [p.id for p in parts] + [peer.id for p in parts for peer in p.peers]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([], id="nowhere"),
        pytest.param([b"a"], id="at its start"),
        pytest.param([b"z"], id="at its end"),
        pytest.param([b"0"], id="before it"),
        pytest.param([b"m", b"m"], id="twice at one key"),
        pytest.param([b"m", b"c"], id="in descending order"),
    ],
)
def test_a_split_outside_the_region_or_in_disorder_is_refused(keys):
    with pytest.raises(UsageError, match="cannot split region 10"):
        split(region(start=b"a", end=b"z"), keys, counter())


@pytest.mark.parametrize(
    ("source", "target", "bounds", "version"),
    [
        pytest.param((b"", b"m", 1), (b"m", b"", 1), (b"", b""), 3, id="into the right neighbour"),
        pytest.param((b"m", b"z", 1), (b"c", b"m", 1), (b"c", b"z"), 3, id="into the left neighbour"),
        pytest.param((b"c", b"m", 9), (b"m", b"z", 2), (b"c", b"z"), 11, id="past a source that is newer"),
        pytest.param((b"c", b"m", 2), (b"m", b"z", 9), (b"c", b"z"), 10, id="past a target that is newer"),
        pytest.param((b"c", b"m", 8), (b"m", b"z", 9), (b"c", b"z"), 10, id="a prepared source counts one more"),
    ],
)
def test_a_merge_is_newer_than_both_and_keeps_the_target(source, target, bounds, version):
    left = region(10, source[0], source[1], source[2], conf_ver=4)
    right = region(20, target[0], target[1], target[2], conf_ver=6, leader_store=3)
    merged = merge(left, right)
    assert (merged.start, merged.end) == bounds
    assert (merged.id, merged.version, merged.conf_ver) == (20, version, 6)
    assert (merged.peers, merged.leader_store) == (right.peers, 3)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        pytest.param(region(10, b"a", b"c"), region(20, b"d", b"f"), "not neighbours", id="with a gap between"),
        pytest.param(region(10, b"", b"c"), region(20, b"d", b""), "not neighbours", id="the two ends of all keys"),
        pytest.param(region(10), region(10), "not neighbours", id="with itself"),
        pytest.param(
            region(10, b"a", b"c"), region(20, b"c", b"f", stores=(1, 2, 4)), "same stores", id="peers elsewhere"
        ),
    ],
)
def test_what_cannot_merge_is_refused(source, target, said):
    with pytest.raises(UsageError, match=said):
        merge(source, target)


@given(st.data())
def test_splits_and_merges_always_cover_all_keys_and_never_lower_a_version(data):
    regions = RegionMap([region(1)])
    allocate = counter()
    version_at = dict.fromkeys(range(20), 1)
    for _ in range(data.draw(st.integers(1, 12))):
        ordered = list(regions)
        if data.draw(st.booleans()) or len(ordered) == 1:
            key = b"k%02d" % data.draw(st.integers(1, 19))
            old = regions.of_key(key)
            if old.start != key:
                regions.replace([old], split(old, [key], allocate))
        else:
            at = data.draw(st.integers(0, len(ordered) - 2))
            pair = ordered[at], ordered[at + 1]
            source, target = pair if data.draw(st.booleans()) else pair[::-1]
            regions.replace([source, target], [merge(source, target)])
        RegionMap(list(regions))  # raises where they do not cover all keys once
        for k in version_at:
            now = regions.of_key(b"k%02d" % k).version
            assert now >= version_at[k]
            version_at[k] = now


def test_regions_survive_being_stored():
    before = region(7, b"a", b"c", version=4, conf_ver=2, leader_store=3)
    assert Region.decode(before.encode()) == before


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\x08\x04", region().encode()[:-3]])
def test_a_record_that_is_cut_or_empty_is_corrupt(data):
    with pytest.raises(CorruptDataError, match="the record of"):
        Region.decode(data)


@pytest.mark.parametrize(
    "regions",
    [
        pytest.param([], id="none"),
        pytest.param([region(1, b"", b"m"), region(2, b"n", b"")], id="a gap"),
        pytest.param([region(1, b"", b"m"), region(2, b"l", b"")], id="an overlap"),
        pytest.param([region(1, b"a", b"")], id="no beginning"),
        pytest.param([region(1, b"", b"z")], id="no end"),
    ],
)
def test_regions_that_do_not_cover_all_keys_once_are_corrupt(regions):
    with pytest.raises(CorruptDataError):
        RegionMap(regions)
