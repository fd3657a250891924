from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidemill.flow.puller.backoff import REMEMBERED_SECONDS, Backoff, joined
from tidemill.model.span import Span

PART, OTHER = Span(b"a", b"b"), Span(b"b", b"c")


def test_pauses_double_up_to_two_seconds_each_cut_to_between_half_and_whole():
    backoff = Backoff(Random(1))
    for whole in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
        assert whole / 2 <= backoff.next_seconds(PART, now=1.0) <= whole


def test_ranges_are_counted_apart_and_a_finished_scan_clears_its_own():
    backoff = Backoff(Random(1))
    for _ in range(5):
        backoff.next_seconds(PART, now=1.0)
    assert backoff.next_seconds(OTHER, now=1.0) <= 0.05
    backoff.clear(PART)
    assert backoff.next_seconds(PART, now=1.0) <= 0.05


def test_a_loss_long_ago_is_forgotten():
    backoff = Backoff(Random(1))
    for _ in range(5):
        backoff.next_seconds(PART, now=1.0)
    assert backoff.next_seconds(PART, now=2.0 + REMEMBERED_SECONDS) <= 0.05


def test_losses_long_ago_take_no_memory():
    backoff = Backoff(Random(1))
    for n in range(10_000):
        backoff.next_seconds(Span(b"%05d" % n, b"x"), now=n * REMEMBERED_SECONDS / 500)
    assert len(backoff._losses) <= 2 * 1024


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=12))
def test_joined_spans_hold_the_same_keys_and_do_not_touch(parts):
    spans = [Span(bytes([start]), bytes([start + length])) for start, length in parts]
    whole = joined(spans)
    for n in range(30):
        assert any(bytes([n]) in s for s in whole) == any(bytes([n]) in s for s in spans)
    assert all(left.end < right.start for left, right in pairwise(whole))
