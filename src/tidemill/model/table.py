"""Tables as a change capture sees them: public columns and indexes, and how rows are keyed.

A ``TableInfo`` is one version of one table. The schema store looks it up by physical id and ts;
the mounter decodes with it; encoders and sinks take names, types and keys from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from functools import cached_property

from tidemill.model.ts import Ts


class ColumnType(IntEnum):
    """MySQL's type codes, as TiDB stores them (``Tp``)."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    VECTOR = 225
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINYBLOB = 249
    MEDIUMBLOB = 250
    LONGBLOB = 251
    BLOB = 252
    VARSTRING = 253
    STRING = 254


class ColumnFlag(IntFlag):
    """TiDB's own column flags (``Flag``); not those that TiCDC puts into messages."""

    NOT_NULL = 1
    PRI_KEY = 2
    UNIQUE_KEY = 4
    MULTIPLE_KEY = 8
    BLOB = 16
    UNSIGNED = 32
    ZEROFILL = 64
    BINARY = 128
    AUTO_INCREMENT = 512
    ON_UPDATE_NOW = 8192


# As plain numbers: an enum's own ``&`` costs twenty times as much, and tables are many.
_NOT_NULL, _PRI_KEY, _UNSIGNED = int(ColumnFlag.NOT_NULL), int(ColumnFlag.PRI_KEY), int(ColumnFlag.UNSIGNED)

INTEGER_TYPES = frozenset({ColumnType.TINY, ColumnType.SHORT, ColumnType.LONG, ColumnType.LONGLONG, ColumnType.INT24})
STRING_TYPES = frozenset(
    {
        ColumnType.VARCHAR,
        ColumnType.VARSTRING,
        ColumnType.STRING,
        ColumnType.TINYBLOB,
        ColumnType.BLOB,
        ColumnType.MEDIUMBLOB,
        ColumnType.LONGBLOB,
    }
)
TIME_TYPES = frozenset({ColumnType.DATE, ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.NEWDATE})


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One public column. ``offset`` is its place among the table's public columns."""

    id: int
    name: str
    offset: int
    type: ColumnType
    flag: int
    flen: int  # -1: not given
    decimal: int  # fractional digits; -1: not given
    charset: str
    collate: str
    elems: tuple[str, ...] = ()  # of ENUM and SET
    default: str | None = None
    default_bit: bytes | None = None
    origin_default: str | None = None
    origin_default_bit: bytes | None = None
    generated_expr: str = ""
    is_stored: bool = False  # of a generated column
    is_hidden: bool = False
    comment: str = ""

    @property
    def is_unsigned(self) -> bool:
        return bool(self.flag & _UNSIGNED)

    @property
    def is_not_null(self) -> bool:
        return bool(self.flag & _NOT_NULL)

    @property
    def is_generated(self) -> bool:
        return self.generated_expr != ""

    @property
    def is_virtual(self) -> bool:
        """Virtual generated columns are computed on read: they are in no row and in no message."""
        return self.is_generated and not self.is_stored

    @property
    def is_binary(self) -> bool:
        """Holds bytes rather than text: BINARY, VARBINARY and the BLOB family."""
        return self.charset == "binary"


@dataclass(frozen=True, slots=True)
class IndexColumn:
    offset: int  # into TableInfo.columns
    length: int  # -1: the whole column, otherwise a prefix


@dataclass(frozen=True, slots=True)
class IndexInfo:
    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    is_unique: bool
    is_primary: bool


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    id: int
    name: str


@dataclass(frozen=True)
class TableInfo:
    """One version of one table, in force for changes with commit-ts above ``version_ts``."""

    id: int
    schema_id: int
    schema: str
    name: str
    version_ts: Ts
    columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...] = ()
    pk_is_handle: bool = False
    is_common_handle: bool = False
    partitions: tuple[PartitionInfo, ...] = ()
    is_view: bool = False
    is_sequence: bool = False
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    # When TiDB last changed the table's own document; a rename does not. Some protocols number schemas by it. It
    # says nothing about the table's form, so two tables that differ in it alone are equal.
    update_ts: Ts = field(default=Ts(0), compare=False)
    view_columns: tuple[str, ...] = ()  # names of a view's columns, which have no types: ``columns`` is empty

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partitions)

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """The ids that appear in record keys."""
        return tuple(p.id for p in self.partitions) or (self.id,)

    @cached_property
    def stored_columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that travel: all but the virtual generated ones, in table order."""
        return tuple(c for c in self.columns if not c.is_virtual)

    @cached_property
    def primary_key(self) -> tuple[ColumnInfo, ...]:
        """The columns of the primary key, in key order; empty if there is none."""
        for index in self.indexes:
            if index.is_primary:
                return tuple(self.columns[c.offset] for c in index.columns)
        if self.pk_is_handle:
            return tuple(c for c in self.columns if c.flag & _PRI_KEY)
        return ()

    @cached_property
    def handle_key(self) -> tuple[ColumnInfo, ...]:
        """The columns that identify a row: the primary key, else the shortest unique index
        whose columns are all NOT NULL and stored (ties: the smallest index id). Empty: none."""
        if self.primary_key:
            return self.primary_key
        best: IndexInfo | None = None
        for index in self.indexes:
            columns = [self.columns[c.offset] for c in index.columns]
            if not index.is_unique or not all(c.is_not_null and not c.is_virtual for c in columns):
                continue
            if best is None or (len(columns), index.id) < (len(best.columns), best.id):
                best = index
        return tuple(self.columns[c.offset] for c in best.columns) if best else ()

    @cached_property
    def unique_key_columns(self) -> tuple[ColumnInfo, ...]:
        """Every stored column of the handle key or of any unique index: an update that changes one is split."""
        offsets = {c.offset for c in self.handle_key}
        for index in self.indexes:
            if index.is_unique or index.is_primary:
                offsets.update(c.offset for c in index.columns)
        return tuple(c for c in self.columns if c.offset in offsets and not c.is_virtual)

    def with_columns(self, columns: Sequence[ColumnInfo]) -> "TableInfo":
        """This table with only some of its columns, in this order, and the indexes that need no others."""
        places = {c.offset: i for i, c in enumerate(columns)}
        return replace(
            self,
            columns=tuple(replace(c, offset=i) for i, c in enumerate(columns)),
            indexes=tuple(
                replace(index, columns=tuple(replace(c, offset=places[c.offset]) for c in index.columns))
                for index in self.indexes
                if all(c.offset in places for c in index.columns)
            ),
        )

    @property
    def is_eligible(self) -> bool:
        """Whether its rows can be replicated: they can be told apart. Views carry DDL only."""
        if self.is_sequence:
            return False
        return self.is_view or bool(self.handle_key)
