"""What is made of Spark's own failures, and of those of a batch's groups."""

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext

from tidemill.errors import EngineError, RowUndecodableError, SinkError
from tidemill.sinks import Receipt
from tidemill.spark.job import reason_of, run_batch, run_groups, worst

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


def bad_row(commit_ts: int) -> RowUndecodableError:
    return RowUndecodableError("shop.t", b"k", "c", "broken", commit_ts)


def test_of_several_failures_the_sinks_is_acted_on_and_else_the_first_bad_row() -> None:
    sink = SinkError("full")
    assert worst([bad_row(20), sink, bad_row(10)]) is sink
    first = bad_row(10)
    assert worst([bad_row(20), first, bad_row(30)]) is first
    assert worst([]) is None


class Writing:
    """A pipeline whose receipts name their units."""

    def process(self, number: int) -> Receipt:
        return Receipt("t", 0, 0, number, 0)


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
    group = pickle.dumps((Writing(), [1, 2]))
    (of_batch,) = run_batch(iter([pa.record_batch([pa.array([pickle.dumps((7, group))])], ["units"])]))
    (of_copy,) = run_groups(iter([pa.record_batch([pa.array([group])], ["group"])]))
    end, outcome = pickle.loads(of_batch["result"][0].as_py())
    for found in (outcome, pickle.loads(of_copy["result"][0].as_py())):
        if attempt:
            assert isinstance(found, EngineError)
            assert "the batch is taken back" in str(found)
        else:
            assert [receipt.rows for receipt in found] == [1, 2]
    assert end == 7
