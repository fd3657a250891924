"""Tidemill as a user runs it: commands in processes of their own, stopped or killed, with nothing left behind."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

_MARK = "TIDEMILL_TEST_PROCESS"  # in the environment, so it is inherited by the JVM and by Python workers
PATIENCE_SECONDS = 180.0  # until something is taken to hang; a busy machine takes its time


class Command:
    """``tidemill WORDS…``; its stdout and stderr go to files in ``folder``."""

    def __init__(
        self, folder: Path, *words: object, is_serving: bool = False, cwd: Path | None = None, **flags: object
    ) -> None:
        """``is_serving``: with a ready-file, which ``ready`` waits for. What it keeps in temporary folders is in
        ``temporary``."""
        folder.mkdir(parents=True, exist_ok=True)
        self.mark = secrets.token_hex(8)
        self.ready_file = folder / f"{self.mark}.ready"
        self.temporary = folder / f"{self.mark}.tmp"
        self.temporary.mkdir()
        self._output, self._errors = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        self.words = [*map(str, words), *as_flags(flags)]
        if is_serving:
            self.words += ["--ready-file", str(self.ready_file)]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=cwd,
                env={**os.environ, _MARK: self.mark, "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self.wait_until_gone()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words} hangs; so far it said:\n{self.errors}") from None

    def ready(self) -> dict[str, Any]:
        """What its ready-file says, once it is there."""
        wait_until(lambda: self.ready_file.exists() or not self.is_running(), "a ready-file")
        assert self.ready_file.exists(), f"{self.words} ended with {self.wait()}:\n{self.errors}"
        document: dict[str, Any] = json.loads(self.ready_file.read_bytes())
        return document

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self, *, alone: bool = False) -> None:
        """``kill -9`` of it and of all that it started; ``alone``: of it only, and the others have to notice."""
        others = [] if alone or not self.is_running() else self.survivors()
        for pid in [self.pid, *(process.pid for process in others)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def wait_until_gone(self) -> None:
        """Returns when nothing is left of what it had started: no JVM, no worker."""
        wait_until(lambda: not self.survivors(), "the end of the JVM and the workers", every_seconds=0.1)

    def survivors(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_of_this(process)]

    def named(self, words: str) -> list[psutil.Process]:
        """Those of its processes whose command line has the words; one may end while it is read."""
        return [process for process in self.survivors() if words in _command_line(process)]

    def _is_of_this(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def as_flags(flags: dict[str, object]) -> list[str]:
    pairs = [("--" + name.replace("_", "-"), value) for name, value in flags.items() if value is not None]
    return [word for name, value in pairs for word in (name, str(value))]


def wait_until(holds: Any, what: str, seconds: float = PATIENCE_SECONDS, every_seconds: float = 0.005) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(every_seconds)


def sink_uri(folder: Path, parameters: Sequence[str] = ()) -> str:
    return f"file://{folder}?" + "&".join(["protocol=canal-json", "enable-tidb-extension=true", *parameters])
