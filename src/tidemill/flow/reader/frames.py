"""Messages of several rows taken apart: the way back from ``flow.encoder.framing``.

    key:    version | length | key of row 1 | length | key of row 2 | …
    value:            length | value of row 1 | …

Lengths come from outside: one that reaches beyond its message makes the whole message unreadable, and no other one.
"""

from dataclasses import dataclass

import numpy as np

from tidemill.columnar.jit import Bytes, Longs, helper, i64, kernel
from tidemill.flow.encoder.framing import VERSION
from tidemill.flow.reader.documents import Texts
from tidemill.flow.reader.port import Received

_NUMBER = 8  # bytes
_CUT, _VERSION, _UNPAIRED, _EMPTY = 1, 2, 3, 4
WHYS = {
    _CUT: "its frame is cut off or damaged: a length reaches beyond the end of the message",
    _VERSION: f"its key has no version {VERSION} of the open protocol in front",
    _UNPAIRED: "its key and its value hold different numbers of events",
    _EMPTY: "it holds no event",
}


@dataclass(frozen=True, slots=True)
class Frames:
    """Keys and values of events, in order; ``message[i]`` is the message of event ``i``."""

    keys: Texts
    values: Texts
    message: Longs
    wrong: list[tuple[int, str]]  # messages that are not read, and why


def taken_apart(received: Received) -> Frames:
    keys, values = Texts.of(received.keys), Texts.of(received.values)
    wrong = np.zeros(len(received), np.uint8)
    none = np.empty((0, 5), np.int64)
    args = (keys.data, keys.starts, keys.ends, values.data, values.starts, values.ends, wrong)
    events = np.empty((_walk(*args, False, none), 5), np.int64)
    _walk(*args, True, events)
    message, key_from, key_to, value_from, value_to = (np.ascontiguousarray(each) for each in events.T)
    return Frames(
        Texts(keys.data, key_from, key_to),
        Texts(values.data, value_from, value_to),
        message,
        [(int(n), WHYS[int(wrong[n])]) for n in np.nonzero(wrong)[0]],
    )


@kernel
def _walk(
    key_data: Bytes,
    key_starts: Longs,
    key_ends: Longs,
    value_data: Bytes,
    value_starts: Longs,
    value_ends: Longs,
    wrong: Bytes,
    fill: bool,
    events: Longs,
) -> int:
    """Count the events of all messages and note which messages are wrong or, with ``fill``, write the events down."""
    count = 0
    for n in range(len(key_starts)):
        if wrong[n]:
            continue
        first = count
        key, key_end, value, value_end = key_starts[n], key_ends[n], value_starts[n], value_ends[n]
        has_values = value < value_end
        if key + _NUMBER > key_end or _number(key_data, key) != VERSION:
            wrong[n] = _VERSION
            continue
        key += _NUMBER
        while key < key_end:
            size = _size(key_data, key, key_end)
            value_size = _size(value_data, value, value_end) if has_values else i64(0)
            if size < 0 or value_size < 0:
                wrong[n] = _UNPAIRED if size >= 0 and value >= value_end else _CUT
                break
            key += _NUMBER
            value += _NUMBER if has_values else 0
            if fill:
                events[count, 0] = n
                events[count, 1], events[count, 2] = key, key + size
                events[count, 3], events[count, 4] = value, value + value_size
            key += size
            value += value_size
            count += 1
        if wrong[n] == 0 and value < value_end:
            wrong[n] = _UNPAIRED
        if wrong[n] == 0 and count == first:
            wrong[n] = _EMPTY
        if wrong[n]:
            count = first
    return count


@helper
def _size(data: Bytes, at: int, end: int) -> int:
    """The length in front of a part that lies before ``end``; -1 if there is none."""
    if at + _NUMBER > end:
        return i64(-1)
    size = _number(data, at)
    return size if 0 <= size <= end - at - _NUMBER else i64(-1)


@helper
def _number(data: Bytes, at: int) -> int:
    number = i64(0)
    for k in range(_NUMBER):
        number = number << 8 | i64(data[at + k])
    return number
