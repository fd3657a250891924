"""Tables as messages tell of them: no more than names, types and keys, in the form that sinks work with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.model.table import (
    STRING_TYPES,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    IndexColumn,
    IndexInfo,
    PartitionInfo,
    TableInfo,
)
from tidemill.model.ts import Ts

_TEXT = STRING_TYPES | {ColumnType.ENUM, ColumnType.SET}
_MOST_TABLES = 4096  # that are remembered
UNKNOWN_EXPRESSION = "?"  # of a generated column whose expression the protocol does not say


@dataclass(frozen=True, slots=True)
class ColumnSeen:
    """A column as a message tells of it."""

    name: str
    type: ColumnType
    is_binary: bool = False  # of a string: bytes rather than text
    is_unsigned: bool = False
    is_nullable: bool = True
    is_handle: bool = False  # of the key that tells rows apart
    is_primary: bool = False
    is_unique: bool = False  # of some unique index
    is_multiple: bool = False  # of some index of several columns, or one that is not unique
    is_generated: bool = False
    is_zerofill: bool = False
    flen: int = -1
    decimal: int = -1
    elems: tuple[str, ...] = ()

    def with_key(self) -> "ColumnSeen":
        """As one of the key that tells rows apart."""
        return replace(self, is_handle=True, is_nullable=False)


def table_seen(schema: str, name: str, columns: Sequence[ColumnSeen], physical_id: int = 0) -> TableInfo:
    """``physical_id`` is that of a partition; 0 if the table has none, or the protocol does not say."""
    return TableInfo(
        0,
        0,
        schema,
        name,
        Ts(0),
        tuple(_column(place, column) for place, column in enumerate(columns)),
        _indexes(columns),
        partitions=(PartitionInfo(physical_id, ""),) if physical_id else (),
    )


class TablesSeen:
    """Remembers tables: the same one, with the same columns in whatever order, is the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, frozenset[ColumnSeen]], TableInfo] = {}

    def get(self, schema: str, name: str, columns: Sequence[ColumnSeen], physical_id: int = 0) -> TableInfo:
        key = (schema, name, physical_id, frozenset(columns))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_TABLES:
                self._known.clear()
            known = self._known[key] = table_seen(schema, name, columns, physical_id)
        return known


def _column(place: int, seen: ColumnSeen) -> ColumnInfo:
    flag = 0
    for is_set, bit in (
        (not seen.is_nullable, ColumnFlag.NOT_NULL),
        (seen.is_primary, ColumnFlag.PRI_KEY),
        (seen.is_unique, ColumnFlag.UNIQUE_KEY),
        (seen.is_multiple, ColumnFlag.MULTIPLE_KEY),
        (seen.is_unsigned, ColumnFlag.UNSIGNED),
        (seen.is_zerofill, ColumnFlag.ZEROFILL),
    ):
        flag |= int(bit) if is_set else 0
    is_text = seen.type in _TEXT and not seen.is_binary
    if seen.type in STRING_TYPES and seen.is_binary:
        flag |= int(ColumnFlag.BINARY)
    charset, collate = ("utf8mb4", "utf8mb4_bin") if is_text else ("binary", "binary")
    generated = UNKNOWN_EXPRESSION if seen.is_generated else ""
    return ColumnInfo(
        place + 1,
        seen.name,
        place,
        seen.type,
        flag,
        seen.flen,
        seen.decimal,
        charset,
        collate,
        seen.elems,
        generated_expr=generated,
        is_stored=seen.is_generated,
    )


def _indexes(columns: Sequence[ColumnSeen]) -> tuple[IndexInfo, ...]:
    """The handle key, and every unique index that is known to have one column. Which columns share another index is
    not told. The order of a key's columns is that of the message."""
    found: list[IndexInfo] = []
    handle = [place for place, column in enumerate(columns) if column.is_handle]
    primary = [place for place, column in enumerate(columns) if column.is_primary]
    if primary:
        found.append(IndexInfo(1, "PRIMARY", _parts(primary), True, True))
    elif handle:
        found.append(IndexInfo(1, "handle", _parts(handle), True, False))
    for place, column in enumerate(columns):
        if column.is_unique and not column.is_multiple and [place] not in (handle, primary):
            found.append(IndexInfo(len(found) + 1, column.name, _parts([place]), True, False))
    return tuple(found)


def _parts(places: Sequence[int]) -> tuple[IndexColumn, ...]:
    return tuple(IndexColumn(place, -1) for place in places)
