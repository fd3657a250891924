"""A table as the simple protocol describes it: columns in the order of their ids, and indexes.

Both of the protocol's encodings are made of this: JSON writes it as it stands, Avro in records of the same members.
"""

from typing import Any

from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, IndexInfo, TableInfo
from tidemill.tidb.mysql_type import type_word


def table_schema(table: TableInfo) -> dict[str, Any]:
    return {
        "schema": table.schema,
        "table": table.name,
        "tableID": table.id,
        "version": table.update_ts,
        "columns": [*map(_column, columns_by_id(table)), *map(_of_view, table.view_columns)],
        "indexes": indexes(table),
    }


def columns_by_id(table: TableInfo) -> list[ColumnInfo]:
    """All of them, virtual and hidden ones too."""
    return sorted(table.columns, key=lambda column: column.id)


def indexes(table: TableInfo) -> list[dict[str, Any]]:
    found = [_index(table, index) for index in table.indexes]
    if names := _implied_key(table):
        found.append({"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": names})
    return found


def _implied_key(table: TableInfo) -> list[str]:
    """The columns of a primary key that is no index: that of the handle itself, else of the first unique index that
    could be one. This is not the handle key: with several such indexes the first counts, not the shortest."""
    if any(index.is_primary for index in table.indexes):
        return []
    if table.pk_is_handle:
        return [column.name for column in table.primary_key]
    for index in table.indexes:
        columns = [table.columns[part.offset] for part in index.columns]
        if index.is_unique and columns and all(c.is_not_null and not c.is_hidden for c in columns):
            return [column.name for column in columns]
    return []


def _index(table: TableInfo, index: IndexInfo) -> dict[str, Any]:
    columns = [table.columns[part.offset] for part in index.columns]
    return {
        "name": index.name,
        "unique": index.is_unique,
        "primary": index.is_primary,
        "nullable": any(not column.is_not_null for column in columns),
        "columns": [column.name for column in columns],
    }


def _column(column: ColumnInfo) -> dict[str, Any]:
    return {
        "name": column.name,
        "dataType": _data_type(column),
        "nullable": not column.is_not_null,
        "default": default_of(column),
    }


def _of_view(name: str) -> dict[str, Any]:
    kind = {"mysqlType": "unspecified", "charset": "", "collate": ""}
    return {"name": name, "dataType": kind, "nullable": True, "default": None}


def _data_type(column: ColumnInfo) -> dict[str, Any]:
    """Members that are 0, empty or false are left out."""
    has_decimal = column.type not in (ColumnType.FLOAT, ColumnType.DOUBLE)
    optional = {
        "length": column.flen,
        "decimal": column.decimal if has_decimal else 0,
        "elements": list(column.elems),
        "unsigned": column.is_unsigned,
        "zerofill": bool(column.flag & ColumnFlag.ZEROFILL),
    }
    found: dict[str, Any] = {"mysqlType": type_word(column), "charset": column.charset, "collate": column.collate}
    return found | {member: value for member, value in optional.items() if value}


def default_of(column: ColumnInfo) -> str | int | None:
    """A number for a BIT, text for all others."""
    if column.type is ColumnType.BIT and column.default_bit is not None:
        return int.from_bytes(column.default_bit)
    return column.default
