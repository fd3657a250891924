"""The documents of databases and tables (DBInfo, TableInfo), as TiDB writes them from CREATE statements."""

import copy
from dataclasses import replace

from tidebox.sql.ddl.columns import (
    DEFAULT_SETTINGS,
    PRIMARY,
    PUBLIC,
    Document,
    build_column,
    build_index,
    ci,
    find_column,
    flag_columns,
    set_no_default_flag,
)
from tidebox.sql.ddl.defaults import Settings
from tidebox.sql.ddl.refusals import no_key_column
from tidebox.sql.parse.expressions import Constant
from tidebox.sql.parse.statements import ColumnDef, CreateTable, KeyDef, KeyKind, KeyPart
from tidebox.sql.types import Charset, resolve_charset
from tidebox.sql.wire.errors import Errno, sql_error
from tidemill.model.table import INTEGER_TYPES, ColumnFlag

TABLE_VERSION = 5
DEFAULT_CHARSET = Charset("utf8mb4", "utf8mb4_bin")
_MAX_COLUMNS = 1017
_MAX_INDEXES = 64
_MAX_COMMENT = 2048


def build_database(database_id: int, name: str, charset: Charset, state: int = 0) -> Document:
    return {
        "id": database_id,
        "db_name": ci(name),
        "charset": charset.name,
        "collate": charset.collate,
        "Deprecated": {},
        "state": state,
        "policy_ref_info": None,
    }


def build_table(statement: CreateTable, database: Charset, settings: Settings = DEFAULT_SETTINGS) -> Document:
    """A new table, public, without an id. ``database``: what its character set falls back to."""
    options = statement.options
    charset = resolve_charset(options.charset, options.collate, database)
    _check_table(statement)
    columns: list[Document] = []
    for at, definition in enumerate(statement.columns):
        if not _is_refused_default(definition):
            _check_primary(statement, definition)
        columns.append(build_column(definition, at, charset, settings))
    for at, column in enumerate(columns):
        column["id"] = at + 1
    _check_generated(columns)
    keys = _keys(statement)
    table = table_document(statement.table.name, charset, columns)
    table["comment"] = options.comment
    table["auto_inc_id"] = options.auto_increment or 0
    table["auto_id_cache"] = options.auto_id_cache
    _add_keys(table, keys, settings.clusters_all)
    _check_auto_increment(table)
    return table


def table_document(name: str, charset: Charset, columns: list[Document]) -> Document:
    return {
        "id": 0,
        "name": ci(name),
        "charset": charset.name,
        "collate": charset.collate,
        "cols": columns,
        "index_info": None,
        "constraint_info": None,
        "fk_info": None,
        "state": PUBLIC,
        "pk_is_handle": False,
        "is_common_handle": False,
        "common_handle_version": 0,
        "comment": "",
        "auto_inc_id": 0,
        "auto_id_cache": 0,
        "auto_rand_id": 0,
        "max_col_id": len(columns),
        "max_idx_id": 0,
        "max_fk_id": 0,
        "max_cst_id": 0,
        "update_timestamp": 0,
        "ShardRowIDBits": 0,
        "max_shard_row_id_bits": 0,
        "auto_random_bits": 0,
        "auto_random_range_bits": 0,
        "pre_split_regions": 0,
        "partition": None,
        "compression": "",
        "view": None,
        "sequence": None,
        "Lock": None,
        "version": TABLE_VERSION,
        "tiflash_replica": None,
        "is_columnar": False,
        "temp_table_type": 0,
        "cache_table_status": 0,
        "policy_ref_info": None,
        "stats_options": None,
        "exchange_partition_info": None,
        "ttl_info": None,
        "revision": 0,
    }


def build_like(source: Document, name: str) -> Document:
    """CREATE TABLE LIKE: what is public of ``source``, with its ids, and no rows."""
    table = copy.deepcopy(source)
    table.update(id=0, name=ci(name), auto_inc_id=0, update_timestamp=0, fk_info=None, Lock=None)
    table.pop("old_schema_id", None)
    table["cols"] = [c for c in table["cols"] if c["state"] == PUBLIC]
    offsets = {c["name"]["L"]: at for at, c in enumerate(table["cols"])}
    for at, column in enumerate(table["cols"]):
        column["offset"] = at
    indexes = [i for i in table["index_info"] or () if i["state"] == PUBLIC]
    for index in indexes:
        for part in index["idx_cols"]:
            part["offset"] = offsets[part["name"]["L"]]
    table["index_info"] = indexes if table["index_info"] is not None else None
    table["state"] = PUBLIC
    return table


# Keys


def _keys(statement: CreateTable) -> list[KeyDef]:
    """The keys of the table, then those of its columns, which is the order of their ids."""
    keys = list(statement.keys)
    for column in statement.columns:
        if column.key is not None:
            name = column.name if column.key is KeyKind.UNIQUE else None
            part = KeyPart(column.name)
            keys.append(KeyDef(column.key, name, (part,), column.is_clustered))
    if sum(k.kind is KeyKind.PRIMARY for k in keys) > 1:
        raise sql_error(Errno.MULTIPLE_PRI_KEY)
    if len(keys) > _MAX_INDEXES:
        raise sql_error(Errno.TOO_MANY_KEYS, _MAX_INDEXES)
    return _named(keys)


def _named(keys: list[KeyDef]) -> list[KeyDef]:
    """Names for those without: the first column's, with a number if that is taken."""
    taken: set[str] = set()
    for key in keys:
        if key.name is not None:
            check_index_name(key.name)
            if key.name.lower() in taken:
                raise sql_error(Errno.DUP_KEYNAME, key.name)
            taken.add(key.name.lower())
    named: list[KeyDef] = []
    for key in keys:
        if key.kind is KeyKind.PRIMARY:
            named.append(replace(key, name=PRIMARY))
        elif key.name is None:
            name = free_index_name(key.parts[0].column, taken)
            taken.add(name.lower())
            named.append(replace(key, name=name))
        else:
            named.append(key)
    return named


def free_index_name(column: str, taken: set[str]) -> str:
    """The name of an index over ``column`` that was given none. ``taken`` in lower case."""
    name, number = column, 2
    while name.lower() in taken or name.upper() == PRIMARY:
        name = f"{column}_{number}"
        number += 1
    return name


def check_index_name(name: str) -> None:
    if name.upper() == PRIMARY or not name:
        raise sql_error(Errno.WRONG_NAME_FOR_INDEX, name)


def _add_keys(table: Document, keys: list[KeyDef], clusters_all: bool) -> None:
    columns = table["cols"]
    indexes: list[Document] = []
    for key in keys:
        if key.kind is KeyKind.PRIMARY:
            _make_primary(table, key, clusters_all)
            if table["pk_is_handle"]:
                continue
        table["max_idx_id"] += 1
        index = build_index(table["name"]["O"], columns, key, key.name or "", table["max_idx_id"])
        flag_columns(columns, index)
        indexes.append(index)
    table["index_info"] = indexes or None


def _make_primary(table: Document, key: KeyDef, clusters_all: bool) -> None:
    """Mark the columns of the primary key, and choose how rows are known: by it, or by a number of their own."""
    columns = []
    for part in key.parts:
        column = find_column(table["cols"], part.column)
        if column is None:
            raise no_key_column(part.column)
        if column["generated_expr_string"] and not column["generated_stored"]:
            raise sql_error(Errno.UNSUPPORTED_ON_GENERATED_COLUMN, "Defining a virtual generated column as primary key")
        columns.append(column)
    for column in columns:
        column["type"]["Flag"] |= int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
        set_no_default_flag(column, has_default=column["default"] is not None)
    is_integer = len(columns) == 1 and columns[0]["type"]["Tp"] in INTEGER_TYPES and key.parts[0].length is None
    if key.is_clustered is False:
        return
    if is_integer:
        table["pk_is_handle"] = True
    elif clusters_all or key.is_clustered:
        table["is_common_handle"] = True
        table["common_handle_version"] = 1


# Checks


def _check_table(statement: CreateTable) -> None:
    name = statement.table.name
    if not name or name.endswith(" "):
        raise sql_error(Errno.WRONG_TABLE_NAME, name)
    if not statement.columns:
        raise sql_error(Errno.TABLE_MUST_HAVE_COLUMNS)
    if len(statement.columns) > _MAX_COLUMNS:
        raise sql_error(Errno.TOO_MANY_FIELDS)
    if len(statement.options.comment) > _MAX_COMMENT:
        raise sql_error(Errno.TOO_LONG_TABLE_COMMENT, name, _MAX_COMMENT)
    seen: set[str] = set()
    for column in statement.columns:
        if column.name.lower() in seen:
            raise sql_error(Errno.DUP_FIELDNAME, column.name)
        seen.add(column.name.lower())


def _is_refused_default(column: ColumnDef) -> bool:
    """Whether a column's type takes no literal default, which is told before all else of it."""
    is_null = isinstance(column.default, Constant) and column.default.value is None
    return column.type.name.endswith(("TEXT", "BLOB", "JSON", "VECTOR")) and column.default is not None and not is_null


def _check_primary(statement: CreateTable, column: ColumnDef) -> None:
    """No part of the primary key may be said to be NULL, by itself or by its default."""
    has_null_default = isinstance(column.default, Constant) and column.default.value is None
    if column.key is KeyKind.PRIMARY:
        if column.is_not_null is False:
            raise sql_error(Errno.PRIMARY_CANT_HAVE_NULL)
        if has_null_default:
            raise sql_error(Errno.INVALID_DEFAULT, column.name)
    if column.is_not_null is False or has_null_default:
        keys = (key for key in statement.keys if key.kind is KeyKind.PRIMARY)
        if any(part.column.lower() == column.name.lower() for key in keys for part in key.parts):
            raise sql_error(Errno.PRIMARY_CANT_HAVE_NULL)


def _check_generated(columns: list[Document]) -> None:
    places = {c["name"]["L"]: at for at, c in enumerate(columns)}
    for at, column in enumerate(columns):
        for name in column["dependences"] or ():
            check_dependency(columns, column, name, places.get(name), at)


def check_dependency(columns: list[Document], column: Document, name: str, place: int | None, at: int) -> None:
    """A generated column may read columns that are there, and generated ones only if they stand before it."""
    if place is None:
        raise sql_error(Errno.BAD_FIELD_ERROR, name, "generated column function")
    read = columns[place]
    if read["generated_expr_string"] and place >= at:
        raise sql_error(Errno.GENERATED_COLUMN_NON_PRIOR)
    if read["type"]["Flag"] & ColumnFlag.AUTO_INCREMENT:
        raise sql_error(Errno.GENERATED_COLUMN_REF_AUTO_INC, column["name"]["O"])


def _check_auto_increment(table: Document) -> None:
    """There is one at most. That it leads a key TiDB no longer asks."""
    numbered = [c for c in table["cols"] if c["type"]["Flag"] & ColumnFlag.AUTO_INCREMENT]
    if len(numbered) > 1:
        raise sql_error(Errno.WRONG_AUTO_KEY)
