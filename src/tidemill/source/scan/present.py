"""Rows as typed Arrow columns for other systems: numbers, decimals, dates and times rather than TiDB's texts.

    TINYINT … BIGINT       int8 … int64; unsigned: the next wider, BIGINT UNSIGNED decimal(20, 0)
    DECIMAL(p, s)          decimal(p, s); beyond 38 digits string         FLOAT, DOUBLE   float, double
    DATE                   date32                                         YEAR            int32
    DATETIME               timestamp[us]                                  BIT             int64; BIT(64) decimal(20, 0)
    TIMESTAMP              timestamp[us, UTC]                             text            string
    TIME, JSON, VECTOR,    string, as TiDB shows them                     BINARY, BLOB    binary
    ENUM, SET

Dates that are none (0000-00-00, 2021-02-30) have no place in a typed column: ``Dates`` says what becomes of them.
Rows are presented in one form, that of ``table``, whichever form of the table they were written under: columns are
found by their id, or by name where a DDL has made a new column of one. A row from before a column was added has its
original default, as in TiDB; one from after it was dropped has null. Virtual generated columns are in no row and
are left out.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
import pyarrow as pa

from tidemill.errors import SchemaError, UsageError
from tidemill.flow.mounter.defaults import fill_of
from tidemill.model.row import RowBatch, RowOp, arrow_type
from tidemill.model.table import STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import show
from tidemill.source.scan.moments import days_of, micros_of

CHANGE_FIELDS = (
    pa.field("_op", pa.string()),
    pa.field("_commit_ts", pa.int64()),
    pa.field("_start_ts", pa.int64()),
)
_MOST_DIGITS = 38
_UNSIGNED = pa.decimal128(20, 0)
_OP_NAMES = pa.array([None, "insert", "update", "delete"])
_INTEGERS = {
    ColumnType.TINY: (pa.int8(), pa.int16()),
    ColumnType.SHORT: (pa.int16(), pa.int32()),
    ColumnType.INT24: (pa.int32(), pa.int32()),
    ColumnType.LONG: (pa.int32(), pa.int64()),
    ColumnType.LONGLONG: (pa.int64(), _UNSIGNED),
}


class Dates(Enum):
    """What becomes of dates that no calendar has."""

    ERROR = "error"  # the read fails and names the column
    NULL = "null"  # they are null
    TEXT = "text"  # DATE, DATETIME and TIMESTAMP columns are text, as TiDB shows them


def shown_type(column: ColumnInfo, dates: Dates) -> pa.DataType:
    kind = column.type
    if kind in _INTEGERS:
        return _INTEGERS[kind][column.is_unsigned]
    if kind is ColumnType.YEAR:
        return pa.int32()
    if kind is ColumnType.BIT:
        return _UNSIGNED if column.flen > 63 else pa.int64()
    if kind is ColumnType.NEWDECIMAL:
        return pa.decimal128(column.flen, max(column.decimal, 0)) if column.flen <= _MOST_DIGITS else pa.string()
    if kind in TIME_TYPES and dates is not Dates.TEXT:
        if kind in (ColumnType.DATE, ColumnType.NEWDATE):
            return pa.date32()
        return pa.timestamp("us", "UTC" if kind is ColumnType.TIMESTAMP else None)
    if kind in (ColumnType.ENUM, ColumnType.SET):
        return pa.string()
    return arrow_type(column)


class Presenter:
    """Presents rows in the form of ``table``, of which it takes ``columns`` (None: all). Small and picklable."""

    def __init__(
        self,
        table: TableInfo,
        columns: Sequence[str] | None = None,
        *,
        dates: Dates = Dates.ERROR,
        has_changes: bool = False,
        zone: str = "UTC",
    ) -> None:
        self.table = table
        self._columns = table.stored_columns if columns is None else _chosen(table, columns)
        self._has_all = columns is None
        self._dates = dates
        self._has_changes = has_changes
        self._zone = zone
        fields = [pa.field(column.name, shown_type(column, dates)) for column in self._columns]
        if has_changes:
            taken = {c.name.lower() for c in self._columns} & {f.name for f in CHANGE_FIELDS}
            if taken:
                raise UsageError(
                    f"table {table.full_name} has a column {min(taken)!r} of its own, and changes come with one of "
                    "that name. Leave the table's out with the option columns."
                )
            fields += CHANGE_FIELDS
        self.schema = pa.schema(fields)

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        return self._columns

    @property
    def chosen_names(self) -> frozenset[str] | None:
        """In small letters; None: all columns, whichever the table has."""
        return None if self._has_all else frozenset(c.name.lower() for c in self._columns)

    def type_of(self, column: ColumnInfo) -> pa.DataType:
        return shown_type(column, self._dates)

    def narrowed(self, table: TableInfo) -> TableInfo:
        """``table`` with no more columns than are needed to read it: those presented, and those of its keys."""
        wanted = {c.id for c in self._columns} | {c.id for c in table.primary_key}
        names = {c.name.lower() for c in self._columns}
        if self._has_changes:
            wanted |= {c.id for c in table.unique_key_columns}
        return table.with_columns([c for c in table.columns if c.id in wanted or c.name.lower() in names])

    def present(self, rows: RowBatch) -> pa.RecordBatch:
        images = _Images(rows)
        arrays = [
            self._column(rows, images, column, field.type)
            for column, field in zip(self._columns, self.schema, strict=False)
        ]
        if self._has_changes:
            arrays.append(_OP_NAMES.take(pa.array(rows.op)))
            arrays += [pa.array(stamps.astype(np.int64)) for stamps in (rows.commit_ts, rows.start_ts)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, rows: RowBatch, images: "_Images", column: ColumnInfo, kind: pa.DataType) -> pa.Array:
        source = same_column(rows.table, column)
        if source is None and rows.table.version_ts > self.table.version_ts:
            return pa.nulls(len(rows), kind)  # dropped meanwhile
        if source is None:
            return self._show(column, _filled(column, len(rows), self._zone), rows)
        shown = self._show(source, images.column(source), rows)
        return shown if shown.type == kind else _converted(shown, kind, source, rows)

    def _show(self, column: ColumnInfo, values: pa.Array, rows: RowBatch) -> pa.Array:
        """Values as they are mounted in the column's own shown type."""
        kind = column.type
        target = shown_type(column, self._dates)
        if kind is ColumnType.ENUM:
            return _elements(column).take(values)
        if kind is ColumnType.SET:
            return _sets(column, values)
        if kind in TIME_TYPES and self._dates is not Dates.TEXT:
            return self._moments(column, values, target, rows)
        if kind in STRING_TYPES or values.type == target:
            return values
        return values.cast(target)

    def _moments(self, column: ColumnInfo, values: pa.Array, target: pa.DataType, rows: RowBatch) -> pa.Array:
        numbers, is_none = days_of(values) if target == pa.date32() else micros_of(values)
        if is_none.any() and self._dates is Dates.ERROR:
            place = int(np.flatnonzero(is_none)[0])
            raise UsageError(
                f"column {column.name!r} of {rows.table.full_name} holds a date that no calendar has, such as "
                f"0000-00-00, in a row of commit-ts {int(rows.commit_ts[place])}. Set the option invalidDates to "
                "'null' to read those as null, or to 'text' to read dates as text."
            )
        bitmap = None
        if values.null_count or is_none.any():
            is_valid = ~is_none & values.is_valid().to_numpy(zero_copy_only=False)
            bitmap = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
        return pa.Array.from_buffers(target, len(values), [bitmap, pa.py_buffer(numbers)])


class _Images:
    """Of each change the row that it shows: the new one, or the old one of a delete."""

    def __init__(self, rows: RowBatch) -> None:
        self._rows = rows
        is_delete = rows.op == RowOp.DELETE
        self._order: pa.Array | None = None
        if is_delete.any():
            new = np.cumsum(~is_delete) - 1
            old = np.cumsum(rows.op != RowOp.INSERT) - 1
            self._order = pa.array(np.where(is_delete, len(rows.new) + old, new))

    def column(self, column: ColumnInfo) -> pa.Array:
        new = self._rows.new.column(column.name)
        if self._order is None:
            return new
        return pa.concat_arrays([new, self._rows.old.column(column.name)]).take(self._order)


def _chosen(table: TableInfo, names: Sequence[str]) -> tuple[ColumnInfo, ...]:
    known = {c.name.lower(): c for c in table.stored_columns}
    found = []
    for name in dict.fromkeys(n.lower() for n in names):
        if name not in known:
            is_virtual = any(c.name.lower() == name for c in table.columns)
            why = "it is a virtual generated column, which no row holds" if is_virtual else "there is none of this name"
            raise UsageError(
                f"cannot read column {name!r} of {table.full_name}: {why}. "
                f"There are: {', '.join(c.name for c in table.stored_columns)}."
            )
        found.append(known[name])
    return tuple(found)


def same_column(table: TableInfo, column: ColumnInfo) -> ColumnInfo | None:
    """The column as another form of its table has it; a DDL may have made a new one of its name."""
    by_id = next((c for c in table.stored_columns if c.id == column.id), None)
    if by_id is not None:
        return by_id
    return next((c for c in table.stored_columns if c.name.lower() == column.name.lower()), None)


def _filled(column: ColumnInfo, count: int, zone: str) -> pa.Array:
    """What rows show that do not have the column, in mounted form."""
    kind, fill = arrow_type(column), fill_of(column, zone)
    if isinstance(fill, bytes) and kind == pa.string():
        return pa.repeat(pa.scalar(fill.decode(), kind), count)
    return pa.nulls(count, kind) if fill is None else pa.repeat(pa.scalar(fill, kind), count)


def _elements(column: ColumnInfo) -> pa.Array:
    return pa.array(["", *column.elems], pa.string())  # index 0 is the empty element of invalid values


def _sets(column: ColumnInfo, values: pa.Array) -> pa.Array:
    codes = values.dictionary_encode()
    texts = [
        ",".join(element for bit, element in enumerate(column.elems) if bitmap >> bit & 1)
        for bitmap in codes.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.string()).take(codes.indices)


def _is_lossless(source: pa.DataType, target: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_integer(source):
        return bool(kinds.is_integer(target) or kinds.is_decimal(target) or kinds.is_string(target))
    if kinds.is_decimal(source):
        return bool(kinds.is_decimal(target) or kinds.is_string(target))
    if kinds.is_date(source):
        return bool(kinds.is_timestamp(target) and target.tz is None)
    return bool(kinds.is_float32(source) and kinds.is_float64(target))


def _converted(values: pa.Array, target: pa.DataType, source: ColumnInfo, rows: RowBatch) -> pa.Array:
    """Values of a column's earlier type in its present one, where that says the same."""
    try:
        if _is_lossless(values.type, target):
            return values.cast(target)
        if values.null_count == len(values):
            return pa.nulls(len(values), target)
    except pa.ArrowInvalid:
        pass  # a value that does not fit
    raise SchemaError(
        f"column {source.name!r} of {rows.table.full_name} is of another type at {show(int(rows.commit_ts[0]))}: not "
        f"all of its values there can be given as {target}. Read the changes before and behind the DDL by "
        "themselves, with an endingTs at it, or leave the column out with the option columns. A stream takes the "
        "table's present form when it is started again."
    )
