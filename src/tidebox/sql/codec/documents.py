"""JSON documents: TiDB's binary form both ways, and text both ways.

    object   01  count, size, count × (key at, key length), count × (type, at or literal), keys, values
    array    03  count, size, count × (type, at or literal), values
    others       a type code and a body; 04 literals, 09 signed, 0a unsigned, 0b double, 0c string, 0d opaque, times

All numbers are little endian and places count from behind the container's type code. Keys are in byte order.
"""

import json
import math
import re
import struct
from base64 import b64encode
from collections.abc import Mapping
from operator import itemgetter
from typing import NoReturn

from tidebox.sql.codec.datum import (
    Json,
    JsonDuration,
    JsonOpaque,
    JsonTime,
    JsonTimeKind,
    JsonUint,
    JsonValue,
)
from tidebox.sql.codec.numbers import SIGN, read_uvarint, uvarint
from tidebox.sql.codec.times import (
    core_time,
    date_text,
    duration_of,
    duration_text,
    nanoseconds,
    read_core_time,
    time_text,
)
from tidebox.sql.floats import document_double
from tidemill.errors import CorruptDataError

DEEPEST = 100
_LONGEST_KEY = 65535

_OBJECT, _ARRAY, _LITERAL, _INT, _UINT, _DOUBLE, _STRING, _OPAQUE = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C, 0x0D
_DURATION = 0x11
_LITERALS: tuple[bool | None, ...] = (None, True, False)
_HEAD = struct.Struct("<II")
_KEY_ENTRY = struct.Struct("<IH")
_VALUE_ENTRY = struct.Struct("<BI")
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_DURATION_BODY = struct.Struct("<qI")


# Binary


def write_document(document: Json) -> bytes:
    code, body = _write(document.root, 1)
    return bytes((code,)) + body


def _write(value: JsonValue, depth: int) -> tuple[int, bytes]:
    """Type code and body. The most frequent types come first; bool is asked for before int, which it also is."""
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return _STRING, uvarint(len(raw)) + raw
    if value is None or isinstance(value, bool):
        return _LITERAL, bytes((_LITERALS.index(value),))
    if isinstance(value, int):
        if isinstance(value, JsonUint) or value >= SIGN:
            return _UINT, _U64.pack(value)
        return _INT, _I64.pack(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError("a JSON document holds no infinite number and no NaN")
        return _DOUBLE, _F64.pack(value)
    if isinstance(value, JsonOpaque):
        return _OPAQUE, bytes((value.type_code,)) + uvarint(len(value.data)) + value.data
    if isinstance(value, JsonTime):
        return value.kind, _U64.pack(core_time(value.time))
    if isinstance(value, JsonDuration):
        return _DURATION, _DURATION_BODY.pack(nanoseconds(value.duration), value.fsp)
    if depth > DEEPEST:
        raise OverflowError(f"a JSON document nests no deeper than {DEEPEST}")
    if isinstance(value, Mapping):
        return _OBJECT, _write_object(value, depth)
    if isinstance(value, list | tuple):
        return _ARRAY, _write_container(b"", [_write(v, depth + 1) for v in value], len(value), 8)
    raise TypeError(f"a JSON document holds no {type(value).__name__}")


def _write_object(value: Mapping[str, JsonValue], depth: int) -> bytes:
    members = [(key.encode("utf-8", "surrogateescape"), member) for key, member in value.items()]
    members.sort(key=itemgetter(0))
    keys = [key for key, _ in members]
    at = 8 + len(keys) * (_KEY_ENTRY.size + _VALUE_ENTRY.size)
    entries = bytearray()
    for key in keys:
        if len(key) > _LONGEST_KEY:
            raise OverflowError(f"a key of a JSON object has at most {_LONGEST_KEY} bytes")
        entries += _KEY_ENTRY.pack(at, len(key))
        at += len(key)
    values = [_write(member, depth + 1) for _, member in members]
    return _write_container(bytes(entries), values, len(keys), 8 + len(entries), b"".join(keys))


def _write_container(
    key_entries: bytes, values: list[tuple[int, bytes]], count: int, entries_at: int, keys: bytes = b""
) -> bytes:
    at = entries_at + count * _VALUE_ENTRY.size + len(keys)
    entries, bodies = bytearray(), []
    for code, body in values:
        if code == _LITERAL:
            entries += _VALUE_ENTRY.pack(code, body[0])
        else:
            entries += _VALUE_ENTRY.pack(code, at)
            bodies.append(body)
            at += len(body)
    return _HEAD.pack(count, at) + key_entries + bytes(entries) + keys + b"".join(bodies)


def read_document(data: bytes) -> Json:
    """The document of one cell; anything left behind it is refused."""
    if not data:
        raise CorruptDataError("a JSON document of no bytes")
    try:
        root, end = _read(data, data[0], 1, len(data), 1)
    except struct.error as error:
        raise CorruptDataError("a JSON document is cut off") from error
    if end != len(data):
        raise CorruptDataError(f"a JSON document with {len(data) - end} bytes behind its end")
    return Json(root)


def _read(data: bytes, code: int, at: int, limit: int, depth: int) -> tuple[JsonValue, int]:
    """The value at ``at`` and the position behind it, which is at most ``limit``."""
    if code in (_OBJECT, _ARRAY):
        return _read_container(data, code, at, limit, depth)
    if code == _LITERAL:
        if at >= limit or data[at] > 2:
            raise CorruptDataError("a JSON literal that is none of null, true and false")
        return _LITERALS[data[at]], at + 1
    value: JsonValue
    if code in (_STRING, _OPAQUE):
        start = at + (code == _OPAQUE)
        size, start = read_uvarint(data[:limit], start)
        end = start + size
        if end > limit:
            raise CorruptDataError("a string in a JSON document is cut off")
        raw = data[start:end]
        value = raw.decode("utf-8", "surrogateescape") if code == _STRING else JsonOpaque(data[at], raw)
        return value, end
    end = at + (12 if code == _DURATION else 8)
    if end > limit or not (_INT <= code <= _DURATION):
        raise CorruptDataError(f"a JSON value of type {code} that is unknown or cut off")
    if code == _INT:
        value = _I64.unpack_from(data, at)[0]
    elif code == _UINT:
        value = _read_uint(_U64.unpack_from(data, at)[0])
    elif code == _DOUBLE:
        value = _F64.unpack_from(data, at)[0]
    elif code == _DURATION:
        count, fsp = _DURATION_BODY.unpack_from(data, at)
        value = JsonDuration(duration_of(count), fsp)
    else:
        value = JsonTime(JsonTimeKind(code), read_core_time(_U64.unpack_from(data, at)[0]))
    return value, end


def _read_uint(value: int) -> int:
    return value if value >= SIGN else JsonUint(value)


def _read_container(data: bytes, code: int, base: int, limit: int, depth: int) -> tuple[JsonValue, int]:
    count, size = _HEAD.unpack_from(data, base)
    entries = base + 8 + (_KEY_ENTRY.size * count if code == _OBJECT else 0)
    end = base + size
    if depth > DEEPEST or end > limit or entries + _VALUE_ENTRY.size * count > end:
        raise CorruptDataError("a JSON container nests too deep, is cut off, or is too short for its entries")
    values: list[JsonValue] = []
    for at in range(entries, entries + _VALUE_ENTRY.size * count, _VALUE_ENTRY.size):
        kind, offset = _VALUE_ENTRY.unpack_from(data, at)
        if kind == _LITERAL:
            values.append(_read(data, kind, at + 1, end, depth)[0])
        else:
            values.append(_read(data, kind, base + offset, end, depth + 1)[0])
    if code == _ARRAY:
        return values, end
    keys = []
    for at in range(base + 8, entries, _KEY_ENTRY.size):
        offset, length = _KEY_ENTRY.unpack_from(data, at)
        if offset + length > size:
            raise CorruptDataError("a key of a JSON object lies outside it")
        keys.append(data[base + offset : base + offset + length].decode("utf-8", "surrogateescape"))
    return dict(zip(keys, values, strict=True)), end


# Text

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile('[\\x00-\\x1f"\\\\\u2028\u2029\ud800-\udfff]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def parse_document(text: str) -> Json:
    """A document from text. Whole numbers are signed if 64 bits hold them, else unsigned, else doubles.

    Raises ``ValueError`` if it is not JSON, or nests too deep.
    """
    root = json.loads(text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_constant)
    return Json(_cleaned(root, 1))


def _parse_int(text: str) -> int | float:
    if len(text) > 20:
        return _parse_float(text)
    number = int(text)
    return number if -SIGN <= number < 2 * SIGN else float(number)


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number in the JSON text is too large for a double")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _cleaned(value: JsonValue, depth: int) -> JsonValue:
    """With U+FFFD for what is no Unicode, as Go's decoder has it."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict | list) and depth > DEEPEST:
        raise ValueError(f"the JSON text nests deeper than {DEEPEST}")
    if isinstance(value, dict):
        return {str(_cleaned(k, depth)): _cleaned(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v, depth + 1) for v in value]
    return value


def document_text(document: Json) -> str:
    """As TiDB 8.5 prints it: ``", "`` and ``": "`` between elements, object keys in byte order."""
    return _text(document.root)


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return f'"{_ESCAPED.sub(_escape, value)}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return document_double(value)
    if isinstance(value, JsonOpaque):
        return f'"base64:type{value.type_code}:{b64encode(value.data).decode()}"'
    if isinstance(value, JsonTime):
        text = date_text(value.time) if value.kind is JsonTimeKind.DATE else time_text(value.time, 6)
        return f'"{text}"'
    if isinstance(value, JsonDuration):
        return f'"{duration_text(value.duration, 6)}"'
    if isinstance(value, Mapping):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-8", "surrogateescape"))
        return "{" + ", ".join(f"{_text(key)}: {_text(member)}" for key, member in members) + "}"
    return "[" + ", ".join(map(_text, value)) + "]"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if "\ud800" <= character <= "\udfff":
        return "\\ufffd"
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04x}"
