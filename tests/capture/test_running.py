"""What is told of a changefeed while it starts."""

import threading

import pytest

from tidemill.capture.running import _told_meanwhile


def test_somebody_is_told_while_the_start_takes_its_time_and_never_after_it() -> None:
    told, enough = [], threading.Event()

    def tell() -> None:
        told.append(threading.current_thread().name)
        enough.set()

    with _told_meanwhile(tell):
        assert enough.wait(60)
    before = len(told)
    assert not any(thread.name == "progress" for thread in threading.enumerate())
    assert (set(told), len(told)) == ({"progress"}, before)


def test_a_start_that_fails_ends_the_telling() -> None:
    with pytest.raises(ValueError, match="refused"), _told_meanwhile(lambda: None):
        raise ValueError("refused")
    assert not any(thread.name == "progress" for thread in threading.enumerate())
