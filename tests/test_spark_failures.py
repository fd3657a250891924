"""When a changefeed starts Spark's query again, and when it ends."""

import pytest

from tidemill.driver import gives_up
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
