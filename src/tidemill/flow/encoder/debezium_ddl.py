"""What Debezium's message of a DDL tells of the table: all its columns as they are afterwards.

TiCDC takes the lengths and defaults of dates and times that the statement spells out from its text, all others from the
schema, and so do we: ``d datetime`` has no length in the message of its CREATE TABLE, and 0 in the next one.
"""

from dataclasses import replace

from tidemill.flow.encoder.debezium_defaults import bits_text
from tidemill.flow.encoder.json_text import plain
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.tidb.column_definitions import CURRENT_TIMESTAMP, NULL, ColumnDefinition, column_definitions
from tidemill.tidb.mysql_type import default_length, type_word

_CREATE = (
    ActionType.CREATE_SCHEMA,
    ActionType.CREATE_TABLE,
    ActionType.CREATE_TABLES,
    ActionType.CREATE_VIEW,
)
_DROP = (
    ActionType.DROP_SCHEMA,
    ActionType.DROP_TABLE,
    ActionType.DROP_INDEX,
    ActionType.DROP_VIEW,
    ActionType.TRUNCATE_TABLE,
)
_ALTER = (
    ActionType.ADD_COLUMN,
    ActionType.MODIFY_COLUMN,
    ActionType.DROP_COLUMN,
    ActionType.MULTI_SCHEMA_CHANGE,
    ActionType.ADD_TABLE_PARTITION,
    ActionType.REMOVE_PARTITIONING,
    ActionType.REORGANIZE_PARTITION,
    ActionType.EXCHANGE_PARTITION,
    ActionType.ALTER_TABLE_PARTITIONING,
    ActionType.TRUNCATE_TABLE_PARTITION,
    ActionType.DROP_TABLE_PARTITION,
    ActionType.REBASE_AUTO_ID,
    ActionType.SET_DEFAULT_VALUE,
    ActionType.MODIFY_TABLE_COMMENT,
    ActionType.MODIFY_TABLE_CHARSET,
    ActionType.MODIFY_SCHEMA_CHARSET,
    ActionType.ADD_INDEX,
    ActionType.ALTER_INDEX_VISIBILITY,
    ActionType.RENAME_INDEX,
    ActionType.RENAME_TABLE,
    ActionType.RENAME_TABLES,
    ActionType.RECOVER_TABLE,
    ActionType.ADD_PRIMARY_KEY,
    ActionType.DROP_PRIMARY_KEY,
    ActionType.ALTER_TTL,
    ActionType.REMOVE_TTL,
)
_WORDS: dict[int, str] = {
    **dict.fromkeys(_CREATE, "CREATE"),
    **dict.fromkeys(_DROP, "DROP"),
    **dict.fromkeys(_ALTER, "ALTER"),
}
_TIMESTAMP_WITH_TIMEZONE = 2014
_JDBC_TYPES = {
    ColumnType.TINY: 5,
    ColumnType.SHORT: 5,
    ColumnType.INT24: 4,
    ColumnType.LONG: 4,
    ColumnType.YEAR: 4,
    ColumnType.LONGLONG: -5,
    ColumnType.FLOAT: 6,
    ColumnType.DOUBLE: 8,
    ColumnType.NEWDECIMAL: 3,
    ColumnType.TIMESTAMP: _TIMESTAMP_WITH_TIMEZONE,
    ColumnType.DATETIME: 93,
    ColumnType.DATE: 91,
    ColumnType.NEWDATE: 91,
    ColumnType.DURATION: 92,
    ColumnType.ENUM: 1,
    ColumnType.SET: 1,
    ColumnType.BIT: -7,
    ColumnType.JSON: 1111,
}
_BLOBS = frozenset({ColumnType.TINYBLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB, ColumnType.BLOB})
_VARCHARS = frozenset({ColumnType.VARCHAR, ColumnType.VARSTRING})
_TEXTS = _BLOBS | {ColumnType.STRING, ColumnType.VARCHAR, ColumnType.ENUM, ColumnType.SET}
_TIMES = {
    "DATETIME": ColumnType.DATETIME,
    "TIMESTAMP": ColumnType.TIMESTAMP,
    "TIME": ColumnType.DURATION,
    "YEAR": ColumnType.YEAR,
}
_SMALL = frozenset({ColumnType.TINY, ColumnType.SHORT, ColumnType.INT24, ColumnType.LONG})
_WITH_LENGTH = _VARCHARS | {
    ColumnType.STRING,
    ColumnType.BIT,
    ColumnType.VECTOR,
    ColumnType.LONGLONG,
    ColumnType.FLOAT,
    ColumnType.DOUBLE,
}
_PLAIN_NAMES = frozenset(
    {ColumnType.YEAR, ColumnType.BIT, ColumnType.VARCHAR, ColumnType.STRING, ColumnType.NEWDECIMAL}
)
_NO_MOMENT = "1970-01-01 00:00:00"


def ddl_word(action: int) -> str | None:
    """None: no message tells of DDLs of this kind."""
    return _WORDS.get(action)


def table_changes(event: DdlEvent) -> str:
    """JSON, a list."""
    if not event.table or event.type == ActionType.TRUNCATE_TABLE:
        return "[]"
    name = f'"{event.schema}"."{event.table}"'
    if event.type == ActionType.RENAME_TABLE:
        name = f'"{event.pre_schema}"."{event.pre_table}",{name}'
    is_gone = event.type == ActionType.DROP_TABLE or event.table_info is None
    table = None if is_gone or event.table_info is None else _table(event.table_info, event.query)
    return plain([{"type": _WORDS[event.type], "id": name, "table": table}])


def _table(table: TableInfo, query: str) -> dict[str, object]:
    definitions = {each.name.lower(): each for each in column_definitions(query)}
    columns = [
        _column(_as_written(column, definitions.get(column.name.lower())), place)
        for place, column in enumerate(table.columns, 1)
        if not column.is_hidden
    ]
    return {
        "defaultCharsetName": table.charset,
        "primaryKeyColumnNames": _key_names(table),
        "columns": columns or [_view_column(name, place) for place, name in enumerate(table.view_columns, 1)],
        "comment": None,
    }


def _key_names(table: TableInfo) -> list[str]:
    """Without a primary key, the first unique key that could be one."""
    if table.primary_key:
        return [column.name for column in table.primary_key]
    for index in table.indexes:
        columns = [table.columns[part.offset] for part in index.columns]
        if index.is_unique and all(column.is_not_null and not column.is_hidden for column in columns):
            return [column.name for column in columns]
    return []


def _as_written(column: ColumnInfo, written: ColumnDefinition | None) -> ColumnInfo:
    if written is None:
        return column
    column = replace(column, comment="")
    if _TIMES.get(written.type) is not column.type:
        return column
    if column.type is ColumnType.YEAR:
        column = replace(column, flen=written.length)
    else:
        column = replace(column, decimal=written.length)
    if written.default is None:
        return column
    return replace(column, default=None if written.default == NULL else written.default)


def _column(column: ColumnInfo, position: int) -> dict[str, object]:
    kind, name = column.type, type_word(column).upper()
    jdbc = _jdbc_type(column)
    sign = _sign(column)
    counts = bool(column.flag & ColumnFlag.AUTO_INCREMENT) or (
        bool(column.flag & ColumnFlag.ON_UPDATE_NOW) and jdbc == _TIMESTAMP_WITH_TIMEZONE
    )
    length = _length(column)
    has_scale = kind in (ColumnType.NEWDECIMAL, ColumnType.FLOAT, ColumnType.DOUBLE) and column.decimal != -1
    return {
        "name": column.name,
        "jdbcType": jdbc,
        "nativeType": None,
        "comment": column.comment or None,
        "defaultValueExpression": _default(column),
        "enumValues": [f"'{elem}'" for elem in column.elems] or None,
        "typeName": name + sign,
        "typeExpression": name + _suffix(column) + sign,
        "charsetName": column.charset if kind in _TEXTS and not column.is_binary else None,
        "length": None if length == -1 else length,
        "scale": column.decimal if has_scale else None,
        "position": position,
        "optional": not column.is_not_null,
        "autoIncremented": counts,
        "generated": counts,
    }


def _view_column(name: str, position: int) -> dict[str, object]:
    return {
        "name": name,
        "jdbcType": 12,
        "nativeType": None,
        "comment": None,
        "defaultValueExpression": None,
        "enumValues": None,
        "typeName": "UNSPECIFIED",
        "typeExpression": "UNSPECIFIED",
        "charsetName": None,
        "length": None,
        "scale": None,
        "position": position,
        "optional": True,
        "autoIncremented": False,
        "generated": False,
    }


def _jdbc_type(column: ColumnInfo) -> int:
    is_binary = bool(column.flag & ColumnFlag.BINARY)
    if column.type in _BLOBS:
        return 2004 if is_binary else 12
    if column.type in _VARCHARS:
        return -3 if is_binary else 12
    if column.type is ColumnType.STRING:
        return -2 if is_binary else 1
    return _JDBC_TYPES.get(column.type, 12)


def _sign(column: ColumnInfo) -> str:
    if column.type in _PLAIN_NAMES:
        return ""
    if column.flag & ColumnFlag.ZEROFILL:
        return " UNSIGNED ZEROFILL"
    return " UNSIGNED" if column.is_unsigned else ""


def _suffix(column: ColumnInfo) -> str:
    length = column.flen if column.flen != -1 else default_length(column.type)
    if column.type is ColumnType.DOUBLE and column.decimal > 0:
        return f"({length},{column.decimal})"
    return f"({column.flen})" if column.type is ColumnType.VECTOR and column.flen != -1 else ""


def _length(column: ColumnInfo) -> int:
    """-1: none is told, as for what everybody takes where none is given."""
    kind, usual = column.type, default_length(column.type)
    if kind in (ColumnType.TIMESTAMP, ColumnType.DURATION, ColumnType.DATETIME):
        return column.decimal
    if kind in _SMALL:
        usual -= column.is_unsigned
        usual += kind is ColumnType.TINY and bool(column.flag & ColumnFlag.ZEROFILL)
        return column.flen if column.flen != usual else -1
    if kind in _WITH_LENGTH:
        return column.flen if column.flen != usual else -1
    if kind in (ColumnType.YEAR, ColumnType.NEWDECIMAL):
        return column.flen
    if kind is ColumnType.SET:
        return 2 * len(column.elems) - 1
    return 1 if kind is ColumnType.ENUM else -1


def _default(column: ColumnInfo) -> str | None:
    if column.type is ColumnType.BIT:
        return None if column.default_bit is None else bits_text(column, column.default_bit)
    if column.default is not None and column.default.upper() == CURRENT_TIMESTAMP:
        return _NO_MOMENT
    return column.default
