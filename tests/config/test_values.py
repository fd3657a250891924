"""Values as people write them."""

import subprocess
import sys

import pytest

from tidemill.config.values import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("2.s", 2.0), (".5s", 0.5), ("1µs", 1e-6)]
)
def test_durations_are_read_as_in_go(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5x", ".s", "1s ", "٣s", "1s" * 600])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 5s"):
        seconds_of(text)


def test_a_duration_of_many_digits_is_refused_at_once() -> None:
    """In a process of its own: a regular expression that takes minutes cannot be interrupted."""
    code = "from tidemill.config.values import seconds_of; seconds_of('9' * 20_000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert "ValueError: a duration such as 5s" in done.stderr
