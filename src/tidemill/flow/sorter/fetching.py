"""Rows of segments for an executor, wherever it is: mapped where their file is at hand, else fetched from the capture.

    SegmentSlice ── is its file here? ── yes ──► as it is
                          └── no ──► Arrow Flight ──► checked, batch by batch ──► a file without a name ──► SegmentSlice

What is fetched lies in a file of the executor's scratch folder that goes with whoever reads it, in the form of a
segment: rows may be more than memory holds. Of an answer that is late, cut short, damaged or somebody else's nothing is
used; it is an EngineError, so the batch is taken back and begun again. Runs on executors.
"""

import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.errors import EngineError, SegmentCorruptError
from tidemill.flow.sorter.order import BINARY_COLUMNS
from tidemill.flow.sorter.segment import Layout, SegmentSlice, empty_layout, whole_slice
from tidemill.flow.sorter.slices import KeyRange
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
    data_of,
    offsets_of,
    values_of,
)

if TYPE_CHECKING:
    from pyarrow import flight

_PATIENCE_SECONDS = 60.0
_SLOWEST_BYTES = 1 << 20  # a second: a slower network is taken for none
SERVER_NAME = "tidemill"  # in the certificate; addresses are whatever leads there
_SCRATCH = "SPARK_LOCAL_DIRS"  # as Spark tells its executors
_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),  # whatever the environment says: the capture is on the cluster's own network
)


@dataclass(frozen=True, slots=True)
class SegmentSupply:
    """Small and picklable: it travels to executors, with its secret, which ``repr`` leaves out."""

    address: str  # host:port of the capture's server
    token: str = field(repr=False)  # of the changefeed
    certificate: bytes = field(repr=False)  # the only one that is trusted
    patience_seconds: float = _PATIENCE_SECONDS

    def bring(self, each: SegmentSlice, keys: KeyRange | None) -> SegmentSlice | None:
        """See ``Supply``."""
        return each if each.layout.is_here() else self._fetch(each, keys)

    def _fetch(self, each: SegmentSlice, keys: KeyRange | None) -> SegmentSlice | None:
        from pyarrow import flight

        ticket = Ticket(each.layout.identity, each.layout.name, each.row_low, each.row_high, keys)
        about = int(np.frombuffer(each.sample_bytes, np.int64).sum())  # and what one sample stands for
        seconds = self.patience_seconds + about / _SLOWEST_BYTES
        headers = [(AUTHORIZATION.encode(), f"{SCHEME}{self.token}".encode())]
        with self._explained(each):
            options = flight.FlightCallOptions(timeout=seconds, headers=headers)
            reader = _client(os.getpid(), self).do_get(flight.Ticket(ticket.write()), options)
            try:
                return self._received(reader, each, keys)
            finally:
                reader.cancel()

    def _received(
        self, reader: "flight.FlightStreamReader", each: SegmentSlice, keys: KeyRange | None
    ) -> SegmentSlice | None:
        if not reader.schema.equals(each.layout.schema):
            raise _BadAnswerError("it has other columns than changes have")
        most_rows, *most_bytes = BOUNDS.unpack(_metadata(reader.read_chunk()))
        if most_rows != len(each) or sum(most_bytes) > each.layout.file_bytes:
            raise _BadAnswerError(f"it is about {most_rows} rows, and {len(each)} were asked for")
        layout = empty_layout(each.layout, most_rows, most_bytes)
        kept = _Fetched(layout)
        while len((chunk := reader.read_chunk()).data):
            chunk.data.validate(full=True)
            if CHECKSUM.unpack(_metadata(chunk))[0] != checksum(chunk.data):
                raise _BadAnswerError("a batch of it does not have its checksum")
            kept.add(chunk.data, most_rows, most_bytes)
        if TOTAL.unpack(_metadata(chunk)) != (kept.batches, kept.rows) or (keys is None and kept.rows != most_rows):
            raise _BadAnswerError(f"it ends after {kept.rows} rows")
        if not kept.rows:
            return None
        found = whole_slice(layout, kept.rows, kept)
        if found.first_ts < each.first_ts or found.last_ts > each.last_ts:
            raise _BadAnswerError("its changes are of another time")
        return found

    @contextmanager
    def _explained(self, each: SegmentSlice) -> Iterator[None]:
        from pyarrow import flight

        trouble = f"cannot get changes of segment {each.layout.name} from the capture at {self.address}: "
        again = ". Nothing is lost: the batch is taken back and begun again."
        try:
            yield
        except flight.FlightServerError as error:
            if error.extra_info == CORRUPT:
                raise SegmentCorruptError(_said(error)) from error
            if error.extra_info == RELEASED:
                raise EngineError(f"{trouble}it was released, since the batch is over. Nothing is lost.") from error
            raise EngineError(f"{trouble}it says that {_said(error)}{again}") from error
        except flight.FlightUnauthenticatedError as error:
            raise EngineError(
                f"{trouble}it does not accept the token, so it is another process by now{again}"
            ) from error
        except flight.FlightTimedOutError as error:
            raise EngineError(f"{trouble}it does not answer in time{again}") from error
        except flight.FlightUnavailableError as error:
            raise EngineError(
                f"{trouble}this worker cannot reach it, or it has another certificate. See that spark.driver.host is "
                f"an address that workers reach, and that no firewall closes the port{again}"
            ) from error
        except (_BadAnswerError, pa.ArrowException, struct.error, StopIteration, OSError) as error:
            reason = "it ends too early" if isinstance(error, StopIteration) else _said(error)
            raise EngineError(f"{trouble}the answer cannot be used: {reason}{again}") from error


class _BadAnswerError(Exception):
    pass


class _Fetched:
    """What was received so far, in a file that nobody else can open and that goes with this object."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._file, name = tempfile.mkstemp(prefix="tidemill-", dir=_scratch())
        weakref.finalize(self, os.close, self._file)
        os.unlink(name)
        os.ftruncate(self._file, layout.file_bytes)  # places that stay empty take no room
        self.batches = self.rows = 0
        self._filled = [0] * len(BINARY_COLUMNS)

    def add(self, batch: pa.RecordBatch, most_rows: int, most_bytes: list[int]) -> None:
        if self.rows + len(batch) > most_rows:
            raise _BadAnswerError("it has more rows than it tells")
        fixed, binary = batch.columns[: len(self._layout.fixed)], batch.columns[len(self._layout.fixed) :]
        for at, column in zip(self._layout.fixed, fixed, strict=True):
            self._write(at + self.rows * column.type.bit_width // 8, values_of(column))
        for i, column in enumerate(binary):
            offsets = offsets_of(column)
            data = data_of(column)
            if self._filled[i] + data.size > most_bytes[i]:
                raise _BadAnswerError("it has more bytes than it tells")
            ends = offsets[1:] - offsets[0] + self._filled[i]
            self._write(self._layout.offsets[i] + 4 * (self.rows + 1), ends.astype("int32").data)
            self._write(self._layout.data[i] + self._filled[i], data)
            self._filled[i] += data.size
        self.batches += 1
        self.rows += len(batch)

    def map(self) -> pa.Buffer:
        """See ``Body``."""
        return pa.py_buffer(mmap.mmap(self._file, self._layout.file_bytes, prot=mmap.PROT_READ))

    def _write(self, at: int, data: Any) -> None:
        left = memoryview(data).cast("B")
        while len(left):
            written = os.pwrite(self._file, left, at)
            left, at = left[written:], at + written


@lru_cache(maxsize=8)
def _client(process: int, supply: SegmentSupply) -> "flight.FlightClient":
    """One per process and changefeed; a connection is made when it is first used, and again when it was lost."""
    from pyarrow import flight

    return flight.FlightClient(
        f"grpc+tls://{supply.address}",
        tls_root_certs=supply.certificate,
        override_hostname=SERVER_NAME,
        generic_options=list(_OPTIONS),
    )


def _metadata(chunk: Any) -> bytes:
    if chunk.app_metadata is None:
        raise _BadAnswerError("a message of it has no metadata")
    found: bytes = chunk.app_metadata.to_pybytes()
    return found


def _scratch() -> str | None:
    """A folder of this executor's, if Spark names one."""
    return next((each for each in os.environ.get(_SCRATCH, "").split(",") if os.path.isdir(each)), None)


def _said(error: Exception) -> str:
    """The sentence of an error of Flight, which is followed by what gRPC has to say."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    said = said.partition(". Detail:")[0].partition(". gRPC client debug")[0]
    return " ".join(said.split()) or type(error).__name__
