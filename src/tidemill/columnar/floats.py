"""The shortest decimal digits that read back as the same float, and the ways to print them: one by one in compiled
loops, and a column at once (``float_text``).

The digits are found by Schubfach (R. Giulietti, "The Schubfach way to render doubles"): scale the
interval of numbers that round to the value by a power of ten, held in 126 bits, so that it contains
one or more integers, and take the one with the fewest digits, then the nearest.
"""

from functools import cache

import numpy as np

from tidemill.columnar.jit import Bytes, Words, helper, i64, kernel, u8, u64

FIRST_POWER = -324
LAST_POWER = 292

POSITIONAL = 0  # without exponent, whatever the size: Go's 'f'
ES6 = 1  # as Go's JSON: an exponent below 1e-6 and from 1e21 on
GENERAL = 2  # an exponent of two digits or more below 1e-4 and from 1e6 on: Go's 'g'
PADDED = 3  # as ES6, with an exponent of two digits or more: json-iterator's numbers

LONGEST_FLOAT = 350  # a double in positional form: 309 digits, or 0.000… down to 1e-324 with 17 digits


@cache
def powers_of_ten() -> Words:
    """``floor(10**-k * 2**r) + 1`` in 126 bits as two words of 63, for each k from FIRST_POWER on."""
    table = np.empty((LAST_POWER - FIRST_POWER + 1, 2), np.uint64)
    for k in range(FIRST_POWER, LAST_POWER + 1):
        # 10**-k = g * 2**r with 2**125 <= g < 2**126
        if k <= 0:
            power = 10**-k
            shift = power.bit_length() - 126
            g = power >> shift if shift >= 0 else power << -shift
        else:
            power = 10**k
            shift = power.bit_length() + 125
            g = (1 << shift) // power
            if g.bit_length() > 126:
                g >>= 1
        g += 1
        table[k - FIRST_POWER, 0] = g >> 63
        table[k - FIRST_POWER, 1] = g & ((1 << 63) - 1)
    return table


@helper
def _high(a: int, b: int) -> int:
    """The upper 64 bits of a product of 64 by 64 bits."""
    mask = u64(0xFFFFFFFF)
    half = u64(32)
    a0, a1 = a & mask, a >> half
    b0, b1 = b & mask, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & mask)) >> half)


@helper
def _round_to_odd(g1: int, g0: int, scaled: int) -> int:
    """``g * scaled`` without its lower bits, of which the last kept says whether any was set."""
    x1 = _high(g0, scaled)
    y0 = g1 * scaled
    y1 = _high(g1, scaled)
    z = (y0 >> u64(1)) + x1
    w = y1 + (z >> u64(63))
    mask = u64(0x7FFFFFFFFFFFFFFF)
    return w | (((z & mask) + mask) >> u64(63))


@helper
def shortest(fraction: int, exponent: int, is_single: bool, powers: Words) -> tuple[int, int]:
    """Digits ``d`` and power ``k`` with ``d * 10**k`` the value; from the raw fields of a positive finite float."""
    hidden = u64(1) << u64(23 if is_single else 52)
    bias = 150 if is_single else 1075
    if exponent > 0:
        c = u64(fraction) | hidden
        q = exponent - bias
    else:
        c = u64(fraction)
        q = 1 - bias
    out = c & u64(1)
    cb = c << u64(2)
    cbr = cb + u64(2)
    if c != hidden or exponent <= 1:
        cbl = cb - u64(2)
        k = (q * 661971961083) >> 41  # floor(q * log10(2))
    else:
        cbl = cb - u64(1)
        k = (q * 661971961083 - 274743187321) >> 41  # floor(log10(3/4 * 2**q))
    h = u64(q + ((-k * 913124641741) >> 38) + 2)  # floor(-k * log2(10))
    g1 = powers[k - FIRST_POWER, 0]
    g0 = powers[k - FIRST_POWER, 1]
    vb = _round_to_odd(g1, g0, cb << h)
    vbl = _round_to_odd(g1, g0, cbl << h)
    vbr = _round_to_odd(g1, g0, cbr << h)
    two = u64(2)
    s = vb >> two
    if s >= u64(10):
        lower = u64(10) * (s // u64(10))
        upper = lower + u64(10)
        lower_in = vbl + out <= lower << two
        upper_in = (upper << two) + out <= vbr
        if lower_in != upper_in:
            return (lower if lower_in else upper), k
    t = s + u64(1)
    s_in = vbl + out <= s << two
    t_in = (t << two) + out <= vbr
    if s_in != t_in:
        return (s if s_in else t), k
    middle = (s + t) << u64(1)
    if vb < middle or (vb == middle and s & u64(1) == 0):
        return s, k
    return t, k


@kernel
def write_float(out: Bytes, to: int, bits: int, is_single: bool, layout: int, powers: Words) -> int:
    """Print a finite float; return the position behind it."""
    if is_single:
        sign = bits >> u64(31)
        exponent = i64((bits >> u64(23)) & u64(0xFF))
        fraction = bits & u64(0x7FFFFF)
    else:
        sign = bits >> u64(63)
        exponent = i64((bits >> u64(52)) & u64(0x7FF))
        fraction = bits & u64(0xFFFFFFFFFFFFF)
    if sign:
        out[to] = 45
        to += 1
    if exponent == 0 and fraction == 0:
        out[to] = 48
        return to + 1
    digits, power = shortest(fraction, exponent, is_single, powers)
    ten = u64(10)
    while digits % ten == 0:
        digits //= ten
        power += 1
    count = 0
    rest = digits
    while rest:
        rest //= ten
        count += 1
    point = count + power  # digits before the decimal point; the value is 0.digits * 10**point
    if layout == ES6 and (point < -5 or point > 21):
        return _write_exponent(out, to, digits, count, point - 1, 1)
    if layout == PADDED and (point < -5 or point > 21):
        return _write_exponent(out, to, digits, count, point - 1, 2)
    if layout == GENERAL and (point < -3 or point > 6):
        return _write_exponent(out, to, digits, count, point - 1, 2)
    if point <= 0:
        out[to] = 48
        out[to + 1] = 46
        to += 2
        for _ in range(-point):
            out[to] = 48
            to += 1
        _write_digits(out, to, digits, count)
        return to + count
    if point >= count:
        _write_digits(out, to, digits, count)
        to += count
        for _ in range(point - count):
            out[to] = 48
            to += 1
        return to
    _write_digits(out, to + 1, digits, count)
    for k in range(point):
        out[to + k] = out[to + k + 1]
    out[to + point] = 46
    return to + count + 1


@helper
def _write_digits(out: Bytes, to: int, digits: int, count: int) -> None:
    ten = u64(10)
    for k in range(count - 1, -1, -1):
        rest = digits // ten
        out[to + k] = 48 + u8(digits - rest * ten)
        digits = rest


@helper
def _write_exponent(out: Bytes, to: int, digits: int, count: int, exponent: int, least: int) -> int:
    """``d.ddde±x``, with at least so many digits of exponent."""
    _write_digits(out, to + 1, digits, count)
    out[to] = out[to + 1]
    to += 1
    if count > 1:
        out[to] = 46
        to += count
    out[to] = 101  # e
    out[to + 1] = 43 if exponent >= 0 else 45
    to += 2
    exponent = abs(exponent)
    if exponent >= 100:
        out[to] = 48 + exponent // 100
        to += 1
    if exponent >= 10 or least > 1:
        out[to] = 48 + exponent // 10 % 10
        to += 1
    out[to] = 48 + exponent % 10
    return to + 1
