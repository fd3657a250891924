"""Of what a lag is made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.capture.options import LagParts, parts_of_lag
from tidemill.model.ts import MAX_TS, Ts, compose, lag_seconds

MOMENTS = st.integers(0, 100_000)


def at(milliseconds: int) -> Ts:
    return compose(1_000_000 + milliseconds)


@pytest.mark.parametrize(
    ("frontier", "taken", "checkpoint", "parts"),
    [
        pytest.param(7000, 7000, 7000, LagParts(3.0, 0.0, 0.0), id="all that is resolved is durable"),
        pytest.param(7000, 6000, 4000, LagParts(3.0, 1.0, 2.0), id="a batch is being written, more waits"),
        pytest.param(7000, 4000, 4000, LagParts(3.0, 3.0, 0.0), id="no batch is at hand"),
        pytest.param(3000, 3000, 4000, LagParts(6.0, 0.0, 0.0), id="after a restart, before anything is resolved"),
        pytest.param(7000, 9000, 4000, LagParts(3.0, 0.0, 3.0), id="a batch is not ahead of what is resolved"),
        pytest.param(12000, 12000, 12000, LagParts(0.0, 0.0, 0.0), id="a clock that is behind the upstream's"),
    ],
)
def test_the_parts_of_a_lag(frontier: int, taken: int, checkpoint: int, parts: LagParts) -> None:
    assert parts_of_lag(1010.0, at(frontier), at(taken), at(checkpoint)) == parts


def test_a_frontier_of_no_table_yet_is_no_promise() -> None:
    assert parts_of_lag(1010.0, MAX_TS, at(4000), at(4000)) == LagParts(6.0, 0.0, 0.0)


@given(MOMENTS, MOMENTS, MOMENTS, st.integers(100_000, 200_000))
def test_the_parts_are_the_whole_lag_and_none_is_negative(frontier: int, taken: int, checkpoint: int, now: int) -> None:
    parts = parts_of_lag(1000 + now / 1000, at(frontier), at(taken), at(checkpoint))
    assert min(parts.upstream, parts.sorter, parts.sink) >= 0
    total = parts.upstream + parts.sorter + parts.sink
    assert total == pytest.approx(lag_seconds(at(checkpoint), 1000 + now / 1000), abs=0.002)
