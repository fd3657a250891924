"""What a task of a batch does. Python workers import this module, so it brings no more than they need."""

import pickle
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from tidemill import __version__
from tidemill.errors import EngineError, TidemillError, UsageError
from tidemill.model.receipt import Receipt

Outcome = list[Receipt] | TidemillError  # of a group


def pack(work: Any) -> bytes:
    """Driver: what is to be done by a worker of the same version."""
    return pickle.dumps((__version__, pickle.dumps(work)))


def unpack(blob: bytes) -> Any:
    """Executor: raises UsageError where the worker has another version, which may mean something else by it."""
    version, work = pickle.loads(blob)
    if version != __version__:
        raise UsageError(
            f"a worker of Spark has Tidemill {__version__}, and this changefeed is one of Tidemill {version}. Install "
            "the same version on all workers, or send it along by spark.archives."
        )
    return pickle.loads(work)


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
    try:
        pipeline, units = unpack(blob)
        return [pipeline.process(unit) for unit in units]
    except TidemillError as error:
        # An error of ours is a result: a task that fails would be reported by Spark as a traceback.
        return error
