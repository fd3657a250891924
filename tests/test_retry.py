"""When what failed is tried again."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.retry import Policy


def test_pauses_double_up_to_the_longest() -> None:
    policy = Policy(1.0, 10.0, jitter=0.0)
    assert [policy.pause_seconds(failures) for failures in (1, 2, 3, 4, 5, 10**6)] == [1, 2, 4, 8, 10, 10]


def test_the_first_pause_is_never_longer_than_the_longest() -> None:
    assert Policy(3.0, 2.0, jitter=0.0).pause_seconds(1) == 2.0


@given(st.integers(1, 100), st.floats(0.0, 1.0), st.integers())
def test_chance_takes_up_to_its_part_and_the_same_seed_the_same(failures: int, jitter: float, seed: int) -> None:
    policy, plain = Policy(0.05, 2.0, jitter), Policy(0.05, 2.0, jitter=0.0)
    pause = policy.pause_seconds(failures, Random(seed))
    whole = plain.pause_seconds(failures)
    assert whole * (1 - jitter) - 1e-9 <= pause <= whole
    assert pause == policy.pause_seconds(failures, Random(seed))


@pytest.mark.parametrize(
    ("policy", "failures", "elapsed", "is_over"),
    [
        pytest.param(Policy(1, 1), 10**9, 10**9, False, id="without a limit it goes on"),
        pytest.param(Policy(1, 1, most_failures=3), 3, 0, False, id="so many failures are borne"),
        pytest.param(Policy(1, 1, most_failures=3), 4, 0, True, id="and no more"),
        pytest.param(Policy(1, 1, deadline_seconds=5), 1, 4.9, False, id="before the deadline"),
        pytest.param(Policy(1, 1, deadline_seconds=5), 1, 5, True, id="at the deadline"),
        pytest.param(Policy(1, 1, deadline_seconds=0), 0, 0, True, id="no time at all: the first try is the last"),
    ],
)
def test_giving_up(policy: Policy, failures: int, elapsed: float, is_over: bool) -> None:
    assert policy.gives_up(failures, elapsed) is is_over
