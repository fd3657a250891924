"""Numbers as people read them."""

import pytest

from tidemill.model.words import counted, lasting


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (10, "10 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61.2, "1 min 1 s"),
        (3_600, "1 h"),
        (72_840, "20 h 14 min"),
        (86_400 * 3 + 7_200 + 59, "3 d 2 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, said: str) -> None:
    assert lasting(seconds) == said


def test_one_is_not_many() -> None:
    assert [counted(0, "row"), counted(1, "row"), counted(1_200, "row")] == ["0 rows", "1 row", "1,200 rows"]
    assert [counted(1, "batch", "batches"), counted(2, "batch", "batches")] == ["1 batch", "2 batches"]
