"""What a column shows in a row that does not mention it.

A row does not mention a column because it is older than the column, because it was written while the
column came or went, or because the value is NULL and the column has no default. So: the *original*
default (never today's DEFAULT) if there is one; else NULL if the column may be null; else the type's
zero value. Fills are in the form in which values are presented: numbers, or the bytes of a text.
"""

import json
import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np

from tidemill.columnar.floats import ES6, LONGEST_FLOAT, POSITIONAL, powers_of_ten, write_float
from tidemill.columnar.jit import u64
from tidemill.flow.mounter.zones import parse_zone
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnInfo, ColumnType

Fill = int | float | bytes | None

_WIDE = Context(prec=100, rounding=ROUND_HALF_UP)
_TIME = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?)?")
_DURATION = re.compile(r"(-?)(?:(\d+) )?(\d+)(?::(\d{1,2})(?::(\d{1,2}))?)?(?:\.(\d{0,9}))?")


@lru_cache(maxsize=4096)
def fill_of(column: ColumnInfo, zone: str) -> Fill:
    """The value of a missing cell; None for NULL. ValueError if the original default makes no sense."""
    text = column.origin_default
    if column.type is ColumnType.BIT and column.origin_default_bit is not None:
        return int.from_bytes(column.origin_default_bit, "big")
    if text is None:
        return zero_of(column) if column.is_not_null else None
    try:
        return _from_text(column, text, zone)
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise ValueError("its original default cannot be read as a value of its type") from error


def zero_of(column: ColumnInfo) -> Fill:
    kind = column.type
    if kind is ColumnType.ENUM:
        return 1  # the first element
    if kind in INTEGER_TYPES or kind in (ColumnType.YEAR, ColumnType.BIT, ColumnType.SET):
        return 0
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return 0.0
    if kind in STRING_TYPES:
        # TiDB shows a BINARY(n) as n zero bytes; TiCDC leaves it empty.
        return bytes(max(column.flen, 0)) if kind is ColumnType.STRING and column.is_binary else b""
    if kind is ColumnType.NEWDECIMAL:
        return _decimal("0", column.decimal)
    if kind is ColumnType.DURATION:
        return b"00:00:00" + _fraction("", column.decimal)
    if kind is ColumnType.JSON:
        return b"null"
    if kind is ColumnType.VECTOR:
        return b"[]"
    return _time("0000-00-00", column, "UTC")


def _from_text(column: ColumnInfo, text: str, zone: str) -> Fill:
    kind = column.type
    if kind in INTEGER_TYPES or kind is ColumnType.YEAR:
        return int(Decimal(text.strip()).to_integral_value(ROUND_HALF_UP))
    if kind in (ColumnType.FLOAT, ColumnType.DOUBLE):
        return float(np.float32(text)) if kind is ColumnType.FLOAT else float(text)
    if kind is ColumnType.NEWDECIMAL:
        return _decimal(text, column.decimal)
    if kind in TIME_TYPES:
        return _time(text, column, zone)
    if kind is ColumnType.DURATION:
        return _duration(text, column.decimal)
    if kind is ColumnType.BIT:
        return int.from_bytes(text.encode("utf-8", "surrogateescape"), "big")
    if kind is ColumnType.ENUM:
        return _element(column.elems, text)
    if kind is ColumnType.SET:
        return sum({1 << (_element(column.elems, name) - 1) for name in text.split(",")}) if text else 0
    if kind is ColumnType.JSON:
        return _json(json.loads(text)).encode()
    if kind is ColumnType.VECTOR:
        elements = json.loads(text)
        return b"[" + b",".join(_float(float(x), is_single=True) for x in elements) + b"]"
    raw = text.encode()
    return raw.ljust(max(column.flen, 0), b"\0") if kind is ColumnType.STRING and column.is_binary else raw


def _element(elems: tuple[str, ...], name: str) -> int:
    """Counted from 1. Names compare without case, as the column's collation may have let them pass."""
    if name in elems:
        return elems.index(name) + 1
    folded = [e.casefold() for e in elems]
    if name.casefold() in folded:
        return folded.index(name.casefold()) + 1
    if name == "":
        return 0
    raise ValueError(name)


def _decimal(text: str, scale: int) -> bytes:
    number = _WIDE.quantize(Decimal(text.strip()), Decimal(1).scaleb(-max(scale, 0)))
    return format(number, "f").encode()


def _fraction(digits: str, places: int) -> bytes:
    return b"." + digits.ljust(places, "0")[:places].encode() if places > 0 else b""


def _time(text: str, column: ColumnInfo, zone: str) -> bytes:
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if column.type is ColumnType.TIMESTAMP and (year or month or day):
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC).astimezone(parse_zone(zone))
        year, month, day = moment.year, moment.month, moment.day
        hour, minute, second = moment.hour, moment.minute, moment.second
    date = f"{year:04d}-{month:02d}-{day:02d}".encode()
    if column.type in (ColumnType.DATE, ColumnType.NEWDATE):
        return date
    clock = f" {hour:02d}:{minute:02d}:{second:02d}".encode()
    return date + clock + _fraction(match[7] or "", column.decimal)


def _duration(text: str, places: int) -> bytes:
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(text)
    sign, days, first, minute, second, fraction = match.groups()
    if minute is None and days is None:  # 123456 is 12:34:56
        number = int(first)
        hours, minutes, seconds = number // 10000, number // 100 % 100, number % 100
    else:
        hours, minutes, seconds = 24 * int(days or 0) + int(first), int(minute or 0), int(second or 0)
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}".encode() + _fraction(fraction or "", places)


def _float(value: float, *, is_single: bool) -> bytes:
    out = np.empty(LONGEST_FLOAT, np.uint8)
    bits = np.float32(value).view(np.uint32) if is_single else np.float64(value).view(np.uint64)
    end = write_float(out, 0, u64(bits), is_single, POSITIONAL if is_single else ES6, powers_of_ten())
    return out[:end].tobytes()


def _json(value: Any) -> str:  # Any: whatever json.loads gives
    """TiDB's text of a document."""
    match value:
        case dict():
            keys = sorted(value, key=str.encode)
            return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_json(value[k])}" for k in keys) + "}"
        case list():
            return "[" + ", ".join(_json(v) for v in value) + "]"
        case float():
            return _float(value, is_single=False).decode()
        case _:
            return json.dumps(value, ensure_ascii=False)
