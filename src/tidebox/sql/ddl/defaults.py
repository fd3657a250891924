"""DEFAULT values: checked against their column, and written as TiDB's documents keep them (text).

Those that a clock gives stay names (``CURRENT_TIMESTAMP``); a default of a TIMESTAMP is kept in UTC.
"""

import base64
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from tidebox.sql.floats import positional, show_double, show_float
from tidebox.sql.parse.expressions import (
    Bytes,
    Call,
    Constant,
    Expression,
    Grouped,
    Number,
    Text,
    Unary,
    to_text,
)
from tidebox.sql.types import FieldType, is_blob
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.table import INTEGER_TYPES, ColumnFlag, ColumnType

NOW = "CURRENT_TIMESTAMP"
_BITS = {
    ColumnType.TINY: 8,
    ColumnType.SHORT: 16,
    ColumnType.INT24: 24,
    ColumnType.LONG: 32,
    ColumnType.LONGLONG: 64,
}
_MOMENTS = (ColumnType.DATETIME, ColumnType.TIMESTAMP)
# Functions that a default in parentheses may call, as TiDB has them.
_FUNCTIONS = frozenset(
    {"uuid", "rand", "json_object", "json_array", "json_quote", "date_format", "upper", "replace", "vec_from_text",
     "current_timestamp", "current_date", "str_to_date", "substring_index", "uuid_to_bin"}
)  # fmt: skip
_WIDE = Context(prec=100)
_DATE = re.compile(r"(\d{2,4})[-./](\d{1,2})[-./](\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?")
_NUMBERED_TIME = re.compile(r"(-?)(\d+)(\.\d*)?")
_TIME = re.compile(r"(-?)(?:(\d+) )?(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?")


@dataclass(frozen=True, slots=True)
class Settings:
    """What of a session a definition depends on."""

    zone: tzinfo = UTC  # in which the TIMESTAMPs of defaults are written
    is_strict: bool = True
    clusters_all: bool = True  # tidb_enable_clustered_index: any primary key, or integers only


@dataclass(frozen=True, slots=True)
class Default:
    """What a document keeps: ``default``, ``default_bit`` (base64) and ``default_is_expr``."""

    value: str | None
    bits: str | None = None
    is_expression: bool = False


def build_default(
    column: str, kind: FieldType, default: Expression, in_parentheses: bool, settings: Settings
) -> Default:
    """The default of a column. 1067 where it does not fit, 1101 where a BLOB has a literal one."""
    while isinstance(default, Grouped):
        default = default.inner
    if isinstance(default, Call):
        return _called(column, kind, default, in_parentheses)
    if isinstance(default, Constant) and default.value is None:
        return Default(None)
    if is_blob(kind) or kind["Tp"] == ColumnType.JSON:
        if not settings.is_strict and default == Text(""):
            return Default("")
        raise sql_error(Errno.BLOB_CANT_HAVE_DEFAULT, column)
    if kind["Tp"] == ColumnType.VECTOR:
        raise sql_error(
            Errno.UNKNOWN_ERROR,
            f"VECTOR column '{column}' can't have a literal default. "
            "Use expression default instead: ((VEC_FROM_TEXT('...')))",
        )
    try:
        value = _literal(kind, default, settings.zone)
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise sql_error(Errno.INVALID_DEFAULT, column) from error
    if kind["Tp"] == ColumnType.BIT:
        raw = value.encode("latin-1")
        # A Go string is bytes: what is no UTF-8 is lost in the text, so the bits are kept beside it.
        return Default(raw.decode("utf-8", "replace"), base64.b64encode(raw).decode())
    return Default(value)


def _called(column: str, kind: FieldType, call: Call, in_parentheses: bool) -> Default:
    if call.name == "current_timestamp":
        digits = int(call.args[0].text) if call.args and isinstance(call.args[0], Number) else 0
        if kind["Tp"] not in _MOMENTS or digits != max(kind["Decimal"], 0):
            raise sql_error(Errno.INVALID_DEFAULT, column)
        return Default(NOW)
    if call.name == "current_date" and kind["Tp"] == ColumnType.DATE:
        return Default("CURRENT_DATE")
    if not in_parentheses:
        raise sql_error(Errno.INVALID_DEFAULT, column)
    if call.name not in _FUNCTIONS:
        raise sql_error(Errno.DEFAULT_VAL_GENERATED_NAMED_FUNCTION, column, call.name)
    return Default(to_text(call), None, True)


def _literal(kind: FieldType, default: Expression, zone: tzinfo) -> str:
    tp = ColumnType(kind["Tp"])
    if isinstance(default, Bytes):
        return _of_bytes(tp, kind, default)
    text = literal_text(default)
    if tp in INTEGER_TYPES or tp is ColumnType.YEAR:
        is_real = isinstance(default, Number) and "e" in default.text.lower()
        return _integer(tp, kind, text, is_real=is_real)
    match tp:
        case ColumnType.FLOAT | ColumnType.DOUBLE:
            return _float(kind, text)
        case ColumnType.NEWDECIMAL:
            return _decimal(kind, text)
        case ColumnType.BIT:
            return _bits(kind, default, text)
        case ColumnType.ENUM:
            return _enum(kind, default, text)
        case ColumnType.SET:
            return _set(kind, default, text)
        case ColumnType.DATETIME | ColumnType.TIMESTAMP:
            return _moment(tp, kind, text, zone)
        case ColumnType.DATE:
            return _moment(tp, kind, text, zone)[:10]
        case ColumnType.DURATION:
            return _duration(kind, text)
    if len(text) > kind["Flen"]:
        raise ValueError(f"{len(text)} characters")
    if tp is ColumnType.STRING and kind["Charset"] == "binary":
        return text.ljust(kind["Flen"], "\0")
    return text


def literal_text(default: Expression) -> str:
    match default:
        case Text(value, _):
            return value
        case Number(text):
            return _plain(text)
        case Constant(value):
            return "1" if value else "0"
        case Unary("-", Number(text)):
            return "-" + _plain(text)
        case Unary("-", Text(value, _)):
            return "-" + value
    raise ValueError(f"{to_text(default)} is no literal")


def _plain(text: str) -> str:
    """A number as its own text: 1.50 stays, 1e3 is the float 1000."""
    if "e" not in text.lower():
        return text if text[:1] != "." else "0" + text
    return positional(float(text))


def _of_bytes(tp: ColumnType, kind: FieldType, default: Bytes) -> str:
    if tp is ColumnType.BIT:
        return _fitting_bits(kind, int.from_bytes(default.value, "big"), len(default.value))
    if tp in (ColumnType.STRING, ColumnType.VARCHAR, ColumnType.VARSTRING):
        text = default.value.decode("utf-8")
        is_padded = tp is ColumnType.STRING and kind["Charset"] == "binary"
        if len(default.value) > kind["Flen"]:
            raise ValueError(f"{len(default.value)} bytes")
        return text.ljust(kind["Flen"], "\0") if is_padded else text
    return _literal(kind, Number(str(int.from_bytes(default.value, "big"))), UTC)


def _integer(tp: ColumnType, kind: FieldType, text: str, *, is_real: bool) -> str:
    number = int(Decimal(text.strip()).to_integral_value(ROUND_HALF_UP if not is_real else ROUND_HALF_EVEN))
    if tp is ColumnType.YEAR:
        return _year(text, number)
    bits = _BITS[tp]
    low, high = (0, (1 << bits) - 1) if kind["Flag"] & ColumnFlag.UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= number <= high:
        raise ValueError(f"{number} is out of range")
    return str(number)


def _year(text: str, number: int) -> str:
    """As it was written; how it is read is told when a row gets it."""
    if number and not (1 <= number < 100 or 1901 <= number <= 2155):
        raise ValueError(f"{number} is no year")
    return text.strip()


def _float(kind: FieldType, text: str) -> str:
    value = float(text)
    if kind["Flag"] & ColumnFlag.UNSIGNED and value < 0:
        raise ValueError("negative")
    if kind["Decimal"] >= 0:
        value = round(value, kind["Decimal"]) or 0.0
    return show_float(value) if kind["Tp"] == ColumnType.FLOAT else show_double(value)


def _decimal(kind: FieldType, text: str) -> str:
    value = Decimal(text.strip())
    rounded = value.quantize(Decimal(1).scaleb(-kind["Decimal"]), ROUND_HALF_UP, _WIDE)
    digits = max(len(rounded.as_tuple().digits) - kind["Decimal"], 0)
    if (rounded and digits > kind["Flen"] - kind["Decimal"]) or (kind["Flag"] & ColumnFlag.UNSIGNED and value < 0):
        raise ValueError(f"{value} is out of range")
    return text.strip()


def _bits(kind: FieldType, default: Expression, text: str) -> str:
    if isinstance(default, Text):
        raw = default.value.encode()
        return _fitting_bits(kind, int.from_bytes(raw, "big"), len(raw))
    number = int(text)
    if number < 0:
        raise ValueError("negative")
    return _fitting_bits(kind, number, max((number.bit_length() + 7) // 8, 1))


def _fitting_bits(kind: FieldType, number: int, size: int) -> str:
    if number.bit_length() > kind["Flen"]:
        raise ValueError(f"{number} has more than {kind['Flen']} bits")
    return number.to_bytes(max(size, 1), "big").decode("latin-1")


def _enum(kind: FieldType, default: Expression, text: str) -> str:
    elems: list[str] = kind["Elems"] or []
    if isinstance(default, Number):
        at = int(text)
        if not 1 <= at <= len(elems):
            raise ValueError(f"no element {at}")
        return elems[at - 1]
    return elems[_place(kind, text.rstrip(" "))]


def _set(kind: FieldType, default: Expression, text: str) -> str:
    elems: list[str] = kind["Elems"] or []
    if isinstance(default, Number):
        mask = int(text)
        if mask >> len(elems):
            raise ValueError(f"no set {mask}")
        return ",".join(e for i, e in enumerate(elems) if mask >> i & 1)
    if not text:
        return ""
    places = {_place(kind, part.rstrip(" ")) for part in text.split(",")}
    return ",".join(elems[i] for i in sorted(places))


def _place(kind: FieldType, element: str) -> int:
    elems: list[str] = kind["Elems"] or []
    if kind["Collate"].endswith("_ci"):
        return [e.lower() for e in elems].index(element.lower())
    return elems.index(element)


def _moment(tp: ColumnType, kind: FieldType, text: str, zone: tzinfo) -> str:
    """A DATE, DATETIME or TIMESTAMP as text with its fractional digits; a TIMESTAMP in UTC."""
    digits = max(kind["Decimal"], 0) if tp is not ColumnType.DATE else 0
    stripped = text.strip()
    if set(stripped) <= set("0-: .") and "0" in stripped:
        return "0000-00-00 00:00:00" + ("." + "0" * digits if digits else "")
    moment = _rounded(_parse_moment(stripped), digits)
    if tp is ColumnType.TIMESTAMP:
        moment = moment.replace(tzinfo=zone).astimezone(UTC).replace(tzinfo=None)
        if not datetime(1970, 1, 1, 0, 0, 1) <= moment < datetime(2038, 1, 19, 3, 14, 8):
            raise ValueError(f"{moment} is no TIMESTAMP")
    whole = moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")
    return whole + (f".{moment.microsecond:06d}"[: digits + 1] if digits else "")


def _parse_moment(text: str) -> datetime:
    if text.isdigit() and len(text) in (6, 8, 12, 14):
        text = _with_signs(text)
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no date")
    year, month, day, hour, minute, second = (int(found[i] or 0) for i in range(1, 7))
    if len(found[1]) == 2:
        year += 2000 if year < 70 else 1900
    fraction = (found[7] or "").ljust(6, "0")
    moment = datetime(year, month, day, hour, minute, second, int(fraction[:6]))
    return moment + timedelta(microseconds=1) if fraction[6:7] >= "5" else moment


def _with_signs(text: str) -> str:
    size = 2 if len(text) in (6, 12) else 4
    parts = [text[:size], *(text[i : i + 2] for i in range(size, len(text), 2))]
    return "-".join(parts[:3]) + (" " + ":".join(parts[3:]) if parts[3:] else "")


def _rounded(moment: datetime, digits: int) -> datetime:
    unit = 10 ** (6 - digits)
    micros = (moment.microsecond + unit // 2) // unit * unit
    return moment.replace(microsecond=0) + timedelta(microseconds=micros)


def _duration(kind: FieldType, text: str) -> str:
    found = _TIME.fullmatch(text.strip())
    if found is None and (number := _NUMBERED_TIME.fullmatch(text.strip())):
        padded = number[2].rjust(6, "0")
        found = _TIME.fullmatch(f"{number[1]}{padded[:-4]}:{padded[-4:-2]}:{padded[-2:]}{number[3] or ''}")
    if found is None:
        raise ValueError(f"{text!r} is no time")
    sign, days, hours, minutes, seconds, fraction = found.groups()
    if int(minutes) > 59 or int(seconds or 0) > 59:
        raise ValueError(f"{text!r} is no time")
    digits = max(kind["Decimal"], 0)
    total = timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0))
    unit = 10 ** (6 - digits)
    micros = (int((fraction or "").ljust(6, "0")[:6]) + unit // 2) // unit * unit
    total += timedelta(microseconds=micros)
    if total > timedelta(hours=838, minutes=59, seconds=59):
        raise ValueError(f"{text!r} is out of range")
    whole = int(total.total_seconds())
    clock = f"{sign}{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return clock + (f".{total.microseconds:06d}"[: digits + 1] if digits else "")


def origin_default(column: dict[str, Any], now: datetime, zone: tzinfo) -> tuple[str | None, str | None]:
    """What rows show that were written before ADD COLUMN: (``origin_default``, ``origin_default_bit``)."""
    kind = column["type"]
    value, bits = column["default"], column["default_bit"]
    if column["default_is_expr"]:
        raise not_constant(column["name"]["O"])
    if value == NOW:
        local = now.astimezone(UTC if kind["Tp"] == ColumnType.TIMESTAMP else zone)
        digits = max(kind["Decimal"], 0)
        return local.strftime("%Y-%m-%d %H:%M:%S") + (f".{now.microsecond:06d}"[: digits + 1] if digits else ""), None
    if value == "CURRENT_DATE":
        return now.astimezone(zone).strftime("%Y-%m-%d"), None
    if value is None and kind["Flag"] & ColumnFlag.NOT_NULL and not column["generated_expr_string"]:
        return zero_text(kind), None
    return value, bits


def not_constant(column: str) -> SqlError:
    return sql_error(Errno.UNSUPPORTED_DDL_OPERATION, f"add column '{column}' with a default that is an expression")


def zero_text(kind: FieldType) -> str:
    """What a NOT NULL column without a default shows in rows older than itself, as TiDB keeps it."""
    tp = ColumnType(kind["Tp"])
    if tp is ColumnType.ENUM:
        return str((kind["Elems"] or [""])[0])
    if tp in _MOMENTS:
        digits = max(kind["Decimal"], 0)
        return "0000-00-00 00:00:00" + ("." + "0" * digits if digits else "")
    match tp:
        case ColumnType.DATE:
            return "0000-00-00"
        case ColumnType.DURATION:
            digits = max(kind["Decimal"], 0)
            return "00:00:00" + ("." + "0" * digits if digits else "")
        case ColumnType.YEAR:
            return "0000"
        case ColumnType.JSON:
            return "null"
        case ColumnType.BIT:
            return "\0"
        case ColumnType.SET | ColumnType.STRING | ColumnType.VARCHAR | ColumnType.VARSTRING:
            return ""
        case ColumnType.VECTOR:
            return "[]"
        case ColumnType.TINYBLOB | ColumnType.BLOB | ColumnType.MEDIUMBLOB | ColumnType.LONGBLOB:
            return ""
    return "0"
