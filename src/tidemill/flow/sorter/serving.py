"""Segments for executors on other hosts, by Arrow Flight: one server a process, whichever changefeeds it runs.

    executor ── token, ticket (segment, rows, keys) ──► SegmentServer ── find ──► Shelf of that changefeed
             ◄── rows of those keys (wire) ─────────────      └── maps the file, compares its checksums

The token says whose segments may be asked for; TLS keeps it, and the rows, from others. The certificate is the
process's own, made at its start, and travels to the executors with their work: nobody else's is trusted there.
Runs on the capture, in threads of its own.
"""

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from tidemill.certificates import SelfSigned
from tidemill.errors import SegmentCorruptError
from tidemill.flow.sorter.segment import MappedSegment
from tidemill.flow.sorter.shelf import Shelf
from tidemill.flow.sorter.wire import (
    AUTHORIZATION,
    BOUNDS,
    CHECKSUM,
    CORRUPT,
    RELEASED,
    SCHEME,
    TOTAL,
    Ticket,
    checksum,
)
from tidemill.log import get_logger
from tidemill.model.change import cut_by_bytes

_MESSAGE_BYTES = 4 << 20  # or one row
_TOKEN_BYTES = 32
_PATIENCE_SECONDS = 0.5  # with those who are being served, at the end
_SHUTDOWN_SECONDS = 5.0

log = get_logger("segments")

Message = tuple[pa.RecordBatch, bytes]


class SegmentServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves from its making on, at ``port``. ``stop`` it."""

    def __init__(self, host: str, port: int, certificate: SelfSigned) -> None:
        """``host``: an address or a name of this machine. ``port`` 0: any."""
        self._shelves: dict[str, Shelf] = {}
        shown = f"[{host}]" if ":" in host else host
        super().__init__(
            f"grpc+tls://{shown}:{port}",
            tls_certificates=[(certificate.certificate, certificate.key)],
            middleware={AUTHORIZATION: _Gate(self._shelves)},
        )

    def admit(self, shelf: Shelf) -> str:
        """A token with which the segments of the shelf can be asked for from now on."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._shelves[token] = shelf
        return token

    def revoke(self, token: str) -> None:
        self._shelves.pop(token, None)

    def stop(self) -> None:
        """Whoever is being served may lose the rest; one that stands still, and takes nothing, is not waited for."""
        port = self.port
        ending = threading.Thread(target=self.shutdown, name="segments-stop", daemon=True)
        ending.start()
        ending.join(_PATIENCE_SECONDS)
        if ending.is_alive():
            _hang_up(port)
            ending.join(_SHUTDOWN_SECONDS)

    def do_get(self, context: Any, ticket: Any) -> Any:
        shelf: Shelf = context.get_middleware(AUTHORIZATION).shelf
        try:
            wanted = Ticket.read(ticket.ticket)
        except ValueError:
            raise flight.FlightServerError("the ticket is malformed") from None
        segment = shelf.find(wanted.segment)
        if segment is None:
            raise _released(wanted)
        if wanted.row_high > segment.rows:
            raise flight.FlightServerError(f"there are {segment.rows} rows in segment {wanted.name}")
        with _refusing(shelf, wanted):
            file = segment.open()
        return flight.GeneratorStream(file.schema, self.answer(shelf, file, wanted))

    def answer(self, shelf: Shelf, file: MappedSegment, wanted: Ticket) -> Iterator[Message]:
        """What is sent: the bounds, the rows, the total."""
        low, high = wanted.row_low, wanted.row_high
        nothing = pa.RecordBatch.from_pylist([], file.schema)
        with _refusing(shelf, wanted):
            before = file.bytes_before(low, high)
            yield nothing, BOUNDS.pack(high - low, *file.data_bytes(low, high))
            batches = rows = 0
            for begin, end in pairwise(cut_by_bytes(np.diff(before), _MESSAGE_BYTES)):
                batch = file.rows(low + begin, low + end)
                if wanted.keys is not None:
                    batch = wanted.keys.of(batch)
                if len(batch):
                    batches, rows = batches + 1, rows + len(batch)
                    yield batch, CHECKSUM.pack(checksum(batch))
            yield nothing, TOTAL.pack(batches, rows)


@contextmanager
def _refusing(shelf: Shelf, wanted: Ticket) -> Iterator[None]:
    """A file that cannot be read is no wonder once it was released."""
    try:
        yield
    except SegmentCorruptError as error:
        if shelf.find(wanted.segment) is None:
            raise _released(wanted) from error
        log.error("segment cannot be served", segment=wanted.name, reason=str(error))
        raise flight.FlightServerError(str(error), CORRUPT) from error


def _released(wanted: Ticket) -> Exception:
    error: Exception = flight.FlightServerError(f"segment {wanted.name} was released", RELEASED)
    return error


def _hang_up(port: int) -> None:
    """End this process's connections at a port of its own. Flight would wait for whoever does not read on."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # no socket, or gone
            handle = os.dup(int(name))
            try:
                with socket.socket(fileno=handle) as one:
                    handle = -1
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port:
                        one.shutdown(socket.SHUT_RDWR)
            finally:
                if handle >= 0:
                    os.close(handle)


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # as above
    """Lets in whoever has a token. Those are random and long: that they are looked up in a dict tells nobody any."""

    def __init__(self, shelves: dict[str, Shelf]) -> None:
        self._shelves = shelves

    def start_call(self, info: Any, headers: Any) -> Any:
        given = headers.get(AUTHORIZATION) or [""]
        shelf = self._shelves.get(str(given[0]).removeprefix(SCHEME))
        if shelf is None:
            raise flight.FlightUnauthenticatedError("the token is not of a changefeed of this capture")
        return _Admitted(shelf)


class _Admitted(flight.ServerMiddleware):  # type: ignore[misc]  # as above
    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
