"""One column of a batch while it is being decoded: blocks of cells in, an Arrow array out.

Outputs are allocated before the kernels run, values in the form that Arrow keeps them: fixed-width
values in one buffer, text as end offsets and bytes. Validity is kept only from the first null on.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.floats import powers_of_ten
from tidemill.columnar.jit import Bytes, Ints, u64
from tidemill.errors import InvariantError
from tidemill.flow.mounter import checksums, documents, handles, legacy, numbers, split, strings, times
from tidemill.flow.mounter.defaults import Fill, fill_of
from tidemill.flow.mounter.outcomes import OK, failure
from tidemill.flow.mounter.zones import Zone
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType

SET_BEYOND_ELEMENTS = 112
BAD_DEFAULT = 113

REASONS: dict[int, str] = {
    **split.REASONS,
    **numbers.REASONS,
    **strings.REASONS,
    **times.REASONS,
    **documents.REASONS,
    **handles.REASONS,
    **legacy.REASONS,
    **checksums.REASONS,
    SET_BEYOND_ELEMENTS: "the set has a member beyond its list of elements",
    BAD_DEFAULT: "the row has no value for it, and its original default is none of its type",
}

_ARROW_LIMIT = (1 << 31) - 1
_NO_BYTES = np.empty(0, np.uint8)


class ColumnBuilder(ABC):
    """Base of the builders: nulls, fills, and the Arrow array at the end."""

    def __init__(self, column: ColumnInfo, rows: int, zone: Zone) -> None:
        self.column = column
        self.zone = zone
        self._rows = rows
        self._valid = _NO_BYTES
        self._nulls = 0

    def add(
        self, data: Bytes, start: Ints, length: Ints, at: int, count: int, size: int, null: int, missing: int
    ) -> int:
        """Decode ``count`` cells as rows ``at`` on; ``OK`` or a failure counted from the block's first row.

        ``size`` is the sum of the lengths; ``null`` and ``missing`` say how many cells are that.
        """
        fill: Fill = None
        if missing:
            try:
                fill = fill_of(self.column, self.zone.name)
            except ValueError:
                return failure(int(np.flatnonzero(length[:count] == -2)[0]), BAD_DEFAULT)
        absent = null + (missing if fill is None else 0)
        if absent and not len(self._valid):
            self._valid = np.ones(self._rows, np.uint8)
        self._nulls += absent
        return self._add(
            data, start, length, at, count, size + (missing * len(fill) if isinstance(fill, bytes) else 0), fill
        )

    def finish(self, kind: pa.DataType) -> pa.Array:
        bitmap = pa.py_buffer(np.packbits(self._valid, bitorder="little")) if self._nulls else None
        return pa.Array.from_buffers(kind, self._rows, [bitmap, *self._buffers()], null_count=self._nulls)

    @abstractmethod
    def _add(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, size: int, fill: Fill) -> int: ...

    @abstractmethod
    def _buffers(self) -> list[pa.Buffer]: ...


class IntegerBuilder(ColumnBuilder):
    """Integers, YEAR, BIT, ENUM and SET."""

    def __init__(self, column: ColumnInfo, rows: int, zone: Zone) -> None:
        super().__init__(column, rows, zone)
        self._out = np.empty(rows, np.uint64)
        self._is_signed = column.type is ColumnType.YEAR or (column.type in INTEGER_TYPES and not column.is_unsigned)

    def _add(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, size: int, fill: Fill) -> int:
        value = u64(int(fill or 0) & 0xFFFFFFFFFFFFFFFF)
        failed = numbers.read_integers(
            data, start, length, count, self._is_signed, value, fill is not None, self._out, self._valid, at
        )
        if failed == OK and self.column.type in (ColumnType.ENUM, ColumnType.SET):
            return self._check_elements(self._out[at : at + count])
        return failed

    def _check_elements(self, part: npt.NDArray[np.uint64]) -> int:
        elements = len(self.column.elems)
        if self.column.type is ColumnType.ENUM:
            part[part > elements] = 0  # as TiDB reads it: the empty element
        elif elements < 64:
            beyond = np.flatnonzero(part >> np.uint64(elements))
            if len(beyond):
                return failure(int(beyond[0]), SET_BEYOND_ELEMENTS)
        return OK

    def take(self, values: npt.NDArray[np.uint64], at: int) -> None:
        """Rows ``at`` on, already decoded: integer handles."""
        self._out[at : at + len(values)] = values

    def _buffers(self) -> list[pa.Buffer]:
        return [pa.py_buffer(self._out)]


class FloatBuilder(ColumnBuilder):
    def __init__(self, column: ColumnInfo, rows: int, zone: Zone) -> None:
        super().__init__(column, rows, zone)
        self._out = np.empty(rows, np.float64)
        self._is_single = column.type is ColumnType.FLOAT

    def _add(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, size: int, fill: Fill) -> int:
        return numbers.read_floats(
            data, start, length, count, self._is_single, float(fill or 0), fill is not None, self._out, self._valid, at
        )

    def _buffers(self) -> list[pa.Buffer]:
        return [pa.py_buffer(self._out.astype(np.float32) if self._is_single else self._out)]


class TextBuilder(ColumnBuilder):
    """Base of all that Arrow keeps as offsets and bytes; by itself: strings and bytes as they are."""

    growth: ClassVar[int] = 1  # bytes of text per byte of a cell, at most
    longest: ClassVar[int] = 0  # and per cell

    def __init__(self, column: ColumnInfo, rows: int, zone: Zone) -> None:
        super().__init__(column, rows, zone)
        self._offsets = np.empty(rows + 1, np.int32)
        self._offsets[0] = 0
        self._ends = self._offsets[1:]
        self._out = _NO_BYTES
        self._used = np.zeros(1, np.int64)

    def _add(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, size: int, fill: Fill) -> int:
        self._make_room(self.growth * size + self.longest * count, at, count)
        text = np.frombuffer(fill, np.uint8) if isinstance(fill, bytes) and fill else _NO_BYTES
        return self._write(data, start, length, at, count, text, fill is not None)

    def _write(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, text: Bytes, is_filled: bool) -> int:
        begin = int(self._used[0])
        failed = strings.gather(
            data, start, length, count, text, is_filled, self._out, self._ends, self._valid, at, self._used
        )
        if failed != OK or self.column.is_binary:
            return failed
        failed = strings.check_text(self._out, begin, self._ends, at, count)
        if failed != OK and self.column.charset == "latin1":
            self._from_latin1(begin, at, count)
            return OK
        return failed

    def _from_latin1(self, begin: int, at: int, count: int) -> None:
        size = int(self._used[0]) - begin
        target = np.empty(3 * size, np.uint8)
        upper = strings.LATIN1_UPPER
        converted = strings.latin1_to_utf8(self._out, begin, self._ends, at, count, upper, target)
        self._used[0] = begin
        self._make_room(converted, at, count)
        self._out[begin : begin + converted] = target[:converted]
        self._used[0] = begin + converted

    def _make_room(self, size: int, at: int, count: int) -> None:
        """See to it that the next block of ``count`` rows, ``size`` bytes at most, finds room."""
        used = int(self._used[0])
        if used + size <= len(self._out):
            return
        if used > _ARROW_LIMIT:
            raise self._too_much_text()
        # Where the blocks before (or an exact size) tell how long the text is, make room for all the rest like
        # them; beyond that for a block at its worst, so that the last blocks need not grow again.
        is_exact = self.growth == 1 and not self.longest
        done, length = (at, used) if at else (count, size if is_exact else 0)
        expected = length * (self._rows - at) // done * 17 // 16
        grown = np.empty(used + (max(expected, size) if is_exact else expected + size), np.uint8)
        grown[:used] = self._out[:used]
        self._out = grown

    def _too_much_text(self) -> InvariantError:
        return InvariantError(
            f"column {self.column.name!r} of one batch has more than 2 GiB of text; take fewer changes into a batch"
        )

    def _buffers(self) -> list[pa.Buffer]:
        used = int(self._used[0])
        if used > _ARROW_LIMIT:
            raise self._too_much_text()
        return [pa.py_buffer(self._offsets), pa.py_buffer(self._out[:used])]


class DecimalBuilder(TextBuilder):
    longest = numbers.LONGEST_DECIMAL

    def _write(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, text: Bytes, is_filled: bool) -> int:
        return numbers.write_decimals(
            data, start, length, count, text, is_filled, self._out, self._ends, self._valid, at, self._used
        )


class TimeBuilder(TextBuilder):
    longest = times.LONGEST_TIME

    def _write(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, text: Bytes, is_filled: bool) -> int:
        kind = self.column.type
        return times.write_times(
            data,
            start,
            length,
            count,
            kind in (ColumnType.DATE, ColumnType.NEWDATE),
            kind is ColumnType.TIMESTAMP,
            fraction_digits(self.column),
            self.zone.since,
            self.zone.offset,
            text,
            is_filled,
            self._out,
            self._ends,
            self._valid,
            at,
            self._used,
        )


class DurationBuilder(TextBuilder):
    longest = times.LONGEST_DURATION

    def _write(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, text: Bytes, is_filled: bool) -> int:
        digits = fraction_digits(self.column)
        return times.write_durations(
            data, start, length, count, digits, text, is_filled, self._out, self._ends, self._valid, at, self._used
        )


class JsonBuilder(TextBuilder):
    growth = documents.JSON_GROWTH
    longest = documents.JSON_SPARE

    def _write(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, text: Bytes, is_filled: bool) -> int:
        powers = powers_of_ten()
        return documents.write_documents(
            data, start, length, count, powers, text, is_filled, self._out, self._ends, self._valid, at, self._used
        )


class VectorBuilder(TextBuilder):
    growth = documents.VECTOR_GROWTH
    longest = 2

    def _write(self, data: Bytes, start: Ints, length: Ints, at: int, count: int, text: Bytes, is_filled: bool) -> int:
        powers = powers_of_ten()
        return documents.write_vectors(
            data, start, length, count, powers, text, is_filled, self._out, self._ends, self._valid, at, self._used
        )


def builder_for(column: ColumnInfo, rows: int, zone: Zone) -> ColumnBuilder:
    kind = column.type
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return FloatBuilder(column, rows, zone)
    if kind in STRING_TYPES:
        return TextBuilder(column, rows, zone)
    if kind in TIME_TYPES:
        return TimeBuilder(column, rows, zone)
    match kind:
        case ColumnType.NEWDECIMAL:
            return DecimalBuilder(column, rows, zone)
        case ColumnType.DURATION:
            return DurationBuilder(column, rows, zone)
        case ColumnType.JSON:
            return JsonBuilder(column, rows, zone)
        case ColumnType.VECTOR:
            return VectorBuilder(column, rows, zone)
        case _:
            return IntegerBuilder(column, rows, zone)


def fraction_digits(column: ColumnInfo) -> int:
    """Digits behind the second; TiDB writes -1 where the definition gives none."""
    return min(max(column.decimal, 0), 6)
