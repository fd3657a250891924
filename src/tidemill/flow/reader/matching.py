"""The compiled loops that compare documents with a shape and note where their values lie.

Documents come from outside. Every read is within the document at hand, whose bounds the caller vouches for, so a
damaged one can only fail to match. What matches is JSON, except within holes of ``Hole.ANY``.
"""

from enum import IntEnum

from tidemill.columnar.jit import Bytes, Longs, Words, helper, i64, kernel, load_u64, u64
from tidemill.flow.mounter.strings import rune_size
from tidemill.flow.reader.shape import Hole


class Token(IntEnum):
    """What was found in a hole. Spans of strings are without their quotes."""

    NULL = 0
    NUMBER = 1
    TEXT = 2  # without escapes
    ESCAPED = 3  # with escapes
    TRUE = 4
    FALSE = 5
    OTHER = 6  # an object or array
    WRONG = 7


# Numba freezes module-level integers; an IntEnum member would be looked up at run time.
_NULL, _NUMBER, _TEXT, _ESCAPED, _TRUE, _FALSE, _OTHER, _WRONG = (int(token) for token in Token)
_ANY = int(Hole.ANY)
_ONES, _TOPS = 0x0101010101010101, 0x8080808080808080
_MOST_DEPTH = 1000
_PRIME, _BASIS = 0x100000001B3, 0xCBF29CE484222325


@kernel
def match_all(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    rows: Longs,
    literals: Bytes,
    literal_ends: Longs,
    kinds: Longs,
    from_: Longs,
    to: Longs,
    tokens: Bytes,
    is_match: Bytes,
) -> int:
    """Compare documents ``rows`` with a shape. For the n-th of them, if it matches, ``from_[hole, n]``, ``to`` and
    ``tokens`` say what its holes hold. Returns how many match."""
    count = 0
    for n in range(len(rows)):
        at, end = starts[rows[n]], ends[rows[n]]
        literal = i64(0)
        fits = True
        for hole in range(len(kinds)):
            size = literal_ends[hole] - literal
            if at + size >= end or not _same(data, at, literals, literal, size):
                fits = False
                break
            at += size
            literal += size
            token, first, last, at = _value(data, at, end, kinds[hole])
            if token == _WRONG:
                fits = False
                break
            from_[hole, n], to[hole, n], tokens[hole, n] = first, last, token
        if fits:
            size = literal_ends[len(kinds)] - literal
            fits = at + size == end and _same(data, at, literals, literal, size)
        is_match[n] = fits
        count += fits
    return count


@kernel
def signatures(data: Bytes, starts: Longs, ends: Longs, marker: Bytes, found: Words) -> None:
    """A number for each document, the same for those that differ in numbers alone, up to the ``marker``."""
    for n in range(len(starts)):
        at, end = starts[n], ends[n]
        total = u64(_BASIS)
        while at < end:
            byte = data[at]
            total = (total ^ u64(byte)) * u64(_PRIME)
            at += 1
            if byte == 58:  # a colon: a number behind it is left out
                while at < end and (48 <= data[at] <= 57 or data[at] == 45):
                    at += 1
            elif byte == 34 and len(marker) > 0 and _starts(data, at, end, marker):
                break
        found[n] = total


@kernel
def number_groups(signs: Words, slots: Longs, group: Longs, firsts: Longs) -> int:
    """Number the distinct ``signs`` in the order in which they appear; return how many there are.

    ``slots`` are -1, a power of two and more than there are signs."""
    count = 0
    mask = len(slots) - 1
    for n in range(len(signs)):
        slot = i64((signs[n] ^ (signs[n] >> u64(29))) & u64(mask))
        while slots[slot] >= 0 and signs[firsts[slots[slot]]] != signs[n]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            firsts[count] = n
            count += 1
        group[n] = slots[slot]
    return count


@kernel
def bags(data: Bytes, from_: Longs, to: Longs, found: Words) -> None:
    """A number for each flat object, the same for those with the same members in another order."""
    for n in range(len(from_)):
        at, end = from_[n] + 1, to[n] - 1
        total = u64(0)
        member = u64(_BASIS)
        quoted = False
        while at < end:
            byte = data[at]
            if byte == 92 and quoted and at + 1 < end:
                member = (member ^ u64(byte)) * u64(_PRIME)
                at += 1
                byte = data[at]
            elif byte == 34:
                quoted = not quoted
            if byte == 44 and not quoted:
                total += _mixed(member)
                member = u64(_BASIS)
            else:
                member = (member ^ u64(byte)) * u64(_PRIME)
            at += 1
        found[n] = total + _mixed(member)


@helper
def _mixed(word: int) -> int:
    word = (word ^ (word >> u64(33))) * u64(0xFF51AFD7ED558CCD)
    return (word ^ (word >> u64(29))) * u64(0xC4CEB9FE1A85EC53)


@helper
def _starts(data: Bytes, at: int, end: int, text: Bytes) -> bool:
    size = i64(len(text))
    done = i64(0)
    while done < size and at + done < end and data[at + done] == text[done]:
        done += 1
    return done == size


@helper
def _same(data: Bytes, at: int, literals: Bytes, literal: int, size: int) -> bool:
    """``at + size`` is within the data; behind the literals there are eight bytes more."""
    done = i64(0)
    while done + 8 <= size:
        if load_u64(data, at + done) != load_u64(literals, literal + done):
            return False
        done += 8
    while done < size:
        if data[at + done] != literals[literal + done]:
            return False
        done += 1
    return True


@helper
def _value(data: Bytes, at: int, end: int, kind: int) -> tuple[int, int, int, int]:
    """What stands at ``at``, which is below ``end``: its token, where it begins and ends, and where to go on."""
    byte = data[at]
    if byte == 34:
        stop, escaped = _string_end(data, at + 1, end)
        if stop < 0:
            return _WRONG, at, at, at
        return (_ESCAPED if escaped else _TEXT), at + 1, stop, stop + 1
    if byte == 45 or 48 <= byte <= 57:
        stop = _number_end(data, at, end)
        if stop < 0:
            return _WRONG, at, at, at
        return _NUMBER, at, stop, stop
    if byte == 110 and _is_word(data, at, end, 117, 108, 108):
        return _NULL, at, at + 4, at + 4
    if byte == 116 and _is_word(data, at, end, 114, 117, 101):
        return _TRUE, at, at + 4, at + 4
    if byte == 102 and at + 5 <= end and data[at + 1] == 97 and _is_word(data, at + 1, end, 108, 115, 101):
        return _FALSE, at, at + 5, at + 5
    if kind == _ANY and (byte == 123 or byte == 91):
        stop = _skip(data, at, end)
        if stop >= 0:
            return _OTHER, at, stop, stop
    return _WRONG, at, at, at


@helper
def _is_word(data: Bytes, at: int, end: int, a: int, b: int, c: int) -> bool:
    return at + 4 <= end and data[at + 1] == a and data[at + 2] == b and data[at + 3] == c


@helper
def _string_end(data: Bytes, at: int, end: int) -> tuple[int, bool]:
    """Where a string's closing quote is, and whether there are escapes; -1 if it is no string of JSON."""
    escaped = False
    while at < end:
        if at + 8 <= end:
            word = load_u64(data, at)
            control = (word - u64(0x20 * _ONES)) & ~word
            quote, slash = word ^ u64(0x22 * _ONES), word ^ u64(0x5C * _ONES)
            special = control | ((quote - u64(_ONES)) & ~quote) | ((slash - u64(_ONES)) & ~slash) | word
            if special & u64(_TOPS) == u64(0):
                at += 8
                continue
        byte = data[at]
        if byte == 34:
            return at, escaped
        if byte == 92:
            size = _escape_size(data, at, end)
            if size == 0:
                return i64(-1), escaped
            escaped = True
            at += size
        elif byte < 0x20:
            return i64(-1), escaped
        elif byte < 0x80:
            at += 1
        else:
            size = rune_size(data, at, end)
            if size == 0:
                return i64(-1), escaped
            at += size
    return i64(-1), escaped


@helper
def _escape_size(data: Bytes, at: int, end: int) -> int:
    """Bytes of the escape at ``at``; 0 if JSON has no such one."""
    if at + 1 >= end:
        return 0
    byte = data[at + 1]
    if byte == 117:
        if at + 6 > end:
            return 0
        for k in range(2, 6):
            if hex_digit(data[at + k]) < 0:
                return 0
        return 6
    # " / \ b f n r t
    if byte == 34 or byte == 47 or byte == 92 or byte == 98 or byte == 102 or byte == 110 or byte == 114 or byte == 116:
        return 2
    return 0


@helper
def hex_digit(byte: int) -> int:
    if 48 <= byte <= 57:
        return i64(byte) - 48
    letter = i64(byte) | 32
    return letter - 87 if 97 <= letter <= 102 else i64(-1)


@helper
def _number_end(data: Bytes, at: int, end: int) -> int:
    """Where a number of JSON ends; -1 if it is none. What follows is not looked at."""
    if data[at] == 45:
        at += 1
    if at >= end:
        return i64(-1)
    if data[at] == 48:
        at += 1
    else:
        after = _digits_end(data, at, end)
        if after == at:
            return i64(-1)
        at = after
    if at < end and data[at] == 46:
        after = _digits_end(data, at + 1, end)
        if after == at + 1:
            return i64(-1)
        at = after
    if at < end and (data[at] | 32) == 101:
        at += 1
        if at < end and (data[at] == 43 or data[at] == 45):
            at += 1
        after = _digits_end(data, at, end)
        if after == at:
            return i64(-1)
        at = after
    return at


@helper
def _digits_end(data: Bytes, at: int, end: int) -> int:
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at


@helper
def _skip(data: Bytes, at: int, end: int) -> int:
    """Where the object or array at ``at`` ends, by its brackets; -1 if it does not."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == 34:
            at, _ = _string_end(data, at + 1, end)
            if at < 0:
                return i64(-1)
        elif byte == 123 or byte == 91:
            depth += 1
            if depth > _MOST_DEPTH:
                return i64(-1)
        elif byte == 125 or byte == 93:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return i64(-1)
