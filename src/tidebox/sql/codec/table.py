"""Rows of one table as the store keeps them: records and index entries, and records back to rows.

    row ─► handle ─┬─► record: key, value
                   └─► one entry for each index

A codec is made once for a version of a table and used for many rows.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from tidebox.sql.codec.cells import Writer, cell_reader, cell_writer
from tidebox.sql.codec.checksums import column_checksum
from tidebox.sql.codec.collation import needs_restoring
from tidebox.sql.codec.datum import Datum, Row
from tidebox.sql.codec.defaults import original_default
from tidebox.sql.codec.flagged import flagged_reader, key_writer, value_writer
from tidebox.sql.codec.indexes import IndexCodec, IndexEntry, truncation
from tidebox.sql.codec.numbers import SIGN, comparable_int, comparable_uint
from tidebox.sql.codec.rows import (
    ChecksumVersion,
    RowFormat,
    pack_column_checksummed,
    pack_legacy_row,
    pack_raw_checksummed,
    pack_row,
    split_row,
)
from tidemill.errors import CorruptDataError, SchemaError, UnencodableError
from tidemill.model.table import ColumnFlag, ColumnInfo, IndexInfo, TableInfo
from tidemill.tidb.keys import decode_int, encode_int, is_record_key, record_prefix

_PREFIX_SIZE = 11
_SHORTEST_COMMON_HANDLE = 9
# What Python says of a value that a writer cannot take.
_REFUSALS = (TypeError, AttributeError, ValueError, ArithmeticError, IndexError, struct.error)


class Record(NamedTuple):
    key: bytes
    value: bytes


class _Cell(NamedTuple):
    """One column of the record's value."""

    column_id: int
    offset: int
    write: Writer
    keeps_null: bool  # a NULL is written down, since without it a default would show


class _HandlePart(NamedTuple):
    """One column of a common handle."""

    offset: int
    truncate: Callable[[Datum], Datum] | None
    write: Writer


class TableCodec:
    """``table.columns`` are those that a writer writes: the public ones, and while a DDL is running those in
    write-only and write-reorganization too. ``table.indexes`` likewise. Rows have a value for each of them.

    The other arguments are as the table's schema and the cluster's settings say, and default to what a new
    cluster does for its users; TiDB's own sessions write format v1. Multi-valued, partial and global indexes
    are not known here.
    """

    def __init__(
        self,
        table: TableInfo,
        *,
        common_handle_version: int = 1,
        checksum: ChecksumVersion | None = None,
        row_format: RowFormat = RowFormat.V2,
        is_new_collation: bool = True,
    ) -> None:
        self.table = table
        self._prefix = record_prefix(table.id)
        self._checksum = checksum
        self._handle_offsets = _handle_offsets(table)
        self._handle_parts = _handle_parts(table, is_new_collation)
        self._cells = _cells(table, is_new_collation)
        self._row_format = row_format
        self._readers = [cell_reader(column) for column in table.columns]
        self._fills = [None if column.is_virtual else original_default(column) for column in table.columns]
        self.indexes = tuple(
            IndexCodec(table, index, common_handle_version, is_new_collation)
            for index in table.indexes
            if not (index.is_primary and table.is_common_handle)  # the records themselves are that index
        )

    # To bytes

    def handle_of(self, row: Row) -> bytes:
        """The handle of a clustered table's row, as it stands in the record key. Others have ``rowid_handle``."""
        try:
            if self.table.pk_is_handle:
                return self._int_handle(row)
            if self.table.is_common_handle:
                parts = [
                    p.write(p.truncate(row[p.offset]) if p.truncate else row[p.offset]) for p in self._handle_parts
                ]
                return b"".join(parts).ljust(_SHORTEST_COMMON_HANDLE, b"\0")
        except _REFUSALS as error:
            self._refuse(row, error)
        raise SchemaError(f"table {self.table.full_name} is not clustered: its rows are known by their _tidb_rowid")

    def _int_handle(self, row: Row) -> bytes:
        offset = self._handle_offsets[0]
        value = row[offset]
        if self.table.columns[offset].is_unsigned:
            # The bits of the number are taken for a signed one, so the upper half sorts first.
            return comparable_uint(value ^ SIGN)  # type: ignore[operator]  # else refused
        return comparable_int(value)  # type: ignore[arg-type]  # else refused

    def record(self, handle: bytes, row: Row, physical_id: int | None = None) -> Record:
        """Key and value of a row. ``physical_id``: the partition's, of a partitioned table."""
        key = (self._prefix if physical_id is None else record_prefix(physical_id)) + handle
        if self._row_format is RowFormat.V1:
            return Record(key, self._legacy_value(row))
        return Record(key, self._value(self._cells, key, handle, row))

    def backfilled_record(self, handle: bytes, row: Row, physical_id: int | None = None) -> Record:
        """The record as the backfill of a MODIFY COLUMN leaves it: with each column and each NULL written down,
        those of the handle and virtual ones too."""
        key = (self._prefix if physical_id is None else record_prefix(physical_id)) + handle
        columns = self.table.columns
        cells = sorted((c.id, at, cell_writer(c), True) for at, c in enumerate(columns))
        return Record(key, self._value([_Cell(*cell) for cell in cells], key, handle, row))

    def _value(self, plan: list[_Cell], key: bytes, handle: bytes, row: Row) -> bytes:
        ids, cells, nulls = [], [], []
        try:
            for column_id, offset, write, keeps_null in plan:
                value = row[offset]
                if value is not None:
                    ids.append(column_id)
                    cells.append(write(value))
                elif keeps_null:
                    nulls.append(column_id)
            match self._checksum:
                case None:
                    return pack_row(ids, cells, nulls)
                case ChecksumVersion.COLUMNS:
                    crc = column_checksum(self.table.columns, row)
                    return pack_column_checksummed(ids, cells, nulls, crc)
                case version:
                    continued = key if version is ChecksumVersion.RAW_KEY else handle
                    return pack_raw_checksummed(ids, cells, nulls, version, continued)
        except _REFUSALS as error:
            self._refuse(row, error)

    def _legacy_value(self, row: Row) -> bytes:
        columns = self.table.columns
        try:
            return pack_legacy_row(
                (cell.column_id, value_writer(columns[cell.offset])(row[cell.offset]))
                for cell in sorted(self._cells, key=lambda cell: cell.offset)
                if cell.keeps_null or row[cell.offset] is not None
            )
        except _REFUSALS as error:
            self._refuse(row, error)

    def index_entries(self, handle: bytes, row: Row, physical_id: int | None = None) -> list[IndexEntry]:
        """One entry for each index, in the table's order. ``row`` has its virtual columns computed."""
        table_id = self.table.id if physical_id is None else physical_id
        try:
            return [index.entry(table_id, handle, row) for index in self.indexes]
        except _REFUSALS as error:
            self._refuse(row, error)

    # From bytes

    def decode(self, key: bytes, value: bytes) -> list[Datum]:
        """The row of a record. Columns that it lacks show their original default; virtual ones are None."""
        try:
            if not is_record_key(key):
                raise CorruptDataError("the key is no record key")
            cells = split_row(value).cells
            from_handle = self._decode_handle(key[_PREFIX_SIZE:])
        except CorruptDataError as error:
            self._report(key, None, error)
        row: list[Datum] = []
        for offset, column in enumerate(self.table.columns):
            cell = cells.get(column.id)
            if cell is not None and not column.is_virtual:
                try:
                    row.append(self._readers[offset](cell))
                except CorruptDataError as error:
                    self._report(key, column, error)
            elif offset in from_handle:
                row.append(from_handle[offset])
            elif column.id in cells:
                row.append(None)
            else:
                row.append(self._fills[offset])
        return row

    def _decode_handle(self, handle: bytes) -> dict[int, Datum]:
        """The values of the key's columns by their offsets, as far as the handle has them; sort keys for texts."""
        if not self.table.is_common_handle:
            if len(handle) != 8:
                raise CorruptDataError(f"an integer handle of {len(handle)} bytes")
            number = decode_int(handle)
            if not self.table.pk_is_handle:
                return {}
            offset = self._handle_offsets[0]
            return {offset: number % (1 << 64) if self.table.columns[offset].is_unsigned else number}
        if len(handle) < _SHORTEST_COMMON_HANDLE:
            raise CorruptDataError(f"a common handle of {len(handle)} bytes")
        values: dict[int, Datum] = {}
        at = 0
        for offset in self._handle_offsets:
            values[offset], at = flagged_reader(self.table.columns[offset])(handle, at)
        if handle[at:].strip(b"\0") or (at < len(handle) and len(handle) != _SHORTEST_COMMON_HANDLE):
            raise CorruptDataError(f"a common handle with {len(handle) - at} bytes behind its columns")
        return values

    # Complaints

    def _refuse(self, row: Row, error: Exception) -> NoReturn:
        """Say which column it was, by trying each alone."""
        columns = self.table.columns
        if len(row) != len(columns):
            raise UnencodableError(
                f"a row of table {self.table.full_name} has {len(row)} values for {len(columns)} columns"
            ) from error
        for column, value in zip(columns, row, strict=True):
            try:
                if value is not None:
                    cell_writer(column)(value)
            except _REFUSALS as reason:
                raise UnencodableError(
                    f"cannot write column {column.name!r} of table {self.table.full_name}: "
                    f"a {type(value).__name__} that is no {column.type.name}: {reason}"
                ) from error
        raise UnencodableError(f"cannot write a row of table {self.table.full_name}: {error}") from error

    def _report(self, key: bytes, column: ColumnInfo | None, error: CorruptDataError) -> NoReturn:
        where = f"column {column.name!r} of " if column else ""
        raise CorruptDataError(
            f"cannot decode {where}table {self.table.full_name}, key {key.hex()}: {error}"
        ) from error


def rowid_handle(rowid: int) -> bytes:
    """The handle of a row in a table that is not clustered."""
    return encode_int(rowid)


def handle_in(key: bytes) -> bytes:
    """The handle in a record key."""
    if not is_record_key(key):
        raise CorruptDataError(f"key {key.hex()} is no record key")
    return key[_PREFIX_SIZE:]


# Plans


def _primary_index(table: TableInfo) -> IndexInfo:
    for index in table.indexes:
        if index.is_primary:
            return index
    raise SchemaError(f"table {table.full_name} has a common handle but no primary key")


def _handle_offsets(table: TableInfo) -> tuple[int, ...]:
    """The columns that the handle is made of, in its order; empty if the table is not clustered."""
    if table.is_common_handle:
        return tuple(part.offset for part in _primary_index(table).columns)
    if table.pk_is_handle:
        found = tuple(at for at, column in enumerate(table.columns) if column.flag & ColumnFlag.PRI_KEY)
        if len(found) != 1:
            raise SchemaError(f"table {table.full_name} has an integer handle and {len(found)} columns for it")
        return found
    return ()


def _handle_parts(table: TableInfo, is_new_collation: bool) -> list[_HandlePart]:
    if not table.is_common_handle:
        return []
    return [
        _HandlePart(part.offset, truncation(column, part.length), key_writer(column, is_new_collation))
        for part in _primary_index(table).columns
        for column in (table.columns[part.offset],)
    ]


def _cells(table: TableInfo, is_new_collation: bool) -> list[_Cell]:
    """All columns but those that are computed, and those that the handle gives back unchanged."""
    in_handle: set[int] = set()
    if table.pk_is_handle:
        in_handle.update(_handle_offsets(table))
    elif table.is_common_handle:
        for part in _primary_index(table).columns:
            if part.length < 0 and not needs_restoring(table.columns[part.offset], is_new_collation):
                in_handle.add(part.offset)
    cells = [
        _Cell(column.id, at, cell_writer(column), _has_default(column))
        for at, column in enumerate(table.columns)
        if at not in in_handle and not column.is_virtual
    ]
    return sorted(cells, key=lambda cell: cell.column_id)


def _has_default(column: ColumnInfo) -> bool:
    return not (
        column.default is None
        and column.default_bit is None
        and column.origin_default is None
        and column.origin_default_bit is None
    )
