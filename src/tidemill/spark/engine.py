"""A changefeed's batches on Spark: one job per batch, named and grouped, that can be given up.

    units ─► groups, one per task ─► a job of that many tasks: the fused pipeline ─► receipts, or what stopped it
      └────► a few rows, into a sink that gains by it: the same pipeline, here (``small``) ──┘

Rows never enter the JVM: a task is told which segments to map, runs the whole pipeline in one Python worker, and
returns receipts. So a job is all that Spark is needed for. A streaming query would add a process that plans for the
source, a log of offsets that nobody reads, and a second Python worker per task. What is durable is known to the
changefeed's own state alone.

A task runs once. A second attempt of Spark's would write beside the first, in the same generation, so it fails the
batch instead; the batch is then taken back and begun again, in another generation.
"""

import itertools
import pickle
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tidemill.errors import EngineError, InvariantError, RowUndecodableError, StoppedError, TidemillError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.flow.sorter import Shelf
from tidemill.model.receipt import Receipt
from tidemill.spark.session import Lease, session_log
from tidemill.spark.settings import SMALL_ROWS
from tidemill.spark.small import Smallness, run_small
from tidemill.spark.supply import Serving, serve
from tidemill.spark.task import Outcome, pack, run_groups

_POLL_SECONDS = 0.05
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b")

# What a call to the JVM may end with: its own exceptions, or no answer since it is gone. Assertions and attributes come
# from PySpark where another changefeed of this process has just found the JVM dead and closed the session; the unbound
# name where the JVM ends between a job and the handing over of its results: PySpark then closes a file it never opened.
TROUBLES = (PySparkException, Py4JError, OSError, EOFError, AssertionError, AttributeError, UnboundLocalError)


class Engine:
    """Runs the batches of one changefeed, one at a time, on the session of this process. ``close`` it in any case.

    Calls to the JVM are made in a thread of the engine's own: none of them can be interrupted, but the job that one
    waits for can be cancelled. Changefeeds of one process share the executors fairly, each in a pool of its name.
    """

    def __init__(
        self,
        lease: Lease,
        name: str,
        tasks: int | None = None,
        *,
        most_tasks: int | None = None,
        shelf: Shelf | None = None,
        loopbacks: Sequence[str] = (),
        does_small: bool = False,
    ) -> None:
        """``tasks``: how many a batch is cut into, at most; None: as many as Spark has cores, or is told to take by
        ``spark.default.parallelism``. ``most_tasks``: no more than that in any case. ``shelf``: the segments that
        units speak of, for workers that do not see them. ``loopbacks``: addresses in them that only workers of this
        machine can do something with. ``does_small``: batches of a few rows are carried out in this process."""
        self._lease = lease
        self._name = name
        self._given_tasks, self._most_tasks = tasks, most_tasks
        self._cores = 1  # as Spark told last: executors come and go
        self._shelf, self._loopbacks = shelf, loopbacks
        self._does_small, self._smallness = does_small, Smallness()
        self._serving: Serving | None = None
        self._pool = f"tidemill-{name}-{secrets.token_hex(4)}"  # of Spark's scheduler; the tag of its jobs, too
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"spark-{name}")
        self._lock = threading.Lock()
        self._job: _Job | None = None  # at hand
        self._jobs = itertools.count()
        self._is_closed = False

    @property
    def tasks(self) -> int:
        """How many a batch is cut into, as things stand. Asks nobody; from any thread."""
        wanted = self._cores if self._given_tasks is None else self._given_tasks
        return wanted if self._most_tasks is None else min(wanted, self._most_tasks)

    def start(self) -> None:
        """See that the session runs: what is wrong with it, or with what it was started with, is raised here."""
        session = self._lease.session()
        self._count_cores(session.sparkContext)
        if self._does_small:
            self._smallness = Smallness.of(session.sparkContext.getConf().get(SMALL_ROWS))
        if self._shelf is not None:
            self._serving = serve(session, self._shelf)

    def submit(self, pipeline: Pipeline, units: Sequence[Unit], what: str) -> "Future[list[Receipt]]":
        """Process all units, on executors unless they are small. The future has the receipts, or what stopped one of
        them, once all have ended. ``what`` tells people who look at Spark's jobs."""
        return self._thread.submit(self._run, pipeline, list(units), what)

    def run(self, pipeline: Pipeline, units: Sequence[Unit], what: str, gives_up: Callable[[], bool]) -> list[Receipt]:
        """The same, and waits for it. ``StoppedError`` once ``gives_up``: Spark then ends what it has begun."""
        running = self.submit(pipeline, units, what)
        while True:
            with suppress(TimeoutError):
                return running.result(_POLL_SECONDS)
            if running.done():
                return running.result()
            if gives_up():
                self.cancel()
                raise StoppedError("stopped in the middle of a batch; it comes again.")

    def cancel(self) -> None:
        """End the job at hand, if there is one, be it just being submitted. Returns at once."""
        with self._lock:
            job = self._job
        if job is not None:
            threading.Thread(target=job.cancel, name="spark-cancel", daemon=True).start()

    def close(self) -> None:
        """Nothing runs any more that was not yet begun; what has begun is cancelled."""
        with self._lock:
            self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.cancel()
        if self._serving is not None:
            self._serving.close()

    def _run(self, pipeline: Pipeline, units: list[Unit], what: str) -> list[Receipt]:
        if not units:
            return []
        receipts = self._run_small(pipeline, units)
        if receipts is not None:
            return receipts
        if self._serving is not None:
            pipeline = replace(pipeline, supply=self._serving.supply)
        try:
            context = self._lease.session().sparkContext  # of another session, should its JVM have died
            self._count_cores(context)
            groups = [pack((pipeline, group), self._loopbacks) for group in balance(units, self.tasks)]
            job = self._begin(context)
            context.setJobGroup(job.group, f"{self._name}: {what}", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", self._pool)
            context.addJobTag(self._pool)
            results = context.parallelize(groups, len(groups)).mapPartitions(run_groups).collect()
        except TROUBLES as trouble:
            self.cancel()  # where only the connection to it was lost, it may still run
            raise translate(trouble) from trouble
        finally:
            with self._lock:
                self._job = None
        outcomes: list[Outcome] = [pickle.loads(result) for result in results]
        if len(outcomes) != len(groups):
            raise InvariantError(f"Spark returned {len(outcomes)} results of {len(groups)} tasks. Report it.")
        failure = worst([outcome for outcome in outcomes if isinstance(outcome, TidemillError)])
        if failure is not None:
            raise failure
        return [receipt for outcome in outcomes if isinstance(outcome, list) for receipt in outcome]

    def _run_small(self, pipeline: Pipeline, units: list[Unit]) -> list[Receipt] | None:
        """In this process; None: it is Spark's to do."""
        if not self._smallness.has(units):
            return None
        with self._lock:
            if self._is_closed:
                raise StoppedError("the changefeed is being closed.")
        try:
            return run_small(pipeline, units)
        except EngineError:
            self._smallness = Smallness()  # what fails here may do better there
            raise

    def _count_cores(self, context: SparkContext) -> None:
        if self._given_tasks is None:
            self._cores = max(1, int(context.defaultParallelism))

    def _begin(self, context: SparkContext) -> "_Job":
        with self._lock:
            if self._is_closed:
                raise StoppedError("the changefeed is being closed.")
            self._job = _Job(context, f"{self._pool}-{next(self._jobs)}")
            return self._job


@dataclass(frozen=True, slots=True)
class _Job:
    """One batch's, in a group of its own: so it can be cancelled before Spark has heard of it."""

    context: SparkContext
    group: str

    def cancel(self) -> None:
        with suppress(Exception):  # the session may go meanwhile, and with it the job
            self.context._jsc.sc().cancelJobGroupAndFutureJobs(self.group)


def balance(units: Sequence[Unit], tasks: int) -> list[list[Unit]]:
    """Groups of units, one per task, of about equal weight; the heaviest first."""
    groups: list[list[Unit]] = [[] for _ in range(min(tasks, len(units)))]
    weights = [0] * len(groups)
    for unit in sorted(units, key=lambda unit: unit.weight, reverse=True):
        lightest = weights.index(min(weights))
        groups[lightest].append(unit)
        weights[lightest] += unit.weight
    return groups


def worst(failures: Sequence[TidemillError]) -> TidemillError | None:
    """Of what stopped the groups of a batch, the one to act on: rows that cannot be decoded only if nothing else
    did, and of those the first committed."""
    return min(
        failures,
        key=lambda e: (e.commit_ts or 0) + 1 if isinstance(e, RowUndecodableError) else 0,
        default=None,
    )


def translate(trouble: Exception) -> EngineError:
    """What Spark itself failed with, in our own words."""
    from tidemill.spark.scratch import process_folder

    said = _said(trouble)
    if said is None:
        return EngineError(
            f"Spark does not answer any more ({type(trouble).__name__}): its JVM has ended. Nothing is lost; see that "
            "the machine has memory for it, then start again."
        )
    if "No module named 'tidemill" in said:
        return EngineError(
            "a worker of Spark has no Tidemill: its Python cannot import it. Install the same version for the workers' "
            "Python, which spark.pyspark.python names, or send it along by spark.archives."
        )
    log = session_log()
    # Spark's own folder goes with the process, and with it a log that nobody asked for.
    where = f"see {log}, then start again" if log is not None and process_folder() not in log.parents else "start again"
    return EngineError(f"Spark's job failed: {reason_of(said)}. Nothing is lost; {where}.")


def _said(trouble: Exception) -> str | None:
    """What the JVM says of it; None where it says nothing any more."""
    if isinstance(trouble, PySparkException):
        return str(trouble)
    if isinstance(trouble, Py4JJavaError):
        try:
            return str(trouble.java_exception.getMessage() or "")
        except (Py4JError, OSError):
            return None
    return None


def reason_of(text: str) -> str:
    """The one line that tells, of what Spark says of a failed job: no plan, no ids, no stack."""
    text = re.split(r"\n=== Streaming Query ===|\n\s*JVM stacktrace:|\nDriver stacktrace:", text)[0]
    text = re.sub(r".*?terminated with exception:\s*", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"Job aborted due to stage failure: .*?Exception: ", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"\s*SQLSTATE: \w{5}|\(no cause message\)", "", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "one of its processes has ended without a word"
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        lines = [line for line in lines if _EXCEPTION.match(line)][-1:] or lines
    return lines[0].rstrip(".")
