"""Many clients at once, clients that are killed or go away, and the end of the server."""

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidebox.sql.wire.raw import Err, Ok, RawClient, ResultSet
from tests.tidebox.sql.wire.script import DEADLINE_SECONDS, Script, ScriptedSession
from tidebox.sql.wire.columns import Column
from tidebox.sql.wire.errors import SqlError
from tidebox.sql.wire.server import SqlServer
from tidebox.sql.wire.session import Affected, Rows
from tidemill.errors import UsageError
from tidemill.model.table import ColumnType

ID = Column("id", ColumnType.LONGLONG)
NAME = Column("name", ColumnType.VARCHAR, length=80)


# Killing, and being killed


def start_hanging(client: RawClient, script: Script) -> None:
    script.answers["hang"] = script.hang
    client.send(b"\x03hang", sequence=0)
    assert script.is_running.wait(DEADLINE_SECONDS)


def test_a_client_that_goes_in_the_middle_of_a_statement_leaves_nothing_behind(server, script):
    with RawClient(server.address) as client:
        client.log_in()
        start_hanging(client, script)
    assert script.is_closed.wait(DEADLINE_SECONDS)
    assert set(script.events) == {"interrupt", "close"}


def test_a_client_that_goes_in_the_middle_of_its_rows_leaves_nothing_behind(server, script):
    is_given_up = threading.Event()

    def rows():
        try:
            while True:
                yield (1, "x" * 10_000)
        finally:
            is_given_up.set()

    script.answers["select"] = lambda _: Rows((ID, NAME), rows())
    with RawClient(server.address) as client:
        client.log_in()
        client.send(b"\x03select", sequence=0)
        client.receive()
    assert is_given_up.wait(DEADLINE_SECONDS)
    assert script.is_closed.wait(DEADLINE_SECONDS)


@pytest.mark.parametrize("kill", ["KILL QUERY 1", "kill tidb query 1"])
def test_a_statement_is_killed_and_its_connection_lives(server, script, kill):
    with RawClient(server.address) as victim, RawClient(server.address) as other:
        victim.log_in()
        other.log_in()
        start_hanging(victim, script)
        assert isinstance(other.query(kill), Ok)
        assert victim.outcome() == Err(1317, "70100", "Query execution was interrupted")
        assert isinstance(victim.command(b"\x0e"), Ok)


@pytest.mark.parametrize("packet", [b"\x03KILL 1", b"\x03kill connection 1;", b"\x0c\1\0\0\0"])
def test_a_connection_is_killed(server, script, packet):
    with RawClient(server.address) as victim, RawClient(server.address) as other:
        victim.log_in()
        other.log_in()
        start_hanging(victim, script)
        assert isinstance(other.command(packet), Ok)
        assert victim.is_closed()
        assert script.is_closed.wait(DEADLINE_SECONDS)


def test_there_is_nothing_to_kill_under_an_unknown_number(raw, server):
    assert raw.query("KILL 99") == Err(1094, "HY000", "Unknown thread id: 99")
    with pytest.raises(SqlError, match="1094"):
        server.kill(99)


def test_stopping_ends_statements_and_sessions(script):
    server = SqlServer(script.make_session)
    server.start(0)
    with RawClient(server.address) as client:
        client.log_in()
        start_hanging(client, script)
        server.stop()
        assert client.is_closed()
    assert script.events == ["interrupt", "close"]
    assert server.connection_count == 0
    server.stop()


def test_a_session_that_fails_to_close_is_logged(script, caplog):
    class Stubborn(ScriptedSession):
        def close(self) -> None:
            super().close()
            raise RuntimeError("cannot roll back")

    stubborn = SqlServer(lambda: Stubborn(script))
    stubborn.start(0)
    with RawClient(stubborn.address) as client:
        client.log_in()
    assert script.is_closed.wait(DEADLINE_SECONDS)
    stubborn.stop()
    assert "cannot roll back" in caplog.text


# The server


def test_a_port_that_is_taken_is_a_usage_error(server, script):
    port = int(server.address.rsplit(":", 1)[1])
    second = SqlServer(script.make_session)
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
        second.start(port)
    second.stop()


def test_only_this_machine_can_connect(server):
    assert server.address.startswith("127.0.0.1:")


def test_a_connection_that_is_reset_at_once_does_no_harm(server):
    host, port = server.address.split(":")
    for _ in range(5):
        client = socket.create_connection((host, int(port)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    with RawClient(server.address) as client:
        assert isinstance(client.log_in(), Ok)


def test_fifty_clients_at_once_get_each_their_own_answers(server, script):
    everybody = threading.Barrier(50)

    def talk(who: int) -> None:
        with RawClient(server.address) as client:
            assert isinstance(client.log_in(), Ok)
            everybody.wait(DEADLINE_SECONDS)  # all fifty are in at the same time
            number, _, _ = client.prepare(f"insert {who} ?")
            for round_ in range(10):
                parameters = b"\x00\x01\x08\x00" + struct.pack("<q", round_)
                assert client.execute(number, parameters) == Ok(who, round_, 2, 0, b"")
                result = client.query(f"select {who}")
                assert isinstance(result, ResultSet)
                assert result.rows == [bytes((len(str(who)),)) + str(who).encode()]

    def answer_of(who: int):
        return lambda parameters: Affected(who, parameters[0])

    for who in range(50):
        script.answers[f"insert {who} ?"] = answer_of(who)
        script.answers[f"select {who}"] = Rows((ID,), [(who,)])
    with ThreadPoolExecutor(50) as pool:
        for done in [pool.submit(talk, who) for who in range(50)]:
            done.result(DEADLINE_SECONDS * 2)
    assert len({client.connection_id for client in script.clients}) == 50
