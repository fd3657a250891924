"""Batches of a few rows, carried out in the process that has them: they are done before a job of Spark has begun.

A job costs tens of milliseconds whatever it holds, which matters where many small batches follow one another, as
between DDLs. The pipeline is the same, and so is what a sink does about a writer that is late: a target carries its
generation here as it does to an executor.

One batch at a time in a process. So a sink that does not answer keeps nobody waiting but its own changefeed, whose
batch this is; those of others go to Spark meanwhile.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemill.errors import EngineError, TidemillError, UsageError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.model.receipt import Receipt
from tidemill.spark.settings import SMALL_ROWS

MOST_ROWS: Final = 1000
_MOST_UNITS: Final = 100
_MOST_BYTES: Final = 1 << 20

_turn = threading.Lock()


@dataclass(frozen=True, slots=True)
class Smallness:
    """What counts as a small batch; none does where ``rows`` is 0."""

    rows: int = 0

    @classmethod
    def of(cls, said: str | None) -> "Smallness":
        """As the user says it, by ``SMALL_ROWS``. Raises UsageError."""
        if said is None:
            return cls(MOST_ROWS)
        if not said.isascii() or not said.isdigit():
            raise UsageError(f"{SMALL_ROWS} is {said!r}, which is no number of rows. Give one, or 0 for none.")
        return cls(int(said))

    def has(self, units: Sequence[Unit]) -> bool:
        """Whether all of it is small. Rows that have to be read from the upstream first are not."""
        if not self.rows or len(units) > _MOST_UNITS:
            return False
        slices = [unit.slices for unit in units if unit.slices is not None]
        if len(slices) < len(units):
            return False
        return sum(each.rows for each in slices) <= self.rows and sum(each.bytes for each in slices) <= _MOST_BYTES


def run_small(pipeline: Pipeline, units: Sequence[Unit]) -> list[Receipt] | None:
    """Process all units, or none (None) while another batch is at it. Raises what stopped one of them."""
    if not _turn.acquire(blocking=False):
        return None
    try:
        return [pipeline.process(unit) for unit in units]
    except TidemillError:
        raise
    except Exception as error:
        raise EngineError(
            f"a small batch failed in the process of its changefeed: {type(error).__name__}: {error}. Nothing is "
            "lost; it is begun again on Spark. Report it."
        ) from error
    finally:
        _turn.release()
