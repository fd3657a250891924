"""A real MariaDB of a test's own: in a temporary folder, on a free loopback port, stopped by its pid.

    with MariaDb(folder) as server:
        server.query("select 1")
        server.uri("worker-count=4")           # mysql://tidemill:…@127.0.0.1:PORT/?worker-count=4

``server.kill()`` ends it as a crash would; ``server.start()`` brings it back on the same port and data.
"""

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tidebox.ports import free_ports

USER, PASSWORD = "tidemill", "s3cret/?&"
_PATIENCE_SECONDS = 90
_SETTINGS = (
    "--no-defaults", "--skip-name-resolve", "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=2", "--max-allowed-packet=16M",
    "--character-set-server=utf8mb4", "--collation-server=utf8mb4_bin", "--skip-log-bin", "--max-connections=200",
    "--default-time-zone=+02:00", "--innodb-use-native-aio=0", "--performance-schema=0",
)  # fmt: skip


def is_installed() -> bool:
    return shutil.which("mariadbd") is not None and shutil.which("mariadb-install-db") is not None


def need_mariadb() -> None:
    """Skip the test where there is no MariaDB; the reason says how to get it."""
    if not is_installed():
        pytest.skip("needs MariaDB: apt-get install mariadb-server-core mariadb-client-core")


class MariaDb:
    """One server process. ``settings`` are further options of mariadbd, as ``--name=value``."""

    def __init__(self, folder: Path, *settings: str, host: str = "127.0.0.1") -> None:
        """``host``: the address of this machine at which it is to be reached."""
        self.folder = folder
        self.host = host
        (self.port,) = free_ports(1, host)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(_installed(), folder / "data", dirs_exist_ok=True)

    def __enter__(self) -> "MariaDb":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        assert self._process is None
        grants = self.folder / "init.sql"
        grants.write_text(
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
        )
        self._process = subprocess.Popen(
            [
                "mariadbd", *_SETTINGS, f"--bind-address={self.host}", *self._settings, "--user=root",
                f"--datadir={self.folder / 'data'}", f"--port={self.port}", f"--socket={self.folder / 's'}",
                f"--init-file={grants}", f"--log-error={self.folder / 'error.log'}",
                f"--pid-file={self.folder / 'pid'}",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_PATIENCE_SECONDS)
            self._process = None

    def kill(self) -> None:
        """As ``kill -9``: nothing is flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE_SECONDS)
        self._process = None

    def uri(self, parameters: str = "", *, scheme: str = "mysql", user: str = USER, password: str = PASSWORD) -> str:
        from urllib.parse import quote

        return f"{scheme}://{user}:{quote(password, safe='')}@{self.host}:{self.port}/?{parameters}"

    def connect(self, **more: Any) -> Any:
        arguments = {"user": USER, "password": PASSWORD, "charset": "utf8mb4", "autocommit": True, **more}
        return pymysql.connect(host=self.host, port=self.port, **arguments)

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run all; the rows of the last."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def _wait(self) -> None:
        """Until it answers; a server that ends instead shows its log."""
        import time

        assert self._process is not None
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._process = None
                raise RuntimeError((self.folder / "error.log").read_text()[-2000:])
            try:
                self.connect().close()
                return
            except pymysql.err.OperationalError:
                time.sleep(0.02)
        raise TimeoutError(f"MariaDB in {self.folder} does not answer on port {self.port}")


@cache
def _installed() -> Path:
    """A data folder as an installation leaves it, made once a process: copying it takes a tenth of the time."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-mariadb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(
        [
            "mariadb-install-db", "--no-defaults", f"--datadir={folder / 'data'}", "--user=root",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=32M",
            "--innodb-use-native-aio=0",
        ],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        timeout=_PATIENCE_SECONDS,
    )  # fmt: skip
    return folder / "data"


@contextmanager
def running(folder: Path, *settings: str, host: str = "127.0.0.1") -> Iterator[MariaDb]:
    with MariaDb(folder, *settings, host=host) as server:
        yield server
