"""The frame of an Arrow IPC file around one record batch that is written piece by piece.

``pyarrow`` writes a record batch that lies in memory as a whole. A segment's columns are gathered while
they are written, so only what is around them is needed: it depends on nothing but the schema, the
number of rows and the sizes of the buffers. ``pyarrow`` makes it once, for an empty batch, and the
numbers are put in place; Arrow's format fixes where they are. The schema's own metadata names the file: one of the same
path on another host is another one.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from tidemill.model.change import RAW_CHANGE_SCHEMA

ALIGNMENT = 64
IDENTITY_BYTES = 32

_MAGIC = b"ARROW1\0\0"
_CONTINUES = b"\xff\xff\xff\xff"
_END_OF_STREAM = _CONTINUES + b"\0\0\0\0"
_IDENTITY = b"tidemill.segment"
_NOBODY = b"?" * IDENTITY_BYTES  # where the identity goes


@dataclass(frozen=True, slots=True)
class Frame:
    head: bytes  # before the body, which begins at a multiple of ALIGNMENT
    places: tuple[int, ...]  # where in the file each buffer begins; gaps between them are zeros
    body_bytes: int
    tail: bytes
    identity_at: int = 0  # in the file


def frame(rows: int, sizes: Sequence[int], identity: bytes = _NOBODY, columns: pa.Schema = RAW_CHANGE_SCHEMA) -> Frame:
    """The frame for a batch of changes.

    ``sizes`` are those of its buffers in Arrow's order: for each column offsets, if it has them, and data.
    ``identity``: of ``IDENTITY_BYTES``, no other file has it.
    """
    schema, message, footer = _template(columns)
    identity_at = len(_MAGIC) + schema.index(_NOBODY)
    schema, footer = schema.replace(_NOBODY, identity), footer.replace(_NOBODY, identity)
    places: list[int] = []
    body = 0
    for size in sizes:
        places.append(body)
        body += -(-size // ALIGNMENT) * ALIGNMENT
    message = _fill_message(message, columns, rows, sizes, places, body)
    before = len(_MAGIC) + len(schema)
    padding = -(before + 8 + len(message)) % ALIGNMENT
    message = _CONTINUES + struct.pack("<i", len(message) + padding) + message + bytes(padding)
    head = _MAGIC + schema + message
    block = struct.pack("<qi4xq", before, len(message), body)
    at = _vector(footer, _field(footer, _root(footer), 3))
    footer = footer[:at] + block + footer[at + len(block) :]
    tail = _END_OF_STREAM + footer + struct.pack("<i", len(footer)) + _MAGIC[:6]
    return Frame(head, tuple(len(head) + place for place in places), body, tail, identity_at)


def _fill_message(
    message: bytes, columns: pa.Schema, rows: int, sizes: Sequence[int], places: Sequence[int], body: int
) -> bytes:
    """Put the numbers of a batch into the template of its metadata (flatbuffers: Message and RecordBatch)."""
    filled = bytearray(message)
    top = _root(message)
    header = _follow(message, _field(message, top, 2))
    struct.pack_into("<q", filled, _field(message, top, 3), body)
    struct.pack_into("<q", filled, _field(message, header, 0), rows)
    nodes, buffers = (_vector(message, _field(message, header, slot)) for slot in (1, 2))
    rest = iter(zip(places, sizes, strict=True))
    for i, column in enumerate(columns):
        struct.pack_into("<qq", filled, nodes + 16 * i, rows, 0)
        struct.pack_into("<qq", filled, buffers, 0, 0)  # no validity bitmap
        buffers += 16
        for _ in range(2 if column.type == pa.binary() else 1):
            struct.pack_into("<qq", filled, buffers, *next(rest))
            buffers += 16
    return bytes(filled)


@lru_cache(maxsize=2)
def _template(columns: pa.Schema) -> tuple[bytes, bytes, bytes]:
    """A whole schema message, and the bare metadata of a record batch and of the footer."""
    sink = pa.BufferOutputStream()
    named = columns.with_metadata({_IDENTITY: _NOBODY})
    with pa.ipc.new_file(sink, named) as writer:
        # Of one row, since flatbuffers leave out numbers that are zero.
        row = [[b"x"] if column.type == pa.binary() else [1] for column in columns]
        writer.write_batch(pa.record_batch(row, schema=named))
    file = sink.getvalue().to_pybytes()
    schema_end = len(_MAGIC) + 8 + struct.unpack_from("<i", file, len(_MAGIC) + 4)[0]
    message_bytes = struct.unpack_from("<i", file, schema_end + 4)[0]
    footer_bytes = struct.unpack_from("<i", file, len(file) - 10)[0]
    message = file[schema_end + 8 : schema_end + 8 + message_bytes]
    return file[len(_MAGIC) : schema_end], message, file[-10 - footer_bytes : -10]


# Flatbuffers: a table begins with the distance back to the list of its fields' places.


def _root(buffer: bytes) -> int:
    return _follow(buffer, 0)


def _follow(buffer: bytes, at: int) -> int:
    target: int = at + struct.unpack_from("<I", buffer, at)[0]
    return target


def _field(buffer: bytes, table: int, slot: int) -> int:
    fields = table - struct.unpack_from("<i", buffer, table)[0]
    place: int = table + struct.unpack_from("<H", buffer, fields + 4 + 2 * slot)[0]
    return place


def _vector(buffer: bytes, field: int) -> int:
    """Where the first item of a vector of structs lies."""
    return _follow(buffer, field) + 4
