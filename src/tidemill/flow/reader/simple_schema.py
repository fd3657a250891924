"""Tables of the simple protocol: its messages describe them in full."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tidemill.flow.reader.shape import UnclearError
from tidemill.flow.reader.tables import UNKNOWN_EXPRESSION
from tidemill.flow.reader.type_words import column_seen
from tidemill.model.table import STRING_TYPES, ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from tidemill.model.ts import Ts

_IMPLIED = "primary"  # the name of a key that is no index, such as an integer that is the handle itself
_OF_A_VIEW = "unspecified"  # the type of its columns


_MOST_SCHEMAS = 16384  # that are remembered


class SchemasSeen:
    """The schemas of messages, by the names and the version that rows give."""

    def __init__(self, tables: Iterable[TableInfo] = ()) -> None:
        """``tables``: those that earlier messages have told of."""
        self._known: OrderedDict[tuple[str, str, int], TableInfo] = OrderedDict(
            ((table.schema, table.name, int(table.version_ts)), table) for table in tables
        )
        self._variants: dict[tuple[int, frozenset[str], bool], tuple[TableInfo, TableInfo]] = {}

    @property
    def tables(self) -> tuple[TableInfo, ...]:
        return tuple(self._known.values())

    def get(self, schema: str, table: str, version: int) -> TableInfo | None:
        return self._known.get((schema, table, version))

    def learn(self, document: Any) -> TableInfo | None:
        """A ``tableSchema``; None: there is none. Raises as ``read_table`` does."""
        if document is None:
            return None
        table = read_table(document)
        key = (table.schema, table.name, int(table.version_ts))
        known = self._known.get(key)
        if known == table:
            return known
        self._known[key] = table
        if len(self._known) > _MOST_SCHEMAS:
            self._known.popitem(last=False)
        return table

    def variant(self, schema: TableInfo, names: frozenset[str], *, is_partial: bool) -> TableInfo:
        """The table as rows with these columns have it; the same object each time."""
        key = (id(schema), names, is_partial)
        known = self._variants.get(key)
        if known is None or known[0] is not schema:
            if len(self._variants) >= _MOST_SCHEMAS:
                self._variants.clear()
            known = self._variants[key] = (schema, with_names(schema, names, is_partial=is_partial))
        return known[1]


def read_table(document: Any) -> TableInfo:
    """A ``tableSchema``. Raises UnclearError, or one of Python's own, where it makes no sense."""
    if any(column["dataType"]["mysqlType"] == _OF_A_VIEW for column in document["columns"]):
        return _view(document)
    names = [column["name"] for column in document["columns"]]
    places = {name: place for place, name in enumerate(names)}
    given = document["indexes"] or []
    indexes = [index for index in given if not (index["name"] == _IMPLIED and index["primary"])]
    implied = [index["columns"] for index in given if index["name"] == _IMPLIED and index["primary"]]
    # Where there is no primary key, the first unique index that could be one is given as such once more.
    clustered = [names for names in implied if all(names != index["columns"] for index in indexes if index["unique"])]
    primary = [*clustered, *(index["columns"] for index in indexes if index["primary"])]
    keys = {places[name] for key in primary for name in key}
    unique = {
        places[name] for index in indexes if index["unique"] and not index["primary"] for name in index["columns"]
    }
    return TableInfo(
        int(document["tableID"]),
        0,
        str(document.get("schema", document.get("database"))),
        str(document["table"]),
        Ts(int(document["version"])),
        tuple(_column(n, each, n in keys, n in unique) for n, each in enumerate(document["columns"])),
        tuple(
            IndexInfo(
                number + 1,
                str(index["name"]),
                tuple(IndexColumn(places[name], -1) for name in index["columns"]),
                bool(index["unique"]),
                bool(index["primary"]),
            )
            for number, index in enumerate(indexes)
        ),
        pk_is_handle=bool(clustered),
    )


def _view(document: Any) -> TableInfo:
    """Which has no rows, and columns of no type: they are left out."""
    schema, name = str(document.get("schema", document.get("database"))), str(document["table"])
    return TableInfo(int(document["tableID"]), 0, schema, name, Ts(int(document["version"])), (), is_view=True)


def with_names(table: TableInfo, names: frozenset[str], *, is_partial: bool) -> TableInfo:
    """The table as rows with these columns have it. What they lack is virtual, or left out where they are partial."""
    if not names <= {column.name for column in table.columns}:
        raise UnclearError("it has columns that its schema has not")
    if is_partial:
        return table.with_columns([column for column in table.columns if column.name in names])
    if len(names) == len(table.columns):
        return table
    columns = (
        column if column.name in names else replace(column, generated_expr=UNKNOWN_EXPRESSION)
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


def _column(place: int, document: Any, is_key: bool, is_unique: bool) -> ColumnInfo:
    kind = document["dataType"]
    seen = column_seen(document["name"], kind["mysqlType"])
    flag = 0 if document["nullable"] else int(ColumnFlag.NOT_NULL)
    flag |= int(ColumnFlag.PRI_KEY) if is_key else 0
    flag |= int(ColumnFlag.UNIQUE_KEY) if is_unique else 0
    flag |= int(ColumnFlag.UNSIGNED) if kind.get("unsigned") else 0
    flag |= int(ColumnFlag.ZEROFILL) if kind.get("zerofill") else 0
    flag |= int(ColumnFlag.BINARY) if seen.is_binary and seen.type in STRING_TYPES else 0
    default = document.get("default")
    is_bit = seen.type is ColumnType.BIT and isinstance(default, int)
    length = int(kind.get("length", -1))
    return ColumnInfo(
        place + 1,
        seen.name,
        place,
        seen.type,
        flag,
        length,
        int(kind.get("decimal", 0)),
        str(kind["charset"]),
        str(kind["collate"]),
        tuple(map(str, kind.get("elements") or ())),
        default=None if default is None or is_bit else str(default),
        default_bit=default.to_bytes(max(1, (length + 7) // 8)) if is_bit else None,
    )
