"""What signals do to a command, whatever it is doing: shown with small ones in processes of their own."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_SECONDS = 120
COMMAND = """
import sys, threading, time
from pathlib import Path
from tidemill.cli.stopping import current, supervise
folder = Path(sys.argv[1])
def note(name):
    return lambda: (folder / name).touch()
def work():
    stop = current()
{body}
supervise(work, is_graceful={is_graceful})
"""


class Running:
    """A command whose ``body`` touches ``begun`` once it may be stopped."""

    def __init__(self, folder: Path, body: str, *, is_graceful: bool = False, errors: int = subprocess.PIPE) -> None:
        self.folder = folder
        indented = "\n".join("    " + line for line in body.strip().splitlines())
        code = COMMAND.format(body=indented, is_graceful=is_graceful)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        self.until("begun")

    def until(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (self.folder / name).exists():
            assert self._process.poll() is None, self._process.communicate()
            assert time.monotonic() < deadline, name
            time.sleep(0.01)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, *signals: int) -> tuple[int, str, str]:
        """The exit code and what it printed."""
        for number in signals:
            self.send(number)
        output, errors = self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode, output, errors

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def test_on_a_terminal_a_command_that_takes_its_time_says_that_it_was_heard(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    body = """
with stop.graceful(), stop.at_hand():
    note("begun")()
    while not (folder / "done").exists(): time.sleep(0.01)
"""
    command = Running(tmp_path, body, is_graceful=True, errors=theirs)
    try:
        os.close(theirs)
        command.send(signal.SIGINT)
        said = b""
        while b"at once" not in said:
            assert select.select([terminal], [], [], PATIENCE_SECONDS)[0], said
            said += os.read(terminal, 4096)
        assert said.strip() == b"Stopping after what is under way. Ctrl-C again: at once."
        (tmp_path / "done").touch()
        assert command.stop()[0] == 0
    finally:
        command.end()
        os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_looks_for_it_ends_by_itself(tmp_path: Path, number: int) -> None:
    command = Running(
        tmp_path,
        """
with stop.graceful(), stop.on_abandon(note("abandoned")):
    note("begun")()
    while not stop.wait(0.01): pass
    print("stopped")
""",
    )
    assert command.stop(number) == (0, "stopped\n", "")
    assert not (tmp_path / "abandoned").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_its_body_is_kept_for_it(tmp_path: Path, number: int) -> None:
    command = Running(
        tmp_path,
        """
note("begun")()
while not stop.wait(0.01): pass
time.sleep(3)  # imports, on a slow machine
with stop.graceful():
    print("stopped" if stop.is_set() else "began")
""",
        is_graceful=True,
    )
    assert command.stop(number) == (0, "stopped\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_any_other_is_given_up_with_1_and_tidies_up(tmp_path: Path, number: int) -> None:
    command = Running(tmp_path, 'with stop.on_abandon(note("abandoned")):\n    note("begun")()\n    time.sleep(1e6)')
    assert command.stop(number) == (1, "", f"Stopped by {signal.Signals(number).name} before it was done.\n")
    assert (tmp_path / "abandoned").exists()


def test_one_that_hangs_although_it_would_stop_is_given_up_with_0(tmp_path: Path) -> None:
    command = Running(
        tmp_path,
        'with stop.graceful(), stop.on_abandon(note("abandoned")):\n    note("begun")()\n    time.sleep(1e6)',
    )
    assert command.stop(signal.SIGTERM) == (0, "", "")
    assert (tmp_path / "abandoned").exists()


def test_what_is_at_hand_is_finished_however_long_it_takes(tmp_path: Path) -> None:
    command = Running(
        tmp_path,
        """
with stop.graceful(), stop.at_hand():
    note("begun")()
    while not stop.wait(0.01): pass
    note("asked")()
    time.sleep(3)
    print("finished")
""",
    )
    assert command.stop(signal.SIGTERM) == (0, "finished\n", "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    command = Running(
        tmp_path,
        """
with stop.graceful(), stop.at_hand(), stop.on_abandon(note("abandoned")):
    note("begun")()
    while not stop.wait(0.01): pass
    note("asked")()
    time.sleep(1e6)
""",
    )
    command._process.send_signal(signal.SIGINT)
    command.until("asked")
    while command._process.poll() is None:  # a repetition within a moment counts as the same one
        command._process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    code, output, errors = command.stop()
    assert (code, output) == (1, "")
    assert errors.startswith("Stopped at once. Nothing is lost")
    assert (tmp_path / "abandoned").exists()


def test_the_same_request_twice_is_one(tmp_path: Path) -> None:
    command = Running(
        tmp_path,
        """
with stop.graceful():
    note("begun")()
    while not stop.wait(0.01): pass
    time.sleep(0.5)
    print("stopped")
""",
    )
    assert command.stop(signal.SIGTERM, signal.SIGTERM, signal.SIGINT) == (0, "stopped\n", "")


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    command = Running(
        tmp_path,
        """
threading.Thread(target=time.sleep, args=(1e6,)).start()
with stop.graceful():
    note("begun")()
    while not stop.wait(0.01): pass
raise SystemExit(3)
""",
    )
    assert command.stop(signal.SIGTERM) == (3, "", "")


def test_what_the_work_raises_comes_out(tmp_path: Path) -> None:
    command = Running(tmp_path, 'note("begun")()\nraise ValueError("a bug")')
    code, _, errors = command.stop()
    assert code == 1
    assert errors.rstrip().endswith("ValueError: a bug")
