"""Serves the application on a socket, on the loop of whoever starts it. Signals are left to the process.

async with ApiServer(app, "127.0.0.1", 8300) as server:
    server.address        # HOST:PORT
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemill.api.tls import ApiTls, server_context
from tidemill.errors import UsageError
from tidemill.log import get_logger

log = get_logger("api")

_MOST_CONNECTIONS = 1000
_KEEP_ALIVE_SECONDS = 30
_CLOSING_SECONDS = 2
_BACKLOG = 128
_POLL_SECONDS = 0.005


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class ApiServer:
    """``port`` 0: any that is free. ``has_users``: whoever comes has to say who he is."""

    def __init__(
        self,
        app: FastAPI,
        host: str = "127.0.0.1",
        port: int = 8300,
        *,
        tls: ApiTls | None = None,
        has_users: bool = False,
    ) -> None:
        self._app, self._host, self._port = app, host, port
        self._tls, self._has_users = tls, has_users
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Requests are answered when this returns. Raises UsageError where it cannot listen."""
        context = None if self._tls is None else server_context(self._tls)
        listening = self._listen()
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not _is_loopback(host) and not self._has_users and not (self._tls and self._tls.wants_certificates):
            log.warning(
                "the API lets in anybody who reaches it; give it users or mTLS, or bind it to the loopback",
                address=self.address,
            )
        config = uvicorn.Config(
            self._app,
            http=_checking(self._tls) if self._tls else H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
            ssl_context_factory=None if context is None else (lambda *_: context),
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve([listening]), name="api")
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Requests that are under way are answered, if they do not take too long."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _listen(self) -> socket.socket:
        try:
            family, kind, _, _, where = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(where)
                listening.listen(_BACKLOG)
                listening.setblocking(False)
            except OSError:
                listening.close()
                raise
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._host}:{self._port} for the API: {error.strerror}. Choose another address."
            ) from error
        return listening


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _checking(tls: ApiTls) -> type[H11Protocol]:
    """Whoever shows a certificate of a name that is not allowed is hung up on, before anything is read of it."""

    class CheckingProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            if tls.allows(transport.get_extra_info("peercert")):
                super().connection_made(transport)
                return
            self._is_refused = True
            log.warning("a client was refused: the name of its certificate is not allowed")
            transport.abort()

        def data_received(self, data: bytes) -> None:
            if not getattr(self, "_is_refused", False):
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if not getattr(self, "_is_refused", False):
                super().connection_lost(exc)

    return CheckingProtocol
