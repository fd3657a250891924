"""The documents of columns and indexes (ColumnInfo, IndexInfo), as TiDB writes them from a definition."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from tidebox.sql.ddl.defaults import Default, Settings, build_default
from tidebox.sql.ddl.refusals import no_key_column
from tidebox.sql.parse.expressions import column_names, to_text
from tidebox.sql.parse.statements import ColumnDef, KeyDef, KeyKind, KeyPart
from tidebox.sql.types import (
    CHARSETS,
    NO_DEFAULT_FLAG,
    UNSPECIFIED,
    Charset,
    FieldType,
    field_type,
    is_blob,
    is_text,
)
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import ColumnFlag, ColumnType

Document: TypeAlias = dict[str, Any]  # TiDB's JSON

PUBLIC: Final = 5
DEFAULT_SETTINGS: Final = Settings()
PRIMARY: Final = "PRIMARY"
_VECTOR_INDEX = "add vector index: unsupported adding a general index on a vector column"
_MAX_KEY_BYTES = 3072
_MAX_KEY_PARTS = 16
_MAX_COMMENT = 1024
_INDEX_TYPES = {None: 1, "BTREE": 1, "HASH": 2, "RTREE": 3}
_SIZES = {
    ColumnType.TINY: 1,
    ColumnType.SHORT: 2,
    ColumnType.INT24: 3,
    ColumnType.LONG: 4,
    ColumnType.LONGLONG: 8,
    ColumnType.DOUBLE: 8,
    ColumnType.FLOAT: 4,
    ColumnType.YEAR: 1,
    ColumnType.DATE: 3,
    ColumnType.DURATION: 3,
    ColumnType.DATETIME: 8,
    ColumnType.TIMESTAMP: 4,
    ColumnType.ENUM: 2,
    ColumnType.SET: 8,
    ColumnType.BIT: 8,
}


def ci(name: str) -> Document:
    """A name as TiDB keeps it: as typed, and in lower case."""
    return {"O": name, "L": name.lower()}


# Columns


def build_column(column: ColumnDef, offset: int, charset: Charset, settings: Settings = DEFAULT_SETTINGS) -> Document:
    """A new column, public, without an id. Flags of keys come with the table or the index."""
    _check_name(column.name)
    kind = field_type(column.type, column.name, charset)
    if column.is_not_null or column.is_auto_increment:
        kind["Flag"] |= int(ColumnFlag.NOT_NULL)
    if column.is_auto_increment:
        if kind["Tp"] not in _NUMBERED:
            raise sql_error(Errno.WRONG_FIELD_SPEC, column.name)
        kind["Flag"] |= int(ColumnFlag.AUTO_INCREMENT)
    if column.key is KeyKind.PRIMARY:
        kind["Flag"] |= int(ColumnFlag.PRI_KEY)
    elif column.key is KeyKind.UNIQUE:
        kind["Flag"] |= int(ColumnFlag.UNIQUE_KEY)
    default = _default_of(column, kind, settings)
    if column.on_update is not None:
        _check_on_update(column, kind)
        kind["Flag"] |= int(ColumnFlag.ON_UPDATE_NOW)
    document = column_document(column.name, kind, default, offset)
    document["comment"] = _comment(column)
    if column.generated is not None:
        _check_generated(column)
        document["generated_expr_string"] = to_text(column.generated.expression)
        document["generated_stored"] = column.generated.is_stored
        document["dependences"] = {n.lower(): {} for n in sorted(column_names(column.generated.expression))}
    # The empty default of a BLOB, which a session that is not strict may write, counts for none.
    set_no_default_flag(document, has_default=column.default is not None and not is_blob(kind))
    return document


_NUMBERED = frozenset(
    {
        ColumnType.TINY,
        ColumnType.SHORT,
        ColumnType.INT24,
        ColumnType.LONG,
        ColumnType.LONGLONG,
        ColumnType.FLOAT,
        ColumnType.DOUBLE,
    }
)


def column_document(name: str, kind: FieldType, default: Default, offset: int) -> Document:
    return {
        "id": 0,
        "name": ci(name),
        "offset": offset,
        "origin_default": None,
        "origin_default_bit": None,
        "default": default.value,
        "default_bit": default.bits,
        "default_is_expr": default.is_expression,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "type": kind,
        "state": PUBLIC,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }


def _default_of(column: ColumnDef, kind: FieldType, settings: Settings) -> Default:
    if column.default is None:
        is_year = kind["Tp"] == ColumnType.YEAR and (column.is_not_null or column.key is KeyKind.PRIMARY)
        return Default("0000" if is_year else None)  # a YEAR has one even where it says it has none
    if column.is_auto_increment:
        raise sql_error(Errno.INVALID_DEFAULT, column.name)
    default = build_default(column.name, kind, column.default, column.default_is_expression, settings)
    is_not_null = kind["Flag"] & ColumnFlag.NOT_NULL or (column.key is KeyKind.PRIMARY)
    if default.value is None and is_not_null:
        raise sql_error(Errno.INVALID_DEFAULT, column.name)
    return default


def set_no_default_flag(column: Document, *, has_default: bool) -> None:
    """NOT NULL without a default: an INSERT that leaves it out fails."""
    kind = column["type"]
    if has_default or not kind["Flag"] & ColumnFlag.NOT_NULL or kind["Flag"] & ColumnFlag.AUTO_INCREMENT:
        return
    kind["Flag"] |= NO_DEFAULT_FLAG


def _check_on_update(column: ColumnDef, kind: FieldType) -> None:
    is_moment = kind["Tp"] in (ColumnType.DATETIME, ColumnType.TIMESTAMP)
    if not is_moment or column.on_update != max(kind["Decimal"], 0):
        raise sql_error(Errno.INVALID_ON_UPDATE, column.name)


def _check_name(name: str) -> None:
    if not name or name.endswith(" "):
        raise sql_error(Errno.WRONG_COLUMN_NAME, name)


def _comment(column: ColumnDef) -> str:
    if len(column.comment) > _MAX_COMMENT:
        raise sql_error(Errno.TOO_LONG_FIELD_COMMENT, column.name, _MAX_COMMENT)
    return column.comment


def _check_generated(column: ColumnDef) -> None:
    if column.default is not None:
        raise sql_error(Errno.WRONG_USAGE, "DEFAULT", "generated column")
    if column.is_auto_increment:
        raise sql_error(Errno.WRONG_USAGE, "AUTO_INCREMENT", "generated column")
    if column.on_update is not None:
        raise sql_error(Errno.WRONG_USAGE, "ON UPDATE", "generated column")
    if column.key is KeyKind.PRIMARY:
        raise sql_error(Errno.UNSUPPORTED_ON_GENERATED_COLUMN, "Defining a generated column as primary key")


def find_column(columns: Sequence[Document], name: str) -> Document | None:
    """By name, in any case."""
    folded = name.lower()
    return next((c for c in columns if c["name"]["L"] == folded), None)


# Indexes


def build_index(
    table: str, columns: Sequence[Document], key: KeyDef, name: str, index_id: int, state: int = PUBLIC
) -> Document:
    """An index over columns of its table. Its columns' flags stay as they are: ``flag_columns``."""
    if len(key.comment) > _MAX_COMMENT:
        raise sql_error(Errno.TOO_LONG_INDEX_COMMENT, name, _MAX_COMMENT)
    is_primary = key.kind is KeyKind.PRIMARY
    if is_primary and key.is_invisible:
        raise sql_error(Errno.PK_INDEX_CANT_BE_INVISIBLE)
    return {
        "id": index_id,
        "idx_name": ci(name),
        "tbl_name": ci(""),
        "idx_cols": _key_columns(columns, key.parts),
        "state": state,
        "backfill_state": 0,
        "comment": key.comment,
        "index_type": _INDEX_TYPES[key.type],
        "is_unique": key.kind in (KeyKind.PRIMARY, KeyKind.UNIQUE),
        "is_primary": is_primary,
        "is_invisible": key.is_invisible,
        "is_global": False,
        "mv_index": False,
        "vector_index": None,
    }


def _key_columns(columns: Sequence[Document], parts: Sequence[KeyPart]) -> list[Document]:
    if len(parts) > _MAX_KEY_PARTS:
        raise sql_error(Errno.TOO_MANY_KEY_PARTS, _MAX_KEY_PARTS)
    found: list[Document] = []
    size = 0
    for part in parts:
        column = find_column(columns, part.column)
        if column is None:
            raise no_key_column(part.column)
        if any(f["name"]["L"] == column["name"]["L"] for f in found):
            raise sql_error(Errno.DUP_FIELDNAME, part.column)
        length = _key_length(column, part)
        size += _key_bytes(column["type"], length)
        if size > _MAX_KEY_BYTES:
            raise sql_error(Errno.TOO_LONG_KEY, size, _MAX_KEY_BYTES)
        found.append({"name": dict(column["name"]), "offset": column["offset"], "length": length})
    return found


def _key_length(column: Document, part: KeyPart) -> int:
    kind, name = column["type"], column["name"]["O"]
    if kind["Tp"] == ColumnType.JSON:
        raise sql_error(Errno.JSON_USED_AS_KEY, name)
    if kind["Tp"] == ColumnType.VECTOR:
        raise sql_error(Errno.UNSUPPORTED_DDL_OPERATION, _VECTOR_INDEX)
    if part.length is None:
        if is_blob(kind):
            raise sql_error(Errno.BLOB_KEY_WITHOUT_LENGTH, name)
        if is_text(kind) and kind["Flen"] == 0:
            raise sql_error(Errno.WRONG_KEY_COLUMN, name)
        return UNSPECIFIED
    if part.length == 0:
        raise sql_error(Errno.KEY_PART_0, name)
    if not is_text(kind) or (not is_blob(kind) and kind["Flen"] < part.length):
        raise sql_error(Errno.WRONG_SUB_KEY)
    # A prefix of the whole length is the whole column.
    return UNSPECIFIED if not is_blob(kind) and kind["Flen"] == part.length else part.length


def _key_bytes(kind: FieldType, length: int) -> int:
    if is_text(kind):
        characters: int = kind["Flen"] if length == UNSPECIFIED else length
        return characters * CHARSETS[kind["Charset"]][1]
    if kind["Tp"] == ColumnType.NEWDECIMAL:
        return int(kind["Flen"]) // 9 * 4 + 4
    return _SIZES[ColumnType(kind["Tp"])]


def flag_columns(columns: Sequence[Document], index: Document) -> None:
    """Say of a new index's columns that they are in one, as SHOW COLUMNS tells it."""
    places = [columns[c["offset"]] for c in index["idx_cols"]]
    if index["is_primary"]:
        for column in places:
            column["type"]["Flag"] |= int(ColumnFlag.PRI_KEY)
        return
    is_single = index["is_unique"] and len(places) == 1
    places[0]["type"]["Flag"] |= int(ColumnFlag.UNIQUE_KEY if is_single else ColumnFlag.MULTIPLE_KEY)


def unflag_columns(columns: Sequence[Document], indexes: Sequence[Document], gone: Document) -> None:
    """``gone`` has left ``indexes``: take its flags from its columns, and set again those that others give."""
    taken = int(ColumnFlag.PRI_KEY) if gone["is_primary"] else int(ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY)
    places = gone["idx_cols"] if gone["is_primary"] else gone["idx_cols"][:1]
    for part in places:
        columns[part["offset"]]["type"]["Flag"] &= ~taken
    for index in indexes:
        if index["id"] != gone["id"]:
            flag_columns(columns, index)
