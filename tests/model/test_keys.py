"""Ranges of keys, and how they are cut into parts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.model.keys import MOST_SPANS, Bounds, KeyFilter, KeyRange, cut, overlap, split

KEYS = st.binary(max_size=2)
COUNTS = st.integers(1, MOST_SPANS)


@pytest.mark.parametrize(
    ("start", "end", "borders", "expected"),
    [
        pytest.param(b"", b"", [], [(b"", b"")], id="one region: everything at once"),
        pytest.param(b"", b"", [b"m", b""], [(b"", b"m"), (b"m", b"")], id="two, the last without an end"),
        pytest.param(b"b", b"d", [b"a", b"b", b"d", b"x"], [(b"b", b"d")], id="borders at and beyond both ends"),
        pytest.param(b"b", b"", [b"c", b"a", b"c"], [(b"b", b"c"), (b"c", b"")], id="in any order, and twice"),
    ],
)
def test_a_range_is_cut_at_the_borders_inside(
    start: bytes, end: bytes, borders: list[bytes], expected: list[tuple[bytes, bytes]]
) -> None:
    assert cut(start, end, borders) == expected


@given(KEYS, KEYS, st.lists(KEYS))
def test_the_parts_tile_the_range(start: bytes, end: bytes, borders: list[bytes]) -> None:
    if end and start >= end:
        return
    parts = cut(start, end, borders)
    assert (parts[0][0], parts[-1][1]) == (start, end)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert all(not high or low < high for low, high in parts)


@st.composite
def ranges(draw: st.DrawFn) -> list[Bounds]:
    """Some that do not overlap; the last may be open."""
    keys = sorted(draw(st.sets(KEYS, min_size=2, max_size=8)))
    found = [(start, end) for start, end in zip(keys[::2], keys[1::2], strict=False) if start < end]
    is_open = draw(st.booleans())
    return [*found[:-1], (found[-1][0], b"")] if is_open else found


def holds(parts: list[Bounds], key: bytes) -> int:
    return sum(start <= key and (not end or key < end) for start, end in parts)


@given(ranges(), st.lists(KEYS), COUNTS, st.lists(KEYS))
def test_parts_hold_each_key_of_the_ranges_once_and_no_other(
    wanted: list[Bounds], borders: list[bytes], count: int, probes: list[bytes]
) -> None:
    parts = split(wanted, borders, count)
    assert parts == sorted(parts)
    assert all(end and end <= later for (_, end), (later, _) in pairwise(parts))
    for key in [*probes, *borders, *(key for bounds in (*wanted, *parts) for key in bounds)]:
        assert holds(parts, key) == holds(wanted, key) <= 1


@given(ranges(), st.lists(KEYS), COUNTS)
def test_parts_are_as_many_as_wanted_where_there_are_regions_and_nearly_equal(
    wanted: list[Bounds], borders: list[bytes], count: int
) -> None:
    parts = split(wanted, borders, count)
    regions = [len(cut(*each, borders)) for each in wanted]
    assert len(parts) == min(max(count, len(wanted)), sum(regions))
    for start, end in wanted:
        sizes = [len(cut(*part, borders)) for part in parts if start <= part[0] and (not end or part[0] < end)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("wanted", "borders", "count", "expected"),
    [
        pytest.param([(b"", b"")], [], 2, [(b"", b"")], id="one region: one part"),
        pytest.param([(b"", b"")], [b"a", b"b", b"c"], 2, [(b"", b"b"), (b"b", b"")], id="two of two regions each"),
        pytest.param([(b"", b"")], [b"a", b"b"], 2, [(b"", b"a"), (b"a", b"")], id="an odd number"),
        pytest.param(
            [(b"", b"")], [b"a", b"b"], 8, [(b"", b"a"), (b"a", b"b"), (b"b", b"")], id="no more than regions"
        ),
        pytest.param(
            [(b"a", b"b"), (b"c", b"f")], [b"d", b"e"], 2, [(b"a", b"b"), (b"c", b"f")], id="ranges are not joined"
        ),
        pytest.param(
            [(b"a", b"b"), (b"c", b"f")],
            [b"d", b"e"],
            3,
            [(b"a", b"b"), (b"c", b"d"), (b"d", b"f")],
            id="the larger range has one more",
        ),
    ],
)
def test_ranges_are_split_along_regions(
    wanted: list[Bounds], borders: list[bytes], count: int, expected: list[Bounds]
) -> None:
    assert split(wanted, borders, count) == expected


@pytest.mark.parametrize(
    ("first", "more", "says"),
    [
        pytest.param((b"a", b"c"), [(b"b", b"d")], r"\[61,63\) and \[62,64\) \(in hex\) overlap", id="they overlap"),
        pytest.param((b"b", b"c"), [(b"a", b"")], r"\[61,\) and \[62,63\)", id="an open one holds the other"),
        pytest.param((b"a", b"b"), [(b"a", b"b")], "overlap", id="twice the same"),
        pytest.param((b"a", b"b"), [(b"d", b"c")], "is inverted", id="the second is inverted"),
    ],
)
def test_ranges_that_cannot_be_are_refused(first: Bounds, more: list[Bounds], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        KeyRange(*first, more=tuple(more))


def test_what_captures_the_same_has_one_name_and_something_else_another() -> None:
    both = (KeyRange(b"a", b"b", more=((b"c", b""),)), KeyRange(b"c", b"", more=((b"a", b"b"),), span_count=7))
    assert {keys.name for keys in both} == {"DEFAULT[61,62)[63,)"}
    assert KeyRange(filter=KeyFilter((b"a",), "k", "v")).name == "DEFAULT[,) (prefix 61; key 'k'; value 'v')"


@given(ranges(), ranges(), st.lists(KEYS))
def test_two_overlap_where_some_key_is_of_both(one: list[Bounds], other: list[Bounds], probes: list[bytes]) -> None:
    if not one or not other:
        return
    both = [KeyRange(*each[0], more=tuple(each[1:])) for each in (one, other)]
    common = overlap(*both)
    for key in [*probes, *(start for start, _ in (*one, *other))]:
        if holds(one, key) and holds(other, key):
            assert common is not None
    if common is not None:
        assert holds(one, common[0])
        assert holds(other, common[0])
