"""An upstream that writes to itself at a given pace, in a process of its own: what the latency is measured with.

    python -m bench.writer        stdout: {"pd": ...} once it serves; then, for each line of stdin, an answer
    {"seconds": 20, "transactions": 50, "rows": 100}   ← so many a second of so many rows; 0: as fast as they go
    [[commit_ts, seconds by the monotonic clock], ...] → of each transaction, when its commit had returned

Transactions come at moments drawn by lot, each in its own slice of the time: at a steady beat they would keep step
with the upstream's resolved-ts, and every one would wait equally long. The monotonic clock is the machine's, so
another process can compare.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from bench.data import RECORDED, TABLE_ID
from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.tidb.keys import record_key

_FIRST_HANDLE = 10_000_000  # above those of the history


@dataclass(frozen=True, slots=True)
class Commit:
    ts: int
    at: float  # by the monotonic clock


@dataclass(frozen=True, slots=True)
class Writer:
    """The asking side."""

    pd: str
    pid: int
    _asking: IO[str]
    _answers: IO[str]

    def begin(self, seconds: float, transactions: float, rows: int) -> None:
        """Let it write; ``commits`` waits for the end of that."""
        self._asking.write(json.dumps({"seconds": seconds, "transactions": transactions, "rows": rows}) + "\n")
        self._asking.flush()

    def commits(self) -> list[Commit]:
        return [Commit(ts, at) for ts, at in json.loads(self._answers.readline())]


@contextmanager
def writer() -> Iterator[Writer]:
    command = [sys.executable, "-m", "bench.writer"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asking, answers = process.stdin, process.stdout
    if asking is None or answers is None:
        raise AssertionError("a pipe was asked for")
    try:
        ready = answers.readline()
        if not ready:
            raise RuntimeError("the embedded upstream did not start")
        yield Writer(json.loads(ready)["pd"], process.pid, asking, answers)
    finally:
        process.terminate()
        process.wait()
        asking.close()
        answers.close()


def main() -> None:
    with EmbeddedUpstream.start(load=RECORDED / "bench-narrow" / "history.parquet") as upstream:
        handle = _FIRST_HANDLE
        print(json.dumps({"pd": upstream.pd_address}), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            commits = list(_write(upstream, handle, **asked))
            handle += len(commits) * asked["rows"]
            print(json.dumps(commits), flush=True)


def _write(
    upstream: EmbeddedUpstream, handle: int, seconds: float, transactions: float, rows: int
) -> Iterator[tuple[int, float]]:
    value = _a_row_value()
    began = time.monotonic()
    for at in _moments(seconds, transactions):
        time.sleep(max(0.0, began + at - time.monotonic()))
        if time.monotonic() > began + seconds:
            return  # it does not go that fast
        keys = [record_key(TABLE_ID, number) for number in range(handle, handle + rows)]
        _, commit_ts = upstream.commit([Mutation(Op.PUT, key, value) for key in keys])
        yield commit_ts, time.monotonic()
        handle += rows


def _moments(seconds: float, transactions: float) -> Iterator[float]:
    chance = random.Random(6)
    if not transactions:
        while True:
            yield 0.0
    for number in range(int(seconds * transactions)):
        yield (number + chance.random()) / transactions


def _a_row_value() -> bytes:
    values = load("bench-narrow").row_changes(TABLE_ID)["value"].to_pylist()
    return next(bytes(value) for value in values if value)


if __name__ == "__main__":
    main()
