"""When a changefeed starts Spark's query again, when it ends, and how long it leaves a sink alone."""

import pytest

from tidemill.control.retries import gives_up, pause_seconds
from tidemill.errors import EngineError, SinkError

SLOW = EngineError("Spark's query failed: Python worker failed to connect back. Nothing is lost.")
OTHER = EngineError("Spark's query failed: Job aborted. Nothing is lost.")


@pytest.mark.parametrize(
    ("failure", "failures", "is_over"),
    [
        pytest.param(SinkError("refused"), 1, True, id="what is not Spark's fault is not tried again"),
        pytest.param(OTHER, 3, False, id="Spark is started again some times"),
        pytest.param(OTHER, 4, True, id="but not for ever"),
        pytest.param(SLOW, 4, False, id="a process that starts slowly says that the machine is busy"),
        pytest.param(SLOW, 31, True, id="even that has an end"),
    ],
)
def test_spark_gets_another_chance(failure: Exception, failures: int, is_over: bool) -> None:
    assert gives_up(failure, failures) == is_over


def test_a_sink_that_stays_away_is_asked_less_and_less_but_never_given_up() -> None:
    assert [pause_seconds(attempts) for attempts in (1, 2, 3, 4, 5, 10**6)] == [1, 2, 4, 8, 10, 10]
