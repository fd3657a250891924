"""``tikvpb.Tikv.BatchCommands``: many commands on one stream, answered as they are done.

    client ──► batch ─┬─ quick ──► done here, answered together ────────────────┐
                      └─ may wait, or reads a lot ──► a thread of its own ──────┴──► stream

A command goes to the same method as its call of its own, and answers are paired by the
command's id. A quick one costs no change of threads: the thread that reads the stream does it and
sends the answer. Nothing that waits for a lock holds the others up.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from tidebox.cluster import Cluster
from tidebox.mvcc import decode_varint, encode_varint
from tidebox.rpc import Context
from tidemill._pb import errorpb_pb2, tikvpb_pb2
from tidemill.log import get_logger

_READS_A_LOT = frozenset({"Scan", "ScanLock", "RawScan", "RawBatchScan"})
_READS = frozenset({"Get", "BatchGet", "RawGet", "RawBatchGet", "Empty"})
_COPROCESSOR = 22  # the one response whose first field is not the region error
_RESPONSES = tikvpb_pb2.BatchCommandsResponse.Response.DESCRIPTOR.fields_by_name

log = get_logger("store.batch")

Answer = tuple[int, bytes]  # id of the command, wire bytes of its Response
Send = Callable[[bytes | None], None]  # blocks while the client does not read; None ends the stream


@dataclass(frozen=True, slots=True)
class _Command:
    """What answers one kind of command."""

    method: Callable[[Any, Context], Any]
    number: int  # of the field, in requests and in responses


class BatchService:
    def __init__(self, cluster: Cluster, threads: ThreadPoolExecutor, *implementations: object) -> None:
        """``implementations``: the services of the store. Commands that may wait do so on ``threads``."""
        self._cluster = cluster
        self._threads = threads
        self._commands = {
            name: _Command(method, field.number)
            for name, field in _RESPONSES.items()
            if (method := _method_of(name, (self, *implementations))) is not None
        }

    def BatchCommands(self, requests: Iterator[tikvpb_pb2.BatchCommandsRequest], context: Context, send: Send) -> None:
        stream = _Stream(context, send)
        try:
            for batch in requests:
                if len(batch.requests) != len(batch.request_ids):
                    fault = f"{len(batch.requests)} commands came with {len(batch.request_ids)} ids"
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
                self._take(stream, batch)
        except grpc.RpcError:
            return  # the client has left
        stream.finish()

    # Told to gRPC: this one sends by itself, from whichever thread has an answer.
    BatchCommands.experimental_non_blocking = True  # type: ignore[attr-defined]

    def Empty(self, request: tikvpb_pb2.BatchCommandsEmptyRequest, context: Context) -> Any:
        """Clients measure the way with it; a delay is for tests of TiKV's own."""
        return tikvpb_pb2.BatchCommandsEmptyResponse(test_id=request.test_id)

    def _take(self, stream: "_Stream", batch: tikvpb_pb2.BatchCommandsRequest) -> None:
        quick = []
        for command_id, request in zip(batch.request_ids, batch.requests, strict=True):
            if self._is_quick(request):
                quick.append((command_id, request))
            else:
                stream.begin()
                try:
                    self._threads.submit(self._answer_later, stream, command_id, request)
                except RuntimeError:  # the store is stopping; its streams are about to be cut
                    stream.end([])
        if quick:
            stream.send([(command_id, self._answer(stream, request)) for command_id, request in quick])

    def _is_quick(self, request: Any) -> bool:
        kind = request.WhichOneof("cmd")
        if kind in _READS:
            return True
        if kind in _READS_A_LOT or (kind == "PessimisticLock" and request.PessimisticLock.wait_timeout >= 0):
            return False
        return self._cluster.in_flight.delay_seconds <= 0  # while applying is slow, every write may wait

    def _answer_later(self, stream: "_Stream", command_id: int, request: Any) -> None:
        answers = []
        try:
            answers = [(command_id, self._answer(stream, request))]
        finally:
            stream.end(answers)

    def _answer(self, stream: "_Stream", request: Any) -> bytes:
        """The wire bytes of a Response. What fails is told in it: a failing call would take the others with it."""
        kind = request.WhichOneof("cmd")
        command = self._commands.get(kind)
        if command is None:
            number = _RESPONSES[kind].number if kind is not None else _unknown_number(request)
            return _wrapped(number, _refusal(number, f"command {kind or number} is not served here"))
        try:
            answer = command.method(getattr(request, kind), stream.context)
        except _Aborted as aborted:
            answer = _refusal(command.number, aborted.details)
        except Exception as error:
            log.error("a command in a batch failed", command=kind, error=repr(error))
            answer = _refusal(command.number, f"{kind} failed: {error!r}")
        return _wrapped(command.number, answer if isinstance(answer, bytes) else answer.SerializeToString())


class _Stream:
    """One client's stream: what is being done for it, and one answer at a time on the way out."""

    def __init__(self, context: Context, send: Send) -> None:
        self.context = _CommandContext(context)
        self._send = send
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._pending = 0
        self._is_gone = not context.add_callback(self._leave)

    def begin(self) -> None:
        with self._changed:
            self._pending += 1

    def end(self, answers: Sequence[Answer]) -> None:
        self.send(answers)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def send(self, answers: Sequence[Answer]) -> None:
        if not answers:
            return
        ids = tikvpb_pb2.BatchCommandsResponse(request_ids=[command_id for command_id, _ in answers])
        message = b"".join(_wrapped(1, response) for _, response in answers) + ids.SerializeToString()
        with self._sending:  # gRPC takes one message of a call at a time
            self._send(message)

    def finish(self) -> None:
        """The client asks no more: answer what is left, then end the stream."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._is_gone)
        with self._sending:
            self._send(None)

    def _leave(self) -> None:
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()


class _Aborted(Exception):
    def __init__(self, code: Any, details: str) -> None:
        self.code, self.details = code, details
        super().__init__(details)


class _CommandContext:
    """The call's context as a command sees it: aborting ends the command, not the call."""

    def __init__(self, call: Context) -> None:
        self._call = call

    def abort(self, code: Any, details: str) -> Any:
        raise _Aborted(code, details)

    def add_callback(self, callback: Any) -> bool:
        return self._call.add_callback(callback)

    def is_active(self) -> bool:
        return self._call.is_active()

    def invocation_metadata(self) -> Any:
        return self._call.invocation_metadata()


def _method_of(command: str, implementations: Sequence[object]) -> Any:
    """``Get`` is answered by ``KvGet``, ``RawGet`` by itself, ``PessimisticRollback`` by ``KVPessimisticRollback``."""
    for implementation in implementations:
        for name in (command, f"Kv{command}", f"KV{command}"):
            method = getattr(implementation, name, None)
            if method is not None:
                return method
    return None


def _refusal(number: int, reason: str) -> bytes:
    """A response, of whichever kind, that holds nothing but a region error: clients ask again, or show the reason."""
    error = errorpb_pb2.Error(message=reason).SerializeToString()
    return _wrapped(2 if number == _COPROCESSOR else 1, error)


def _wrapped(number: int, data: bytes) -> bytes:
    """The wire bytes of a field that holds a message."""
    return encode_varint(number << 3 | 2) + encode_varint(len(data)) + data


def _unknown_number(request: Any) -> int:
    """Of a command that is newer than our protocol; it is the only field there."""
    data = request.SerializeToString()
    return decode_varint(data, 0)[0] >> 3 if data else 255
