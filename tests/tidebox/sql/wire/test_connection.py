"""What a client may do to the server, byte by byte, and what it gets back."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tests.tidebox.sql.wire.raw import DEPRECATE_EOF, LONGEST, MULTI_STATEMENTS, PLAIN, Err, Ok, RawClient
from tests.tidebox.sql.wire.script import DEADLINE_SECONDS
from tidebox.sql.wire.columns import Column
from tidebox.sql.wire.errors import Errno, sql_error
from tidebox.sql.wire.server import SqlServer
from tidebox.sql.wire.session import Affected, Prepared, Rows, Status
from tidemill.model.table import ColumnType

ID = Column("id", ColumnType.LONGLONG)
NAME = Column("name", ColumnType.VARCHAR, length=80)
ONE_ROW = Rows((ID, NAME), [(7, "seven")])
MALFORMED = Err(1835, "HY000", "Malformed communication packet.")


# Coming in


def test_root_comes_in_without_a_password(server, script):
    with RawClient(server.address) as client:
        assert client.log_in() == Ok(0, 0, 2, 0, b"")
    assert client.greeting[1:19] == b"8.0.11-TiDB-v8.5.0"


@pytest.mark.parametrize("plugin", [b"mysql_native_password", b"caching_sha2_password"])
def test_a_password_is_refused(server, plugin):
    with RawClient(server.address) as client:
        refused = client.log_in(answer=b"x" * 20, plugin=plugin)
        assert refused == Err(1045, "28000", "Access denied for user 'root'@'127.0.0.1' (using password: YES)")
        assert client.is_closed()


def test_other_users_are_refused(server):
    with RawClient(server.address) as client:
        refused = client.log_in(user=b"bob")
        assert refused == Err(1045, "28000", "Access denied for user 'bob'@'127.0.0.1' (using password: NO)")
        assert client.is_closed()


@pytest.mark.parametrize("answer", [b"", b"\0"])
def test_a_client_with_its_own_method_is_asked_to_switch(server, answer):
    with RawClient(server.address) as client:
        request = client.log_in(answer=b"secret", plugin=b"mysql_clear_password")
        assert request[:23] == b"\xfemysql_native_password\0"
        assert len(request) == 23 + 21
        client.send(answer)
        assert isinstance(client.outcome(), Ok)


def test_a_client_that_has_a_password_after_the_switch_is_refused(server):
    with RawClient(server.address) as client:
        client.log_in(plugin=b"dialog")
        client.send(b"x" * 20)
        assert client.outcome().number == 1045


def test_the_session_learns_who_has_come(server, script):
    with RawClient(server.address) as client:
        client.log_in(database=b"shop", capabilities=PLAIN | 2)
    assert script.events[0] == "use shop"
    assert (script.clients[0].user, script.clients[0].collation) == ("root", 45)
    assert script.clients[0].is_counting_matches
    assert script.clients[0].connection_id == 1


def test_an_unknown_database_ends_the_login(server, script):
    with RawClient(server.address) as client:
        assert client.log_in(database=b"nowhere") == Err(1049, "42000", "Unknown database 'nowhere'")
        assert client.is_closed()
    assert script.is_closed.wait(DEADLINE_SECONDS)


@pytest.mark.parametrize(
    ("packet", "number"),
    [
        pytest.param(b"", 1251, id="nothing"),
        pytest.param(b"\x00\x00", 1251, id="a protocol before 4.1"),
        pytest.param(struct.pack("<IIB23x", PLAIN, 0, 45), 1043, id="a request for SSL"),
        pytest.param(struct.pack("<IIB23x", PLAIN, 0, 45) + b"root\0\x20abc", 1835, id="an answer cut short"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 1251, id="a web browser"),
    ],
)
def test_a_bad_answer_to_the_greeting_ends_the_connection(server, packet, number):
    with RawClient(server.address) as client:
        client.receive()
        client.send(packet)
        assert client.outcome().number == number
        assert client.is_closed()


def test_a_client_that_says_nothing_is_dropped(script):
    server = SqlServer(script.make_session, stall_seconds=0.05)
    server.start(0)
    with RawClient(server.address) as client:
        client.receive()
        assert client.is_closed()
    server.stop()


def test_one_client_too_many_is_told_so(script):
    server = SqlServer(script.make_session, max_connections=1)
    server.start(0)
    with RawClient(server.address) as first, RawClient(server.address) as second:
        first.log_in()
        assert second.receive() == b"\xff\x10\x04Too many connections"
        assert second.is_closed()
        assert isinstance(first.command(b"\x0e"), Ok)
    server.stop()


def test_a_session_that_cannot_be_made_is_reported(caplog):
    def make_session():
        raise RuntimeError("no store")

    server = SqlServer(make_session)
    server.start(0)
    with RawClient(server.address) as client:
        assert client.log_in() == Err(1105, "HY000", "no store")
        assert client.is_closed()
    server.stop()


# Statements


def test_a_change_reports_rows_id_warnings_and_info(raw, script):
    script.answers["update t"] = Affected(3, 300, 1, "Rows matched: 3  Changed: 3  Warnings: 1")
    script.status = Status(is_autocommit=False, is_in_transaction=True)
    assert raw.query("update t;") == Ok(3, 300, 1, 1, b"\x28Rows matched: 3  Changed: 3  Warnings: 1")


@pytest.mark.parametrize("capabilities", [PLAIN, PLAIN | DEPRECATE_EOF], ids=["with EOF", "without EOF"])
def test_rows_come_with_their_columns(server, script, capabilities):
    script.answers["select"] = ONE_ROW
    with RawClient(server.address) as client:
        client.log_in(capabilities=capabilities)
        result = client.query("select")
    assert [c.names[4] for c in result.columns] == [b"id", b"name"]
    assert (result.rows, result.status) == ([b"\x017\x05seven"], 2)


def test_an_error_has_number_state_and_message(raw, script):
    script.answers["select"] = sql_error(Errno.NO_SUCH_TABLE, "shop", "t")
    assert raw.query("select") == Err(1146, "42S02", "Table 'shop.t' doesn't exist")
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_an_unforeseen_failure_is_error_1105_and_a_log_line(raw, script, caplog):
    script.answers["select"] = ZeroDivisionError("division by zero")
    assert raw.query("select") == Err(1105, "HY000", "division by zero")
    assert "statement failed unexpectedly connection=1 kind=ZeroDivisionError" in caplog.text
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_rows_that_fail_half_way_end_with_an_error(raw, script):
    def rows():
        yield (1, "one")
        raise sql_error(Errno.LOCK_WAIT_TIMEOUT)

    script.answers["select"] = lambda _: Rows((ID, NAME), rows())
    assert raw.query("select").number == 1205
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_a_value_of_the_wrong_type_ends_the_rows_with_an_error(raw, script):
    script.answers["select"] = Rows((ID,), [(1,), ("x",)])
    assert raw.query("select").number == 1105
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_an_error_of_the_sessions_own_network_does_not_end_the_connection(raw, script):
    script.answers["select"] = ConnectionResetError("store gone")
    assert raw.query("select") == Err(1105, "HY000", "store gone")
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_several_statements_give_several_results(server, script):
    script.answers.update({"a": Affected(1), "b": ONE_ROW, "c": Affected(2)})
    with RawClient(server.address) as client:
        client.log_in(capabilities=PLAIN | MULTI_STATEMENTS)
        first, second, third = client.query("a; b; c;"), client.outcome(), client.outcome()
    assert (first.rows, first.status) == (1, 10)
    assert (second.rows, second.status) == ([b"\x017\x05seven"], 10)
    assert (third.rows, third.status) == (2, 2)


def test_one_statement_may_give_several_results(raw, script):
    script.answers["call"] = [ONE_ROW, Affected(5)]
    assert raw.query("call").status == 10
    assert raw.outcome() == Ok(5, 0, 2, 0, b"")


def test_an_error_ends_several_statements(server, script):
    script.answers.update({"a": Affected(1), "b": sql_error(Errno.NO_DB_ERROR)})
    with RawClient(server.address) as client:
        client.log_in(capabilities=PLAIN | MULTI_STATEMENTS)
        assert client.query("a; b; c").status == 10
        assert client.outcome().number == 1046
        assert isinstance(client.command(b"\x0e"), Ok)
    assert [statement for statement, _ in script.asked] == ["a", "b"]


def test_several_statements_need_the_clients_consent(raw, script):
    assert raw.query("a; b").number == 8130
    assert script.asked == []
    assert raw.command(b"\x1b\0\0")[:1] == b"\xfe"
    assert raw.query("a; b").status == 10
    raw.outcome()
    assert raw.command(b"\x1b\1\0")[:1] == b"\xfe"
    assert raw.query("a; b").number == 8130


def test_a_comment_alone_is_no_statement(raw, script):
    assert isinstance(raw.query("-- nothing"), Ok)
    assert script.asked == []


def test_bytes_that_are_no_text_reach_the_session_unharmed(raw, script):
    raw.command(b"\x03insert _binary'\xff\x00\xc3'")
    statement = script.asked[0][0]
    assert statement.encode("utf-8", "surrogateescape") == b"insert _binary'\xff\x00\xc3'"


def test_loading_local_files_is_refused(raw, script):
    assert raw.query("LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t").number == 3948
    assert script.asked == []


# Prepared statements


def test_a_prepared_statement_from_its_preparation_to_its_end(raw, script):
    script.prepared["select ?, ?"] = Prepared(2, (ID, NAME))
    script.answers["select ?, ?"] = ONE_ROW
    number, columns, parameters = raw.prepare("select ?, ?")
    assert (columns, parameters) == (2, 2)
    result = raw.execute(number, b"\x00\x01\x08\x00\xfd\x00" + struct.pack("<q", -1) + b"\x02ab")
    assert result.rows == [b"\x00\x00" + struct.pack("<q", 7) + b"\x05seven"]
    assert script.asked == [("select ?, ?", [-1, "ab"])]
    raw.send(b"\x19" + struct.pack("<I", number), sequence=0)
    assert raw.execute(number).number == 1243


@pytest.mark.parametrize("capabilities", [PLAIN, PLAIN | DEPRECATE_EOF], ids=["with EOF", "without EOF"])
def test_a_prepared_change(server, script, capabilities):
    script.answers["delete"] = Affected(2)
    with RawClient(server.address) as client:
        client.log_in(capabilities=capabilities)
        number, _, _ = client.prepare("delete")
        assert client.execute(number) == Ok(2, 0, 2, 0, b"")


def test_long_data_comes_in_pieces(raw, script):
    number, _, _ = raw.prepare("insert ?")
    for piece in (b"ab", b"cd"):
        raw.send(struct.pack("<BIH", 0x18, number, 0) + piece, sequence=0)
    assert isinstance(raw.execute(number, b"\x00\x01\xfc\x00"), Ok)
    assert script.asked == [("insert ?", [b"abcd"])]
    assert raw.execute(number, b"\x00\x01\xfc\x00") == MALFORMED  # it was good for once


def test_a_reset_forgets_long_data(raw, script):
    number, _, _ = raw.prepare("insert ?")
    raw.send(struct.pack("<BIH", 0x18, number, 0) + b"old", sequence=0)
    assert isinstance(raw.command(b"\x1a" + struct.pack("<I", number)), Ok)
    raw.execute(number, b"\x00\x01\xfc\x00\x03new")
    assert script.asked == [("insert ?", [b"new"])]


@pytest.mark.parametrize(
    ("index", "size", "errno"),
    [
        pytest.param(5, 1, 1210, id="a parameter there is not"),
        pytest.param(0, 700_000, 1153, id="too much of it"),
    ],
)
def test_bad_long_data_is_reported_when_it_is_used(raw, index, size, errno):
    number, _, _ = raw.prepare("insert ?")
    for _ in range(2):
        raw.send(struct.pack("<BIH", 0x18, number, index) + bytes(size), sequence=0)
    assert raw.execute(number, b"\x00\x01\xfc\x00\x01a").number == errno
    assert isinstance(raw.execute(number, b"\x00\x01\xfc\x00\x01a"), Ok)


def test_two_statements_cannot_be_prepared_as_one(raw):
    assert raw.command(b"\x16select 1; select 2").number == 8115
    assert raw.command(b"\x16 -- nothing").number == 1065


def test_a_statement_with_more_parameters_than_can_be_numbered_is_refused(raw, script):
    script.prepared["insert"] = Prepared(65536)
    assert raw.command(b"\x16insert").number == 1390


# The other commands


def test_the_current_database_changes(raw, script):
    assert isinstance(raw.command(b"\x02shop"), Ok)
    assert raw.command(b"\x02nowhere") == Err(1049, "42000", "Unknown database 'nowhere'")
    assert script.events == ["use shop"]


def test_the_columns_of_a_table_are_listed(raw, script):
    script.prepared["SELECT * FROM `a``b`"] = Prepared(0, (ID, NAME))
    raw.send(b"\x04a`b\0na%", sequence=0)
    listed = raw.receive()
    assert b"\x04name" in listed
    assert listed[-1:] == b"\xfb"
    assert raw.receive()[:1] == b"\xfe"


def test_a_connection_is_reset(raw, script):
    number, _, _ = raw.prepare("insert ?")
    assert isinstance(raw.command(b"\x1f"), Ok)
    assert script.events == ["reset"]
    assert raw.execute(number).number == 1243


def test_a_user_changes(raw, script):
    assert isinstance(raw.command(b"\x11root\0\0shop\0\x2d\0mysql_native_password\0"), Ok)
    assert script.events == ["reset", "use shop"]
    assert len(script.clients) == 2
    assert raw.command(b"\x11bob\0\0\0\x2d\0mysql_native_password\0").number == 1045
    assert raw.is_closed()


def test_statistics_are_a_line(raw):
    raw.send(b"\x09", sequence=0)
    assert raw.receive().startswith(b"Uptime: ")


@pytest.mark.parametrize("command", [0x00, 0x05, 0x06, 0x07, 0x08, 0x0A, 0x0D, 0x12, 0x1C, 0x1E, 0x20, 0xFF])
def test_commands_we_do_not_have_are_unknown(raw, command):
    assert raw.command(bytes((command,))) == Err(1047, "08S01", "Unknown command")
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_a_client_leaves(raw, script):
    raw.send(b"\x01", sequence=0)
    assert raw.is_closed()
    assert script.is_closed.wait(DEADLINE_SECONDS)


# Packets that are too long, too short, or out of order


def test_a_packet_over_the_limit_is_an_error_and_the_next_one_is_served(raw, script):
    assert raw.command(b"\x03" + b"x" * (1 << 20)) == Err(
        1153, "08S01", "Got a packet bigger than 'max_allowed_packet' bytes"
    )
    assert isinstance(raw.command(b"\x0e"), Ok)
    assert script.asked == []


def test_a_packet_at_the_limit_is_served(raw, script):
    assert isinstance(raw.command(b"\x03" + b"x" * ((1 << 20) - 1)), Ok)
    assert len(script.asked[0][0]) == (1 << 20) - 1


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST])
def test_long_packets_go_in_parts_both_ways(script, length):
    server = SqlServer(script.make_session)
    server.start(0)
    text = Column("t", ColumnType.LONGBLOB)
    script.answers["x" * (length - 1)] = lambda _: Rows((text,), [("y" * (length - 5),)])
    with RawClient(server.address) as client:
        client.log_in(capabilities=PLAIN | DEPRECATE_EOF)
        result = client.command(b"\x03" + b"x" * (length - 1))
        assert isinstance(client.command(b"\x0e"), Ok)
    server.stop()
    size = 4 if length - 5 < 1 << 24 else 9
    assert [(len(row), row[size:] == b"y" * (length - 5)) for row in result.rows] == [(length - 5 + size, True)]


def test_a_packet_over_the_limit_in_several_parts_is_skipped_whole(raw):
    assert raw.command(b"\x03" + b"x" * (LONGEST + 10)).number == 1153
    assert isinstance(raw.command(b"\x0e"), Ok)


def test_a_packet_out_of_order_ends_the_connection(raw, script):
    raw.send(b"\x0e", sequence=5)
    raw.sequence = 0
    assert raw.outcome() == Err(1156, "08S01", "Got packets out of order")
    assert raw.is_closed()
    assert script.is_closed.wait(DEADLINE_SECONDS)


def test_a_packet_that_never_ends_is_not_waited_for(script):
    server = SqlServer(script.make_session, stall_seconds=0.2)
    server.start(0)
    with RawClient(server.address) as client:
        client.log_in()
        client.socket.sendall(b"\x10\0\0\0\x03sel")
        assert client.is_closed()
    assert script.is_closed.wait(DEADLINE_SECONDS)
    server.stop()


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"", id="an empty one"),
        pytest.param(b"\x17", id="an execution of nothing"),
        pytest.param(b"\x17\1\0\0", id="an execution cut short"),
        pytest.param(b"\x17\1\0\0\0\0\1\0\0\0\0\1\xfd\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff", id="an endless text"),
        pytest.param(b"\x1a\1", id="a reset cut short"),
        pytest.param(b"\x1b", id="an option without a value"),
        pytest.param(b"\x0c\1", id="half a connection id"),
        pytest.param(b"\x11root\0\x20abc", id="a change of user cut short"),
    ],
)
def test_a_malformed_packet_is_an_error_and_nothing_more(raw, packet):
    raw.prepare("insert ?")
    answer = raw.command(packet)
    assert answer == MALFORMED
    if packet[:1] != b"\x11":
        assert isinstance(raw.command(b"\x0e"), Ok)


@pytest.mark.parametrize(
    "packet", [b"\x18", b"\x18\1\0\0\0", b"\x19", b"\x19\xff\xff\xff\xff", b"\x18\xff\xff\xff\xff\0\0x"]
)
def test_malformed_packets_that_get_no_answer_get_none(raw, packet):
    raw.send(packet, sequence=0)
    assert isinstance(raw.command(b"\x0e"), Ok)


NO_ANSWER = {0x01, 0x18, 0x19}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(150))
@given(
    packet=st.binary(max_size=40).filter(lambda p: p[:1] not in {bytes((c,)) for c in NO_ANSWER}),
    has_statement=st.booleans(),
)
def test_any_packet_gets_an_answer(server, packet, has_statement):
    """Never a hang and never a broken connection, except that a failed change of user ends it."""
    with RawClient(server.address) as client:
        client.log_in()
        if has_statement:
            client.prepare("insert ?")
        client.send(packet, sequence=0)
        answer = client.receive()
        assert answer
        if answer[:1] == b"\xff":
            assert int.from_bytes(answer[1:3], "little") in {e.value for e in Errno}
