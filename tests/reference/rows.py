"""The plain per-row decoder: one key and value to a dict, by the book and one column after the other.

It is the reference that the columnar mounter must equal, row for row and refusal for refusal, and the
floor that it is measured against. It shares no code with the mounter.
"""

import base64
import itertools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from tidemill.model.table import ColumnFlag, ColumnInfo, TableInfo
from tidemill.model.table import ColumnType as T

INTEGERS = {T.TINY, T.SHORT, T.LONG, T.LONGLONG, T.INT24}
STRINGS = {T.VARCHAR, T.VARSTRING, T.STRING, T.TINYBLOB, T.BLOB, T.MEDIUMBLOB, T.LONGBLOB}
TIMES = {T.DATE, T.NEWDATE, T.DATETIME, T.TIMESTAMP}
UNSIGNED_CELLS = {T.BIT, T.ENUM, T.SET, *TIMES}
BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
MOST_NANOSECONDS = 839 * 3600 * 10**9
NULL = object()


class Undecodable(Exception):
    pass


@dataclass(frozen=True)
class Decoder:
    """Decodes rows of one physical table. ``decode`` raises Undecodable where the bytes make no sense."""

    table: TableInfo
    physical_id: int
    zone: str = "UTC"

    def decode(self, key: bytes, value: bytes) -> dict[str, Any]:
        try:
            handle = self._handle(key)
            cells = cells_v2(value) if value[0] == 0x80 else cells_v1(value, self.table)
            return {c.name: self._column(c, cells, handle) for c in self.table.stored_columns}
        except (IndexError, struct.error, OverflowError, UnicodeDecodeError) as error:
            raise Undecodable(str(error)) from error

    def _column(self, column: ColumnInfo, cells: dict[int, Any], handle: dict[int, Any]) -> Any:
        cell = cells.get(column.id)
        if cell is None or cell is NULL:
            if column.id in handle:
                cell = handle[column.id]
                if cell is NULL:
                    raise Undecodable("only a prefix in the key")
            elif cell is NULL:
                return None
            else:
                return missing(column, self.zone)
        return present(column, cell, self.zone)

    def _handle(self, key: bytes) -> dict[int, Any]:
        prefix = b"t" + struct.pack(">Q", self.physical_id ^ 1 << 63) + b"_r"
        if not key.startswith(prefix):
            raise Undecodable("not a record key of this table")
        suffix = key[len(prefix) :]
        if self.table.is_common_handle:
            if len(suffix) < 9:
                raise Undecodable("no common handle")
            return dict(common_handle(self.table, suffix))
        if len(suffix) != 8:
            raise Undecodable("no integer handle")
        if not self.table.pk_is_handle:
            return {}
        column = next(c for c in self.table.columns if c.flag & ColumnFlag.PRI_KEY)
        return {column.id: struct.pack("<Q", struct.unpack(">Q", suffix)[0] ^ 1 << 63)}


def cells_v2(row: bytes) -> dict[int, Any]:
    flags = row[1]
    if flags & ~3:
        raise Undecodable("unknown flags")
    filled, null = struct.unpack_from("<HH", row, 2)
    if flags & 1:
        ids = struct.unpack_from(f"<{filled + null}I", row, 6)
        ends_at = 6 + 4 * (filled + null)
        ends = struct.unpack_from(f"<{filled}I", row, ends_at)
        body = ends_at + 4 * filled
    else:
        ids = tuple(row[6 : 6 + filled + null])
        ends_at = 6 + filled + null
        ends = struct.unpack_from(f"<{filled}H", row, ends_at)
        body = ends_at + 2 * filled
    if len(ids) != filled + null or any(a >= b for part in (ids[:filled], ids[filled:]) for a, b in pairs(part)):
        raise Undecodable("ids do not ascend")
    cells: dict[int, Any] = dict.fromkeys(ids[filled:], NULL)
    before = 0
    for id_, end in zip(ids, ends, strict=False):
        if end < before or body + end > len(row):
            raise Undecodable("offsets")
        cells[id_] = row[body + before : body + end]
        before = end
    tail = row[body + before :]
    if flags & 2:
        if not tail or tail[0] & 7 > 2 or len(tail) != (9 if tail[0] & 8 else 5):
            raise Undecodable("checksum block")
    elif tail:
        raise Undecodable("trailing bytes")
    return cells


def pairs(items: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(items)


def uvarint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            if value >= 1 << 64 or shift > 63:
                raise Undecodable("varint")
            return value, at
        shift += 7
        if shift > 63:
            raise Undecodable("varint")


def varint(raw: bytes, at: int) -> tuple[int, int]:
    value, at = uvarint(raw, at)
    return (value >> 1) ^ -(value & 1), at


def cells_v1(row: bytes, table: TableInfo) -> dict[int, Any]:
    cells: dict[int, Any] = {}
    if row == b"\0":
        return cells
    columns = {c.id: c for c in table.stored_columns}
    at = 0
    while at < len(row):
        if row[at] != 8:
            raise Undecodable("v1 id")
        id_, at = varint(row, at + 1)
        if id_ in cells or not 0 <= id_ < 1 << 32:
            raise Undecodable("v1 id")
        flag = row[at]
        cell, at = value_v1(flag, row, at + 1)
        if at > len(row):
            raise Undecodable("v1 value cut off")
        if cell is not NULL and id_ in columns and flag not in kinds_v1(columns[id_]):
            raise Undecodable("v1 kind")
        cells[id_] = cell
    return cells


def value_v1(flag: int, row: bytes, at: int) -> tuple[Any, int]:
    if flag == 0:
        return NULL, at
    if flag == 8:
        value, at = varint(row, at)
        return struct.pack("<q", value), at
    if flag == 9:
        value, at = uvarint(row, at)
        return struct.pack("<Q", value), at
    if flag == 2:
        size, at = varint(row, at)
        if size < 0:
            raise Undecodable("v1 length")
    elif flag == 5:
        size = 8
    elif flag == 6:
        size = 2 + decimal_bytes(row[at], row[at + 1])
    elif flag == 10:
        size = json_size(row, at)
    elif flag == 20:
        size = 4 + 4 * struct.unpack_from("<I", row, at)[0]
    else:
        raise Undecodable("v1 flag")
    return row[at : at + size], at + size


def json_size(row: bytes, at: int) -> int:
    code = row[at]
    if code in (1, 3):
        size: int = struct.unpack_from("<II", row, at + 1)[1]
        return 1 + size
    if code in (0x0C, 0x0D):
        length, after = uvarint(row, at + (1 if code == 0x0C else 2))
        return after - at + length
    if code == 4:
        return 2
    if code == 0x11:
        return 13
    if 9 <= code <= 0x10:
        return 9
    raise Undecodable("JSON type")


def kinds_v1(column: ColumnInfo) -> tuple[int, ...]:
    kind = column.type
    if kind in STRINGS:
        return (2,)
    if kind in (T.FLOAT, T.DOUBLE):
        return (5,)
    return {T.NEWDECIMAL: (6,), T.JSON: (10,), T.VECTOR: (20,)}.get(kind, (8, 9))


def key_flags(column: ColumnInfo) -> tuple[int, ...]:
    kind = column.type
    if kind in STRINGS:
        return (1,)
    if kind in (T.FLOAT, T.DOUBLE):
        return (5,)
    return {T.NEWDECIMAL: (6,), T.DURATION: (7,)}.get(kind, (3, 4))


def common_handle(table: TableInfo, handle: bytes) -> Iterator[tuple[int, Any]]:
    index = next(i for i in table.indexes if i.is_primary)
    at = 0
    for part in index.columns:
        column = table.columns[part.offset]
        flag = handle[at]
        if flag not in key_flags(column):
            raise Undecodable("kind in handle")
        cell, at = handle_cell(flag, handle, at + 1)
        yield column.id, cell if part.length < 0 else NULL
    rest = handle[at:]
    if rest and (len(handle) != 9 or any(rest)):
        raise Undecodable("bytes behind the handle")


def handle_cell(flag: int, handle: bytes, at: int) -> tuple[bytes, int]:
    if flag == 1:
        out = b""
        while True:
            group, marker = handle[at : at + 8], handle[at + 8]
            padding = 0xFF - marker
            if padding > 8 or any(group[8 - padding :]):
                raise Undecodable("group in handle")
            out += group[: 8 - padding]
            at += 9
            if padding:
                return out, at
    if flag == 6:
        size = 2 + decimal_bytes(handle[at], handle[at + 1])
        if at + size > len(handle):
            raise Undecodable("decimal in handle")
        return handle[at : at + size], at + size
    word = struct.unpack_from(">Q", handle, at)[0]
    if flag == 5:
        return handle[at : at + 8], at + 8
    if flag != 4:
        word ^= 1 << 63
    return struct.pack("<Q", word), at + 8


def present(column: ColumnInfo, cell: bytes, zone: str) -> Any:
    kind = column.type
    if kind in INTEGERS or kind is T.YEAR:
        return integer(cell, signed=kind is T.YEAR or not column.is_unsigned)
    if kind in STRINGS:
        return cell if column.is_binary else text_of(cell, column.charset)
    if kind in (T.FLOAT, T.DOUBLE):
        return real(cell, single=kind is T.FLOAT)
    if kind is T.NEWDECIMAL:
        return decimal_text(cell)
    if kind in TIMES:
        return time_text(column, integer(cell, signed=False), zone)
    if kind is T.DURATION:
        return duration_text(integer(cell, signed=True), max(column.decimal, 0))
    if kind is T.JSON:
        return json_text(cell)
    if kind is T.VECTOR:
        return vector_text(cell)
    number = integer(cell, signed=False)
    if kind is T.ENUM:
        return number if number <= len(column.elems) else 0
    if kind is T.SET and number >> len(column.elems):
        raise Undecodable("set")
    return number


def text_of(cell: bytes, charset: str) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        if charset != "latin1":
            raise
    return "".join(bytes([b]).decode("cp1252", "ignore") or chr(b) for b in cell)


def integer(cell: bytes, *, signed: bool) -> int:
    if len(cell) not in (1, 2, 4, 8):
        raise Undecodable("integer")
    return int.from_bytes(cell, "little", signed=signed)


def real(cell: bytes, *, single: bool) -> float:
    if len(cell) != 8:
        raise Undecodable("float")
    word = int.from_bytes(cell, "big")
    word = word & ~(1 << 63) if word >> 63 else word ^ (1 << 64) - 1
    value: float = struct.unpack("<d", struct.pack("<Q", word))[0]
    if single and math.isfinite(value):
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return value if math.isfinite(value) else 0.0


def decimal_bytes(precision: int, scale: int) -> int:
    whole = precision - scale
    if whole < 0:
        raise Undecodable("decimal")
    return 4 * (whole // 9) + BYTES_OF_DIGITS[whole % 9] + 4 * (scale // 9) + BYTES_OF_DIGITS[scale % 9]


def decimal_text(cell: bytes) -> str:
    precision, scale = cell[0], cell[1]
    if precision > 81 or scale > 30 or len(cell) != 2 + decimal_bytes(precision, scale) or len(cell) < 3:
        raise Undecodable("decimal")
    whole = precision - scale
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    if sum(g > 0 for g in groups) > 9:
        raise Undecodable("decimal")
    raw = bytearray(cell[2:])
    negative = not raw[0] & 0x80
    raw[0] ^= 0x80
    if negative:
        raw = bytearray(b ^ 0xFF for b in raw)
    digits, at = "", 0
    for group in groups:
        size = BYTES_OF_DIGITS[group]
        value = int.from_bytes(raw[at : at + size], "big")
        if value >= 10**group:
            raise Undecodable("decimal")
        digits += str(value).zfill(group) if group else ""
        at += size
    text = digits[:whole].lstrip("0") or "0"
    if scale:
        text += "." + digits[whole:]
    return "-" + text if negative else text


def fraction(micro: int, digits: int) -> str:
    return "." + f"{micro:06d}"[:digits] if digits else ""


def time_text(column: ColumnInfo, packed: int, zone: str) -> str:
    micro, rest = packed & 0xFFFFFF, packed >> 24
    date, clock = rest >> 17, rest & 0x1FFFF
    year, month = divmod(date >> 5, 13)
    day, hour, minute, second = date & 31, clock >> 12, clock >> 6 & 63, clock & 63
    if year > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999999:
        raise Undecodable("time")
    if column.type is T.TIMESTAMP and packed:
        try:
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError as error:
            raise Undecodable("timestamp") from error
        if not 0 <= moment.timestamp() < 1 << 32:
            raise Undecodable("timestamp")
        local = moment.astimezone(zone_of(zone))
        year, month, day, hour, minute, second = local.timetuple()[:6]
    text = f"{year:04d}-{month:02d}-{day:02d}"
    if column.type in (T.DATE, T.NEWDATE):
        return text
    return f"{text} {hour:02d}:{minute:02d}:{second:02d}" + fraction(micro, max(column.decimal, 0))


def zone_of(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def duration_text(nanoseconds: int, digits: int) -> str:
    if abs(nanoseconds) >= MOST_NANOSECONDS:
        raise Undecodable("duration")
    micro = abs(nanoseconds) // 1000
    minutes, second = divmod(micro // 10**6, 60)
    hour, minute = divmod(minutes, 60)
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{hour:02d}:{minute:02d}:{second:02d}" + fraction(micro % 10**6, digits)


def json_text(cell: bytes) -> str:
    out = json_value(cell[0], cell[1:], 0)
    if len(out.encode()) > 6 * len(cell) + 448:
        raise Undecodable("a document that repeats itself")
    return out


def json_value(code: int, body: bytes, depth: int) -> str:
    if code in (1, 3):
        return json_container(code, body, depth)
    if code == 4:
        return ("null", "true", "false")[body[0]]
    if code == 0x0C:
        size, at = uvarint(body, 0)
        if at + size > len(body):
            raise Undecodable("JSON string")
        return json_string(body[at : at + size])
    if code == 0x0D:
        size, at = uvarint(body, 1)
        if at + size > len(body):
            raise Undecodable("JSON opaque")
        return f'"base64:type{body[0]}:{base64.b64encode(body[at : at + size]).decode()}"'
    if code == 9:
        return str(struct.unpack_from("<q", body)[0])
    if code == 0x0A:
        return str(struct.unpack_from("<Q", body)[0])
    if code == 0x0B:
        return go_float(struct.unpack_from("<d", body)[0])
    if code in (0x0E, 0x0F, 0x10):
        return f'"{core_time(code, struct.unpack_from("<Q", body)[0])}"'
    if code == 0x11:
        nanoseconds, _ = struct.unpack_from("<qI", body)
        return f'"{duration_text(nanoseconds, 6)}"'
    raise Undecodable("JSON type")


def json_container(code: int, body: bytes, depth: int) -> str:
    count, size = struct.unpack_from("<II", body)
    keys_size = 6 * count if code == 1 else 0
    if depth == 128 or size > len(body) or size < 8 + keys_size + 5 * count:
        raise Undecodable("JSON container")
    body = body[:size]
    parts, printed = [], 0
    for i in range(count):
        kind, offset = struct.unpack_from("<BI", body, 8 + keys_size + 5 * i)
        inner = body[9 + keys_size + 5 * i :][:1] if kind == 4 else body[offset:]
        if offset > size and kind != 4:
            raise Undecodable("JSON offset")
        text = json_value(kind, inner, depth + 1)
        if code == 1:
            key, length = struct.unpack_from("<IH", body, 8 + 6 * i)
            if key + length > size:
                raise Undecodable("JSON key")
            text = json_string(body[key : key + length]) + ": " + text
        parts.append(text)
        printed += len(text)
        if printed > 8 * len(body) + 4096:
            raise Undecodable("a document that repeats itself")
    return ("{%s}" if code == 1 else "[%s]") % ", ".join(parts)


def json_string(raw: bytes) -> str:
    out, at = "", 0
    while at < len(raw):
        rune = next((c for n in (1, 2, 3, 4) if (c := rune_of(raw[at : at + n]))), None)
        if rune is None:
            out += "\\ufffd"
            at += 1
            continue
        at += len(rune.encode())
        short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(rune)
        is_plain = rune >= " " and rune not in "\u2028\u2029"
        out += short or (rune if is_plain else f"\\u{ord(rune):04x}")
    return f'"{out}"'


def rune_of(raw: bytes) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) == 1 else None


def core_time(code: int, word: int) -> str:
    year, month, day = word >> 50, word >> 46 & 15, word >> 41 & 31
    hour, minute, second, micro = word >> 36 & 31, word >> 30 & 63, word >> 24 & 63, word >> 4 & 0xFFFFF
    if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59 or micro > 999999:
        raise Undecodable("JSON time")
    date = f"{year:04d}-{month:02d}-{day:02d}"
    return date if code == 0x0E else f"{date} {hour:02d}:{minute:02d}:{second:02d}.{micro:06d}"


def go_float(value: float) -> str:
    """As Go's encoding/json prints it."""
    if not math.isfinite(value):
        raise Undecodable("JSON number")
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if 1e-6 <= abs(value) < 1e21:
        return positional(repr(value))
    digits, _, exponent = f"{Decimal(repr(value)):e}".partition("e")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    power = int(exponent)
    return f"{digits}e-{-power}" if power < 0 else f"{digits}e+{power:02d}"


def positional(text: str) -> str:
    text = format(Decimal(text), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def vector_text(cell: bytes) -> str:
    count = struct.unpack_from("<I", cell)[0]
    if len(cell) != 4 + 4 * count:
        raise Undecodable("vector")
    elements = struct.unpack_from(f"<{count}f", cell, 4)
    if not all(map(math.isfinite, elements)):
        raise Undecodable("vector")
    return "[" + ",".join(single_text(x) for x in elements) + "]"


def single_text(value: float) -> str:
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    return positional(np.format_float_scientific(np.float32(value), unique=True))


def missing(column: ColumnInfo, zone: str) -> Any:
    kind = column.type
    if kind is T.BIT and column.origin_default_bit is not None:
        return int.from_bytes(column.origin_default_bit, "big")
    text = column.origin_default
    if text is None:
        if not column.is_not_null:
            return None
        text = zero_text(column)
    if kind in INTEGERS or kind is T.YEAR:
        return int(text)
    if kind in (T.FLOAT, T.DOUBLE):
        return float(np.float32(text)) if kind is T.FLOAT else float(text)
    if kind is T.NEWDECIMAL:
        exact = Context(prec=100, rounding=ROUND_HALF_UP).quantize(Decimal(text), Decimal(1).scaleb(-column.decimal))
        return format(exact, "f")
    if kind in TIMES:
        return missing_time(column, text, zone)
    if kind is T.DURATION:
        clock, _, digits = text.partition(".")
        return clock + ("." + digits.ljust(6, "0")[: column.decimal] if column.decimal > 0 else "")
    if kind is T.BIT:
        return 0
    if kind is T.ENUM:
        return column.elems.index(text) + 1
    if kind is T.SET:
        return sum(1 << column.elems.index(name) for name in text.split(",")) if text else 0
    if kind is T.STRING and column.is_binary:
        return text.encode().ljust(column.flen, b"\0")
    return text.encode() if kind in STRINGS and column.is_binary else text


def zero_text(column: ColumnInfo) -> str:
    kind = column.type
    if kind is T.ENUM:
        return column.elems[0]
    if kind in STRINGS or kind is T.SET:
        return ""
    if kind in TIMES:
        return "0000-00-00 00:00:00"
    return {T.DURATION: "00:00:00", T.JSON: "null", T.VECTOR: "[]"}.get(kind, "0")


def missing_time(column: ColumnInfo, text: str, zone: str) -> str:
    whole, _, digits = text.partition(".")
    if column.type in (T.DATE, T.NEWDATE):
        return whole[:10]
    if len(whole) == 10:
        whole += " 00:00:00"
    if column.type is T.TIMESTAMP and not whole.startswith("0000-00-00"):
        moment = datetime.fromisoformat(whole).replace(tzinfo=UTC).astimezone(zone_of(zone))
        whole = moment.replace(tzinfo=None).isoformat(" ")
    return whole + ("." + digits.ljust(6, "0")[: column.decimal] if column.decimal > 0 else "")
