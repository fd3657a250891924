"""The bytes of the MySQL protocol: integers and strings of it, and the small packets that end an answer.

What clients send is read with ``Reader``, which never looks past the end of a packet.
"""

import struct
from enum import IntFlag
from typing import Final

from tidebox.sql.wire.errors import Errno, SqlError, sql_error

_OK_TAIL = struct.Struct("<HH")
_ERR = struct.Struct("<BH")
_EOF = struct.Struct("<BHH")
_SHORT = tuple(bytes((n,)) for n in range(251))


class Capability(IntFlag):
    LONG_PASSWORD = 1
    FOUND_ROWS = 1 << 1
    LONG_FLAG = 1 << 2
    CONNECT_WITH_DB = 1 << 3
    LOCAL_FILES = 1 << 7
    IGNORE_SPACE = 1 << 8
    PROTOCOL_41 = 1 << 9
    INTERACTIVE = 1 << 10
    SSL = 1 << 11
    TRANSACTIONS = 1 << 13
    SECURE_CONNECTION = 1 << 15
    MULTI_STATEMENTS = 1 << 16
    MULTI_RESULTS = 1 << 17
    PS_MULTI_RESULTS = 1 << 18
    PLUGIN_AUTH = 1 << 19
    CONNECT_ATTRS = 1 << 20
    PLUGIN_AUTH_LENENC_DATA = 1 << 21
    DEPRECATE_EOF = 1 << 24


class ServerStatus(IntFlag):
    IN_TRANSACTION = 1
    AUTOCOMMIT = 2
    MORE_RESULTS = 8
    NO_BACKSLASH_ESCAPES = 512


def malformed() -> SqlError:
    return sql_error(Errno.MALFORMED_PACKET)


def integer(value: int) -> bytes:
    """A length-encoded integer."""
    if value < 251:
        return _SHORT[value]
    if value < 1 << 16:
        return b"\xfc" + value.to_bytes(2, "little")
    if value < 1 << 24:
        return b"\xfd" + value.to_bytes(3, "little")
    return b"\xfe" + value.to_bytes(8, "little")


def text(value: bytes) -> bytes:
    """A length-encoded string."""
    return integer(len(value)) + value


def ok(
    status: int, rows: int = 0, last_insert_id: int = 0, warnings: int = 0, info: str = "", *, is_eof: bool = False
) -> bytes:
    """An OK packet; as ``is_eof`` the one that ends rows for clients with DEPRECATE_EOF."""
    head = b"\xfe" if is_eof else b"\x00"
    packet = head + integer(rows) + integer(last_insert_id) + _OK_TAIL.pack(status, min(warnings, 0xFFFF))
    return packet + text(info.encode("utf-8", "surrogateescape")) if info else packet


def eof(status: int, warnings: int = 0) -> bytes:
    return _EOF.pack(0xFE, min(warnings, 0xFFFF), status)


def err(error: SqlError, *, has_state: bool = True) -> bytes:
    """An ERR packet. Without SQLSTATE as long as the client has not said which protocol it speaks."""
    message = error.message.encode("utf-8", "surrogateescape")
    state = b"#" + error.sqlstate.encode("ascii") if has_state else b""
    return _ERR.pack(0xFF, error.number) + state + message


class Reader:
    """Reads one packet from front to back; whatever is missing is a malformed packet."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._data)

    def take(self, count: int) -> bytes:
        start = self._position
        end = start + count
        if end > len(self._data):
            raise malformed()
        self._position = end
        return self._data[start:end]

    def rest(self) -> bytes:
        start, self._position = self._position, len(self._data)
        return self._data[start:]

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little", signed=True)

    def integer(self) -> int:
        """A length-encoded integer; NULL and 0xFF are none."""
        first = self.unsigned(1)
        if first < 251:
            return first
        size = _SIZES.get(first)
        if size is None:
            raise malformed()
        return self.unsigned(size)

    def text(self) -> bytes:
        """A length-encoded string."""
        return self.take(self.integer())

    def until_nul(self) -> bytes:
        """Up to a NUL, which is consumed; or up to the end, since many clients leave out the last one."""
        end = self._data.find(b"\0", self._position)
        if end < 0:
            return self.rest()
        value = self._data[self._position : end]
        self._position = end + 1
        return value


_SIZES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
