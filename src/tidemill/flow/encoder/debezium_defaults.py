"""A column's default as Debezium's messages show it: in the schema, and in place of a NULL."""

import base64
import re

import pyarrow as pa

from tidemill.columnar import float_text, moment_text, time_numbers
from tidemill.columnar.time_numbers import Numbers
from tidemill.flow.encoder.json_text import plain
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.mysql_type import default_length

NO_MOMENT = "1970-01-01T00:00:00Z"  # of a TIMESTAMP that is zero
_CURRENT = "CURRENT_TIMESTAMP"
_FIRST_TIMESTAMP = 1_000_000  # microseconds since 1970
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?\d+")


def schema_default(column: ColumnInfo) -> str | None:
    """JSON; None: the field has none."""
    kind, text = column.type, column.default
    if kind is ColumnType.BIT:
        return None if column.default_bit is None else bits(column, column.default_bit)
    if text is None:
        return None
    if kind in STRING_TYPES or kind in (ColumnType.ENUM, ColumnType.SET, ColumnType.JSON, ColumnType.VECTOR):
        return plain(text)
    if kind is ColumnType.YEAR:
        return _year(text)
    if kind is ColumnType.DURATION:
        return _duration(text)
    if kind is ColumnType.TIMESTAMP:
        return _timestamp(column, text)
    if kind in (ColumnType.DATE, ColumnType.NEWDATE, ColumnType.DATETIME):
        return _moment(column, text)
    return _number(text)


def null_value(column: ColumnInfo) -> str:
    """JSON of a NULL: TiCDC writes the default, where there is one."""
    text = column.default
    if text is not None and column.type in INTEGER_TYPES:
        return _wrapped(int(text)) if _INTEGER.fullmatch(text) else "null"
    if text is not None and column.type is ColumnType.YEAR:
        return str(int(text)) if _INTEGER.fullmatch(text) else "null"
    if text is not None and column.type in STRING_TYPES and column.is_binary:
        return f'"{base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()}"'
    return schema_default(column) or "null"


def bit_length(column: ColumnInfo) -> int:
    return column.flen if column.flen > 0 else default_length(ColumnType.BIT)


def bits(column: ColumnInfo, raw: bytes) -> str:
    """A BIT, whose bytes begin with the highest."""
    number = int.from_bytes(raw, "big")
    if bit_length(column) == 1:
        return "true" if number else "false"
    size = -(-bit_length(column) // 8)
    return f'"{base64.b64encode((number & (1 << 8 * size) - 1).to_bytes(size, "little")).decode()}"'


def bits_text(column: ColumnInfo, raw: bytes) -> str:
    """As digits, without zeros in front that make no byte full."""
    first = format(raw[0], "b").rjust(bit_length(column) % 8, "0") if raw else ""
    return first + "".join(format(byte, "08b") for byte in raw[1:])


def _wrapped(number: int) -> str:
    return str(number - (1 << 64) if number >= 1 << 63 else number)


def _printed(number: float) -> str:
    text: str = float_text.json_padded(pa.array([number], pa.float64()))[0].as_py()
    return text


def _number(text: str) -> str | None:
    return _printed(float(text)) if _NUMBER.fullmatch(text) else None


def _year(text: str) -> str | None:
    if not _NUMBER.fullmatch(text):
        return None
    year = float(text)
    return _printed(year + 2000 if year < 70 else year + 1900 if year < 100 else year)


def _duration(text: str) -> str | None:
    found = time_numbers.durations(pa.array([text]))
    return str(int(found.value[0])) if found.is_number[0] else None


def _read(text: str) -> Numbers:
    return time_numbers.moments(pa.array([text]), is_recent=True)


def _moment(column: ColumnInfo, text: str) -> str | None:
    if text.upper() == _CURRENT and column.type is ColumnType.DATETIME:
        return "0"
    found = _read(text)
    if not found.is_number[0]:
        return "0" if column.is_not_null else None
    micros = int(found.value[0])
    if column.type is not ColumnType.DATETIME:
        return str(micros // time_numbers.DAY_MICROS)
    return str(micros if column.decimal > 3 else micros // 1000)


def _timestamp(column: ColumnInfo, text: str) -> str | None:
    found = time_numbers.moments(pa.array([text]))
    is_early = text.upper() == _CURRENT or text.startswith("0000") or int(found.value[0]) < _FIRST_TIMESTAMP
    if is_early:
        return plain(NO_MOMENT) if column.is_not_null else None
    if not found.is_number[0]:
        return "0"
    return plain(moment_text.zoned(found.value, found.is_number, column.decimal, b"")[0].as_py())
