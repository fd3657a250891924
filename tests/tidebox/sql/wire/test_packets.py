"""The bytes of the protocol, against vectors from its documentation and from captures of real servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidebox.sql.wire.raw import parse_definition
from tidebox.sql.wire import handshake
from tidebox.sql.wire.columns import BINARY, NULL_TYPE, UTF8MB4_BIN, Column, column_of, definition
from tidebox.sql.wire.errors import Errno, SqlError, sql_error
from tidebox.sql.wire.handshake import Login, Verdict
from tidebox.sql.wire.packets import Reader, eof, err, integer, ok, text
from tidemill.model.table import ColumnFlag, ColumnInfo, ColumnType


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (250, "fa"),
        (251, "fcfb00"),
        (65535, "fcffff"),
        (65536, "fd000001"),
        (16777215, "fdffffff"),
        (16777216, "fe0000000100000000"),
        (2**64 - 1, "feffffffffffffffff"),
    ],
)
def test_length_encoded_integers(value, encoded):
    assert integer(value).hex() == encoded
    assert Reader(bytes.fromhex(encoded)).integer() == value


@given(st.integers(0, 2**64 - 1))
def test_length_encoded_integers_read_back(value):
    assert Reader(integer(value)).integer() == value


@pytest.mark.parametrize("packet", ["fb", "ff", "fc01", "fe00", ""])
def test_a_truncated_integer_is_a_malformed_packet(packet):
    with pytest.raises(SqlError, match="1835"):
        Reader(bytes.fromhex(packet)).integer()


def test_a_string_longer_than_its_packet_is_a_malformed_packet():
    with pytest.raises(SqlError, match="1835"):
        Reader(b"\x05abc").text()


@pytest.mark.parametrize(
    ("packet", "encoded"),
    [
        pytest.param(ok(2), "00000002000000", id="nothing happened"),
        pytest.param(ok(2, rows=1, last_insert_id=300), "0001fc2c0102000000", id="a row inserted"),
        pytest.param(ok(3, warnings=2, info="ab"), "00000003000200026162", id="in a transaction"),
        pytest.param(ok(34, is_eof=True), "fe000022000000", id="the end of rows, newer clients"),
        pytest.param(eof(2, 1), "fe01000200", id="the end of rows, older clients"),
        pytest.param(
            err(sql_error(Errno.NO_DB_ERROR)),
            "ff1604233344303030" + b"No database selected".hex(),
            id="an error",
        ),
        pytest.param(
            err(sql_error(Errno.CON_COUNT_ERROR), has_state=False),
            "ff1004" + b"Too many connections".hex(),
            id="an error before the client has said who it is",
        ),
    ],
)
def test_answers(packet, encoded):
    assert packet.hex() == encoded


def test_more_warnings_than_fit_are_as_many_as_fit():
    assert ok(2, warnings=70000)[-2:] == b"\xff\xff"


def test_the_greeting():
    salt = b"abcdefghijklmnopqrst"
    assert handshake.greeting(7, salt) == (
        b"\x0a8.0.11-TiDB-v8.5.0\0" + b"\x07\0\0\0" + b"abcdefgh\0"
        b"\x0f\xa7"
        + b"\x2e"
        + b"\x02\x00"
        + b"\x3f\x01"
        + b"\x15"
        + bytes(10)
        + b"ijklmnopqrst\0mysql_native_password\0"
    )


def test_salts_differ_and_hold_no_nul():
    salts = {handshake.new_salt() for _ in range(50)}
    assert len(salts) == 50
    assert all(len(salt) == 20 and 0 not in salt for salt in salts)


@pytest.mark.parametrize(
    ("login", "verdict"),
    [
        pytest.param(("root", b"", "mysql_native_password"), Verdict.ADMIT, id="root without a password"),
        pytest.param(("root", b"", "caching_sha2_password"), Verdict.ADMIT, id="the newer method"),
        pytest.param(("root", b"\0", "caching_sha2_password"), Verdict.ADMIT, id="an empty password as one NUL"),
        pytest.param(("root", b"", ""), Verdict.ADMIT, id="a client that knows no methods"),
        pytest.param(("root", b"x" * 20, "mysql_native_password"), Verdict.REFUSE, id="a password"),
        pytest.param(("root", b"x" * 32, "caching_sha2_password"), Verdict.REFUSE, id="a password, newer method"),
        pytest.param(("root", b"secret", "mysql_clear_password"), Verdict.SWITCH, id="an unknown method"),
        pytest.param(("bob", b"", "mysql_native_password"), Verdict.REFUSE, id="somebody else"),
        pytest.param(("", b"", "mysql_native_password"), Verdict.REFUSE, id="nobody"),
    ],
)
def test_who_may_come_in(login, verdict):
    user, answer, plugin = login
    assert handshake.judge(Login(0, 45, user, answer, plugin=plugin)) is verdict


INT = Column("id", ColumnType.LONG, ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY, table="a", original_table="t",
             original_name="id", database="shop")  # fmt: skip


def test_a_column_definition():
    assert definition(INT) == (
        b"\x03def\x04shop\x01a\x01t\x02id\x02id"
        + b"\x0c"
        + b"\x3f\x00"
        + b"\x0b\0\0\0"
        + b"\x03"
        + b"\x03\0"
        + b"\0\0\0"
    )


def test_a_listed_column_ends_with_its_default():
    assert definition(Column("a", ColumnType.LONG, default="7"), is_listed=True)[-2:] == b"\x017"
    assert definition(Column("a", ColumnType.LONG), is_listed=True)[-1:] == b"\xfb"


@pytest.mark.parametrize(
    ("column", "shown"),  # type, length, collation, flags, decimals
    [
        (Column("c", ColumnType.TINY), (1, 4, 63, 128, 0)),
        (Column("c", ColumnType.LONGLONG, ColumnFlag.UNSIGNED), (8, 20, 63, 160, 0)),
        (Column("c", ColumnType.DOUBLE), (5, 22, 63, 128, 31)),
        (Column("c", ColumnType.NEWDECIMAL, length=12, decimals=2), (246, 12, 63, 128, 2)),
        (Column("c", ColumnType.DATETIME, decimals=6), (12, 26, 63, 128, 6)),
        (Column("c", ColumnType.DURATION), (11, 10, 63, 128, 0)),
        (Column("c", ColumnType.VARCHAR, length=80, decimals=0), (253, 80, 46, 0, 0)),
        (Column("c", ColumnType.VARCHAR, collation=BINARY, length=20, decimals=0), (253, 20, 63, 128, 0)),
        (Column("c", ColumnType.ENUM, length=4, decimals=0), (254, 4, 46, 256, 0)),
        (Column("c", ColumnType.SET, length=4, decimals=0), (254, 4, 46, 2048, 0)),
        (Column("c", ColumnType.LONGBLOB), (251, 2**32 - 1, 46, 0, 0)),
        (Column("c", ColumnType.TINYBLOB, collation=BINARY), (249, 255, 63, 128, 0)),
        (Column("c", ColumnType.BIT, length=9), (16, 9, 63, 160, 0)),
        (Column("c", ColumnType.JSON), (245, 2**32 - 1, 63, 128, 0)),
        (Column("c", ColumnType.VECTOR, ColumnFlag.BINARY), (251, 2**32 - 1, 46, 0, 0)),
        (Column("c", NULL_TYPE), (6, 0, 63, 128, 0)),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else "",
)
def test_what_clients_are_told_of_a_type(column, shown):
    told = parse_definition(definition(column))
    assert (told.type, told.length, told.collation, told.flags, told.decimals) == shown


def column_info(kind: ColumnType, flen: int, decimal: int, charset: str = "binary") -> ColumnInfo:
    return ColumnInfo(1, "c", 0, kind, ColumnFlag.NOT_NULL, flen, decimal, charset, f"{charset}_bin", default="x")


@pytest.mark.parametrize(
    ("info", "length", "collation", "decimals"),
    [
        pytest.param(column_info(ColumnType.LONG, 11, 0), 11, BINARY, 0, id="int"),
        pytest.param(column_info(ColumnType.NEWDECIMAL, 10, 2), 12, BINARY, 2, id="decimal: a sign and a point"),
        pytest.param(column_info(ColumnType.NEWDECIMAL, 10, 0), 11, BINARY, 0, id="decimal without a point"),
        pytest.param(column_info(ColumnType.VARCHAR, 20, -1, "utf8mb4"), 80, UTF8MB4_BIN, 31, id="varchar in bytes"),
        pytest.param(column_info(ColumnType.VARCHAR, 20, -1, "latin1"), 20, UTF8MB4_BIN, 31, id="latin1 goes as UTF-8"),
        pytest.param(column_info(ColumnType.VARCHAR, 20, -1), 20, BINARY, 31, id="varbinary"),
        pytest.param(column_info(ColumnType.DURATION, 10, -1), 10, BINARY, 0, id="time"),
        pytest.param(column_info(ColumnType.DOUBLE, 22, -1), 22, BINARY, 31, id="double"),
    ],
)
def test_a_tables_column_is_told_as_tidb_does(info, length, collation, decimals):
    column = column_of(info, database="shop", table="t", alias="a", name="n")
    assert (column.length, column.collation, column.decimals) == (length, collation, decimals)
    assert (column.database, column.original_table, column.table) == ("shop", "t", "a")
    assert (column.original_name, column.name, column.default) == ("c", "n", "x")


def test_a_long_name_is_cut_between_characters():
    told = parse_definition(definition(Column("x" + "語" * 100, ColumnType.LONG)))
    assert told.names[4].decode() == "x" + "語" * 85


def test_text_carries_its_length():
    assert text(b"abc") == b"\x03abc"
