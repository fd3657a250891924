"""Ranges of keys, cut where regions end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.upstream.raw import Checksum
from tidemill.verify.rawkv import KeyReport, Part, cuts

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d"])


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
    assert cuts(start, end, borders) == expected


@given(KEYS, KEYS, st.lists(KEYS))
def test_the_parts_tile_the_range(start: bytes, end: bytes, borders: list[bytes]) -> None:
    if end and start >= end:
        return
    parts = cuts(start, end, borders)
    assert (parts[0][0], parts[-1][1]) == (start, end)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert all(not high or low < high for low, high in parts)


def test_a_report_names_the_parts_that_differ() -> None:
    same, other = Checksum(7, 3, 30), Checksum(9, 2, 20)
    report = KeyReport([Part(b"", b"m", same, same), Part(b"m", b"", same, other)])
    assert not report.is_equal
    first, last = report.lines()
    assert "keys from 6d to the last (in hex): 3 pairs of checksum 0000000000000007 upstream, 2 of" in first
    assert last.startswith("1 of 2 ranges differ")
    assert report.document()["different"] == [
        {
            "start_key": "6d",
            "end_key": "",
            "upstream": {"crc64_xor": "0000000000000007", "pairs": 3, "bytes": 30},
            "downstream": {"crc64_xor": "0000000000000009", "pairs": 2, "bytes": 20},
        }
    ]
    assert list(KeyReport([Part(b"", b"", same, same)]).lines()) == ["Equal: 3 pairs, 30 bytes, in 1 ranges."]
