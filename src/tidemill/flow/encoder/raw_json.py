"""rawkv-json: one JSON line per change of a key, for files; in queues they are messages (``raw_queue``).

    {"key":"azE=","value":"djE=","ts":445644800000000006,"op":"put","expiry":1700000100}
    {"key":"azE=","ts":445644800000000009,"op":"delete"}

Keys and values are base64. ``expiry`` is in Unix seconds, and left out where the value never ends. Runs on executors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.errors import UsageError
from tidemill.flow.encoder.port import Option
from tidemill.flow.rawkv import is_of_keys
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import TableInfo

_QUOTE = ord('"')
_KEY, _VALUE, _EXPIRY = range(3)  # columns of the table that a keyspace is


@dataclass(frozen=True, slots=True)
class RawJson:
    """The protocol, for files."""

    name: ClassVar = "rawkv-json"
    extension: ClassVar = ".json"
    is_positional: ClassVar = False
    options: ClassVar[Mapping[str, Option]] = {}

    @property
    def has_commit_ts(self) -> bool:
        return True

    def header(self, table: TableInfo, terminator: bytes) -> bytes:
        return b""

    def encoder(self, built_ms: int, terminator: bytes) -> "RawJsonEncoder":
        return RawJsonEncoder(terminator)


class RawJsonEncoder:
    def __init__(self, terminator: bytes) -> None:
        self._program = _program(terminator)

    def encode(self, rows: RowBatch) -> Encoded:
        if not is_of_keys(rows.table):
            raise UsageError(
                f"protocol {RawJson.name} is for keys and values, and {rows.table.full_name} is a table. "
                "Choose canal-json or csv."
            )
        return run(self._program, rows, _prepare)


def _prepare(place: int, values: pa.Array) -> TextColumn:
    if place != _EXPIRY:
        return TextColumn(values, Kind.BASE64, _QUOTE)
    return TextColumn(pc.if_else(pc.equal(values, 0), pa.scalar(None, pa.uint64()), values), Kind.UINT)


def _program(terminator: bytes) -> Program:
    builder = ProgramBuilder()
    for op in RowOp:
        is_delete = op is RowOp.DELETE
        builder.cell(_KEY, OLD if is_delete else NEW, b'{"key":"', b"")
        if not is_delete:
            builder.cell(_VALUE, NEW, b',"value":"', b"")
        builder.literal(b',"ts":')
        builder.commit_ts()
        builder.literal(b',"op":"delete"' if is_delete else b',"op":"put"')
        if not is_delete:
            builder.cell(_EXPIRY, NEW, b',"expiry":', b"")
        builder.literal(b"}" + terminator)
        builder.end_change()
    return builder.build()
