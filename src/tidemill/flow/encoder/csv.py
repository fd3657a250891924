"""csv: one record per change, for files. Operation, table, schema, then the columns in table order.

    "U","item","shop",445644800000000006,7,"A-1",5,"AGH/","b","héllo"

Only strings are quoted, so null (``\\N``) is told from the text "\\N" and from the empty string. An
update carries the new image alone, or, with ``output_old_value``, becomes a delete record and an
insert record that stand together. Runs on executors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar import float_text
from tidemill.columnar.assembler import Kind
from tidemill.columnar.encoded import Encoded
from tidemill.columnar.program import NEW, OLD, Program, ProgramBuilder, TextColumn, run
from tidemill.config.values import boolean_of, unescaped, word_of
from tidemill.errors import CorruptDataError, SinkUriError
from tidemill.flow.encoder.port import Option
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, ColumnType, TableInfo


class BinaryEncoding(Enum):
    BASE64 = "base64"
    HEX = "hex"


def _delimiter(text: str) -> str:
    text = unescaped(text)
    if not 1 <= len(text) <= 3 or "\r" in text or "\n" in text:
        raise ValueError("one to three characters other than line ends")
    return text


def _quote(text: str) -> str:
    if len(text) > 1 or not text.isascii() or text in ("\r", "\n", "\0"):
        raise ValueError("one ASCII character, or nothing to use backslashes instead")
    return text


def _binary_encoding(text: str) -> BinaryEncoding:
    return BinaryEncoding(word_of(*(encoding.value for encoding in BinaryEncoding))(text))


@dataclass(frozen=True, slots=True)
class Csv:
    """The protocol, for files."""

    name: ClassVar = "csv"
    extension: ClassVar = ".csv"
    is_positional: ClassVar = True
    options: ClassVar[Mapping[str, Option]] = {
        "delimiter": Option(
            "delimiter",
            _delimiter,
            "`,`",
            "What stands between two fields: one to three characters.",
            "sink.csv.delimiter",
        ),
        "quote": Option(
            "quote",
            _quote,
            '`"`',
            "What encloses text; empty: special characters get a backslash.",
            "sink.csv.quote",
        ),
        "null": Option("null", str, "`\\N`", "How NULL is written.", "sink.csv.null"),
        "include-commit-ts": Option(
            "include_commit_ts", boolean_of, "false", "A field with the commit-ts.", "sink.csv.include-commit-ts"
        ),
        "output-old-value": Option(
            "output_old_value",
            boolean_of,
            "false",
            "An update is two records, old and new, with a field that says so.",
            "sink.csv.output-old-value",
        ),
        "binary-encoding-method": Option(
            "binary_encoding",
            _binary_encoding,
            "base64",
            "How bytes are written: `base64` or `hex`.",
            "sink.csv.binary-encoding-method",
        ),
        "output-field-header": Option(
            "output_field_header",
            boolean_of,
            "false",
            "Each file opens with the names of its fields.",
            "sink.csv.output-field-header",
        ),
    }

    delimiter: str = ","
    quote: str = '"'  # one ASCII character; empty: special characters get a backslash instead
    null: str = "\\N"
    include_commit_ts: bool = False
    output_old_value: bool = False
    binary_encoding: BinaryEncoding = BinaryEncoding.BASE64
    output_field_header: bool = False

    def __post_init__(self) -> None:
        if self.quote and self.quote in self.delimiter:
            raise SinkUriError(
                f"sink URI parameters 'quote' and 'delimiter' share the character {self.quote!r}. Choose two."
            )

    @property
    def has_commit_ts(self) -> bool:
        return self.include_commit_ts

    def header(self, table: TableInfo, terminator: bytes) -> bytes:
        """The line that opens each file; empty unless asked for."""
        if not self.output_field_header:
            return b""
        names = ["ticdc-meta$operation", "ticdc-meta$table", "ticdc-meta$schema"]
        names += ["ticdc-meta$commit-ts"] if self.include_commit_ts else []
        names += ["ticdc-meta$is-update"] if self.output_old_value else []
        names += [column.name for column in table.stored_columns]
        return self.delimiter.join(names).encode() + terminator

    def encoder(self, built_ms: int, terminator: bytes) -> "CsvEncoder":
        return CsvEncoder(self, terminator)

    def text(self, value: str) -> str:
        """A string as it stands in a record."""
        if self.quote:
            return self.quote + value.replace(self.quote, self.quote * 2) + self.quote
        value = value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
        return value.replace(self.delimiter, "".join("\\" + char for char in self.delimiter))


class CsvEncoder:
    """One message per change, in order; that of a split update is two records."""

    def __init__(self, protocol: Csv, terminator: bytes) -> None:
        self._options = protocol
        self._terminator = terminator
        self._table: TableInfo | None = None
        self._program: Program | None = None

    def encode(self, rows: RowBatch) -> Encoded:
        table = rows.table
        if self._program is None or self._table is not table:
            self._program, self._table = _row_program(table, self._options, self._terminator), table
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


def _row_program(table: TableInfo, options: Csv, terminator: bytes) -> Program:
    builder = ProgramBuilder(options.delimiter.encode())
    for op in RowOp:
        if op is RowOp.UPDATE and options.output_old_value:
            _add_record(builder, table, options, terminator, "D", OLD, is_update=True)
            _add_record(builder, table, options, terminator, "I", NEW, is_update=True)
        else:
            _add_record(
                builder, table, options, terminator, op.name[0], OLD if op is RowOp.DELETE else NEW, is_update=False
            )
        builder.end_change()
    return builder.build()


def _add_record(
    builder: ProgramBuilder,
    table: TableInfo,
    options: Csv,
    terminator: bytes,
    letter: str,
    image: int,
    *,
    is_update: bool,
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
    builder.literal(terminator)


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
