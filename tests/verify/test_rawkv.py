"""Ranges of keys, cut where regions end."""

from hypothesis import strategies as st

from tidemill.upstream.raw import Checksum
from tidemill.verify.rawkv import KeyReport, Part

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d"])


def test_a_report_names_the_parts_that_differ() -> None:
    same, other = Checksum(7, 3, 30), Checksum(9, 2, 20)
    report = KeyReport([Part(b"", b"m", same, same), Part(b"m", b"", same, other)])
    assert not report.is_equal
    first, last = report.lines()
    assert "keys from 6d to the last (in hex): 3 pairs of checksum 0000000000000007 upstream, 2 of" in first
    assert last.startswith("1 of 2 ranges differs")
    assert report.document()["different"] == [
        {
            "start_key": "6d",
            "end_key": "",
            "upstream": {"crc64_xor": "0000000000000007", "pairs": 3, "bytes": 30},
            "downstream": {"crc64_xor": "0000000000000009", "pairs": 2, "bytes": 20},
        }
    ]
    assert list(KeyReport([Part(b"", b"", same, same)]).lines()) == ["Equal: 3 pairs, 30 bytes, in 1 range."]
