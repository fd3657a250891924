"""PD's one port: HTTP/1.1 and gRPC, told apart by the first bytes of a connection.

    client ──► front ──┬── HTTP/2 preface ──► spliced byte by byte to the gRPC server
                       └── anything else ───► answered here, by the handler (``http_paths``)

One thread with its own event loop moves the bytes and never waits for anybody: each direction of
a connection holds a bounded number of bytes and then stops reading. Handlers run on threads of
their own, one request of a connection at a time.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import orjson

from tidebox.http1 import BadRequest, HttpRequest, HttpResponse, RequestReader
from tidemill.errors import UsageError
from tidemill.log import get_logger

KEPT_PATHS = "/tidemill/"  # served even while PD plays dead, so that somebody can wake it

_PREFACE = b"PRI * HTTP/2.0"
_SPLICE_BUFFER_BYTES = 256 << 10  # unsent bytes after which a direction stops reading
_BACKLOG = 512
_HTTP_THREADS = 8
_LINGER_SECONDS = 1.0
_TURN_SECONDS = 30.0  # until the loop gets to what it is asked: at once, but on a busy machine

HttpHandler = Callable[[HttpRequest], HttpResponse]

log = get_logger("store.front")


class Front:
    """Has a port of 127.0.0.1 from ``listen`` to ``stop``. All methods may be called from any thread."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        """With ``tls`` it ends here: what is spliced goes on in plain text, within the machine."""
        self._port = port
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pd-front", daemon=True)
        self._stopping = asyncio.Event()
        self._shared: _Shared | None = None
        self._listener: socket.socket | None = None

    def listen(self) -> str:
        """Take the port and return the address; clients may connect and then wait. ``UsageError`` if it is taken."""
        # Named as TCP, or asyncio does not tell its connections to send small messages at once.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._port))
            listener.listen(_BACKLOG)
        except OverflowError as error:
            listener.close()
            raise UsageError(
                f"there is no port {self._port}. Choose --pd-port between 1 and 65535, or 0 for any."
            ) from error
        except OSError as error:
            listener.close()
            raise UsageError(
                f"cannot listen on 127.0.0.1:{self._port}: the port is taken or not allowed. "
                "Another cluster may be running; choose another --pd-port, or 0 for any."
            ) from error
        self._listener = listener
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def serve(self, grpc_address: str, http_handler: HttpHandler) -> None:
        """Answer from now on: gRPC from the server at ``grpc_address``, HTTP by the handler."""
        self._shared = _Shared(self._loop, grpc_address, http_handler)
        self._thread.start()

    def set_away(self, is_away: bool) -> None:
        """PD is gone: cut every connection and refuse new ones, but for HTTP paths below ``/tidemill/``; or it is back.

        On return all connections that had to go are gone.
        """
        if self._thread.is_alive():
            self._in_loop(self._set_away, is_away)

    def stop(self) -> None:
        """Close the port and every connection; wait for the thread. A second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        if self._listener is not None:
            self._listener.close()
        if not self._loop.is_closed():
            self._loop.close()

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._shared.clients) if self._shared else 0

    def _set_away(self, is_away: bool) -> None:
        assert self._shared is not None
        self._shared.is_away = is_away
        if is_away:
            for client in [c for c in self._shared.clients if not c.is_kept]:
                client.cut()

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        done: Future[None] = Future()

        def run() -> None:
            function(*arguments)
            done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result(_TURN_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _serve(self) -> None:
        shared = self._shared
        assert shared is not None
        assert self._listener is not None
        server = await self._loop.create_server(
            lambda: _Client(shared), sock=self._listener, backlog=_BACKLOG, ssl=self._tls
        )
        try:
            await self._stopping.wait()
        finally:
            server.close()
            for client in list(shared.clients):
                client.cut()
            for task in list(shared.tasks):
                task.cancel()
            await asyncio.gather(*shared.tasks, return_exceptions=True)
            # A handler may still run; its answer goes nowhere, but its thread is waited for.
            await self._loop.run_in_executor(None, shared.threads.shutdown)
            await self._loop.shutdown_default_executor()
            await server.wait_closed()


class _Shared:
    """What all connections of a front have in common. Used in the loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, grpc_address: str, http_handler: HttpHandler) -> None:
        self.loop = loop
        self.grpc_address = grpc_address
        self.http_handler = http_handler
        self.is_away = False
        self.clients: set[_Client] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.threads = ThreadPoolExecutor(_HTTP_THREADS, thread_name_prefix="pd-http")

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Splice(asyncio.Protocol):
    """One end of a spliced connection: what it reads goes out at the other end."""

    other: "_Splice | None" = None
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(_SPLICE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def eof_received(self) -> bool:
        if self.other is not None and self.other.transport.can_write_eof() and not self.other.transport.is_closing():
            self.other.transport.write_eof()
            return True  # the other direction may still have something to say
        return False

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close() if error is None else self.other.transport.abort()


class _Client(_Splice):
    """A connection that a client opened: undecided at first, then spliced or HTTP."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._first = b""
        self._is_deaf = False
        self._http: RequestReader | None = None
        self._request: HttpRequest | None = None  # the one being answered, or answered last

    @property
    def is_kept(self) -> bool:
        return self._request is not None and self._request.path.startswith(KEPT_PATHS)

    def cut(self) -> None:
        """Both ends are gone at once; the client sees a reset."""
        client = self.transport.get_extra_info("socket")
        if client is not None:  # it is None for a TLS connection that is lost, and will hear of it next
            with contextlib.suppress(OSError):  # it has closed already
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
        if self.other is not None:
            self.other.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._shared.clients.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._shared.clients.discard(self)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
        elif self._is_deaf:
            return
        elif self._http is not None:
            self._http.feed(data)
            self._next_request()
        else:
            self._first += data
            self._decide()

    def eof_received(self) -> bool:
        if self.other is None:
            return False  # in HTTP nothing is read while one is answered
        is_open = super().eof_received()
        return is_open and self.transport.get_extra_info("sslcontext") is None  # TLS has no half-closed connections

    def _decide(self) -> None:
        if self._first.startswith(_PREFACE):
            if self._shared.is_away:
                self.cut()
                return
            self.transport.pause_reading()
            self._shared.spawn(self._connect())
        elif not _PREFACE.startswith(self._first):
            self._http = RequestReader()
            self._http.feed(self._first)
            self._next_request()

    async def _connect(self) -> None:
        try:
            host, port = self._shared.grpc_address.rsplit(":", 1)
            _, backend = await self._shared.loop.create_connection(_Splice, host, int(port))
        except OSError as error:
            log.warning("PD's gRPC server does not answer; the connection is cut", error=error)
            self.cut()
            return
        if self.transport.is_closing():
            backend.transport.abort()
            return
        self.other, backend.other = backend, self
        backend.transport.write(self._first)
        self.transport.resume_reading()

    # HTTP

    def _next_request(self) -> None:
        """Take up the next request, if it has arrived whole and the one before is answered."""
        http = self._http
        assert http is not None
        if http.is_busy or self.transport.is_closing():
            return
        try:
            request = http.next()
        except BadRequest as bad:
            self._refuse(bad)
            return
        if http.wants_continue():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request is None:
            return
        self._request = request
        if self._shared.is_away and not self.is_kept:
            self.cut()
            return
        http.is_busy = True
        self.transport.pause_reading()
        self._shared.spawn(self._answer(request, http.keep_alive))

    async def _answer(self, request: HttpRequest, keep_alive: bool) -> None:
        try:
            shared = self._shared
            response = await shared.loop.run_in_executor(shared.threads, shared.http_handler, request)
        except Exception as error:
            log.error("an HTTP request could not be answered", method=request.method, path=request.path, error=error)
            response = _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        assert self._http is not None
        self._http.is_busy = False
        if self.transport.is_closing():
            return
        self._respond(response, keep_alive=keep_alive, head_only=request.method == "HEAD")
        if keep_alive:
            self.transport.resume_reading()
            self._next_request()

    def _refuse(self, bad: BadRequest) -> None:
        """Say why and hang up, but not before the client has had time to read it.

        Closing while the client still sends would reset the connection and take the answer with it.
        """
        self._is_deaf = True
        self.transport.write(_error(bad.status, bad.reason).encode(keep_alive=False))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._shared.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _respond(self, response: HttpResponse, *, keep_alive: bool, head_only: bool = False) -> None:
        self.transport.write(response.encode(keep_alive=keep_alive, head_only=head_only))
        if not keep_alive:
            self.transport.close()


def _error(status: int, reason: str) -> HttpResponse:
    return HttpResponse(status, orjson.dumps({"error": reason}))
