"""MariaDB's C library, which many drivers are built on: prepared statements and the rarer commands.

It is called as a C program would, so that its own ideas of the binary protocol are the judge of ours.
"""

import ctypes
import ctypes.util
import struct
from ctypes import POINTER, c_char_p, c_int, c_long, c_short, c_ubyte, c_uint, c_uint64, c_ulong, c_void_p
from types import TracebackType
from typing import Self

import pytest

from tidebox.sql.wire.columns import BINARY, Column
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.session import Affected, Prepared, Rows
from tidemill.model.table import ColumnFlag, ColumnType

LIBRARY = ctypes.util.find_library("mariadb")
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs MariaDB's C library: apt-get install libmariadb3")

NO_DATA = 100
MULTI_STATEMENTS = 1 << 16


class Bind(ctypes.Structure):
    """``MYSQL_BIND`` of mariadb_stmt.h."""

    _fields_ = (
        ("length", POINTER(c_ulong)),
        ("is_null", POINTER(c_ubyte)),
        ("buffer", c_void_p),
        ("error", POINTER(c_ubyte)),
        ("row_pointer", c_void_p),
        ("store", c_void_p),
        ("fetch", c_void_p),
        ("skip", c_void_p),
        ("buffer_length", c_ulong),
        ("offset", c_ulong),
        ("length_value", c_ulong),
        ("flags", c_uint),
        ("pack_length", c_uint),
        ("buffer_type", c_int),
        ("error_value", c_ubyte),
        ("is_unsigned", c_ubyte),
        ("long_data_used", c_ubyte),
        ("is_null_value", c_ubyte),
        ("extension", c_void_p),
    )


class Time(ctypes.Structure):
    """``MYSQL_TIME``."""

    _fields_ = (
        *((name, c_uint) for name in ("year", "month", "day", "hour", "minute", "second")),
        ("micros", c_ulong),
        ("is_negative", c_ubyte),
        ("kind", c_int),
    )

    def parts(self) -> tuple[int, ...]:
        return (self.year, self.month, self.day, self.hour, self.minute, self.second, self.micros, self.is_negative)


class Connector:
    """A connection of the C library; a failing call raises with its number and text."""

    def __init__(self, server) -> None:
        self.c = ctypes.CDLL(LIBRARY)
        for name in ("mysql_init", "mysql_stmt_init", "mysql_list_fields", "mysql_store_result"):
            getattr(self.c, name).restype = c_void_p
        for name in ("mysql_error", "mysql_stmt_error", "mysql_stat", "mysql_sqlstate", "mysql_get_server_info"):
            getattr(self.c, name).restype = c_char_p
        for name in ("mysql_affected_rows", "mysql_insert_id", "mysql_stmt_affected_rows", "mysql_num_rows"):
            getattr(self.c, name).restype = c_uint64
        self.c.mysql_real_connect.restype = c_void_p
        self.mysql = c_void_p(self.c.mysql_init(None))
        port = int(server.address.rsplit(":", 1)[1])
        connected = self.c.mysql_real_connect(
            self.mysql, b"127.0.0.1", b"root", b"", b"shop", port, None, c_ulong(MULTI_STATEMENTS)
        )
        assert connected, self.c.mysql_error(self.mysql)
        self._kept: list[object] = []  # what the library still points to

    def bind(self, kind: ColumnType, value: ctypes._SimpleCData | ctypes.Structure | ctypes.Array) -> Bind:
        """A parameter or a column that lives in ``value``."""
        self._kept.append(value)
        size = ctypes.sizeof(value)
        made = Bind(buffer=ctypes.addressof(value), buffer_length=size, length_value=size, buffer_type=kind)
        made.is_unsigned = isinstance(value, c_ubyte | c_uint64)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self.c.mysql_close(self.mysql)

    def call(self, name: str, *arguments: object) -> None:
        assert getattr(self.c, name)(self.mysql, *arguments) == 0, self.c.mysql_error(self.mysql)

    def prepare(self, sql: bytes) -> c_void_p:
        statement = c_void_p(self.c.mysql_stmt_init(self.mysql))
        self.on(statement, "mysql_stmt_prepare", sql, c_ulong(len(sql)))
        return statement

    def on(self, statement: c_void_p, name: str, *arguments: object) -> None:
        assert getattr(self.c, name)(statement, *arguments) == 0, self.c.mysql_stmt_error(statement)


@pytest.fixture
def connector(server):
    with Connector(server) as connected:
        yield connected


def test_parameters_of_every_type_arrive(connector, script):
    statement = connector.prepare(b"insert ?, ?, ?, ?, ?, ?, ?, ?, ?, ?")
    moment = Time(2026, 2, 3, 4, 5, 6, 7, 0, 1)
    span = Time(0, 0, 1, 2, 3, 4, 0, 1, 2)
    binds = (Bind * 10)(
        connector.bind(ColumnType.TINY, c_ubyte(255)),
        connector.bind(ColumnType.SHORT, c_short(-2)),
        connector.bind(ColumnType.LONG, c_int(-3)),
        connector.bind(ColumnType.LONGLONG, c_long(-4)),
        connector.bind(ColumnType.LONGLONG, c_uint64(2**64 - 1)),
        connector.bind(ColumnType.DOUBLE, ctypes.c_double(0.5)),
        connector.bind(ColumnType.STRING, (ctypes.c_char * 3)(*"ü!".encode())),
        connector.bind(ColumnType.BLOB, (ctypes.c_char * 2)(b"\0", b"\xff")),
        connector.bind(ColumnType.DATETIME, moment),
        connector.bind(ColumnType.DURATION, span),
    )
    connector.on(statement, "mysql_stmt_bind_param", binds)
    connector.on(statement, "mysql_stmt_execute")
    connector.on(statement, "mysql_stmt_close")
    values = [255, -2, -3, -4, 2**64 - 1, 0.5, "ü!", b"\0\xff", "2026-02-03 04:05:06.000007", "-26:03:04"]
    assert script.asked[-1] == ("insert ?, ?, ?, ?, ?, ?, ?, ?, ?, ?", values)


def test_a_null_arrives_and_types_are_remembered(connector, script):
    script.answers["update ?"] = lambda parameters: Affected(5 if parameters == [None] else 1)
    statement = connector.prepare(b"update ?")
    value, is_null = c_int(7), c_ubyte(1)
    binds = (Bind * 1)(connector.bind(ColumnType.LONG, value))
    binds[0].is_null = ctypes.pointer(is_null)
    connector.on(statement, "mysql_stmt_bind_param", binds)
    connector.on(statement, "mysql_stmt_execute")
    assert connector.c.mysql_stmt_affected_rows(statement) == 5
    is_null.value = 0
    connector.on(statement, "mysql_stmt_execute")
    connector.on(statement, "mysql_stmt_close")
    assert [parameters for _, parameters in script.asked[-2:]] == [[None], [7]]


def test_long_data_arrives_in_pieces(connector, script):
    statement = connector.prepare(b"insert ?")
    connector.on(statement, "mysql_stmt_bind_param", (Bind * 1)(Bind(buffer_type=ColumnType.BLOB)))
    for piece in (b"ab", b"cd"):
        connector.on(statement, "mysql_stmt_send_long_data", c_uint(0), piece, c_ulong(2))
    connector.on(statement, "mysql_stmt_execute")
    connector.on(statement, "mysql_stmt_close")
    assert script.asked[-1] == ("insert ?", [b"abcd"])


COLUMNS = (
    Column("tiny", ColumnType.TINY),
    Column("big", ColumnType.LONGLONG, ColumnFlag.UNSIGNED),
    Column("single", ColumnType.FLOAT),
    Column("decimal", ColumnType.NEWDECIMAL, length=12, decimals=2),
    Column("text", ColumnType.VARCHAR, length=80),
    Column("blob", ColumnType.BLOB, collation=BINARY),
    Column("moment", ColumnType.DATETIME, decimals=6),
    Column("span", ColumnType.DURATION),
)


def test_rows_of_a_prepared_statement_arrive(connector, script):
    row = (-1, 2**64 - 1, 0.5, "-1.50", "ü", b"\0\xff", "2026-02-03 04:05:06.000007", "-26:03:04")
    script.prepared["select"] = Prepared(0, COLUMNS)
    script.answers["select"] = Rows(COLUMNS, [row, (None,) * len(COLUMNS)])
    numbers = [ctypes.c_byte(), c_uint64(), ctypes.c_float()]
    texts = [ctypes.create_string_buffer(20) for _ in range(3)]
    moment, span = Time(), Time()
    kinds = (ColumnType.TINY, ColumnType.LONGLONG, ColumnType.FLOAT, *[ColumnType.STRING] * 3, ColumnType.DATETIME)
    places = [*numbers, *texts, moment, span]
    binds = (Bind * 8)(
        *(connector.bind(kind, place) for kind, place in zip((*kinds, ColumnType.DURATION), places, strict=True))
    )
    nulls = (c_ubyte * 8)()
    lengths = (c_ulong * 8)()
    for index in range(8):
        binds[index].is_null = ctypes.cast(ctypes.addressof(nulls) + index, POINTER(c_ubyte))
        binds[index].length = ctypes.cast(ctypes.addressof(lengths) + 8 * index, POINTER(c_ulong))
    statement = connector.prepare(b"select")
    connector.on(statement, "mysql_stmt_execute")
    connector.on(statement, "mysql_stmt_bind_result", binds)
    connector.on(statement, "mysql_stmt_fetch")
    assert [number.value for number in numbers] == [-1, 2**64 - 1, 0.5]
    assert [t.raw[: lengths[3 + i]] for i, t in enumerate(texts)] == [b"-1.50", "ü".encode(), b"\0\xff"]
    assert moment.parts() == (2026, 2, 3, 4, 5, 6, 7, 0)
    assert (span.day * 24 + span.hour, *span.parts()[4:]) == (26, 3, 4, 0, 1)
    assert not any(nulls)
    connector.on(statement, "mysql_stmt_fetch")
    assert all(nulls)
    assert connector.c.mysql_stmt_fetch(statement) == NO_DATA
    connector.on(statement, "mysql_stmt_close")


def test_a_prepared_statement_that_fails_leaves_the_connection_usable(connector, script):
    script.answers["update"] = sql_error(Errno.WRITE_CONFLICT, 1, 2, 3, "k", "", "", "", "Optimistic")
    statement = connector.prepare(b"update")
    assert connector.c.mysql_stmt_execute(statement) != 0
    assert connector.c.mysql_stmt_errno(statement) == 9007
    connector.on(statement, "mysql_stmt_close")
    connector.call("mysql_ping")


def test_the_rarer_commands(connector, script):
    connector.call("mysql_ping")
    assert connector.c.mysql_get_server_info(connector.mysql) == b"8.0.11-TiDB-v8.5.0"
    assert connector.c.mysql_stat(connector.mysql).startswith(b"Uptime: ")
    connector.call("mysql_select_db", b"shop")
    connector.call("mysql_set_server_option", 1)
    connector.call("mysql_change_user", b"root", b"", b"shop")
    connector.call("mysql_reset_connection")
    assert script.events == ["use shop", "use shop", "reset", "use shop", "reset"]
    assert connector.c.mysql_select_db(connector.mysql, b"nowhere") != 0
    assert connector.c.mysql_errno(connector.mysql) == 1049


def test_the_columns_of_a_table_are_listed(connector, script):
    script.prepared["SELECT * FROM `t`"] = Prepared(0, COLUMNS)
    fields = c_void_p(connector.c.mysql_list_fields(connector.mysql, b"t", None))
    assert connector.c.mysql_num_fields(fields) == len(COLUMNS)
    connector.c.mysql_free_result(fields)


def test_several_results(connector, script):
    script.answers.update({"a": Affected(3, 9), "b": Rows(COLUMNS[:1], [(1,), (2,)])})
    connector.call("mysql_query", b"a; b")
    assert connector.c.mysql_affected_rows(connector.mysql) == 3
    assert connector.c.mysql_insert_id(connector.mysql) == 9
    connector.call("mysql_next_result")
    result = c_void_p(connector.c.mysql_store_result(connector.mysql))
    assert connector.c.mysql_num_rows(result) == 2
    connector.c.mysql_free_result(result)
    assert connector.c.mysql_next_result(connector.mysql) == -1


def test_the_layout_of_the_librarys_structures():
    """Where these differ, the tests above would read and write the wrong places."""
    assert ctypes.sizeof(Bind) == 112
    assert struct.calcsize("@IIIIIILBi") == ctypes.sizeof(Time)
