"""Index entries: a key that sorts by the indexed values, and a value that leads to the row.

    t ‖ table id ‖ _i ‖ index id ‖ indexed values [‖ handle]   the handle unless the values alone are distinct

A value holds the handle if the key does not, and what the sort keys in the key have forgotten ("restored data"):

    plain        30, or the handle: integer handles, nothing to restore
    version 0    length of tail, [7f handle], [7e partition], [row of all indexed values], tail: padding or handle
    version 1    00 7d 01, [7f handle], [7e partition], [row of what is to be restored]: common handles since 5.0
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from tidebox.sql.codec.cells import Writer, cell_writer
from tidebox.sql.codec.collation import is_binary_order, needs_restoring, text_bytes
from tidebox.sql.codec.datum import Datum, Row
from tidebox.sql.codec.flagged import key_writer
from tidebox.sql.codec.numbers import int_cell, uint_cell
from tidebox.sql.codec.rows import pack_row
from tidemill.errors import CorruptDataError
from tidemill.model.table import STRING_TYPES, ColumnFlag, ColumnInfo, IndexColumn, IndexInfo, TableInfo
from tidemill.tidb.keys import decode_int, encode_int, table_prefix

_COMMON_HANDLE = b"\x7f"
_PARTITION = b"\x7e"
_VERSION_1 = b"\x00\x7d\x01"
_INT_HANDLE = b"\x03"
_SHORTEST_VERSION_0 = 10
_TEMPORARY = 0x7FFF000000000000
_INDEX_ID_MASK = 0x0000FFFFFFFFFFFF
_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that are no UTF-8


class IndexEntry(NamedTuple):
    key: bytes
    value: bytes
    is_distinct: bool  # the values alone make the key: a second row with them is a duplicate


class IndexKeyParts(NamedTuple):
    physical_id: int
    index_id: int
    values: bytes  # flagged, and the handle behind them unless the entry is distinct


class IndexValueParts(NamedTuple):
    handle: bytes | None  # None: it is in the key
    partition_id: int | None
    restored: bytes | None  # a row of format v2


# Keys


def index_prefix(physical_id: int, index_id: int) -> bytes:
    return table_prefix(physical_id) + b"_i" + encode_int(index_id)


def temporary_index_id(index_id: int) -> int:
    """Where writers put the entries of an index that is being filled in the background."""
    return index_id | _TEMPORARY


def index_id_of(temporary_id: int) -> int:
    return temporary_id & _INDEX_ID_MASK


def split_index_key(key: bytes) -> IndexKeyParts:
    if len(key) < 19 or key[:1] != b"t" or key[9:11] != b"_i":
        raise CorruptDataError(f"key {key.hex()} is not an index key")
    return IndexKeyParts(decode_int(key[1:9]), decode_int(key[11:19]), key[19:])


# Values


def plain_value(handle: bytes | None) -> bytes:
    """``handle``: an integer handle as it stands in keys, or None if the entry's key has it."""
    return b"0" if handle is None else _raw_handle(handle)


def version_0_value(
    int_handle: bytes | None = None,
    common_handle: bytes | None = None,
    partition_id: int | None = None,
    restored: bytes = b"",
) -> bytes:
    """One handle at most, and only if the entry is distinct."""
    options = _options(common_handle, partition_id, restored)
    if int_handle is not None:
        tail = _raw_handle(int_handle)
    else:
        tail = bytes(max(_SHORTEST_VERSION_0 - 1 - len(options), 0))
    return bytes((len(tail),)) + options + tail


def version_1_value(common_handle: bytes | None, partition_id: int | None = None, restored: bytes = b"") -> bytes:
    return _VERSION_1 + _options(common_handle, partition_id, restored)


def _options(common_handle: bytes | None, partition_id: int | None, restored: bytes) -> bytes:
    options = b""
    if common_handle is not None:
        options += _COMMON_HANDLE + len(common_handle).to_bytes(2, "big") + common_handle
    if partition_id is not None:
        options += _PARTITION + encode_int(partition_id)
    return options + restored


def _raw_handle(handle: bytes) -> bytes:
    """An integer handle as it stands in values: its sign bit is not turned."""
    return bytes((handle[0] ^ 0x80,)) + handle[1:]


def split_index_value(value: bytes) -> IndexValueParts:
    """Handles are given as they stand in record keys."""
    if value == b"0":
        return IndexValueParts(None, None, None)
    if len(value) == 8:
        return IndexValueParts(_raw_handle(value), None, None)
    if value[:3] == _VERSION_1:
        return _split_options(value[3:], b"")
    if len(value) < _SHORTEST_VERSION_0 or value[0] >= len(value):
        raise CorruptDataError(f"an index value of {len(value)} bytes is of no known form")
    behind = len(value) - value[0]
    return _split_options(value[1:behind], value[behind:])


def _split_options(options: bytes, tail: bytes) -> IndexValueParts:
    handle = partition_id = None
    if len(tail) >= 8:
        handle = _raw_handle(tail[:8])
    if options[:1] == _COMMON_HANDLE:
        behind = 3 + int.from_bytes(options[1:3], "big")
        if behind > len(options):
            raise CorruptDataError("the handle in an index value is cut off")
        handle, options = options[3:behind], options[behind:]
    if options[:1] == _PARTITION:
        partition_id, options = decode_int(options[1:9]), options[9:]
    if options and options[0] != 0x80:
        raise CorruptDataError("an index value has bytes that are neither handle nor restored data")
    return IndexValueParts(handle, partition_id, options or None)


# Prefixes


def truncation(column: ColumnInfo, length: int) -> Callable[[Datum], Datum] | None:
    """What a prefix of ``length`` leaves of the column's values; None if it leaves them whole."""
    if length < 0 or column.type not in STRING_TYPES:
        return None

    def truncate_bytes(value: Datum) -> Datum:
        return None if value is None else text_bytes(value)[:length]  # type: ignore[arg-type]  # text_bytes refuses

    def truncate_text(value: Datum) -> Datum:
        if value is None:
            return None
        text = value if isinstance(value, str) else text_bytes(value).decode("utf-8", "surrogateescape")  # type: ignore[arg-type]  # text_bytes refuses
        if len(text) <= length:
            return value
        return _SURROGATE.sub("\ufffd", text[:length])  # as Go's conversion from characters has it

    return truncate_bytes if column.charset in ("binary", "ascii") else truncate_text


def trailing_spaces(value: Datum) -> int:
    raw = text_bytes(value) if isinstance(value, str | bytes) else b""  # NULL has none
    return len(raw) - len(raw.rstrip(b" "))


class _Part(NamedTuple):
    """One indexed column."""

    offset: int
    truncate: Callable[[Datum], Datum] | None
    write: Writer


class _Restored(NamedTuple):
    """One column of a version 1 value's restored data."""

    column_id: int
    offset: int
    truncate: Callable[[Datum], Datum] | None
    write: Writer  # takes NULL as well if it counts spaces


class IndexCodec:
    """The entries of one index of a table, without multi-valued, global and partial indexes."""

    def __init__(
        self, table: TableInfo, index: IndexInfo, common_handle_version: int = 1, is_new_collation: bool = True
    ) -> None:
        columns = [table.columns[c.offset] for c in index.columns]
        self.index = index
        self._is_unique = index.is_unique
        self._is_int_handle = not table.is_common_handle
        self._is_version_1 = table.is_common_handle and common_handle_version == 1
        self._parts = [
            _Part(c.offset, truncation(column, c.length), key_writer(column, is_new_collation))
            for c, column in zip(index.columns, columns, strict=True)
        ]
        self._prefixes: dict[int, bytes] = {}  # by physical id; as many as the table has partitions
        self._restored: list[_Restored] = []
        self._all: list[tuple[int, int, Writer]] = []  # column id, place in the index, writer
        if self._is_version_1:
            self._restored = _restored_of_version_1(table, index, is_new_collation)
        elif any(needs_restoring(column, is_new_collation) for column in columns):
            self._all = sorted((c.id, place, cell_writer(c)) for place, c in enumerate(columns))

    def entry(self, physical_id: int, handle: bytes, row: Row) -> IndexEntry:
        """``handle``: as it stands in the record key. ``row``: all columns of the table, virtual ones computed."""
        prefix = self._prefixes.get(physical_id)
        if prefix is None:
            prefix = self._prefixes[physical_id] = index_prefix(physical_id, self.index.id)
        values: list[Datum] = []
        pieces = [prefix]
        for offset, truncate, write in self._parts:
            value = truncate(row[offset]) if truncate else row[offset]
            values.append(value)
            pieces.append(write(value))
        is_distinct = self._is_unique and None not in values
        if not is_distinct:
            if self._is_int_handle:
                pieces.append(_INT_HANDLE)
            pieces.append(handle)
        return IndexEntry(b"".join(pieces), self._value(handle if is_distinct else None, row, values), is_distinct)

    def _value(self, handle: bytes | None, row: Row, values: list[Datum]) -> bytes:
        if self._is_version_1:
            return version_1_value(handle, restored=self._restored_row(row) if self._restored else b"")
        restored = self._all_row(values) if self._all else b""
        if not self._is_int_handle:
            if handle is None and not restored:
                return plain_value(None)
            return version_0_value(common_handle=handle, restored=restored)
        return version_0_value(int_handle=handle, restored=restored) if restored else plain_value(handle)

    def _restored_row(self, row: Row) -> bytes:
        ids, cells, nulls = [], [], []
        for column_id, offset, truncate, write in self._restored:
            value = truncate(row[offset]) if truncate else row[offset]
            if value is None and write is not _space_cell:
                nulls.append(column_id)
            else:
                ids.append(column_id)
                cells.append(write(value))
        return pack_row(ids, cells, nulls)

    def _all_row(self, values: list[Datum]) -> bytes:
        ids, cells, nulls = [], [], []
        for column_id, place, write in self._all:
            if values[place] is None:
                nulls.append(column_id)
            else:
                ids.append(column_id)
                cells.append(write(values[place]))
        return pack_row(ids, cells, nulls)


def _space_cell(value: Datum) -> bytes:
    return uint_cell(trailing_spaces(value))


def _key_space_cell(value: Datum) -> bytes:
    return int_cell(trailing_spaces(value))  # TiDB counts in a signed number for the columns of the primary key


def _restored_of_version_1(table: TableInfo, index: IndexInfo, is_new_collation: bool) -> list[_Restored]:
    """The index's own columns, but those of the primary key always, as the handle leads to no text either."""
    restored = []
    for part in index.columns:
        column = table.columns[part.offset]
        if needs_restoring(column, is_new_collation) and not column.flag & ColumnFlag.PRI_KEY:
            write = _space_cell if is_binary_order(column.collate) else text_bytes
            restored.append(_Restored(column.id, part.offset, truncation(column, part.length), write))
    for part in next((i.columns for i in table.indexes if i.is_primary), ()):
        column = table.columns[part.offset]
        if needs_restoring(column, is_new_collation):
            write = _key_space_cell if is_binary_order(column.collate) else text_bytes
            length = _kept_length(part, index)
            restored.append(_Restored(column.id, part.offset, truncation(column, length), write))
    return sorted(restored, key=lambda r: r.column_id)


def _kept_length(key_part: IndexColumn, index: IndexInfo) -> int:
    """Of a column of the primary key that is in the index too, the longer of both prefixes is kept."""
    for part in index.columns:
        if part.offset == key_part.offset:
            return -1 if -1 in (part.length, key_part.length) else max(part.length, key_part.length)
    return key_part.length
