"""A client of the MySQL protocol that does what no library lets one do: every byte is the test's."""

import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.tidebox.sql.wire.script import DEADLINE_SECONDS

PLAIN = 0x0008_A205 & ~8  # LONG_PASSWORD, LONG_FLAG, PROTOCOL_41, TRANSACTIONS, SECURE_CONNECTION, PLUGIN_AUTH
WITH_DB = 8
MULTI_STATEMENTS = 1 << 16
DEPRECATE_EOF = 1 << 24
LONGEST = 0xFFFFFF


@dataclass(frozen=True)
class Ok:
    rows: int
    last_insert_id: int
    status: int
    warnings: int
    info: bytes


@dataclass(frozen=True)
class Err:
    number: int
    sqlstate: str
    message: str


@dataclass(frozen=True)
class Definition:
    names: tuple[bytes, ...]  # catalog, database, table, original table, name, original name
    collation: int
    length: int
    type: int
    flags: int
    decimals: int


@dataclass(frozen=True)
class ResultSet:
    columns: list[Definition]
    rows: list[bytes]
    status: int


class RawClient:
    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS)
        self.sequence = 0
        self.capabilities = PLAIN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self.socket.close()

    # Packets

    def send(self, payload: bytes, sequence: int | None = None) -> None:
        self.sequence = self.sequence if sequence is None else sequence
        while True:
            part, payload = payload[:LONGEST], payload[LONGEST:]
            self.socket.sendall(len(part).to_bytes(3, "little") + bytes((self.sequence & 0xFF,)) + part)
            self.sequence += 1
            if len(part) < LONGEST:
                return

    def receive(self) -> bytes:
        payload = b""
        while True:
            header = self._exactly(4)
            assert header[3] == self.sequence & 0xFF, "the server's packets are numbered in sequence"
            self.sequence += 1
            length = int.from_bytes(header[:3], "little")
            payload += self._exactly(length)
            if length < LONGEST:
                return payload

    def is_closed(self) -> bool:
        """Whether the server has ended the connection, with nothing left unsaid."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError("the server closed the connection in the middle of an answer")
            data += piece
        return bytes(data)

    # Exchanges

    def log_in(
        self,
        user: bytes = b"root",
        answer: bytes = b"",
        database: bytes | None = None,
        capabilities: int = PLAIN,
        plugin: bytes = b"mysql_native_password",
    ) -> Ok | Err | bytes:
        self.greeting = self.receive()
        self.capabilities = capabilities | (WITH_DB if database is not None else 0)
        packet = struct.pack("<IIB23x", self.capabilities, 1 << 24, 45) + user + b"\0" + bytes((len(answer),)) + answer
        if database is not None:
            packet += database + b"\0"
        self.send(packet + plugin + b"\0")
        return self.outcome()

    def command(self, payload: bytes) -> Ok | Err | ResultSet | bytes:
        self.send(payload, sequence=0)
        return self.outcome()

    def query(self, sql: str) -> Ok | Err | ResultSet | bytes:
        return self.command(b"\x03" + sql.encode())

    def outcome(self) -> Ok | Err | ResultSet | bytes:
        packet = self.receive()
        match packet[:1]:
            case b"\x00":
                return parse_ok(packet)
            case b"\xff":
                return parse_err(packet)
            case b"\xfe":
                return packet
            case _:
                return self._result_set(packet[0])

    def _result_set(self, column_count: int) -> ResultSet | Err:
        columns = [parse_definition(self.receive()) for _ in range(column_count)]
        if not self.capabilities & DEPRECATE_EOF:
            assert self.receive()[:1] == b"\xfe"
        rows = []
        while True:
            packet = self.receive()
            if packet[:1] == b"\xff":
                return parse_err(packet)
            if packet[:1] == b"\xfe" and len(packet) < LONGEST:
                ended = parse_ok(packet).status if self.capabilities & DEPRECATE_EOF else parse_eof(packet)
                return ResultSet(columns, rows, ended)
            rows.append(packet)

    def prepare(self, sql: str) -> tuple[int, int, int]:
        """Statement id, number of columns, number of parameters."""
        self.send(b"\x16" + sql.encode(), sequence=0)
        head = self.receive()
        assert head[0] == 0, parse_err(head)
        number, columns, parameters = struct.unpack_from("<IHH", head, 1)
        for count in (parameters, columns):
            for _ in range(count):
                parse_definition(self.receive())
            if count and not self.capabilities & DEPRECATE_EOF:
                assert self.receive()[:1] == b"\xfe"
        return number, columns, parameters

    def execute(self, number: int, parameters: bytes = b"") -> Ok | Err | ResultSet | bytes:
        return self.command(struct.pack("<BIBI", 0x17, number, 0, 1) + parameters)


def parse_ok(packet: bytes) -> Ok:
    rows, at = _integer(packet, 1)
    last_insert_id, at = _integer(packet, at)
    status, warnings = struct.unpack_from("<HH", packet, at)
    return Ok(rows, last_insert_id, status, warnings, packet[at + 4 :])


def parse_eof(packet: bytes) -> int:
    assert len(packet) == 5
    return int(struct.unpack("<BHH", packet)[2])


def parse_err(packet: bytes) -> Err:
    assert packet[3:4] == b"#"
    return Err(int.from_bytes(packet[1:3], "little"), packet[4:9].decode(), packet[9:].decode())


def parse_definition(packet: bytes) -> Definition:
    names, at = [], 0
    for _ in range(6):
        length, at = _integer(packet, at)
        names.append(packet[at : at + length])
        at += length
    assert packet[at] == 12
    return Definition(tuple(names), *struct.unpack_from("<HIBHB", packet, at + 1))


def _integer(packet: bytes, at: int) -> tuple[int, int]:
    first = packet[at]
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    return (int.from_bytes(packet[at + 1 : at + 1 + size], "little"), at + 1 + size) if size else (first, at + 1)
