"""etcd's API on PD's port: every call goes to the real etcd as bytes, and its answer back as bytes.

    client ──► PD's gRPC server ──► EtcdRelay ──► etcd

Status, metadata, deadline, cancellation and half-close pass through in both directions. Only the
list of members is rewritten: clients dial the addresses in it, and those must be PD's own.

Streams live long, so they have threads apart from those of PD's other calls: two each, one per
direction. However many watches there are, PD goes on answering.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

from tidebox.etcd import MEMBER_NAME, Etcd
from tidemill._pb import etcdserverpb_pb2
from tidemill.errors import TidemillError
from tidemill.log import get_logger

MAX_STREAMS = 1024

_SERVICES = frozenset(f"etcdserverpb.{name}" for name in ("KV", "Watch", "Lease", "Cluster", "Maintenance", "Auth"))
_BOTH_WAYS = frozenset({"/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"})
_ANSWERED_IN_PARTS = frozenset({"/etcdserverpb.Maintenance/Snapshot"})
_MEMBER_LIST = "/etcdserverpb.Cluster/MemberList"
_FOREVER_SECONDS = 1e8  # what a call without a deadline has left

# Of the call itself, not of the caller; gRPC sets them anew.
_OWN_METADATA = frozenset({"user-agent", "content-type", "te", "host"})

log = get_logger("store.etcd")


class EtcdRelay(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio carries no types
    """Add it to PD's server. ``url`` is PD's, set once it is known."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._streams = 0
        self._lock = threading.Lock()
        # More threads than streams may be open, so that the one too many can be told.
        self._threads = ThreadPoolExecutor(MAX_STREAMS + 16, thread_name_prefix="etcd-stream")
        self.url = ""

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method, or None if it is none of etcd's."""
        method: str = handler_call_details.method
        if method[1:].rpartition("/")[0] not in _SERVICES:
            return None
        if method in _BOTH_WAYS:
            return grpc.stream_stream_rpc_method_handler(self._on_threads(partial(self._stream, method, True)))
        if method in _ANSWERED_IN_PARTS:
            return grpc.unary_stream_rpc_method_handler(self._on_threads(partial(self._stream, method, False)))
        return grpc.unary_unary_rpc_method_handler(partial(self._unary, method))

    def stop(self) -> None:
        """Wait for the threads of streams; they end with PD's server."""
        self._threads.shutdown()

    def _on_threads(self, behavior: "partial[Any]") -> "partial[Any]":
        behavior.experimental_thread_pool = self._threads  # type: ignore[attr-defined]  # how gRPC is told
        return behavior

    def _unary(self, method: str, request: bytes, context: Any) -> bytes:
        call = self._channel(context).unary_unary(method)
        try:
            response, ended = call.with_call(request, timeout=_seconds_left(context), metadata=_metadata(context))
        except grpc.RpcError as error:
            _end(context, error)
        context.set_trailing_metadata(_passed_on(ended.trailing_metadata()))
        return self._with_own_address(response) if method == _MEMBER_LIST else response

    def _stream(self, method: str, both_ways: bool, request: Any, context: Any) -> Iterator[bytes]:
        with self._lock:
            self._streams += 1
            is_one_too_many = self._streams > MAX_STREAMS
        try:
            if is_one_too_many:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"PD's etcd serves {MAX_STREAMS} streams at a time")
            channel = self._channel(context)
            open_call = channel.stream_stream(method) if both_ways else channel.unary_stream(method)
            sent = _while_there(request) if both_ways else request
            yield from _relay(open_call, sent, context)
        finally:
            with self._lock:
                self._streams -= 1

    def _channel(self, context: Any) -> grpc.Channel:
        try:
            return self._etcd.channel()
        except TidemillError as error:
            log.error("a call to etcd cannot be served", error=error)
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def _with_own_address(self, response: bytes) -> bytes:
        members = etcdserverpb_pb2.MemberListResponse.FromString(response)
        for member in members.members:
            member.name = member.name or MEMBER_NAME
            member.clientURLs[:] = [self.url]
            member.peerURLs[:] = [self.url]
        return members.SerializeToString()


def _relay(open_call: Callable[..., Any], sent: Any, context: Any) -> Iterator[bytes]:
    call = open_call(sent, timeout=_seconds_left(context), metadata=_metadata(context))
    if not context.add_callback(call.cancel):
        call.cancel()  # the client has gone meanwhile
        return
    try:
        yield from call
    except grpc.RpcError:
        _end(context, call)
    finally:
        call.cancel()
    context.set_trailing_metadata(_passed_on(call.trailing_metadata()))


def _while_there(requests: Iterator[bytes]) -> Iterator[bytes]:
    """The client's messages. Its going away ends them; the call to etcd is cancelled for that elsewhere."""
    try:
        yield from requests
    except grpc.RpcError:
        return


def _end(context: Any, ended: Any) -> None:
    """End our call as etcd ended its own."""
    context.set_trailing_metadata(_passed_on(ended.trailing_metadata()))
    context.abort(ended.code(), ended.details() or "")


def _seconds_left(context: Any) -> float | None:
    left: float | None = context.time_remaining()
    return None if left is None or left > _FOREVER_SECONDS else left


def _metadata(context: Any) -> list[tuple[str, Any]]:
    return _passed_on(context.invocation_metadata())


def _passed_on(metadata: Any) -> list[tuple[str, Any]]:
    pairs = ((key, value) for key, value in metadata or ())
    return [(key, value) for key, value in pairs if key not in _OWN_METADATA and not key.startswith(("grpc-", ":"))]
