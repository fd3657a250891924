"""Answers of a MySQL server as Arrow columns, without an object a value.

The rows of an answer are packets of length-prefixed texts. They are taken from the socket in large pieces, and a
compiled loop finds where each value lies. Speaks the text protocol behind PyMySQL's back: it sends the statement
and reads the description of the columns, the rows are ours. Runs on executors.
"""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import COMMAND

from tidemill.columnar.jit import kernel

Ints = npt.NDArray[np.int64]

BATCH_ROWS = 32768
_PIECE_BYTES = 1 << 20
_LONGEST_PACKET = 0xFFFFFF
_BATCH_BYTES = 64 << 20
# Why the loop stopped: the piece is read, the answer is, a row spans packets, a packet is no row.
_MORE, _END, _LONG, _BROKEN = 0, 1, 2, 3


def select(connection: Any, statement: str) -> Iterator[list[pa.Array]]:
    """The answer's columns as texts (``pa.binary``), some rows at a time. Raises PyMySQL's errors, and OSError.

    Read it to its end, or close the connection.
    """
    connection._execute_command(COMMAND.COM_QUERY, statement.encode())
    result = MySQLResult(connection)
    result.init_unbuffered_query()
    result.unbuffered_active = False
    waiting: list[list[pa.Array]] = []
    for columns in _Rows(connection, len(result.fields)).read():
        waiting.append(columns)
        size = sum(column.nbytes for some in waiting for column in some)
        if sum(len(some[0]) for some in waiting) >= BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[list[pa.Array]]) -> list[pa.Array]:
    return pieces[0] if len(pieces) == 1 else [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]


class _Rows:
    def __init__(self, connection: Any, width: int) -> None:
        self._connection = connection
        self._width = width
        self._held = b""

    def read(self) -> Iterator[list[pa.Array]]:
        starts = np.empty((BATCH_ROWS, self._width), np.int64)
        lengths = np.empty((BATCH_ROWS, self._width), np.int64)
        while True:
            data = np.frombuffer(self._held, np.uint8)
            rows, at, why = _find(data, starts, lengths)
            if rows:
                yield [_column(data, starts[:rows, place], lengths[:rows, place]) for place in range(self._width)]
            self._held = self._held[at:]
            if why == _BROKEN:
                raise _malformed()
            if why == _END:
                self._finish()
                return
            if why == _LONG:
                yield self._long_row()
            elif rows < BATCH_ROWS:
                self._fetch()

    def _fetch(self) -> None:
        piece = self._connection._rfile.read1(_PIECE_BYTES)
        if not piece:
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
        self._held += piece

    def _finish(self) -> None:
        """The packet behind the last row: an end, or the error that came in its place."""
        size = int.from_bytes(self._need(4)[:3], "little")
        payload = self._need(4 + size)[4:]
        if payload[:1] == b"\xff":
            try:
                pymysql.err.raise_mysql_exception(payload)
            except (struct.error, IndexError, UnicodeDecodeError) as error:  # PyMySQL trusts that it is whole
                raise _malformed() from error

    def _need(self, size: int) -> bytes:
        while len(self._held) < size:
            self._fetch()
        return self._held[:size]

    def _long_row(self) -> list[pa.Array]:
        """A row of 16 MiB and more, in as many packets as it takes."""
        payload, size = b"", _LONGEST_PACKET
        while size == _LONGEST_PACKET:
            size = int.from_bytes(self._need(4)[:3], "little")
            payload += self._need(4 + size)[4:]
            self._held = self._held[4 + size :]
        starts, lengths = np.empty((1, self._width), np.int64), np.empty((1, self._width), np.int64)
        data = np.frombuffer(payload, np.uint8)
        if not _split(data, 0, len(data), starts[0], lengths[0]):
            raise _malformed()
        return [_column(data, starts[:, place], lengths[:, place]) for place in range(self._width)]


def _malformed() -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(2027, "Malformed packet: a row's values do not fit into it")


def _column(data: Any, starts: Ints, lengths: Ints) -> pa.Array:
    is_null = lengths < 0
    ends = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(np.where(is_null, 0, lengths), out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    _gather(data, np.ascontiguousarray(starts), ends, out)
    bitmap = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    return pa.Array.from_buffers(pa.binary(), len(starts), [bitmap, pa.py_buffer(ends), pa.py_buffer(out)])


@kernel
def _find(data: Any, starts: Any, lengths: Any) -> Any:
    """(rows found, where the next packet begins, why we stopped)."""
    at: Any = 0
    rows, size = 0, len(data)
    while rows < len(starts) and at + 5 <= size:
        length: Any = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        if length == _LONGEST_PACKET:
            return rows, at, _LONG
        first = data[at + 4]
        if first == 0xFF or (first == 0xFE and length < 9):
            return rows, at, _END
        if at + 4 + length > size:
            break
        if not _split(data, at + 4, at + 4 + length, starts[rows], lengths[rows]):
            return rows, at, _BROKEN
        at += 4 + length
        rows += 1
    return rows, at, _MORE


@kernel
def _split(data: Any, at: Any, end: Any, starts: Any, lengths: Any) -> Any:
    """Where the values of the row in ``data[at:end]`` lie. A length of -1 is a null. False: it is no such row."""
    for place in range(len(starts)):
        if at >= end:
            return False
        first = np.int64(data[at])
        at += 1
        length: Any = first
        more = 0
        if first == 0xFB:
            length = -1
        elif first == 0xFC:
            more = 2
        elif first == 0xFD:
            more = 3
        elif first == 0xFE:
            more = 8
        if at + more > end:
            return False
        if more:
            length = 0
            for byte in range(more):
                length |= np.int64(data[at + byte]) << (8 * byte)
            at += more
        if length < -1 or length > end - at:
            return False
        starts[place], lengths[place] = at, length
        at += max(length, 0)
    return at == end


@kernel
def _gather(data: Any, starts: Any, ends: Any, out: Any) -> None:
    for row in range(len(starts)):
        at = starts[row]
        for place in range(ends[row], ends[row + 1]):
            out[place] = data[at]
            at += 1
