"""Patience with a downstream that is away, and its end."""

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.mariadb import MariaDb
from tests.sinks.halves import MysqlHalves, mysql_sink
from tests.sinks.moments import START
from tests.sinks.mysql.test_ddl import event
from tidemill.errors import SinkError
from tidemill.model.ddl import ActionType
from tidemill.sinks.mysql import parse_mysql_uri
from tidemill.sinks.mysql.lines import Lines
from tidemill.sinks.mysql.retry import Patience

HOURS = 9_000.0


def test_without_patience_there_is_one_try() -> None:
    assert list(Patience(0.0).tries()) == [True]


def test_whose_patience_is_ended_has_one_more_try() -> None:
    patience, found = Patience(HOURS), []
    for is_last in patience.tries(HOURS):
        found.append(is_last)
        patience.end()
    assert found == [False, True]


def test_a_server_that_is_away_is_told_of_at_the_first_try(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        sink = mysql_sink(parse_mysql_uri(f"mysql://root:secret@127.0.0.1:{port}/"), None, patience_seconds=0.5)
        with pytest.raises(SinkError, match=r"for 0 s|for 1 s"):
            sink.recover(START)
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"127.0.0.1:{port}" in said
    assert "refused" in said
    assert "secret" not in said


def test_closing_ends_the_wait_for_a_server_that_is_away() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        uri = f"mysql://root@127.0.0.1:{nobody.getsockname()[1]}/"
        sink = mysql_sink(parse_mysql_uri(uri), None, patience_seconds=HOURS)
        failures: list[SinkError] = []

        def recover() -> None:
            with pytest.raises(SinkError, match="take over the downstream") as caught:
                sink.recover(START)
            failures.append(caught.value)

        waiting = threading.Thread(target=recover, daemon=True)
        waiting.start()
        sink.close()
        waiting.join(60)
    assert [failure.retryable for failure in failures] == [True]


def test_a_wait_for_others_is_over_when_they_are_done_or_when_it_is_ended() -> None:
    answers = iter([False, False, True])
    assert Patience(0.0).until(lambda: next(answers), 0.001)
    patience = Patience(60.0)
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        patience.end()
        return False

    assert not patience.until(is_over, 60.0)
    assert len(asked) == 1  # not again and again without a pause


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def ended(sink: MysqlHalves, work: Callable[[], None], is_waiting: Callable[[], bool]) -> list[SinkError]:
    """What ``work`` raises when the sink is closed beside it."""
    failures: list[SinkError] = []

    def run() -> None:
        try:
            work()
        except SinkError as error:
            failures.append(error)

    waiting = threading.Thread(target=run, daemon=True)
    waiting.start()
    while not is_waiting():
        assert waiting.is_alive()
    sink.close()
    waiting.join(60)  # far below the time-outs of a server or of ours
    assert not waiting.is_alive()
    return failures


def test_closing_ends_a_handshake_with_a_server_that_says_nothing(silent: int) -> None:
    sink = mysql_sink(
        parse_mysql_uri(f"mysql://root@127.0.0.1:{silent}/?read-timeout=10m"), None, patience_seconds=HOURS
    )
    (failure,) = ended(sink, lambda: sink.recover(START), lambda: bool(sink.owner._turn.lines._connections))
    assert failure.retryable


def test_what_was_dialled_is_cut_before_a_connection_takes_it_over(silent: int) -> None:
    lines = Lines()
    dialled = lines.dial("127.0.0.1", silent, 60.0)
    lines.cut()
    assert dialled.recv(1) == b""  # not the time-out of a minute
    with pytest.raises(ConnectionAbortedError):
        lines.dial("127.0.0.1", silent, 60.0)
    dialled.close()


def test_a_process_with_a_thousand_open_files_dials_all_the_same(silent: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    held = [os.dup(0) for _ in range(1100)]
    try:
        with Lines().dial("127.0.0.1", silent, 60.0) as dialled:
            assert dialled.fileno() > 1023
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_closing_ends_the_wait_for_a_host_that_does_not_answer() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = [socket.socket() for _ in range(4)]
        for other in others:  # more than it queues: the next one is not answered
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        sink = mysql_sink(
            parse_mysql_uri(f"mysql://root@127.0.0.1:{full.getsockname()[1]}/?timeout=10m"), None,
            patience_seconds=HOURS,
        )  # fmt: skip
        (failure,) = ended(sink, lambda: sink.recover(START), lambda: bool(sink.owner._turn.lines._connections))
        for other in others:
            other.close()
    assert failure.retryable


def test_closing_ends_a_ddl_that_waits_for_a_lock(mariadb: MariaDb) -> None:
    mariadb.query("CREATE OR REPLACE DATABASE waits", "CREATE TABLE waits.t (id INT PRIMARY KEY)")
    mariadb.query("DROP DATABASE IF EXISTS tidb_cdc")  # whose notes may say that this DDL is done
    sink = mysql_sink(parse_mysql_uri(mariadb.uri()), None, patience_seconds=HOURS)
    sink.recover(START)
    holder = mariadb.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT * FROM waits.t")  # and the table's form is locked until this ends
    alter = event("alter table t add column c int", ActionType.ADD_COLUMN, 1, schema="waits")
    is_waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata%'"
    (failure,) = ended(sink, lambda: sink.ddl(alter), lambda: mariadb.query(is_waiting) != [(0,)])
    assert failure.retryable
    holder.close()
