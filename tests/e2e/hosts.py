"""Hosts made of namespaces: each has a network and a loopback of its own, and can be cut off from the others.

    with Network() as network:                 # this machine is at network.address
        one, other = network.host(), network.host()
        subprocess.Popen([*one.command(hidden=[folder]), "ls", folder])     # sees an empty folder
        with one.entered():
            socket.create_connection(("127.0.0.1", port))                   # its own loopback
        other.cut_off()

Needs root. Nothing that is sent leaves this machine: hosts and bridge have no way out.
"""

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

_NET = 0x40000000  # CLONE_NEWNET
_libc = ctypes.CDLL(None, use_errno=True)


def need_namespaces() -> None:
    """Skip the test where hosts cannot be made; the reason says what is missing."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount"))):
        pytest.skip("needs root and iproute2, to make hosts out of namespaces")
    name = f"tm{secrets.token_hex(3)}"
    try:
        ip("link", "add", f"{name}b", "type", "bridge")
        ip("link", "del", f"{name}b")
        ip("netns", "add", name)
        ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the right to make network namespaces: {error.stderr.strip()}")


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Host:
    """One namespace, named ``name``, at ``address``."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address

    def command(self, hidden: Sequence[Path] = ()) -> list[str]:
        """What to put before a command so that it runs here, and finds the ``hidden`` folders empty."""
        steps = [f"mount -t tmpfs none '{folder}'" for folder in hidden] + ['exec "$@"']
        return ["ip", "netns", "exec", self.name, "unshare", "-m", "sh", "-ec", "; ".join(steps), "sh"]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Connections that this thread makes meanwhile are made from here."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        away = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            _set_namespace(away)
            yield
        finally:
            _set_namespace(home)
            os.close(home)
            os.close(away)

    def cut_off(self) -> None:
        ip("link", "set", f"{self.name}v", "down")

    def connect(self) -> None:
        ip("link", "set", f"{self.name}v", "up")


class Network:
    """A bridge. ``address`` is this machine's own on it."""

    def __init__(self) -> None:
        self._name = f"tm{secrets.token_hex(3)}"
        self._hosts: list[Host] = []
        self.address = ""

    def __enter__(self) -> Self:
        taken = ip("-4", "-o", "address")
        while not self.address or self.address in taken:
            self.address = f"198.18.{secrets.randbelow(256)}.1"  # a range for tests of networks: nobody's
        ip("link", "add", f"{self._name}b", "type", "bridge")
        ip("address", "add", f"{self.address}/24", "dev", f"{self._name}b")
        ip("link", "set", f"{self._name}b", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", host.name)
        ip("link", "del", f"{self._name}b")

    def host(self) -> Host:
        number = len(self._hosts) + 2
        host = Host(f"{self._name}{number}", f"{self.address.rpartition('.')[0]}.{number}")
        ip("netns", "add", host.name)
        self._hosts.append(host)
        here, there = f"{host.name}v", f"{host.name}w"
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", host.name)
        ip("link", "set", here, "master", f"{self._name}b", "up")
        ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", there)
        for name in (there, "lo"):
            ip("-n", host.name, "link", "set", name, "up")
        return host


def _set_namespace(handle: int) -> None:
    if _libc.setns(handle, _NET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")
