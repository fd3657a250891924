"""csv: a record a change, for files. Operation, table, schema, then the columns in table order.

    "U","item","shop",445644800000000006,7,"A-1",5,"AGH/","b","héllo"

Only strings are quoted, so null (``\\N``) is told from the text "\\N" and from the empty string. An
update carries the new image alone, or, with ``output_old_value``, becomes a delete record and an
insert record that stand together. Runs on executors.
"""

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.errors import CorruptDataError
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo


class BinaryEncoding(Enum):
    BASE64 = "base64"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class CsvOptions:
    delimiter: str = ","
    quote: str = '"'  # one ASCII character; empty: special characters get a backslash instead
    null: str = "\\N"
    terminator: bytes = b"\r\n"
    include_commit_ts: bool = False
    output_old_value: bool = False
    binary_encoding: BinaryEncoding = BinaryEncoding.BASE64
    output_field_header: bool = False

    def header(self, table: TableInfo) -> bytes:
        """The line that opens each file; empty unless asked for."""
        if not self.output_field_header:
            return b""
        names = ["ticdc-meta$operation", "ticdc-meta$table", "ticdc-meta$schema"]
        names += ["ticdc-meta$commit-ts"] if self.include_commit_ts else []
        names += ["ticdc-meta$is-update"] if self.output_old_value else []
        names += [column.name for column in table.stored_columns]
        return self.delimiter.join(names).encode() + self.terminator

    def text(self, value: str) -> str:
        """A string as it stands in a record."""
        if self.quote:
            return self.quote + value.replace(self.quote, self.quote * 2) + self.quote
        value = value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
        return value.replace(self.delimiter, "".join("\\" + char for char in self.delimiter))


class CsvEncoder:
    """Encodes batches of rows; remembers what is fixed for the table it met last."""

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self._table: TableInfo | None = None
        self._program: Program | None = None

    def __reduce__(self) -> tuple[type["CsvEncoder"], tuple[CsvOptions]]:
        return type(self), (self._options,)

    def encode(self, rows: RowBatch) -> Encoded:
        """One message a change, in order; that of a split update is two records."""
        table = rows.table
        if self._program is None or self._table is not table:
            self._program, self._table = _row_program(table, self._options), table
        return run(self._program, rows, lambda place, values: self._prepare(table, place, values))

    def _prepare(self, table: TableInfo, place: int, values: pa.Array) -> TextColumn:
        column, options = table.stored_columns[place], self._options
        quote = ord(options.quote) if options.quote else 0
        text = Kind.DOUBLED if quote else Kind.BACKSLASH
        if column.type is ColumnType.ENUM:
            return TextColumn(_enum_names(table, column, values), text, quote)
        if column.type is ColumnType.SET:
            return TextColumn(_set_names(table, column, values), text, quote)
        if values.type == pa.int64():
            return TextColumn(values, Kind.INT)
        if values.type == pa.uint64():
            return TextColumn(values, Kind.UINT)
        if pa.types.is_floating(values.type):
            return TextColumn(float_text.general(values), Kind.RAW)
        if values.type == pa.binary():
            is_hex = options.binary_encoding is BinaryEncoding.HEX
            return TextColumn(values, Kind.HEX if is_hex else Kind.BASE64, quote)
        return TextColumn(values, text, quote)


def _row_program(table: TableInfo, options: CsvOptions) -> Program:
    builder = ProgramBuilder(options.delimiter.encode())
    for op in RowOp:
        if op is RowOp.UPDATE and options.output_old_value:
            _add_record(builder, table, options, "D", OLD, is_update=True)
            _add_record(builder, table, options, "I", NEW, is_update=True)
        else:
            _add_record(builder, table, options, op.name[0], OLD if op is RowOp.DELETE else NEW, is_update=False)
        builder.end_change()
    return builder.build()


def _add_record(
    builder: ProgramBuilder, table: TableInfo, options: CsvOptions, letter: str, image: int, *, is_update: bool
) -> None:
    delimiter = options.delimiter.encode()
    builder.literal(options.delimiter.join(options.text(t) for t in (letter, table.name, table.schema)).encode())
    if options.include_commit_ts:
        builder.literal(delimiter)
        builder.commit_ts()
    if options.output_old_value:
        builder.literal(delimiter + (b"true" if is_update else b"false"))
    for place, column in enumerate(table.stored_columns):
        quote = options.quote.encode() if _is_text(column) else b""
        builder.cell(place, image, delimiter + quote, delimiter + options.null.encode())
    builder.literal(options.terminator)


_NUMBERS = frozenset(
    {
        ColumnType.TINY,
        ColumnType.SHORT,
        ColumnType.INT24,
        ColumnType.LONG,
        ColumnType.LONGLONG,
        ColumnType.FLOAT,
        ColumnType.DOUBLE,
        ColumnType.YEAR,
        ColumnType.BIT,
    }
)


def _is_text(column: ColumnInfo) -> bool:
    return column.type not in _NUMBERS


def _enum_names(table: TableInfo, column: ColumnInfo, values: pa.Array) -> pa.Array:
    """Index 0, which TiDB keeps for a value that was refused, has the empty name."""
    names = pa.array(["", *column.elems], pa.string())
    if (pc.max(values).as_py() or 0) >= len(names):
        raise _unknown_element(table, column)
    return names.take(values)


def _set_names(table: TableInfo, column: ColumnInfo, values: pa.Array) -> pa.Array:
    if (pc.max(values).as_py() or 0) >> len(column.elems):
        raise _unknown_element(table, column)
    encoded = values.dictionary_encode()
    names = [
        ",".join(elem for bit, elem in enumerate(column.elems) if bitmap >> bit & 1)
        for bitmap in encoded.dictionary.to_pylist()
    ]
    return pa.array(names, pa.string()).take(encoded.indices)


def _unknown_element(table: TableInfo, column: ColumnInfo) -> CorruptDataError:
    return CorruptDataError(
        f"column {column.name!r} of table {table.full_name} holds a value beyond its {len(column.elems)} elements. "
        "Nothing was skipped; the changefeed stops before this row. Check the column upstream, then start again."
    )
