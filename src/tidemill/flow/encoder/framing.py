"""Several rows in one message: keys and values with their lengths before them, as the open protocol frames them.

    key:    version | length | key of row 1 | length | key of row 2 | …
    value:            length | value of row 1 | …

All numbers are 8 bytes, the highest first. Rows that share a message are of one partition and follow each other there.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.encoded import Encoded, Keys
from tidemill.columnar.jit import Bytes, Longs, copy, helper, i64, kernel
from tidemill.flow.encoder.port import Partitions

VERSION = 1
OVERHEAD = 36  # of a Kafka record, at most
_NUMBER = 8  # bytes


def framed(*parts: bytes) -> bytes:
    """Each part behind its length."""
    return b"".join(len(part).to_bytes(_NUMBER) + part for part in parts)


def framed_key(key: bytes) -> bytes:
    return VERSION.to_bytes(_NUMBER) + framed(key)


def size_alone(key: Any, value: Any) -> Any:
    """What counts against the limit where a row, or each of several, has a message to itself."""
    return key + value + OVERHEAD + 3 * _NUMBER


def batched(keys: Encoded, values: Encoded, partitions: Partitions | None, max_rows: int, max_bytes: int) -> Encoded:
    """Messages of up to ``max_rows`` rows and ``max_bytes`` bytes, of one row where that is larger, in the order of
    rows within each partition."""
    rows = len(values)
    key_sizes, value_sizes = (np.diff(each.ends, prepend=0) for each in (keys, values))
    if partitions is None:
        order, of = np.arange(rows), np.zeros(rows, np.int32)
    else:
        order, of = np.argsort(partitions, kind="stable"), partitions
    firsts = np.empty(rows + 1, np.int64)
    count = _plan(key_sizes, value_sizes, order, of, max_rows, max_bytes, firsts)
    firsts = firsts[: count + 1]
    key_payload, key_ends = _write(keys, order, firsts, key_sizes, is_key=True)
    payload, ends = _write(values, order, firsts, value_sizes, is_key=False)
    last = order[firsts[1:] - 1]
    return Encoded(
        payload,
        ends,
        values.commit_ts[last],
        Keys(key_payload, key_ends),
        None if partitions is None else partitions[last],
        np.diff(firsts),
    )


def _write(
    parts: Encoded, order: npt.NDArray[np.int64], firsts: npt.NDArray[np.int64], sizes: Longs, *, is_key: bool
) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    messages = len(firsts) - 1
    room = int(sizes.sum()) + _NUMBER * (len(order) + (messages if is_key else 0))
    output, ends = np.empty(room, np.uint8), np.empty(messages, np.int64)
    _frame(np.frombuffer(parts.payload, np.uint8), parts.ends, order, firsts, is_key, output, ends)
    return pa.py_buffer(output), ends


@kernel
def _plan(
    key_sizes: Longs, value_sizes: Longs, order: Longs, partitions: Longs, max_rows: int, max_bytes: int, firsts: Longs
) -> int:
    """Where in ``order`` each message begins, and the end of all; returns how many messages there are."""
    messages, rows, size = i64(0), i64(0), i64(0)
    for place in range(len(order)):
        row = order[place]
        more = key_sizes[row] + value_sizes[row] + 2 * _NUMBER
        is_other = place > 0 and partitions[row] != partitions[order[place - 1]]
        if place == 0 or is_other or rows >= max_rows or size + more > max_bytes:
            firsts[messages] = place
            messages += 1
            rows, size = i64(0), i64(OVERHEAD + _NUMBER)
        rows += 1
        size += more
    firsts[messages] = len(order)
    return messages


@kernel
def _frame(data: Bytes, ends: Longs, order: Longs, firsts: Longs, is_key: bool, output: Bytes, out_ends: Longs) -> None:
    to = i64(0)
    for message in range(len(firsts) - 1):
        if is_key:
            to = _put_number(output, to, VERSION)
        for place in range(firsts[message], firsts[message + 1]):
            row = order[place]
            start = ends[row - 1] if row else i64(0)
            size = ends[row] - start
            to = _put_number(output, to, size)
            copy(output, to, data, start, size)
            to += size
        out_ends[message] = to


@helper
def _put_number(output: Bytes, to: int, number: int) -> int:
    for k in range(_NUMBER):
        output[to + k] = (number >> (8 * (_NUMBER - 1 - k))) & 0xFF
    return to + _NUMBER
