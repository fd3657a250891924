"""Which tables leave the others, and when they join them again."""

import pytest

from tidemill.control.lanes import Reading, may_join, slow_tables
from tidemill.model.ts import Ts, compose


def reading(seconds: float, *tables: int, unmoved: float = 99.0) -> Reading:
    return Reading(at(seconds), frozenset(tables), unmoved)


def at(seconds: float) -> Ts:
    return compose(1_700_000_000_000 + int(seconds * 1000))


@pytest.mark.parametrize(
    ("readings", "slow"),
    [
        pytest.param([], set(), id="nothing is read"),
        pytest.param([reading(100, 1)], set(), id="one alone holds nobody back"),
        pytest.param([reading(100, 1), reading(99, 2), reading(95, 3)], set(), id="all are close"),
        pytest.param([reading(100, 1), reading(99, 2), reading(80, 3, 4)], {3, 4}, id="what is read together leaves"),
        pytest.param([reading(100, 1), reading(99, 2), reading(80, 3, unmoved=5)], set(), id="it still gets on"),
        pytest.param([reading(100, 1), reading(80, 2), reading(80, 3)], set(), id="most are behind: so are we"),
    ],
)
def test_slow_tables(readings: list[Reading], slow: set[int]) -> None:
    assert slow_tables(readings) == slow


@pytest.mark.parametrize(
    ("lane", "frontier", "joins"),
    [
        pytest.param(99, 100, True, id="it has caught up"),
        pytest.param(101, 102, True, id="it is ahead"),
        pytest.param(50, 100, False, id="much is still to be written"),
        pytest.param(99, 50, False, id="its region stands still"),
    ],
)
def test_when_a_lane_may_join_the_others(lane: float, frontier: float, joins: bool) -> None:
    assert may_join(at(lane), at(frontier), at(100)) == joins
