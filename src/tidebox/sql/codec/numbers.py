"""Integers, floats and decimals as bytes: in cells of row format v2, in keys, and as varints.

Cells are little endian and as short as they can be; keys are big endian and sort as their values do.
"""

import struct
from collections.abc import Callable
from decimal import Decimal
from functools import cache

from tidemill.errors import CorruptDataError

SIGN = 1 << 63
_MASK = (1 << 64) - 1
_CELL_SIZES = (1, 2, 4, 8)
_BYTES = tuple(bytes((n,)) for n in range(256))
_I16 = struct.Struct("<h").pack
_I32 = struct.Struct("<i").pack
_I64 = struct.Struct("<q").pack
_U16 = struct.Struct("<H").pack
_U32 = struct.Struct("<I").pack
_U64 = struct.Struct("<Q").pack
_BIG_U64 = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_FLOAT = struct.Struct(">f")

# Cells


def int_cell(value: int) -> bytes:
    """The shortest signed form."""
    if -0x80 <= value < 0x80:
        return _BYTES[value & 0xFF]
    if -0x8000 <= value < 0x8000:
        return _I16(value)
    if -0x80000000 <= value < 0x80000000:
        return _I32(value)
    return _I64(value)


def uint_cell(value: int) -> bytes:
    """The shortest unsigned form."""
    if 0 <= value < 0x100:
        return _BYTES[value]
    if 0 <= value < 0x10000:
        return _U16(value)
    if 0 <= value < 0x100000000:
        return _U32(value)
    return _U64(value)


def read_int_cell(cell: bytes) -> int:
    if len(cell) not in _CELL_SIZES:
        raise CorruptDataError(f"an integer of {len(cell)} bytes; expected 1, 2, 4 or 8")
    return int.from_bytes(cell, "little", signed=True)


def read_uint_cell(cell: bytes) -> int:
    if len(cell) not in _CELL_SIZES:
        raise CorruptDataError(f"an integer of {len(cell)} bytes; expected 1, 2, 4 or 8")
    return int.from_bytes(cell, "little")


# Comparable forms


def comparable_int(value: int) -> bytes:
    """Eight bytes that sort as signed integers do; like ``upstream.keys.encode_int``, but 2^63 is refused."""
    return _BIG_U64.pack(value + SIGN)


def comparable_uint(value: int) -> bytes:
    return _BIG_U64.pack(value)


def comparable_float(value: float) -> bytes:
    bits: int = _BIG_U64.unpack(_DOUBLE.pack(value))[0]
    # Negative zero is not below zero: it only gets the bit that it has already, and reads as zero.
    return _BIG_U64.pack(bits | SIGN if value >= 0 else bits ^ _MASK)


def narrow(value: float) -> float:
    """``value`` rounded to four bytes, as a FLOAT column holds it."""
    rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return rounded


def comparable_narrow(value: float) -> bytes:
    return comparable_float(narrow(value))


def read_comparable_int(data: bytes) -> int:
    number: int = _BIG_U64.unpack(data)[0]
    return number - SIGN


def read_comparable_uint(data: bytes) -> int:
    number: int = _BIG_U64.unpack(data)[0]
    return number


def read_comparable_float(data: bytes) -> float:
    if len(data) != 8:
        raise CorruptDataError(f"a floating point number of {len(data)} bytes; expected 8")
    bits: int = _BIG_U64.unpack(data)[0]
    value: float = _DOUBLE.unpack(_BIG_U64.pack(bits ^ SIGN if bits & SIGN else bits ^ _MASK))[0]
    return value


# Varints


def uvarint(value: int) -> bytes:
    if not 0 <= value <= _MASK:
        raise OverflowError(f"{value} does not fit 64 unsigned bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Zig-zag: 0, -1, 1, -2 become 0, 1, 2, 3."""
    if not -SIGN <= value < SIGN:
        raise OverflowError(f"{value} does not fit 64 signed bits")
    return uvarint(value << 1 if value >= 0 else ~(value << 1))


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at`` and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MASK:
                break
            return value, at
    raise CorruptDataError("a variable-length integer is cut off or longer than 64 bits")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_uvarint(data, at)
    return (~(value >> 1) if value & 1 else value >> 1), at


# Decimals

_GROUP_SIZE = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # bytes that so many digits take
_INVERT = bytes(range(255, -1, -1))
_MOST_DIGITS = 81


@cache
def _groups(precision: int, scale: int) -> tuple[tuple[int, int, int], ...]:
    """(first digit, digit behind, bytes) of each group: the short group first before the point, last behind it."""
    if not 0 < precision <= _MOST_DIGITS or not 0 <= scale <= min(precision, 30):
        raise CorruptDataError(f"a decimal of {precision} digits with {scale} behind the point; MySQL has none such")
    whole = precision - scale
    counts = [whole % 9] + [9] * (whole // 9) + [9] * (scale // 9) + [scale % 9]
    groups, at = [], 0
    for count in counts:
        if count:
            groups.append((at, at + count, _GROUP_SIZE[count]))
        at += count
    return tuple(groups)


def decimal_size(precision: int, scale: int) -> int:
    """Bytes behind the two that tell precision and scale."""
    return sum(size for _, _, size in _groups(precision, scale))


def decimal_writer(precision: int, scale: int) -> Callable[[Decimal], bytes]:
    """Writes numbers of one column: precision, scale, digits. A number that does not fit exactly is refused."""
    groups = _groups(precision, scale)
    head = bytes((precision, scale))
    unit = 10**scale

    def write(value: Decimal) -> bytes:
        numerator, denominator = value.as_integer_ratio()
        units, rest = divmod(numerator * unit, denominator)
        if rest:
            raise OverflowError(f"more than {scale} digits behind the point")
        digits = str(abs(units)).zfill(precision)
        if len(digits) > precision:
            raise OverflowError(f"more than {precision - scale} digits before the point")
        body = b"".join([int(digits[a:b]).to_bytes(size, "big") for a, b, size in groups])
        if units < 0:
            body = body.translate(_INVERT)
        return head + _BYTES[body[0] ^ 0x80] + body[1:]

    return write


def write_decimal(value: Decimal, precision: int, scale: int) -> bytes:
    return decimal_writer(precision, scale)(value)


def read_decimal(data: bytes, at: int = 0) -> tuple[Decimal, int]:
    """The decimal at ``at``, with the scale that it was written with, and the position behind it."""
    if len(data) < at + 2:
        raise CorruptDataError("a decimal is cut off before its precision and scale")
    precision, scale = data[at], data[at + 1]
    groups = _groups(precision, scale)
    body = data[at + 2 : at + 2 + decimal_size(precision, scale)]
    end = at + 2 + len(body)
    if len(body) < decimal_size(precision, scale):
        raise CorruptDataError(f"a decimal({precision},{scale}) of {len(body)} bytes is cut off")
    is_negative = not body[0] & 0x80
    body = _BYTES[body[0] ^ 0x80] + body[1:]
    if is_negative:
        body = body.translate(_INVERT)
    digits, place = [], 0
    for first, behind, size in groups:
        part = str(int.from_bytes(body[place : place + size], "big")).zfill(behind - first)
        if len(part) > behind - first:
            raise CorruptDataError("a group of a decimal's digits is larger than its digits can be")
        digits.append(part)
        place += size
    text = "".join(digits)
    whole = precision - scale
    return Decimal(f"{'-' if is_negative else ''}{text[:whole] or '0'}.{text[whole:]}"), end


def decimal_text(value: Decimal, scale: int) -> str:
    """As MySQL prints it: ``scale`` digits behind the point, one before it at least."""
    return f"{value:.{scale}f}"
