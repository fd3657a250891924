"""Patience with a downstream that is away, and its end."""

import socket
import threading

import pytest

from tidemill.errors import SinkError
from tidemill.flow.sink.mysql import MysqlSink, parse_mysql_uri
from tidemill.flow.sink.mysql.waiting import Patience

HOURS = 9_000.0


def test_without_patience_there_is_one_try() -> None:
    assert list(Patience(0.0).tries()) == [True]


def test_whose_patience_is_ended_has_one_more_try() -> None:
    patience, found = Patience(HOURS), []
    for is_last in patience.tries(HOURS):
        found.append(is_last)
        patience.end()
    assert found == [False, True]


def test_closing_ends_the_wait_for_a_server_that_is_away() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        uri = f"mysql://root@127.0.0.1:{nobody.getsockname()[1]}/"
        sink = MysqlSink(parse_mysql_uri(uri), None, patience_seconds=HOURS)
        failures: list[SinkError] = []

        def recover() -> None:
            with pytest.raises(SinkError, match="take over the downstream") as caught:
                sink.recover()
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
