"""What a task of a batch does. Python workers import this module, so it brings no more than they need."""

import pickle
from collections.abc import Iterator

from pyspark import TaskContext

from tidemill.errors import EngineError, TidemillError
from tidemill.model.receipt import Receipt

Outcome = list[Receipt] | TidemillError  # of a group


def run_groups(blobs: Iterator[bytes]) -> Iterator[bytes]:
    """Executor: process every group of units; the result is its receipts or the error that stopped it."""
    for blob in blobs:
        yield pickle.dumps(_run_group(blob))


def _run_group(blob: bytes) -> Outcome:
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0:
        return EngineError(
            "Spark ran a task again by itself, since it had lost the executor of the first attempt, which may still be "
            "writing. Nothing is lost: the batch is taken back, so that nothing of that one counts, and begun again."
        )
    pipeline, units = pickle.loads(blob)
    try:
        return [pipeline.process(unit) for unit in units]
    except TidemillError as error:
        # An error of ours is a result: a task that fails would be reported by Spark as a traceback.
        return error
