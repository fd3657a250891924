"""The compiled loop that writes lines: every byte of every message goes through here once.

    program (what a line consists of) + column buffers ──► assemble ──► one output buffer

A *program* lists, for each kind of change, the steps that write one message: copy a literal, write
a column's value, write a ts. The loop runs it for each change and reads values straight from
Arrow's buffers, so a row costs no object and no intermediate column. ``program.py`` builds the
programs and guarantees what is not checked here: addresses are valid for the rows given, and the
output has room for all of it. Addresses are plain int64, so that one compilation serves every
table. Compiled on first use and cached on disk.
"""

# Numba infers the types of what is below by itself; to mypy an element of an array is Any.
# mypy: disable-error-code="no-any-return"

from enum import IntEnum
from typing import Any

import numpy as np

from tidemill.columnar.addresses import copy_bytes, load_u8, store_u8
from tidemill.columnar.addresses import load_i32 as _load_i32
from tidemill.columnar.addresses import load_i64 as _load_i64
from tidemill.columnar.addresses import load_u64 as _load_u64
from tidemill.columnar.addresses import store_u64 as _store_u64
from tidemill.columnar.jit import kernel

Array = Any  # a NumPy array of int64: Numba computes with its elements as int, NumPy's types say np.int64


class Step(IntEnum):
    """What one step of a program does; its arguments are named in ``program.py``."""

    LITERAL = 0
    CELL = 1
    CHANGED_CELL = 2  # a cell of the old image, left out where the new one is equal
    COMMIT_TS = 3
    COMMIT_MS = 4
    BUILT_MS = 5
    SQL_TYPES = 6


class Kind(IntEnum):
    """How a column's values are turned into text."""

    INT = 0
    UINT = 1
    RAW = 2  # bytes that need no escaping
    JSON_TEXT = 3  # UTF-8 into a JSON string
    JSON_LATIN1 = 4  # each byte as the character of that number, into a JSON string
    DOUBLED = 5  # the column's quote, where it occurs, is written twice
    BACKSLASH = 6  # CR, LF, backslash and the delimiter get a backslash
    BASE64 = 7
    HEX = 8


# The fields of a column's descriptor, and how many a record of each kind has.
KIND, DATA, OFFSETS, VALIDITY, FIRST_BIT, QUOTE = range(6)
COLUMN_FIELDS, STEP_FIELDS, SQL_TYPE_FIELDS = 6, 7, 6
SLACK = 16  # bytes that a copy may run over

# Numba freezes module-level integers; an IntEnum member would be looked up at run time.
_LITERAL, _CELL, _CHANGED, _COMMIT_TS, _COMMIT_MS, _BUILT_MS, _SQL_TYPES = (int(step) for step in Step)
_INT, _UINT, _RAW, _JSON_TEXT, _JSON_LATIN1, _DOUBLED, _BACKSLASH, _BASE64, _HEX = (int(kind) for kind in Kind)


_DIGITS = np.array(list("".join(f"{n:02d}" for n in range(100)).encode()), dtype=np.int64)
_HEX_DIGITS = np.array(list(b"0123456789abcdef"), dtype=np.int64)
_BASE64_DIGITS = np.array(list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"), dtype=np.int64)
_POWERS = np.array([10**n for n in range(20)], dtype=np.uint64)

# How a byte stands in a JSON string: 0 as it is, 1 as \uhhhh, 2 begins or continues a longer
# character, otherwise the letter after a backslash.
_JSON = np.zeros(256, dtype=np.int64)
_JSON[:0x20] = 1
_JSON[[ord(c) for c in "<>&"]] = 1
for _char, _letter in (("\t", "t"), ("\n", "n"), ("\r", "r"), ('"', '"'), ("\\", "\\")):
    _JSON[ord(_char)] = ord(_letter)
_JSON[0x80:] = 2

_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)


@kernel
def _any_special(word: np.uint64) -> np.uint64:
    """Not zero if one of eight bytes is not plain in JSON: below 0x20, above 0x7f, or one of ``"&<>\\``."""
    control = (word - np.uint64(0x20) * _ONES) & ~word
    a = (word | np.uint64(0x02) * _ONES) ^ (np.uint64(0x3E) * _ONES)  # < and > differ in this bit
    b = (word | np.uint64(0x04) * _ONES) ^ (np.uint64(0x26) * _ONES)  # so do " and &
    c = word ^ (np.uint64(0x5C) * _ONES)
    found = ((a - _ONES) & ~a) | ((b - _ONES) & ~b) | ((c - _ONES) & ~c)
    return (found | control | word) & _TOPS


@kernel
def _character_length(at: int, end: int) -> int:
    """Bytes of the well-formed UTF-8 character at ``at``, which is not ASCII; 0 if there is none."""
    lead = load_u8(at)
    if lead < 0xC2 or lead > 0xF4:
        return 0
    need = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if at + need > end:
        return 0
    second = load_u8(at + 1)
    low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
    high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
    if second < low or second > high:
        return 0
    for i in range(2, need):
        if (load_u8(at + i) & 0xC0) != 0x80:
            return 0
    return need


@kernel
def _is_line_separator(at: int) -> bool:
    """U+2028 or U+2029: end a line in JavaScript, so JSON writers for the web escape them."""
    return load_u8(at) == 0xE2 and load_u8(at + 1) == 0x80 and (load_u8(at + 2) & 0xFE) == 0xA8


@kernel
def json_text_growth(data: int, offsets: int, rows: int) -> int:
    """How many bytes escaping adds to a text column. 0: it can be copied as it is."""
    at, end = data + _load_i32(offsets), data + _load_i32(offsets + 4 * rows)
    while at + 8 <= end and _any_special(_load_u64(at)) == 0:
        at += 8
    while at < end and _JSON[load_u8(at)] == 0:
        at += 1
    if at >= end:
        return 0
    growth = 0
    # Cell by cell from here: a character cut off at the end of a cell must not be completed by the next.
    for row in range(rows):
        at, end = data + _load_i32(offsets + 4 * row), data + _load_i32(offsets + 4 * row + 4)
        while at < end:
            if at + 8 <= end and _any_special(_load_u64(at)) == 0:
                at += 8
                continue
            how = _JSON[load_u8(at)]
            if how != 2:
                growth += 0 if how == 0 else 5 if how == 1 else 1
                at += 1
                continue
            length = _character_length(at, end)
            if length == 0:
                growth += 5
                at += 1
            else:
                if length == 3 and _is_line_separator(at):
                    growth += 3
                at += length
    return growth


@kernel
def json_latin1_growth(data: int, offsets: int, rows: int) -> int:
    at, end = data + _load_i32(offsets), data + _load_i32(offsets + 4 * rows)
    growth = 0
    while at < end:
        how = _JSON[load_u8(at)]
        growth += 0 if how == 0 else 5 if how == 1 else 1
        at += 1
    return growth


@kernel
def count_byte(data: int, offsets: int, rows: int, wanted: int) -> int:
    at, end = data + _load_i32(offsets), data + _load_i32(offsets + 4 * rows)
    found = 0
    while at < end:
        found += 1 if load_u8(at) == wanted else 0
        at += 1
    return found


@kernel
def _put_uint(to: int, value: np.uint64) -> int:
    digits = 1
    while digits < 20 and value >= _POWERS[digits]:
        digits += 1
    end = to + digits
    at = end
    while value >= np.uint64(100):
        rest = value // np.uint64(100)
        pair = np.int64(value - rest * np.uint64(100)) * 2
        value = rest
        at -= 2
        store_u8(at, _DIGITS[pair])
        store_u8(at + 1, _DIGITS[pair + 1])
    if value >= np.uint64(10):
        pair = np.int64(value) * 2
        store_u8(at - 2, _DIGITS[pair])
        store_u8(at - 1, _DIGITS[pair + 1])
    else:
        store_u8(at - 1, np.int64(value) + 48)
    return end


@kernel
def _put_int(to: int, value: int) -> int:
    if value < 0:
        store_u8(to, 45)
        return _put_uint(to + 1, ~np.uint64(value) + np.uint64(1))
    return _put_uint(to, np.uint64(value))


@kernel
def _put_unicode_escape(to: int, code: int) -> int:
    store_u8(to, 92)
    store_u8(to + 1, 117)
    store_u8(to + 2, _HEX_DIGITS[(code >> 12) & 15])
    store_u8(to + 3, _HEX_DIGITS[(code >> 8) & 15])
    store_u8(to + 4, _HEX_DIGITS[(code >> 4) & 15])
    store_u8(to + 5, _HEX_DIGITS[code & 15])
    return to + 6


@kernel
def _put_json_ascii(to: int, byte: int) -> int:
    how = _JSON[byte]
    if how == 0:
        store_u8(to, byte)
        return to + 1
    if how == 1:
        return _put_unicode_escape(to, byte)
    store_u8(to, 92)
    store_u8(to + 1, how)
    return to + 2


@kernel
def _put_json_text(to: int, at: int, end: int) -> int:
    while at < end:
        if at + 8 <= end:
            word = _load_u64(at)
            if _any_special(word) == 0:
                _store_u64(to, word)
                at += 8
                to += 8
                continue
        byte = load_u8(at)
        if byte < 0x80:
            to = _put_json_ascii(to, byte)
            at += 1
            continue
        length = _character_length(at, end)
        if length == 0:
            to = _put_unicode_escape(to, 0xFFFD)
            at += 1
        elif length == 3 and _is_line_separator(at):
            to = _put_unicode_escape(to, 0x2028 + (load_u8(at + 2) & 1))
            at += 3
        else:
            for i in range(length):
                store_u8(to + i, load_u8(at + i))
            to += length
            at += length
    return to


@kernel
def _put_json_latin1(to: int, at: int, end: int) -> int:
    while at < end:
        byte = load_u8(at)
        if byte < 0x80:
            to = _put_json_ascii(to, byte)
        else:
            store_u8(to, 0xC0 | (byte >> 6))
            store_u8(to + 1, 0x80 | (byte & 0x3F))
            to += 2
        at += 1
    return to


@kernel
def _put_doubled(to: int, at: int, end: int, quote: int) -> int:
    while at < end:
        byte = load_u8(at)
        store_u8(to, byte)
        to += 1
        if byte == quote:
            store_u8(to, byte)
            to += 1
        at += 1
    return to


@kernel
def _starts_with(at: int, end: int, text: int, length: int) -> bool:
    if length == 0 or at + length > end:
        return False
    same = True
    for i in range(length):
        same = same and load_u8(at + i) == load_u8(text + i)
    return same


@kernel
def _put_backslash(to: int, at: int, end: int, delimiter: int, delimiter_length: int) -> int:
    while at < end:
        if _starts_with(at, end, delimiter, delimiter_length):
            for i in range(delimiter_length):
                store_u8(to, 92)
                store_u8(to + 1, load_u8(delimiter + i))
                to += 2
            at += delimiter_length
            continue
        byte = load_u8(at)
        if byte == 13 or byte == 10 or byte == 92:
            store_u8(to, 92)
            to += 1
            byte = 114 if byte == 13 else 110 if byte == 10 else 92
        store_u8(to, byte)
        to += 1
        at += 1
    return to


@kernel
def _put_base64(to: int, at: int, end: int) -> int:
    while at < end:
        left = min(end - at, 3)
        word = load_u8(at) << 16
        if left > 1:
            word |= load_u8(at + 1) << 8
        if left > 2:
            word |= load_u8(at + 2)
        for i in range(4):
            store_u8(to + i, _BASE64_DIGITS[(word >> (18 - 6 * i)) & 63] if i <= left else 61)
        to += 4
        at += left
    return to


@kernel
def _put_hex(to: int, at: int, end: int) -> int:
    while at < end:
        byte = load_u8(at)
        store_u8(to, _HEX_DIGITS[byte >> 4])
        store_u8(to + 1, _HEX_DIGITS[byte & 15])
        to += 2
        at += 1
    return to


@kernel
def _field(record: int, number: int) -> int:
    """A number of a record of int64: a column's descriptor, or a step of a program.

    Records are read by address: rows of NumPy arrays would be objects that are counted up and down.
    """
    return _load_i64(record + 8 * number)


@kernel
def _put_literal(to: int, at: int, length: int) -> int:
    """Copies some bytes more than it says: literals and output both have room for that behind them."""
    if length > 64:
        copy_bytes(to, at, length)
    else:
        done = 0
        while done < length:
            _store_u64(to + done, _load_u64(at + done))
            _store_u64(to + done + 8, _load_u64(at + done + 8))
            done += 16
    return to + length


@kernel
def _is_null(column: int, row: int) -> bool:
    bitmap = _field(column, VALIDITY)
    if bitmap == 0:
        return False
    bit = _field(column, FIRST_BIT) + row
    return ((load_u8(bitmap + (bit >> 3)) >> (bit & 7)) & 1) == 0


@kernel
def _put_value(to: int, column: int, row: int, delimiter: int, delimiter_length: int) -> int:
    kind, data = _field(column, KIND), _field(column, DATA)
    if kind == _INT:
        return _put_int(to, _load_i64(data + 8 * row))
    if kind == _UINT:
        return _put_uint(to, _load_u64(data + 8 * row))
    offsets = _field(column, OFFSETS) + 4 * row
    at, end = data + _load_i32(offsets), data + _load_i32(offsets + 4)
    if kind == _RAW:
        copy_bytes(to, at, end - at)
        return to + (end - at)
    if kind == _JSON_TEXT:
        return _put_json_text(to, at, end)
    if kind == _JSON_LATIN1:
        return _put_json_latin1(to, at, end)
    if kind == _DOUBLED:
        return _put_doubled(to, at, end, _field(column, QUOTE))
    if kind == _BACKSLASH:
        return _put_backslash(to, at, end, delimiter, delimiter_length)
    if kind == _BASE64:
        return _put_base64(to, at, end)
    return _put_hex(to, at, end)


@kernel
def _put_cell(to: int, column: int, row: int, literals: int, step: int, delimiter_length: int) -> int:
    """A value with what goes before it; ``step`` holds where the texts before it, and instead of it, are."""
    if _is_null(column, row):
        return _put_literal(to, literals + _field(step, 5), _field(step, 6))
    to = _put_literal(to, literals + _field(step, 3), _field(step, 4))
    to = _put_value(to, column, row, literals, delimiter_length)
    quote = _field(column, QUOTE)
    if quote != 0:
        store_u8(to, quote)  # its low bits
        to += 1
        if quote > 255:
            store_u8(to, quote >> 8)
            to += 1
    return to


@kernel
def _same_value(left: int, i: int, right: int, j: int) -> bool:
    left_null, right_null = _is_null(left, i), _is_null(right, j)
    if left_null or right_null:
        return left_null and right_null
    left_data, right_data = _field(left, DATA), _field(right, DATA)
    left_offsets, right_offsets = _field(left, OFFSETS) + 4 * i, _field(right, OFFSETS) + 4 * j
    if _field(left, OFFSETS) == 0:  # fixed width
        return _load_i64(left_data + 8 * i) == _load_i64(right_data + 8 * j)
    a, a_end = left_data + _load_i32(left_offsets), left_data + _load_i32(left_offsets + 4)
    b, b_end = right_data + _load_i32(right_offsets), right_data + _load_i32(right_offsets + 4)
    if a_end - a != b_end - b:
        return False
    while a < a_end and load_u8(a) == load_u8(b):
        a += 1
        b += 1
    return a == a_end


@kernel
def _is_promoted(columns: int, row: int, sql_type: int) -> bool:
    limit = _field(sql_type, 1)
    if limit == 0:
        return False
    column = columns + 8 * COLUMN_FIELDS * _field(sql_type, 0)
    return not _is_null(column, row) and _load_u64(_field(column, DATA) + 8 * row) > np.uint64(limit)


@kernel
def _put_sql_types(to: int, columns: int, row: int, sql_types: int, literals: int, step: int) -> int:
    """Members of ``sqlType``: one literal, unless an unsigned value of this row is above its type's signed range."""
    first, last = sql_types + 8 * SQL_TYPE_FIELDS * _field(step, 4), sql_types + 8 * SQL_TYPE_FIELDS * _field(step, 5)
    promoted = False
    at = first
    while at < last and not promoted:
        promoted = _is_promoted(columns, row, at)
        at += 8 * SQL_TYPE_FIELDS
    if not promoted:
        return _put_literal(to, literals + _field(step, 2), _field(step, 3))
    at = first
    while at < last:
        if at > first:
            store_u8(to, 44)
            to += 1
        which = 4 if _is_promoted(columns, row, at) else 2
        to = _put_literal(to, literals + _field(at, which), _field(at, which + 1))
        at += 8 * SQL_TYPE_FIELDS
    return to


@kernel
def assemble(
    ops: int,
    commit_ts: int,
    rows: int,
    program: int,
    starts: Array,
    columns: int,
    column_count: int,
    sql_types: int,
    literals: int,
    delimiter_length: int,
    built_ms: int,
    output: int,
    ends: Array,
) -> int:
    """Write the messages of ``rows`` changes to ``output``; returns the bytes written.

    Steps ``starts[op - 1]`` to ``starts[op]`` of ``program`` are those for a change of kind ``op``
    (RowOp). ``columns`` describes the buffers of the new image's columns, then of the old one's.
    ``literals`` begins with the delimiter's bytes. Behind literals and output there must be room for
    ``SLACK`` bytes.
    """
    to = output
    old_columns = columns + 8 * COLUMN_FIELDS * column_count
    new_row = old_row = 0
    for change in range(rows):
        op = load_u8(ops + change)
        is_first = True
        for number in range(starts[op - 1], starts[op]):
            step = program + 8 * STEP_FIELDS * number
            what = _field(step, 0)
            if what == _CELL:
                is_new = _field(step, 2) == 0
                column = (columns if is_new else old_columns) + 8 * COLUMN_FIELDS * _field(step, 1)
                to = _put_cell(to, column, new_row if is_new else old_row, literals, step, delimiter_length)
            elif what == _LITERAL:
                to = _put_literal(to, literals + _field(step, 1), _field(step, 2))
                is_first = True
            elif what == _CHANGED:
                place = 8 * COLUMN_FIELDS * _field(step, 1)
                if not _same_value(old_columns + place, old_row, columns + place, new_row):
                    if not is_first:
                        store_u8(to, 44)
                        to += 1
                    is_first = False
                    to = _put_cell(to, old_columns + place, old_row, literals, step, delimiter_length)
            elif what == _COMMIT_TS:
                to = _put_uint(to, _load_u64(commit_ts + 8 * change))
            elif what == _COMMIT_MS:
                to = _put_uint(to, _load_u64(commit_ts + 8 * change) >> np.uint64(18))
            elif what == _BUILT_MS:
                to = _put_int(to, built_ms)
            elif _field(step, 1) == 0:
                to = _put_sql_types(to, columns, new_row, sql_types, literals, step)
            else:
                to = _put_sql_types(to, old_columns, old_row, sql_types, literals, step)
        new_row += 1 if op != 3 else 0
        old_row += 1 if op != 1 else 0
        ends[change] = to - output
    return to - output
