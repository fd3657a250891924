"""Columns of a result as clients are told of them, in TiDB's manner."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tidebox.sql.wire.packets import text
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType

NULL_TYPE: Final = 6  # of a column that holds only NULL; no table has it
NOT_FIXED: Final = 31  # decimals of a number without a fixed count of them

BINARY: Final = 63
UTF8MB4_BIN: Final = 46

# The collations TiDB knows, by the numbers the protocol has for them.
COLLATIONS: Final = {
    "latin1_bin": 47,
    "ascii_bin": 65,
    "binary": BINARY,
    "utf8_general_ci": 33,
    "utf8_bin": 83,
    "utf8_unicode_ci": 192,
    "utf8mb4_general_ci": 45,
    "utf8mb4_bin": UTF8MB4_BIN,
    "utf8mb4_unicode_ci": 224,
    "utf8mb4_0900_ai_ci": 255,
    "utf8mb4_0900_bin": 309,
    "gbk_chinese_ci": 28,
    "gbk_bin": 87,
    "gb18030_chinese_ci": 248,
    "gb18030_bin": 249,
}

_BYTES_PER_CHARACTER = {"utf8mb4": 4, "utf8": 3, "utf8mb3": 3, "gbk": 2, "gb18030": 4}
_BLOBS = frozenset({ColumnType.TINYBLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.BLOB})
_TEXTS = frozenset({ColumnType.VARCHAR, ColumnType.VARSTRING, ColumnType.STRING, ColumnType.ENUM, ColumnType.SET})
_FLAG_ENUM = 256
_FLAG_SET = 2048
_LONGEST = (1 << 32) - 1
_LONGEST_NAME = 256
_TAIL = struct.Struct("<BHIBHBxx")

# Clients know neither ENUM nor SET in results, and vectors not at all.
_TYPE_ON_WIRE = {
    ColumnType.ENUM: ColumnType.STRING,
    ColumnType.SET: ColumnType.STRING,
    ColumnType.VARCHAR: ColumnType.VARSTRING,
    ColumnType.VECTOR: ColumnType.LONGBLOB,
}

_LENGTHS: dict[int, tuple[int, int]] = {  # characters shown at most: signed, unsigned
    ColumnType.TINY: (4, 3),
    ColumnType.SHORT: (6, 5),
    ColumnType.INT24: (9, 8),
    ColumnType.LONG: (11, 10),
    ColumnType.LONGLONG: (20, 20),
    ColumnType.FLOAT: (12, 12),
    ColumnType.DOUBLE: (22, 22),
    ColumnType.NEWDECIMAL: (67, 67),
    ColumnType.DATE: (10, 10),
    ColumnType.NEWDATE: (10, 10),
    ColumnType.DURATION: (10, 10),
    ColumnType.DATETIME: (19, 19),
    ColumnType.TIMESTAMP: (19, 19),
    ColumnType.YEAR: (4, 4),
    ColumnType.BIT: (64, 64),
    ColumnType.TINYBLOB: (255, 255),
    ColumnType.BLOB: (65535, 65535),
    ColumnType.MEDIUMBLOB: ((1 << 24) - 1, (1 << 24) - 1),
    ColumnType.LONGBLOB: (_LONGEST, _LONGEST),
    ColumnType.JSON: (_LONGEST, _LONGEST),
    ColumnType.VECTOR: (_LONGEST, _LONGEST),
    NULL_TYPE: (0, 0),
}
_WITH_FRACTION = frozenset({ColumnType.DURATION, ColumnType.DATETIME, ColumnType.TIMESTAMP})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result. What is None follows from the type.

    ``name`` is what the query calls it, ``original_name`` the table's own name for it; for an
    expression everything of the table is empty. ``length`` is in bytes, of BIT in bits.
    """

    name: str
    type: int  # a ColumnType, or NULL_TYPE
    flags: int = 0  # of ColumnFlag; those that the type implies are added
    collation: int | None = None  # BINARY for bytes; for text UTF8MB4_BIN unless given
    length: int | None = None
    decimals: int | None = None
    table: str = ""
    original_table: str = ""
    original_name: str = ""
    database: str = ""
    default: str | None = None  # told only by COM_FIELD_LIST

    @property
    def is_unsigned(self) -> bool:
        return bool(self.flags & ColumnFlag.UNSIGNED)

    @property
    def shown_decimals(self) -> int:
        if self.decimals is not None:
            return self.decimals
        return NOT_FIXED if self.type in (ColumnType.FLOAT, ColumnType.DOUBLE) or self.type in _TEXTS else 0

    @property
    def shown_length(self) -> int:
        if self.type == ColumnType.VECTOR:
            return _LONGEST
        if self.length is not None:
            return self.length
        length = _LENGTHS.get(self.type, (1020, 1020))[self.is_unsigned]
        return length + 1 + self.decimals if self.type in _WITH_FRACTION and self.decimals else length

    @property
    def shown_collation(self) -> int:
        if self.type == ColumnType.VECTOR:
            return UTF8MB4_BIN
        if self.collation is not None:
            return self.collation
        return UTF8MB4_BIN if self.type in _TEXTS or self.type in _BLOBS else BINARY

    @property
    def shown_flags(self) -> int:
        flags = self.flags
        if self.type == ColumnType.ENUM:
            flags |= _FLAG_ENUM
        elif self.type == ColumnType.SET:
            flags |= _FLAG_SET
        elif self.type == ColumnType.BIT:
            flags |= ColumnFlag.UNSIGNED
        elif self.type == ColumnType.VECTOR:
            return flags & ~int(ColumnFlag.BINARY)
        if self.original_name:
            return flags
        return flags | ColumnFlag.BINARY if self.shown_collation == BINARY else flags


def column_of(info: ColumnInfo, *, database: str, table: str, alias: str = "", name: str = "") -> Column:
    """The column of a table in a result; ``alias`` and ``name`` are the query's own names for table and column."""
    length = info.flen if info.flen >= 0 else 0
    if info.type == ColumnType.NEWDECIMAL:
        length += 1 + (info.decimal > 0)  # the sign and the point
    elif info.type in _TEXTS or info.type in _BLOBS:
        length = length * _BYTES_PER_CHARACTER.get(info.charset, 1) & _LONGEST  # TiDB counts in 32 bits
    is_text = info.type in _TEXTS or info.type in _BLOBS
    return Column(
        name=name or info.name,
        type=info.type,
        flags=info.flag,
        # Text goes out as UTF-8, whatever charset the column has.
        collation=UTF8MB4_BIN if is_text and not info.is_binary else BINARY,
        length=length,
        decimals=info.decimal if info.decimal >= 0 else (0 if info.type == ColumnType.DURATION else NOT_FIXED),
        table=alias or table,
        original_table=table,
        original_name=info.name,
        database=database,
        default=info.default,
    )


@lru_cache(maxsize=4096)  # the same few columns are told with every execution of a statement
def definition(column: Column, *, is_listed: bool = False) -> bytes:
    """The column's packet; ``is_listed`` adds the default, as COM_FIELD_LIST wants it."""
    kind = _TYPE_ON_WIRE.get(ColumnType(column.type), column.type) if column.type != NULL_TYPE else NULL_TYPE
    names = (
        b"def",
        _encode(column.database),
        _encode(column.table),
        _encode(column.original_table),
        _encode(_cut(column.name)),
        _encode(_cut(column.original_name)),
    )
    tail = _TAIL.pack(
        12,
        column.shown_collation,
        min(column.shown_length, _LONGEST),
        kind,
        column.shown_flags & 0xFFFF,
        column.shown_decimals,
    )
    packet = b"".join(map(text, names)) + tail
    if is_listed:
        packet += b"\xfb" if column.default is None else text(_encode(column.default))
    return packet


def _cut(name: str) -> str:
    """TiDB cuts names at so many bytes; a character cut through would be no text to the client, so it goes too."""
    data = _encode(name)
    return name if len(data) <= _LONGEST_NAME else data[:_LONGEST_NAME].decode("utf-8", "ignore")


def _encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
