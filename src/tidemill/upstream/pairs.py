"""Answers to KvScan read in bulk: protobuf bytes in, Arrow arrays of keys and values out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill._pb import errorpb_pb2, kvrpcpb_pb2
from tidemill.columnar.jit import i64, kernel
from tidemill.errors import ProtocolViolationError
from tidemill.upstream.feed.kernels import copy
from tidemill.upstream.feed.wire import field

PAIR_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])


@dataclass(frozen=True, slots=True)
class ScanAnswer:
    """Either an error, decoded, or the pairs as a batch."""

    troubled: kvrpcpb_pb2.ScanResponse | None
    pairs: pa.RecordBatch

    @property
    def region_error(self) -> errorpb_pb2.Error:
        return self.troubled.region_error if self.troubled is not None else errorpb_pb2.Error()

    def HasField(self, name: Any) -> bool:
        return self.troubled is not None and self.troubled.HasField(name)

    def locks(self) -> list[kvrpcpb_pb2.LockInfo]:
        """The locks in the way; any other error of a key is raised."""
        if self.troubled is None:
            return []
        errors = [pair.error for pair in self.troubled.pairs if pair.HasField("error")]
        if self.troubled.HasField("error"):
            errors.append(self.troubled.error)
        return [locked_by(error) for error in errors]


def locked_by(error: kvrpcpb_pb2.KeyError) -> kvrpcpb_pb2.LockInfo:
    if not error.HasField("locked"):
        names = ", ".join(field.name for field, _ in error.ListFields())
        raise ProtocolViolationError(f"TiKV refuses a read with {names or 'an empty error'}. Check the store's log.")
    return error.locked


def read_scan(body: bytes) -> ScanAnswer:
    """Read an answer; bytes that are none raise ``ProtocolViolationError``.

    A gRPC message ends at 2 GiB, and so do Arrow's offsets: an answer always fits into one batch.
    """
    buffer = np.frombuffer(body, dtype=np.uint8)
    count = int(_count_pairs(buffer))
    places = np.zeros((max(count, 0), 4), dtype=np.int64)
    if count < 0 or _find_pairs(buffer, places) != count:
        return _read_closely(body)
    columns = [_column(buffer, places, 0), _column(buffer, places, 2)]
    return ScanAnswer(None, pa.RecordBatch.from_arrays(columns, schema=PAIR_SCHEMA))


def _read_closely(body: bytes) -> ScanAnswer:
    """An answer with errors in it, or one that only the protobuf library can read, if any can."""
    try:
        answer = kvrpcpb_pb2.ScanResponse.FromString(body)
    except Exception as broken:  # the protobuf library's DecodeError, under either of its backends
        raise ProtocolViolationError(f"TiKV answered KvScan with bytes that are no answer: {broken}") from broken
    if answer.HasField("region_error") or answer.HasField("error") or any(p.HasField("error") for p in answer.pairs):
        return ScanAnswer(answer, _EMPTY)
    columns = [pa.array(values, pa.binary()) for values in zip(*((p.key, p.value) for p in answer.pairs), strict=True)]
    return ScanAnswer(None, pa.RecordBatch.from_arrays(columns, schema=PAIR_SCHEMA) if columns else _EMPTY)


_EMPTY = pa.RecordBatch.from_arrays([pa.array([], pa.binary()), pa.array([], pa.binary())], schema=PAIR_SCHEMA)


def _column(buffer: Any, places: Any, which: int) -> pa.Array:
    n = len(places)
    offsets = np.empty(n + 1, dtype=np.int32)
    data = np.empty(int(places[:, which + 1].sum()), dtype=np.uint8)
    _gather(buffer, places, which, offsets, data)
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


@kernel
def _count_pairs(buf: Any) -> Any:
    at, end, count = i64(0), i64(len(buf)), 0
    while at < end:
        tag, _, _, stop = field(buf, at, end)
        if stop < 0:
            return -1
        count += tag == 18
        at = stop
    return count


@kernel
def _find_pairs(buf: Any, places: Any) -> Any:
    """Write down where keys and values lie, and return how many there are.

    -1 if there is an error, more pairs than ``places`` has room for, or anything else that wants a closer look.
    """
    at, end, count = i64(0), i64(len(buf)), 0
    while at < end:
        tag, _, inner, stop = field(buf, at, end)
        if stop < 0 or tag == 10 or tag == 26:  # region_error, error
            return -1
        if tag == 18:
            if count == len(places):
                return -1
            while inner < stop:
                kind, _, start, after = field(buf, inner, stop)
                if after < 0 or kind == 10:  # KvPair.error
                    return -1
                if kind == 18:
                    places[count, 0], places[count, 1] = start, after - start
                elif kind == 26:
                    places[count, 2], places[count, 3] = start, after - start
                inner = after
            count += 1
        at = stop
    return count


@kernel
def _gather(buf: Any, places: Any, which: int, offsets: Any, data: Any) -> None:
    to = i64(0)
    offsets[0] = 0
    for i in range(len(places)):
        copy(buf, places[i, which], data, to, places[i, which + 1])
        to += places[i, which + 1]
        offsets[i + 1] = to
