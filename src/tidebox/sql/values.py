"""A value on its way into a column: bent to the column's type, or refused as TiDB refuses it.

    expression's value and type ──► Assigner of a column ──► datum, as the codec wants it
                                                     └────► SqlError: 1048, 1264, 1265, 1292, 1366, 1406 …

Under strict rules what does not fit ends the statement; else it is bent to fit, with a warning. And back:
``reader`` turns a datum into the value that expressions compute with.
"""

import math
from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import numpy as np

from tidebox.sql.codec.collation import sort_key, text_bytes
from tidebox.sql.codec.datum import Datum, Json, Time
from tidebox.sql.codec.defaults import zero_value
from tidebox.sql.compute import convert, temporal
from tidebox.sql.compute.casts import to_json
from tidebox.sql.compute.kinds import Element, Kind, Settings, Telling, Type
from tidebox.sql.compute.vectors import parse_vector
from tidebox.sql.floats import positional
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidemill.model.table import INTEGER_TYPES, STRING_TYPES, TIME_TYPES, ColumnFlag, ColumnInfo, ColumnType

Assign = Callable[[Any, int], Datum]  # value that is not NULL, number of the row from 1

_INTEGER_BITS: Final = {
    ColumnType.TINY: 8,
    ColumnType.SHORT: 16,
    ColumnType.INT24: 24,
    ColumnType.LONG: 32,
    ColumnType.LONGLONG: 64,
}
_NAMES: Final = {
    ColumnType.TINY: "tinyint",
    ColumnType.SHORT: "smallint",
    ColumnType.INT24: "mediumint",
    ColumnType.LONG: "int",
    ColumnType.LONGLONG: "bigint",
    ColumnType.FLOAT: "float",
    ColumnType.DOUBLE: "double",
    ColumnType.NEWDECIMAL: "decimal",
    ColumnType.YEAR: "year",
    ColumnType.DATE: "date",
    ColumnType.DATETIME: "datetime",
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.DURATION: "time",
    ColumnType.BIT: "bit",
    ColumnType.JSON: "json",
    ColumnType.ENUM: "enum",
    ColumnType.SET: "set",
    ColumnType.VECTOR: "vector",
}
_KIND_NAMES: Final = {
    Kind.REAL: "double",
    Kind.BIT: "bit",
    Kind.BITS: "bit/hex literal",
    Kind.ENUM: "enum",
    Kind.SET: "set",
    Kind.VECTOR: "vector",
    Kind.INT: "bigint",
    Kind.DECIMAL: "decimal",
    Kind.DATE: "date",
    Kind.DATETIME: "datetime",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIME: "time",
    Kind.YEAR: "bigint",
    Kind.JSON: "json",
}
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_BEYOND_FLOAT: Final = 2.0**128 - 2.0**103  # from here on rounding to single precision gives infinity
_TEXT_BLOBS: Final = frozenset({ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB})
_TIMESTAMP_MIN: Final = Time(1970, 1, 1, 0, 0, 1)
_TIMESTAMP_MAX: Final = Time(2038, 1, 19, 3, 14, 7, 999999)


class Assigner:
    """Puts values into one column. ``Settings`` are those of the statement."""

    def __init__(self, column: ColumnInfo, settings: Settings) -> None:
        self.column = column
        self._settings = settings
        self._by_type: dict[Type, Assign] = {}

    def assign(self, value: Any, kind: Type, row: int = 1) -> Datum:
        """The datum for a value of ``kind``; 1048 if it is NULL and may not be."""
        if value is None:
            return self._null()
        assign = self._by_type.get(kind)
        if assign is None:
            assign = self._by_type[kind] = self._made_for(kind)
        return assign(value, row)

    def _null(self) -> Datum:
        if not self.column.is_not_null:
            return None
        error = sql_error(Errno.BAD_NULL_ERROR, self.column.name)
        if self.column.type is ColumnType.VECTOR and self._settings.is_lenient:
            raise sql_error(Errno.UNKNOWN_ERROR, f"VECTOR column '{self.column.name}' cannot be null")
        if not self._settings.is_lenient:
            raise error
        self._note(error)
        return zero_value(self.column)

    def _made_for(self, kind: Type) -> Assign:
        column = self.column
        if column.type in INTEGER_TYPES:
            return self._integer(kind)
        if column.type in STRING_TYPES:
            return self._string(kind)
        if column.type in TIME_TYPES:
            return self._moment(kind)
        makers: dict[ColumnType, Callable[[Type], Assign]] = {
            ColumnType.FLOAT: self._real,
            ColumnType.DOUBLE: self._real,
            ColumnType.NEWDECIMAL: self._decimal,
            ColumnType.YEAR: self._year,
            ColumnType.DURATION: self._duration,
            ColumnType.ENUM: self._enum,
            ColumnType.SET: self._set,
            ColumnType.BIT: self._bit,
            ColumnType.JSON: self._json,
            ColumnType.VECTOR: self._vector,
        }
        return makers[column.type](kind)

    # Complaints

    def _note(self, error: SqlError) -> None:
        self._settings.warnings.append(("Warning", error.number, error.message))

    def _complain(self, error: SqlError) -> None:
        """End the statement, or warn where values are bent."""
        if not self._settings.is_lenient:
            raise error
        self._note(error)

    @property
    def _telling(self) -> Telling:
        return self._settings.telling

    def _out_of_range(self, row: int, raw: str) -> None:
        """``raw``: what a cast says."""
        if self._telling is Telling.CAST:
            self._complain(SqlError(1690, "22003", raw))
        else:
            self._complain(sql_error(Errno.WARN_DATA_OUT_OF_RANGE, self.column.name, row))

    def _overflows(self, value: Any, row: int) -> None:
        if isinstance(value, float):
            value = repr(value).removesuffix(".0")
        self._out_of_range(row, f"constant {value} overflows {_NAMES[self.column.type]}")

    def _truncated(self, row: int) -> None:
        if self._telling is Telling.VALUES:
            self._complain(sql_error(Errno.WARN_DATA_TRUNCATED, self.column.name, row))
        else:
            self._complain(sql_error(Errno.WARN_DATA_TRUNCATED))  # TiDB leaves the places of its text unfilled

    def _too_long(self, row: int, size: int | None = None) -> None:
        if self._telling is Telling.CAST:
            given = "" if size is None else f", data len {size}"
            self._complain(SqlError(1406, "22001", f"Data Too Long, field len {self.column.flen}{given}"))
        else:
            self._complain(sql_error(Errno.DATA_TOO_LONG, self.column.name, row))

    def _incorrect(self, value: Any, kind: Type, row: int) -> None:
        shown = value if isinstance(value, str) else _text(value, kind)
        name = _NAMES[self.column.type]
        if self._telling is not Telling.VALUES:
            self._complain(self._cast_error(shown, kind))
        elif self.column.type in TIME_TYPES or self.column.type is ColumnType.DURATION:
            message = f"Incorrect {name} value: '{shown}' for column '{self.column.name}' at row {row}"
            self._complain(SqlError(1292, "22007", message))
        else:
            self._complain(sql_error(Errno.TRUNCATED_WRONG_VALUE_FOR_FIELD, name, shown, self.column.name, row))

    def _cast_error(self, shown: str, kind: Type) -> SqlError:
        column = self.column
        if column.type in TIME_TYPES:
            return SqlError(1292, "22007", f"Incorrect {_NAMES[column.type]} value: '{shown}'")
        if column.type is ColumnType.DURATION:
            is_far = kind.kind is Kind.INT and shown.lstrip("-").isdigit() and abs(int(shown)) > 8385959
            word = "Incorrect" if is_far else "Truncated incorrect"
            return SqlError(1292, "22007", f"{word} time value: '{shown}'")
        name = "DECIMAL" if column.type is ColumnType.NEWDECIMAL else "DOUBLE"
        if kind.kind is Kind.JSON:
            name = "INTEGER" if column.type in INTEGER_TYPES else "FLOAT" if name == "DOUBLE" else name
        return sql_error(Errno.TRUNCATED_WRONG_VALUE, name, shown.strip())

    def _refuse_kind(self, kind: Type) -> None:
        source, target = _KIND_NAMES[kind.kind], _NAMES[self.column.type]
        if kind.kind is Kind.REAL and kind.column is not None and kind.column.type is ColumnType.FLOAT:
            source = "float"
        self._complain(sql_error(Errno.UNKNOWN_ERROR, f"cannot convert datum from {source} to type {target}"))

    # Numbers

    def _number(self, value: Any, kind: Type, row: int) -> int | float | Decimal:
        """Texts must be numbers as a whole."""
        if kind.kind in (Kind.TEXT, Kind.BYTES):
            text = _text(value, kind)
            prefix, is_whole = convert.numeric_prefix(text)
            if not is_whole:
                self._incorrect(text, kind, row)
            return Decimal(prefix)
        if kind.kind is Kind.BITS and len(value) > 8:
            self._overflows((1 << 64) - 1, row)
            return (1 << 64) - 1
        return convert.number(value, kind, self._settings)

    def _integer(self, kind: Type) -> Assign:
        bits = _INTEGER_BITS[self.column.type]
        low, high = (0, (1 << bits) - 1) if self.column.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)

        def assign(value: Any, row: int) -> int:
            number = value if type(value) is int else self._number(value, kind, row)
            found = _rounded(number)
            if low <= found <= high:
                return found
            self._overflows(number if abs(found) >> 63 else found, row)
            return low if found < low else high

        return assign

    def _real(self, kind: Type) -> Assign:
        column = self.column
        is_single = column.type is ColumnType.FLOAT
        scale = column.decimal if column.decimal >= 0 and column.flen > 0 else None

        def assign(value: Any, row: int) -> float:
            found = float(self._number(value, kind, row))
            if not math.isfinite(found):
                self._overflows(found, row)
                found = math.copysign(_FLOAT_MAX, found)
            if scale is not None:
                found = self._fixed(found, scale, row)
            if column.is_unsigned and found < 0:
                self._overflows(found, row)
                return 0.0
            if is_single:
                if abs(found) > _FLOAT_MAX and abs(found) >= _BEYOND_FLOAT:
                    self._overflows(found, row)
                    found = math.copysign(_FLOAT_MAX, found)
                return float(np.float32(found))
            return found

        return assign

    def _fixed(self, value: float, scale: int, row: int) -> float:
        """Of a DOUBLE(M, D): D digits behind the point, at most M in all."""
        power = 10.0**scale
        shifted = value * power
        found = _half_even(shifted) / power if math.isfinite(shifted) else value
        found = found or 0.0  # there is no negative zero
        most = 10.0 ** (self.column.flen - scale) - 10.0**-scale
        if abs(found) > most:
            self._out_of_range(row, f"{_NAMES[self.column.type].upper()} value is out of range in ''")
            return math.copysign(most, found)
        return found

    def _decimal(self, kind: Type) -> Assign:
        column = self.column
        precision = column.flen if column.flen > 0 else 10
        scale = max(column.decimal, 0)
        unit = Decimal(1).scaleb(-scale)
        most = convert.MATH.subtract(Decimal(10 ** (precision - scale)), unit)
        too_much = Decimal(10 ** (precision - scale))

        def assign(value: Any, row: int) -> Decimal:
            number = self._number(value, kind, row)
            exact = convert.decimal_of_real(number) if isinstance(number, float) else Decimal(number)
            if exact.copy_abs() > too_much:
                found = exact
            else:
                found = exact.quantize(unit, ROUND_HALF_UP, convert.MATH)
                if found != exact and found.copy_abs() <= most:
                    self._rounded_off(_told(value, kind, exact), exact, row)
            if found.copy_abs() > most:
                self._out_of_range(row, f"DECIMAL value is out of range in '({precision}, {scale})'")
                found = most if found > 0 else most.copy_negate()
            if column.is_unsigned and found < 0:
                self._out_of_range(row, f"DECIMAL value is out of range in '({precision}, {scale})'")
                found = Decimal(0).quantize(unit)
            return found if found else found.copy_abs()  # there is no negative zero

        return assign

    def _rounded_off(self, shown: str, exact: Decimal, row: int) -> None:
        """Digits behind the last place are lost with a warning, even under strict rules."""
        if self._telling is Telling.VALUES:
            error = sql_error(Errno.TRUNCATED_WRONG_VALUE_FOR_FIELD, "decimal", shown, self.column.name, row)
        else:
            error = sql_error(Errno.TRUNCATED_WRONG_VALUE, "DECIMAL", f"{exact:f}")
        self._note(error)

    def _year(self, kind: Type) -> Assign:
        def assign(value: Any, row: int) -> int:
            if kind.kind in (Kind.TEXT, Kind.BYTES):
                text = _text(value, kind).strip()
                if not text.isdigit():
                    self._incorrect(text, kind, row)
                    return 0
                year = int(text)
                if len(text) <= 2:
                    year = temporal.full_year(year)
            elif kind.kind.is_moment:
                year = value.year
            else:
                year = _rounded(self._number(value, kind, row))
                if 0 < year < 100:
                    year = temporal.full_year(year)
            if year == 0 or 1901 <= year <= 2155:
                return year
            if self._telling is Telling.VALUES:
                self._complain(sql_error(Errno.WARN_DATA_OUT_OF_RANGE, self.column.name, row))
            else:
                self._complain(sql_error(Errno.WARN_DATA_OUT_OF_RANGE))  # unfilled, as with what is truncated
            return 0

        return assign

    def _bit(self, kind: Type) -> Assign:
        bits = max(self.column.flen, 1)

        def assign(value: Any, row: int) -> int:
            if kind.kind in (Kind.TEXT, Kind.BYTES, Kind.BITS, Kind.ENUM, Kind.SET):
                raw = text_bytes(value)
                if len(raw) > 8 and bits == 64 and kind.kind is not Kind.BITS:
                    self._incorrect(value if isinstance(value, str) else _text(value, kind), kind, row)
                    raw = raw[:8]
                found = int.from_bytes(raw.lstrip(b"\0"), "big")
            else:
                found = _rounded(self._number(value, kind, row))
                if found < 0 and kind.kind is Kind.REAL:
                    self._overflows(float(value), row)
                if found < 0:
                    found &= (1 << 64) - 1
            if found >> bits:
                self._too_long(row)
                found = (1 << bits) - 1
            return found

        return assign

    # Texts

    def _string(self, kind: Type) -> Assign:
        column = self.column
        if column.is_binary:
            return self._bytes(kind)
        is_char, is_blob = column.type is ColumnType.STRING, column.type in _TEXT_BLOBS
        flen = column.flen
        fits = _charset_check(column.charset)
        is_real = kind.kind is Kind.REAL
        bare = kind._replace(column=None) if kind.kind is Kind.INT else kind  # without the zeros of ZEROFILL

        def assign(value: Any, row: int) -> str:
            text = value if isinstance(value, str) else _digits(value, kind) if is_real else _text(value, bare)
            if isinstance(text, Element):
                text = str(text)
            if not text.isascii():
                bad = fits(text)
                if bad is not None:
                    text = self._bad_text(text, bad)
            if flen >= 0 and len(text) > flen if not is_blob else flen >= 0 and len(text) * 4 > flen:
                text = self._cut(text, flen, is_blob, row)
            return text.rstrip(" ") if is_char else text

        return assign

    def _bad_text(self, text: str, at: int) -> str:
        raw = "".join(f"\\x{byte:02X}" for byte in text_bytes(text[at]))
        self._complain(SqlError(1366, "HY000", f"Incorrect string value '{raw}' for column '{self.column.name}'"))
        fits = _charset_check(self.column.charset)
        return "".join("?" if fits(character) is not None else character for character in text)

    def _cut(self, text: str, flen: int, is_blob: bool, row: int) -> str:
        if is_blob:
            raw = text_bytes(text)
            if len(raw) <= flen:
                return text
            self._too_long(row, len(raw))
            return raw[:flen].decode("utf-8", "ignore")
        if text[flen:].strip(" "):
            self._too_long(row, len(text))
        return text[:flen]

    def _bytes(self, kind: Type) -> Assign:
        column = self.column
        flen, is_padded = column.flen, column.type is ColumnType.STRING
        bare = kind._replace(column=None) if kind.kind is Kind.INT else kind

        def assign(value: Any, row: int) -> bytes:
            raw = text_bytes(_digits(value, kind) if kind.kind is Kind.REAL else convert.shown(value, bare))
            if 0 <= flen < len(raw):
                self._too_long(row, len(raw))
                raw = raw[:flen]
            return raw.ljust(flen, b"\0") if is_padded and flen > 0 else raw

        return assign

    # Moments

    def _moment(self, kind: Type) -> Assign:
        column, settings = self.column, self._settings
        is_date, is_stamp = column.type is ColumnType.DATE, column.type is ColumnType.TIMESTAMP
        fsp = max(column.decimal, 0)
        is_odd = kind.kind in (Kind.REAL, Kind.BIT, Kind.BITS, Kind.ENUM, Kind.SET, Kind.VECTOR)

        def assign(value: Any, row: int) -> Time | None:
            if is_odd:
                self._refuse_kind(kind)
                return None
            found = _moment_of(value, kind, settings)
            if found is None or not self._is_allowed(found):
                self._incorrect(value, kind, row)
                return temporal.ZERO
            if is_date:
                return temporal.date_of(found)
            try:
                found = temporal.round_moment(found, fsp)
                if is_stamp:
                    found = temporal.to_utc(found, settings.time_zone)
            except (ValueError, OverflowError):
                self._incorrect(value, kind, row)
                return temporal.ZERO
            if is_stamp and found != temporal.ZERO and not _TIMESTAMP_MIN <= found <= _TIMESTAMP_MAX:
                self._incorrect(value, kind, row)
                return temporal.ZERO
            return found

        return assign

    def _is_allowed(self, moment: Time) -> bool:
        settings = self._settings
        if temporal.is_zero(moment):
            return not settings.no_zero_date
        if temporal.has_zero_part(moment):
            return not settings.no_zero_in_date and self.column.type is not ColumnType.TIMESTAMP
        return temporal.is_possible(moment)

    def _duration(self, kind: Type) -> Assign:
        fsp = max(self.column.decimal, 0)
        is_odd = kind.kind in (Kind.BIT, Kind.BITS, Kind.ENUM, Kind.SET, Kind.VECTOR)

        def assign(value: Any, row: int) -> timedelta | None:
            if is_odd:
                self._refuse_kind(kind)
                return None
            found = _duration_of(value, kind)
            if found is None:
                self._incorrect(value, kind, row)
                return timedelta()
            found = temporal.round_duration(found, fsp)
            if abs(found) > temporal.MAX_DURATION:
                self._complain(SqlError(1292, "22007", f"Truncated incorrect time value: '{_text(value, kind)}'"))
                return temporal.MAX_DURATION if found > timedelta() else -temporal.MAX_DURATION
            return found

        return assign

    # Elements

    def _enum(self, kind: Type) -> Assign:
        column = self.column
        weigh = sort_key(column.collate)
        numbers = {weigh(name): number for number, name in enumerate(column.elems, 1)}

        def assign(value: Any, row: int) -> int:
            if kind.kind.is_string and kind.kind is not Kind.BITS:
                text = _text(value, kind)
                number = numbers.get(weigh(text), 0)
                if not number and text.isdigit() and 0 < int(text) <= len(column.elems):
                    number = int(text)
            else:
                number = _rounded(self._number(value, kind, row))
                if not 0 < number <= len(column.elems):
                    number = 0
            if not number:
                self._truncated(row)
            return number

        return assign

    def _set(self, kind: Type) -> Assign:
        column = self.column
        weigh = sort_key(column.collate)
        numbers = {weigh(name): 1 << at for at, name in enumerate(column.elems)}

        def assign(value: Any, row: int) -> int:
            if kind.kind.is_string and kind.kind is not Kind.BITS:
                text = _text(value, kind)
                found, is_known = 0, True
                for name in text.split(",") if text else ():
                    bit = numbers.get(weigh(name))
                    is_known = is_known and bit is not None
                    found |= bit or 0
                if not is_known and text.isdigit() and int(text) < 1 << len(column.elems):
                    return int(text)
            else:
                found = _rounded(self._number(value, kind, row))
                is_known = 0 <= found < 1 << len(column.elems)
                found &= (1 << len(column.elems)) - 1
            if not is_known:
                self._truncated(row)
            return found

        return assign

    # Documents and vectors

    def _json(self, kind: Type) -> Assign:
        def assign(value: Any, row: int) -> Datum:
            if kind.kind is Kind.BITS or (kind.kind is Kind.BYTES and kind.column is None):
                raise sql_error(Errno.INVALID_JSON_CHARSET, "binary")
            try:
                if kind.kind is Kind.BYTES:
                    return to_json(_text(value, kind), Type(Kind.TEXT), is_parsed=True)
                return to_json(value, kind, is_parsed=True)
            except SqlError as error:
                self._complain(error)
                return Json(None)

        return assign

    def _vector(self, kind: Type) -> Assign:
        column = self.column

        def assign(value: Any, row: int) -> Datum:
            if kind.kind not in (Kind.TEXT, Kind.BYTES, Kind.VECTOR):
                self._refuse_kind(kind)
                return None
            found = (
                value if isinstance(value, tuple) and not isinstance(value, Time) else parse_vector(_text(value, kind))
            )
            if 0 < column.flen != len(found):
                message = f"vector has {len(found)} dimensions, does not fit VECTOR({column.flen})"
                raise sql_error(Errno.UNKNOWN_ERROR, message)
            return found

        return assign


def _text(value: Any, kind: Type) -> str:
    shown = value if isinstance(value, str) else convert.shown(value, kind)
    return shown if isinstance(shown, str) else shown.decode("utf-8", "surrogateescape")


def _told(value: Any, kind: Type, exact: Decimal) -> str:
    """A number that loses digits, as it was given."""
    if isinstance(value, str):
        return value.strip()
    if kind.kind is Kind.DECIMAL and kind.decimals >= 0:
        exact = exact.quantize(Decimal(1).scaleb(-kind.decimals), ROUND_HALF_UP, convert.MATH)
    return f"{exact:f}"


def _digits(value: float, kind: Type) -> str:
    """A floating-point number as text in a column: all its digits, whatever its size."""
    is_single = kind.column is not None and kind.column.type is ColumnType.FLOAT
    return positional(value, is_single=is_single)


def _rounded(number: int | float | Decimal) -> int:
    if isinstance(number, int):
        return number
    if isinstance(number, float):
        return int(_half_even(number)) if math.isfinite(number) else (1 << 200 if number > 0 else -(1 << 200))
    return int(number.to_integral_value(ROUND_HALF_UP))


def _half_even(value: float) -> float:
    return float(round(value))


def _charset_check(charset: str) -> Callable[[str], int | None]:
    """From a text to the place of the first character that the character set has not."""

    def check(text: str) -> int | None:
        for at, character in enumerate(text):
            if "\ud800" <= character <= "\udfff" or not is_known(character):
                return at
        return None

    def is_known(character: str) -> bool:
        match charset:
            case "utf8mb4" | "latin1" | "utf8mb3":
                return True
            case "utf8":
                return character <= "\uffff"
            case "ascii":
                return character <= "\x7f"
            case "gbk":
                return _can_encode(character, "gbk")
            case _:
                return True

    return check


def _can_encode(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _moment_of(value: Any, kind: Type, settings: Settings) -> Time | None:
    """Silently: who asks complains in its own words."""
    quiet = Settings(settings.time_zone, is_strict=False)
    return convert.moment(value, kind, quiet)


def _duration_of(value: Any, kind: Type) -> timedelta | None:
    match kind.kind:
        case Kind.TIME:
            return value  # type: ignore[no-any-return]  # a timedelta
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            return temporal.clock_of(value)
        case _:
            return temporal.parse_duration(_text(value, kind))


# Back


def reader(column: ColumnInfo, settings: Settings) -> Callable[[Any], Any] | None:
    """From a datum that is not NULL to what expressions compute with; None: it is the same."""
    match column.type:
        case ColumnType.ENUM:
            names = [Element("", 0), *(Element(name, at) for at, name in enumerate(column.elems, 1))]
            return lambda number: names[number] if number < len(names) else Element("", number)
        case ColumnType.SET:
            elements = column.elems
            return lambda bits: Element(",".join(n for at, n in enumerate(elements) if bits >> at & 1), bits)
        case ColumnType.TIMESTAMP:
            zone = settings.time_zone
            if zone is UTC:
                return None
            return lambda moment: temporal.from_utc(moment, zone)
        case ColumnType.STRING if not column.is_binary:
            return None
        case ColumnType.NEWDECIMAL:
            unit = Decimal(1).scaleb(-max(column.decimal, 0))
            return lambda value: value.quantize(unit, context=convert.MATH)
        case _:
            return None


def is_auto_increment(column: ColumnInfo) -> bool:
    return bool(column.flag & ColumnFlag.AUTO_INCREMENT)
