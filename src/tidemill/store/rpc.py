"""What the gRPC servers of the embedded upstream share: limits, and turning our services into handlers."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

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
_MAX_THREADS = 512  # a stream holds one for its whole life


class Context(Protocol):
    """The part of ``grpc.ServicerContext`` that the services use."""

    def abort(self, code: Any, details: str) -> Any: ...

    def add_callback(self, callback: Any) -> bool: ...

    def is_active(self) -> bool: ...

    def invocation_metadata(self) -> Any: ...


class Server:
    """A gRPC server on 127.0.0.1 with its own threads."""

    def __init__(self, name: str) -> None:
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

    def start(self, port: int) -> str:
        """Serve on ``port``, or with 0 on a free one; return the address."""
        try:
            bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError as error:
            raise UsageError(
                f"cannot listen on 127.0.0.1:{port}: the port is taken or not allowed. Choose another, or 0 for any."
            ) from error
        self._server.start()
        self.address = f"127.0.0.1:{bound}"
        return self.address

    def stop(self) -> None:
        """Refuse new calls, end those in progress, wait for their threads."""
        self._server.stop(grace=0).wait()
        self._pool.shutdown(wait=True)
