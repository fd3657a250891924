"""Packets over a socket: a length, a number in sequence, then the bytes; longer ones in several parts.

A part of 2**24 - 1 bytes says that another follows, so a packet of exactly that length is followed
by an empty one. Answers are gathered and sent together: a small one costs one system call.
"""

import socket
from typing import Final

from tidebox.sql.wire.errors import Errno, sql_error

LONGEST_PART: Final = (1 << 24) - 1
_GATHERED_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 64 * 1024


class Disconnected(Exception):
    """The other end is gone, or did not go on with what it had begun in time."""


class OutOfOrder(Exception):
    """The client's packets are not numbered as they should be; what follows cannot be trusted."""


class Channel:
    """Both directions of one connection. Used by one thread at a time, except for ``shut``."""

    def __init__(self, connection: socket.socket, max_packet_bytes: int, stall_seconds: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._max_packet_bytes = max_packet_bytes
        self._stall_seconds = stall_seconds
        self._patience: float | None = stall_seconds
        connection.settimeout(stall_seconds)
        self._received = b""
        self._position = 0
        self._sequence = 0
        self._gathered = bytearray()

    def wait_forever(self) -> None:
        """From now on a client may be silent between its packets as long as it likes; not within one."""
        self._patience = None
        self._socket.settimeout(None)

    def read_command(self) -> bytes:
        """The first packet of an exchange, whose numbers begin anew."""
        self._sequence = 0
        return self.read()

    def read(self) -> bytes:
        """The client's next packet. One longer than allowed is skipped and reported as error 1153."""
        length = self._read_header(is_first=True)
        if length < LONGEST_PART and length <= self._max_packet_bytes:
            return self._take(length)
        parts: list[bytes] = []
        total = 0
        while True:
            total += length
            if total <= self._max_packet_bytes:
                parts.append(self._take(length))
            else:
                parts.clear()
                self._skip(length)
            if length < LONGEST_PART:
                break
            length = self._read_header(is_first=False)
        if total > self._max_packet_bytes:
            raise sql_error(Errno.NET_PACKET_TOO_LARGE)
        return b"".join(parts)

    def write(self, packet: bytes) -> None:
        """Add a packet to the answer."""
        start = 0
        while True:
            gathered = self._gathered
            part = packet[start : start + LONGEST_PART] if len(packet) >= LONGEST_PART else packet
            gathered += (len(part) | self._sequence << 24).to_bytes(4, "little")
            gathered += part
            self._sequence = (self._sequence + 1) & 0xFF
            if len(gathered) >= _GATHERED_BYTES:
                self.flush()
            if len(part) < LONGEST_PART:
                return
            start += LONGEST_PART

    def flush(self) -> None:
        if self._gathered:
            # A new one, since a failed send must not leave half an answer to be sent again.
            gathered, self._gathered = self._gathered, bytearray()
            try:
                self._socket.sendall(gathered)
            except OSError as error:
                raise Disconnected from error

    def shut(self) -> None:
        """Wake whoever reads or writes, from any thread; both ends find the connection closed."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster

    def close(self) -> None:
        self.shut()
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _read_header(self, *, is_first: bool) -> int:
        header = int.from_bytes(self._take(4, may_wait=is_first), "little")
        if header >> 24 != self._sequence:
            raise OutOfOrder
        self._sequence = (self._sequence + 1) & 0xFF
        return header & LONGEST_PART

    def _take(self, count: int, *, may_wait: bool = False) -> bytes:
        """The next ``count`` bytes. ``may_wait``: nothing has been begun, so the first may take its time."""
        have = len(self._received) - self._position
        if have < count:
            self._fill(count, may_wait=may_wait and have == 0)
        start, end = self._position, self._position + count
        taken = self._received[start:end]
        if end == len(self._received):
            self._received, self._position = b"", 0  # an idle connection does not keep its last packet
        else:
            self._position = end
        return taken

    def _fill(self, count: int, *, may_wait: bool) -> None:
        received = self._received[self._position :]
        self._position = 0
        try:
            if may_wait:
                received = self._receive()
            if len(received) < count:
                received = self._complete(received, count)
        except OSError as error:
            raise Disconnected from error
        self._received = received

    def _complete(self, received: bytes, count: int) -> bytes:
        gathered = bytearray(received)
        self._socket.settimeout(self._stall_seconds)
        try:
            while len(gathered) < count:
                gathered += self._receive(max(_READ_BYTES, min(count - len(gathered), 1 << 20)))
        finally:
            self._socket.settimeout(self._patience)
        return bytes(gathered)

    def _receive(self, most: int = _READ_BYTES) -> bytes:
        data = self._socket.recv(most)
        if not data:
            raise Disconnected
        return data

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self._take(min(count, 1 << 20)))
