"""Tables and batches for tests of the mounter."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tests.reference.rows import Decoder, Undecodable
from tidemill.errors import RowUndecodableError
from tidemill.flow.mounter import mount_values
from tidemill.model.change import RAW_CHANGE_SCHEMA, Op
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

ID = 100
_TIMES = (ColumnType.DATE, ColumnType.DATETIME, ColumnType.TIMESTAMP, ColumnType.DURATION)


def column(id_: int, kind: ColumnType, name: str = "", *, flag: int = 0, flen: int = -1, **more: Any) -> ColumnInfo:
    """``offset`` is set when the column is put into a table."""
    given = {"decimal": 0 if kind in _TIMES else -1, "charset": "binary", "collate": "binary"}
    return ColumnInfo(id_, name or f"c{id_}", 0, kind, flag, flen, **{**given, **more})


def text(id_: int, name: str = "", kind: ColumnType = ColumnType.VARCHAR, **more: Any) -> ColumnInfo:
    return column(id_, kind, name, **{"charset": "utf8mb4", "collate": "utf8mb4_bin", **more})


def table(*columns: ColumnInfo, clustered: Sequence[tuple[int, int]] = (), pk_is_handle: bool = False) -> TableInfo:
    """``clustered``: (place of the column, prefix length or -1) of a common handle."""
    placed = []
    for offset, c in enumerate(columns):
        values = {slot: getattr(c, slot) for slot in c.__slots__} | {"offset": offset}
        placed.append(ColumnInfo(**values))
    indexes = ()
    if clustered:
        indexes = (IndexInfo(1, "PRIMARY", tuple(IndexColumn(*part) for part in clustered), True, True),)
    return TableInfo(
        ID, 1, "test", "t", Ts(0), tuple(placed), indexes, pk_is_handle=pk_is_handle, is_common_handle=bool(clustered)
    )


def primary(id_: int = 1, name: str = "id", kind: ColumnType = ColumnType.LONGLONG, flag: int = 0) -> ColumnInfo:
    return column(id_, kind, name, flag=flag | ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)


def changes(*rows: tuple[bytes, bytes, bytes]) -> pa.RecordBatch:
    """From (key, value, old value)."""
    keys, values, old = (list(part) for part in zip(*rows, strict=True)) if rows else ([], [], [])
    ops = [Op.PUT if value else Op.DELETE for value in values]
    stamps = list(range(1, 2 * len(rows), 2))
    columns = [stamps, [ts + 1 for ts in stamps], ops, keys, values, old]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, RAW_CHANGE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_CHANGE_SCHEMA)


def rows_of(t: TableInfo, pairs: Sequence[tuple[bytes, bytes]], zone: str = "UTC") -> list[dict[str, Any]]:
    keys, values = zip(*pairs, strict=True)
    decoded = mount_values(t, ID, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), zone)
    decoded.validate(full=True)
    return decoded.to_pylist()


def outcomes(t: TableInfo, key: bytes, value: bytes, zone: str = "UTC") -> tuple[Any, Any]:
    """What the mounter and the reference make of one row; None where they refuse it."""
    try:
        mine = rows_of(t, [(key, value)], zone)[0]
    except RowUndecodableError:
        mine = None
    try:
        plain = Decoder(t, ID, zone).decode(key, value)
    except Undecodable:
        plain = None
    return mine, plain
