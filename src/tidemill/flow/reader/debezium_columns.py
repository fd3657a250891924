"""Columns of Debezium's messages: what a field of the schema says, and its values as MySQL has them.

Times come as numbers since 1970 without their fractional digits' count, so that is taken to be three or six.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.flow.reader import cells as c
from tidemill.flow.reader import type_words
from tidemill.flow.reader.cells import Cells
from tidemill.flow.reader.matching import Token
from tidemill.flow.reader.shape import UnclearError
from tidemill.flow.reader.tables import ColumnSeen
from tidemill.model.row import arrow_type
from tidemill.model.table import STRING_TYPES, ColumnInfo, ColumnType

_TYPES = {  # of Kafka Connect
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "string": "text",
    "boolean": "bit",
    "bytes": "blob",
}
_NAMES = {  # of Debezium, which are more exact
    "io.debezium.data.Bits": "bit",
    "io.debezium.data.Enum": "enum",
    "io.debezium.data.EnumSet": "set",
    "io.debezium.data.Json": "json",
    "io.debezium.data.TiDBVectorFloat32": "vector",
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "datetime",
    "io.debezium.time.MicroTimestamp": "datetime",
    "io.debezium.time.ZonedTimestamp": "timestamp",
    "io.debezium.time.MicroTime": "time",
    "io.debezium.time.Year": "year",
}
_DIGITS = {"io.debezium.time.Timestamp": 3, "io.debezium.time.MicroTimestamp": 6, "io.debezium.time.MicroTime": 6}
_DAY = 86_400_000_000


def column_seen(field: dict[str, Any]) -> ColumnSeen:
    """A field of a schema. Raises UnclearError for what it does not know."""
    name, connect = field["field"], field.get("name", "")
    word = field.get("tidb_type") or _NAMES.get(connect) or _TYPES.get(field["type"])
    if not isinstance(name, str) or not isinstance(word, str):
        raise UnclearError("a column is of an unknown type")
    seen = type_words.column_seen(name, word.lower())
    parameters = field.get("parameters") or {}
    allowed = parameters.get("allowed", "")
    return ColumnSeen(
        name,
        seen.type,
        is_binary=seen.is_binary,
        is_unsigned=seen.is_unsigned,
        is_nullable=field.get("optional") is True,
        flen=int(parameters.get("length", 1 if seen.type is ColumnType.BIT else -1)),
        decimal=_DIGITS.get(connect, -1),
        elems=elements(allowed) if seen.type in (ColumnType.ENUM, ColumnType.SET) else (),
    )


def elements(allowed: str) -> tuple[str, ...]:
    """Divided by commas; one within a name has a backslash before it."""
    return tuple(part.replace("\0", ",") for part in allowed.replace("\\,", "\0").split(","))


def decode(column: ColumnInfo, cells: Cells) -> pa.Array:
    kind = column.type
    convert = _CONVERSIONS.get(kind)
    if convert is not None:
        return convert(column, cells)
    held = arrow_type(column)
    if pa.types.is_integer(held):
        # Above 2^63 - 1 they are written as negative numbers.
        numbers = c.integers(cells, is_unsigned=False)
        return numbers.view(pa.uint64()) if held == pa.uint64() else numbers
    if pa.types.is_floating(held):
        return c.floats(cells, held)
    if kind in STRING_TYPES and held == pa.binary():
        return c.base64_bytes(cells)
    return c.texts(cells)


def _decimals(column: ColumnInfo, cells: Cells) -> pa.Array:
    """The digits of the number as it is written; its scale is not told."""
    tokens = np.where(cells.tokens == Token.NUMBER, np.uint8(Token.TEXT), cells.tokens)
    return c.texts(Cells(cells.data, cells.from_, cells.to, tokens, cells.is_bad))


def _dates(column: ColumnInfo, cells: Cells) -> pa.Array:
    days = c.integers(cells, is_unsigned=False)
    return _moments(days, cells, _DAY, "D").cast(pa.string())


def _moments(values: pa.Array, cells: Cells, micros: int, unit: Any) -> pa.Array:
    """As texts, of years from 0 to 9999; others make no sense."""
    numbers = values.fill_null(0).to_numpy()
    is_out = (numbers < -719_528 * _DAY // micros) | (numbers >= 2_932_897 * _DAY // micros)
    cells.is_bad[is_out] = True
    moments: Any = np.where(is_out, 0, numbers).astype(f"datetime64[{unit}]")
    texts = np.datetime_as_string(moments, unit=unit)
    return pa.array(texts, pa.string(), mask=values.is_null().to_numpy(zero_copy_only=False))


def _datetimes(column: ColumnInfo, cells: Cells) -> pa.Array:
    values = c.integers(cells, is_unsigned=False)
    micros, unit = (1, "us") if column.decimal == 6 else (1000, "ms")
    return pc.replace_substring(_moments(values, cells, micros, unit), "T", " ")


def _zoned(column: ColumnInfo, cells: Cells) -> pa.Array:
    """In UTC, as they are sent."""
    return pc.replace_substring(pc.utf8_rtrim(c.texts(cells), "Z"), "T", " ")


def _durations(column: ColumnInfo, cells: Cells) -> pa.Array:
    values = c.integers(cells, is_unsigned=False)
    micros = values.fill_null(0).to_numpy()
    cells.is_bad[np.abs(micros) > 839 * 3_600_000_000] = True
    size = np.abs(np.clip(micros, -839 * 3_600_000_000, 839 * 3_600_000_000))
    hours, minutes, seconds = size // 3_600_000_000, size // 60_000_000 % 60, size // 1_000_000 % 60
    hour = pc.if_else(pc.less(pa.array(hours), 100), _padded(hours, 2), pa.array(hours).cast(pa.string()))
    sign = pc.if_else(pa.array(micros < 0), "-", "")
    rest = pc.binary_join_element_wise(hour, _padded(minutes, 2), _padded(seconds, 2), ":")
    texts = pc.binary_join_element_wise(pc.binary_join_element_wise(sign, rest, ""), _padded(size % 1_000_000, 6), ".")
    return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), texts)


def _padded(numbers: npt.NDArray[np.int64], digits: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), digits, "0")


def _bits(column: ColumnInfo, cells: Cells) -> pa.Array:
    """Of one bit: true or false. Of more: bytes, the lowest first."""
    is_plain = (cells.tokens == Token.TRUE) | (cells.tokens == Token.FALSE) | (cells.tokens == Token.NULL)
    if is_plain.all():
        return pa.array((cells.tokens == Token.TRUE).astype(np.uint64), mask=cells.tokens == Token.NULL)
    values = c.base64_bytes(cells)
    sizes = pc.binary_length(values).fill_null(0).to_numpy()
    cells.is_bad[sizes > 8] = True
    offsets, data = c.parts_of(values)
    numbers = np.zeros(len(values), np.uint64)
    for place in range(8):
        has = sizes > place
        numbers[has] |= data[offsets[:-1][has] + place].astype(np.uint64) << np.uint64(8 * place)
    return pa.array(numbers, mask=values.is_null().to_numpy(zero_copy_only=False))


def _enums(column: ColumnInfo, cells: Cells) -> pa.Array:
    return enum_numbers(c.texts(cells), column)


def enum_numbers(names: pa.Array, column: ColumnInfo) -> pa.Array:
    """By name; one that is none of the elements is the empty value."""
    places = pc.index_in(names, pa.array(column.elems, pa.string()))
    numbers = pc.add(places.fill_null(-1), 1).cast(pa.uint64())
    return pc.if_else(names.is_null(), pa.scalar(None, pa.uint64()), numbers)


def _sets(column: ColumnInfo, cells: Cells) -> pa.Array:
    return set_numbers(c.texts(cells), column)


def set_numbers(names: pa.Array, column: ColumnInfo) -> pa.Array:
    bits = {name: 1 << place for place, name in enumerate(column.elems)}
    coded = names.dictionary_encode()
    known = [sum(bits.get(name, 0) for name in set(text.split(","))) for text in coded.dictionary.to_pylist()]
    return pa.array(known, pa.uint64()).take(coded.indices)


_CONVERSIONS: dict[ColumnType, Callable[[ColumnInfo, Cells], pa.Array]] = {
    ColumnType.NEWDECIMAL: _decimals,
    ColumnType.DATE: _dates,
    ColumnType.DATETIME: _datetimes,
    ColumnType.TIMESTAMP: _zoned,
    ColumnType.DURATION: _durations,
    ColumnType.BIT: _bits,
    ColumnType.ENUM: _enums,
    ColumnType.SET: _sets,
}
