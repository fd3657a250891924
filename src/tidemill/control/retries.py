"""How often, and after how long, what failed is tried again. Pure: numbers in, decision out."""

from tidemill.errors import EngineError

_MOST_SPARK_FAILURES = 3  # in a row, without a batch in between
_MOST_SLOW_STARTS = 30  # of Python processes, likewise: Spark waits 10 s for each, which a busy machine may exceed
_SLOW_START = "worker failed to connect back"  # Spark's words for it
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0


def gives_up(failure: Exception, failures: int) -> bool:
    """Whether to end instead of starting Spark's work again, after so many failures in a row."""
    if not isinstance(failure, EngineError):
        return True
    return failures > (_MOST_SLOW_STARTS if _SLOW_START in str(failure) else _MOST_SPARK_FAILURES)


def pause_seconds(attempts: int) -> float:
    """Before a sink that is away is asked again, after so many attempts (one or more)."""
    return float(min(_PAUSE_SECONDS * 2 ** min(attempts - 1, 10), _LONGEST_PAUSE_SECONDS))
