"""Small tables to try the codecs on."""

from typing import Any

from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

NOT_NULL = ColumnFlag.NOT_NULL
PRIMARY = ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY
UNSIGNED = ColumnFlag.UNSIGNED


def column(column_id: int, kind: ColumnType, **how: Any) -> ColumnInfo:
    """A nullable column named after its id; numbers and times have the binary character set, as in TiDB."""
    given = {"flag": 0, "flen": -1, "decimal": -1, "charset": "binary", "collate": "binary", "offset": 0}
    return ColumnInfo(id=column_id, name=f"c{column_id}", type=kind, **(given | how))


def text(column_id: int, kind: ColumnType = ColumnType.VARCHAR, collate: str = "utf8mb4_bin", **how: Any) -> ColumnInfo:
    return column(column_id, kind, charset=collate.split("_")[0], collate=collate, flen=100, **how)


def table(*columns: ColumnInfo, table_id: int = 100, indexes: tuple[IndexInfo, ...] = (), **how: Any) -> TableInfo:
    return TableInfo(table_id, 1, "test", "t", Ts(0), columns, indexes, **how)


def index(index_id: int, *parts: int | tuple[int, int], is_unique: bool = False, is_primary: bool = False) -> IndexInfo:
    """Parts are offsets of columns, or pairs of an offset and a prefix length."""
    columns = tuple(IndexColumn(*part) if isinstance(part, tuple) else IndexColumn(part, -1) for part in parts)
    return IndexInfo(index_id, f"i{index_id}", columns, is_unique or is_primary, is_primary)


def clustered(*columns: ColumnInfo, indexes: tuple[IndexInfo, ...] = (), **how: Any) -> TableInfo:
    """A common handle of all columns that have the primary key's flag."""
    key = index(99, *(at for at, c in enumerate(columns) if c.flag & ColumnFlag.PRI_KEY), is_primary=True)
    return table(*columns, indexes=(key, *indexes), is_common_handle=True, **how)
