"""A real etcd of a test's own, on loopback: it can be killed and started again, with or without TLS and users."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tidebox.etcd import find_program
from tidebox.ports import free_ports
from tidemill.capture.etcd.client import EtcdClient
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import MetadataUnavailableError
from tidemill.model.security import PLAIN, Security

PATIENCE_SECONDS = 60.0
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Etcd:
    def __init__(self, folder: Path, *, security: Security = PLAIN, flags: Sequence[str] = ()) -> None:
        self._folder, self._security, self._flags = folder, security, flags
        self._ports = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = ThreadPoolExecutor(1)
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        scheme = "https" if self._security.is_tls else "http"
        client, peer = f"{scheme}://{self.address}", f"http://127.0.0.1:{self._ports[1]}"
        command = [
            *(sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), str(find_program())),
            *("--name", "one", "--data-dir", str(self._folder / "data"), "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
            *("--unsafe-no-fsync", *self._flags),
        ]
        with (self._folder / "log").open("ab") as log:
            # By a thread that lives as long: the kernel ends a child with the thread that started it.
            self._process = self._keeper.submit(subprocess.Popen, command, stdout=log, stderr=log).result()
        began = SYSTEM_CLOCK.monotonic()
        with self.client() as client_:
            while True:
                try:
                    client_.cluster_id()
                    return
                except MetadataUnavailableError:
                    if SYSTEM_CLOCK.monotonic() - began > PATIENCE_SECONDS:
                        raise

    @contextmanager
    def client(self) -> Iterator[EtcdClient]:
        client = EtcdClient(self.address, security=self._security)
        try:
            yield client
        finally:
            client.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._keeper.shutdown()

    def restart(self) -> None:
        self.kill()
        self.start()


@contextmanager
def running(folder: Path, **how: object) -> Iterator[Etcd]:
    etcd = Etcd(folder, **how)  # type: ignore[arg-type]
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.close()
