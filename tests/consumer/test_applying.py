"""Both halves of a consumer's sink: each is closed, whatever becomes of the other; and workers that are elsewhere."""

from pathlib import Path
from typing import Any, cast

import pytest

from tidemill.consumer.alignment import Consistency
from tidemill.consumer.applying import Applying, refuse_far
from tidemill.errors import SinkError, SupersededError, UsageError
from tidemill.model.ts import Ts
from tidemill.sinks import SinkOptions


class _Half:
    term = "one"

    def __init__(self, *, fails: bool = False) -> None:
        self.is_closed, self._fails = False, fails
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def recover(self, *_: Any) -> None:
        self.calls.append("recover")

    def close(self) -> None:
        self.is_closed = True
        if self._fails:
            raise SinkError("the connection is gone. Start again.")


class _Options:
    """A sink whose writer may fail to open, or to close."""

    def __init__(self, *, opens: bool = True, closes: bool = True) -> None:
        self.owner, self.writer, self._opens = _Half(), _Half(fails=not closes), opens

    def open_owner(self, *_: Any, **__: Any) -> _Half:
        return self.owner

    def open_writer(self, *_: Any, **__: Any) -> _Half:
        if not self._opens:
            raise SinkError("there is no such place. Make it first.")
        return self.writer


def applying(options: _Options) -> Applying:
    return Applying(cast("SinkOptions", options), Consistency.TRANSACTION, "UTC", Ts(0), None)


def test_the_owner_is_closed_where_no_writer_could_be_opened() -> None:
    options = _Options(opens=False)
    with pytest.raises(SinkError, match="no such place"):
        applying(options)
    assert options.owner.is_closed


def test_the_owner_is_closed_where_the_writer_fails_to_close() -> None:
    options = _Options(closes=False)
    with pytest.raises(SinkError, match="connection is gone"):
        applying(options).close()
    assert (options.writer.is_closed, options.owner.is_closed) == (True, True)


def test_nothing_is_recovered_where_another_process_has_the_work_by_then(tmp_path: Path) -> None:
    """One that was asleep may end another one's term; it must not change anything in its own."""
    options = _Options()
    both, seen = applying(options), list[list[str]]()

    def confirm() -> None:
        seen.append([*options.owner.calls, *options.writer.calls])
        raise SupersededError("another process has taken the work over.")

    with pytest.raises(SupersededError):
        both.start("shop", "local[1]", {}, tmp_path / "spark.log", lambda: False, confirm)
    both.close()
    assert seen == [["begin"]]
    assert options.writer.calls == []


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]"])
def test_workers_of_this_machine_may_read_staged_files(master: str) -> None:
    refuse_far(master)


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://head:6443"])
def test_workers_that_may_be_elsewhere_are_refused_by_their_master(master: str) -> None:
    with pytest.raises(UsageError, match=r"may be elsewhere\. Leave --spark-master out"):
        refuse_far(master)
