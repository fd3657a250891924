"""How fast a client sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.clock import SYSTEM_CLOCK
from tidemill.upstream.pace import Pace

BOOKINGS = st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 5)), min_size=1)


@given(BOOKINGS, st.integers(100, 100_000))
def test_no_stretch_of_time_has_more_than_its_share_and_a_burst(bookings: list[tuple[int, float]], rate: int) -> None:
    pace, now = Pace(rate), SYSTEM_CLOCK.monotonic()
    sent: list[tuple[float, int]] = []
    for size, pause in bookings:
        now += pause
        sent.append((now + pace.book(size, now), size))
    for first, (since, _) in enumerate(sent):
        total = 0
        for at, size in sent[first:]:  # what was sent before the last one of a stretch has left the line
            assert total <= rate * (at - since + 0.1) + 1e-3
            total += size


@pytest.mark.parametrize(
    ("sizes", "at", "waits"),
    [
        pytest.param([1000, 1000, 500], [10.0, 10.0, 10.0], [0.0, 0.9, 1.9], id="one behind the other"),
        pytest.param([1000, 10], [10.0, 12.0], [0.0, 0.0], id="the line is free again"),
        pytest.param([0, 0], [10.0, 10.0], [0.0, 0.0], id="nothing takes no time"),
    ],
)
def test_a_request_waits_for_those_before_it(sizes: list[int], at: list[float], waits: list[float]) -> None:
    pace = Pace(1000)
    pace._booked = 0.0
    assert [pace.book(size, now) for size, now in zip(sizes, at, strict=True)] == pytest.approx(waits)
