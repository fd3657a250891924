"""Functions of texts and numbers, of choice, and about the session."""

import uuid
from typing import Any

from tidebox.sql.compute import casts, operators
from tidebox.sql.compute import documents as _documents  # noqa: F401  # registers its functions
from tidebox.sql.compute import mathematics as _mathematics  # noqa: F401  # registers its functions
from tidebox.sql.compute import moments as _moments  # noqa: F401  # registers its functions
from tidebox.sql.compute import strings as _strings  # noqa: F401  # registers its functions
from tidebox.sql.compute import vectors as _vectors  # noqa: F401  # registers its functions
from tidebox.sql.compute.compare import order_key
from tidebox.sql.compute.kinds import BOOL, INT, TEXT, UNSIGNED, Computed, Kind, Type
from tidebox.sql.compute.registry import FUNCTIONS, MANY, function, integers, is_constant, strict
from tidebox.sql.compute.scope import Context
from tidebox.sql.syntax.tree import Call
from tidebox.sql.wire.errors import Errno, sql_error


def call(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    found = FUNCTIONS.get(tree.name)
    if found is None:
        raise sql_error(Errno.NOT_SUPPORTED_YET, f"function {tree.name}")
    least, most, build = found
    if not least <= len(arguments) <= most:
        raise sql_error(Errno.WRONG_PARAMCOUNT, tree.name.lower())
    return build(tree, arguments, context)


# Choice


@function("IF", least=3)
def _if(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    test = operators.truth_of(arguments[0], context.settings)
    kind, (yes, no) = casts.unified(arguments[1:], context)
    return Computed(kind, lambda row: yes(row) if test(row) else no(row), is_constant(arguments))


@function("COALESCE", least=1, most=MANY)
def _coalesce(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind, computes = casts.unified(arguments, context)

    def compute(row: Any) -> Any:
        for each in computes:
            value = each(row)
            if value is not None:
                return value
        return None

    return Computed(kind, compute, is_constant(arguments))


@function("IFNULL", least=2)
def _ifnull(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _coalesce(tree, arguments, context)


@function("NULLIF", least=2)
def _nullif(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    equal = operators.comparison("=", arguments[0], arguments[1], context.settings).compute
    first = arguments[0]
    return Computed(first.type, lambda row: None if equal(row) else first.compute(row), is_constant(arguments))


@function("ISNULL", least=1)
def _isnull(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    compute = arguments[0].compute
    return Computed(BOOL, lambda row: int(compute(row) is None), arguments[0].is_constant)


@function("GREATEST", "LEAST", least=2, most=MANY)
def _extreme(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind, computes = casts.unified(arguments, context)
    key = order_key(kind)
    choose = max if tree.name == "GREATEST" else min
    return strict(kind, computes, lambda *values: choose(values, key=key), is_constant(arguments))


# The session


def _about(value: Any, kind: Type = TEXT) -> Computed:
    return Computed(kind, lambda row: value, True)


@function("DATABASE", "SCHEMA", least=0)
def _database(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about(context.database or None)


@function("USER", "CURRENT_USER", "SESSION_USER", "SYSTEM_USER", least=0)
def _user(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about("root@%" if tree.name == "CURRENT_USER" else context.user)


@function("VERSION", least=0)
def _version(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about(context.version)


@function("TIDB_VERSION", least=0)
def _tidb_version(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about(f"Release Version: {context.version.rpartition('TiDB-')[2]}\nEdition: Tidemill embedded upstream")


@function("CONNECTION_ID", least=0)
def _connection_id(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about(context.connection_id, UNSIGNED)


@function("LAST_INSERT_ID", least=0, most=1)
def _last_insert_id(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    if not arguments:
        return _about(context.last_insert_id, UNSIGNED)
    (value,) = integers(arguments, context)

    def compute(row: Any) -> int | None:
        found: int | None = value(row)
        context.set_last_insert_id(found or 0)
        return found

    return Computed(UNSIGNED, compute)


@function("FOUND_ROWS", least=0)
def _found_rows(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about(context.found_rows, INT)


@function("ROW_COUNT", least=0)
def _row_count(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return _about(context.row_count, INT)


@function("UUID", least=0)
def _uuid(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    return Computed(TEXT, lambda row: str(uuid.uuid1()))


@function("CHARSET", "COLLATION", least=1)
def _collation(tree: Call, arguments: list[Computed], context: Context) -> Computed:
    kind = arguments[0].type
    name = (kind.collation or "utf8mb4_bin") if kind.kind in (Kind.TEXT, Kind.ENUM, Kind.SET) else "binary"
    return _about(name if tree.name == "COLLATION" else name.partition("_")[0])
