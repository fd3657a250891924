"""The documents beside the data that say what its columns are, and which DDL made them so.

    {schema}/{table}/meta/schema_{version}_{checksum}.json       a table
    {schema}/meta/schema_{version}_{checksum}.json               a database

The checksum covers names and columns, not the version or the DDL, so that a sink which starts anew
recognises the schema it had before.
"""

import re
import zlib
from dataclasses import dataclass

from tidemill.flow.encoder.json_text import quoted
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tidemill.model.ts import Ts
from tidemill.tidb.mysql_type import default_decimal, default_length, type_word

_FORMAT_VERSION = 1
_NAME = re.compile(r"schema_(\d+)_(\d{10})\.json")
_WITH_LENGTH = INTEGER_TYPES | STRING_TYPES | {ColumnType.BIT, ColumnType.YEAR}


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One schema document. ``columns`` are JSON objects by column name; None: a whole database."""

    schema: str
    table: str
    version: Ts
    columns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] | None
    query: str = ""
    type: int = 0

    @property
    def checksum(self) -> int:
        columns = sorted(self.columns or (), key=lambda column: column[0].encode("utf-8", "surrogateescape"))
        members = [
            ("Table", quoted(self.table)),
            ("Schema", quoted(self.schema)),
            ("Version", "0"),
            ("TableColumns", _array([members for _, members in columns])),
            ("TableColumnsTotal", str(len(columns))),
        ]
        return zlib.crc32(_object(members, "").encode())

    @property
    def name(self) -> str:
        return f"schema_{self.version}_{self.checksum:010d}.json"

    @property
    def content(self) -> bytes:
        columns = "null" if self.columns is None else _array([members for _, members in self.columns])
        members = [
            ("Table", quoted(self.table)),
            ("Schema", quoted(self.schema)),
            ("Version", str(_FORMAT_VERSION)),
            ("TableVersion", str(self.version)),
            ("Query", quoted(self.query)),
            ("Type", str(self.type)),
            ("TableColumns", columns),
            ("TableColumnsTotal", str(len(self.columns or ()))),
        ]
        return _object(members, "").encode()


def schema_of_table(
    table: TableInfo, version: Ts, *, query: str = "", type: int = 0, with_ids: bool = False, with_virtual: bool = True
) -> SchemaFile:
    """``with_virtual`` false leaves out the columns that no row carries: a csv record is read by position."""
    columns = table.columns if with_virtual else table.stored_columns
    described = tuple((c.name, _describe(c, with_ids)) for c in columns)
    return SchemaFile(table.schema, table.name, version, described, query, type)


def schema_of_database(schema: str, version: Ts, query: str, type: int) -> SchemaFile:
    return SchemaFile(schema, "", version, None, query, type)


def parse_name(name: str) -> tuple[Ts, int] | None:
    """(version, checksum) of a schema file's name; None for any other name."""
    found = _NAME.fullmatch(name)
    return (Ts(int(found.group(1))), int(found.group(2))) if found else None


def _describe(column: ColumnInfo, with_id: bool) -> tuple[tuple[str, str], ...]:
    members: list[tuple[str, str | None]] = [
        ("ColumnId", str(column.id) if with_id else None),
        ("ColumnName", column.name),
        ("ColumnType", type_word(column).upper() + (" UNSIGNED" if column.is_unsigned else "")),
        ("ColumnDefault", _default(column)),
        ("ColumnPrecision", _precision(column)),
        ("ColumnScale", _scale(column)),
        ("ColumnNullable", "false" if column.is_not_null else None),
        ("ColumnIsPk", "true" if column.flag & ColumnFlag.PRI_KEY else None),
    ]
    return tuple((name, quoted(value)) for name, value in members if value is not None)


def _default(column: ColumnInfo) -> str | None:
    if column.type is ColumnType.BIT and column.default_bit is not None:
        return column.default_bit.decode("utf-8", "surrogateescape")
    return column.default


def _precision(column: ColumnInfo) -> str | None:
    kind = column.type
    if kind in _WITH_LENGTH or kind in (ColumnType.FLOAT, ColumnType.DOUBLE, ColumnType.NEWDECIMAL):
        return str(column.flen if column.flen != -1 else default_length(kind))
    return None


def _scale(column: ColumnInfo) -> str | None:
    kind = column.type
    if kind is ColumnType.NEWDECIMAL:
        return str(column.decimal if column.decimal != -1 else default_decimal(kind))
    has_scale = kind in (
        ColumnType.FLOAT,
        ColumnType.DOUBLE,
        ColumnType.TIMESTAMP,
        ColumnType.DATETIME,
        ColumnType.DURATION,
    )
    return str(column.decimal) if has_scale and column.decimal > 0 else None


def _object(members: list[tuple[str, str]] | tuple[tuple[str, str], ...], indent: str) -> str:
    lines = ",\n".join(f'{indent}    "{name}": {value}' for name, value in members)
    return f"{{\n{lines}\n{indent}}}"


def _array(objects: list[tuple[tuple[str, str], ...]]) -> str:
    if not objects:
        return "[]"
    lines = ",\n".join(" " * 8 + _object(members, " " * 8) for members in objects)
    return f"[\n{lines}\n    ]"
