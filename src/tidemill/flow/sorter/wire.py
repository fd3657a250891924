"""What an executor and the capture say to each other about rows of a segment.

    ticket ──►          which rows, of which segment, of which keys
             ◄──        bounds: no more rows and bytes than that will come
             ◄──        batches of rows, each with its checksum
             ◄──        total: so many batches and rows there were

Each message is a record batch with these few bytes as its metadata; bounds and total come with an empty one.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from tidemill.flow.sorter.slices import KeyRange

AUTHORIZATION: Final = "authorization"
SCHEME: Final = "Bearer "
BOUNDS: Final = struct.Struct("<4Q")  # rows, and bytes of each of BINARY_COLUMNS
CHECKSUM: Final = struct.Struct("<I")
TOTAL: Final = struct.Struct("<2Q")  # batches and rows
RELEASED: Final = b"released"  # why there are none: marks of errors
CORRUPT: Final = b"corrupt"
_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Ticket:
    """Rows ``[row_low, row_high)`` of a segment, or those of them with keys in a range."""

    segment: bytes  # its identity
    name: str  # for people
    row_low: int
    row_high: int
    keys: KeyRange | None = None

    def write(self) -> bytes:
        keys = self.keys and [self.keys.low.hex(), None if self.keys.high is None else self.keys.high.hex()]
        return orjson.dumps([self.segment.decode(), self.name, self.row_low, self.row_high, keys])

    @classmethod
    def read(cls, text: bytes) -> "Ticket":
        """Of whoever asks: ValueError where it is none."""
        try:
            segment, name, low, high, keys = orjson.loads(text)
            if keys is not None:
                first, last = keys
                keys = KeyRange(bytes.fromhex(first), None if last is None else bytes.fromhex(last))
            ticket = cls(segment.encode(), name[:_NAME_LENGTH], low, high, keys)
        except (TypeError, AttributeError) as error:
            raise ValueError("not a ticket") from error
        if not (type(low) is int and type(high) is int and 0 <= low < high and isinstance(name, str)):
            raise ValueError("not a ticket")
        return ticket


def checksum(batch: pa.RecordBatch) -> int:
    """CRC-32 of the rows, wherever in larger buffers they lie."""
    crc = 0
    for column in batch.columns:
        if column.type == pa.binary():
            offsets = offsets_of(column)
            crc = zlib.crc32((offsets - offsets[0]).data, crc)
            crc = zlib.crc32(data_of(column), crc)
        else:
            crc = zlib.crc32(values_of(column), crc)
    return crc


def values_of(column: pa.Array) -> pa.Buffer:
    """Of a column of fixed width."""
    width = column.type.bit_width // 8
    return column.buffers()[1].slice(column.offset * width, len(column) * width)


def offsets_of(column: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def data_of(column: pa.Array) -> pa.Buffer:
    """The bytes of all values of a binary column, one after the other."""
    low, high = (int(end) for end in offsets_of(column)[[0, -1]])
    data = column.buffers()[2]
    return data.slice(low, high - low) if data is not None else pa.py_buffer(b"")
