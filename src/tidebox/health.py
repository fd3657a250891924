"""``grpc.health.v1.Health``, which PD and stores serve: whoever answers at all is healthy.

Spoken in bytes: the two messages are smaller than a schema for them, and whoever has the official
health package in the same process would find its names taken.
"""

import grpc

from tidebox.rpc import Context

_SERVING = b"\x08\x01"  # HealthCheckResponse.status = SERVING


def _check(request: bytes, context: Context) -> bytes:
    """SERVING for the server as a whole; single services are not told apart."""
    if request:
        context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
    return _SERVING


HEALTH = grpc.method_handlers_generic_handler(
    "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(_check)}
)
