"""What a task of a batch does. Python workers import this module, so it brings no more than they need."""

import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark import TaskContext

from tidemill import __version__
from tidemill.errors import EngineError, TidemillError, UsageError
from tidemill.model.receipt import Receipt

Outcome = list[Receipt] | TidemillError  # of a group


def pack(work: Any, loopbacks: Sequence[str] = ()) -> bytes:
    """Driver: what is to be done by a worker of the same version; and, if it speaks of ``loopbacks``, by one that has
    this machine's."""
    return pickle.dumps((__version__, (_loopback(), tuple(loopbacks)), pickle.dumps(work)))


def unpack(blob: bytes) -> Any:
    """Executor: raises UsageError where the work would mean something else to this worker."""
    version, *rest = pickle.loads(blob)
    if version != __version__:
        raise UsageError(
            f"a worker of Spark has Tidemill {__version__}, and this changefeed is one of Tidemill {version}. Install "
            "the same version on all workers, or send it along by spark.archives."
        )
    (loopback, addresses), work = rest
    if addresses and _loopback() != loopback:
        raise UsageError(
            f"{', '.join(addresses)} leads each machine to itself, and a worker of Spark is on another, on "
            f"{socket.gethostname()}. Give an address that leads there from everywhere."
        )
    return pickle.loads(work)


def _loopback() -> str:
    """Names this machine's, or this container's; empty where nothing tells."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
        space = os.stat("/proc/self/ns/net")
        return f"{boot.read().strip()} {space.st_dev} {space.st_ino}"
    return ""


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
