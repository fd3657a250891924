"""Batches as jobs of Spark: what comes back, what is made of failures, and what an operator of Spark sees."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark.util
import pytest
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException

from tidemill.errors import EngineError, RowUndecodableError, SinkError, StoppedError, UsageError
from tidemill.model.receipt import Receipt
from tidemill.spark import task as task_module
from tidemill.spark.engine import Engine, balance, reason_of, translate, worst
from tidemill.spark.session import Lease, borrow_session
from tidemill.spark.task import pack, run_groups

PATIENCE_SECONDS = 120.0
FAILED = "[STREAM_FAILED] Query [id = 5f, runId = 6a] terminated with exception: "
PLAN = "\n=== Streaming Query ===\nIdentifier: [id = 5f]\n   +- ~StreamingDataSourceV2ScanRelation[units#0]"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param(FAILED + "Disk is full. SQLSTATE: XXKST" + PLAN, "Disk is full", id="a sentence"),
        pytest.param(
            FAILED + "[SOURCE] Failed: Traceback (most recent call last):\n  File x\n    y\n"
            "multiprocessing.AuthenticationError: digest rejected\n\n SQLSTATE: 38000 SQLSTATE: XXKST" + PLAN,
            "multiprocessing.AuthenticationError: digest rejected",
            id="a traceback of Python",
        ),
        pytest.param(
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File x\n    y\n"
            "NameError: name 'x' is not defined\n\n SQLSTATE: 38000",
            "NameError: name 'x' is not defined",
            id="a traceback of Python behind a sentence",
        ),
        pytest.param(
            FAILED + "Job aborted: Python worker exited unexpectedly (crashed)\n\tat org.x\n\t... 51 more" + PLAN,
            "Job aborted: Python worker exited unexpectedly (crashed)",
            id="a stack of Java",
        ),
        pytest.param(
            FAILED + " SQLSTATE: XXKST (no cause message)" + PLAN,
            "one of its processes has ended without a word",
            id="nothing",
        ),
    ],
)
def test_the_one_line_that_tells(said: str, reason: str) -> None:
    assert reason_of(said) == reason


def test_workers_without_tidemill_are_named() -> None:
    said = "Error from python worker:\n  /opt/python: No module named 'tidemill'\nPYTHONPATH was:\n  /x"
    assert "a worker of Spark has no Tidemill" in str(translate(PySparkException(message=said)))


def bad_row(commit_ts: int) -> RowUndecodableError:
    return RowUndecodableError("shop.t", b"k", "c", "broken", commit_ts)


def test_of_several_failures_the_sinks_is_acted_on_and_else_the_first_bad_row() -> None:
    sink = SinkError("full")
    assert worst([bad_row(20), sink, bad_row(10)]) is sink
    first = bad_row(10)
    assert worst([bad_row(20), first, bad_row(30)]) is first
    assert worst([]) is None


@dataclass(frozen=True)
class Work:
    """A unit of a pipeline that does as it is told."""

    rows: int
    weight: int = 1
    fails: str = ""
    waits_for: str = ""  # a file
    dies: bool = False


class Doing:
    """A pipeline whose receipts name their units, and the process that did them."""

    def process(self, unit: Work) -> Receipt:
        if unit.fails:
            raise SinkError(unit.fails)
        if unit.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if unit.waits_for:
            Path(unit.waits_for + ".begun").touch()
            while not Path(unit.waits_for).exists():
                threading.Event().wait(0.02)
        return Receipt(str(os.getpid()), 0, 0, unit.rows, 0)


@pytest.fixture
def task() -> Iterator[TaskContext]:
    """As Spark's worker sets it up for a task."""
    task = TaskContext._getOrCreate()
    yield task
    TaskContext._taskContext = None


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_task_that_spark_runs_again_writes_nothing_beside_the_first(task: TaskContext, attempt: int) -> None:
    """The first may still be at work, on an executor that was lost; it is of the same generation."""
    task._attemptNumber = attempt
    (result,) = run_groups(iter([pack((Doing(), [Work(1), Work(2)]))]))
    found = pickle.loads(result)
    if attempt:
        assert isinstance(found, EngineError)
        assert "the batch is taken back" in str(found)
    else:
        assert [receipt.rows for receipt in found] == [1, 2]


def test_a_worker_of_another_version_does_nothing() -> None:
    (result,) = run_groups(iter([pickle.dumps(("0.0.9", b"of a form that this one does not know"))]))
    found = pickle.loads(result)
    assert isinstance(found, UsageError)
    assert "one of Tidemill 0.0.9. Install the same version on all workers" in str(found)


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1:3306",)])
def test_a_worker_of_another_machine_does_nothing_with_loopback(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    packed = pack((Doing(), [Work(1)]), addresses)
    (here,) = run_groups(iter([packed]))
    assert len(pickle.loads(here)) == 1
    monkeypatch.setattr(task_module, "_loopback", lambda: "another's")
    (there,) = run_groups(iter([packed]))
    found = pickle.loads(there)
    if addresses:
        assert isinstance(found, UsageError)
        assert str(found).startswith("127.0.0.1:3306 leads each machine to itself")
    else:
        assert len(found) == 1


def test_units_are_shared_among_tasks_by_their_weight() -> None:
    units: list[Any] = [Work(0, 5), Work(1, 4), Work(2, 3), Work(3, 1)]
    assert [[unit.rows for unit in group] for group in balance(units, 2)] == [[0, 3], [1, 2]]
    assert len(balance(units, 9)) == 4
    assert balance([], 2) == []


@pytest.fixture
def lease(spark: Any) -> Iterator[Lease]:
    lease = borrow_session()
    yield lease
    lease.release()


@pytest.fixture
def engine(lease: Lease) -> Iterator[Engine]:
    engine = Engine(lease, "orders", 2)
    yield engine
    engine.close()


def submit(engine: Engine, *units: Work) -> "Future[list[Receipt]]":
    return engine.submit(Doing(), units, "changes up to 7")  # type: ignore[arg-type]


def rows(receipts: list[Receipt]) -> list[int]:
    return sorted(receipt.rows for receipt in receipts)


@pytest.mark.spark
def test_receipts_of_all_units_come_back_and_workers_are_kept(engine: Engine) -> None:
    first = submit(engine, *map(Work, range(5))).result(PATIENCE_SECONDS)
    second = submit(engine, *map(Work, range(5))).result(PATIENCE_SECONDS)
    assert rows(first) == rows(second) == list(range(5))
    workers = {receipt.directory for receipt in (*first, *second)}
    assert len(workers) <= 2  # one per task, none started anew for the second batch
    assert submit(engine).result(PATIENCE_SECONDS) == []


@pytest.mark.spark
def test_an_error_of_ours_is_raised_as_it_is(engine: Engine) -> None:
    with pytest.raises(SinkError, match="full"):
        submit(engine, Work(1), Work(2, fails="full")).result(PATIENCE_SECONDS)


@pytest.mark.spark
def test_a_worker_that_dies_is_sparks_own_failure_and_the_next_batch_is_well(engine: Engine) -> None:
    with pytest.raises(EngineError, match="Spark's job failed: Python worker exited unexpectedly"):
        submit(engine, Work(1), Work(2, dies=True)).result(PATIENCE_SECONDS)
    assert rows(submit(engine, Work(1), Work(2)).result(PATIENCE_SECONDS)) == [1, 2]


@pytest.mark.spark
def test_a_jvm_that_ends_before_it_has_handed_over_the_results_is_sparks_own_failure(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = pyspark.util.local_connect_and_auth
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens: what PySpark makes of it is its own
        port = closed.getsockname()[1]
        monkeypatch.setattr(pyspark.util, "local_connect_and_auth", lambda _, secret: connect(port, secret))
        with pytest.raises(EngineError, match="its JVM has ended"):
            submit(engine, Work(1)).result(PATIENCE_SECONDS)
    monkeypatch.undo()
    assert rows(submit(engine, Work(2)).result(PATIENCE_SECONDS)) == [2]


@pytest.mark.spark
def test_a_job_is_named_grouped_and_in_the_pool_of_its_changefeed(engine: Engine, lease: Lease, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = submit(engine, Work(1, waits_for=str(gate)))
    wait_for(gate.with_name("gate.begun"))
    tracker = lease.session().sparkContext.statusTracker()
    assert engine._job is not None
    (job,) = tracker.getJobIdsForGroup(engine._job.group)
    assert list(lease.session().sparkContext._jsc.sc().statusTracker().getJobIdsForTag(engine._pool)) == [job]
    gate.touch()
    assert rows(running.result(PATIENCE_SECONDS)) == [1]


@pytest.mark.spark
def test_a_batch_can_be_given_up(engine: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    began = gate.with_name("gate.begun")
    with pytest.raises(StoppedError):
        engine.run(Doing(), [Work(1, waits_for=str(gate))], "a batch", began.exists)  # type: ignore[arg-type,list-item]
    gate.touch()  # whoever still waits for it
    assert rows(submit(engine, Work(2)).result(PATIENCE_SECONDS)) == [2]


@pytest.mark.spark
def test_a_batch_can_be_given_up_while_spark_is_being_told_of_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cancel that looks at running jobs only finds none, and the job would begin behind it."""
    parallelize = SparkContext.parallelize
    gate = tmp_path / "gate"

    def cancelled(context: SparkContext, *args: Any) -> Any:
        engine.cancel()
        for thread in threading.enumerate():
            if thread.name == "spark-cancel":
                thread.join()
        return parallelize(context, *args)

    monkeypatch.setattr(SparkContext, "parallelize", cancelled)
    with pytest.raises(EngineError, match="cancelled"):
        submit(engine, Work(1, waits_for=str(gate))).result(PATIENCE_SECONDS)
    assert not gate.with_name("gate.begun").exists()
    monkeypatch.undo()
    assert rows(submit(engine, Work(2)).result(PATIENCE_SECONDS)) == [2]


@pytest.mark.spark
@pytest.mark.slow
def test_a_jvm_that_says_nothing_is_ended_when_the_session_is_given_back(tmp_path: Path) -> None:
    """In a process of its own: the session of this one is shared."""
    script = """
import os, signal, threading
from pyspark import SparkContext
from tidemill.spark.session import borrow_session

lease = borrow_session()
lease.session()
process = SparkContext._gateway.proc
os.kill(process.pid, signal.SIGSTOP)
asking = threading.Thread(target=lambda: lease.session(), daemon=True)
asking.start()
lease.release(1.0)
print("ended", process.poll())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == "ended -9\n", done.stderr


def wait_for(path: Path) -> None:
    for _ in range(int(PATIENCE_SECONDS / 0.02)):
        if path.exists():
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"no {path}")
