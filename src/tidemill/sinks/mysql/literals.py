"""Rows as SQL literals: columns of values in, the text of many rows out, in one buffer.

    upserts   (7,'A-1',NULL,x'00ff'),          what stands behind VALUES
    deletes   7,      or  (7,'A-1'),           what stands in WHERE key IN (…)

Each row ends with a comma that the statement leaves out after the last. Numbers are written so that they read back
as the same number: FLOAT with the digits of the double it is, DOUBLE with the shortest that identify it. Sessions
know no backslash escapes, so in text only the quote is doubled. Bytes are hexadecimal. BIT, ENUM and SET are numbers.
"""

import numpy as np
import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.flow.encoder import Encoded
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo

_QUOTE = ord("'")


class Literals:
    """Writes rows of one table; what is fixed for it is worked out once."""

    def __init__(self, table: TableInfo, plain: frozenset[str] = frozenset()) -> None:
        self._table = table
        self._program = _program(table, written_columns(table, plain))

    def write(self, upserts: pa.RecordBatch, deletes: pa.RecordBatch) -> Encoded:
        """The rows of ``deletes`` (their keys), then those of ``upserts``, in order."""
        ops = np.repeat(np.array([RowOp.DELETE, RowOp.INSERT], np.uint8), (deletes.num_rows, upserts.num_rows))
        stamps = np.zeros(len(ops), np.uint64)
        return run(self._program, RowBatch(self._table, 0, ops, stamps, stamps, upserts, deletes), self._prepare)

    def _prepare(self, place: int, values: pa.Array) -> TextColumn:
        return _text(self._table.stored_columns[place], values)


def written_columns(table: TableInfo, plain: frozenset[str] = frozenset()) -> list[tuple[int, ColumnInfo]]:
    """The columns that a statement names, with their places: generated ones the downstream works out itself.
    ``plain`` ones, in small letters, are not generated there."""
    return [
        (place, column)
        for place, column in enumerate(table.stored_columns)
        if not column.is_generated or column.name.lower() in plain
    ]


def plain_key_columns(table: TableInfo) -> frozenset[str]:
    """Generated columns of the primary key, in small letters: MariaDB has plain ones in their place."""
    return frozenset(column.name.lower() for column in table.primary_key if column.is_generated)


def _program(table: TableInfo, written: list[tuple[int, ColumnInfo]]) -> Program:
    builder = ProgramBuilder()
    _add_row(builder, written, NEW, is_bare=False)
    builder.end_change()
    builder.end_change()
    places = {column.offset: place for place, column in enumerate(table.stored_columns)}
    key = [(places[column.offset], column) for column in table.handle_key]
    _add_row(builder, key, OLD, is_bare=len(key) == 1)
    builder.end_change()
    return builder.build()


def _add_row(builder: ProgramBuilder, columns: list[tuple[int, ColumnInfo]], image: int, *, is_bare: bool) -> None:
    for number, (place, column) in enumerate(columns):
        before = b"," if number else b"" if is_bare else b"("
        builder.cell(place, image, before + _opening(column), before + b"NULL")
    builder.literal(b"," if is_bare else b"),")


_BARE = frozenset(
    {
        ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG, ColumnType.LONGLONG, ColumnType.FLOAT,
        ColumnType.DOUBLE, ColumnType.YEAR, ColumnType.BIT, ColumnType.ENUM, ColumnType.SET, ColumnType.NEWDECIMAL,
    }
)  # fmt: skip
_TEXT = frozenset(
    {
        ColumnType.VARCHAR, ColumnType.VARSTRING, ColumnType.STRING, ColumnType.TINYBLOB, ColumnType.BLOB,
        ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB,
    }
)  # fmt: skip


def _is_bytes(column: ColumnInfo) -> bool:
    return column.type in _TEXT and column.is_binary


def _opening(column: ColumnInfo) -> bytes:
    if column.type in _BARE:
        return b""
    return b"x'" if _is_bytes(column) else b"'"


def _text(column: ColumnInfo, values: pa.Array) -> TextColumn:
    kind = values.type
    if kind == pa.int64():
        return TextColumn(values, Kind.INT)
    if kind == pa.uint64():
        return TextColumn(values, Kind.UINT)
    if pa.types.is_floating(kind):
        return TextColumn(_exact(values.cast(pa.float64())), Kind.RAW)
    if column.type is ColumnType.NEWDECIMAL:
        return TextColumn(values, Kind.RAW)
    if _is_bytes(column):
        return TextColumn(values, Kind.HEX, _QUOTE)
    return TextColumn(values, Kind.DOUBLED, _QUOTE)


def _exact(values: pa.Array) -> pa.Array:
    """The digits of doubles, as an exponent number where a plain one could be taken for a DECIMAL out of range."""
    return float_text.general(values)


def shown_key(table: TableInfo, row: pa.RecordBatch) -> str:
    """The handle key of the one row of ``row``, for messages; long values are cut."""
    places = {column.offset: place for place, column in enumerate(table.stored_columns)}
    parts = []
    for column in table.handle_key:
        value = row.column(places[column.offset])[0].as_py()
        text = value.hex() if isinstance(value, bytes) else str(value)
        parts.append(f"{column.name} = {text if len(text) <= 64 else text[:64] + '…'}")
    return ", ".join(parts)
