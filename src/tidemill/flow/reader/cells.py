"""Values where they lie in documents, turned into Arrow columns by one compiled loop each.

A value that is not what its column holds is not read: its row is noted in ``is_bad``, and the column has a null there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, Longs, Words, copy, helper, i64, kernel, u64
from tidemill.flow.mounter.strings import LATIN1_UPPER, latin1_to_utf8
from tidemill.flow.reader.documents import Found, Texts, frozen
from tidemill.flow.reader.matching import Token, hex_digit

_NULL, _NUMBER, _TEXT, _ESCAPED, _TRUE, _FALSE, _OTHER, _WRONG = (int(token) for token in Token)
_REPLACEMENT = 0xFFFD

_BASE64 = np.full(256, -1, np.int64)
_BASE64[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
# By the byte behind a backslash: what it stands for. JSON's letters, and Go's.
_JSON_LETTERS, _GO_LETTERS = np.full(256, -1, np.int64), np.full(256, -1, np.int64)
_JSON_LETTERS[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
_GO_LETTERS[list(b"abfnrtv\"'\\")] = list(b"\a\b\f\n\r\t\v\"'\\")


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of one column: spans of ``data``, and what was found there."""

    data: Bytes
    from_: Longs
    to: Longs
    tokens: Bytes
    is_bad: Bytes  # bool, one per value; whoever reads a value that makes no sense sets it

    def __len__(self) -> int:
        return len(self.from_)


def integers(cells: Cells, *, is_unsigned: bool) -> pa.Array:
    """From numbers, or from strings of digits."""
    out, valid = np.empty(len(cells), np.uint64), np.empty(len(cells), np.uint8)
    nulls = _integers(cells.data, cells.from_, cells.to, cells.tokens, is_unsigned, out, valid, cells.is_bad)
    kind = pa.uint64() if is_unsigned else pa.int64()
    return pa.Array.from_buffers(kind, len(cells), [_validity(valid, nulls), pa.py_buffer(out)], nulls)


def hole_cells(texts: Texts, found: Found[Any], hole: int) -> Cells:
    """What a hole holds in each document."""
    is_bad = np.zeros(len(found.rows), np.bool_)
    return Cells(texts.data, found.from_[hole], found.to[hole], found.tokens[hole], is_bad)


def hole_numbers(texts: Texts, found: Found[Any], hole: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The whole numbers of 64 bits in a hole, and where it holds none."""
    numbers = integers(hole_cells(texts, found, hole), is_unsigned=True)
    return numbers.fill_null(0).to_numpy(), numbers.is_null().to_numpy(zero_copy_only=False)


def floats(cells: Cells, kind: pa.DataType) -> pa.Array:
    """From numbers, or from strings of one. ``kind`` is float32 or float64."""
    size = int((cells.to - cells.from_).sum())
    out, offsets = np.empty(size, np.uint8), np.zeros(len(cells) + 1, np.int32)
    valid = np.empty(len(cells), np.uint8)
    nulls = _numbers(cells.data, cells.from_, cells.to, cells.tokens, out, offsets, valid, cells.is_bad)
    texts = _varied(pa.string(), out, offsets, valid, nulls)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # beyond what the type holds
        return pa.array([None if text is None else float(text) for text in texts.to_pylist()], kind)


def texts(cells: Cells) -> pa.Array:
    """JSON's strings."""
    return _unescaped(cells, pa.string())


def plain_bytes(cells: Cells) -> pa.Array:
    """Bytes as they lie there."""
    return _unescaped(cells, pa.binary())


def base64_bytes(cells: Cells) -> pa.Array:
    return _transformed(cells, _decode_base64)


def base64_texts(cells: Cells) -> pa.Array:
    """Text that is no UTF-8 is latin1, as TiDB keeps it."""
    return as_text(base64_bytes(cells))


def go_quoted_bytes(cells: Cells) -> pa.Array:
    """The way back from ``columnar.go_quoted``."""
    return _transformed(cells, _unquote)


def latin1_bytes(cells: Cells) -> pa.Array:
    """Each character is the byte of its number."""
    return _transformed(cells, _to_latin1)


def as_text(values: pa.Array) -> pa.Array:
    """Bytes as text; what is no UTF-8 is latin1, as the mounter reads it."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    offsets, data = parts_of(values)
    ends = offsets[1:].copy()
    target = np.empty(3 * len(data), np.uint8)
    used = latin1_to_utf8(data, int(offsets[0]), ends, 0, len(values), LATIN1_UPPER, target)
    ends = np.concatenate([[0], ends - offsets[0]]).astype(np.int32)
    valid = values.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    return _varied(pa.string(), target[:used], ends, valid, values.null_count)


def _transformed(cells: Cells, loop: Callable[[Bytes, Ints, Bytes, Ints, Bytes], int]) -> pa.Array:
    plain = _unescaped(cells, pa.binary())
    offsets, data = parts_of(plain)
    out, ends = np.empty(len(data), np.uint8), np.zeros(len(plain) + 1, np.int32)
    used = loop(data, offsets, out, ends, cells.is_bad)
    valid = plain.is_valid().to_numpy(zero_copy_only=False) & ~cells.is_bad
    return _varied(pa.binary(), out[:used], ends, valid.view(np.uint8), int(len(valid) - valid.sum()))


def _unescaped(cells: Cells, kind: pa.DataType) -> pa.Array:
    size = int((cells.to - cells.from_).sum())
    out, offsets = np.empty(size, np.uint8), np.zeros(len(cells) + 1, np.int32)
    valid = np.empty(len(cells), np.uint8)
    args = (cells.data, cells.from_, cells.to, cells.tokens)
    used, nulls = _unescape(*args, out, offsets, valid, cells.is_bad)
    return _varied(kind, out[:used], offsets, valid, nulls)


def _varied(kind: pa.DataType, data: Bytes, offsets: Ints, valid: Bytes, nulls: int) -> pa.Array:
    buffers = [_validity(valid, nulls), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(valid), buffers, nulls)


def _validity(valid: Bytes, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None


def parts_of(values: pa.Array) -> tuple[Ints, Bytes]:
    """Of an array made here, so it has no offset."""
    body = values.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    return frozen(np.frombuffer(values.buffers()[1], np.int32, len(values) + 1)), frozen(data)


@kernel
def _integers(
    data: Bytes, from_: Longs, to: Longs, tokens: Bytes, is_unsigned: bool, out: Words, valid: Bytes, is_bad: Bytes
) -> int:
    nulls = 0
    for n in range(len(from_)):
        fits, number = False, u64(0)
        if tokens[n] == _NUMBER or tokens[n] == _TEXT:
            fits, number = _integer(data, from_[n], to[n], is_unsigned)
        if not fits and tokens[n] != _NULL:
            is_bad[n] = True
        out[n], valid[n] = number, fits
        nulls += not fits
    return nulls


@helper
def _integer(data: Bytes, at: int, end: int, is_unsigned: bool) -> tuple[bool, int]:
    """Whether it is a whole number that fits, and its 64 bits."""
    is_negative = at < end and data[at] == 45
    at += is_negative
    if at >= end:
        return False, u64(0)
    number = u64(0)
    for k in range(at, end):
        digit = u64(data[k]) - u64(48)
        if digit > u64(9):
            return False, u64(0)
        if number > u64(1844674407370955161) or (number == u64(1844674407370955161) and digit > u64(5)):
            return False, u64(0)
        number = number * u64(10) + digit
    if is_negative:
        if number > (u64(0) if is_unsigned else u64(1) << u64(63)):
            return False, u64(0)
        return True, ~number + u64(1)
    return is_unsigned or number < (u64(1) << u64(63)), number


@kernel
def _numbers(
    data: Bytes, from_: Longs, to: Longs, tokens: Bytes, out: Bytes, offsets: Ints, valid: Bytes, is_bad: Bytes
) -> int:
    """Texts of numbers, for Arrow to read."""
    used, nulls = i64(0), 0
    for n in range(len(from_)):
        fits = tokens[n] == _NUMBER or (tokens[n] == _TEXT and _is_number(data, from_[n], to[n]))
        if fits:
            size = to[n] - from_[n]
            copy(out, used, data, from_[n], size)
            used += size
        elif tokens[n] != _NULL:
            is_bad[n] = True
        valid[n] = fits
        nulls += not fits
        offsets[n + 1] = used
    return nulls


@helper
def _is_number(data: Bytes, at: int, end: int) -> bool:
    """Digits with a point and an exponent perhaps: what has a sign, a digit and nothing else that is none of these."""
    digits, points, exponents = 0, 0, 0
    for k in range(at, end):
        byte = data[k]
        if 48 <= byte <= 57:
            digits += 1
        elif byte == 46 and points == 0 and exponents == 0:
            points = 1
        elif (byte | 32) == 101 and exponents == 0 and digits > 0:
            exponents, digits = 1, 0
        elif not ((byte == 45 or (byte == 43 and k > at)) and (k == at or (data[k - 1] | 32) == 101)):
            return False
    return digits > 0


@kernel
def _unescape(
    data: Bytes, from_: Longs, to: Longs, tokens: Bytes, out: Bytes, offsets: Ints, valid: Bytes, is_bad: Bytes
) -> tuple[int, int]:
    """Strings of JSON as UTF-8. Their escapes are well-formed: the matching loop has seen to that."""
    used, nulls = i64(0), 0
    for n in range(len(from_)):
        valid[n] = True
        if tokens[n] == _TEXT:
            size = to[n] - from_[n]
            copy(out, used, data, from_[n], size)
            used += size
        elif tokens[n] == _ESCAPED:
            at, end = from_[n], to[n]
            while at < end:
                byte = data[at]
                if byte != 92:
                    out[used] = byte
                    used, at = used + 1, at + 1
                elif data[at + 1] != 117:
                    out[used] = _JSON_LETTERS[data[at + 1]]
                    used, at = used + 1, at + 2
                else:
                    code = _hex(data, at + 2, 4)
                    at += 6
                    if 0xD800 <= code < 0xDC00 and at + 6 <= end and data[at] == 92 and data[at + 1] == 117:
                        low = _hex(data, at + 2, 4)
                        if 0xDC00 <= low < 0xE000:
                            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                            at += 6
                    used = put_rune(out, used, code)
        else:
            valid[n] = False
            nulls += 1
            if tokens[n] != _NULL:
                is_bad[n] = True
        offsets[n + 1] = used
    return used, nulls


@helper
def _hex(data: Bytes, at: int, digits: int) -> int:
    """The number there; below 0 if it is none."""
    code = i64(0)
    for k in range(at, at + digits):
        digit = hex_digit(data[k])
        if digit < 0:
            return i64(-1)
        code = code << 4 | digit
    return code


@helper
def put_rune(out: Bytes, to: int, code: int) -> int:
    """Write a character as UTF-8; half a surrogate pair as U+FFFD."""
    if 0xD800 <= code < 0xE000:
        code = i64(_REPLACEMENT)
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | (code & 0x3F)
        return to + 2
    if code < 0x10000:
        out[to], out[to + 1], out[to + 2] = 0xE0 | code >> 12, 0x80 | (code >> 6 & 0x3F), 0x80 | (code & 0x3F)
        return to + 3
    out[to], out[to + 1] = 0xF0 | code >> 18, 0x80 | (code >> 12 & 0x3F)
    out[to + 2], out[to + 3] = 0x80 | (code >> 6 & 0x3F), 0x80 | (code & 0x3F)
    return to + 4


@kernel
def _decode_base64(data: Bytes, offsets: Ints, out: Bytes, ends: Ints, is_bad: Bytes) -> int:
    """With padding, as Go's standard encoding has it."""
    used = i64(0)
    for n in range(len(offsets) - 1):
        at, end = i64(offsets[n]), i64(offsets[n + 1])
        begin = used
        fits = (end - at) % 4 == 0
        while fits and at < end:
            is_last = at + 4 == end
            pads = 0
            if is_last and data[at + 3] == 61:
                pads = 2 if data[at + 2] == 61 else 1
            word = i64(0)
            for k in range(4):
                digit = i64(0) if k >= 4 - pads else _BASE64[data[at + k]]
                fits = fits and digit >= 0
                word = word << 6 | (digit & 63)
            for k in range(3 - pads):
                out[used] = (word >> (16 - 8 * k)) & 0xFF
                used += 1
            at += 4
        if not fits:
            used = begin
            is_bad[n] = True
        ends[n + 1] = used
    return used


@kernel
def _unquote(data: Bytes, offsets: Ints, out: Bytes, ends: Ints, is_bad: Bytes) -> int:
    used = i64(0)
    for n in range(len(offsets) - 1):
        at, end = i64(offsets[n]), i64(offsets[n + 1])
        begin, fits = used, True
        while at < end:
            if data[at] != 92:
                out[used] = data[at]
                used, at = used + 1, at + 1
                continue
            letter = i64(data[at + 1]) if at + 1 < end else i64(0)
            digits = 2 if letter == 120 else 4 if letter == 117 else 8 if letter == 85 else 0
            if digits == 0:
                plain = _GO_LETTERS[letter]
                fits = plain >= 0
                if not fits:
                    break
                out[used] = plain
                used, at = used + 1, at + 2
                continue
            code = _hex(data, at + 2, digits) if at + 2 + digits <= end else i64(-1)
            fits = 0 <= code <= 0x10FFFF
            if not fits:
                break
            if digits == 2:
                out[used] = code
                used += 1
            else:
                used = put_rune(out, used, code)
            at += 2 + digits
        if not fits:
            used = begin
            is_bad[n] = True
        ends[n + 1] = used
    return used


@kernel
def _to_latin1(data: Bytes, offsets: Ints, out: Bytes, ends: Ints, is_bad: Bytes) -> int:
    """From valid UTF-8."""
    used = i64(0)
    for n in range(len(offsets) - 1):
        at, end = i64(offsets[n]), i64(offsets[n + 1])
        begin = used
        while at < end:
            byte = i64(data[at])
            if byte < 0x80:
                out[used] = byte
                at += 1
            elif byte < 0xC4 and at + 1 < end:
                out[used] = (byte & 3) << 6 | (i64(data[at + 1]) & 0x3F)
                at += 2
            else:
                used = begin - 1
                is_bad[n] = True
                at = end
            used += 1
        ends[n + 1] = used
    return used
