"""The driver's connections, so that whoever waits on one of them can be interrupted from another thread.

A server that does not answer may be waited for: while dialling, in a handshake, for a DDL or for a lock. ``cut`` ends
all of it at once, and nothing can be dialled afterwards.
"""

import os
import select
import socket
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from tidemill.clock import SYSTEM_CLOCK

_POLL_SECONDS = 0.1


class Lines:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: WeakSet[Any] = WeakSet()  # of PyMySQL
        self._dialled: WeakSet[socket.socket] = WeakSet()  # which a connection may not have taken over yet
        self._is_cut = False

    def dial(self, host: str, port: int, seconds: float) -> socket.socket:
        """A connected socket. Raises OSError when nobody answers within ``seconds``, or at once when cut."""
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        failure: OSError = TimeoutError(f"no answer within {seconds:g} s")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            dialled = socket.socket(family, kind, protocol)
            try:
                self._await(dialled, address, deadline)
                dialled.settimeout(seconds)
                dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._keep(dialled, self._dialled)
                return dialled
            except OSError as error:
                dialled.close()
                failure = error
        raise failure

    def add(self, connection: Any) -> None:
        """Have it ended by ``cut``; before it waits for anything. Raises OSError if that has been called."""
        self._keep(connection, self._connections)

    def cut(self) -> None:
        """End every connection, from any thread: whoever reads from one gets an error."""
        with self._lock:
            self._is_cut = True
            ends = [*self._dialled, *(connection._sock for connection in self._connections)]
        for end in ends:
            with suppress(OSError, AttributeError):  # closed already, or not dialled yet
                end.shutdown(socket.SHUT_RDWR)

    def _keep(self, kept: Any, where: WeakSet[Any]) -> None:
        with self._lock:
            if self._is_cut:
                raise ConnectionAbortedError("closed meanwhile")
            where.add(kept)

    def _await(self, dialled: socket.socket, address: Any, deadline: float) -> None:
        dialled.setblocking(False)
        with suppress(BlockingIOError):
            dialled.connect(address)
            return
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(dialled, select.POLLOUT)
        while not poll.poll(_POLL_SECONDS * 1000):
            if self._is_cut:
                raise ConnectionAbortedError("closed meanwhile")
            if SYSTEM_CLOCK.monotonic() >= deadline:
                raise TimeoutError("no answer")
        number = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))
