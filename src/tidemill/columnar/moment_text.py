"""Microseconds since 1970 as text of ISO 8601 in UTC, in bulk: ``2024-02-29T12:34:56.789Z``. Runs on executors."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Ints, Longs, helper, i64, kernel


def zoned(micros: npt.NDArray[np.int64], is_there: npt.NDArray[np.uint8], places: int, instead: bytes) -> pa.Array:
    """With ``places`` digits of a second's fraction, for years 0 to 9999; ``instead`` where none is there."""
    width = max(20 + (1 + places if places > 0 else 0), len(instead))
    output, ends = np.empty(width * len(micros), np.uint8), np.zeros(len(micros) + 1, np.int32)
    size = _write(micros, is_there, places, np.frombuffer(instead, np.uint8), output, ends)
    return pa.Array.from_buffers(pa.string(), len(micros), [None, pa.py_buffer(ends), pa.py_buffer(output[:size])])


@kernel
def _write(micros: Longs, is_there: Bytes, places: int, instead: Bytes, output: Bytes, ends: Ints) -> int:
    to = i64(0)
    for row in range(len(micros)):
        if not is_there[row]:
            for k in range(len(instead)):
                output[to + k] = instead[k]
            to += len(instead)
        else:
            to = _put_moment(output, to, micros[row], places)
        ends[row + 1] = to
    return to


@helper
def _put_moment(output: Bytes, to: int, micros: int, places: int) -> int:
    seconds, fraction = micros // 1_000_000, micros % 1_000_000
    days, rest = seconds // 86400, seconds % 86400
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    turned = (5 * of_year + 2) // 153  # months since March
    month = turned + (3 if turned < 10 else -9)
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    to = _put_digits(output, to, year, 4, 45)
    to = _put_digits(output, to, month, 2, 45)
    to = _put_digits(output, to, of_year - (153 * turned + 2) // 5 + 1, 2, 84)
    to = _put_digits(output, to, rest // 3600, 2, 58)
    to = _put_digits(output, to, rest // 60 % 60, 2, 58)
    to = _put_digits(output, to, rest % 60, 2, 46 if places > 0 else 90)
    if places > 0:
        for _ in range(6 - places):
            fraction //= 10
        to = _put_digits(output, to, fraction, places, 90)
    return to


@helper
def _put_digits(output: Bytes, to: int, number: int, count: int, behind: int) -> int:
    for k in range(count - 1, -1, -1):
        output[to + k] = 48 + number % 10
        number //= 10
    output[to + count] = behind
    return to + count + 1
