"""ChangeDataEvent messages walked in bulk: protobuf bytes in, arrays of numbers out.

A stream is received as plain bytes. One compiled walk counts what the messages hold, a second
fills the arrays. Keys and values stay where they are, as positions in the joined messages; only
error events, which are rare, are decoded by the protobuf library.

Several messages are walked as one. Each keeps its own end, so that a broken one cannot borrow
bytes from the next. All numbers are held as ``int64``: ids are compared for equality only, and a
ts above 2**63 lies in the year 3084 and is refused as malformed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill._pb import cdcpb_pb2
from tidemill.columnar.jit import i64, kernel
from tidemill.errors import ProtocolViolationError

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Columns of ParsedMessages.rows
TYPE, OP, START_TS, COMMIT_TS, KEY, KEY_LEN, VALUE, VALUE_LEN, OLD, OLD_LEN, GENERATION, EVENT = range(12)
ROW_COLUMNS = 12
# Columns of ParsedMessages.rare
RARE_ROW, EXPIRY, TXN_SOURCE = range(3)
# Columns of ParsedMessages.events
REGION, REQUEST = 0, 1
# Columns of ParsedMessages.resolved
RESOLVED_TS, RESOLVED_REQUEST, FIRST_REGION, LAST_REGION, ROWS_BEFORE = range(5)
# Columns of ParsedMessages.errors
ERROR_EVENT, ERROR_AT, ERROR_LEN = range(3)

# cdcpb.Event.LogType
UNKNOWN, PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = range(6)


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    request_id: int
    region_id: int
    error: cdcpb_pb2.Error


@dataclass(frozen=True, slots=True)
class ParsedMessages:
    """What some messages held, in the order in which they came.

    ``resolved`` rows name a slice ``[FIRST_REGION, LAST_REGION)`` of ``regions`` and say how many
    rows came before them. ``rare`` has what few rows have, for those that have it, in order.
    """

    buffer: Bytes
    events: Int64s
    rows: Int64s
    resolved: Int64s
    regions: Int64s
    errors: Int64s
    halves: int  # rows that are half a change: PREWRITE, COMMIT or ROLLBACK
    halves_bytes: int  # their keys and values together
    rare: Int64s

    def error_events(self) -> list[ErrorEvent]:
        found = []
        for event, at, length in self.errors.tolist():
            body = self.buffer[at : at + length].tobytes()
            try:
                error = cdcpb_pb2.Error.FromString(body)
            except Exception as broken:  # the protobuf library's DecodeError, under either of its backends
                raise ProtocolViolationError(
                    f"cannot read an error event of {length} bytes in the change stream: {broken}. "
                    "The stream is dropped and opened again."
                ) from broken
            region_id, request_id = (int(n) & 0xFFFFFFFFFFFFFFFF for n in self.events[event])
            found.append(ErrorEvent(request_id, region_id, error))
        return found


def parse(messages: Sequence[bytes]) -> ParsedMessages:
    """Walk serialised ChangeDataEvents. Bytes that are none raise ``ProtocolViolationError``."""
    joined = messages[0] if len(messages) == 1 else b"".join(messages)
    buffer = np.frombuffer(joined, dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, messages), dtype=np.int64, count=len(messages)))
    counts, rare = np.zeros(8, dtype=np.int64), _NOTHING
    bad = _walk(buffer, ends, False, _NOTHING, _NOTHING, _NOTHING, _NO_REGIONS, _NOTHING, _NOTHING, counts)
    if bad < 0:
        events = np.zeros((counts[0], 2), dtype=np.int64)
        rows = np.zeros((counts[1], ROW_COLUMNS), dtype=np.int64)
        resolved = np.zeros((counts[2], 5), dtype=np.int64)
        regions = np.empty(counts[3], dtype=np.int64)
        errors = np.empty((counts[4], 3), dtype=np.int64)
        counts[:] = 0
        bad = _walk(buffer, ends, True, events, rows, resolved, regions, errors, rare, counts)
        if counts[7] and bad < 0:  # their number is known only now: once more, with room for them
            rare = np.empty((counts[7], 3), dtype=np.int64)
            counts[:] = 0
            _walk(buffer, ends, True, events, rows, resolved, regions, errors, rare, counts)
    if bad >= 0:
        raise ProtocolViolationError(
            f"a message of the change stream is malformed or cut off at byte {bad} of {len(joined)}. "
            "The stream is dropped and opened again; if this repeats, look for a proxy between us and TiKV."
        )
    return ParsedMessages(buffer, events, rows, resolved, regions, errors, int(counts[5]), int(counts[6]), rare)


_NOTHING = np.empty((0, 0), dtype=np.int64)
_NO_REGIONS = np.empty(0, dtype=np.int64)


@kernel
def _varint(buf: Any, at: int, end: int) -> Any:
    """The value at ``at`` and the position behind it, or position -1."""
    value, shift = i64(0), i64(0)
    while at < end and shift < 70:
        # Unsigned: a signed position might count from the end, and asking costs as much as reading.
        byte = i64(buf[np.uint64(at)])
        at += 1
        if byte < 0x80:
            return value | (byte << shift), at
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, i64(-1)


@kernel
def field(buf: Any, at: int, end: int) -> Any:
    """One field: its tag, its number or length, where its content begins and where it ends.

    A content that is a number is given as such and has no bytes. The last is -1 where the bytes
    are no field.
    """
    tag, at = _varint(buf, at, end)
    if at < 0 or tag < 8 or tag > 0xFFFFFFFF:
        return tag, i64(0), i64(0), i64(-1)
    wire = tag & 7
    if wire == 0:
        value, at = _varint(buf, at, end)
        return tag, value, at, at
    length = i64(-1)
    if wire == 2:
        length, at = _varint(buf, at, end)
        if at < 0:
            return tag, length, at, at
    elif wire == 1:
        length = i64(8)
    elif wire == 5:
        length = i64(4)
    if length < 0 or length > end - at:
        return tag, length, at, i64(-1)
    return tag, length, at, at + length


# Tags as they stand on the wire: field number << 3 | wire type.
@kernel
def _walk(
    buf: Any,
    ends: Any,
    fill: bool,
    events: Any,
    rows: Any,
    resolved: Any,
    regions: Any,
    errors: Any,
    rare: Any,
    counts: Any,
) -> Any:
    """Count (or, with ``fill``, write down) everything; the position of the first bad byte, or -1."""
    at = i64(0)
    for m in range(len(ends)):
        end = ends[m]
        while at < end:
            tag, _, start, stop = field(buf, at, end)
            if stop < 0:
                return at
            bad = i64(-1)
            if tag == 10:  # ChangeDataEvent.events
                bad = _walk_event(buf, start, stop, fill, events, rows, resolved, regions, errors, rare, counts)
            elif tag == 18:  # ChangeDataEvent.resolved_ts
                bad = _walk_resolved(buf, start, stop, fill, resolved, regions, counts)
            if bad >= 0:
                return bad
            at = stop
    return -1


@kernel
def _walk_event(
    buf: Any,
    at: int,
    end: int,
    fill: bool,
    events: Any,
    rows: Any,
    resolved: Any,
    regions: Any,
    errors: Any,
    rare: Any,
    counts: Any,
) -> Any:
    event = counts[0]
    counts[0] += 1
    region, request, own_ts = i64(0), i64(0), i64(-1)
    while at < end:
        tag, number, start, stop = field(buf, at, end)
        if stop < 0:
            return at
        if tag == 8:
            region = number
        elif tag == 56:
            request = number
        elif tag == 26:  # entries
            bad = _walk_entries(buf, start, stop, fill, event, rows, rare, counts)
            if bad >= 0:
                return bad
        elif tag == 42:  # error
            if fill:
                errors[counts[4], 0], errors[counts[4], 1], errors[counts[4], 2] = event, start, stop - start
            counts[4] += 1
        elif tag == 48:  # resolved_ts of one region, from a server that takes us for an old client
            if number < 0:
                return at
            own_ts = number
        at = stop
    if fill:
        events[event, 0], events[event, 1] = region, request
    if own_ts >= 0:
        if fill:
            n = counts[2]
            resolved[n, 0], resolved[n, 1], resolved[n, 4] = own_ts, request, counts[1]
            resolved[n, 2], resolved[n, 3] = counts[3], counts[3] + 1
            regions[counts[3]] = region
        counts[2] += 1
        counts[3] += 1
    return -1


@kernel
def _walk_entries(buf: Any, at: int, end: int, fill: bool, event: int, rows: Any, rare: Any, counts: Any) -> Any:
    while at < end:
        tag, _, start, stop = field(buf, at, end)
        if stop < 0:
            return at
        if tag == 10:
            if fill:
                rows[counts[1], 11] = event
                r = counts[1]
                bad = _read_row(buf, start, stop, rows, r)
                if bad >= 0:
                    return bad
                if bad == -2:
                    _note_rare(buf, start, stop, r, rare, counts)
                if 1 <= rows[r, 0] <= 3:  # PREWRITE, COMMIT, ROLLBACK
                    counts[5] += 1
                    counts[6] += rows[r, 5] + rows[r, 7] + rows[r, 9]
            counts[1] += 1
        at = stop
    return -1


@kernel
def _read_row(buf: Any, at: int, end: int, rows: Any, r: int) -> Any:
    """As ``_walk``, but -2 where the row has what few have."""
    good = i64(-1)
    while at < end:
        tag, number, start, stop = field(buf, at, end)
        if stop < 0:
            return at
        if tag <= 32:
            if tag == 8:  # start_ts
                rows[r, 2] = number
            elif tag == 16:  # commit_ts
                rows[r, 3] = number
            elif tag == 24:  # type
                rows[r, 0] = number
            elif tag == 32:  # op_type
                rows[r, 1] = number
        elif tag == 42:  # key
            rows[r, 4], rows[r, 5] = start, number
        elif tag == 50:  # value
            rows[r, 6], rows[r, 7] = start, number
        elif tag == 58:  # old_value
            rows[r, 8], rows[r, 9] = start, number
        elif tag == 80:  # generation
            rows[r, 10] = number
        elif tag == 64 or tag == 72:
            good = i64(-2)
        at = stop
    if rows[r, 2] < 0 or rows[r, 3] < 0:
        return end
    return good


@kernel
def _note_rare(buf: Any, at: int, end: int, r: int, rare: Any, counts: Any) -> None:
    """Expiry and source of a row that was read; without room for them they are counted only."""
    expiry, source = i64(0), i64(0)
    while at < end:
        tag, number, _, stop = field(buf, at, end)
        if tag == 64:  # expire_ts_unix_secs
            expiry = number
        elif tag == 72:  # txn_source
            source = number
        at = stop
    if expiry | source:
        if counts[7] < len(rare):
            rare[counts[7], 0], rare[counts[7], 1], rare[counts[7], 2] = r, expiry, source
        counts[7] += 1


@kernel
def _walk_resolved(buf: Any, at: int, end: int, fill: bool, resolved: Any, regions: Any, counts: Any) -> Any:
    first = counts[3]
    ts, request = i64(0), i64(0)
    while at < end:
        tag, number, start, stop = field(buf, at, end)
        if stop < 0:
            return at
        if tag == 16:
            if number < 0:
                return at
            ts = number
        elif tag == 24:
            request = number
        elif tag == 8:  # one region, not packed
            if fill:
                regions[counts[3]] = number
            counts[3] += 1
        elif tag == 10:  # regions, packed
            inner = start
            while inner < stop:
                number, after = _varint(buf, inner, stop)
                if after < 0:
                    return inner
                if fill:
                    regions[counts[3]] = number
                counts[3] += 1
                inner = after
        at = stop
    if fill:
        n = counts[2]
        resolved[n, 0], resolved[n, 1], resolved[n, 4] = ts, request, counts[1]
        resolved[n, 2], resolved[n, 3] = first, counts[3]
    counts[2] += 1
    return -1
