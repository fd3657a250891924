"""The prepared statements of one connection, known to the client by number."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidebox.sql.wire.columns import BINARY, Column, definition
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.packets import Reader
from tidebox.sql.wire.parameters import ParameterType, read_parameters
from tidebox.sql.wire.session import Prepared
from tidemill.model.table import ColumnType

MAX_STATEMENTS: Final = 16382  # a connection; MySQL's default for a whole server
MAX_PARAMETERS: Final = 65535
_HEAD = struct.Struct("<BIHHxH")
_PARAMETER = definition(Column("?", ColumnType.VARSTRING, collation=BINARY, length=0, decimals=0))


@dataclass(slots=True)
class _Statement:
    text: str
    parameter_count: int
    types: Sequence[ParameterType] | None = None
    long_data: dict[int, bytearray] = field(default_factory=dict)
    failure: SqlError | None = None  # of long data, which gets no answer of its own


class PreparedStatements:
    def __init__(self, max_long_data_bytes: int) -> None:
        self._max_long_data_bytes = max_long_data_bytes
        self._statements: dict[int, _Statement] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._statements)

    def check_room(self) -> None:
        """Raise 1461 when there are as many as there may be."""
        if len(self._statements) >= MAX_STATEMENTS:
            raise sql_error(Errno.MAX_PREPARED_STMT_COUNT_REACHED, MAX_STATEMENTS)

    def add(self, text: str, prepared: Prepared) -> int:
        if prepared.parameter_count > MAX_PARAMETERS:
            raise sql_error(Errno.PS_MANY_PARAM)
        self._last_number += 1
        self._statements[self._last_number] = _Statement(text, prepared.parameter_count)
        return self._last_number

    def clear(self) -> None:
        self._statements.clear()

    def read_execution(self, body: bytes) -> tuple[str, list[object]]:
        """COM_STMT_EXECUTE: the statement's text and its parameters' values.

        The wish for a cursor is passed over: the rows follow at once, which clients must expect anyway.
        """
        reader = Reader(body)
        statement = self._find(reader.unsigned(4), "EXECUTE")
        reader.take(5)  # the kind of cursor, and a count that is always 1
        long_data = {index: bytes(data) for index, data in statement.long_data.items()}
        failure = statement.failure
        statement.long_data, statement.failure = {}, None
        if failure is not None:
            raise failure
        values, statement.types = read_parameters(reader, statement.parameter_count, statement.types, long_data)
        return statement.text, values

    def add_long_data(self, body: bytes) -> None:
        """COM_STMT_SEND_LONG_DATA: a piece of one parameter. Not answered, so what is wrong waits for EXECUTE."""
        number, index, data = body[:4], int.from_bytes(body[4:6], "little"), body[6:]
        statement = self._statements.get(int.from_bytes(number, "little")) if len(body) >= 6 else None
        if statement is None:
            return
        if index >= statement.parameter_count:
            statement.failure = sql_error(Errno.WRONG_ARGUMENTS, "mysqld_stmt_send_long_data")
        elif sum(map(len, statement.long_data.values())) + len(data) > self._max_long_data_bytes:
            statement.long_data.clear()
            statement.failure = sql_error(Errno.NET_PACKET_TOO_LARGE)
        elif statement.failure is None:
            statement.long_data.setdefault(index, bytearray()).extend(data)

    def reset(self, body: bytes) -> None:
        """COM_STMT_RESET: forget what long data has come."""
        statement = self._find(Reader(body).unsigned(4), "RESET")
        statement.long_data, statement.failure = {}, None

    def close(self, body: bytes) -> None:
        """COM_STMT_CLOSE. Not answered."""
        self._statements.pop(int.from_bytes(body[:4], "little"), None)

    def _find(self, number: int, command: str) -> _Statement:
        statement = self._statements.get(number)
        if statement is None:
            raise sql_error(Errno.UNKNOWN_STMT_HANDLER, number, command)
        return statement


def prepare_answer(number: int, prepared: Prepared) -> Iterator[bytes | None]:
    """The packets that answer COM_STMT_PREPARE; None where a list of columns ends."""
    yield _HEAD.pack(0, number, len(prepared.columns), prepared.parameter_count, 0)
    if prepared.parameter_count:
        yield from [_PARAMETER] * prepared.parameter_count
        yield None
    if prepared.columns:
        yield from map(definition, prepared.columns)
        yield None
