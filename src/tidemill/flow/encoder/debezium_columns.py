"""How Debezium's messages show a column: its field in the schema, and its values, a batch at once.

    BIGINT    {"type":"int64","optional":false,"field":"id"}                                          7
    DATE      {"type":"int32","optional":true,"name":"io.debezium.time.Date","version":1,"field":"d"} 19782

Runs on executors.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.columnar import float_text, json_plain, moment_text, time_numbers
from tidemill.columnar.assembler import Kind
from tidemill.columnar.program import TextColumn
from tidemill.columnar.time_numbers import DAY_MICROS, Numbers
from tidemill.errors import InvariantError
from tidemill.flow.encoder.debezium_defaults import NO_MOMENT, bit_length, null_value, schema_default
from tidemill.flow.encoder.elements import enum_names, set_names
from tidemill.flow.encoder.json_text import plain
from tidemill.flow.encoder.names import allowed_elements
from tidemill.flow.mounter.zones import Zone
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.mysql_type import type_word

_QUOTE = ord('"')
_NUMBERS = INTEGER_TYPES | {
    ColumnType.FLOAT,
    ColumnType.DOUBLE,
    ColumnType.NEWDECIMAL,
    ColumnType.DATE,
    ColumnType.NEWDATE,
    ColumnType.DATETIME,
    ColumnType.DURATION,
    ColumnType.YEAR,
}
_TYPES = {
    ColumnType.TINY: "int16",
    ColumnType.INT24: "int32",
    ColumnType.LONGLONG: "int64",
    ColumnType.DOUBLE: "double",
    ColumnType.NEWDECIMAL: "double",
    ColumnType.DATE: "int32",
    ColumnType.NEWDATE: "int32",
    ColumnType.DATETIME: "int64",
    ColumnType.DURATION: "int64",
    ColumnType.YEAR: "int32",
}
_NAMES = {
    ColumnType.ENUM: "io.debezium.data.Enum",
    ColumnType.SET: "io.debezium.data.EnumSet",
    ColumnType.DATE: "io.debezium.time.Date",
    ColumnType.NEWDATE: "io.debezium.time.Date",
    ColumnType.TIMESTAMP: "io.debezium.time.ZonedTimestamp",
    ColumnType.DURATION: "io.debezium.time.MicroTime",
    ColumnType.YEAR: "io.debezium.time.Year",
    ColumnType.JSON: "io.debezium.data.Json",
}
# Of these types the extension does not say that they are unsigned.
_WITHOUT_SIGN = frozenset(
    {ColumnType.YEAR, ColumnType.BIT, ColumnType.VARCHAR, ColumnType.STRING, ColumnType.NEWDECIMAL}
)


def field_schema(column: ColumnInfo, *, is_extended: bool) -> str:
    """JSON."""
    members = [f'"tidb_type":"{_tidb_type(column)}"'] if is_extended else []
    members.append(f'"type":"{_field_type(column)}"')
    members.append(f'"optional":{plain(not column.is_not_null)}')
    members.extend(_name(column))
    members.append(f'"field":{plain(column.name)}')
    default = schema_default(column)
    if default is not None:
        members.append(f'"default":{default}')
    return "{" + ",".join(members) + "}"


def is_quoted(column: ColumnInfo) -> bool:
    """Whether its values are strings in JSON."""
    return column.type not in _NUMBERS and not _is_boolean(column)


def prepared(column: ColumnInfo, values: pa.Array, zone: Zone) -> TextColumn:
    """The column's values as JSON; those in quotes lack the opening one. ``zone``: that of TIMESTAMPs."""
    kind = column.type
    if kind in INTEGER_TYPES or kind is ColumnType.YEAR:
        return TextColumn(values.view(pa.int64()), Kind.INT)
    if kind in STRING_TYPES:
        return TextColumn(values, Kind.BASE64, _QUOTE) if column.is_binary else _text(values)
    match kind:
        case ColumnType.FLOAT | ColumnType.DOUBLE:
            return TextColumn(float_text.json_padded(values), Kind.RAW)
        case ColumnType.NEWDECIMAL:
            return TextColumn(float_text.json_padded(pc.cast(values, pa.float64())), Kind.RAW)
        case ColumnType.ENUM:
            return TextColumn(enum_names(_escaped(column), values), Kind.RAW, _QUOTE)
        case ColumnType.SET:
            return TextColumn(set_names(_escaped(column), values), Kind.RAW, _QUOTE)
        case ColumnType.BIT:
            return _bits(column, values)
        case ColumnType.DATE | ColumnType.NEWDATE | ColumnType.DATETIME:
            return _moments(column, values)
        case ColumnType.DURATION:
            return _durations(column, values)
        case ColumnType.TIMESTAMP:
            return _timestamps(column, values, zone)
    return _text(values)


def _tidb_type(column: ColumnInfo) -> str:
    word = type_word(column)
    return f"{word} unsigned" if column.is_unsigned and column.type not in _WITHOUT_SIGN else word


def _is_boolean(column: ColumnInfo) -> bool:
    return column.type is ColumnType.BIT and bit_length(column) == 1


def _field_type(column: ColumnInfo) -> str:
    match column.type:
        case ColumnType.BIT:
            return "boolean" if _is_boolean(column) else "bytes"
        case ColumnType.SHORT:
            return "int32" if column.is_unsigned else "int16"
        case ColumnType.LONG:
            return "int64" if column.is_unsigned else "int32"
        case ColumnType.FLOAT:
            return "float" if column.decimal == -1 else "double"
    return _TYPES.get(column.type, "string")


def _name(column: ColumnInfo) -> list[str]:
    """The members that tell what a value means."""
    match column.type:
        case ColumnType.BIT if not _is_boolean(column):
            parameters = {"length": str(bit_length(column))}
            return [f'"name":"io.debezium.data.Bits","version":1,"parameters":{plain(parameters)}']
        case ColumnType.ENUM:
            parameters = {"allowed": allowed_elements(column.elems)}
            return [f'"name":"{_NAMES[column.type]}","version":1,"parameters":{plain(parameters)}']
        case ColumnType.SET:
            parameters = {"allowed": ",".join(column.elems)}
            return [f'"name":"{_NAMES[column.type]}","version":1,"parameters":{plain(parameters)}']
        case ColumnType.DATETIME:
            return [f'"name":"io.debezium.time.{"Micro" if column.decimal > 3 else ""}Timestamp","version":1']
        case ColumnType.VECTOR:
            return ['"name":"io.debezium.data.TiDBVectorFloat32"']
    name = _NAMES.get(column.type)
    return [] if name is None else [f'"name":"{name}","version":1']


def _escaped(column: ColumnInfo) -> list[str]:
    return [plain(elem)[1:-1] for elem in column.elems]


def _text(values: pa.Array) -> TextColumn:
    return TextColumn(json_plain.escaped(values), Kind.RAW, _QUOTE)


def _bits(column: ColumnInfo, values: pa.Array) -> TextColumn:
    if _is_boolean(column):
        words = pa.array(["false", "true"], pa.string())
        return TextColumn(words.take(pc.not_equal(values, pa.scalar(0, pa.uint64())).cast(pa.int8())), Kind.RAW)
    size = -(-bit_length(column) // 8)
    numbers = np.frombuffer(values.buffers()[1], "<u8", len(values), 8 * values.offset) if len(values) else np.empty(0)
    raw = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, 8)[:, :size])
    offsets = np.arange(0, size * (len(values) + 1), size, dtype=np.int32)
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(raw)]
    return TextColumn(pa.Array.from_buffers(pa.binary(), len(values), buffers), Kind.BASE64, _QUOTE)


def _validity(values: pa.Array) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(_is_valid(values), bitorder="little")) if values.null_count else None


def _is_valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _moments(column: ColumnInfo, values: pa.Array) -> TextColumn:
    """What is no day of the calendar is 0 or, in a column that may be null, null."""
    found = time_numbers.moments(values, is_recent=True)
    if column.type is not ColumnType.DATETIME:
        found = Numbers(found.value // DAY_MICROS, found.is_number)
    elif column.decimal <= 3:
        found = Numbers(found.value // 1000, found.is_number)
    valid, known = _is_valid(values), found.is_number.view(np.bool_)
    if column.is_not_null or (valid == known).all():
        return TextColumn(pa.array(found.value, mask=~valid), Kind.INT)
    if null_value(column) == "null":
        return TextColumn(pa.array(found.value, mask=~known), Kind.INT)
    texts = pc.if_else(pa.array(known), pc.cast(pa.array(found.value), pa.string()), "null")
    return TextColumn(pc.if_else(pa.array(valid), texts, pa.scalar(None, pa.string())), Kind.RAW)


def _durations(column: ColumnInfo, values: pa.Array) -> TextColumn:
    found, valid = time_numbers.durations(values), _is_valid(values)
    if not (found.is_number.view(np.bool_) == valid).all():
        raise InvariantError(f"column {column.name!r} holds a TIME that cannot be read. This is a bug; report it.")
    return TextColumn(pa.array(found.value, mask=~valid), Kind.INT)


def _timestamps(column: ColumnInfo, values: pa.Array, zone: Zone) -> TextColumn:
    found, valid = time_numbers.moments(values), _is_valid(values)
    moments = found.value if zone.is_utc else _to_utc(found.value, zone)
    known = found.is_number * (found.value >= 1_000_000).view(np.uint8)
    texts = moment_text.zoned(moments, known, column.decimal, NO_MOMENT.encode())
    if not values.null_count:
        return TextColumn(texts, Kind.RAW, _QUOTE)
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), *texts.buffers()[1:]]
    return TextColumn(pa.Array.from_buffers(pa.string(), len(values), buffers), Kind.RAW, _QUOTE)


def _to_utc(local: npt.NDArray[np.int64], zone: Zone) -> npt.NDArray[np.int64]:
    """Of a time that a clock shows twice the one that Go's library takes, as TiCDC does."""
    seconds = local // 1_000_000
    return local - _offset_at(seconds - _offset_at(seconds, zone), zone) * 1_000_000


def _offset_at(seconds: npt.NDArray[np.int64], zone: Zone) -> npt.NDArray[np.int64]:
    """How far local time is ahead, at seconds of UTC."""
    offsets: npt.NDArray[np.int64] = zone.offset[np.maximum(np.searchsorted(zone.since, seconds, "right") - 1, 0)]
    return offsets
