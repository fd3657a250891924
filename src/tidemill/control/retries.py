"""How often, and after how long, what failed is tried again. Pure: numbers in, decision out."""

from typing import Final

from tidemill.errors import EngineError
from tidemill.retry import Policy

_SPARK: Final = Policy(0.0, 0.0, most_failures=3)  # without a batch in between
# Of Python processes, likewise: Spark waits 10 s for each, which a busy machine may exceed.
_SLOW_STARTS: Final = Policy(0.0, 0.0, most_failures=30)
_SLOW_START: Final = "worker failed to connect back"  # Spark's words for it
_SINK: Final = Policy(1.0, 10.0, jitter=0.0)


def gives_up(failure: Exception, failures: int) -> bool:
    """Whether to end instead of starting Spark's work again, after so many failures in a row."""
    if not isinstance(failure, EngineError):
        return True
    return (_SLOW_STARTS if _SLOW_START in str(failure) else _SPARK).gives_up(failures)


def pause_seconds(attempts: int) -> float:
    """Before a sink that is away is asked again, after so many attempts (one or more)."""
    return _SINK.pause_seconds(attempts)
