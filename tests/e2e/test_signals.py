"""Ctrl-C and SIGTERM end every command soon, with the code that is promised, and leave nothing behind."""

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e import tree
from tests.e2e.processes import PATIENCE_SECONDS, Command, sink_uri, wait_until
from tests.histories import load
from tidebox.transactions import Mutation
from tidebox.upstream import EmbeddedUpstream
from tidemill.model.change import Op
from tidemill.tidb.keys import table_prefix

pytestmark = pytest.mark.spark

TXN = 174  # the physical id of a table of the history ``types``


@pytest.fixture(scope="module")
def upstream() -> Iterator[EmbeddedUpstream]:
    history = load("types").folder / "history.parquet"
    with EmbeddedUpstream.start(stores=1, load=history, resolved_interval_seconds=0.05) as started:
        yield started


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        yield server


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def has_java(command: Command) -> bool:
    return bool(command.named("SparkSubmit"))


def assert_clean(command: Command, number: int, code: int, said: str) -> None:
    """It ends by the signal, with its last words, and nothing of it is left."""
    command.signal(number)
    assert command.wait() == code, command.errors
    wait_until(lambda: not command.survivors(), "the end of its processes")  # those that were killed take a moment
    assert said in (command.output if code == 0 else command.errors).splitlines()[-1]
    assert "Traceback" not in command.errors
    assert [path.name for path in command.temporary.iterdir()] == []


def test_run_while_it_is_still_being_imported(tmp_path: Path) -> None:
    flags = {"pd": f"127.0.0.1:{closed_port()}", "sink_uri": "blackhole://", "data_dir": tmp_path / "data"}
    with Command(tmp_path, "run", **flags) as command:
        wait_until(lambda: any(command.temporary.iterdir()), "its first sign of life")
        assert_clean(command, signal.SIGTERM, 0, "Stopped before it had started")


def test_run_while_pd_is_away(tmp_path: Path) -> None:
    flags = {"pd": f"127.0.0.1:{closed_port()}", "sink_uri": "blackhole://", "data_dir": tmp_path / "data"}
    with Command(tmp_path, "run", **flags) as command:
        wait_until((tmp_path / "data" / "lock").exists, "the start")
        assert_clean(command, signal.SIGINT, 0, "Stopped before it had started")


def test_run_while_a_silent_mysql_is_waited_for(
    upstream: EmbeddedUpstream, silent: socket.socket, tmp_path: Path
) -> None:
    uri = f"mysql://root@127.0.0.1:{silent.getsockname()[1]}/"
    flags = {"pd": upstream.pd_address, "sink_uri": uri, "data_dir": tmp_path / "data", "start_ts": upstream.tso()}
    with Command(tmp_path, "run", **flags) as command:
        connection, _ = silent.accept()
        with connection:
            assert_clean(command, signal.SIGTERM, 0, "Stopped at ")


def test_run_while_a_mysql_that_is_away_is_waited_for(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    uri, start_ts = f"mysql://root@127.0.0.1:{closed_port()}/", upstream.tso()
    flags = {"pd": upstream.pd_address, "sink_uri": uri, "data_dir": tmp_path / "data", "start_ts": start_ts}

    def is_held() -> bool:
        """By the changefeed: what it does next is to ask the sink."""
        with upstream.cluster.mutex:
            held = [barrier.ts for barrier in upstream.cluster.safepoints.state().barriers]
            return any(start_ts - 1 <= ts <= start_ts for ts in held)

    with Command(tmp_path, "run", **flags) as command:
        wait_until(is_held, "the changefeed's hold")
        assert_clean(command, signal.SIGINT, 0, "Stopped at ")


def test_run_while_spark_is_starting(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    flags = {"pd": upstream.pd_address, "sink_uri": "blackhole://", "data_dir": tmp_path / "data"}
    with Command(tmp_path, "run", start_ts=upstream.tso(), **flags) as command:
        wait_until(lambda: has_java(command), "the JVM")
        assert_clean(command, signal.SIGINT, 0, "Stopped at ")


def test_verify_while_spark_is_working(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    flags = {"pd": upstream.pd_address, "sink_uri": f"file://{tmp_path}/files?protocol=canal-json"}
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "metadata").write_text(f'{{"checkpoint-ts":{upstream.tso()}}}')
    with Command(tmp_path, "verify", **flags) as command:
        wait_until(lambda: has_java(command), "the JVM")
        assert_clean(command, signal.SIGTERM, 1, "Stopped by SIGTERM before it was done.")


def test_upstream_when_it_starts_and_when_it_serves(tmp_path: Path) -> None:
    history = load("types").folder / "history.parquet"
    with Command(tmp_path, "upstream", is_serving=True, pd_port=0, load=history) as command:
        wait_until(lambda: any(command.temporary.rglob("CURRENT")), "a store")
        command.signal(signal.SIGTERM)
        assert command.wait() == 0
        assert command.survivors() == []
    with Command(tmp_path, "upstream", is_serving=True, pd_port=0, load=history) as command:
        command.ready()
        command.signal(signal.SIGINT)
        assert command.wait() == 0
        assert command.survivors() == []
        assert [path.name for path in command.temporary.iterdir()] == []
        assert "Traceback" not in command.errors


def test_fault_while_nobody_answers(silent: socket.socket, tmp_path: Path) -> None:
    with Command(tmp_path, "fault", "regions", pd=f"127.0.0.1:{silent.getsockname()[1]}") as command:
        connection, _ = silent.accept()
        with connection:
            assert_clean(command, signal.SIGINT, 1, "Stopped by SIGINT before it was done.")


def test_demo_ends_what_it_has_started(tmp_path: Path) -> None:
    with Command(tmp_path, "demo") as command:
        wait_until(lambda: has_java(command), "the JVM")
        assert_clean(command, signal.SIGINT, 1, "Stopped by SIGINT before it was done.")


def test_ctrl_c_in_a_terminal_lets_the_batch_at_hand_be_finished(upstream: EmbeddedUpstream, tmp_path: Path) -> None:
    """The terminal sends it to every process of the group."""
    history, prefix = load("types"), table_prefix(TXN)
    rows = list(islice(history.scan_at(prefix + b"_r", prefix + b"_s", history.end_ts), 5))
    files, ready, start_ts = tmp_path / "files", tmp_path / "ready", upstream.tso()
    words = ["--pd", upstream.pd_address, "--sink-uri", sink_uri(files), "--data-dir", str(tmp_path / "data")]
    words += ["--start-ts", str(start_ts), "--ready-file", str(ready)]
    with Terminal("run", *words) as terminal:
        wait_until(lambda: ready.exists() or not terminal.is_running(), "the changefeed")
        commits = [upstream.commit([Mutation(Op.PUT, key, value) for key, value in rows])[1] for _ in range(3)]
        wait_until(lambda: files.exists() and any(files.rglob("CDC.index")), "a batch")
        terminal.type(b"\x03")
        assert terminal.wait() == 0, terminal.said
    assert "Stopped at " in terminal.said.splitlines()[-1]
    assert "Traceback" not in terminal.said
    found = sorted(message["_tidb"]["commitTs"] for message in tree.messages(files))
    assert found == sorted(commits * 5)[: len(found)]
    assert len(found) % 5 == 0
    assert found[-1] <= tree.checkpoint(files)


_IN_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tidemill.cli import main
main()
"""


class Terminal:
    """``tidemill WORDS…`` in a terminal of its own, which somebody looks at."""

    def __init__(self, *words: str) -> None:
        self._master, inner = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_TERMINAL, *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self._read = b""
        self._reader = Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running():
            self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_SECONDS)
        os.close(self._master)

    @property
    def said(self) -> str:
        return self._read.decode()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def _read_all(self) -> None:
        """Until the last process has let go of the terminal, which Linux tells by an error."""
        with suppress(OSError):
            while some := os.read(self._master, 65536):
                self._read += some
