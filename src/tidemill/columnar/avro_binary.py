"""Avro's binary form of rows: a record's fields one after the other, written by one compiled loop.

    builder = RecordBuilder()
    with the steps of each kind of change: builder.literal(...), builder.cell(...), …
    run(builder.build(), rows, prepare) ──► Encoded

    long, int   zigzag varint         bytes, string   their length as a long, then themselves
    float       4 bytes               union           the branch's number as a long, then its value

As in ``program``, ``run`` computes how large the output can become, so the loop needs no check while it writes, and
``prepare`` turns columns into what is written. A change without steps has no message. Runs on executors.
"""

# Numba infers the types of what is below by itself; to mypy an element of an array is Any.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.addresses import copy_bytes, load_i32, load_i64, load_u8, load_u64, store_u8
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.jit import Longs, i64, kernel
from tidemill.errors import InvariantError
from tidemill.model.row import RowBatch, RowOp

NEW, OLD = 0, 1  # the two images
NO_UNION = -1  # the branch of a field that is none
_LONGEST = 10  # bytes of a varint


class Step(IntEnum):
    LITERAL = 0  # where it is, its length
    CELL = 1  # column, image, the union's branch for values (-1: no union), where what goes before them is, its length
    COMMIT_TS = 2
    COMMIT_MS = 3


class Kind(IntEnum):
    """How a column's values are written."""

    LONG = 0  # of int64
    BYTES = 1  # of strings and binaries
    FIXED4 = 2  # of float32
    FIXED8 = 3  # of float64


# Numba freezes module-level integers; an IntEnum member would be looked up at run time.
_LITERAL, _CELL, _COMMIT_TS, _COMMIT_MS = (int(step) for step in Step)
_LONG, _BYTES, _FIXED4, _FIXED8 = (int(kind) for kind in Kind)
_KIND, _DATA, _OFFSETS, _VALIDITY, _FIRST_BIT = range(5)
_COLUMN_FIELDS, _STEP_FIELDS = 5, 6


@dataclass(frozen=True, slots=True)
class Record:
    steps: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]  # steps of RowOp op: starts[op - 1]:starts[op]
    literals: npt.NDArray[np.uint8]
    fixed_bytes: tuple[int, int, int]  # by kind of change: at most so many besides the bytes of strings
    uses: npt.NDArray[np.bool_]  # by kind of change, image and column


@dataclass(slots=True)
class RecordBuilder:
    """Collects the steps for inserts, updates and deletes, in this order; ``end_change`` closes each."""

    _literals: bytearray = field(default_factory=bytearray)
    _steps: list[list[int]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])
    _fixed: list[int] = field(default_factory=list)
    _bytes: int = 0

    def literal(self, data: bytes) -> None:
        self._add(Step.LITERAL, len(self._literals), len(data))
        self._literals += data
        self._bytes += len(data)

    def cell(self, column: int, image: int, branch: int = NO_UNION, before: bytes = b"") -> None:
        """A column's value. ``branch``: that of values in a union with null, which is the first but for this one.
        ``before``: what a value begins with; there is none with null."""
        self._add(Step.CELL, column, image, branch, len(self._literals), len(before))
        self._literals += before
        self._bytes += 1 + _LONGEST + len(before)

    def commit_ts(self) -> None:
        self._add(Step.COMMIT_TS)
        self._bytes += _LONGEST

    def commit_ms(self) -> None:
        self._add(Step.COMMIT_MS)
        self._bytes += _LONGEST

    def end_change(self) -> None:
        self._starts.append(len(self._steps))
        self._fixed.append(self._bytes)
        self._bytes = 0

    def build(self) -> Record:
        inserts, updates, deletes = self._fixed
        columns = 1 + max((step[1] for step in self._steps if step[0] == Step.CELL), default=0)
        uses = np.zeros((3, 2, columns), dtype=np.bool_)
        for op in RowOp:
            for step in self._steps[self._starts[op - 1] : self._starts[op]]:
                if step[0] == Step.CELL:
                    uses[op - 1, step[2], step[1]] = True
        steps = np.array([step + [0] * (_STEP_FIELDS - len(step)) for step in self._steps], dtype=np.int64)
        return Record(
            steps.reshape(-1, _STEP_FIELDS),
            np.array(self._starts, dtype=np.int64),
            np.frombuffer(bytes(self._literals) + b"\0", dtype=np.uint8),
            (inserts, updates, deletes),
            uses,
        )

    def _add(self, step: Step, *args: int) -> None:
        self._steps.append([int(step), *args])


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    values: pa.Array
    kind: Kind


def run(record: Record, rows: RowBatch, prepare: Callable[[int, pa.Array], BinaryColumn]) -> Encoded:
    """The messages of all changes; ``prepare`` turns a column, by its place, into what is written."""
    changes = len(rows)
    ends = np.empty(changes, dtype=np.int64)
    if changes == 0:
        return Encoded(pa.py_buffer(b""), ends, rows.commit_ts)
    ops, commit_ts = np.ascontiguousarray(rows.op), np.ascontiguousarray(rows.commit_ts)
    counts = np.bincount(ops, minlength=4)[1:]
    images = (rows.new, rows.old)
    if images[NEW].num_rows != counts[0] + counts[1] or images[OLD].num_rows != counts[1] + counts[2]:
        raise InvariantError("a row batch has other images than changes. This is a bug of the mounter; report it.")
    width = record.uses.shape[2]
    columns = np.zeros((2, width, _COLUMN_FIELDS), dtype=np.int64)
    keep: list[BinaryColumn] = []  # the buffers whose addresses are in use
    room = int(np.dot(counts, record.fixed_bytes))
    used = record.uses[counts > 0].any(axis=0)
    for image, place in zip(*np.nonzero(used), strict=True):
        column = prepare(int(place), images[image].column(int(place)))
        _check_nulls(record, int(image), int(place), column)
        room += _describe(column, columns[image, place])
        keep.append(column)
    output = np.empty(room, dtype=np.uint8)
    written = _assemble(
        ops.ctypes.data,
        commit_ts.ctypes.data,
        changes,
        record.steps.ctypes.data,
        record.starts,
        columns.ctypes.data,
        width,
        record.literals.ctypes.data,
        output.ctypes.data,
        ends,
    )
    del keep
    if written > room:
        raise InvariantError(f"messages of {written} bytes were written where {room} were expected. This is a bug.")
    return Encoded(pa.py_buffer(output[:written]), ends, commit_ts)


def _check_nulls(record: Record, image: int, place: int, column: BinaryColumn) -> None:
    """A field that is no union has no place for null."""
    steps = record.steps
    plain = (steps[:, 0] == _CELL) & (steps[:, 1] == place) & (steps[:, 2] == image) & (steps[:, 3] == NO_UNION)
    if column.values.null_count and plain.any():
        raise InvariantError("a column that is NOT NULL holds a null. This is a bug of the mounter; report it.")


def _describe(column: BinaryColumn, descriptor: npt.NDArray[np.int64]) -> int:
    """Fill in where a column's values lie; returns how many bytes their strings have."""
    values = column.values
    if not len(values):
        return 0
    buffers = values.buffers()
    descriptor[_KIND] = column.kind
    if values.null_count:
        descriptor[_VALIDITY] = buffers[0].address
        descriptor[_FIRST_BIT] = values.offset
    if column.kind is not Kind.BYTES:
        size = 4 if column.kind is Kind.FIXED4 else 8
        descriptor[_DATA] = buffers[1].address + size * values.offset
        return 0
    descriptor[_OFFSETS] = buffers[1].address + 4 * values.offset
    descriptor[_DATA] = buffers[2].address if buffers[2] is not None else 0
    offsets = np.frombuffer(buffers[1], dtype=np.int32)
    return int(offsets[values.offset + len(values)]) - int(offsets[values.offset])


@kernel
def _put_long(to: int, value: int) -> int:
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest >= np.uint64(128):
        store_u8(to, np.int64(rest & np.uint64(127)) | 128)
        rest >>= np.uint64(7)
        to += 1
    store_u8(to, np.int64(rest))
    return to + 1


@kernel
def _put_value(to: int, column: int, row: int) -> int:
    kind, data = load_i64(column + 8 * _KIND), load_i64(column + 8 * _DATA)
    if kind == _LONG:
        return _put_long(to, load_i64(data + 8 * row))
    if kind == _FIXED4:
        copy_bytes(to, data + 4 * row, 4)
        return to + 4
    if kind == _FIXED8:
        copy_bytes(to, data + 8 * row, 8)
        return to + 8
    offsets = load_i64(column + 8 * _OFFSETS) + 4 * row
    at = data + load_i32(offsets)
    size = load_i32(offsets + 4) - load_i32(offsets)
    to = _put_long(to, size)
    copy_bytes(to, at, size)
    return to + size


@kernel
def _is_null(column: int, row: int) -> bool:
    bitmap = load_i64(column + 8 * _VALIDITY)
    if bitmap == 0:
        return False
    bit = load_i64(column + 8 * _FIRST_BIT) + row
    return ((load_u8(bitmap + (bit >> 3)) >> (bit & 7)) & 1) == 0


@kernel
def _assemble(
    ops: int,
    commit_ts: int,
    rows: int,
    steps: int,
    starts: Longs,
    columns: int,
    column_count: int,
    literals: int,
    output: int,
    ends: Longs,
) -> int:
    """Write the messages of ``rows`` changes to ``output``; returns the bytes written."""
    to = output
    new_row = old_row = 0
    for change in range(rows):
        op = load_u8(ops + change)
        for number in range(starts[op - 1], starts[op]):
            step = steps + 8 * _STEP_FIELDS * number
            what = load_i64(step)
            if what == _CELL:
                image, branch = load_i64(step + 16), load_i64(step + 24)
                column = columns + 8 * _COLUMN_FIELDS * (column_count * image + load_i64(step + 8))
                row = new_row if image == 0 else old_row
                if branch == -1:
                    to = _put_value(to, column, row)
                elif _is_null(column, row):
                    store_u8(to, 2 if branch == 0 else 0)
                    to += 1
                else:
                    store_u8(to, 2 * branch)
                    size = load_i64(step + 40)
                    if size > 0:
                        copy_bytes(to + 1, literals + load_i64(step + 32), size)
                    to = _put_value(to + 1 + size, column, row)
            elif what == _LITERAL:
                size = load_i64(step + 16)
                copy_bytes(to, literals + load_i64(step + 8), size)
                to += size
            elif what == _COMMIT_TS:
                to = _put_long(to, load_i64(commit_ts + 8 * change))
            else:
                to = _put_long(to, i64(load_u64(commit_ts + 8 * change) >> np.uint64(18)))
        new_row += 1 if op != 3 else 0
        old_row += 1 if op != 1 else 0
        ends[change] = to - output
    return to - output
