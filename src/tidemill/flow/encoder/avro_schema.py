"""Avro schemas of a table's keys and rows, spelled as TiCDC spells them: the same table has the same schema, hence the
same number in a registry, whoever registers it first.

    {"type":"record","name":"item","namespace":"default.shop","fields":[
     {"name":"id","type":{"type":"long","connect.parameters":{"tidb_type":"BIGINT"}}},
     {"default":null,"name":"qty","type":["null",{"type":"long","connect.parameters":{"tidb_type":"INT UNSIGNED"}}]}]}
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.columnar import float_text
from tidemill.errors import SinkError
from tidemill.flow.encoder.json_text import quoted
from tidemill.flow.encoder.names import allowed_elements, sanitized
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnInfo, ColumnType, TableInfo
from tidemill.tidb.mysql_type import default_decimal, default_length

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = {
    ColumnType.LONGLONG: "BIGINT",
    ColumnType.FLOAT: "FLOAT",
    ColumnType.DOUBLE: "DOUBLE",
    ColumnType.BIT: "BIT",
    ColumnType.NEWDECIMAL: "DECIMAL",
    ColumnType.ENUM: "ENUM",
    ColumnType.SET: "SET",
    ColumnType.JSON: "JSON",
    ColumnType.DATE: "DATE",
    ColumnType.NEWDATE: "DATE",
    ColumnType.DATETIME: "DATETIME",
    ColumnType.TIMESTAMP: "TIMESTAMP",
    ColumnType.DURATION: "TIME",
    ColumnType.YEAR: "YEAR",
    ColumnType.VECTOR: "TiDBVECTORFloat32",
}
EXTENSION = (
    '{"default":"","name":"_tidb_op","type":"string"},{"default":0,"name":"_tidb_commit_ts","type":"long"},'
    '{"default":0,"name":"_tidb_commit_physical_time","type":"long"}'
)


@dataclass(frozen=True, slots=True)
class Modes:
    """How two kinds of numbers are written that Avro's own have no room for."""

    has_precise_decimals: bool = True  # as bytes; else as strings
    has_long_unsigned: bool = True  # BIGINT UNSIGNED as a long, which wraps; else as a string


@dataclass(frozen=True, slots=True)
class FieldShape:
    """What a column's field is in Avro."""

    type: str  # int, long, float, double, bytes, string
    is_decimal: bool  # bytes of the logical type
    branch: int  # of values, in a union with null; -1: it is none


def shape_of(column: ColumnInfo, modes: Modes) -> FieldShape:
    is_decimal = column.type is ColumnType.NEWDECIMAL and modes.has_precise_decimals
    if column.is_not_null:
        return FieldShape(_type(column, modes), is_decimal, -1)
    has_default = not is_decimal and default_of(column, modes) is not None
    return FieldShape(_type(column, modes), is_decimal, 0 if has_default else 1)


def record_schema(
    table: TableInfo, columns: Sequence[ColumnInfo], namespace: str, modes: Modes, *, is_extended: bool = False
) -> str:
    """JSON. Raises SinkError where two columns would have one name."""
    _check_names(table, columns)
    fields = [_field(column, modes) for column in columns]
    if is_extended:
        fields.append(EXTENSION)
    space = ".".join(filter(None, (sanitized(namespace), sanitized(table.schema))))
    return (
        f'{{"type":"record","name":{quoted(sanitized(table.name))},"namespace":{quoted(space)},'
        f'"fields":[{",".join(fields)}]}}'
    )


def decimal_shape(column: ColumnInfo) -> tuple[int, int]:
    """Precision and scale."""
    kind = column.type
    precision = column.flen if column.flen != -1 else default_length(kind)
    return precision, column.decimal if column.decimal != -1 else default_decimal(kind)


def default_of(column: ColumnInfo, modes: Modes) -> str | None:
    """JSON; None: there is none, or one that no literal can say."""
    text = column.default
    if column.type is ColumnType.BIT:
        return None if column.default_bit is None else _base64(column.default_bit)
    if text is None:
        return None
    kind = _type(column, modes)
    if kind in ("int", "long"):
        return _whole(text, kind) if _INTEGER.fullmatch(text) else None
    if kind in ("float", "double"):
        return _real(text, kind) if _NUMBER.fullmatch(text) else None
    if kind == "bytes":
        return _base64(text.encode("utf-8", "surrogateescape"))
    return quoted(text)


def _check_names(table: TableInfo, columns: Sequence[ColumnInfo]) -> None:
    taken: dict[str, str] = {}
    for column in columns:
        name = sanitized(column.name)
        if name in taken:
            raise SinkError(
                f"columns {taken[name]!r} and {column.name!r} of table {table.full_name} would both be {name!r} in "
                "Avro, which allows letters, digits and underscores. Leave one out with a column selector."
            )
        taken[name] = column.name


def _type(column: ColumnInfo, modes: Modes) -> str:
    match column.type:
        case ColumnType.TINY | ColumnType.SHORT | ColumnType.INT24 | ColumnType.YEAR:
            return "int"
        case ColumnType.LONG:
            return "long" if column.is_unsigned else "int"
        case ColumnType.LONGLONG:
            return "string" if column.is_unsigned and not modes.has_long_unsigned else "long"
        case ColumnType.FLOAT:
            return "float"
        case ColumnType.DOUBLE:
            return "double"
        case ColumnType.BIT:
            return "bytes"
        case ColumnType.NEWDECIMAL:
            return "bytes" if modes.has_precise_decimals else "string"
    return "bytes" if column.type in STRING_TYPES and column.is_binary else "string"


def _tidb_type(column: ColumnInfo) -> str:
    if column.type in STRING_TYPES:
        return "BLOB" if column.is_binary else "TEXT"
    word = _WORDS.get(column.type, "INT")
    return f"{word} UNSIGNED" if column.is_unsigned and column.type in INTEGER_TYPES else word


def _parameters(column: ColumnInfo) -> str:
    more = ""
    if column.type is ColumnType.BIT:
        length = column.flen if column.flen != -1 else default_length(column.type)
        more = f'"length":"{length}",'
    elif column.type in (ColumnType.ENUM, ColumnType.SET):
        more = f'"allowed":{quoted(allowed_elements(column.elems))},'
    return f'{{{more}"tidb_type":"{_tidb_type(column)}"}}'


def _field(column: ColumnInfo, modes: Modes) -> str:
    shape = shape_of(column, modes)
    kind = f'{{"type":"{shape.type}","connect.parameters":{_parameters(column)}'
    if shape.is_decimal:
        precision, scale = decimal_shape(column)
        kind += f',"logicalType":"decimal","precision":{precision},"scale":{scale}'
    kind += "}"
    default = None if shape.is_decimal else default_of(column, modes)
    if shape.branch == 1:
        kind, default = f'["null",{kind}]', "null"
    elif shape.branch == 0:
        kind = f'[{kind},"null"]'
    before = "" if default is None else f'"default":{default},'
    return f'{{{before}"name":{quoted(sanitized(column.name))},"type":{kind}}}'


def _base64(raw: bytes) -> str:
    """So TiCDC spells bytes in a default."""
    return f'"{base64.b64encode(raw).decode()}"'


def _whole(text: str, kind: str) -> str | None:
    number = int(text)
    if kind == "int":
        return str(number) if -(1 << 31) <= number < 1 << 31 else None
    return str(number - (1 << 64) if number >= 1 << 63 else number)


def _real(text: str, kind: str) -> str:
    number = float(np.float32(text)) if kind == "float" else float(text)
    printed: str = float_text.json(pa.array([number], pa.float64()))[0].as_py()
    return printed
