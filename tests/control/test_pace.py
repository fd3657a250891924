"""How big the next batch may be, by how the sink took the last one."""

import pytest

from tidemill.control.pace import Amount, Bounds, next_limit

MIB = 1 << 20
BOUNDS = Bounds(least=Amount(1_000, 1 * MIB), most=Amount(100_000, 64 * MIB), goal_seconds=5.0)
MOST, LEAST = BOUNDS.most, BOUNDS.least


@pytest.mark.parametrize(
    ("limit", "taken", "seconds", "after"),
    [
        pytest.param(MOST, MOST, 1.0, MOST, id="a quick sink gets no more than the most"),
        pytest.param(MOST, MOST, 5.0, MOST, id="the goal itself is kept"),
        pytest.param(MOST, MOST, 10.0, Amount(50_000, 32 * MIB), id="twice the goal: half as much"),
        pytest.param(MOST, MOST, 1_000.0, Amount(25_000, 16 * MIB), id="one that hung: at most to a quarter at once"),
        pytest.param(
            MOST, Amount(8_000, MIB), 20.0, Amount(25_000, 16 * MIB), id="a small one that hung: to a quarter as well"
        ),
        pytest.param(MOST, Amount(900_000, 512 * MIB), 10.0, MOST, id="a large transaction within reach of its share"),
        pytest.param(Amount(1_500, MIB), MOST, 9.0, Amount(1_500, MIB), id="slow never means more"),
        pytest.param(Amount(2_000, 2 * MIB), Amount(2_000, MIB), 60.0, LEAST, id="never below the least"),
        pytest.param(
            Amount(20_000, 16 * MIB), Amount(19_000, MIB), 1.0, Amount(40_000, 32 * MIB), id="quick and full: twice"
        ),
        pytest.param(
            Amount(20_000, 16 * MIB), Amount(100, 15 * MIB), 1.0, Amount(40_000, 32 * MIB), id="full by bytes counts"
        ),
        pytest.param(
            Amount(20_000, 16 * MIB), Amount(100, MIB), 1.0, Amount(20_000, 16 * MIB), id="quick for being small: stays"
        ),
        pytest.param(
            Amount(20_000, 16 * MIB), Amount(20_000, MIB), 4.0, Amount(20_000, 16 * MIB), id="near the goal: stays"
        ),
    ],
)
def test_the_next_batch(limit: Amount, taken: Amount, seconds: float, after: Amount) -> None:
    assert next_limit(BOUNDS, limit, taken, seconds) == after


@pytest.mark.parametrize("rows_a_second", [300, 3_000, 15_000, 1_000_000])
def test_whatever_the_sink_s_speed_batches_come_to_take_about_the_goal(rows_a_second: int) -> None:
    limit = BOUNDS.most
    for _ in range(30):
        limit = next_limit(BOUNDS, limit, Amount(limit.rows, limit.rows * 100), limit.rows / rows_a_second)
    assert limit.rows in (LEAST.rows, MOST.rows) or 2.5 <= limit.rows / rows_a_second <= 5.0
