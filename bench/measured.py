"""A process of ours measured with all that it starts: CPU seconds, memory, wall time.

    with measured(command) as run: ...      run.cpu_seconds() at any time; afterwards run.usage

Descendants that end are reaped by their parents, or by this process where a parent has ended before them, so that none
gets lost: their CPU time is in what the kernel has added up for children that were waited for. Memory is the
proportional share (PSS), so that pages that forked workers have in common with each other count once. Reading it costs
the reader's time, not theirs.
"""

import ctypes
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MB = 1_000_000
_LOOK_SECONDS = 0.25
_ORPHAN_SECONDS = 60.0
_SET_CHILD_SUBREAPER = 36  # of prctl
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    seconds: float
    cpu_seconds: float
    peak_bytes: int  # PSS of all processes together
    exit_code: int


class Measured:
    """A running command. One at a time: what children have used is known of all together."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._others = _children() - {process.pid}
        self.usage: Usage | None = None
        self._began = time.monotonic()
        self._cpu_before = _reaped_cpu_seconds()
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def cpu_seconds(self) -> float:
        """So far: of those that run and of those that have ended."""
        running = sum(map(cpu_seconds, family(self.process.pid)))
        return running + _reaped_cpu_seconds() - self._cpu_before

    def pss_bytes(self) -> int:
        return sum(map(pss_bytes, family(self.process.pid)))

    def wait(self) -> Usage:
        """Until it and all that it has started have ended."""
        status = self.process.wait()
        seconds = self.seconds()
        self._is_over.set()
        self._watcher.join()
        _reap(self._others)
        self.usage = Usage(seconds, _reaped_cpu_seconds() - self._cpu_before, self.peak_bytes, status)
        return self.usage

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            self.peak_bytes = max(self.peak_bytes, self.pss_bytes())


@contextmanager
def measured(command: Sequence[str], log: Path | None = None) -> Iterator[Measured]:
    """Run ``command``; it is terminated, and waited for, at the end of the block. ``log`` takes what it prints."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open(log or os.devnull, "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    run = Measured(process)
    try:
        yield run
    finally:
        if process.poll() is None:
            process.terminate()
        if run.usage is None:
            run.wait()


def family(pid: int) -> list[int]:
    """The process and all below it."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def pss_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0  # it has ended


def cpu_seconds(pid: int) -> float:
    """Of a process and of its children that it has waited for."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


def _reaped_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _reap(others: set[int]) -> None:
    """Wait for descendants whose parents have ended, which are now children of this process, but for ``others``."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while orphans := _children() - others:
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {sorted(orphans)} were left behind")
        time.sleep(0.01)
