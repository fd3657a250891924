"""Dates and times of TiDB's text form as numbers, in bulk.

Within a column all texts have one length (``2026-03-01``, ``2026-03-01 10:15:00``, with a fixed number of digits
behind the second), so they are a matrix of characters and need no parser.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

_DATE, _SECOND = 10, 19  # characters up to the day, up to the second
_ZERO = ord("0")
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def days_of(texts: pa.Array) -> tuple[npt.NDArray[np.int32], Mask]:
    """Days since 1970, and which of the texts are dates that no calendar has; both are 0 where a text is null."""
    digits, rows = _matrix(texts)
    days, is_none = _days(digits)
    return _spread(days, rows, len(texts)).astype(np.int32), _spread(is_none, rows, len(texts))


def micros_of(texts: pa.Array) -> tuple[Numbers, Mask]:
    """Microseconds since 1970, likewise."""
    digits, rows = _matrix(texts)
    days, is_none = _days(digits)
    micros = days * 86_400_000_000
    if digits.shape[1] >= _SECOND:
        seconds = _number(digits, 11, 13) * 3600 + _number(digits, 14, 16) * 60 + _number(digits, 17, 19)
        micros += seconds * 1_000_000
        fraction = digits.shape[1] - _SECOND - 1
        if fraction > 0:
            micros += _number(digits, _SECOND + 1, digits.shape[1]) * 10 ** (6 - fraction)
    return _spread(micros, rows, len(texts)), _spread(is_none, rows, len(texts))


def _matrix(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], Numbers | None]:
    """Characters of the texts that are not null, and which those are; None: all."""
    rows = None
    if texts.null_count:
        rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        texts = texts.drop_null()
    if not len(texts):
        return np.empty((0, _DATE), np.uint8), rows
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
    data = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return data.reshape(len(texts), -1) - np.uint8(_ZERO), rows


def _number(digits: npt.NDArray[np.uint8], first: int, end: int) -> Numbers:
    total = np.zeros(len(digits), np.int64)
    for place in range(first, end):
        total = total * 10 + digits[:, place]
    return total


def _days(digits: npt.NDArray[np.uint8]) -> tuple[Numbers, Mask]:
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 7), _number(digits, 8, 10)
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    longest = _MONTH_DAYS[np.minimum(month, 12)] + ((month == 2) & is_leap)
    is_none = (year < 1) | (month < 1) | (month > 12) | (day < 1) | (day > longest)
    # Years are counted from March, so that a leap day is the last of its year.
    before_march = month < 3
    year = year - before_march
    month = np.where(before_march, month + 9, month - 3)
    days = year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + day - 1 - 719_468
    return np.where(is_none, 0, days), is_none


def _spread(found: npt.NDArray[Scalar], rows: Numbers | None, count: int) -> npt.NDArray[Scalar]:
    if rows is None:
        return found
    spread = np.zeros(count, found.dtype)
    spread[rows] = found
    return spread
