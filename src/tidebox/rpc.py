"""What the gRPC servers of the embedded upstream share: limits, and turning our services into handlers."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UsageError

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 1024),
    # A busy port must fail instead of being shared with whoever has it.
    ("grpc.so_reuseport", 0),
    # Go clients ping every ten seconds, also without a call in progress.
    ("grpc.http2.min_ping_interval_without_data_ms", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
]
_RETRY_SECONDS = 0.02
_MAX_THREADS = 512  # a stream holds one for its whole life


class Context(Protocol):
    """The part of ``grpc.ServicerContext`` that the services use."""

    def abort(self, code: Any, details: str) -> Any: ...

    def add_callback(self, callback: Any) -> bool: ...

    def is_active(self) -> bool: ...

    def invocation_metadata(self) -> Any: ...


class Server:
    """A gRPC server on 127.0.0.1 with its own threads. With ``credentials`` it speaks TLS."""

    def __init__(self, name: str, credentials: grpc.ServerCredentials | None = None) -> None:
        self._credentials = credentials
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix=name)
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self.address = ""

    def add(
        self, service: ServiceDescriptor, *implementations: object, answered_in_bytes: Collection[str] = ()
    ) -> None:
        """Serve the methods of ``service`` that one of ``implementations`` has; the others answer UNIMPLEMENTED.

        Methods named in ``answered_in_bytes`` return wire bytes instead of messages.
        """
        handlers = {}
        for method in service.methods:
            function = next((f for i in implementations if (f := getattr(i, method.name, None)) is not None), None)
            if function is None:
                continue
            make = {
                (False, False): grpc.unary_unary_rpc_method_handler,
                (False, True): grpc.unary_stream_rpc_method_handler,
                (True, True): grpc.stream_stream_rpc_method_handler,
            }[method.client_streaming, method.server_streaming]
            response = GetMessageClass(method.output_type)
            handlers[method.name] = make(
                function,
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=None if method.name in answered_in_bytes else response.SerializeToString,
            )
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        self._server.add_generic_rpc_handlers((generic,))

    @property
    def threads(self) -> ThreadPoolExecutor:
        """On which calls are served; they end with the server."""
        return self._pool

    def add_handler(self, handler: grpc.GenericRpcHandler) -> None:
        """Serve the methods that ``handler`` knows and no service before it."""
        self._server.add_generic_rpc_handlers((handler,))

    def start(self, port: int, patience_seconds: float = 0) -> str:
        """Serve on ``port``, or with 0 on a free one; return the address. A port that is taken is waited for."""
        until = SYSTEM_CLOCK.monotonic() + patience_seconds
        while True:
            try:
                bound = self._bind(f"127.0.0.1:{port}")
                break
            except RuntimeError as error:
                if SYSTEM_CLOCK.monotonic() < until:
                    threading.Event().wait(_RETRY_SECONDS)
                    continue
                raise UsageError(
                    f"cannot listen on 127.0.0.1:{port}: the port is taken or not allowed. "
                    "Choose another, or 0 for any."
                ) from error
        self._server.start()
        self.address = f"127.0.0.1:{bound}"
        return self.address

    def _bind(self, address: str) -> int:
        if self._credentials is None:
            return int(self._server.add_insecure_port(address))
        return int(self._server.add_secure_port(address, self._credentials))

    def stop(self, grace_seconds: float = 0) -> None:
        """Refuse new calls, end those in progress after a grace, wait for their threads."""
        self._server.stop(grace=grace_seconds).wait()
        self._pool.shutdown(wait=True)

    def kill(self) -> None:
        """Cut every connection without a farewell, as if the process had died. ``stop`` then waits for the threads."""
        _cut_connections(int(self.address.rsplit(":", 1)[1]))
        self._server.stop(grace=0)


def _cut_connections(port: int) -> None:
    """Shut all that is connected to our ``port``; only the kernel says so to the other side."""
    for name in os.listdir("/dev/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # the listing's own, or closed meanwhile
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as connection:
            is_ours = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port
            if is_ours and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                with contextlib.suppress(OSError):  # the other side was quicker
                    connection.shutdown(socket.SHUT_RDWR)
