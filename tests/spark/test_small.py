"""Batches of a few rows, carried out in this process."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.spark.test_engine import PATIENCE_SECONDS, Doing, Work, lease, rows
from tidemill.errors import EngineError, SinkError, StoppedError, UsageError
from tidemill.flow.sorter import SpanSlices
from tidemill.model.receipt import Receipt
from tidemill.spark.engine import Engine
from tidemill.spark.session import Lease
from tidemill.spark.small import MOST_ROWS, Smallness, run_small

__all__ = ["lease"]  # a fixture


def slices(rows: int, size: int = 100) -> SpanSlices:
    return SpanSlices(1, rows, size, ())


@dataclass(frozen=True)
class Sliced(Work):
    """A unit of a few changes; with ``breaks`` it fails as only a mistake of ours can, unless Spark has it."""

    slices: SpanSlices | None = field(default_factory=lambda: slices(1))
    breaks: bool = False


class Breaking(Doing):
    def process(self, unit: Work) -> Receipt:
        if isinstance(unit, Sliced) and unit.breaks and "pyspark.daemon" not in _started_as():
            raise ZeroDivisionError("by mistake")
        return super().process(unit)


def _started_as() -> str:
    with open("/proc/self/cmdline", "rb") as words:
        return words.read().decode().replace("tidemill.spark.daemon", "pyspark.daemon")


@pytest.mark.parametrize(
    ("said", "units", "is_small"),
    [
        pytest.param(None, [slices(MOST_ROWS)], True, id="as many rows as it may have"),
        pytest.param(None, [slices(MOST_ROWS - 1), slices(2)], False, id="too many of them together"),
        pytest.param(None, [slices(1, 2 << 20)], False, id="a large row"),
        pytest.param(None, [slices(1, 1)] * 1000, False, id="too many tables"),
        pytest.param(None, [slices(1), None], False, id="rows to be read from the upstream"),
        pytest.param("5", [slices(5)], True, id="as many as the user says"),
        pytest.param("5", [slices(6)], False, id="more than the user says"),
        pytest.param("0", [slices(1)], False, id="none, as the user says"),
    ],
)
def test_what_is_small(said: str | None, units: list[SpanSlices | None], is_small: bool) -> None:
    work: list[Any] = [Sliced(1, slices=each) for each in units]
    assert Smallness.of(said).has(work) is is_small


@pytest.mark.parametrize("said", ["-1", "many", ""])
def test_what_is_no_number_of_rows_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match=f"small.rows is '{said}', which is no number of rows"):
        Smallness.of(said)


def test_one_at_a_time_and_others_are_left_to_spark() -> None:
    begun, may_end, found = threading.Event(), threading.Event(), list[Any]()

    class Slow:
        def process(self, unit: Any) -> Receipt:
            begun.set()
            may_end.wait(PATIENCE_SECONDS)
            return Receipt("", 0, 0, 1, 0)

    slow: Any = Slow()
    units: list[Any] = [Sliced(1)]
    first = threading.Thread(target=lambda: found.append(run_small(slow, units)))
    first.start()
    assert begun.wait(PATIENCE_SECONDS)
    assert run_small(slow, units) is None
    may_end.set()
    first.join(PATIENCE_SECONDS)
    assert [len(receipts) for receipts in found] == [1]
    assert run_small(slow, units) is not None


@pytest.fixture
def engine(lease: Lease) -> Iterator[Engine]:
    engine = Engine(lease, "orders", 2, does_small=True)
    engine.start()
    yield engine
    engine.close()


def submit(engine: Engine, *units: Work, pipeline: Any = None) -> "Future[list[Receipt]]":
    return engine.submit(pipeline or Doing(), units, "changes up to 7")


@pytest.mark.spark
def test_a_few_rows_need_no_job_and_more_of_them_do(engine: Engine) -> None:
    here = submit(engine, Sliced(1), Sliced(2)).result(PATIENCE_SECONDS)
    there = submit(engine, Sliced(1, slices=slices(MOST_ROWS)), Sliced(2)).result(PATIENCE_SECONDS)
    assert rows(here) == rows(there) == [1, 2]
    assert {receipt.directory for receipt in here} == {str(os.getpid())}
    assert str(os.getpid()) not in {receipt.directory for receipt in there}


@pytest.mark.spark
def test_what_the_sink_refuses_is_told_as_it_is(engine: Engine) -> None:
    with pytest.raises(SinkError, match="full"):
        submit(engine, Sliced(1), Sliced(2, fails="full")).result(PATIENCE_SECONDS)
    (receipt,) = submit(engine, Sliced(3)).result(PATIENCE_SECONDS)
    assert receipt.directory == str(os.getpid())


@pytest.mark.spark
def test_what_fails_here_by_mistake_is_tried_by_spark(engine: Engine) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError: by mistake"):
        submit(engine, Sliced(1, breaks=True), pipeline=Breaking()).result(PATIENCE_SECONDS)
    (receipt,) = submit(engine, Sliced(1, breaks=True), pipeline=Breaking()).result(PATIENCE_SECONDS)
    assert receipt.directory != str(os.getpid())


@pytest.mark.spark
def test_an_engine_that_is_closed_begins_nothing(engine: Engine) -> None:
    running = submit(engine, Sliced(1))
    engine.close()
    with pytest.raises((StoppedError, RuntimeError)):
        submit(engine, Sliced(2)).result(PATIENCE_SECONDS)
    assert rows(running.result(PATIENCE_SECONDS)) == [1]


def test_a_sink_whose_batches_may_be_carried_out_here_says_so() -> None:
    from tidemill.sinks import read_sink_uri

    assert read_sink_uri("mysql://root@127.0.0.1:3306/", {}, None).traits.does_small  # type: ignore[arg-type]
    assert not read_sink_uri("blackhole://", {}, None).traits.does_small  # type: ignore[arg-type]
