"""What a message consists of, written down once per table and run for every row.

    builder = ProgramBuilder()
    with the steps of each kind of change: builder.literal(...), builder.cell(...), …
    program = builder.build()
    run(program, rows, columns, …) ──► Encoded

``run`` is the only caller of the compiled loop. It computes how large the output can become, so
the loop needs no check while it writes. Runs on executors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar import assembler
from tidemill.columnar.assembler import Kind, Step
from tidemill.columnar.encoded import Encoded
from tidemill.errors import InvariantError
from tidemill.model.row import RowBatch, RowOp

_MAX_DIGITS = 20  # of a 64-bit number, sign included
NEW, OLD = 0, 1  # the two images


@dataclass(frozen=True, slots=True)
class SqlType:
    """A member of canal-json's ``sqlType``: another code where an unsigned value exceeds ``limit`` (0: never)."""

    column: int
    member: bytes
    limit: int
    promoted_member: bytes


@dataclass(frozen=True, slots=True)
class Program:
    steps: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]  # steps of RowOp op: starts[op - 1]:starts[op]
    literals: npt.NDArray[np.uint8]
    sql_types: npt.NDArray[np.int64]
    delimiter_length: int
    fixed_bytes: tuple[int, int, int]  # by kind of change: at most so many besides column values
    uses: npt.NDArray[np.int64]  # by kind of change, image and column: how often a value is written


@dataclass(slots=True)
class ProgramBuilder:
    """Collects the steps for inserts, updates and deletes, in this order; ``end_change`` closes each."""

    delimiter: bytes = b""  # for values of Kind.BACKSLASH
    _literals: bytearray = field(default_factory=bytearray)
    _known: dict[bytes, int] = field(default_factory=dict)
    _steps: list[list[int]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])
    _sql_types: list[list[int]] = field(default_factory=list)
    _fixed: list[int] = field(default_factory=list)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._literals += self.delimiter

    def literal(self, text: bytes) -> None:
        """``text`` as it is. Neighbouring literals are joined into one."""
        if self._steps and self._steps[-1][0] == Step.LITERAL and self._starts[-1] < len(self._steps):
            _, offset, length = self._steps.pop()[:3]
            self._bytes -= length
            text = bytes(self._literals[offset : offset + length]) + text
        self._add(Step.LITERAL, *self._place(text))
        self._bytes += len(text)

    def cell(self, column: int, image: int, before: bytes, null: bytes, *, only_if_changed: bool = False) -> None:
        """A column's value after ``before``; where it is null, ``null`` instead of both.

        With ``only_if_changed`` the cell is left out where both images are equal, and those that
        are written since the last literal are separated by commas.
        """
        step = Step.CHANGED_CELL if only_if_changed else Step.CELL
        self._add(step, column, image, *self._place(before), *self._place(null))
        self._bytes += max(len(before) + 2, len(null)) + 1

    def commit_ts(self) -> None:
        self._add(Step.COMMIT_TS)
        self._bytes += _MAX_DIGITS

    def commit_ms(self) -> None:
        self._add(Step.COMMIT_MS)
        self._bytes += _MAX_DIGITS

    def built_ms(self) -> None:
        self._add(Step.BUILT_MS)
        self._bytes += _MAX_DIGITS

    def sql_types(self, image: int, members: Sequence[SqlType]) -> None:
        """The members of ``sqlType`` with commas between them."""
        first = len(self._sql_types)
        for m in members:
            self._sql_types.append([m.column, m.limit, *self._place(m.member), *self._place(m.promoted_member)])
        whole = self._place(b",".join(m.member for m in members))
        self._add(Step.SQL_TYPES, image, *whole, first, len(self._sql_types))
        self._bytes += sum(max(len(m.member), len(m.promoted_member)) + 1 for m in members)

    def end_change(self) -> None:
        self._starts.append(len(self._steps))
        self._fixed.append(self._bytes)
        self._bytes = 0

    def build(self) -> Program:
        inserts, updates, deletes = self._fixed
        steps = np.array([step + [0] * (assembler.STEP_FIELDS - len(step)) for step in self._steps], dtype=np.int64)
        columns = 1 + max((s[1] for s in self._steps if s[0] in (Step.CELL, Step.CHANGED_CELL)), default=0)
        uses = np.zeros((3, 2, columns), dtype=np.int64)
        for op in RowOp:
            for step in self._steps[self._starts[op - 1] : self._starts[op]]:
                if step[0] in (Step.CELL, Step.CHANGED_CELL):
                    uses[op - 1, step[2], step[1]] += 1
        return Program(
            steps=steps.reshape(-1, assembler.STEP_FIELDS),
            starts=np.array(self._starts, dtype=np.int64),
            literals=np.frombuffer(bytes(self._literals) + bytes(assembler.SLACK), dtype=np.uint8),
            sql_types=np.array(self._sql_types, dtype=np.int64).reshape(-1, assembler.SQL_TYPE_FIELDS),
            delimiter_length=len(self.delimiter),
            fixed_bytes=(inserts, updates, deletes),
            uses=uses,
        )

    def _add(self, step: Step, *args: int) -> None:
        self._steps.append([int(step), *args])

    def _place(self, text: bytes) -> tuple[int, int]:
        at = self._known.get(text)
        if at is None:
            at = self._known[text] = len(self._literals)
            self._literals += text
        return at, len(text)


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column ready to be written: its values, how to write them, and what closes them."""

    values: pa.Array
    kind: Kind
    quote: int = 0  # a byte, or two with the first in the low bits; 0: none


def run(
    program: Program,
    rows: RowBatch,
    prepare: Callable[[int, pa.Array], TextColumn],
    built_ms: int = 0,
) -> Encoded:
    """The messages of all changes. ``prepare`` turns a column, by its place, into the form that is written."""
    changes = len(rows)
    ends = np.empty(changes, dtype=np.int64)
    if changes == 0:
        return Encoded(pa.py_buffer(b""), ends, rows.commit_ts)
    ops = np.ascontiguousarray(rows.op)
    commit_ts = np.ascontiguousarray(rows.commit_ts)
    counts = np.bincount(ops, minlength=4)[1:]
    images = (rows.new, rows.old)
    _check(changes, counts, images)
    width = program.uses.shape[2]
    columns = np.zeros((2, width, assembler.COLUMN_FIELDS), dtype=np.int64)
    keep: list[TextColumn] = []  # the buffers whose addresses are in use
    room = int(np.dot(counts, program.fixed_bytes))
    used = (program.uses * (counts[:, None, None] > 0)).max(axis=0)
    for image, place in zip(*np.nonzero(used), strict=True):
        column = prepare(int(place), images[image].column(int(place)))
        room += int(used[image, place]) * _describe(column, columns[image, place])
        keep.append(column)
    output = np.empty(room + assembler.SLACK, dtype=np.uint8)
    written = assembler.assemble(
        ops.ctypes.data,
        commit_ts.ctypes.data,
        changes,
        program.steps.ctypes.data,
        program.starts,
        columns.ctypes.data,
        width,
        program.sql_types.ctypes.data,
        program.literals.ctypes.data,
        program.delimiter_length,
        built_ms,
        output.ctypes.data,
        ends,
    )
    del keep
    if written > room:
        raise InvariantError(f"messages of {written} bytes were written where {room} were expected. This is a bug.")
    return Encoded(pa.py_buffer(output[:written]), ends, commit_ts)


def _check(changes: int, counts: npt.NDArray[np.int64], images: tuple[pa.RecordBatch, pa.RecordBatch]) -> None:
    inserts, updates, deletes = (int(n) for n in counts[:3])
    expected = (changes, inserts + updates, updates + deletes)
    if len(counts) != 3 or expected != (inserts + updates + deletes, images[NEW].num_rows, images[OLD].num_rows):
        raise InvariantError(
            f"a row batch of {changes} changes, {inserts} inserts, {updates} updates and {deletes} deletes has "
            f"{images[NEW].num_rows} new and {images[OLD].num_rows} old rows. This is a bug of the mounter; report it."
        )


def _describe(column: TextColumn, descriptor: npt.NDArray[np.int64]) -> int:
    """Fill in where a column's values lie; returns how many bytes they take at most once written."""
    values, kind = column.values, column.kind
    if not len(values):
        return 0
    buffers = values.buffers()
    if values.null_count:
        descriptor[assembler.VALIDITY] = buffers[0].address
        descriptor[assembler.FIRST_BIT] = values.offset
    descriptor[assembler.QUOTE] = column.quote
    if kind in (Kind.INT, Kind.UINT):
        descriptor[assembler.KIND] = kind
        descriptor[assembler.DATA] = buffers[1].address + 8 * values.offset
        return _MAX_DIGITS * len(values)
    offsets = buffers[1].address + 4 * values.offset
    data = buffers[2].address if buffers[2] is not None else 0
    descriptor[assembler.DATA], descriptor[assembler.OFFSETS] = data, offsets
    size = _size(values)
    kind, room = _measure(kind, data, offsets, len(values), size, column.quote)
    descriptor[assembler.KIND] = kind
    return room


def _size(values: pa.Array) -> int:
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)
    return int(offsets[values.offset + len(values)]) - int(offsets[values.offset])


def _measure(kind: Kind, data: int, offsets: int, rows: int, size: int, quote: int) -> tuple[Kind, int]:
    """The bytes a column takes at most, and the cheapest kind that writes it: RAW where nothing is to be escaped."""
    if kind is Kind.JSON_TEXT:
        growth = assembler.json_text_growth(data, offsets, rows)
    elif kind is Kind.JSON_LATIN1:
        growth = assembler.json_latin1_growth(data, offsets, rows)
    elif kind is Kind.DOUBLED:
        growth = assembler.count_byte(data, offsets, rows, quote)
    elif kind is Kind.BASE64:
        return kind, (size // 3 + rows) * 4
    elif kind is Kind.RAW:
        return kind, size
    else:
        return kind, 2 * size  # every byte may take a backslash, or two hex digits
    return (kind, size + growth) if growth else (Kind.RAW, size)
